"""Dot products and weighted sums of a few rows, against float64; nothing else is written."""

from __future__ import annotations

import numpy as np
import pytest

from tidegraph._jit import kernel
from tidegraph.ops.row_kernels import dots, padded, weighted_sums


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
