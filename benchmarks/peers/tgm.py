"""TGM's TGN (PyPI `tgm-lib`): its `TGNMemory`, `GraphAttentionEmbedding` and `LinkPredictor`.

Batches come from its loader with its recency hook and its deduplication hook, as its link
prediction example sets them up; the only hook of ours hands out the shared negatives. The edges go
from seed to neighbour, as in that example, and the order of the step is the example's.

Shape legend: B events of one batch, E events, K neighbours of a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from tgm import DGBatch, DGraph
from tgm.constants import PADDED_NODE_ID
from tgm.data import DGData, DGDataLoader
from tgm.hooks import DeduplicationHook, HookManager, RecencyNeighborHook, StatelessHook
from tgm.nn import LinkPredictor, TGNMemory
from tgm.nn.encoder.tgn import GraphAttentionEmbedding, IdentityMessage, LastAggregator
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from peers.contract import Settings, StageClock
from peers.stream import Stream


class SuppliedNegatives(StatelessHook):  # type: ignore[misc]
    """Gives each batch its part of negatives drawn beforehand, in order."""

    requires = {"edge_src", "edge_dst", "edge_time"}
    produces = {"neg", "neg_time"}

    def __init__(self) -> None:
        self.negative_E = torch.empty(0, dtype=torch.int32)
        self.position = 0

    def rewind(self, negative_E: np.ndarray) -> None:
        """Start over with these negatives."""
        self.negative_E, self.position = torch.from_numpy(negative_E.astype(np.int32)), 0

    def __call__(self, graph: DGraph, batch: DGBatch) -> DGBatch:
        stop = self.position + len(batch.edge_src)
        batch.neg = self.negative_E[self.position : stop]
        batch.neg_time = batch.edge_time.clone()
        self.position = stop
        return batch


class Peer:
    """The adapter; see `peers.contract.Adapter`."""

    def __init__(self, stream: Stream, settings: Settings) -> None:
        if (settings.heads, settings.dropout) != (2, 0.1):
            raise ValueError("TGM's GraphAttentionEmbedding has 2 heads and dropout 0.1, fixed")
        self.settings, self.sizes = settings, stream.sizes
        width = stream.features.shape[1]
        self.memory = TGNMemory(
            self.sizes.num_nodes,
            width,
            settings.memory,
            settings.time,
            message_module=IdentityMessage(width, settings.memory, settings.time),
            aggregator_module=LastAggregator(),
        )
        self.embedding = GraphAttentionEmbedding(
            in_channels=settings.memory,
            out_channels=settings.embedding,
            msg_dim=width,
            time_enc=self.memory.time_enc,
        )
        self.decoder = LinkPredictor(node_dim=settings.embedding, hidden_dim=settings.embedding)
        self.modules = nn.ModuleList([self.memory, self.embedding, self.decoder])
        self.optimizer = torch.optim.Adam(self.modules.parameters(), lr=settings.learning_rate)
        self._make_loaders(stream)

    def _make_loaders(self, stream: Stream) -> None:
        self.negatives = SuppliedNegatives()
        recency = RecencyNeighborHook(
            num_nodes=self.sizes.num_nodes,
            num_nbrs=[self.settings.neighbors],
            seed_nodes_keys=["edge_src", "edge_dst", "neg"],
            seed_times_keys=["edge_time", "edge_time", "neg_time"],
        )
        self.hooks = HookManager(keys=["train", "val"])
        for key in ("train", "val"):
            self.hooks.register(key, self.negatives)
        self.hooks.register_shared(recency)
        self.hooks.register_shared(DeduplicationHook())
        limits = {
            "train": slice(0, self.sizes.train_stop),
            "val": slice(self.sizes.train_stop, self.sizes.val_stop),
        }
        self.loaders = {
            key: DGDataLoader(
                DGraph(_graph_data(stream, part)),
                self.settings.batch_size,
                hook_manager=self.hooks,
            )
            for key, part in limits.items()
        }

    @staticmethod
    def versions() -> dict[str, str]:
        return {"tgm-lib": version("tgm-lib"), "torch-geometric": version("torch-geometric")}

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.modules.parameters() if p.requires_grad)

    def train_epoch(self, negative_E: np.ndarray, clock: StageClock) -> Iterator[float]:
        self.modules.train()
        self.memory.reset_state()
        self.hooks.reset_state()
        self.negatives.rewind(negative_E)
        with self.hooks.activate("train"):
            batches = iter(self.loaders["train"])
            while True:
                with clock.stage("prepare"):
                    batch = next(batches, None)
                    if batch is None:
                        return
                    edges = self._edges(batch)
                yield self._step(batch, edges, clock)

    def _step(self, batch: Any, edges: tuple[Tensor, ...], clock: StageClock) -> float:
        self.optimizer.zero_grad()
        with clock.stage("forward"):
            positive, negative = self._scores(batch, *edges)
            loss = bce(positive, torch.ones_like(positive))
            loss = loss + bce(negative, torch.zeros_like(negative))
        with clock.stage("state"):
            self._take_in(batch)
        with clock.stage("backward"):
            loss.backward()
            self.optimizer.step()
        with clock.stage("state"):
            self.memory.detach()
        return float(loss.detach())

    @torch.no_grad()
    def validate(self, negative_E: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        self.modules.eval()
        self.negatives.rewind(negative_E[self.sizes.train_stop :])
        with self.hooks.activate("val"):
            for batch in self.loaders["val"]:
                positive, negative = self._scores(batch, *self._edges(batch))
                self._take_in(batch)
                yield positive.numpy(), negative.numpy()

    def _edges(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Edges in the batch's own numbering, their times and features; padding left out."""
        neighbor_SK = batch.nbr_nids[0]
        real = (neighbor_SK != PADDED_NODE_ID).flatten()
        seed = torch.cat([batch.edge_src, batch.edge_dst, batch.neg])
        seed = seed.repeat_interleave(neighbor_SK.shape[1])[real]
        neighbor = neighbor_SK.flatten()[real]
        edge_index = torch.stack([batch.global_to_local(seed), batch.global_to_local(neighbor)])
        features = batch.nbr_edge_x[0].flatten(0, -2)[real]
        return edge_index.long(), batch.nbr_edge_time[0].flatten()[real], features

    def _scores(
        self, batch: Any, edge_index: Tensor, time: Tensor, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        memory, updated = self.memory(batch.unique_nids)
        z = self.embedding(memory, updated, edge_index, time, features)
        source = z[batch.global_to_local(batch.edge_src)]
        positive = self.decoder(source, z[batch.global_to_local(batch.edge_dst)])
        return positive, self.decoder(source, z[batch.global_to_local(batch.neg)])

    def _take_in(self, batch: Any) -> None:
        self.memory.update_state(batch.edge_src, batch.edge_dst, batch.edge_time, batch.edge_x)


def _graph_data(stream: Stream, part: slice) -> DGData:
    edge_index = np.stack([stream.source[part], stream.target[part]], axis=1)
    return DGData.from_raw(
        edge_time=torch.from_numpy(stream.time[part]),
        edge_index=torch.from_numpy(edge_index.astype(np.int32)),
        edge_x=torch.from_numpy(stream.features[part]),
        time_delta="s",
    )
