"""`Residents`: which rows of a host table have a slot on the device, and who makes room for whom.

It knows rows and slots only, no vectors: `SlimCache` moves those. Two policies: `NextUse` keeps
what is needed soonest (with window 0 that is LRU), `Frequent` a set chosen ahead.

Shape legend: N rows of the table, C slots, L lists, U distinct rows of a batch, X candidates.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from tidegraph.errors import SettingError
from tidegraph.features import resident_kernels as kernels

_NO_SKIP = np.empty(0, bool)
_NO_USES = np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class Split:
    """A batch's rows, divided.

    Attributes:
        hit: int32 positions of the rows that are resident; slot: int32, where.
        miss: int32 positions of the others.
    """

    hit: np.ndarray
    slot: np.ndarray
    miss: np.ndarray


class Residents:
    """What the policies share: a slot per resident row.

    Args:
        rows: N.
        slots: C, at most N are used.
        window: batches that can be announced beyond the current one.

    Raises:
        SettingError: a negative number.
    """

    def __init__(self, rows: int, slots: int, window: int = 0) -> None:
        for name, value in (("rows", rows), ("slots", slots), ("window", window)):
            if value < 0:
                raise SettingError(f"{name}={value}: expected 0 or more")
        self.rows, self.slots, self.window = rows, min(slots, rows), window
        self.slot_N = np.full(rows, -1, np.int32)
        self.row_C = np.zeros(self.slots, np.int32)
        self.free = self.slots

    def __contains__(self, row: int) -> bool:
        return bool(self.slot_N[row] >= 0)

    def split(self, row_U: np.ndarray, skip_U: np.ndarray | None = None) -> Split:
        """Divide distinct rows into resident and others; those with `skip_U` are in neither."""
        U = len(row_U)
        hit_U, slot_U, miss_U = (np.empty(U, np.int32) for _ in range(3))
        skip = _NO_SKIP if skip_U is None else skip_U
        hits, misses = kernels.split_rows(row_U, skip, self.slot_N, hit_U, slot_U, miss_U)
        return Split(hit_U[:hits], slot_U[:hits], miss_U[:misses])

    def announce(self, row_U: np.ndarray) -> None:
        """Say that a later batch will use these distinct rows, after all announced so far."""

    def use(self, row_U: np.ndarray, *, announced: bool) -> None:
        """The current batch uses these rows; with `announced` they are the earliest announced."""

    def admit(self, row_X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Offer distinct rows of the current batch a slot.

        Returns:
            positions in `row_X` of the rows that are resident now, and their slots. Whoever had
            such a slot before has left it.
        """
        raise NotImplementedError

    def find(self, row_X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions in `row_X` of the resident rows, and their slots."""
        place_X, slot_X = np.empty(len(row_X), np.int32), np.empty(len(row_X), np.int32)
        count = kernels.find_rows(row_X, self.slot_N, place_X, slot_X)
        return place_X[:count], slot_X[:count]

    def clear(self) -> None:
        """No row is resident any more; what is announced stays announced."""
        self.slot_N.fill(-1)
        self.free = self.slots


class NextUse(Residents):
    """Keeps the rows that are used soonest; among rows without an announced use, the latest used.

    A batch's rows are used all at once, so a row that passes through need not be kept: with every
    batch announced this is Belady's policy with bypass, and no policy has more hits. Without
    announcements it is LRU at the granularity of batches: rows of one batch are equally recent, and
    none of them makes room for another.

    >>> residents = NextUse(rows=9, slots=1, window=1)
    >>> for row in ([1], [2]):
    ...     residents.announce(np.array(row, np.int32))
    """

    def __init__(self, rows: int, slots: int, window: int = 0) -> None:
        super().__init__(rows, slots, window)
        self.lists = window + 2
        self.next_N = np.full(rows, kernels.NEVER, np.int32)
        self.last_N = np.zeros(rows if window else 0, np.int64)
        self.used_C = np.zeros(self.slots, np.int32)
        self.after = np.arange(self.slots + self.lists, dtype=np.int32)
        self.before = self.after.copy()
        self.now = 0
        self._latest = -1  # time of the latest announcement
        self._waiting: deque[int] = deque()  # sizes of the announced batches
        self._next_P = np.empty(1024, np.int32)
        self._base = self._first = self._stop = 0  # uses are numbered; kept: first .. stop - 1

    def announce(self, row_U: np.ndarray) -> None:
        if not self.window:
            return
        if len(self._waiting) > self.window:
            raise ValueError(f"{len(self._waiting)} batches wait, the window is {self.window}")
        self._make_room(len(row_U))
        self._latest += 1
        kernels.announce_rows(
            row_U, self._latest, self._stop, self._base, self._next_P, self.next_N, self.last_N,
            self.slot_N, self.after, self.before, self.slots, self.lists,
        )  # fmt: skip
        self._stop += len(row_U)
        self._waiting.append(len(row_U))

    def use(self, row_U: np.ndarray, *, announced: bool) -> None:
        self.now += 1
        following = _NO_USES
        if announced and self.window:
            size = self._waiting.popleft()
            start = self._first - self._base
            following = self._next_P[start : start + size]
            self._first += size
        kernels.use_rows(
            row_U, self.now, following, self.next_N, self.slot_N, self.used_C, self.after,
            self.before, self.slots, self.lists,
        )  # fmt: skip

    def admit(self, row_X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        place_X, slot_X = np.empty(len(row_X), np.int32), np.empty(len(row_X), np.int32)
        count, self.free = kernels.admit_rows(
            row_X, self.now, self._latest, self.free, self.next_N, self.slot_N, self.row_C,
            self.used_C, self.after, self.before, self.slots, self.lists, place_X, slot_X,
        )  # fmt: skip
        return place_X[:count], slot_X[:count]

    def clear(self) -> None:
        super().clear()
        self.after[:] = np.arange(len(self.after))
        self.before[:] = self.after

    def _make_room(self, count: int) -> None:
        kept = self._stop - self._first
        if self._stop - self._base + count <= len(self._next_P):
            return
        wanted = max(len(self._next_P), 2 * (kept + count))
        old = self._next_P[self._first - self._base : self._stop - self._base]
        self._next_P = np.empty(wanted, np.int32)
        self._next_P[:kept] = old
        self._base = self._first


class Frequent(Residents):
    """Keeps the most used rows, chosen once; they enter when they first come by, and stay.

    >>> residents = Frequent(rows=4, slots=1)
    >>> residents.choose(np.array([0, 5, 2, 5]))
    >>> [rows.tolist() for rows in residents.admit(np.array([3, 1], np.int32))]
    [[1], [0]]
    """

    def __init__(self, rows: int, slots: int) -> None:
        super().__init__(rows, slots)
        self.chosen_N = np.zeros(rows, bool)

    def choose(self, count_N: np.ndarray) -> None:
        """Choose the rows with the largest counts (of two equal ones the first); none with 0."""
        self.clear()
        self.chosen_N.fill(False)
        order = np.argsort(-count_N.astype(np.int64), kind="stable")[: self.slots]
        self.chosen_N[order[count_N[order] > 0]] = True

    def admit(self, row_X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        place_X, slot_X = np.empty(len(row_X), np.int32), np.empty(len(row_X), np.int32)
        count, self.free = kernels.admit_chosen(
            row_X, self.chosen_N, self.free, self.slot_N, self.row_C, self.slots, place_X, slot_X
        )
        return place_X[:count], slot_X[:count]
