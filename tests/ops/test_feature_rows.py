"""bfloat16 feature tables are read in place: equal, bit for bit, to the same numbers as float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tiny
from tidegraph import ops
from tidegraph._jit import kernel
from tidegraph.batches import Mail
from tidegraph.ops import ragged, segment_attention, use_backend
from tidegraph.ops.feature_rows import add_features, feature_array, load_features

FLOATS = [torch.float32, torch.float64]


@kernel()
def _loaded(out_KX: Any, i: int, start: int, features_EF: Any, row: int) -> None:
    load_features(out_KX, i, start, features_EF, row)


@kernel()
def _added(out_F: Any, scale: Any, features_EF: Any, row: int) -> None:
    add_features(out_F, scale, features_EF, row)


@pytest.mark.parametrize("out", [np.float32, np.float64])
@pytest.mark.parametrize("stored", [torch.float32, torch.float64, torch.bfloat16])
def test_a_row_is_copied_and_added(out: type, stored: torch.dtype) -> None:
    table = torch.randn(4, 37, generator=torch.Generator().manual_seed(0)).to(stored)
    row = table[2].double().numpy()
    found_KX = np.zeros((3, 40), out)
    _loaded(found_KX, 1, 2, feature_array(table), 2)
    found = found_KX[1, 2:39].copy()
    assert np.array_equal(found, row.astype(out))
    found_KX[1, 2:39] = 0
    assert not found_KX.any()  # nothing else was written
    _added(found, out(0.5), feature_array(table), 2)
    np.testing.assert_allclose(found, row * 1.5, rtol=1e-6 if out is np.float32 else 1e-15)


def bits(shape: tuple[int, int]) -> Tensor:
    """bfloat16 with numbers of all sizes, zero and the smallest ones among them."""
    draw = torch.Generator().manual_seed(1)
    size = 10.0 ** torch.randint(-3, 3, shape, generator=draw)
    table = (torch.randn(shape, generator=draw) * size).to(torch.bfloat16)
    table[0, 0], table[1, 0] = 0.0, 2.0**-133
    return table


def outputs(function: Callable[..., Tensor], leaves: list[Tensor]) -> list[Tensor]:
    """Output and gradients."""
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    out = function(*leaves)
    out.square().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def check_storage(run: Callable[[Tensor], list[Tensor]], table: Tensor) -> None:
    """bfloat16 storage equals float32 storage of the same numbers, and the reference's."""
    found, expected = run(table), run(table.float())
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    with use_backend("reference"):
        for one, other in zip(found, run(table), strict=True):
            limit = 1e-4 if one.dtype == torch.float32 else 1e-9
            scale = max(1.0, float(other.abs().max()))
            assert float((one - other).abs().max()) <= limit * scale


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("F", [1, 3, 40])
def test_attention_reads_bfloat16_in_place(dtype: torch.dtype, F: int) -> None:
    draw = torch.Generator().manual_seed(2)
    counts = [0, 1, 4, 2] * 9
    hop = tiny.random_hop(3, counts, 4, 7, 6)
    leaves = [
        torch.randn(2, len(counts), 5 + F + 4, generator=draw, dtype=dtype) * 0.1,
        torch.randn(7, 5, generator=draw, dtype=dtype),
        10.0 ** torch.linspace(0, -9, 4, dtype=dtype),
        torch.randn(4, generator=draw, dtype=dtype),
    ]

    def run(table: Tensor) -> list[Tensor]:
        return outputs(
            lambda query, rows, weight, bias: ops.temporal_attention(
                query, rows, hop, table, weight, bias
            ),
            leaves,
        )

    check_storage(run, bits((6, F)))


def test_ragged_attention_reads_bfloat16_in_place() -> None:
    draw = torch.Generator().manual_seed(5)
    counts = [0, 1, 4, 2] * 9
    hop = ragged(tiny.random_hop(3, counts, 4, 7, 6))
    leaves = [
        torch.randn(2, len(counts), 5 + 3 + 4, generator=draw) * 0.1,
        torch.randn(7, 5, generator=draw),
        10.0 ** torch.linspace(0, -9, 4),
        torch.randn(4, generator=draw),
    ]

    def run(table: Tensor) -> list[Tensor]:
        return outputs(
            lambda query, rows, weight, bias: segment_attention(
                query, rows, hop, table, weight, bias
            ),
            leaves,
        )

    check_storage(run, bits((6, 3)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("cell", ["gru", "rnn"])
@pytest.mark.parametrize("mails", [[1, 0, 1, 1], [0, 2, 1, 5, 0]])
def test_memory_update_reads_bfloat16_in_place(
    dtype: torch.dtype, cell: str, mails: list[int]
) -> None:
    draw = torch.Generator().manual_seed(4)
    D, F, T, U = 4, 3, 5, len(mails)
    pending = [n for n in mails if n]
    mail = Mail(
        row_M=torch.tensor([u for u, n in enumerate(mails) if n], dtype=torch.int32),
        indptr_M1=torch.tensor(np.cumsum([0, *pending]), dtype=torch.int32),
        event_L=torch.randint(0, 6, (sum(mails),), generator=draw, dtype=torch.int32),
        delta_L=torch.rand(sum(mails), generator=draw),
    )
    G = 3 * D if cell == "gru" else D
    memory, partner = (torch.randn(U, D, generator=draw, dtype=dtype) for _ in range(2))
    shapes = [(T,), (T,), (G, 2 * D + F + T), (G, D), (G,), (G,)]
    leaves = [torch.randn(shape, generator=draw, dtype=dtype) * 0.3 for shape in shapes]

    def run(table: Tensor) -> list[Tensor]:
        return outputs(
            lambda *parameters: ops.memory_update(cell, memory, partner, mail, table, *parameters),
            leaves,
        )

    check_storage(run, bits((6, F)))
