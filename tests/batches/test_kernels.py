"""Deduplication and transposes equal brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegraph.batches import kernels

EMPTY = np.empty(0, np.int64)
# Nodes alone are numbered by a table of them, or by hashing where few of many occur.
NODES = st.one_of(st.integers(-1, 4), st.sampled_from([1000, 2**31 - 2, 2**31 - 1]))
TIMES = st.sampled_from([0, 1, -1, 2**53, 2**53 + 1, -(2**63), 2**63 - 1])


@given(
    st.lists(st.tuples(NODES, TIMES, st.integers(0, 2)), max_size=40), st.booleans(), st.booleans()
)
def test_unique_numbers_triples_in_order_of_first_appearance(
    pairs: list[tuple[int, int, int]], has_time: bool, has_bound: bool
) -> None:
    node = np.array([p[0] for p in pairs], np.int32)
    time = np.array([p[1] for p in pairs], np.int64) if has_time else EMPTY
    bound = np.array([p[2] for p in pairs], np.int64) if has_bound else EMPTY
    inverse, first = np.empty(len(pairs), np.int32), np.empty(len(pairs), np.int32)
    count = kernels.unique_pairs(node, time, bound, inverse, first)

    numbers: dict[tuple[int, int, int], int] = {}
    firsts, expected = [], []
    for position, (n, t, b) in enumerate(pairs):
        key = (n, t if has_time else 0, b if has_bound else 0)
        if n < 0:
            expected.append(-1)
            continue
        if key not in numbers:
            numbers[key] = len(numbers)
            firsts.append(position)
        expected.append(numbers[key])
    assert count == len(numbers)
    assert inverse.tolist() == expected
    assert first[:count].tolist() == firsts


@given(st.lists(st.integers(-1, 6), max_size=50))
def test_transpose_lists_positions_by_row(index: list[int]) -> None:
    indptr, position = np.empty(8, np.int32), np.empty(len(index), np.int32)
    used = kernels.transpose(np.array(index, np.int32), indptr, position)
    assert used == sum(i >= 0 for i in index)
    for row in range(7):
        expected = [p for p, value in enumerate(index) if value == row]
        assert position[indptr[row] : indptr[row + 1]].tolist() == expected


@pytest.mark.parametrize("count", [1000, 100_000])
def test_unique_with_many_pairs(count: int) -> None:
    rng = np.random.default_rng(0)
    node = rng.integers(0, 1000, count).astype(np.int32)
    time = rng.integers(0, 100, count) * 2**40
    inverse, first = np.empty(count, np.int32), np.empty(count, np.int32)
    distinct = kernels.unique_pairs(node, time, EMPTY, inverse, first)
    assert distinct == len(np.unique(np.stack([node, time]), axis=1).T)
    first = first[:distinct]
    assert np.array_equal(node[first][inverse], node)
    assert np.array_equal(time[first][inverse], time)
