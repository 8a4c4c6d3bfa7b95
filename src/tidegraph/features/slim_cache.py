"""`SlimCache`: rows of a host table on their way to the device, each moved as rarely as possible.

Within a batch each distinct row crosses once (the batch's indices rebuild the rest there); between
batches rows that will be needed again stay in a buffer on the device. It sits on the executor's
side: what it returns is the rows themselves, bit for bit, whatever its capacity and policy.

Shape legend: N rows of the table, C slots, U distinct rows of a batch, X rows written, W width.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tidegraph.features.residents import Residents


class RowSource(Protocol):
    """A table on the host: `FeatureStore`, or the node state."""

    @property
    def width(self) -> int: ...

    def rows(self, index: np.ndarray) -> Tensor: ...


@dataclass(frozen=True)
class Traffic:
    """What crossed between host and device, and what did not have to.

    Attributes:
        hits: distinct rows that were on the device already.
        misses: distinct rows that crossed.
        zeros: distinct rows known to be zero, made on the device.
        moved: bytes of the misses.
        saved: bytes of the hits and zeros: what compression alone would have moved more.
        written: bytes of the rows that the device sent back to the host.

    >>> (Traffic(hits=3, misses=1) + Traffic(misses=4)).hit_rate
    0.375
    """

    hits: int = 0
    misses: int = 0
    zeros: int = 0
    moved: int = 0
    saved: int = 0
    written: int = 0

    @property
    def hit_rate(self) -> float:
        """Hits among the rows that are not known to be zero; 0 where there were none."""
        return self.hits / max(self.hits + self.misses, 1)

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


class SlimCache:
    """Delivers rows of one host table to the device through a cache.

    Args:
        source: the table; asked for missing rows only.
        residents: slots and policy.
        device: where the rows go.
        dtype: of the rows.

    Attributes:
        step: traffic since the latest `fetch` began.
        total: traffic since the cache was made.

    >>> from tidegraph.features import FeatureStore, NextUse
    >>> store = FeatureStore.of(np.arange(8, dtype=np.float32).reshape(4, 2))
    >>> cache = SlimCache(store, NextUse(rows=4, slots=2), torch.device("cpu"))
    >>> cache.fetch(torch.tensor([1, 3], dtype=torch.int32)).tolist()
    [[2.0, 3.0], [6.0, 7.0]]
    >>> cache.fetch(torch.tensor([3, 0], dtype=torch.int32)).tolist()
    [[6.0, 7.0], [0.0, 1.0]]
    >>> cache.total.hits, cache.total.misses, cache.step.moved
    (1, 3, 8)
    """

    def __init__(
        self,
        source: RowSource,
        residents: Residents,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.source, self.residents, self.device = source, residents, device
        self.buffer_CW = torch.empty(residents.slots, source.width, dtype=dtype, device=device)
        self.row_bytes = self.buffer_CW.element_size() * source.width
        self.step = self.total = Traffic()
        self._announced: deque[Tensor] = deque()

    def announce(self, row_U: Tensor) -> None:
        """Say which distinct rows (int32 [U], on the host) a later batch will fetch.

        `fetch` recognises them by being given the very same tensor, in the order of announcement.
        """
        if self.residents.window:
            self._announced.append(row_U)
            self.residents.announce(row_U.numpy())

    def fetch(self, row_U: Tensor, zero_U: np.ndarray | None = None) -> Tensor:
        """The rows on the device: [U, W].

        Args:
            row_U: int32 [U] on the host, distinct.
            zero_U: bool [U], rows known to be zero.
        """
        rows, residents = row_U.numpy(), self.residents
        announced = bool(self._announced) and self._announced[0] is row_U
        if announced:
            self._announced.popleft()
        split = residents.split(rows, zero_U)
        residents.use(rows, announced=announced)
        missing = rows[split.miss]
        arrived_XW = self._cross(self.source.rows(missing))
        self._count(len(rows), split.hit, split.miss)
        rows_UW = arrived_XW
        if len(missing) < len(rows):
            # Hits are read before arrivals may take their slots.
            some_zero = len(split.hit) + len(missing) < len(rows)
            make = torch.zeros if some_zero else torch.empty
            rows_UW = make(len(rows), self.source.width, dtype=arrived_XW.dtype, device=self.device)
            rows_UW.index_copy_(0, self._index(split.miss), arrived_XW)
            kept_XW = self.buffer_CW.index_select(0, self._index(split.slot))
            rows_UW.index_copy_(0, self._index(split.hit), kept_XW)
        self._keep(*residents.admit(missing), arrived_XW)
        return rows_UW

    def put(self, row_X: np.ndarray, value_XW: Tensor) -> None:
        """The device has new vectors (on the device) for these distinct rows of the current batch.

        Resident rows follow; others may become resident, since they are there already.
        """
        self._keep(*self.residents.admit(row_X), value_XW)
        written = Traffic(written=len(row_X) * self.row_bytes)
        self.step, self.total = self.step + written, self.total + written

    def clear(self) -> None:
        """Nothing on the device is valid any more; announcements stay."""
        self.residents.clear()

    def _keep(self, place: np.ndarray, slot: np.ndarray, value_XW: Tensor) -> None:
        if len(place):
            kept_XW = value_XW.index_select(0, self._index(place))
            self.buffer_CW.index_copy_(0, self._index(slot), kept_XW)

    def _count(self, rows: int, hit: np.ndarray, miss: np.ndarray) -> None:
        zeros = rows - len(hit) - len(miss)
        self.step = Traffic(
            hits=len(hit),
            misses=len(miss),
            zeros=zeros,
            moved=len(miss) * self.row_bytes,
            saved=(len(hit) + zeros) * self.row_bytes,
        )
        self.total += self.step

    def _cross(self, rows: Tensor) -> Tensor:
        """Host to device; pinned, so that a GPU copies while the host goes on."""
        if self.device.type == "cuda" and not rows.is_pinned():
            rows = rows.pin_memory()
        return rows.to(self.device, non_blocking=True)

    def _index(self, index: np.ndarray) -> Tensor:
        # Crosses as int32, half the bytes; PyTorch's row copies want int64.
        return self._cross(torch.from_numpy(index)).long()
