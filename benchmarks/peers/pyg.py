"""PyTorch Geometric's TGN: `TGNMemory`, `TransformerConv` and `LastNeighborLoader`.

The loop follows the order that the library documents: neighbours and memory of the batch's nodes
from the state before the batch, loss, then memory and neighbours take the batch in, then gradients
and optimiser, then the memory is cut off from the graph.

Shape legend: B events of one batch, E events, F event-feature width.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch_geometric.data import TemporalData
from torch_geometric.nn import TGNMemory, TransformerConv
from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator, LastNeighborLoader

from peers.contract import Settings, StageClock
from peers.decoder import PairScore
from peers.stream import Stream
from peers.worker import batch_ranges


class Embedding(nn.Module):
    """One graph-transformer layer over [time code ; features] of each neighbour's event."""

    def __init__(self, settings: Settings, feature_width: int, time_encoder: nn.Module) -> None:
        super().__init__()
        self.time_encoder = time_encoder
        self.attention = TransformerConv(
            settings.memory,
            settings.embedding // settings.heads,
            heads=settings.heads,
            dropout=settings.dropout,
            edge_dim=feature_width + settings.time,
        )

    def forward(
        self, memory: Tensor, updated: Tensor, edge_index: Tensor, time: Tensor, features: Tensor
    ) -> Tensor:
        since = updated[edge_index[0]] - time
        code = self.time_encoder(since.to(memory.dtype))
        return self.attention(memory, edge_index, torch.cat([code, features], dim=-1))


class Peer:
    """The adapter; see `peers.contract.Adapter`."""

    def __init__(self, stream: Stream, settings: Settings) -> None:
        self.settings, self.sizes = settings, stream.sizes
        self.data = TemporalData(
            src=torch.from_numpy(stream.source),
            dst=torch.from_numpy(stream.target),
            t=torch.from_numpy(stream.time),
            msg=torch.from_numpy(stream.features),
        )
        width = stream.features.shape[1]
        self.memory = TGNMemory(
            self.sizes.num_nodes,
            width,
            settings.memory,
            settings.time,
            message_module=IdentityMessage(width, settings.memory, settings.time),
            aggregator_module=LastAggregator(),
        )
        self.embedding = Embedding(settings, width, self.memory.time_enc)
        self.decoder = PairScore(settings.embedding)
        self.modules = nn.ModuleList([self.memory, self.embedding, self.decoder])
        # ModuleList.parameters() names the shared time encoder once, as a set would.
        self.optimizer = torch.optim.Adam(self.modules.parameters(), lr=settings.learning_rate)
        self.neighbors = LastNeighborLoader(self.sizes.num_nodes, size=settings.neighbors)
        self.place_N = torch.empty(self.sizes.num_nodes, dtype=torch.long)

    @staticmethod
    def versions() -> dict[str, str]:
        return {"torch-geometric": version("torch-geometric")}

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.modules.parameters())

    def train_epoch(self, negative_E: np.ndarray, clock: StageClock) -> Iterator[float]:
        self.modules.train()
        self.memory.reset_state()
        self.neighbors.reset_state()
        negatives = torch.from_numpy(negative_E)
        for start, stop in batch_ranges(0, self.sizes.train_stop, self.settings.batch_size):
            self.optimizer.zero_grad()
            with clock.stage("prepare"):
                prepared = self._prepare(start, stop, negatives)
            with clock.stage("forward"):
                positive, negative = self._scores(*prepared)
                loss = bce(positive, torch.ones_like(positive))
                loss = loss + bce(negative, torch.zeros_like(negative))
            with clock.stage("state"):
                self._take_in(prepared[0])
            with clock.stage("backward"):
                loss.backward()
                self.optimizer.step()
            with clock.stage("state"):
                self.memory.detach()
            yield float(loss.detach())

    @torch.no_grad()
    def validate(self, negative_E: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        self.modules.eval()
        negatives = torch.from_numpy(negative_E)
        size = self.settings.batch_size
        for start, stop in batch_ranges(self.sizes.train_stop, self.sizes.val_stop, size):
            prepared = self._prepare(start, stop, negatives)
            positive, negative = self._scores(*prepared)
            self._take_in(prepared[0])
            yield positive.view(-1).numpy(), negative.view(-1).numpy()

    def _prepare(
        self, start: int, stop: int, negatives: Tensor
    ) -> tuple[TemporalData, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Batch, its negatives, its nodes with neighbours, edges, their times and features.

        `TemporalDataLoader` does the same slicing; without it the library is spared the loader's
        machinery, which costs time and does nothing here.
        """
        batch = self.data[start:stop]
        negative_B = negatives[start:stop]
        nodes = torch.cat([batch.src, batch.dst, negative_B]).unique()
        nodes, edge_index, event = self.neighbors(nodes)
        self.place_N[nodes] = torch.arange(nodes.size(0))
        return batch, negative_B, nodes, edge_index, self.data.t[event], self.data.msg[event]

    def _scores(
        self,
        batch: TemporalData,
        negative_B: Tensor,
        nodes: Tensor,
        edge_index: Tensor,
        time: Tensor,
        features: Tensor,
    ) -> tuple[Tensor, Tensor]:
        memory, updated = self.memory(nodes)
        z = self.embedding(memory, updated, edge_index, time, features)
        source = z[self.place_N[batch.src]]
        positive = self.decoder(source, z[self.place_N[batch.dst]])
        return positive, self.decoder(source, z[self.place_N[negative_B]])

    def _take_in(self, batch: TemporalData) -> None:
        self.memory.update_state(batch.src, batch.dst, batch.t, batch.msg)
        self.neighbors.insert(batch.src, batch.dst)
