"""Tidegraph's TGN: prepare from history, read state, step, write state.

This is the plain loop over the library's two halves; the temporal index is built at the start of
each epoch and charged to preparation, since the other libraries build theirs while they train.

Shape legend: B events of one batch, E events, U unique nodes of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from peers.contract import Settings, StageClock
from peers.stream import Stream
from tidegraph._jit import set_threads
from tidegraph.batches import BatchPlan, PreparedBatch, Preparer
from tidegraph.events import Events
from tidegraph.features.store import FeatureStore
from tidegraph.history import TemporalIndex
from tidegraph.models import TGN
from tidegraph.state import NodeState
from tidegraph.train.adam import Adam


class Peer:
    """The adapter; see `peers.contract.Adapter`."""

    def __init__(self, stream: Stream, settings: Settings) -> None:
        set_threads(settings.threads)
        self.settings, sizes = settings, stream.sizes
        self.train_stop, streamed = sizes.train_stop, slice(0, sizes.val_stop)
        self.events = Events.from_arrays(
            stream.source[streamed],
            stream.target[streamed],
            stream.time[streamed],
            features=stream.features[streamed],
            num_nodes=sizes.num_nodes,
            num_sources=sizes.first_target or None,
        )
        event_E = np.arange(sizes.val_stop)
        self.plan = BatchPlan.build(
            [
                ("train", event_E[: sizes.train_stop], settings.batch_size),
                ("val", event_E[sizes.train_stop :], settings.batch_size),
            ]
        )
        self.model = TGN(
            self.events.schema,
            memory=settings.memory,
            time=settings.time,
            embedding=settings.embedding,
            neighbors=settings.neighbors,
            heads=settings.heads,
            dropout=settings.dropout,
        )
        self.state = NodeState(sizes.num_nodes, self.model.memory_width)
        self.optimizer = Adam(self.model.named_parameters(), settings.learning_rate)
        self.epoch = -1

    @staticmethod
    def versions() -> dict[str, str]:
        return {"tidegraph": version("tidegraph")}

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def train_epoch(self, negative_E: np.ndarray, clock: StageClock) -> Iterator[float]:
        self.model.train()
        self.state.reset()
        self.epoch += 1
        with clock.stage("prepare"):
            self.preparer = self._preparer()
        for number in self.plan.phase("train").batches:
            self.optimizer.zero_grad()
            with clock.stage("prepare"):
                batch = self._prepare(number, negative_E)
            with clock.stage("forward"):
                logit_B2, updated_UD = self._scores(batch)
                positive, negative = logit_B2[:, 0], logit_B2[:, 1]
                loss = bce(positive, torch.ones_like(positive))
                loss = loss + bce(negative, torch.zeros_like(negative))
            with clock.stage("backward"):
                loss.backward()
                self.optimizer.step()
            with clock.stage("state"):
                self.state.write(batch, updated_UD)
            yield float(loss.detach())

    @torch.no_grad()
    def validate(self, negative_E: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        self.model.eval()
        for number in self.plan.phase("val").batches:
            batch = self._prepare(number, negative_E)
            logit_B2, updated_UD = self._scores(batch)
            self.state.write(batch, updated_UD)
            yield logit_B2[:, 0].numpy(), logit_B2[:, 1].numpy()

    def _preparer(self) -> Preparer:
        return Preparer(
            events=self.events,
            index=TemporalIndex.from_events(self.events),
            plan=self.plan,
            history=self.model.history,
            features=FeatureStore.of(self.events.features),
            node_features=FeatureStore.of(None),
            seed=self.settings.seed,
        )

    def _prepare(self, number: int, negative_E: np.ndarray) -> PreparedBatch:
        negative_BC = negative_E[self.plan.events(number)].astype(np.int32)[:, None]
        return self.preparer.prepare(number, negative_BC, epoch=self.epoch)

    def _scores(self, batch: PreparedBatch) -> tuple[Tensor, Tensor]:
        memory_UD, mail_UD = self.state.read(batch)
        logit_B2, encoded = self.model(batch, memory_UD, mail_UD)
        return logit_B2, encoded.memory_UD
