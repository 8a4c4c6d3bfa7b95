"""The compiled helpers that other rooms call from their own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from history.brute import build, eligible, streams
from tidegraph._jit import kernel
from tidegraph.history import TemporalIndex
from tidegraph.history.kernels import NO_LIMIT, below, count_before, first_within


@settings(max_examples=100, deadline=None)
@given(streams(floats=False), st.data())
def test_searches_equal_brute_force(stream: Any, data: st.DataObject) -> None:
    index = build(stream)
    node = data.draw(st.integers(0, stream.num_nodes - 1))
    time = data.draw(st.sampled_from([int(t) for t in stream.time] or [0]))
    limit = data.draw(st.sampled_from([None, 0, 3, 50]))
    inclusive = data.draw(st.booleans())
    window = data.draw(st.integers(0, 6))
    lo, hi = index.indptr_N1[node : node + 2]
    end = count_before(
        index.entries,
        lo,
        hi,
        np.int64(time),
        NO_LIMIT if limit is None else np.int64(limit),
        inclusive,
    )
    options = {"inclusive": inclusive, "before_event": limit}
    assert end - lo == len(eligible(stream, node, time, **options))
    start = first_within(index.entries, lo, end, np.int64(time), np.uint64(window))
    assert end - start == len(eligible(stream, node, time, window=window, **options))


def test_searches_may_be_called_from_a_kernel() -> None:
    @kernel()
    def degree(indptr_N1, entries, node, time):  # type: ignore[no-untyped-def]
        lo = indptr_N1[node]
        end = count_before(entries, lo, indptr_N1[node + 1], time, NO_LIMIT, False)
        return end - lo

    # 0 --t1-- 1 --t2-- 0 (again)
    index = TemporalIndex.build([0, 1], [1, 0], [1, 2], 2)
    assert [degree(index.indptr_N1, index.entries, 0, t) for t in (1, 2, 3)] == [0, 1, 2]


def test_draws_stay_below_their_bound() -> None:
    largest = np.uint64(2**64 - 1)
    for bound in (1, 2, 3, 7, 2**31, 2**32 + 1, 2**53 - 1, 2**53):
        assert below(largest, bound) == bound - 1
        assert below(np.uint64(0), bound) == 0


@pytest.mark.parametrize("kind", [np.int64, np.float64])
@pytest.mark.parametrize("size", [1, 7, 8, 9, 63, 64, 65, 511, 512, 513, 600, 4096, 4097, 40_000])
def test_a_search_goes_down_every_level(size: int, kind: type) -> None:
    """One node with `size` entries, asked before, at and behind each border of a level."""
    rng = np.random.default_rng(size)
    time = np.sort(rng.integers(0, size // 2 + 1, size)).astype(kind)  # with ties
    # A neighbour slice on either side must not be taken for the node's own.
    events = size + 40
    source, target = np.full(events, 1), np.full(events, 3)
    source[:20], source[-20:] = 0, 2
    time = np.concatenate([np.full(20, time[0]), time, np.full(20, time[-1])])
    index = TemporalIndex.build(source, target, time, 4, directed=True)
    step = max(1, size // 300)
    asked = np.unique(np.concatenate([time[::step], time[:9], time[-9:], time[-1:] + 1]))
    nodes = np.repeat(np.arange(3, dtype=np.int32), len(asked))
    times = np.tile(asked, 3)
    order = rng.permutation(len(nodes))  # neighbours of one node take another way
    for inclusive, before in ((False, None), (True, None), (False, 20 + size // 3), (True, 0)):
        found = np.empty(len(nodes), np.int64)
        options = {"inclusive": inclusive, "before_event": before}
        found[order] = index.degree(nodes[order], times[order], **options)
        side = "right" if inclusive else "left"
        limit = events if before is None else before
        for node in range(3):
            own = np.flatnonzero(source == node)
            mine = np.searchsorted(time[own[own < limit]], asked, side)
            np.testing.assert_array_equal(found[nodes == node], mine)
            straight = index.degree(nodes[nodes == node], asked, **options)
            np.testing.assert_array_equal(straight, mine)
