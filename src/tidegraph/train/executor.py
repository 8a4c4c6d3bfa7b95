"""`EagerExecutor`: the state-consuming half of a step, in plain order.

It reads exactly the state version a batch needs, runs the model, and publishes the next version.
It never looks at the index, and it does not know how batches were prepared.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from tidegraph._waiting import WAITING
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.errors import TidegraphError
from tidegraph.models.base import TemporalModel
from tidegraph.ops import link_loss, use_precision
from tidegraph.state import HostState, NodeState
from tidegraph.train.adam import Adam
from tidegraph.train.loaded import CopyStream, Loaded
from tidegraph.train.pipeline import about_batch
from tidegraph.train.stages import StageTimes
from tidegraph.train.transfer import Transfer

_Step = TypeVar("_Step", bound=Callable[..., Any])


def _in_precision(step: _Step) -> _Step:
    """A method of an executor, run in its model's precision; backward passes included.

    Called once a step, so it also watches whether other programs want the cores.
    """

    @functools.wraps(step)
    def run(self: EagerExecutor, *args: Any, **kwargs: Any) -> Any:
        WAITING.watch()
        with use_precision(self.model.precision):
            return step(self, *args, **kwargs)

    return cast(_Step, run)


class EagerExecutor:
    """Executes prepared batches one by one.

    Args:
        model: on its device.
        state: node state, on the same device or on the host (`HostState`).
        optimizer: needed for `train` only.
        clip: largest gradient norm, None for no clipping.
        times: where stage times are added up.
        transfer: fetches the features of deferred batches.

    Attributes:
        staleness: how many versions older than the newest one the trained batches have read ->
            batches.
    """

    def __init__(
        self,
        model: TemporalModel,
        state: NodeState,
        optimizer: Adam | None = None,
        clip: float | None = None,
        times: StageTimes | None = None,
        transfer: Transfer | None = None,
    ) -> None:
        self.model, self.state, self.optimizer, self.clip = model, state, optimizer, clip
        self.times = times or StageTimes()
        self.transfer = transfer
        self.staleness: Counter[int] = Counter()

    @_in_precision
    def train(self, batch: PreparedBatch | Loaded) -> float:
        """One training step; returns the batch's mean loss over positives and negatives."""
        assert self.optimizer is not None
        times, number, version = self.times, batch.number, batch.version
        with about_batch("training on", number):
            batch, *vectors = self._load(batch)
            self.staleness[self.state.version - version] += 1
            self._seed(batch)
            with times("forward", number, version):
                logit_BC, encoded = self.model(batch, *vectors)
                loss = link_loss(logit_BC)
            with times("backward", number, version):
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            with times("optimizer", number, version):
                if self.clip is not None:
                    clip_grad_norm_(self.model.parameters(), self.clip)
                self.optimizer.step()
            with times("write", number, version):
                self.state.write(batch, self.model.state_writes(batch, encoded))
            return float(loss.detach())

    @_in_precision
    def score(self, batch: PreparedBatch, *, write: bool = True) -> np.ndarray:
        """Logits [B, 1 + C] without gradients; `write=False` leaves the state as it is."""
        with about_batch("scoring", batch.number), torch.inference_mode():
            batch, *vectors = self._load(batch)
            with self.times("score", batch.number, batch.version):
                logit_BC, encoded = self.model(batch, *vectors)
                if write:
                    self.state.write(batch, self.model.state_writes(batch, encoded))
                scores: np.ndarray = logit_BC.float().cpu().numpy()
                return scores

    @_in_precision
    def embed(self, batch: PreparedBatch) -> np.ndarray:
        """Embeddings of the batch's roots [B * (2 + C), D], without gradients or writing."""
        with torch.inference_mode():
            batch, *vectors = self._load(batch)
            encoded = self.model.encode(batch, *vectors)
            rows: np.ndarray = encoded.seed_SD[batch.root_R.long()].float().cpu().numpy()
            return rows

    @_in_precision
    def observe(self, batch: PreparedBatch) -> np.ndarray:
        """As `embed`, and the state moves past the batch, which is encoded once."""
        with torch.inference_mode(), self.times("embed"):
            batch, *vectors = self._load(batch)
            encoded = self.model.encode(batch, *vectors)
            rows: np.ndarray = encoded.seed_SD[batch.root_R.long()].float().cpu().numpy()
            self.state.write(batch, self.model.state_writes(batch, encoded))
            return rows

    @_in_precision
    def fit(self, batch: PreparedBatch, loss: Callable[[Tensor], Tensor | None]) -> float | None:
        """One step on a loss of one's own; the state moves past the batch in any case.

        Args:
            batch: prepared.
            loss: of the roots' embeddings [B * (2 + C), D]; None where the batch has none.

        Returns:
            the loss, or None where nothing was learned.
        """
        assert self.optimizer is not None
        self._seed(batch)
        batch, *vectors = self._load(batch)
        encoded = self.model.encode(batch, *vectors)
        value = loss(encoded.seed_SD[batch.root_R.long()])
        if value is not None:
            self.optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            if self.clip is not None:
                clip_grad_norm_(list(self.optimizer.parameters.values()), self.clip)
            self.optimizer.step()
        self.state.write(batch, self.model.state_writes(batch, encoded))
        return None if value is None else float(value.detach())

    @_in_precision
    def advance(self, batch: PreparedBatch) -> None:
        """Move the state past the batch without scoring."""
        with about_batch("advancing past", batch.number), torch.inference_mode():
            batch, *vectors = self._load(batch)
            with self.times("advance", batch.number, batch.version):
                encoded = self.model.encode(batch, *vectors)
                self.state.write(batch, self.model.state_writes(batch, encoded))

    def _seed(self, batch: PreparedBatch) -> None:
        """Whatever a model draws from PyTorch's generator (`nn.Dropout`) belongs to the batch.

        So a resumed run draws what the uninterrupted one drew. `torch.manual_seed` would do, but it
        takes 135 us (it formats a stack trace while CUDA is not in use); this takes 1.4.
        """
        device, seed = self.state.device, int(batch.key) >> 1
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)

    def announce(self, batch: PreparedBatch) -> None:
        """This batch will be executed, after all that were announced before it."""
        if self.transfer is not None:
            self.transfer.announce(batch)
        if isinstance(self.state, HostState):
            self.state.announce(batch.node_U)

    def load(
        self,
        batch: PreparedBatch,
        *,
        stream: CopyStream,
        read: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Loaded:
        """Take a batch to the device ahead of its execution, in a thread that does nothing else.

        Args:
            batch: batches come in order.
            stream: that the thread holds.
            read: also read its state, as soon as the version it needs is published.
            stopped: whether that will not happen any more; then nothing is read.
        """
        with about_batch("moving", batch.number):
            moved = self._move(batch)
            vectors = None
            if read and self.state.wait_for(batch.version, stopped):
                vectors = self._read(batch, moved)
            return Loaded(batch, moved, vectors, stream.mark())

    def _load(self, batch: PreparedBatch | Loaded) -> tuple[PreparedBatch, *tuple[Tensor, ...]]:
        """The batch and the state's rows of its nodes, column by column, on the device."""
        if isinstance(batch, Loaded):
            batch.join()
            host, moved, vectors = batch.host, batch.batch, batch.vectors
        else:
            host, moved, vectors = batch, self._move(batch), None
        return moved, *(vectors or self._read(host, moved))

    def _move(self, batch: PreparedBatch) -> PreparedBatch:
        device = self.state.device
        if self.transfer is None and batch.deferred:
            raise TidegraphError(
                f"batch {batch.number} was prepared without its features: give the executor the "
                "Transfer that fetches them, or prepare with gather=True"
            )
        if self.transfer is None and device.type == "cpu":
            return batch
        with self.times("copy", batch.number, batch.version):
            return batch.to(device) if self.transfer is None else self.transfer.move(batch)

    def _read(self, host: PreparedBatch, moved: PreparedBatch) -> tuple[Tensor, ...]:
        with self.times("read", host.number, host.version):
            # A state on the host is read by the nodes' numbers there.
            return self.state.read(host if isinstance(self.state, HostState) else moved)
