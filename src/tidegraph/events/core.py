"""`Events`: what happened, as columns. The first value of the flow; all others derive from it.

Events are ordered by (time, input row) and an event's position in that order is its id. Nodes are
numbered 0..N-1 in sorted order of their original ids (for bipartite data: sources first, then
targets), so that ids 0..N-1 map to themselves and numbering does not depend on row order.

Shape legend: E events, N nodes, F event-feature width, G node-feature width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from tidegraph.events.describe import Description
    from tidegraph.events.ids import NodeIds
    from tidegraph.events.snapshots import Snapshot


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
    """What reading had to do; printed by `describe`.

    Attributes:
        source_name: the file or "memory".
        rows: rows of the input.
        rows_moved: rows that were earlier than the row before them: 0 where nothing was sorted.
        notes: sentences on what was assumed or is worth knowing.
    """

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
        extra: [E, ...] columns by name, of any type: carried along, read by no model.
        report: what reading did.
        fingerprint: hex digest of the content; equal data has an equal fingerprint.
        path: the directory that the columns are mapped from, or None.
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
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)
    report: ReadReport = field(default_factory=ReadReport)
    fingerprint: str = ""
    path: Path | None = None

    def __len__(self) -> int:
        return len(self.time)

    @classmethod
    def from_arrays(
        cls,
        source: Any,
        target: Any,
        time: Any,
        *,
        features: Any = None,
        label: Any = None,
        weight: Any = None,
        node_features: Any = None,
        num_nodes: int | None = None,
        num_sources: int | None = None,
        bipartite: bool | None = None,
        time_unit: str | None = None,
        feature_names: Sequence[str] = (),
        extra: Mapping[str, Any] | None = None,
        name: str = "memory",
    ) -> Events:
        """Events from arrays whose ids are already internal numbers; sorted if they must be.

        Args:
            source, target: [E] integers 0..N-1, kept as they are.
            time: [E] integers (kept exactly), floats or datetime64.
            features: [E, F] or [E] numbers.
            label, weight: [E] or [E, 1] numbers.
            node_features: [N, G] or [N] numbers; row i belongs to node i.
            num_nodes: N; by default one more than the largest id, or the rows of `node_features`.
            num_sources: for bipartite data, sources are 0..num_sources-1 and targets the rest.
            bipartite: None detects it: every source is smaller than every target.
            time_unit: "ns", "us", "ms", "s", "min", "h" or "d", if known.
            feature_names: F names; by default f0, f1, ...
            extra: other columns by name, one row an event, kept as they are.
            name: named in errors and reports.

        Raises:
            InputError: lengths differ, an id is negative or too large, a number is NaN or infinite;
                names the row (1-based) and the value.

        >>> events = Events.from_arrays([0, 1], [2, 2], [7, 3])
        >>> events.time.tolist(), events.source.tolist(), events.schema.bipartite
        ([3, 7], [1, 0], True)
        """
        from tidegraph.events.arrays import events_from_arrays

        return events_from_arrays(
            source,
            target,
            time,
            features=features,
            label=label,
            weight=weight,
            node_features=node_features,
            num_nodes=num_nodes,
            num_sources=num_sources,
            bipartite=bipartite,
            time_unit=time_unit,
            feature_names=feature_names,
            extra=extra,
            name=name,
        )

    def range(self, start: int = 0, stop: int | None = None, name: str = "events") -> EventRange:
        """The events at positions `start` to `stop` (exclusive), without copying."""
        stop = len(self) if stop is None else stop
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"range {start}:{stop} is outside the {len(self)} events")
        return EventRange(self, start, stop, name)

    def split(
        self,
        val: float = 0.15,
        test: float = 0.15,
        by: Literal["events", "time"] = "events",
        ties: Literal["together", "row"] = "together",
        hidden_nodes: float = 0.0,
        seed: int = 0,
        val_time: Any = None,
        test_time: Any = None,
    ) -> Split:
        """Chronological training, validation and test parts; see `tidegraph.events.split`."""
        from tidegraph.events.split import split_events

        return split_events(
            self,
            val=val,
            test=test,
            by=by,
            ties=ties,
            hidden_nodes=hidden_nodes,
            seed=seed,
            val_time=val_time,
            test_time=test_time,
        )

    def concatenate(self, later: Events) -> Events:
        """These events and then later ones; see `tidegraph.events.append`."""
        from tidegraph.events.append import concatenate

        return concatenate(self, later)

    def snapshots(
        self,
        every: int | float,
        unit: str | None = None,
        empty: Literal["skip", "yield", "raise"] = "skip",
    ) -> Iterator[Snapshot]:
        """Ranges of events by time window; see `tidegraph.events.snapshots`."""
        from tidegraph.events.snapshots import iterate_snapshots

        return iterate_snapshots(self, every, unit=unit, empty=empty)

    def describe(self) -> Description:
        """What was understood of the data, in a few lines; see `tidegraph.events.describe`."""
        from tidegraph.events.describe import describe_events

        return describe_events(self)

    def to_temporal_data(self) -> Any:
        """As PyTorch Geometric's `TemporalData`; see `tidegraph.events.temporal_data`."""
        from tidegraph.events.temporal_data import to_temporal_data

        return to_temporal_data(self)

    def save(self, directory: str | Path) -> Events:
        """Write the columns to a new directory, atomically; returns them opened from there."""
        from tidegraph.events.store import save_events

        return save_events(self, directory)


@dataclass(frozen=True, eq=False)
class EventRange:
    """A contiguous block of a parent's events: one part of a split, without copying.

    Attributes:
        events: the parent.
        start, stop: positions in the parent.
        name: "train", "val", "test" or a name of your own.
        hidden_nodes: [N] bool or None: nodes held out of training (inductive splits). A training
            range leaves out every event that touches one; `kept` gives what remains. Set on
            training ranges only.
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

    def touches(self, nodes: np.ndarray) -> np.ndarray:
        """Which of the range's events have an end in `nodes`.

        Args:
            nodes: [N] bool, for example `Split.hidden_nodes`.

        Returns:
            [len(self)] bool.
        """
        touched: np.ndarray = nodes[self.source] | nodes[self.target]
        return touched

    def kept(self) -> np.ndarray:
        """Positions in the parent of the events that touch no hidden node, as int64.

        >>> events = Events.from_arrays([0, 1, 0], [2, 2, 3], [1, 2, 3])
        >>> EventRange(events, 0, 3, hidden_nodes=np.array([0, 1, 0, 0], bool)).kept().tolist()
        [0, 2]
        """
        if self.hidden_nodes is None:
            return np.arange(self.start, self.stop, dtype=np.int64)
        return np.flatnonzero(~self.touches(self.hidden_nodes)) + self.start


@dataclass(frozen=True, eq=False)
class Split:
    """Train, validation and test ranges; unpacks as `train, val, test = events.split(...)`.

    Attributes:
        train, val, test: consecutive ranges of the events.
        tie_rule: how events at a border's time were placed, in words.
        hidden_nodes: [N] bool or None: nodes held out of training. An inductive evaluation scores
            the events of `val` and `test` for which `touches(hidden_nodes)` holds.
    """

    train: EventRange
    val: EventRange
    test: EventRange
    tie_rule: str = ""
    hidden_nodes: np.ndarray | None = None

    def __iter__(self) -> Iterator[EventRange]:
        return iter((self.train, self.val, self.test))
