"""What users of temporal samplers ran into: one tiny graph and one expectation each."""

from __future__ import annotations

import numpy as np
import pytest

from history.brute import random_case
from tidegraph.errors import SettingError
from tidegraph.history import Neighbors, TemporalIndex, sample_hops


def pairs(found: Neighbors, root: int = 0) -> list[tuple[int, int]]:
    """(neighbour, time) of a root's filled slots, in slot order."""
    count = found.count_S[root]
    return list(
        zip(
            found.neighbor_SK[root, :count].tolist(),
            found.time_SK[root, :count].tolist(),
            strict=True,
        )
    )


def star(times: list[int]) -> TemporalIndex:
    """Node 0 meets node n at the n-th time."""
    others = list(range(1, len(times) + 1))
    return TemporalIndex.build([0] * len(times), others, times, len(times) + 1)


# 1 --t1--> 0    0 --t2--> 1    1 --t3--> 2    1 --t4--> 0    2 --t5--> 0
def test_i01_no_neighbour_is_later_than_the_query() -> None:
    source, target, time = [1, 0, 1, 1, 2], [0, 1, 2, 0, 0], [1, 2, 3, 4, 5]
    # In-neighbours: the directed index of the reversed edges.
    incoming = TemporalIndex.build(target, source, time, 3, directed=True)
    assert pairs(incoming.sample([1], [1], 5)) == []
    assert pairs(incoming.sample([1], [3], 5)) == [(0, 2)]


#     t5 .- 1
#   0 -t5-- 2
#     t4 '- 3
def test_i02_events_at_the_query_time_follow_one_switch() -> None:
    index = TemporalIndex.build([0, 0, 0], [3, 1, 2], [4, 5, 5], 4)
    assert pairs(index.sample([0], [5], 5)) == [(3, 4)]
    assert pairs(index.sample([0], [5], 5, inclusive=True)) == [(3, 4), (1, 5), (2, 5)]


# 0 --t3-- 1    1 --t3-- 2 (same time)    1 --t2-- 3
def test_i02_the_switch_governs_the_second_hop_too() -> None:
    index = TemporalIndex.build([1, 1, 0], [3, 2, 1], [2, 3, 3], 4)
    _, strict = sample_hops(index, [0], [4], [1, 5])
    assert pairs(strict) == [(3, 2)]
    _, inclusive = sample_hops(index, [0], [4], [1, 5], inclusive=True)
    assert pairs(inclusive) == [(3, 2), (2, 3)]  # the tie before the edge 0-1, not that edge


# 0 --t1-- 1    0 --t2-- 2    0 --t3-- 3    4 --t3-- 5
def test_i03_the_latest_valid_neighbour_is_found() -> None:
    index = TemporalIndex.build([0, 0, 0, 4], [1, 2, 3, 5], [1, 2, 3, 3], 6)
    assert pairs(index.sample([0], [3], 5)) == [(1, 1), (2, 2)]
    assert pairs(index.sample([0], [1], 5)) == []
    assert pairs(index.sample([0], [4], 5)) == [(1, 1), (2, 2), (3, 3)]
    one = index.sample([4, 4], [3, 4], 5)
    assert pairs(one, 0) == []
    assert pairs(one, 1) == [(5, 3)]


# 0 --t36-- 1 , again at t77
def test_i04_first_interaction_of_a_pair_shows_up_and_roots_do_not_repeat() -> None:
    index = TemporalIndex.build([0, 0], [1, 1], [36, 77], 2)
    assert pairs(index.sample([0], [77], 5)) == [(1, 36)]
    first, second = sample_hops(index, [0], [100], [5, 5])
    assert pairs(first) == [(1, 36), (1, 77)]
    assert len(second) == 5  # one row per slot of hop 1: no extra row for the root
    assert pairs(second, 0) == []
    assert pairs(second, 1) == [(0, 36)]


# 0 --t9-- 1 --t3-- 2
def test_i05_the_time_filter_holds_at_the_first_hop() -> None:
    index = TemporalIndex.build([1, 0], [2, 1], [3, 9], 3)
    first, second = sample_hops(index, [0], [5], [4, 4])
    assert first.count_S.tolist() == [0]
    assert second.count_S.tolist() == [0, 0, 0, 0]


# 0 --t1..t6-- 1..6
def test_i06_queries_may_go_back_in_time() -> None:
    index = TemporalIndex.build([0] * 6, range(1, 7), np.arange(1.0, 7.0), 7)
    assert pairs(index.sample([0], [7], 2)) == [(5, 5), (6, 6)]
    assert pairs(index.sample([0], [3.5], 2)) == [(2, 2), (3, 3)]
    whole = star([1, 2, 3, 4, 5, 6])
    assert pairs(whole.sample([0], [4], 2)) == [(2, 2), (3, 3)]


