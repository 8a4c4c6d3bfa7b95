"""Several hops of neighbours: each hop is asked at the time of the edge that led to it.

A convenience over `TemporalIndex.sample`, hop after hop, without deduplication; preparation, which
computes each unique (node, time) once, calls the sampler itself.

Shape legend: S roots of a hop, K slots per root. The next hop has S * K roots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tidegraph.errors import SettingError
from tidegraph.history import checks
from tidegraph.history.index import TemporalIndex
from tidegraph.history.neighbors import Neighbors
from tidegraph.keys import Purpose, make_key

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # odd: distinct slots stay distinct


def sample_hops(
    index: TemporalIndex,
    nodes_S: Any,
    times_S: Any,
    fanouts: Sequence[int],
    *,
    strategy: str = "recent",
    window: float | None = None,
    inclusive: bool = False,
    before_event: Any = None,
    key: int = 0,
    slot_S: Any = None,
) -> list[Neighbors]:
    """Neighbours, neighbours of neighbours, and so on.

    A neighbour reached by an edge at time t is asked for its own history before t: strictly, or
    with `inclusive` at or before t but only events with a smaller id than that edge. The limit
    `before_event` and the `window` (back from t) hold at every hop.

    Args:
        fanouts: k of each hop, first hop first.
        nodes_S, times_S and the others: as in `TemporalIndex.sample`.

    Returns:
        One `Neighbors` per hop. Rows of hop h+1 are the slots of hop h, row by row; a padding slot
        has an empty row.

    >>> index = TemporalIndex.build([2, 1, 3, 4], [1, 0, 1, 1], [10, 50, 51, 55], num_nodes=5)
    >>> first, second = sample_hops(index, [0], [60], [2, 2])
    >>> first.neighbor_SK.tolist(), second.neighbor_SK.tolist()
    ([[1, -1]], [[2, -1], [-1, -1]])
    """
    if not len(fanouts):
        raise SettingError("fanouts is empty: expected the number of neighbours for each hop.")
    nodes, times, limit, key = nodes_S, times_S, before_event, checks.as_key(key)
    slots = np.arange(len(nodes), dtype=np.uint64) if slot_S is None else slot_S
    slots = checks.as_slots(slots, len(nodes), slots)
    hops: list[Neighbors] = []
    for hop, k in enumerate(fanouts):
        found = index.sample(
            nodes,
            times,
            k,
            strategy=strategy,
            window=window,
            inclusive=inclusive,
            before_event=limit,
            key=make_key(key, Purpose.NEIGHBOR, hop) if hop else key,
            slot_S=slots,
            padding=hop > 0,
        )
        hops.append(found)
        width = found.neighbor_SK.shape[1]
        nodes, times = found.neighbor_SK.ravel(), found.time_SK.ravel()
        if inclusive:  # an edge's own event, and ties after it, are not before it
            limit = found.event_SK.ravel().astype(np.int64)
        elif np.ndim(limit) == 1:
            limit = np.repeat(limit, width)
        slots = (slots[:, None] * _SPREAD + np.arange(width, dtype=np.uint64)).ravel()
    return hops
