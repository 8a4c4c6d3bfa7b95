"""`Stream`: events with their index, plan and features: all that preparation reads.

One stream serves training, evaluation and prediction. It grows by phases (train, val, test, ...)
and, when new events arrive, by events; its plan always starts where the node state was empty.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tidegraph.batches.plan import BatchPlan, Phase
from tidegraph.batches.prepare import History, Preparer
from tidegraph.events.core import EventRange, Events
from tidegraph.events.types import events_of_types
from tidegraph.features import FeatureStore, open_stores
from tidegraph.history import TemporalIndex
from tidegraph.train.transfer import Transfer


@dataclass(frozen=True)
class Part:
    """One phase of a stream.

    Attributes:
        name: of the phase.
        start, stop: positions in the events.
        batch_size: events per batch.
        hidden: events touching hidden nodes are left out (inductive training).
        staleness: writes of the batches before it that a batch does not wait for.
    """

    name: str
    start: int
    stop: int
    batch_size: int
    hidden: bool = False
    staleness: int = 0


@dataclass(frozen=True, eq=False)
class Stream:
    """Events, the parts streamed so far, and what preparation needs of them.

    Attributes:
        events: all events known, streamed or not.
        parts: phases in order.
        hidden_nodes: [N] bool or None.
        index: temporal index over all events from the first part's start on, but hidden training
            events.
        plan: batches of the parts.
        preparer: prepares the plan's batches for one model.
        transfer: moves them to the device, where the preparer leaves that open.
        feature_type: how features are stored.
        neighbor_types: features of which an event must have one to count as a neighbour, or all
            events do.
    """

    events: Events
    parts: tuple[Part, ...]
    hidden_nodes: np.ndarray | None
    index: TemporalIndex
    plan: BatchPlan
    preparer: Preparer
    transfer: Transfer | None = None
    feature_type: str = "float32"
    neighbor_types: tuple[str, ...] = ()

    def for_scoring(self) -> Stream:
        """The same, its batches without what only gradients need."""
        return replace(self, preparer=replace(self.preparer, transposes=False))

    @classmethod
    def open(
        cls,
        events: Events,
        parts: tuple[Part, ...],
        history: History,
        *,
        hidden_nodes: np.ndarray | None = None,
        seed: int = 0,
        compact: bool = False,
        feature_type: str = "float32",
        neighbor_types: tuple[str, ...] = (),
    ) -> Stream:
        """Index the events and plan the parts.

        Args:
            seed, compact: see `Preparer`.
            feature_type: how features are stored, see `FeatureStore.of`; ranges are those of the
                first part.
            neighbor_types: see the attribute.

        Raises:
            SettingError: a type that is no event feature.
        """
        keep = _in_history(events, parts, hidden_nodes)
        index = TemporalIndex.from_events(events, keep=keep)
        neighbor_index = None
        if neighbor_types:
            typed = events_of_types(events, neighbor_types)
            keep = typed if keep is None else keep & typed
            neighbor_index = TemporalIndex.from_events(events, keep=keep)
        plan = _plan(events, parts, hidden_nodes)
        features, node_features = open_stores(events, feature_type, fit=parts[0].stop)
        preparer = Preparer(
            events=events,
            index=index,
            plan=plan,
            history=history,
            features=features,
            node_features=node_features,
            seed=seed,
            compact=compact,
            neighbor_index=neighbor_index,
        )
        return cls(
            events, parts, hidden_nodes, index, plan, preparer,
            feature_type=feature_type, neighbor_types=neighbor_types,
        )  # fmt: skip

    @property
    def stop(self) -> int:
        """Position after the last streamed event."""
        return self.parts[-1].stop if self.parts else 0

    def with_part(self, part: Part) -> Stream:
        """The same stream with one more phase."""
        parts = (*self.parts, part)
        plan = _plan(self.events, parts, self.hidden_nodes)
        return replace(self, parts=parts, plan=plan, preparer=replace(self.preparer, plan=plan))

    def with_events(self, events: Events) -> Stream:
        """The same stream over more events (`events` starts with the present ones)."""
        history, preparer = self.preparer.history, self.preparer
        hidden = self.hidden_nodes
        if hidden is not None and len(hidden) < events.schema.num_nodes:
            more = np.zeros(events.schema.num_nodes - len(hidden), bool)
            hidden = np.concatenate([hidden, more])
        return Stream.open(
            events,
            self.parts,
            history,
            hidden_nodes=hidden,
            seed=preparer.seed,
            compact=preparer.compact,
            feature_type=self.feature_type,
            neighbor_types=self.neighbor_types,
        )

    def about_features(self) -> list[str]:
        """What a user should know of features that are not stored as given; else nothing."""
        stores: list[tuple[str, FeatureStore, tuple[str, ...]]] = [
            ("event features", self.preparer.features, self.events.schema.feature_names),
            ("node features", self.preparer.node_features, ()),
        ]
        return [
            f"stored    {label} as {store.about(names)}"
            for label, store, names in stores
            if store.width and store.dtype != "float32"
        ]

    def phase(self, name: str) -> Phase:
        """Batch numbers of a phase."""
        return self.plan.phase(name)


def part_of(part: EventRange, batch_size: int, *, hide: bool = False, staleness: int = 0) -> Part:
    """The stream part that covers an event range."""
    hidden = hide and part.hidden_nodes is not None
    return Part(part.name, part.start, part.stop, batch_size, hidden, staleness)


def _events_of(events: Events, part: Part, hidden_nodes: np.ndarray | None) -> np.ndarray:
    block = EventRange(events, part.start, part.stop, hidden_nodes=hidden_nodes)
    if part.hidden:
        return block.kept()
    return np.arange(part.start, part.stop, dtype=np.int64)


def _in_history(
    events: Events, parts: tuple[Part, ...], hidden_nodes: np.ndarray | None
) -> np.ndarray | None:
    """[E] bool, or None for all: events that no node state will ever see are nobody's history.

    Before the first part the node state was empty; hidden training events are left out of it.
    """
    if parts[0].start == 0 and not any(part.hidden for part in parts):
        return None
    keep = np.ones(len(events), bool)
    keep[: parts[0].start] = False
    for part in parts:
        if part.hidden:
            keep[part.start : part.stop] = False
            keep[_events_of(events, part, hidden_nodes)] = True
    return keep


def _plan(events: Events, parts: tuple[Part, ...], hidden_nodes: np.ndarray | None) -> BatchPlan:
    return BatchPlan.build(
        [(part.name, _events_of(events, part, hidden_nodes), part.batch_size) for part in parts],
        {part.name: part.staleness for part in parts},
    )
