"""Arithmetic on a few rows, against float64; nothing else is written."""

from __future__ import annotations

import numpy as np
import pytest

from tidegraph._jit import kernel
from tidegraph.ops.row_kernels import dots, padded, weighted_sums
from tidegraph.ops.row_vectors import (
    same_gaps,
    softmax_row,
    sum_rows_from,
    sum_turned_rows,
    whole_gaps,
)
from tidegraph.ops.tiles import FLOAT, address, place


@kernel()
def _both(query_HX, row_KX, count, out_HK, weight_HK, sum_HX):  # type: ignore[no-untyped-def]
    dots(query_HX, row_KX, count, out_HK)
    weighted_sums(weight_HK, row_KX, count, sum_HX)


@pytest.mark.parametrize("width", [1, 32, 33, 100, 272, 372])
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dots_and_sums_equal_float64(width: int, heads: int, dtype: type) -> None:
    draw = np.random.default_rng(width * heads)
    K, X = 9, padded(width)
    query_HX, row_KX = draw.normal(size=(heads, X)), draw.normal(size=(K, X))
    weight_HK = draw.normal(size=(heads, K))
    given = [array.astype(dtype) for array in (query_HX, row_KX, weight_HK)]
    exact = np.finfo(dtype).eps * np.sqrt(X)
    for count in range(K + 1):
        query, row, weight = (array.copy() for array in given)
        row[count:] = np.nan  # may be looked at, must not count
        out_HK = np.full((heads, K), 7, dtype)
        sum_HX = np.full((heads, X), 7, dtype)
        _both(query, row, count, out_HK, weight, sum_HX)
        found, wanted = out_HK[:, :count], (given[0].astype(float) @ given[1].T)[:, :count]
        assert np.abs(found - wanted).max(initial=0) < 10 * exact
        assert (out_HK[:, count:] == 7).all()
        total = given[2][:, :count].astype(float) @ given[1][:count]
        assert np.abs(sum_HX - total).max() < 10 * exact


def test_a_dot_does_not_know_its_place() -> None:
    draw = np.random.default_rng(0)
    row_KX = draw.normal(size=(7, 128)).astype(np.float32)
    query_HX = draw.normal(size=(2, 128)).astype(np.float32)
    weight_HK, sum_HX = np.zeros((2, 7), np.float32), np.zeros((2, 128), np.float32)
    together, alone = np.empty((2, 7), np.float32), np.empty((2, 1), np.float32)
    _both(query_HX, row_KX, 7, together, weight_HK, sum_HX)
    for i in range(7):
        _both(query_HX, row_KX[i : i + 1], 1, alone, weight_HK[:, :1].copy(), sum_HX)
        assert (alone[:, 0] == together[:, i]).all()


@kernel()
def _from_a_row(base_X, weight_2K, row_KX, count, out_2X):  # type: ignore[no-untyped-def]
    width = np.int64(row_KX.shape[1])
    sum_rows_from(
        address(base_X), place(weight_2K, 0, 0), place(weight_2K, 1, 0), address(row_KX),
        width * FLOAT, np.int64(count), address(out_2X), width * FLOAT, width,
    )  # fmt: skip


@pytest.mark.parametrize("width", [16, 48, 112, 272])
def test_sums_begin_with_a_row(width: int) -> None:
    draw = np.random.default_rng(width)
    base_X, weight_2K = draw.normal(size=width), draw.normal(size=(2, 5))
    row_KX = draw.normal(size=(5, width))
    given = [array.astype(np.float32) for array in (base_X, weight_2K, row_KX)]
    for count in range(6):
        out_2X = np.full((3, width), 7, np.float32)
        _from_a_row(*given, count, out_2X)
        base, weight, row = (array.astype(float) for array in given)
        wanted = base + weight[:, :count] @ row[:count]
        assert np.abs(out_2X[:2] - wanted).max() < 1e-5
        assert (out_2X[2] == 7).all()


