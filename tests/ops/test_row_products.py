"""Products whose rows do not know each other: right, and the same bits in any company."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegraph.errors import SettingError
from tidegraph.ops import linear, use_scoring
from tidegraph.ops.products import batched_product, product
from tidegraph.ops.row_products import row_product
from tidegraph.ops.tiles import make_tile


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 120),
    depth=st.integers(1, 40),
    columns=st.integers(1, 40),
    first=st.integers(0, 119),
    seed=st.integers(0, 5),
)
def test_a_row_is_right_and_the_same_alone(
    rows: int, depth: int, columns: int, first: int, seed: int
) -> None:
    a, b, bias = drawn(seed, rows, depth), drawn(9, columns, depth).t(), drawn(3, columns)
    found = row_product(a, b, bias)
    expected = a.double() @ b.double() + bias.double()
    assert torch.allclose(found.double(), expected, atol=1e-4, rtol=1e-5)
    for part in (slice(first, first + 1), slice(first, None), slice(0, None, 3)):
        assert torch.equal(row_product(a[part], b, bias), found[part])


@pytest.mark.parametrize(("depth", "columns"), [(513, 16), (1030, 41), (0, 5)])
def test_depths_beyond_a_panel_in_the_cache(depth: int, columns: int) -> None:
    a, b = drawn(0, 31, depth), drawn(1, depth, columns)
    found = row_product(a, b)
    assert torch.allclose(found.double(), a.double() @ b.double(), atol=1e-3, rtol=1e-5)
    assert torch.equal(row_product(a[7:8], b), found[7:8])


@pytest.mark.parametrize(("rows", "lanes"), [(6, 8), (12, 16), (2, 4)])
@pytest.mark.parametrize("fresh", [0, 1])
def test_tiles_of_other_machines(rows: int, lanes: int, fresh: int) -> None:
    """Whatever shape suits a machine's registers, the tile is right on this one too."""
    tile = make_tile(rows, lanes, 2)

    @numba.njit
    def run(a, row, last, b, depth, out, out_row):  # type: ignore[no-untyped-def]
        tile(a, row, np.int64(4), last, b, depth, out, out_row, np.int64(fresh))

    a, b = drawn(0, rows, 37), drawn(1, 37, 2 * lanes)
    out = drawn(2, rows, 2 * lanes)
    last = rows - 2
    expected = a.double() @ b.double() + (0 if fresh else out.double())
    expected[rows - 1] = a[last].double() @ b.double() + (0 if fresh else out[rows - 1].double())
    run(a.data_ptr(), 4 * 37, last, b.data_ptr(), 37, out.data_ptr(), 8 * lanes)
    assert torch.allclose(out.double(), expected, atol=1e-4)


def test_strides_and_where_the_result_goes() -> None:
    wide, b = drawn(0, 30, 50), drawn(1, 20, 9)
    out = torch.zeros(30, 2, 9)
    row_product(wide[:, 7:27], b, out_IK=out[:, 1])
    assert torch.equal(out[:, 1], row_product(wide[:, 7:27].contiguous(), b))
    assert not out[:, 0].any()
    assert torch.equal(row_product(wide.t()[:30, :20], b), row_product(wide[:20, :30].t(), b))


def test_infinity_and_nan_stay_in_their_row() -> None:
    a, b = drawn(0, 20, 8), drawn(1, 8, 17)
    spoiled = a.clone()
    spoiled[6, 2], spoiled[7, 0] = float("nan"), float("inf")
    found = row_product(spoiled, b)
    assert found[6].isnan().all()
    assert not found[7].isfinite().any()
    kept = [i for i in range(20) if i not in (6, 7)]
    assert torch.equal(found[kept], row_product(a, b)[kept])


def test_scoring_multiplies_row_by_row_and_training_does_not_change() -> None:
    a, b, layer = drawn(0, 300, 100), drawn(1, 100, 70), torch.nn.Linear(100, 70)
    with torch.inference_mode():
        assert torch.equal(product(a, b), row_product(a, b))
        assert torch.equal(batched_product(a[None], b[None])[0], row_product(a, b))
        assert torch.equal(linear(a, layer)[3:4], linear(a[3:4], layer))
        assert torch.allclose(linear(a, layer), layer(a), atol=1e-5)
        with use_scoring("plain"):
            assert torch.equal(product(a, b), a @ b)
            assert torch.equal(linear(a, layer), layer(a))
        assert torch.equal(product(a.double(), b.double()), a.double() @ b.double())
    assert torch.equal(product(a, b), a @ b)
    with pytest.raises(SettingError, match="scoring='fast'"), use_scoring("fast"):
        pass
