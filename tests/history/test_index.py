"""Building, growing and checking the index."""

from __future__ import annotations

import itertools

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from history.brute import Stream, build, random_case, streams, threads_to_try
from tidegraph.errors import InputError, SettingError, UnknownNodeError
from tidegraph.history import TemporalIndex, entry_type


def entries_of(index: TemporalIndex, node: int) -> list[tuple[object, int, int]]:
    return index.entries[index.indptr_N1[node] : index.indptr_N1[node + 1]].tolist()


def assert_same_index(one: TemporalIndex, other: TemporalIndex) -> None:
    np.testing.assert_array_equal(one.indptr_N1, other.indptr_N1)
    np.testing.assert_array_equal(one.entries, other.entries)
    assert (one.num_nodes, one.num_events) == (other.num_nodes, other.num_events)
    assert (one.directed, one.last_time) == (other.directed, other.last_time)


@settings(max_examples=150, deadline=None)
@given(streams())
def test_entries_equal_brute_force(stream: Stream) -> None:
    index = build(stream)
    assert index.indptr_N1.dtype == np.int64
    assert index.num_events == len(stream.source)
    for node in range(stream.num_nodes):
        assert entries_of(index, node) == stream.entries(node)


@settings(max_examples=150, deadline=None)
@given(streams(), st.lists(st.integers(0, 40), max_size=5), st.data())
def test_appended_equals_built_at_once(
    stream: Stream, cuts: list[int], data: st.DataObject
) -> None:
    events = len(stream.source)
    cuts = [0, *sorted(min(cut, events) for cut in cuts), events]
    # The graph may gain nodes on the way: a step needs those of its own events only.
    index = TemporalIndex.build([], [], stream.time[:0], 0, directed=stream.directed)
    for first, last in itertools.pairwise(cuts):
        ends = stream.source[:last] + stream.target[:last]
        needed = max([*ends, index.num_nodes - 1]) + 1
        index = index.append(
            stream.source[first:last],
            stream.target[first:last],
            stream.time[first:last],
            needed,
        )
        whole = TemporalIndex.build(
            stream.source[:last],
            stream.target[:last],
            stream.time[:last],
            needed,
            directed=stream.directed,
        )
        assert_same_index(index, whole)
        if last:
            node = np.array([data.draw(st.integers(0, needed - 1))], np.int32)
            at = stream.time[last - 1 : last]
            np.testing.assert_array_equal(
                index.sample(node, at, 3, inclusive=True).event_SK,
                whole.sample(node, at, 3, inclusive=True).event_SK,
            )


def test_append_leaves_the_old_index_as_it_was() -> None:
    old = TemporalIndex.build([0], [1], [5], 2)
    new = old.append([1, 2], [0, 0], [5, 7], 3)
    assert entries_of(old, 0) == [(5, 0, 1)]
    assert entries_of(new, 0) == [(5, 0, 1), (5, 1, 1), (7, 2, 2)]
    assert old.append([], [], []).num_events == 1


def test_append_refuses_earlier_events_and_fewer_nodes() -> None:
    index = TemporalIndex.build([0], [1], [5], 2)
    with pytest.raises(InputError, match=r"time\[0\] is 4, before the index's last event at 5"):
        index.append([0], [1], [4])
    with pytest.raises(SettingError, match="num_nodes is 1, but the index already has 2"):
        index.append([0], [0], [6], 1)
    with pytest.raises(UnknownNodeError, match=r"target\[0\] is node 2"):
        index.append([0], [2], [6])
    with pytest.raises(InputError, match=r"time\[0\] is the float 6\.5"):
        index.append([0], [1], [6.5])


def test_append_after_masked_events_continues_their_ids_and_times() -> None:
    index = TemporalIndex.build([0, 0], [1, 1], [5, 9], 2, keep=[True, False])
    with pytest.raises(InputError, match="last event at 9"):
        index.append([0], [1], [8])
    assert entries_of(index.append([0], [1], [9]), 0) == [(5, 0, 1), (9, 2, 1)]


def test_build_does_not_depend_on_threads() -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 500, (2, 50_000))
    time = np.sort(rng.integers(0, 5_000, 50_000))
    before = numba.get_num_threads()
    built = []
    try:
        for threads in threads_to_try():
            numba.set_num_threads(threads)
            built.append(TemporalIndex.build(ends[0], ends[1], time, 500))
    finally:
        numba.set_num_threads(before)
    for other in built[1:]:
        assert_same_index(built[0], other)


def test_layout_is_sixteen_bytes_and_widens_for_large_event_ids() -> None:
    assert entry_type(np.dtype(np.int64), 2**31 - 1).itemsize == 16
    wide = entry_type(np.dtype(np.int64), 2**31)
    assert wide["event"] == np.int64


def test_event_ids_beyond_32_bits_are_exact() -> None:
    # 0 --(event 2**31 + 5, t 1)-- 1, and 0 --(event 2**33, t 2)-- 1
    kind = entry_type(np.dtype(np.int64), 2**33 + 1)
    entries = np.array([(1, 2**31 + 5, 1), (2, 2**33, 1)], kind)
    index = TemporalIndex(np.array([0, 2, 2]), entries, 2, 2**33 + 1, True)
    found = index.sample([0, 0], [3, 3], 2, before_event=[2**33 + 1, 2**33])
    assert found.event_SK.dtype == np.int64
    assert found.event_SK.tolist() == [[2**31 + 5, 2**33], [2**31 + 5, -1]]
    grown = index.append([0], [1], [4])
    assert entries_of(grown, 0)[-1] == (4, 2**33 + 1, 1)


