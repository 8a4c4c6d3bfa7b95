"""The samplers against the brute-force reference, on random tiny graphs and in every option."""

from __future__ import annotations

import itertools
from collections import Counter

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from history.brute import (
    Stream,
    build,
    check_rows,
    eligible,
    random_case,
    streams,
    threads_to_try,
)
from tidegraph.errors import InputError, SettingError, UnknownNodeError
from tidegraph.history import Neighbors, TemporalIndex


def roots_of(stream: Stream, draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Some nodes, asked at the events' times and just around them."""
    count = draw(st.integers(0, 12))
    nodes = draw(st.lists(st.integers(0, stream.num_nodes - 1), min_size=count, max_size=count))
    known = stream.time.tolist() or [0]
    if stream.time.dtype == np.float64:
        around = sorted({t + d for t in known for d in (-0.25, 0.0, 0.125, 9.0)})
    else:
        low, high = -(2**63), 2**63 - 1
        around = sorted({min(max(t + d, low), high) for t in known for d in (-1, 0, 1, 20)})
    times = draw(st.lists(st.sampled_from(around), min_size=count, max_size=count))
    return np.array(nodes, np.int32), np.array(times, stream.time.dtype)


def limits_of(stream: Stream, roots: int, draw: st.DrawFn) -> tuple[object, list[int | None]]:
    """`before_event` in one of its three forms, and as one value for each root."""
    event = st.integers(0, len(stream.source) + 1)
    form = draw(st.sampled_from(["none", "scalar", "array"]))
    if form == "none":
        return None, [None] * roots
    if form == "scalar":
        limit = draw(event)
        return limit, [limit] * roots
    limits = draw(st.lists(event, min_size=roots, max_size=roots))
    return np.array(limits, np.int64), list(limits)


def windows_of(stream: Stream, draw: st.DrawFn) -> float | int | None:
    if stream.time.dtype == np.float64:
        return draw(st.sampled_from([None, 0.0, 0.25, 0.5, 2.0]))
    return draw(st.sampled_from([None, 0, 1, 2, 5, 5.5, 2**63]))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_recent_equals_brute_force_in_every_option(data: st.DataObject) -> None:
    stream = data.draw(streams())
    nodes, times = roots_of(stream, data.draw)
    limit, limits = limits_of(stream, len(nodes), data.draw)
    window = windows_of(stream, data.draw)
    inclusive = data.draw(st.booleans())
    k = data.draw(st.sampled_from([-1, 1, 2, 3, 30]))
    expected = [
        eligible(stream, n, t, window=window, inclusive=inclusive, before_event=b)
        for n, t, b in zip(nodes.tolist(), times.tolist(), limits, strict=True)
    ]
    index = build(stream)
    options = {"window": window, "inclusive": inclusive, "before_event": limit}
    degrees = index.degree(nodes, times, **options)
    assert degrees.tolist() == [len(row) for row in expected]
    found = index.sample(nodes, times, k, **options)
    assert found.neighbor_SK.shape[1] == (k if k > 0 else max(map(len, expected), default=0))
    check_rows(found, [row[-k:] if k > 0 else row for row in expected], times)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_uniform_takes_distinct_eligible_entries_in_order(data: st.DataObject) -> None:
    stream = data.draw(streams())
    nodes, times = roots_of(stream, data.draw)
    limit, limits = limits_of(stream, len(nodes), data.draw)
    window = windows_of(stream, data.draw)
    inclusive = data.draw(st.booleans())
    k = data.draw(st.sampled_from([-1, 1, 2, 3, 30]))
    found = build(stream).sample(
        nodes,
        times,
        k,
        strategy="uniform",
        window=window,
        inclusive=inclusive,
        before_event=limit,
        key=data.draw(st.integers(0, 2**64 - 1)),
    )
    rows = []
    for s, (n, t, b) in enumerate(zip(nodes.tolist(), times.tolist(), limits, strict=True)):
        allowed = eligible(stream, n, t, window=window, inclusive=inclusive, before_event=b)
        chosen = found.event_SK[s, : found.count_S[s]].tolist()
        assert len(chosen) == (len(allowed) if k == -1 else min(k, len(allowed)))
        assert chosen == sorted(set(chosen))
        rows.append([entry for entry in allowed if entry[1] in chosen])
    check_rows(found, rows, times)


def hub(events: int) -> TemporalIndex:
    """Node 0 meets node n at time n, for n = 1..events."""
    others = np.arange(1, events + 1)
    return TemporalIndex.build(np.zeros(events, np.int64), others, others, events + 1)


def test_uniform_reaches_every_subset_equally_often() -> None:
    index = hub(6)
    draws = 20_000
    found = index.sample(
        np.zeros(draws, np.int32), np.full(draws, 99), 3, strategy="uniform", key=5
    )
    seen = Counter(map(tuple, found.event_SK.tolist()))
    subsets = list(itertools.combinations(range(6), 3))
    assert set(seen) == set(subsets)
    expected = draws / len(subsets)
    chi_square = sum((seen[subset] - expected) ** 2 / expected for subset in subsets)
    assert chi_square < 43.8  # 19 degrees of freedom, p = 0.001


def test_uniform_depends_on_key_and_slot_only() -> None:
    index = hub(500)
    nodes, times = np.zeros(300, np.int32), np.full(300, 400)
    whole = index.sample(nodes, times, 5, strategy="uniform", key=1)
    other = index.sample(nodes, times, 5, strategy="uniform", key=2)
    assert (whole.event_SK != other.event_SK).any()
    assert len({tuple(row) for row in whole.event_SK.tolist()}) > 290  # roots differ
    slots = np.arange(300, dtype=np.uint64)[::-1].copy()
    backwards = index.sample(nodes, times, 5, strategy="uniform", key=1, slot_S=slots)
    np.testing.assert_array_equal(backwards.event_SK[::-1], whole.event_SK)


def assert_equal(one: Neighbors, other: Neighbors) -> None:
    for name in ("neighbor_SK", "event_SK", "delta_SK", "time_SK", "count_S"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


@pytest.mark.parametrize("strategy", ["recent", "uniform"])
@pytest.mark.parametrize("roots", [64, 65, 600, 3000])
def test_result_does_not_depend_on_threads(strategy: str, roots: int) -> None:
    index, nodes, times = random_case(roots)
    before = numba.get_num_threads()
    results = []
    try:
        for threads in threads_to_try():
            numba.set_num_threads(threads)
            results.append(index.sample(nodes, times, 10, strategy=strategy, key=9))
    finally:
        numba.set_num_threads(before)
    for result in results[1:]:
        assert_equal(results[0], result)


@pytest.mark.parametrize("strategy", ["recent", "uniform"])
@pytest.mark.parametrize("size", [1, 7, 64, 65, 513, 2999])
def test_result_does_not_depend_on_how_roots_are_split(strategy: str, size: int) -> None:
    index, nodes, times = random_case()
    slots = np.arange(len(nodes), dtype=np.uint64)
    limit = np.arange(len(nodes))[::-1] * 10
    whole = index.sample(nodes, times, 4, strategy=strategy, before_event=limit, key=2)
    for first in range(0, min(len(nodes), 200 * size), size):
        part = slice(first, first + size)
        found = index.sample(
            nodes[part],
            times[part],
            4,
            strategy=strategy,
            before_event=limit[part],
            key=2,
            slot_S=slots[part],
        )
        np.testing.assert_array_equal(found.event_SK, whole.event_SK[part])
        np.testing.assert_array_equal(found.neighbor_SK, whole.neighbor_SK[part])


def test_large_graph_equals_brute_force_per_node() -> None:
    index, nodes, times = random_case()
    found = index.sample(nodes, times, 10)
    degrees = index.degree(nodes, times)
    for s in range(0, len(nodes), 7):
        mine = index.entries[index.indptr_N1[nodes[s]] : index.indptr_N1[nodes[s] + 1]]
        mine = mine[mine["time"] < times[s]]
        assert degrees[s] == len(mine)
        np.testing.assert_array_equal(found.event_SK[s, : found.count_S[s]], mine["event"][-10:])


def test_out_is_filled_completely_and_returned() -> None:
    index, nodes, times = random_case(600)
    out = Neighbors.empty(600, 10, np.dtype(np.int32), np.dtype(np.int64))
    for array in (out.neighbor_SK, out.event_SK, out.delta_SK, out.time_SK, out.count_S):
        array.fill(77)
    assert index.sample(nodes, times, 10, out=out) is out
    assert_equal(out, index.sample(nodes, times, 10))


def test_out_of_another_shape_or_type_is_refused() -> None:
    index = hub(3)
    with pytest.raises(InputError, match=r"out\.neighbor_SK has shape \(2, 4\)"):
        index.sample([0, 0], [9, 9], 3, out=Neighbors.empty(2, 4, np.int32, np.int64))
    with pytest.raises(InputError, match=r"out\.time_SK .* float64, expected .* int64"):
        index.sample([0, 0], [9, 9], 3, out=Neighbors.empty(2, 3, np.int32, np.float64))


@pytest.mark.parametrize("roots", [1, 100])
@pytest.mark.parametrize("node", [-1, 4, 2**31, -(2**40)])
def test_unknown_node_is_named(node: int, roots: int) -> None:
    nodes = np.zeros(roots, np.int64)
    nodes[-1] = node
    with pytest.raises(UnknownNodeError, match=rf"nodes_S\[{roots - 1}\] is node {node},.*0 to 3"):
        hub(3).sample(nodes, np.full(roots, 9), 2)


def test_padding_rows_are_empty_where_allowed() -> None:
    found = hub(3).sample([0, -1], [9, 9], 2, padding=True)
    assert found.count_S.tolist() == [2, 0]
    assert found.neighbor_SK.tolist() == [[2, 3], [-1, -1]]
    with pytest.raises(UnknownNodeError, match="node -2"):
        hub(3).sample([0, -2], [9, 9], 2, padding=True)


@pytest.mark.parametrize("k", [0, -2, 2.5, True, "all"])
def test_impossible_fanout_is_refused(k: object) -> None:
    with pytest.raises(SettingError, match="k is"):
        hub(3).sample([0], [9], k)  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [-1, float("nan"), float("inf"), "5", True])
def test_impossible_window_is_refused(window: object) -> None:
    with pytest.raises(SettingError, match="window is"):
        hub(3).sample([0], [9], 1, window=window)  # type: ignore[arg-type]


def test_unknown_strategy_is_refused() -> None:
    with pytest.raises(SettingError, match='strategy is \'last\', expected "recent" or "uniform"'):
        hub(3).sample([0], [9], 1, strategy="last")


def test_arguments_that_do_not_fit_together_are_refused() -> None:
    index = hub(3)
    with pytest.raises(InputError, match="2 nodes but 1 times"):
        index.sample([0, 1], [9], 1)
    with pytest.raises(InputError, match=r"before_event has shape \(3,\)"):
        index.sample([0, 1], [9, 9], 1, before_event=[1, 2, 3])
    with pytest.raises(InputError, match="before_event holds float64"):
        index.sample([0], [9], 1, before_event=[1.0])
    with pytest.raises(InputError, match="slot_S has shape"):
        index.sample([0], [9], 1, slot_S=[1, 2])
    with pytest.raises(InputError, match="nodes_S holds float64"):
        index.sample([0.0], [9], 1)
    with pytest.raises(InputError, match="times_S has shape"):
        index.sample([0], [[9]], 1)
    with pytest.raises(InputError, match="times_S holds <U1"):
        index.sample([0], ["9"], 1)


def test_float_times_against_integer_index_are_exact_or_refused() -> None:
    index = hub(5)
    assert index.sample([0], [3.0], 9).event_SK[0, :2].tolist() == [0, 1]
    for time in (3.5, 2.0**53, float("nan"), float("inf")):
        with pytest.raises(InputError, match=r"times_S\[0\] is the float"):
            index.sample([0], [time], 9)


def test_integer_times_against_float_index_are_exact_or_refused() -> None:
    index = TemporalIndex.build([0, 0], [1, 2], [0.5, 1.5], 3)
    assert index.sample([0], [1], 2).neighbor_SK.tolist() == [[1, -1]]
    assert index.sample([0], [2], 2).delta_SK.tolist() == [[1.5, 0.5]]
    with pytest.raises(InputError, match=r"times_S\[0\] is the integer 9007199254740993"):
        index.sample([0], [2**53 + 1], 2)


def test_nan_query_time_is_refused() -> None:
    index = TemporalIndex.build([0], [1], [0.5], 2)
    with pytest.raises(InputError, match=r"times_S\[1\] is nan"):
        index.sample([0, 0], [1.0, float("nan")], 2)


def test_non_contiguous_and_narrow_arrays_give_the_same() -> None:
    index, nodes, times = random_case(600)
    expected = index.sample(nodes, times, 3)
    assert_equal(index.sample(np.repeat(nodes, 2)[::2], np.repeat(times, 2)[::2], 3), expected)
    narrow = index.sample(nodes.astype(np.uint16), times.astype(np.int32), 3)
    assert_equal(narrow, expected)


def test_large_uniform_fanout_draws_without_replacement() -> None:
    found = hub(2000).sample([0], [5000], 700, strategy="uniform", key=4)
    assert len(set(found.event_SK[0].tolist())) == 700


@pytest.mark.parametrize("strategy", ["recent", "uniform"])
def test_without_edge_times_the_rest_is_the_same(strategy: str) -> None:
    index = TemporalIndex.build([0, 0, 1, 2], [1, 2, 2, 0], [1, 2, 3, 4], 3)
    nodes, times = np.array([0, 1, 2, 0]), np.array([5, 5, 4, 2])
    full = index.sample(nodes, times, 2, strategy=strategy, key=3)
    short = index.sample(nodes, times, 2, strategy=strategy, key=3, edge_times=False)
    assert short.time_SK.shape == (4, 0)
    for name in ("neighbor_SK", "event_SK", "delta_SK", "count_S"):
        assert np.array_equal(getattr(short, name), getattr(full, name))
