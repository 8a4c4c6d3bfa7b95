"""Popularity: predicts what many did lately. A strong baseline wherever trends drive events.

A destination's score is the number of its events, each worth less the longer it is gone. Nothing is
trained and the source is not looked at; memory is one number per node.

Shape legend: B rows, C candidates per row, M events, N nodes.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from tidegraph._jit import kernel
from tidegraph.errors import SettingError

Clock = Literal["events", "time"]


class Popularity:
    """The heuristic scorer; `score`, then `update` with what really happened.

    score(v) is the sum over past events with destination v of decay ** age.

    Args:
        decay: what an event is worth after one unit of age, in (0, 1]; 1 counts without forgetting.
        clock: age in events of the stream since then (needs no idea of the time unit), or in the
            events' time unit.

    Raises:
        SettingError: a decay outside (0, 1] or an unknown clock.

    Examples:
        >>> import numpy as np
        >>> popularity = Popularity(decay=0.5, clock="time")
        >>> popularity.update(np.int32([0, 1]), np.int32([7, 7]), np.int64([0, 1]))
        >>> popularity.score(np.int32([2]), np.int32([[7, 8]]), np.int64([2])).tolist()
        [[0.75, 0.0]]
    """

    def __init__(self, decay: float = 0.999, *, clock: Clock = "events") -> None:
        if not 0 < decay <= 1:
            raise SettingError(f"Popularity: decay is {decay}; expected a number in (0, 1].")
        if clock not in ("events", "time"):
            raise SettingError(f"Popularity: clock is {clock!r}; expected 'events' or 'time'.")
        self.decay = decay
        self.clock: Clock = clock
        self.reset()

    @property
    def name(self) -> str:
        """As printed in tables."""
        if self.decay == 1:
            return "Popularity (no decay)"
        unit = "event" if self.clock == "events" else "unit of time"
        return f"Popularity (decay {self.decay:g} per {unit})"

    def reset(self) -> None:
        """Forget everything."""
        self._worth_N = np.zeros(0, np.float64)
        self._last_N = np.zeros(0, np.int64)
        self._events = 0

    def score(
        self, source_B: np.ndarray, candidate_BC: np.ndarray, time_B: np.ndarray
    ) -> np.ndarray:
        """Score candidate destinations from what was seen so far.

        Args:
            source_B: [B] int32; not looked at.
            candidate_BC: [B, C] int32 internal nodes.
            time_B: [B] query times, of the events' dtype.

        Returns:
            [B, C] float64 decayed counts.
        """
        now_B = np.asarray(time_B)
        if self.clock == "events":
            now_B = np.full(len(candidate_BC), self._events, np.int64)
        score_BC = np.zeros(candidate_BC.shape, np.float64)
        _score(candidate_BC, now_B, self._worth_N, self._last_N, math.log(self.decay), score_BC)
        return score_BC

    def update(self, source_M: np.ndarray, target_M: np.ndarray, time_M: np.ndarray) -> None:
        """Add events, in the order of the stream.

        Args:
            source_M: [M] int32; not looked at.
            target_M: [M] int32 internal nodes.
            time_M: [M] times.
        """
        if len(target_M) == 0:
            return
        when_M = np.asarray(time_M)
        if self.clock == "events":
            when_M = np.arange(self._events, self._events + len(target_M))
        dtype = np.result_type(when_M.dtype, self._last_N.dtype)
        self._make_room(int(target_M.max()) + 1, dtype)
        when_M = when_M.astype(dtype, copy=False)
        _update(target_M, when_M, self._worth_N, self._last_N, math.log(self.decay))
        self._events += len(target_M)

    def _make_room(self, nodes: int, dtype: np.dtype) -> None:
        size = len(self._worth_N)
        if nodes > size or self._last_N.dtype != dtype:
            grown = max(nodes, min(2 * size, nodes + (1 << 20)), size)
            worth_N, last_N = np.zeros(grown, np.float64), np.zeros(grown, dtype)
            worth_N[:size], last_N[:size] = self._worth_N, self._last_N
            self._worth_N, self._last_N = worth_N, last_N


@kernel()
def _score(candidate_BC, now_B, worth_N, last_N, log_decay, score_BC):  # type: ignore[no-untyped-def]
    for row in range(candidate_BC.shape[0]):
        for column in range(candidate_BC.shape[1]):
            node = candidate_BC[row, column]
            if node < len(worth_N) and worth_N[node] > 0:
                age = now_B[row] - last_N[node]
                score_BC[row, column] = worth_N[node] * np.exp(log_decay * age)


@kernel()
def _update(target_M, when_M, worth_N, last_N, log_decay):  # type: ignore[no-untyped-def]
    for event in range(len(target_M)):
        node = target_M[event]
        # A node without events has no last time: its age would be nonsense, even negative.
        if worth_N[node] > 0:
            worth_N[node] *= np.exp(log_decay * (when_M[event] - last_N[node]))
        worth_N[node] += 1.0
        last_N[node] = when_M[event]