def test_i63_large_nodes_and_times_use_64_bit_offsets() -> None:
    # 0 --t=2e9-- 3,000,000 : node * time needs 53 bits, offsets are int64
    index = TemporalIndex.build([0, 0], [3_000_000, 7], [2_000_000_000, 2_000_000_001], 3_000_001)
    assert index.indptr_N1.dtype == np.int64
    found = index.sample([0, 3_000_000], [2_000_000_001, 2**62], 2)
    assert found.neighbor_SK.tolist() == [[3_000_000, -1], [0, -1]]
    assert found.delta_SK[0, 0] == 1


@pytest.mark.parametrize("row", [1, 30_001])
def test_unsorted_events_are_refused_with_their_row(row: int) -> None:
    time = np.arange(40_000)
    time[row] = -1
    with pytest.raises(InputError, match=rf"time\[{row}\] is -1, earlier than time\[{row - 1}\]"):
        TemporalIndex.build(np.zeros(40_000, int), np.ones(40_000, int), time, 2)


@pytest.mark.parametrize(("column", "node"), [("source", -1), ("target", 3), ("target", 2**32)])
@pytest.mark.parametrize("row", [0, 39_999])
def test_unknown_nodes_are_refused_with_their_row(column: str, node: int, row: int) -> None:
    columns = {"source": np.zeros(40_000, np.int64), "target": np.ones(40_000, np.int64)}
    columns[column][row] = node
    with pytest.raises(UnknownNodeError, match=rf"{column}\[{row}\] is node {node},"):
        TemporalIndex.build(columns["source"], columns["target"], np.arange(40_000), 3)


def test_other_unusable_columns_are_refused() -> None:
    with pytest.raises(InputError, match="source has 2, target has 1, time has 2 rows"):
        TemporalIndex.build([0, 0], [1], [1, 2], 2)
    with pytest.raises(InputError, match="keep has 1 rows"):
        TemporalIndex.build([0, 0], [1, 1], [1, 2], 2, keep=[True])
    with pytest.raises(InputError, match="keep holds int64"):
        TemporalIndex.build([0], [1], [1], 2, keep=[1])
    with pytest.raises(InputError, match=r"time\[1\] is nan"):
        TemporalIndex.build([0, 0], [1, 1], [1.0, float("nan")], 2)
    with pytest.raises(InputError, match="largest int64"):
        TemporalIndex.build([0], [1], [2**63 - 1], 2)
    with pytest.raises(SettingError, match="num_nodes is -1"):
        TemporalIndex.build([], [], [], -1)


def adjacency(times: list[int], events: list[int]) -> TemporalIndex:
    kind = entry_type(np.dtype(np.int64), 10)
    entries = np.array([(t, e, 0) for t, e in zip(times, events, strict=True)], kind)
    return TemporalIndex(np.array([0, 1, len(times)]), entries, 2, 10, True)


def test_i14_hand_made_adjacency_out_of_order_is_refused() -> None:
    # node 0: t=9 (fine)      node 1: t=5, t=3 (falls)
    with pytest.raises(InputError, match=r"Node 1, row 1 .*\(3, 2, 0\), after \(5, 1, 0\)"):
        adjacency([9, 5, 3], [0, 1, 2])
    assert adjacency([9, 3, 5], [0, 1, 2]).degree([1], [6]).tolist() == [2]


def test_hand_made_adjacency_with_other_faults_is_refused() -> None:
    with pytest.raises(InputError, match="Node 1, row 1"):
        adjacency([9, 3, 3], [0, 2, 1])  # a tie, but events fall
    with pytest.raises(InputError, match="expected an event below 10"):
        adjacency([9, 3, 4], [0, 1, 10])
    good = TemporalIndex.build([0], [1], [3], 2)
    with pytest.raises(InputError, match="indptr_N1 has shape"):
        TemporalIndex(good.indptr_N1[:-1], good.entries, 2, 1, False)
    with pytest.raises(InputError, match="indptr_N1 must rise"):
        TemporalIndex(good.indptr_N1[::-1].copy(), good.entries, 2, 1, False)
    with pytest.raises(InputError, match="entries has type int64"):
        TemporalIndex(good.indptr_N1, np.zeros(2, np.int64), 2, 1, False)


def test_empty_streams_answer_with_padding() -> None:
    index = TemporalIndex.build([], [], [], 3)
    found = index.sample([0, 2], [5, 6], 2)
    assert found.count_S.tolist() == [0, 0]
    assert (found.neighbor_SK == -1).all()
    assert index.sample([0], [5], -1).neighbor_SK.shape == (1, 0)
    assert index.sample([], [], 4).neighbor_SK.shape == (0, 4)


def test_keep_mask_equals_the_index_without_those_events() -> None:
    _, nodes, times = random_case(200)
    rng = np.random.default_rng(1)
    source, target = rng.integers(0, 300, (2, 400))
    time, keep = np.sort(rng.integers(0, 100, 400)), rng.random(400) < 0.5
    masked = TemporalIndex.build(source, target, time, 300, keep=keep)
    alone = TemporalIndex.build(source[keep], target[keep], time[keep], 300)
    a = masked.sample(nodes, times % 100, 5)
    b = alone.sample(nodes, times % 100, 5)
    np.testing.assert_array_equal(a.neighbor_SK, b.neighbor_SK)
    ids = np.append(np.flatnonzero(keep), -1)
    np.testing.assert_array_equal(a.event_SK, ids[b.event_SK])
