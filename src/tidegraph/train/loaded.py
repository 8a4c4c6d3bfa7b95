"""`Loaded`: a prepared batch on its way into a step: on the device, perhaps with its state rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from tidegraph.batches.prepared import PreparedBatch, tensors_of


@dataclass(frozen=True, eq=False)
class Loaded:
    """A batch where steps run.

    Attributes:
        host: as it was prepared.
        batch: on the device, with its features.
        vectors: the state's rows, column by column, of exactly the version it reads; None: not
            read yet.
        ready: on CUDA, when all of this is there.
    """

    host: PreparedBatch
    batch: PreparedBatch
    vectors: tuple[Tensor, ...] | None = None
    ready: torch.cuda.Event | None = None

    @property
    def number(self) -> int:
        """Of the batch."""
        return self.host.number

    @property
    def version(self) -> int:
        """Of the state, that the batch reads."""
        return self.host.version

    @property
    def size(self) -> int:
        """Number of positive events, B."""
        return self.host.size

    def join(self) -> None:
        """Have the current CUDA stream wait for it, and keep its memory until that is done."""
        if self.ready is None:
            return
        device = self.batch.event_B.device
        stream = torch.cuda.current_stream(device)
        stream.wait_event(self.ready)
        for tensor in (*tensors_of(self.batch), *(self.vectors or ())):
            if tensor.is_cuda:
                tensor.record_stream(stream)


class CopyStream:
    """A CUDA stream for what a thread moves ahead; on a CPU it is nothing.

    Args:
        device: to move to.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def held(self) -> Iterator[None]:
        """What this thread does on the device happens in the stream, after all done before."""
        if self.stream is None:
            yield
            return
        main = torch.cuda.default_stream(self.device)
        self.stream.wait_stream(main)
        with torch.cuda.stream(self.stream):
            yield
        # Whoever uses the caches next, in the main stream, comes after what was done here.
        main.wait_stream(self.stream)

    def mark(self) -> torch.cuda.Event | None:
        """When everything done so far in the stream is there."""
        return None if self.stream is None else self.stream.record_event()