# i --t=i-- i+100 , all pairs disjoint
@pytest.mark.parametrize("batch", [1, 2, 7, 50])
@pytest.mark.parametrize("strategy", ["recent", "uniform"])
def test_i07_the_batch_being_predicted_is_not_history(batch: int, strategy: str) -> None:
    source = np.arange(50)
    index = TemporalIndex.build(source, source + 100, source, 150)
    for first in range(0, 50, batch):
        part = slice(first, first + batch)
        found = index.sample(source[part], source[part], 5, strategy=strategy)
        assert not found.count_S.any()
        late = np.full(len(source[part]), 99)
        hidden = index.sample(source[part], late, 5, strategy=strategy, before_event=first)
        assert not hidden.count_S.any()


# 2 --t10-- 1 --t50-- 0    3 --t40-- 1    4 --t55-- 1
def test_i08_the_second_hop_is_asked_at_the_edge_time() -> None:
    index = TemporalIndex.build([2, 3, 1, 4], [1, 1, 0, 1], [10, 40, 50, 55], 5)
    first, second = sample_hops(index, [0], [60], [2, 3])
    assert pairs(first) == [(1, 50)]
    assert pairs(second, 0) == [(2, 10), (3, 40)]
    assert second.neighbor_SK.shape == (2, 3)
    _, capped = sample_hops(index, [0], [60], [2, 1])
    assert pairs(capped, 0) == [(3, 40)]


def test_i09_take_all_works_with_recent() -> None:
    index = star([1, 2, 3, 4, 5])
    everything = index.sample([0, 5], [6, 6], -1)
    assert everything.neighbor_SK.tolist() == [[1, 2, 3, 4, 5], [0, -1, -1, -1, -1]]
    assert pairs(index.sample([0], [6], 3)) == [(3, 3), (4, 4), (5, 5)]
    ten = index.sample([0], [6], 10)
    assert ten.count_S[0] == 5
    assert ten.neighbor_SK[0, 5:].tolist() == [-1] * 5
    with pytest.raises(SettingError, match="k is 0"):
        index.sample([0], [6], 0)


def test_i10_recent_takes_the_newest_oldest_first() -> None:
    assert pairs(star([1, 2, 3, 4, 5]).sample([0], [6], 2)) == [(4, 4), (5, 5)]


# 0 --t1,t4,t6,t9-- 1..4 ; window 6 at t=10 reaches back to t=4, border included
def test_i11_a_window_is_time_and_the_cap_comes_after_it() -> None:
    index = star([1, 4, 6, 9])
    assert pairs(index.sample([0], [10], 10, window=5)) == [(3, 6), (4, 9)]
    assert pairs(index.sample([0], [10], 10, window=6)) == [(2, 4), (3, 6), (4, 9)]
    assert pairs(index.sample([0], [10], 2, window=6)) == [(3, 6), (4, 9)]
    assert pairs(index.sample([0], [20], 10, window=5)) == []
    assert index.degree([0, 0], [10, 20], window=5).tolist() == [2, 0]
    for key in range(20):
        drawn = index.sample([0], [10], 1, window=5, strategy="uniform", key=key)
        assert pairs(drawn)[0] in [(3, 6), (4, 9)]


# hub 0 with 12 events among others, many at one time
@pytest.mark.parametrize("strategy", ["recent", "uniform"])
def test_i12_event_ids_belong_to_the_pairs_returned(strategy: str) -> None:
    source = np.array([0, 5, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 0, 0, 8, 0])
    target = np.array([1, 6, 2, 3, 0, 4, 5, 6, 8, 7, 8, 9, 1, 2, 9, 3])
    time = np.array([1, 1, 2, 3, 3, 4, 5, 5, 5, 6, 6, 6, 6, 6, 7, 7])
    index = TemporalIndex.build(source, target, time, 10)
    found = index.sample([0], [8], 10, strategy=strategy, key=3)
    assert found.count_S[0] == 10
    for neighbor, event, at in zip(
        found.neighbor_SK[0], found.event_SK[0], found.time_SK[0], strict=True
    ):
        assert {source[event], target[event]} == {0, neighbor}
        assert time[event] == at
    if strategy == "recent":
        touching = np.flatnonzero((source == 0) | (target == 0))
        assert found.event_SK[0].tolist() == touching[-10:].tolist()


# 0 --(-86400)-- 1    0 --(-1)-- 2    0 --(0)-- 3    0 --(5)-- 4
def test_i19_times_before_zero_are_ordinary_times() -> None:
    index = star([-86400, -1, 0, 5])
    assert pairs(index.sample([0], [0], 5)) == [(1, -86400), (2, -1)]
    assert pairs(index.sample([0], [-1], 5)) == [(1, -86400)]
    assert index.sample([0], [0], 2).delta_SK.tolist() == [[86400, 1]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1_700_000_000, 1_700_000_060),  # equal in float32
        (1_700_000_000_000_000_000, 1_700_000_000_000_000_001),  # equal in float64
        (2**53, 2**53 + 1),
        (-(2**63), 2**63 - 2),  # the difference exceeds int64
    ],
)
def test_i20_large_times_are_ordered_and_subtracted_exactly(first: int, second: int) -> None:
    index = star([first, second])
    found = index.sample([0, 0, 0], np.array([first, second, second + 1]), 2)
    assert [pairs(found, s) for s in range(3)] == [
        [],
        [(1, first)],
        [(1, first), (2, second)],
    ]
    assert found.delta_SK[1, 0] == np.float32(second - first)
    assert found.delta_SK[2, 1] == 1
    assert pairs(index.sample([0], [second], 2, inclusive=True, window=0)) == [(2, second)]


