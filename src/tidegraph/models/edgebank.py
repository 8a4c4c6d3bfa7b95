"""EdgeBank: predicts that what happened before happens again. The baseline to beat.

A pair scores 1 if it was seen before (at all, or within a window before the query), else 0. There
is nothing to train; memory is one slot per distinct pair, in an open-addressing hash table.

Shape legend: B rows, C candidates per row, M events, T slots of the table.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from tidegraph._jit import kernel
from tidegraph.errors import SettingError

_NAMED = ("repeat-interval", "mean-gap", "recent-share", "repeat-threshold")
Window = float | Literal["repeat-interval", "mean-gap", "recent-share", "repeat-threshold"] | None

_FREE = -1
_CHUNK = 1 << 16
"""Events added between two checks for room: bounds the table by distinct pairs, not by events."""


class EdgeBank:
    """The heuristic scorer; `score`, then `update` with what really happened.

    Args:
        window: None: a pair counts for ever. A number: it counts if it was last seen at most that
            long before the query (in the events' time unit). "repeat-interval": the window is the
            mean over all pairs of the mean time between two events of the pair, 0 for a pair seen
            once, and ends at the latest event seen: as published. "mean-gap": the mean over all
            such times, so that busy pairs weigh more.
            "recent-share": the last `share` of the past events, however long that took.
            "repeat-threshold": no window, but a pair counts only if it was seen at least as often
            as pairs are on average.
        share: the share of past events that "recent-share" keeps. The default is the length of
            the test part in the usual 70/15/15 split.
        undirected: (u, v) and (v, u) are the same pair. The published baseline is directed.

    Raises:
        SettingError: a window that is negative, NaN or an unknown word; a share outside (0, 1].

    Examples:
        >>> import numpy as np
        >>> bank = EdgeBank(window=5)
        >>> bank.update(np.int32([0]), np.int32([7]), np.int64([10]))
        >>> bank.score(np.int32([0, 0]), np.int32([[7, 8], [7, 8]]), np.int64([15, 16])).tolist()
        [[1.0, 0.0], [0.0, 0.0]]
    """

    def __init__(
        self, window: Window = None, *, share: float = 0.15, undirected: bool = False
    ) -> None:
        if isinstance(window, str) and window not in _NAMED:
            raise SettingError(
                f"EdgeBank: window is {window!r}; expected None, a length of time, or one of "
                f"{', '.join(map(repr, _NAMED))}."
            )
        if not 0 < share <= 1:
            raise SettingError(f"EdgeBank: share is {share}; expected a number in (0, 1].")
        if isinstance(window, (int, float)) and not window >= 0:
            raise SettingError(f"EdgeBank: window is {window}; expected a length of time >= 0.")
        self.window: Window = window
        self.share = share
        self.undirected = undirected
        self.reset()

    @property
    def name(self) -> str:
        """As printed in tables."""
        if self.window is None:
            return "EdgeBank (unlimited)"
        if self.window == "recent-share":
            return f"EdgeBank (latest {self.share:.0%} of past events)"
        if self.window == "repeat-interval":
            return "EdgeBank (window: mean over pairs of the repeat interval)"
        if self.window == "mean-gap":
            return "EdgeBank (window: mean gap between repeats)"
        if self.window == "repeat-threshold":
            return "EdgeBank (seen at least as often as the mean)"
        return f"EdgeBank (window {self.window:g})"

    @property
    def num_pairs(self) -> int:
        """Distinct pairs seen."""
        return self._pairs

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return int(
            self._key_T.nbytes + self._last_T.nbytes + self._count_T.nbytes + self._first_T.nbytes
        )

    def reset(self) -> None:
        """Forget everything."""
        self._key_T = np.full(1024, _FREE, np.int64)
        self._last_T = np.zeros(1024, np.int64)
        # What only some windows ask for takes no room with the others.
        counted = self.window in ("repeat-threshold", "repeat-interval")
        self._count_T = np.zeros(1024 if counted else 0, np.int64)
        self._first_T = np.zeros(1024 if self.window == "repeat-interval" else 0, np.int64)
        self._latest: int | float = 0
        self._interval_sum = 0.0
        self._pairs = 0
        self._events = 0
        self._gaps = 0
        self._gap_sum = 0.0

    def score(
        self, source_B: np.ndarray, candidate_BC: np.ndarray, time_B: np.ndarray
    ) -> np.ndarray:
        """Score candidate destinations from what was seen so far.

        Args:
            source_B: [B] int32 internal nodes.
            candidate_BC: [B, C] int32 internal nodes.
            time_B: [B] query times, of the events' dtype.

        Returns:
            [B, C] float32, 1 or 0.
        """
        score_BC = np.zeros(candidate_BC.shape, np.float32)
        last_T = self._last_T
        if self._pairs:
            time_B = self._clock(np.asarray(time_B), self._events - 1, step=0)
            if self.window == "repeat-interval":
                time_B = np.full(len(time_B), self._latest, last_T.dtype)
            if time_B.dtype != last_T.dtype:
                last_T, time_B = last_T.astype(np.float64), time_B.astype(np.float64)
            _score(
                source_B,
                candidate_BC,
                time_B,
                self._key_T,
                last_T,
                self._count_T,
                self._window_now(),
                self._least_count(),
                self.undirected,
                score_BC,
            )
        return score_BC

    def last_seen(self, source_B: np.ndarray, candidate_BC: np.ndarray) -> np.ndarray:
        """[B, C]: when each pair was last seen; 0 for never."""
        last_BC = np.zeros(candidate_BC.shape, self._last_T.dtype)
        _last_seen(source_B, candidate_BC, self._key_T, self._last_T, self.undirected, last_BC)
        return last_BC

    def update(self, source_M: np.ndarray, target_M: np.ndarray, time_M: np.ndarray) -> None:
        """Add events, in the order of the stream.

        Args:
            source_M, target_M: [M] int32 internal nodes.
            time_M: [M] times.
        """
        time_M = self._clock(np.asarray(time_M), self._events, step=1)
        dtype = np.result_type(time_M.dtype, self._last_T.dtype)
        self._last_T = self._last_T.astype(dtype, copy=False)
        self._first_T = self._first_T.astype(dtype, copy=False)
        for start in range(0, len(time_M), _CHUNK):
            part = slice(start, start + _CHUNK)
            time_part = time_M[part].astype(self._last_T.dtype, copy=False)
            self._make_room(len(time_part))
            self._pairs, gaps, gap_sum, interval_sum = _update(
                source_M[part],
                target_M[part],
                time_part,
                self._key_T,
                self._last_T,
                self._first_T,
                self._count_T,
                self._pairs,
                self.undirected,
            )
            self._interval_sum += interval_sum
            self._gaps += gaps
            self._gap_sum += gap_sum
        self._events += len(time_M)
        if len(time_M):
            self._latest = time_M[-1].item()

    def _clock(self, time_M: np.ndarray, first: int, step: int) -> np.ndarray:
        """Times, or where a share of the events counts, the events' places in the stream."""
        if self.window != "recent-share":
            return time_M
        return first + step * np.arange(len(time_M))

    def _least_count(self) -> float:
        if self.window != "repeat-threshold":
            return 0.0
        return self._events / max(self._pairs, 1)

    def _window_now(self) -> float:
        if self.window is None or self.window == "repeat-threshold":
            return math.inf
        if self.window == "recent-share":
            return self.share * (self._events - 1)
        if self.window == "mean-gap":
            return self._gap_sum / self._gaps if self._gaps else 0.0
        if self.window == "repeat-interval":
            return self._interval_sum / max(self._pairs, 1)
        return float(self.window)

    def _make_room(self, more: int) -> None:
        size = len(self._key_T)
        while size < 2 * (self._pairs + more):
            size *= 2
        if size > len(self._key_T):
            key_T = np.full(size, _FREE, np.int64)
            last_T = np.zeros(size, self._last_T.dtype)
            first_T = np.zeros(size if len(self._first_T) else 0, self._last_T.dtype)
            count_T = np.zeros(size if len(self._count_T) else 0, np.int64)
            _move(
                self._key_T, self._last_T, self._first_T, self._count_T,
                key_T, last_T, first_T, count_T,
            )  # fmt: skip
            self._key_T, self._last_T = key_T, last_T
            self._first_T, self._count_T = first_T, count_T


@kernel(inline=True)
def _pair_key(source, target, undirected):  # type: ignore[no-untyped-def]
    low, high = np.int64(source), np.int64(target)
    if undirected and low > high:
        low, high = high, low
    return (low << 32) | high


@kernel(inline=True)
def _find(key, key_T):  # type: ignore[no-untyped-def]
    """The slot that holds `key`, or the free slot where it belongs."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    slot = np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(len(key_T) - 1))
    while key_T[slot] != key and key_T[slot] != -1:
        slot = (slot + 1) & (len(key_T) - 1)
    return slot


@kernel()
def _score(  # type: ignore[no-untyped-def]
    source_B,
    candidate_BC,
    time_B,
    key_T,
    last_T,
    count_T,
    window,
    least_count,
    undirected,
    score_BC,
):
    for row in range(candidate_BC.shape[0]):
        for column in range(candidate_BC.shape[1]):
            key = _pair_key(source_B[row], candidate_BC[row, column], undirected)
            slot = _find(key, key_T)
            if (
                key_T[slot] == key
                and time_B[row] - last_T[slot] <= window
                and (count_T.shape[0] == 0 or count_T[slot] >= least_count)
            ):
                score_BC[row, column] = 1.0


@kernel()
def _last_seen(source_B, candidate_BC, key_T, last_T, undirected, last_BC):  # type: ignore[no-untyped-def]
    for row in range(candidate_BC.shape[0]):
        for column in range(candidate_BC.shape[1]):
            key = _pair_key(source_B[row], candidate_BC[row, column], undirected)
            slot = _find(key, key_T)
            if key_T[slot] == key:
                last_BC[row, column] = last_T[slot]


@kernel()
def _update(  # type: ignore[no-untyped-def]
    source_M, target_M, time_M, key_T, last_T, first_T, count_T, pairs, undirected
):
    """Returns the number of pairs; that of gaps and their sum; the change of the sum of means.

    A pair's mean gap is its time from first to last over one less than its events.
    """
    gaps, gap_sum, interval_sum = 0, 0.0, 0.0
    counts, intervals = count_T.shape[0] > 0, first_T.shape[0] > 0
    for event in range(len(time_M)):
        time = time_M[event]
        key = _pair_key(source_M[event], target_M[event], undirected)
        slot = _find(key, key_T)
        if key_T[slot] == key:
            gaps += 1
            gap_sum += float(time - last_T[slot])
            if intervals:
                count = count_T[slot]
                if count > 1:
                    interval_sum -= float(last_T[slot] - first_T[slot]) / (count - 1)
                interval_sum += float(time - first_T[slot]) / count
        else:
            key_T[slot] = key
            pairs += 1
            if intervals:
                first_T[slot] = time
        last_T[slot] = time
        if counts:
            count_T[slot] += 1
    return pairs, gaps, gap_sum, interval_sum


@kernel()
def _move(  # type: ignore[no-untyped-def]
    old_key_T, old_last_T, old_first_T, old_count_T, key_T, last_T, first_T, count_T
):
    for old in range(len(old_key_T)):
        if old_key_T[old] != -1:
            slot = _find(old_key_T[old], key_T)
            key_T[slot] = old_key_T[old]
            last_T[slot] = old_last_T[old]
            if first_T.shape[0] > 0:
                first_T[slot] = old_first_T[old]
            if count_T.shape[0] > 0:
                count_T[slot] = old_count_T[old]
