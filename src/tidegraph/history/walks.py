"""Histories that are no fixed fan-out: walks back in time, and everyone met within a window.

Both follow the rules of `TemporalIndex.sample`: strictly before the query time (or, inclusive, up
to an event bound), any root about any time, and random numbers that belong to the root.

Shape legend: S roots, M walks per root, L steps per walk, X encounters of all roots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegraph.errors import SettingError
from tidegraph.history import checks, walk_kernels
from tidegraph.history.index import TemporalIndex
from tidegraph.history.kernels import NO_LIMIT

_NO_LIMIT = np.array([NO_LIMIT], np.int64)
_KEY_MASK = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class Walks:
    """Walks back in time from each root, step by step.

    Steps after a walk's end are padding: node -1, event -1, delta 0.

    Attributes:
        node_SML: [S, M, L] int32, the node that a step leads to.
        event_SML: [S, M, L] int32 or int64, the event it goes along.
        delta_SML: [S, M, L] float32, time since that event, from where the step began.
    """

    node_SML: np.ndarray
    event_SML: np.ndarray
    delta_SML: np.ndarray


def walk(
    index: TemporalIndex,
    nodes_S: Any,
    times_S: Any,
    count: int,
    length: int,
    *,
    bias: float = 0.0,
    inclusive: bool = False,
    before_event: Any = None,
    key: int = 0,
    slot_S: Any = None,
) -> Walks:
    """`count` walks of up to `length` steps from each root, each step into the past.

    From node w at time t a walk goes along an event (w, x, s) before t, drawn with probability
    proportional to exp(-bias (t - s)) (CAWN, Algorithm 1), on to x at time s.

    Args:
        index: who met whom.
        nodes_S, times_S: the roots.
        count, length: M and L, 1 or more.
        bias: per time unit, 0 or more; 0 draws evenly.
        inclusive, before_event, key, slot_S: as in `TemporalIndex.sample`.

    Raises:
        SettingError: a value out of range.
        UnknownNodeError, InputError: as `TemporalIndex.sample`.

    >>> index = TemporalIndex.build([1, 0], [2, 1], [5, 10], num_nodes=3)
    >>> walk(index, [0], [20], count=1, length=2).node_SML.tolist()
    [[[1, 2]]]
    """
    if count < 1 or length < 1:
        raise SettingError(f"walks of count={count} and length={length}: expected 1 or more each")
    if not 0 <= bias < float("inf"):
        raise SettingError(f"bias={bias}: expected a number per time unit, 0 or more")
    node_S, time_S = _roots(index, nodes_S, times_S)
    roots = len(node_S)
    slots = checks.as_slots(slot_S, roots, np.arange(roots, dtype=np.uint64))
    shape = (roots, count, length)
    found = Walks(
        np.empty(shape, np.int32),
        np.empty(shape, index.entries.dtype["event"]),
        np.empty(shape, np.float32),
    )
    walk_kernels.walks(
        index.indptr_N1, index.place_Z, index.entries, node_S, time_S,
        checks.as_limits(before_event, roots, _NO_LIMIT), bool(inclusive), float(bias),
        np.uint64(key & _KEY_MASK), slots, found.node_SML, found.event_SML, found.delta_SML,
    )  # fmt: skip
    return found


def encounters(
    index: TemporalIndex,
    nodes_S: Any,
    times_S: Any,
    window: float,
    *,
    inclusive: bool = False,
    before_event: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Everyone each root met in the last `window` time units (the border counts), however many.

    Args:
        index: who met whom.
        nodes_S, times_S: the roots.
        window: as in `TemporalIndex.sample`.
        inclusive, before_event: as there.

    Returns:
        `indptr_S1` int64 [S + 1] and `neighbor_X` int32: root s met
        `neighbor_X[indptr_S1[s]:indptr_S1[s + 1]]`, oldest first, once per event.

    >>> index = TemporalIndex.build([0, 0, 0], [1, 2, 1], [10, 20, 30], num_nodes=3)
    >>> encounters(index, [0], [30], window=10)[1].tolist()
    [2]
    """
    node_S, time_S = _roots(index, nodes_S, times_S)
    roots = len(node_S)
    low_S, end_S = np.empty(roots, np.int64), np.empty(roots, np.int64)
    walk_kernels.find_windows(
        index.indptr_N1, index.place_Z, index.entries, node_S, time_S,
        checks.as_limits(before_event, roots, _NO_LIMIT), bool(inclusive),
        checks.as_window(window, index.entries.dtype["time"]), low_S, end_S,
    )  # fmt: skip
    indptr_S1 = np.zeros(roots + 1, np.int64)
    np.cumsum(end_S - low_S, out=indptr_S1[1:])
    neighbor_X = np.empty(indptr_S1[-1], np.int32)
    walk_kernels.list_windows(index.entries, low_S, end_S, neighbor_X)
    return indptr_S1, neighbor_X


def _roots(index: TemporalIndex, nodes: Any, times: Any) -> tuple[np.ndarray, np.ndarray]:
    """The roots in the kernels' types, each of them a node that the index has."""
    node_S = checks.as_nodes(nodes, "nodes_S", index.num_nodes)
    time_S = checks.as_times(times, "times_S", index.entries.dtype["time"])
    if len(node_S):
        bad = int(np.argmax((node_S < 0) | (node_S >= index.num_nodes)))
        if not 0 <= node_S[bad] < index.num_nodes:
            raise checks.unknown_node("nodes_S", bad, int(node_S[bad]), index.num_nodes)
    return node_S, time_S