def test_largest_query_time_sees_everything_inclusive_or_not() -> None:
    index = star([1, 2**63 - 2])
    end = np.array([2**63 - 1])
    assert index.degree([0], end).tolist() == [2]
    assert index.degree([0], end, inclusive=True).tolist() == [2]


@pytest.mark.parametrize("strategy", ["recent", "uniform"])
def test_i38_shuffled_roots_see_only_their_own_past(strategy: str) -> None:
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, 12, (2, 100))
    time = np.sort(rng.integers(0, 60, 100))
    index = TemporalIndex.build(source, target, time, 12)
    order = rng.permutation(100)
    for first in range(0, 100, 7):
        batch = order[first : first + 7]
        found = index.sample(source[batch], time[batch], 5, strategy=strategy, key=first)
        assert len(found) == len(batch)
        filled = found.mask_SK
        assert (found.time_SK[filled] < np.repeat(time[batch], 5)[filled.ravel()]).all()


# --- pitfalls -------------------------------------------------------------------------------


# 0 --t1..t5-- 1..5 in one batch of five
def test_roots_of_one_batch_are_searched_one_by_one() -> None:
    index = star([1, 2, 3, 4, 5])
    found = index.sample([0] * 5, [1, 2, 3, 4, 5], 9)
    assert found.count_S.tolist() == [0, 1, 2, 3, 4]
    batch_level = index.sample([0] * 5, [1, 2, 3, 4, 5], 9, before_event=0)
    assert batch_level.count_S.tolist() == [0] * 5


# 0 --t1,t2,t3-- 1,2,3 ; then 0 --t4-- 4 is the positive and 0 --t4-- 1 could be a negative
def test_own_edge_takes_no_slot() -> None:
    index = star([1, 2, 3, 4])
    # Inclusive, and the event itself kept out: as many neighbours as any negative would get.
    own = index.sample([0], [4], 2, inclusive=True, before_event=[3])
    assert pairs(own) == [(2, 2), (3, 3)]
    without = star([1, 2, 3]).sample([0], [4], 2, inclusive=True)
    assert own.neighbor_SK.tolist() == without.neighbor_SK.tolist()


@pytest.mark.parametrize("strategy", ["recent", "uniform"])
def test_events_at_or_after_the_query_change_nothing(strategy: str) -> None:
    index, nodes, times = random_case(300)
    rng = np.random.default_rng(8)
    order = np.argsort(index.entries["event"], kind="stable")
    events, first_row = np.unique(index.entries["event"][order], return_index=True)
    rows = order[first_row]
    owner = np.searchsorted(index.indptr_N1, rows, side="right") - 1
    source, target = owner, index.entries["neighbor"][rows]
    time = index.entries["time"][rows]
    assert len(events) == index.num_events
    border = 4500
    late = time >= border
    changed_source = np.where(late, rng.integers(0, 300, len(time)), source)
    changed = TemporalIndex.build(changed_source, target, time, 300)
    deleted = TemporalIndex.build(source[~late], target[~late], time[~late], 300)
    early = times <= border
    slots = np.flatnonzero(early)
    options = {"strategy": strategy, "key": 6, "slot_S": slots}
    before = sample_hops(index, nodes[early], times[early], [5, 3], **options)
    for other in (changed, deleted):
        after = sample_hops(other, nodes[early], times[early], [5, 3], **options)
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(a.event_SK, b.event_SK)
            np.testing.assert_array_equal(a.delta_SK, b.delta_SK)


# 0 --t1-- 1 (kept)    0 --t2-- 2 (held out)    0 --t3-- 1 (kept)
def test_held_out_events_are_invisible_and_ids_stay_positions() -> None:
    index = TemporalIndex.build([0, 0, 0], [1, 2, 1], [1, 2, 3], 3, keep=[True, False, True])
    found = index.sample([0, 2], [9, 9], 3)
    assert pairs(found, 0) == [(1, 1), (1, 3)]
    assert found.event_SK[0].tolist() == [0, 2, -1]
    assert found.count_S.tolist() == [2, 0]


# 0 --t1-- 0 (self-loop)    0 --t1-- 1 , three times at one time
def test_self_loops_count_once_and_ties_keep_row_order() -> None:
    index = TemporalIndex.build([0, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1], 2)
    found = index.sample([0, 1], [2, 2], 9)
    assert found.event_SK[0, :4].tolist() == [0, 1, 2, 3]
    assert found.event_SK[1, :3].tolist() == [1, 2, 3]
    assert found.count_S.tolist() == [4, 3]
