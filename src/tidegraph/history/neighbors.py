"""`Neighbors`: the sampler's answer, dense and padded. It goes on into the preparation of batches.

Shape legend: S roots, K slots per root.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Who each root met before its query time.

    The neighbours of root `s` are in slots `0 .. count_S[s] - 1`, oldest first, ties in the order
    of the input rows. The remaining slots are padding: neighbor -1, event -1, delta 0, time 0.

    Attributes:
        neighbor_SK: [S, K] int32, the node on the other side.
        event_SK: [S, K] int32 (int64 for 2**31 events or more), the event's id.
        delta_SK: [S, K] float32, query time minus event time, subtracted exactly before rounding.
        time_SK: [S, K] int64 or float64 (as the index), the event's time; [S, 0] where the caller
            did without (a third of what is written: deltas are enough but for another hop).
        count_S: [S] int32, neighbours found.
    """

    neighbor_SK: np.ndarray
    event_SK: np.ndarray
    delta_SK: np.ndarray
    time_SK: np.ndarray
    count_S: np.ndarray

    @classmethod
    def empty(
        cls,
        roots: int,
        k: int,
        event_type: np.dtype,
        time_type: np.dtype,
        *,
        edge_times: bool = True,
    ) -> Neighbors:
        """Room for `roots` x `k` neighbours, contents undefined."""
        shape = (roots, k)
        return cls(
            neighbor_SK=np.empty(shape, np.int32),
            event_SK=np.empty(shape, event_type),
            delta_SK=np.empty(shape, np.float32),
            time_SK=np.empty((roots, k if edge_times else 0), time_type),
            count_S=np.empty(roots, np.int32),
        )

    @property
    def mask_SK(self) -> np.ndarray:
        """[S, K] bool, true where a slot holds a neighbour."""
        mask: np.ndarray = self.neighbor_SK >= 0
        return mask

    def __len__(self) -> int:
        return len(self.count_S)
