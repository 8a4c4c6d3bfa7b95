"""Walks back in time and windows of any size, against the sampler's specification (`brute`)."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from history import brute
from tidegraph.errors import SettingError, UnknownNodeError
from tidegraph.history import TemporalIndex
from tidegraph.history.walks import encounters, walk

# 0 meets 1 at 10, 2 at 20, 1 at 30; 1 meets 2 at 5
#
#   1 --5-- 2 --20-- 0 --10-- 1
#                    0 --30-- 1
CORNER = TemporalIndex.build([1, 0, 0, 0], [2, 1, 2, 1], [5, 10, 20, 30], num_nodes=4)


def times_of(stream: brute.Stream, roots: list) -> np.ndarray:
    """Query times around the stream's, in its type."""
    start = stream.time[0] if len(stream.time) else stream.time.dtype.type(0)
    return start + np.array([step for _, step in roots], stream.time.dtype)


def shares(index: TemporalIndex, bias: float, count: int = 60_000, **query: Any) -> dict:
    """How often each walk of two steps from node 0 at time 40 was taken."""
    found = walk(index, [0], [40], count, 2, bias=bias, key=3, **query)
    paths = [tuple(path) for path in found.event_SML[0].tolist()]
    return {path: paths.count(path) / count for path in set(paths)}


@pytest.mark.parametrize("bias", [0.0, 0.02, 0.2, 5.0])
def test_events_are_drawn_by_their_age(bias: float) -> None:
    """Every path's share is the product of its steps' weights; 5.0 needs the sum over all."""

    def chances(node: int, time: int) -> dict[tuple[int, int, int], float]:
        past = [(int(e["event"]), int(e["neighbor"]), int(e["time"]))
                for e in CORNER.entries_of(node) if e["time"] < time]  # fmt: skip
        weight = [math.exp(-bias * (time - t)) for *_, t in past]
        return {event: w / sum(weight) for event, w in zip(past, weight, strict=True)}

    expected: dict[tuple[int, int], float] = {}
    for (event, node, time), share in chances(0, 40).items():
        following = chances(node, time) or {(-1, -1, 0): 1.0}
        for (second, _, _), then in following.items():
            expected[event, second] = expected.get((event, second), 0) + share * then
    found = shares(CORNER, bias)
    for path in {*expected, *found}:
        error = 4 * math.sqrt(0.25 / 60_000)
        assert found.get(path, 0) == pytest.approx(expected.get(path, 0), abs=error)


def test_a_long_history_with_a_strong_preference() -> None:
    """3,000 events, one per time unit, weights halved every 7: the mean age is known."""
    index = TemporalIndex.build([0] * 3000, [1] * 3000, np.arange(3000), num_nodes=2)
    bias = math.log(2) / 7
    ages = walk(index, [0], [3000], 40_000, 1, bias=bias, key=1).delta_SML[0, :, 0]
    expected = 1 / (1 - math.exp(-bias))  # of a geometric distribution from 1 on
    assert ages.mean() == pytest.approx(expected, rel=0.02)
    assert ages.min() == 1


@given(
    stream=brute.streams(),
    roots=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 14)), min_size=1, max_size=8),
    inclusive=st.booleans(),
    limit=st.none() | st.integers(0, 24),
    bias=st.sampled_from([0.0, 0.3, 50.0]),
)
@settings(max_examples=60, deadline=None)
def test_every_step_is_an_event_of_the_past(
    stream: brute.Stream, roots: list, inclusive: bool, limit: int | None, bias: float
) -> None:
    index = brute.build(stream)
    nodes = [node % stream.num_nodes for node, _ in roots]
    times = times_of(stream, roots)
    found = walk(
        index, nodes, times, 3, 3, bias=bias, inclusive=inclusive, before_event=limit, key=9
    )
    for s, m in itertools.product(range(len(roots)), range(3)):
        node, time, before = nodes[s], times[s].item(), limit
        for step in range(3):
            allowed = brute.eligible(stream, node, time, inclusive=inclusive, before_event=before)
            taken = int(found.event_SML[s, m, step])
            if not allowed:
                assert (found.node_SML[s, m, step:] == -1).all()
                assert (found.event_SML[s, m, step:] == -1).all()
                assert (found.delta_SML[s, m, step:] == 0).all()
                break
            t, event, neighbor = next(e for e in allowed if e[1] == taken)
            assert found.node_SML[s, m, step] == neighbor
            assert found.delta_SML[s, m, step] == np.float32(time - t)
            node, time = neighbor, t
            before = event if inclusive else before


def test_a_walk_belongs_to_its_root() -> None:
    """Not to the roots beside it, its place in the call, or how many walks are asked for."""
    stream = np.random.default_rng(0).integers(0, 6, (2, 200))
    index = TemporalIndex.build(*stream, np.arange(200), num_nodes=6)
    nodes, times, slots = [3, 1, 3, 0] * 50, [150, 90, 180, 200] * 50, np.arange(200) % 4 + 7
    many = walk(index, nodes, times, 4, 2, bias=0.01, key=5, slot_S=slots)
    for s in (0, 2, 199):
        one = walk(index, [nodes[s]], [times[s]], 4, 2, bias=0.01, key=5, slot_S=slots[s : s + 1])
        np.testing.assert_array_equal(one.event_SML[0], many.event_SML[s])
    other = walk(index, nodes, times, 4, 2, bias=0.01, key=6, slot_S=slots)
    assert (other.event_SML != many.event_SML).any()


@given(
    stream=brute.streams(),
    roots=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 14)), min_size=1, max_size=8),
    window=st.integers(0, 9),
    inclusive=st.booleans(),
    limit=st.none() | st.integers(0, 24),
)
@settings(max_examples=60, deadline=None)
def test_encounters_equal_a_scan(
    stream: brute.Stream, roots: list, window: int, inclusive: bool, limit: int | None
) -> None:
    index = brute.build(stream)
    nodes = [node % stream.num_nodes for node, _ in roots]
    times = times_of(stream, roots)
    indptr_S1, neighbor_X = encounters(
        index, nodes, times, window, inclusive=inclusive, before_event=limit
    )
    for s, node in enumerate(nodes):
        allowed = brute.eligible(
            stream, node, times[s].item(), window=window, inclusive=inclusive, before_event=limit
        )
        expected = [neighbor for _, _, neighbor in allowed]
        assert neighbor_X[indptr_S1[s] : indptr_S1[s + 1]].tolist() == expected


@pytest.mark.parametrize("wrong", [{"count": 0}, {"length": 0}, {"bias": -1.0}, {"bias": math.inf}])
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        walk(CORNER, [0], [40], **{"count": 1, "length": 1, **wrong})


def test_an_unknown_node_is_named() -> None:
    with pytest.raises(UnknownNodeError, match="7"):
        walk(CORNER, [0, 7], [40, 40], 1, 1)
    with pytest.raises(UnknownNodeError, match="-1"):
        encounters(CORNER, [-1], [40], 5)
