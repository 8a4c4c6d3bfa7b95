"""The order of nodes in memory: it may change speed, never an answer."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from history.brute import check_rows, eligible, streams
from tidegraph.errors import InputError, SettingError, UnknownNodeError
from tidegraph.history import Neighbors, TemporalIndex, sample_hops

FIELDS = ("neighbor_SK", "event_SK", "delta_SK", "time_SK", "count_S")


def assert_equal(one: Neighbors, other: Neighbors) -> None:
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def random_events(events: int, nodes: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    source = (nodes * rng.random(events) ** 3).astype(np.int32)
    target = (nodes * rng.random(events) ** 2).astype(np.int32)
    return source, target, np.sort(rng.integers(0, events // 3, events))


def random_roots(roots: int, nodes: int, events: int) -> tuple[np.ndarray, np.ndarray]:
    """Three runs of rising times, hubs again and again: what a training batch looks like."""
    rng = np.random.default_rng(7)
    node = (nodes * rng.random(roots) ** 3).astype(np.int32)
    time = np.resize(np.sort(rng.integers(events // 8, events // 4, -(-roots // 3))), roots)
    return node, time


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_ordered_nodes_equal_brute_force(data: st.DataObject) -> None:
    stream = data.draw(streams())
    found = TemporalIndex.build(
        np.array(stream.source, np.int32),
        np.array(stream.target, np.int32),
        stream.time,
        stream.num_nodes,
        directed=stream.directed,
        keep=stream.keep,
        order="locality",
    )
    known = stream.time.tolist() or [stream.time.dtype.type(0).item()]
    count = data.draw(st.integers(0, 30))
    nodes = data.draw(
        st.lists(st.integers(0, stream.num_nodes - 1), min_size=count, max_size=count)
    )
    times = data.draw(st.lists(st.sampled_from(known), min_size=count, max_size=count))
    limits = data.draw(st.lists(st.integers(0, 41), min_size=count, max_size=count))
    inclusive = data.draw(st.booleans())
    k = data.draw(st.sampled_from([1, 2, 30]))
    expected = [
        eligible(stream, n, t, inclusive=inclusive, before_event=b)
        for n, t, b in zip(nodes, times, limits, strict=True)
    ]
    times_S = np.array(times, stream.time.dtype)
    options = {"inclusive": inclusive, "before_event": np.array(limits, np.int64)}
    rows = found.sample(np.array(nodes, np.int32), times_S, k, **options)
    check_rows(rows, [row[-k:] for row in expected], times)
    degrees = found.degree(np.array(nodes, np.int32), times_S, **options)
    assert degrees.tolist() == [len(row) for row in expected]


@pytest.mark.parametrize("options", [
    {},
    {"inclusive": True},
    {"window": 200},
    {"before_event": 6000},
    {"strategy": "uniform", "key": 3},
    {"edge_times": False},
])  # fmt: skip
@pytest.mark.parametrize("roots", [1, 65, 600, 40_000])
def test_order_changes_no_answer(roots: int, options: dict[str, object]) -> None:
    events = random_events(20_000, 500)
    nodes, times = random_roots(roots, 500, 20_000)
    plain = TemporalIndex.build(*events, 500, order="plain")
    local = TemporalIndex.build(*events, 500, order="locality")
    assert len(plain.place_Z) == 0
    assert len(local.place_Z) == 500
    assert_equal(local.sample(nodes, times, 7, **options), plain.sample(nodes, times, 7, **options))


@pytest.mark.parametrize("order", ["plain", "locality"])
def test_renaming_the_nodes_renames_the_answers(order: str) -> None:
    source, target, time = random_events(20_000, 500)
    nodes, times = random_roots(20_000, 500, 20_000)
    name = np.random.default_rng(1).permutation(500).astype(np.int32)
    old = TemporalIndex.build(source, target, time, 500, order=order)
    new = TemporalIndex.build(name[source], name[target], time, 500, order=order)
    before, after = old.sample(nodes, times, 5), new.sample(name[nodes], times, 5)
    renamed = np.where(before.mask_SK, name[before.neighbor_SK], -1)
    np.testing.assert_array_equal(after.neighbor_SK, renamed)
    np.testing.assert_array_equal(after.event_SK, before.event_SK)


def test_second_hop_and_padding_are_the_same() -> None:
    events = random_events(20_000, 500)
    nodes, times = random_roots(3000, 500, 20_000)
    plain = TemporalIndex.build(*events, 500, order="plain")
    local = TemporalIndex.build(*events, 500, order="locality")
    for one, other in zip(
        sample_hops(plain, nodes, times, [4, 3]),
        sample_hops(local, nodes, times, [4, 3]),
        strict=True,
    ):
        assert_equal(one, other)


@pytest.mark.parametrize("cut", [0, 1, 7000, 20_000])
def test_append_keeps_the_order_and_takes_new_nodes(cut: int) -> None:
    source, target, time = random_events(20_000, 500)
    first = source[:cut], target[:cut], time[:cut]
    rest = source[cut:], target[cut:], time[cut:]
    old_nodes = int(max(source[:cut].max(initial=0), target[:cut].max(initial=0))) + 1
    grown = TemporalIndex.build(*first, old_nodes, order="locality").append(*rest, num_nodes=500)
    whole = TemporalIndex.build(source, target, time, 500, order="plain")
    nodes, times = random_roots(20_000, 500, 20_000)
    assert_equal(grown.sample(nodes, times, 5), whole.sample(nodes, times, 5))
    for node in (0, 3, 499):
        np.testing.assert_array_equal(grown.entries_of(node), whole.entries_of(node))


def test_nodes_with_most_entries_come_first_then_the_earliest() -> None:
    #  time  1  2  3  4  5
    #   4 -- 0 (three times)   2 -- 1   3 -- 5
    index = TemporalIndex.build(
        [4, 4, 4, 2, 3], [0, 0, 0, 1, 5], [1, 2, 3, 4, 5], 7, order="locality"
    )
    order = np.argsort(index.place_Z)
    assert order.tolist() == [0, 4, 1, 2, 3, 5, 6]


def test_bad_root_is_named_by_its_row_in_the_call() -> None:
    events = random_events(20_000, 500)
    local = TemporalIndex.build(*events, 500, order="locality")
    nodes, times = random_roots(9000, 500, 20_000)
    nodes[8765] = 500
    with pytest.raises(UnknownNodeError, match=r"nodes_S\[8765\] is node 500"):
        local.sample(nodes, times, 5)


def test_impossible_orders_are_refused() -> None:
    with pytest.raises(SettingError, match='expected "plain" or "locality"'):
        TemporalIndex.build([0], [1], [1], 2, order="degree")
    good = TemporalIndex.build([0], [1], [1], 2)
    parts = good.indptr_N1, good.entries, 2, 1, False, 1
    with pytest.raises(InputError, match="every place from 0 to num_nodes - 1 once"):
        TemporalIndex(*parts, np.array([0, 0], np.int32))
    with pytest.raises(InputError, match="every place from 0 to num_nodes - 1 once"):
        TemporalIndex(*parts, np.array([0, 2], np.int32))
    with pytest.raises(InputError, match=r"place_Z has shape \(1,\)"):
        TemporalIndex(*parts, np.zeros(1, np.int32))