@kernel()
def _turned_sums(weight_2K, row_KY, circle_Y, count, out, between):  # type: ignore[no-untyped-def]
    width = np.int64(row_KY.shape[1] // 2)
    sum_turned_rows(
        place(weight_2K, 0, 0), place(weight_2K, 1, 0), address(row_KY), 2 * width * FLOAT,
        np.int64(count), address(circle_Y), address(out), np.int64(between) * FLOAT, width,
    )  # fmt: skip


@pytest.mark.parametrize(("used", "width"), [(16, 16), (20, 32), (100, 112), (33, 48)])
def test_turned_sums_are_sums_turned(used: int, width: int) -> None:
    """The second sum begins right behind what is used of the first, in its padding."""
    draw = np.random.default_rng(used)
    weight_2K, row_KY = draw.normal(size=(2, 5)), draw.normal(size=(5, 2 * width))
    circle_Y = draw.normal(size=2 * width)
    given = [array.astype(np.float32) for array in (weight_2K, row_KY, circle_Y)]
    weight, row, circle = (array.astype(float) for array in given)
    for count in range(6):
        out = np.full(used + width + 1, 7, np.float32)
        _turned_sums(*given, count, out, used)
        total = weight[:, :count] @ row[:count]
        wanted = total[:, :width] * circle[:width] - total[:, width:] * circle[width:]
        assert np.abs(out[:used] - wanted[0, :used]).max() < 1e-5
        assert np.abs(out[used : used + width] - wanted[1]).max() < 1e-5
        assert out[-1] == 7


@kernel()
def _gaps(delta_K, count, gap_K):  # type: ignore[no-untyped-def]
    return whole_gaps(address(delta_K), np.int64(count), address(gap_K))


@kernel()
def _same(delta_K, count, gap_K):  # type: ignore[no-untyped-def]
    return same_gaps(address(delta_K), np.int64(count), address(gap_K))


@pytest.mark.parametrize("count", [1, 3, 8, 16, 17, 40])
def test_gaps_are_of_whole_numbers_that_float32_holds(count: int) -> None:
    draw = np.random.default_rng(count)
    delta_K = draw.integers(0, 2**24 - 1, count + 1).astype(np.float32)
    gap_K = np.full(count + 1, 7, np.float32)
    assert _gaps(delta_K, count, gap_K) == 1
    assert (gap_K[:count] == delta_K[:count] - delta_K[count - 1]).all()
    assert gap_K[count] == 7
    assert _same(delta_K, count, gap_K) == 1
    later = delta_K - delta_K[:count].min()
    later[count:] = np.nan  # not in use
    assert _same(later, count, gap_K) == 1
    for i in range(count):
        for wrong in (np.nan, np.inf, 0.5, 2.0**24, -1.0):
            spoiled = delta_K.copy()
            spoiled[i] = wrong
            assert _gaps(spoiled, count, np.empty_like(gap_K)) == 0
            assert _same(spoiled, count, gap_K) == 0
    if count > 1:
        moved = delta_K.copy()
        moved[0] = moved[0] + 1 if moved[0] < 2**23 else moved[0] - 1
        assert _same(moved, count, gap_K) == 0


@kernel()
def _softmax(score_K, count):  # type: ignore[no-untyped-def]
    softmax_row(address(score_K), np.int64(count))


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 40])
def test_a_softmax_is_relative_to_its_largest_wherever_that_is(count: int) -> None:
    draw = np.random.default_rng(count)
    for largest in range(count):
        score_K = draw.normal(size=count + 1).astype(np.float32) * 5
        # Relative to anything but this one, exponentials would overflow.
        score_K[largest] = 300
        given = score_K.astype(float)[:count]
        score_K[count] = np.nan
        _softmax(score_K, count)
        wanted = np.exp(given - given.max())
        assert np.abs(score_K[:count] - wanted / wanted.sum()).max() < 1e-6
        assert np.isnan(score_K[count])
        score_K[:count] = draw.normal(size=count)
        score_K[largest] = np.nan
        _softmax(score_K, count)
        assert np.isnan(score_K[:count]).all()
