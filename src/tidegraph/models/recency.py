"""Recency: predicts what happened last. EdgeBank with an order among the pairs it has seen.

A pair (or a destination) scores the position, in the stream, of its latest event; one never seen
scores 0. Nothing is trained.

Shape legend: B rows, C candidates per row, M events, N nodes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from tidegraph.errors import SettingError
from tidegraph.models.edgebank import EdgeBank

Of = Literal["pair", "destination"]


class Recency:
    """The heuristic scorer; `score`, then `update` with what really happened.

    Args:
        of: whose latest event counts: the "pair"'s, or the "destination"'s whoever its source was.
        undirected: (u, v) and (v, u) are the same pair.

    Raises:
        SettingError: `of` is neither.

    Examples:
        >>> import numpy as np
        >>> recency = Recency()
        >>> recency.update(np.int32([0, 0]), np.int32([7, 8]), np.int64([1, 1]))
        >>> recency.score(np.int32([0]), np.int32([[7, 8, 9]]), np.int64([5])).tolist()
        [[1.0, 2.0, 0.0]]
    """

    def __init__(self, of: Of = "pair", *, undirected: bool = False) -> None:
        if of not in ("pair", "destination"):
            raise SettingError(f"Recency: of is {of!r}; expected 'pair' or 'destination'.")
        self.of: Of = of
        self.undirected = undirected
        self.reset()

    @property
    def name(self) -> str:
        """As printed in tables."""
        return f"Recency (of the {self.of})"

    def reset(self) -> None:
        """Forget everything."""
        self._pairs = EdgeBank(undirected=self.undirected)
        self._last_N = np.zeros(0, np.int64)
        self._events = 0

    def score(
        self, source_B: np.ndarray, candidate_BC: np.ndarray, time_B: np.ndarray
    ) -> np.ndarray:
        """Score candidate destinations from what was seen so far.

        Args:
            source_B: [B] int32 internal nodes.
            candidate_BC: [B, C] int32 internal nodes.
            time_B: [B]; not looked at, the order of events decides.

        Returns:
            [B, C] float64, the position of the latest event, from 1; 0 for none.
        """
        if self.of == "destination":
            known_BC = np.minimum(candidate_BC, max(len(self._last_N) - 1, 0))
            seen_BC = candidate_BC < len(self._last_N)
            last_BC = self._last_N[known_BC] if len(self._last_N) else 0
            return np.where(seen_BC, last_BC, 0).astype(np.float64)
        return self._pairs.last_seen(source_B, candidate_BC).astype(np.float64)

    def update(self, source_M: np.ndarray, target_M: np.ndarray, time_M: np.ndarray) -> None:
        """Add events, in the order of the stream.

        Args:
            source_M, target_M: [M] int32 internal nodes.
            time_M: [M]; not looked at.
        """
        position_M = self._events + 1 + np.arange(len(target_M))
        self._events += len(target_M)
        if self.of == "pair":
            self._pairs.update(source_M, target_M, position_M)
        elif len(target_M):
            more = int(target_M.max()) + 1 - len(self._last_N)
            if more > 0:
                self._last_N = np.concatenate([self._last_N, np.zeros(more, np.int64)])
            np.maximum.at(self._last_N, target_M, position_M)
