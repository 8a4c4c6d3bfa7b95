"""Who is resident: equal to plain Python, step by step, and never worse than what is possible.

time      0      1      2      3          slots 2, everything announced
batch   {a b}  {c d}  {a d}  {a b}
kept    {a b}  {a d}  {a b}               c passes through; b is not kept over time 1: d is
hits      0      0      2      1 (a)      used sooner; at time 3 b is missed, and that is best
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegraph.errors import SettingError
from tidegraph.features import CacheSettings, Frequent, NextUse, Residents

ROWS = 8
Batches = list[list[int]]


def batches(most: int = 14) -> Any:
    """Batches of distinct rows, some of them empty."""
    batch = st.lists(st.integers(0, ROWS - 1), unique=True, max_size=5)
    return st.lists(batch, max_size=most)


def run(residents: Residents, steps: Batches, window: int) -> list[int]:
    """Hits per step, with batches announced `window` ahead."""
    arrays = [np.array(step, np.int32) for step in steps]
    hits, announced = [], 0
    for number, rows in enumerate(arrays):
        while announced < min(len(arrays), number + window + 1):
            residents.announce(arrays[announced])
            announced += 1
        split = residents.split(rows)
        hits.append(len(split.hit))
        residents.use(rows, announced=True)
        residents.admit(rows[split.miss])
        check(residents)
    return hits


def check(residents: Residents) -> None:
    """No slot belongs to two rows, and both directions agree."""
    resident = np.flatnonzero(residents.slot_N >= 0)
    assert len(resident) == residents.slots - residents.free
    assert np.array_equal(residents.row_C[residents.slot_N[resident]], resident)


class PlainNextUse:
    """The policy in plain Python: every decision looks at every resident row.

    `order` is when a row was used, admitted or first announced: it breaks ties, oldest first.
    """

    def __init__(self, slots: int, window: int, steps: Batches) -> None:
        self.slots, self.window, self.steps = slots, window, steps
        self.used: dict[int, int] = {}
        self.order: dict[int, int] = {}
        self.clock = 0

    def next_use(self, row: int, now: int, seen: int) -> float:
        later = range(now + 1, min(seen, len(self.steps) - 1) + 1)
        return next((t for t in later if row in self.steps[t]), math.inf)

    def touch(self, row: int) -> None:
        self.clock += 1
        self.order[row] = self.clock

    def run(self) -> list[int]:
        hits = []
        for now, rows in enumerate(self.steps):
            newly = [now + self.window] if now else range(self.window + 1)
            for t in newly if self.window else []:
                for row in self.steps[t] if t < len(self.steps) else []:
                    if row in self.used and self.next_use(row, now - 1, t - 1) == math.inf:
                        self.touch(row)
            missed = [row for row in rows if row not in self.used]
            hits.append(len(rows) - len(missed))
            for row in rows:
                if row in self.used:
                    self.used[row] = now
                    self.touch(row)
            for row in missed:
                self.offer(row, now)
        return hits

    def offer(self, row: int, now: int) -> None:
        seen = now + self.window
        if len(self.used) == self.slots:
            if not self.slots:
                return
            worst = max(self.used, key=lambda r: (self.next_use(r, now, seen), -self.order[r]))
            own, theirs = self.next_use(row, now, seen), self.next_use(worst, now, seen)
            if not (own < theirs or (own == theirs == math.inf and self.used[worst] < now)):
                return
            del self.used[worst], self.order[worst]
        self.used[row] = now
        self.touch(row)


@settings(deadline=None)
@given(steps=batches(), slots=st.integers(0, ROWS), window=st.integers(0, 15))
def test_next_use_equals_plain_python(steps: Batches, slots: int, window: int) -> None:
    expected = PlainNextUse(slots, window, steps).run()
    assert run(NextUse(ROWS, slots, window), steps, window) == expected


def best_possible(steps: Batches, slots: int) -> int:
    """Most hits of any policy: every set that could be kept, at every step."""
    reached: dict[frozenset[int], int] = {frozenset(): 0}
    for step in steps:
        following: dict[frozenset[int], int] = {}
        for kept, hits in reached.items():
            found = hits + len(kept & set(step))
            pool = kept | set(step)
            for chosen in combinations(sorted(pool), min(slots, len(pool))):
                key = frozenset(chosen)
                following[key] = max(following.get(key, 0), found)
        reached = following
    return max(reached.values())


@settings(deadline=None)
@given(steps=batches(8), slots=st.integers(0, 4), window=st.integers(0, 8))
def test_a_whole_window_is_optimal_and_nothing_is_better(
    steps: Batches, slots: int, window: int
) -> None:
    best = best_possible(steps, slots)
    assert sum(run(NextUse(ROWS, slots, len(steps) + 1), steps, len(steps))) == best
    assert sum(run(NextUse(ROWS, slots, window), steps, window)) <= best
    frequent = Frequent(ROWS, slots)
    frequent.choose(uses(steps))
    assert sum(run(frequent, steps, 0)) <= best


def uses(steps: Batches) -> np.ndarray:
    return np.bincount([row for step in steps for row in step], minlength=ROWS)


def test_the_example_above() -> None:
    steps = [[0, 1], [2, 3], [0, 3], [0, 1]]
    assert run(NextUse(4, 2, 4), steps, 4) == [0, 0, 2, 1]
    assert best_possible(steps, 2) == 3


@settings(deadline=None)
@given(steps=batches(), slots=st.integers(1, ROWS))
def test_window_0_is_least_recently_used(steps: Batches, slots: int) -> None:
    """What is kept was used no earlier than anything that was thrown out or passed over."""
    residents = NextUse(ROWS, slots)
    used: dict[int, int] = {}
    for number, step in enumerate(steps):
        rows = np.array(step, np.int32)
        split = residents.split(rows)
        residents.use(rows, announced=False)
        residents.admit(rows[split.miss])
        used.update(dict.fromkeys(step, number))
        kept = [used[row] for row in used if row in residents]
        gone = [used[row] for row in used if row not in residents]
        assert len(kept) == min(slots, len(used))
        assert not gone or min(kept) >= max(gone)


@settings(deadline=None)
@given(steps=batches(), slots=st.integers(0, ROWS))
def test_frequent_keeps_the_most_used_rows(steps: Batches, slots: int) -> None:
    count = uses(steps)
    chosen = sorted(range(ROWS), key=lambda row: (-count[row], row))[:slots]
    residents, seen, expected = Frequent(ROWS, slots), set(), []
    residents.choose(count)
    for step in steps:
        expected.append(len(seen & set(step)))
        seen |= set(step) & set(chosen)
    assert run(residents, steps, 0) == expected


@settings(deadline=None)
@given(steps=batches(), extra=batches(), slots=st.integers(0, ROWS), window=st.integers(1, 6))
def test_steps_that_were_not_announced_change_no_announcement(
    steps: Batches, extra: Batches, slots: int, window: int
) -> None:
    """They come and go in between; afterwards an announced batch is still recognised."""
    residents = NextUse(ROWS, slots, window)
    arrays = [np.array(step, np.int32) for step in steps]
    announced = 0
    for number, rows in enumerate(arrays):
        while announced < min(len(arrays), number + window + 1):
            residents.announce(arrays[announced])
            announced += 1
        for step, planned in ((extra[number : number + 1], False), ([rows.tolist()], True)):
            for one in step:
                now = np.array(one, np.int32)
                split = residents.split(now)
                residents.use(now, announced=planned)
                residents.admit(now[split.miss])
                check(residents)
        for row in range(ROWS):
            times = [t for t in range(number + 1, announced) if row in steps[t]]
            assert residents.next_N[row] == (times[0] if times else 2**31 - 1)


def test_skipped_positions_are_neither_hits_nor_misses() -> None:
    residents = NextUse(4, 4)
    residents.use(np.array([1], np.int32), announced=False)
    residents.admit(np.array([1], np.int32))
    split = residents.split(np.array([0, 1, 2], np.int32), np.array([True, False, False]))
    assert (split.hit.tolist(), split.slot.tolist(), split.miss.tolist()) == ([1], [0], [2])


def test_clear_forgets_rows_but_no_announcement() -> None:
    residents = NextUse(4, 2, 2)
    for step in ([0, 1], [1], [0]):
        residents.announce(np.array(step, np.int32))
    first = np.array([0, 1], np.int32)
    residents.use(first, announced=True)
    residents.admit(first)
    residents.clear()
    check(residents)
    assert not residents.split(first).hit.size
    assert residents.next_N[:2].tolist() == [2, 1]
    residents.use(np.array([1], np.int32), announced=True)
    assert residents.admit(first)[0].tolist() == [0, 1]


def test_more_announcements_than_the_window_are_refused() -> None:
    residents = NextUse(4, 2, 1)
    residents.announce(np.array([0], np.int32))
    residents.announce(np.array([1], np.int32))
    with pytest.raises(ValueError, match="the window is 1"):
        residents.announce(np.array([2], np.int32))


@pytest.mark.parametrize(
    ("values", "words"),
    [({"slots": -1}, "slots=-1"), ({"slots": 1, "window": -2}, "window=-2")],
)
def test_negative_sizes_are_refused(values: dict[str, int], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        NextUse(3, **values)


def test_settings_make_residents() -> None:
    assert CacheSettings("next-use", 0.5, 3).residents(9).slots == 4
    assert CacheSettings("next-use", 0.5, 3).residents(9).window == 3
    assert CacheSettings("lru", 1.0, 3).residents(9).window == 0
    assert isinstance(CacheSettings("frequency").residents(9), Frequent)
    for wrong in ({"policy": "fifo"}, {"share": 1.5}, {"share": -0.1}, {"window": -1}):
        with pytest.raises(SettingError):
            CacheSettings(**wrong)  # type: ignore[arg-type]
