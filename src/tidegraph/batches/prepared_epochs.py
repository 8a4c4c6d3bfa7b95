"""Prepared epochs: what depends on history is the same in every epoch, so it is kept and reused.

Whole batches are kept where their negatives come again: evaluation, whose negatives are fixed, and
training with negative groups (as in DistTGL), whose negatives are those of epoch mod groups. A kept
batch is the one that preparing it anew would give, to the bit. Training with fresh negatives keeps
nothing: its memory stays flat, and looking the positives' neighbours up again costs little.

Shape legend: B events, C candidates.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from tidegraph.batches.prepare import Preparer
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.keys import Purpose, make_key


@dataclass
class KeptBatches:
    """A store of batches and neighbourhoods in memory, up to a number of bytes.

    What comes first stays: every epoch asks in the same order, so giving room to what came last
    would throw each batch out just before it is needed.

    Attributes:
        budget: bytes.
        used: bytes kept.
        hits, misses: how often something was asked for that was there, or not.

    >>> KeptBatches(1000).used
    0
    """

    budget: int
    used: int = 0
    hits: int = 0
    misses: int = 0
    _found: dict[Any, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Any) -> Any:
        """What was kept under the key, or None."""
        with self._lock:
            found = self._found.get(key)
            if found is None:
                self.misses += 1
            else:
                self.hits += 1
            return found

    def put(self, key: Any, value: Any, size: int) -> None:
        """Keep `value` of `size` bytes if there is room."""
        with self._lock:
            if key not in self._found and self.used + size <= self.budget:
                self._found[key] = value
                self.used += size


@dataclass(frozen=True, eq=False)
class PreparedEpochs(Preparer):
    """A `Preparer` that remembers; any number of threads may ask it.

    Attributes:
        kept: where; shared by preparers made from this one with `dataclasses.replace`.
        groups: training negatives are those of epoch mod `groups`, so whole batches come again; 0:
            they are fresh in every epoch.
        fresh: batch numbers of training. All others have negatives that come again.

    >>> from tidegraph.events.core import Events
    >>> from tidegraph.train.stream import Part, Stream
    >>> from tidegraph.batches import History
    >>> events = Events.from_arrays([0, 1, 0], [2, 3, 3], [1, 2, 3])
    >>> stream = Stream.open(events, (Part("train", 0, 3, 3),), History())
    >>> kept = KeptBatches(1 << 20)
    >>> preparer = PreparedEpochs(**vars(stream.preparer), kept=kept, groups=1)
    >>> negative_BC = np.zeros((3, 1), np.int32)
    >>> again = [preparer.prepare(0, negative_BC, epoch=epoch) for epoch in range(2)]
    >>> again[1].node_U is again[0].node_U, kept.hits
    (True, 1)
    """

    kept: KeptBatches = field(default_factory=lambda: KeptBatches(0))
    groups: int = 0
    fresh: range = range(0)

    def prepare(
        self,
        number: int,
        negative_BC: np.ndarray,
        *,
        epoch: int = 0,
        as_of: int | None = None,
    ) -> PreparedBatch:
        """As `Preparer.prepare`; with groups, uniform neighbours are those of epoch mod groups.

        Dropout's random stream is the epoch's in any case.
        """
        if number in self.fresh and not self.groups:
            return super().prepare(number, negative_BC, epoch=epoch, as_of=as_of)
        drawn = epoch % self.groups if self.groups else epoch
        key = (self._identity, number, as_of, zlib.crc32(negative_BC.tobytes()), drawn)
        found: tuple[np.ndarray, PreparedBatch] | None = self.kept.get(key)
        if found is not None and np.array_equal(found[0], negative_BC):
            batch = found[1]
        else:
            batch = super().prepare(number, negative_BC, epoch=drawn, as_of=as_of)
            # Rows decoded for a batch would be kept large where they are stored small.
            if self.features.in_place or batch.deferred:
                size = negative_BC.nbytes + sum(_sizes(batch, self.features.table))
                self.kept.put(key, (negative_BC.copy(), batch), size)
        return replace(batch, key=make_key(self.seed, Purpose.DROPOUT, epoch, number))

    @property
    def _identity(self) -> tuple[Any, ...]:
        """Everything else that a batch depends on; the plan by being the same object."""
        return (
            self.plan, self.history, self.seed, self.dedup, self.compact, self.gather,
            self.features.dtype,
        )  # fmt: skip


def keep_epochs(preparer: Preparer, budget: int, groups: int, fresh: range) -> Preparer:
    """The preparer with a memory of `budget` bytes, or itself where it may keep nothing.

    Args:
        preparer: of a stream.
        budget: bytes.
        groups, fresh: see `PreparedEpochs`.
    """
    if not budget and not groups:
        return preparer
    return PreparedEpochs(**vars(preparer), kept=KeptBatches(budget), groups=groups, fresh=fresh)


def _sizes(value: object, shared: Tensor) -> Iterator[int]:
    """Bytes of a batch's tensors, but those of the feature table that all batches share."""
    for part in vars(value).values():
        if isinstance(part, Tensor):
            if part.data_ptr() != shared.data_ptr():
                yield part.numel() * part.element_size()
        elif isinstance(part, tuple):
            for item in part:
                yield from _sizes(item, shared)
        elif hasattr(part, "__dataclass_fields__"):
            yield from _sizes(part, shared)
