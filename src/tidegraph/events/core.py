"""`Events`: what happened, as columns. The first value of the flow; all others derive from it.

Events are ordered by (time, input row) and an event's position in that order is its id. Nodes are
numbered 0..N-1 in sorted order of their original ids (for bipartite data: sources first, then
targets), so that ids 0..N-1 map to themselves and numbering does not depend on row order.

Shape legend: E events, N nodes, F event-feature width, G node-feature width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tidegraph.events.ids import NodeIds


@dataclass(frozen=True)
class Schema:
    """What a model must know about the data: sizes, never the data itself.

    Attributes:
        num_nodes: N, all nodes of both sides.
        num_sources: for bipartite data, nodes `0..num_sources-1` are sources and the rest
            targets; otherwise equal to `num_nodes`.
        bipartite: sources and targets are disjoint sets of nodes.
        event_features: width F of the event features, 0 if none.
        node_features: width G of the node features, 0 if none.
        time_unit: "s", "ms", "us", "ns", "min", "h", "d", or None where it is not known.
        feature_names: F names.
    """

    num_nodes: int
    num_sources: int
    bipartite: bool
    event_features: int = 0
    node_features: int = 0
    time_unit: str | None = None
    feature_names: tuple[str, ...] = ()

    @property
    def first_target(self) -> int:
        """The smallest node that may be a destination: 0 unless bipartite."""
        return self.num_sources if self.bipartite else 0


@dataclass(frozen=True)
class ReadReport:
    """What reading had to do; printed by `describe`."""

    source_name: str = "memory"
    rows: int = 0
    rows_moved: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Events:
    """An immutable, time-sorted stream of events.

    Attributes:
        source: [E] int32, internal node.
        target: [E] int32, internal node.
        time: [E] int64 or float64, non-decreasing.
        row: [E] int64, the event's row in the input (0-based).
        schema: sizes.
        ids: internal node <-> original id.
        features: [E, F] float32 or None; may be memory-mapped.
        label: [E] float32 or None.
        weight: [E] float32 or None.
        node_features: [N, G] float32 or None.
        report: what reading did.
        fingerprint: hex digest of the content; equal data has an equal fingerprint.
    """

    source: np.ndarray
    target: np.ndarray
    time: np.ndarray
    row: np.ndarray
    schema: Schema
    ids: NodeIds
    features: np.ndarray | None = None
    label: np.ndarray | None = None
    weight: np.ndarray | None = None
    node_features: np.ndarray | None = None
    report: ReadReport = field(default_factory=ReadReport)
    fingerprint: str = ""
    path: Any = None

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True, eq=False)
class EventRange:
    """A contiguous block of a parent's events: one part of a split, without copying.

    Attributes:
        events: the parent.
        start, stop: positions in the parent.
        name: "train", "val", "test" or a name of your own.
        hidden_nodes: [N] bool or None: nodes held out of training (inductive splits). A training
            range leaves out every event that touches one; `positions` gives what remains.
    """

    events: Events
    start: int
    stop: int
    name: str = "events"
    hidden_nodes: np.ndarray | None = None

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def time(self) -> np.ndarray:
        return self.events.time[self.start : self.stop]

    @property
    def source(self) -> np.ndarray:
        return self.events.source[self.start : self.stop]

    @property
    def target(self) -> np.ndarray:
        return self.events.target[self.start : self.stop]


@dataclass(frozen=True, eq=False)
class Split:
    """Train, validation and test ranges; unpacks as `train, val, test = events.split(...)`."""

    train: EventRange
    val: EventRange
    test: EventRange
    tie_rule: str = ""

    def __iter__(self) -> Iterator[EventRange]:
        return iter((self.train, self.val, self.test))
