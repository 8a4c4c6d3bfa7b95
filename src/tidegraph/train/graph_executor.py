"""`GraphExecutor`: the whole training step captured per template as a CUDA graph, and replayed.

A replay starts every kernel of the step (state read, forward, backward, clipping, optimiser, state
write) with one call. The first batch of a template runs without recording, as a real step, which
compiles and loads what a capture must not; the second is captured and replayed, and so are all
later ones. Without recording (on a CPU) the same step runs as ordinary calls on the same buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tidegraph.batches.prepared import PreparedBatch
from tidegraph.batches.templates import Template
from tidegraph.state import StateWrites
from tidegraph.train.template_executor import StaticBatch, TemplateExecutor


@dataclass(eq=False)
class _Recorded:
    """A captured step.

    Attributes:
        graph: what is replayed; None before the capture.
        loss: where a replay leaves it.
        changes: what it leaves in the state, if somebody else writes that.
        tables: the state's tables it refers to, which must still be the state's.
    """

    graph: Any = None
    loss: Tensor | None = None
    changes: StateWrites = ()
    tables: tuple[Tensor, ...] = ()


class GraphExecutor(TemplateExecutor):
    """Replays training steps.

    Args:
        record: capture and replay; needs a CUDA device. Off, every step runs as ordinary calls.
        *args, **kwargs: see `TemplateExecutor`.
    """

    def __init__(self, *args: Any, record: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.record = record
        self.step.optimizer.make_capturable()
        self._recorded: dict[Template, _Recorded] = {}
        # Templates are replayed one at a time and leave nothing behind but their losses and
        # memories, which are kept: so all can work in the same memory.
        self._pool = torch.cuda.graph_pool_handle() if record else None
        self._side = torch.cuda.Stream(self.state.device) if record else None  # type: ignore[no-untyped-call]

    def _step(self, batch: PreparedBatch, static: StaticBatch) -> Tensor:
        with self.times("load"):
            static.load(batch, self.transfer)
            if self.rows is None:
                tables = static.vectors(*self._read_rows(batch))
            else:
                tables = self.rows.tables()
        with self.times("step"):
            loss, changes = self._run(static, tables)
        with self.times("write"):
            if self.rows is None:
                self._write_rows(batch, changes)
            else:
                self._publish(batch)
        return loss

    def _call(self, static: StaticBatch, tables: tuple[Tensor, ...]) -> tuple[Tensor, StateWrites]:
        """The step itself: what is called, or captured."""
        if self.rows is None:
            return self.step.on_vectors(static.batch, *tables)
        return self.step.on_state(static.batch, self.rows), ()

    def _run(self, static: StaticBatch, tables: tuple[Tensor, ...]) -> tuple[Tensor, StateWrites]:
        if not self.record:
            return self._call(static, tables)
        known = self._recorded.get(static.template)
        if known is None or any(a is not b for a, b in zip(known.tables, tables, strict=True)):
            self._recorded[static.template] = _Recorded(tables=tables)
            return self._warm(static, tables)
        if known.graph is None:
            self._capture(known, static, tables)
        known.graph.replay()
        self.usage.replays += 1
        assert known.loss is not None
        return known.loss, known.changes

    def _warm(self, static: StaticBatch, tables: tuple[Tensor, ...]) -> tuple[Tensor, StateWrites]:
        """An ordinary step on a stream beside the current one, as a capture's will be."""
        assert self._side is not None
        current = torch.cuda.current_stream(self.state.device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            result = self._call(static, tables)
            # What the step allocated belongs to the side stream: gradients are given back there.
            self.step.optimizer.zero_grad()
        current.wait_stream(self._side)
        loss, changes = result
        for tensor in (loss, *(t for change in changes for t in vars(change).values())):
            if isinstance(tensor, Tensor):
                tensor.record_stream(current)
        return result

    def _capture(self, known: _Recorded, static: StaticBatch, tables: tuple[Tensor, ...]) -> None:
        graph = torch.cuda.CUDAGraph()
        self.step.optimizer.zero_grad()
        # "thread_local": threads that prepare batches may allocate pinned memory meanwhile.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._side, capture_error_mode="thread_local"
        ):
            known.loss, known.changes = self._call(static, tables)
        # Gradients live in the graphs' memory, where the next replay of another template works.
        self.step.optimizer.zero_grad()
        known.graph = graph
        self.usage.built += 1
