"""Encoded stores: every value within its stated error, nothing that a type cannot hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tidegraph.errors import InputError, SettingError
from tidegraph.features import FEATURE_TYPES, FeatureStore
from tidegraph.features.encode import RELATIVE_ERROR

LARGEST = {"float32": 3e38, "float16": 65504.0, "bfloat16": 3.3e38, "int8": 2.0**126}
ENCODED = [name for name in FEATURE_TYPES if name != "float32"]


def off(store: FeatureStore, array: np.ndarray) -> np.ndarray:
    """|decoded - given| in float64."""
    decoded = store.rows(np.arange(len(array))).numpy().astype(np.float64)
    return np.abs(decoded - array.astype(np.float64))


@st.composite
def tables(draw: st.DrawFn, largest: float) -> np.ndarray:
    """Columns of very different size, subnormal numbers and constants among them."""
    rows, width = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    table = np.empty((rows, width), np.float32)
    for column in range(width):
        top = float(np.float32(draw(st.sampled_from([1e-44, 1e-6, 1.0, 3e4, largest]))))
        top = min(top, float(np.nextafter(np.float32(largest), np.float32(0))))
        value = st.floats(-top, top, width=32)
        table[:, column] = draw(hnp.arrays(np.float32, rows, elements=value))
    return table


@pytest.mark.parametrize("dtype", FEATURE_TYPES)
@settings(deadline=None)
@given(data=st.data())
def test_no_value_is_further_off_than_stated(dtype: str, data: st.DataObject) -> None:
    array = data.draw(tables(LARGEST[dtype]))
    store = FeatureStore.of(array, dtype)
    assert store.dtype == dtype
    assert store.error_F.shape == (array.shape[1],)
    assert (off(store, array) <= store.error_F).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@settings(deadline=None)
@given(data=st.data())
def test_relative_error_of_normal_numbers(dtype: str, data: st.DataObject) -> None:
    smallest = 2.0**-14 if dtype == "float16" else 2.0**-126
    top = float(np.float32(LARGEST[dtype] * 0.99))
    value = st.floats(smallest, top, width=32)
    array = data.draw(hnp.arrays(np.float32, (5, 2), elements=value))
    assert (off(FeatureStore.of(array, dtype), array) <= RELATIVE_ERROR[dtype] * array).all()


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 10), ("bfloat16", 7)])
def test_relative_error_is_reached_halfway_after_one(dtype: str, bits: int) -> None:
    """1 | 1 + half a step | 1 + a step: the middle goes to 1, whose last bit is even."""
    half = 2.0 ** -(bits + 1)
    array = np.array([[1 + half], [1 + 3 * half]], np.float32)
    store = FeatureStore.of(array, dtype)
    assert store.rows(np.array([0, 1])).flatten().tolist() == [1.0, 1 + 4 * half]  # ties to even
    assert off(store, array)[0, 0] / array[0, 0] == pytest.approx(RELATIVE_ERROR[dtype], rel=1e-12)
    assert off(store, array)[0, 0] == store.error_F[0]


def test_int8_error_is_half_a_step() -> None:
    array = np.linspace(-1, 1, 4081, dtype=np.float32)[:, None]
    store = FeatureStore.of(array, "int8")
    worst, half_step = off(store, array).max(), 1 / 255
    assert store.error_F[0] == pytest.approx(half_step, rel=1e-4)
    assert 0.99 * half_step < worst <= store.error_F[0]
    assert store.table.dtype == torch.int8
    assert set(store.table.flatten().tolist()) == set(range(-128, 128))


def test_int8_constant_columns_are_exact() -> None:
    array = np.array([[7.3, 0.0, -1e30]] * 4, np.float32)
    store = FeatureStore.of(array, "int8")
    assert (store.error_F == 0).all()
    assert np.array_equal(store.rows(np.arange(4)).numpy(), array)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_finite_code_is_decoded_exactly(dtype: str) -> None:
    code = np.arange(1 << 16, dtype=np.uint16)
    kind = getattr(torch, dtype)
    table = torch.from_numpy(code.view(np.int16)).view(kind)
    finite = table[torch.isfinite(table)].reshape(-1, 64)
    rows = FeatureStore(finite).rows(np.arange(len(finite), dtype=np.int32))
    # As integers: bit for bit, the sign of zero included.
    assert torch.equal(rows.view(torch.int32), finite.float().view(torch.int32))


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", FEATURE_TYPES)
def test_rows_and_take_follow_the_index(dtype: str, index: type) -> None:
    array = np.random.default_rng(1).normal(size=(300, 5)).astype(np.float32)
    store = FeatureStore.of(array, dtype)
    chosen = np.random.default_rng(2).integers(0, 300, 200).astype(index)
    every = store.rows(np.arange(300))
    assert torch.equal(store.rows(chosen), every[torch.from_numpy(chosen).long()])
    taken = store.take(chosen)
    assert taken.dtype == (torch.bfloat16 if dtype == "bfloat16" else torch.float32)
    assert torch.equal(taken.float(), store.rows(chosen))
    assert store.rows(np.empty(0, index)).shape == (0, 5)


@pytest.mark.parametrize("dtype", FEATURE_TYPES)
@pytest.mark.parametrize("row", [-1, 3])
def test_a_row_that_is_not_there_is_refused(dtype: str, row: int) -> None:
    store = FeatureStore.of(np.ones((3, 2), np.float32), dtype)
    with pytest.raises(IndexError):
        store.rows(np.array([0, row]))


def test_float16_refuses_what_it_cannot_hold() -> None:
    array = np.zeros((5, 2), np.float32)
    array[3, 1] = -65505.0
    with pytest.raises(InputError) as error:
        FeatureStore.of(array, "float16", names=("delay", "distance"), what="event feature")
    assert str(error.value) == (
        "event feature 'distance' is -65505 in row 3 (from 0): float16 holds values up to 65504. "
        "Store features as bfloat16 or float32, or scale the column"
    )
    array[3, 1] = 65504.0
    assert FeatureStore.of(array, "float16").rows(np.array([3]))[0, 1] == 65504.0


def test_bfloat16_and_int8_refuse_what_they_cannot_hold() -> None:
    for dtype, value in (("bfloat16", 3.4e38), ("int8", 1e38)):
        with pytest.raises(InputError) as error:
            FeatureStore.of(np.array([[value]], np.float32), dtype)
        assert f"column 0 is {value:g} in row 0 (from 0): {dtype} holds" in str(error.value)


@pytest.mark.parametrize("dtype", ENCODED)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_encoded_stores_refuse_what_is_not_finite(dtype: str, value: float) -> None:
    array = np.zeros((4, 2), np.float32)
    array[2, 1] = value
    with pytest.raises(InputError, match=r"column 1 is -?(nan|inf) in row 2"):
        FeatureStore.of(array, dtype)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(SettingError, match="feature type 'float8': expected one of float32,"):
        FeatureStore.of(np.ones((1, 1), np.float32), "float8")


@settings(deadline=None)
@given(
    array=hnp.arrays(np.float32, (9, 2), elements=st.floats(-100, 100, width=32)),
    later=hnp.arrays(np.float32, (4, 2), elements=st.floats(-1e6, 1e6, width=32)),
    fit=st.integers(1, 9),
)
def test_rows_outside_the_fit_change_no_code_of_it(
    array: np.ndarray, later: np.ndarray, fit: int
) -> None:
    """Ranges come from the fitted rows; what comes later is clipped and the error says how far."""
    alone = FeatureStore.of(array[:fit], "int8")
    whole = np.concatenate([array, later])
    for rows in (fit, np.arange(len(whole)) < fit):
        store = FeatureStore.of(whole, "int8", fit=rows)
        assert torch.equal(store.table[:fit], alone.table)
        assert (off(store, whole) <= store.error_F).all()
        low_F, high_F = array[:fit].min(axis=0), array[:fit].max(axis=0)
        assert store.clipped == int(((whole < low_F) | (whole > high_F)).sum())


def test_ranges_are_found_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(3).normal(size=(101, 3)).astype(np.float32)
    whole = {dtype: FeatureStore.of(array, dtype, fit=40) for dtype in ENCODED}
    monkeypatch.setattr("tidegraph.features.encode.BLOCK_BYTES", 7 * 12)
    for dtype, store in whole.items():
        pieces = FeatureStore.of(array, dtype, fit=40)
        assert torch.equal(pieces.table.view(torch.int8), store.table.view(torch.int8))
        assert np.array_equal(pieces.error_F, store.error_F)
        assert pieces.clipped == store.clipped


def test_what_is_said_of_a_store() -> None:
    array = np.array([[0.0, 0.0], [255.0, 1.0], [300.0, 2.0]], np.float32)
    assert FeatureStore.of(array).about() == "float32, as given"
    assert "within 1/2049 of itself" in FeatureStore.of(array, "float16").about()
    said = FeatureStore.of(array, "int8", fit=2).about(("delay", "x"))
    assert "largest error 45.5, column 'delay'" in said
    assert said.endswith("2 values outside the training range clipped")


@pytest.mark.parametrize("dtype", FEATURE_TYPES)
def test_no_rows_and_no_columns(dtype: str) -> None:
    assert FeatureStore.of(np.empty((0, 3), np.float32), dtype).width == 3
    empty = FeatureStore.of(np.empty((4, 0), np.float32), dtype)
    assert empty.width == 0
    assert empty.dtype == "float32"
