"""`Transfer`: the stage between a prepared batch and its execution; features come through caches.

It also says how batches are announced: `look_ahead` prepares a window of them before the first is
executed, so that a cache knows what is needed soon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from tidegraph.batches.prepared import PreparedBatch
from tidegraph.features import SlimCache, Traffic

_T = TypeVar("_T")


class Transfer:
    """Moves deferred batches to a device and fetches the rows they name.

    Args:
        device: where steps run.
        events: cache of event features, None where there are none.
        nodes: cache of node features, None where there are none.
    """

    def __init__(
        self, device: torch.device, events: SlimCache | None, nodes: SlimCache | None
    ) -> None:
        self.device, self.events, self.nodes = device, events, nodes

    @property
    def caches(self) -> list[SlimCache]:
        """Those there are."""
        return [cache for cache in (self.events, self.nodes) if cache is not None]

    @property
    def total(self) -> Traffic:
        """Of all caches since they were made."""
        return sum((cache.total for cache in self.caches), Traffic())

    def announce(self, batch: PreparedBatch) -> None:
        """This batch will be moved, after all that were announced before it."""
        if self.events is not None and batch.event_E is not None:
            self.events.announce(batch.event_E)
        if self.nodes is not None:
            self.nodes.announce(batch.node_U)

    def move(self, batch: PreparedBatch) -> PreparedBatch:
        """The batch with its features, on the device; one that is complete is moved as it is."""
        moved = batch if self.device.type == "cpu" else batch.to(self.device)
        if not batch.deferred:
            return moved
        features, node_features = self.fetch(batch)
        return replace(
            moved,
            features=moved.features if features is None else features,
            node_features=moved.node_features if node_features is None else node_features,
        )

    def fetch(self, batch: PreparedBatch) -> tuple[Tensor | None, Tensor | None]:
        """The rows of event and node features that a batch on the host names, on the device."""
        features = node_features = None
        if self.events is not None and batch.event_E is not None:
            features = self.events.fetch(batch.event_E)
        if self.nodes is not None:
            node_features = self.nodes.fetch(batch.node_U)
        return features, node_features


def look_ahead(batches: Iterable[_T], window: int, announce: Callable[[_T], None]) -> Iterator[_T]:
    """The same batches, each announced when `window` batches before it are still to come.

    >>> seen = []
    >>> [(batch, list(seen)) for batch in look_ahead("abc", 1, seen.append)]
    [('a', ['a', 'b']), ('b', ['a', 'b', 'c']), ('c', ['a', 'b', 'c'])]
    """
    waiting: deque[_T] = deque()
    for batch in batches:
        announce(batch)
        waiting.append(batch)
        if len(waiting) > window:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()
