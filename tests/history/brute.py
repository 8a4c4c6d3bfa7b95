"""The sampler's specification as plain Python: scan all events, keep what the rules allow.

Also the random tiny graphs that the tests of this room share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from hypothesis import strategies as st

from tidegraph.history import TemporalIndex


@dataclass(frozen=True)
class Stream:
    """A tiny stream of events; event n is row n."""

    source: list[int]
    target: list[int]
    time: np.ndarray
    num_nodes: int
    directed: bool = False
    keep: np.ndarray | None = None

    def entries(self, node: int) -> list[tuple[Any, int, int]]:
        """(time, event, neighbour) of the node, in the order of events."""
        found = []
        for event, (u, v, t) in enumerate(
            zip(self.source, self.target, self.time.tolist(), strict=True)
        ):
            if self.keep is not None and not self.keep[event]:
                continue
            if u == node:
                found.append((t, event, v))
            elif v == node and not self.directed:
                found.append((t, event, u))
        return found


def eligible(
    stream: Stream,
    node: int,
    time: Any,
    *,
    window: Any = None,
    inclusive: bool = False,
    before_event: int | None = None,
) -> list[tuple[Any, int, int]]:
    """All entries of `node` that are history at `time`, oldest first."""
    kept = []
    for t, event, neighbor in stream.entries(node):
        if t > time or (t == time and not inclusive):
            continue
        if before_event is not None and event >= before_event:
            continue
        if window is not None and time - t > window:
            continue
        kept.append((t, event, neighbor))
    return kept


def check_rows(found: Any, expected: list[list[tuple[Any, int, int]]], times: Any) -> None:
    """Every field of every slot, padding included."""
    times = np.asarray(times).tolist()
    assert found.neighbor_SK.shape[0] == len(expected)
    assert found.count_S.tolist() == [len(row) for row in expected]
    for s, row in enumerate(expected):
        room = found.neighbor_SK.shape[1] - len(row)
        assert room >= 0
        assert found.neighbor_SK[s].tolist() == [n for _, _, n in row] + [-1] * room
        assert found.event_SK[s].tolist() == [e for _, e, _ in row] + [-1] * room
        assert found.time_SK[s].tolist() == [t for t, _, _ in row] + [0] * room
        ages = [np.float32(times[s] - t) for t, _, _ in row]
        assert found.delta_SK[s].tolist() == ages + [0] * room


BASES = [0, -50, 2**53 - 2, 1_700_000_000_000_000_000, -(2**62), 2**63 - 40, -(2**63)]


@st.composite
def streams(draw: st.DrawFn, floats: bool | None = None) -> Stream:
    """Few nodes, few distinct times: ties, repeats, self-loops and empty nodes are the rule."""
    num_nodes = draw(st.integers(1, 5))
    node = st.integers(0, num_nodes - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=40))
    steps = sorted(draw(st.lists(st.integers(0, 12), min_size=len(pairs), max_size=len(pairs))))
    if draw(st.booleans()) if floats is None else floats:
        time = np.array(steps, np.float64) * 0.25 - draw(st.sampled_from([0.0, 1.5, 1e6]))
    else:
        base = draw(st.sampled_from(BASES))
        time = np.array([base + step for step in steps], np.int64)
    keep = np.array(draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs))), bool)
    return Stream(
        [u for u, _ in pairs],
        [v for _, v in pairs],
        time,
        num_nodes,
        directed=draw(st.booleans()),
        keep=keep if draw(st.booleans()) else None,
    )


def build(stream: Stream) -> TemporalIndex:
    return TemporalIndex.build(
        stream.source,
        stream.target,
        stream.time,
        stream.num_nodes,
        directed=stream.directed,
        keep=stream.keep,
    )


def random_case(roots: int = 3000) -> tuple[TemporalIndex, np.ndarray, np.ndarray]:
    """300 nodes of very different degree, 30,000 events with ties; roots at the events' times."""
    rng = np.random.default_rng(3)
    ends = (rng.pareto(0.7, (2, 30_000)) * 2).astype(np.int64) % 300
    time = np.sort(rng.integers(0, 9_000, 30_000))
    at = rng.integers(0, 30_000, roots)
    index = TemporalIndex.build(ends[0], ends[1], time, 300)
    return index, ends[rng.integers(0, 2, roots), at].astype(np.int32), time[at]


def threads_to_try() -> list[int]:
    return sorted({1, min(2, numba.config.NUMBA_NUM_THREADS)})
