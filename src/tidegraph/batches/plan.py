"""`BatchPlan`: which events form which batch, over the whole life of a node state.

A plan covers everything streamed since the state was empty: training, then validation, then test.
Batch `b` reads state version `b`, or an earlier one where its phase is stale. Knowing all borders
and versions makes pending mail a matter of history: a node's mail is its last event before the
version that is read, and its last update the mail of the version that this event's batch read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tidegraph.errors import SettingError


@dataclass(frozen=True)
class Phase:
    """A named run of batches, e.g. "train": batch numbers `first .. last - 1`."""

    name: str
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def batches(self) -> range:
        """The batch numbers of this phase."""
        return range(self.first, self.last)


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Contiguous batches over streamed events; every event is in exactly one batch.

    Attributes:
        event_P: int64 [P], ids of the streamed events, ascending.
        border_B1: int64 [batches + 1], offsets into `event_P`.
        first_event_B: int64 [batches], id of each batch's first event.
        version_B: int64 [batches], the state version each batch reads: that of the batches before
            it, or with staleness k of all but the last k of them (none of its phase where it has
            fewer before it).
        phases: named runs of batches, in order.
    """

    event_P: np.ndarray
    border_B1: np.ndarray
    first_event_B: np.ndarray
    version_B: np.ndarray
    phases: tuple[Phase, ...]

    @classmethod
    def build(
        cls,
        parts: Sequence[tuple[str, np.ndarray, int]],
        staleness: Mapping[str, int] = MappingProxyType({}),
    ) -> BatchPlan:
        """Plan phases one after another.

        Args:
            parts: (name, ascending event ids, batch size) per phase. The last batch of a phase
                may be smaller.
            staleness: name of a phase -> writes of the batches before it that a batch does not
                wait for; 0 for phases that are not named.

        Raises:
            SettingError: a batch size below 1, or phases out of order.

        >>> plan = BatchPlan.build([("train", np.arange(10), 4)])
        >>> [len(plan.events(b)) for b in plan.phase("train").batches]
        [4, 4, 2]
        >>> BatchPlan.build([("train", np.arange(10), 2)], {"train": 2}).version_B.tolist()
        [0, 0, 0, 1, 2]
        """
        phases: list[Phase] = []
        borders = [np.zeros(1, dtype=np.int64)]
        versions: list[np.ndarray] = []
        offset = batches = 0
        for name, event_P, size in parts:
            if size < 1:
                raise SettingError(f"batch size for {name!r} is {size}: expected at least 1")
            count = -(-len(event_P) // size)
            border = np.minimum(np.arange(1, count + 1, dtype=np.int64) * size, len(event_P))
            borders.append(offset + border)
            phases.append(Phase(name, batches, batches + count))
            number_B = np.arange(batches, batches + count, dtype=np.int64)
            versions.append(np.maximum(number_B - staleness.get(name, 0), batches))
            offset += len(event_P)
            batches += count
        event_P = np.concatenate([np.asarray(p[1], dtype=np.int64) for p in parts])
        if len(event_P) > 1 and not bool(np.all(event_P[1:] > event_P[:-1])):
            raise SettingError("the phases of a batch plan must follow each other in event order")
        border_B1 = np.concatenate(borders)
        version_B = np.concatenate(versions)
        return cls(event_P, border_B1, event_P[border_B1[:-1]], version_B, tuple(phases))

    def __len__(self) -> int:
        return len(self.border_B1) - 1

    @property
    def stop(self) -> int:
        """Event id after the last streamed event: what a query about "now" may look back on."""
        return int(self.event_P[-1]) + 1 if len(self.event_P) else 0

    def events(self, number: int) -> np.ndarray:
        """Event ids of batch `number`: int64 [B]."""
        return self.event_P[self.border_B1[number] : self.border_B1[number + 1]]

    def phase(self, name: str) -> Phase:
        """The phase called `name`."""
        for phase in self.phases:
            if phase.name == name:
                return phase
        raise SettingError(
            f"the plan has no phase {name!r}: it has {[phase.name for phase in self.phases]}"
        )
