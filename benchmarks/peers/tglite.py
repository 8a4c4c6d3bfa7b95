"""TGLite's TGN: `TBlock` sampling with deduplication, `TemporalAttnLayer`, `Memory`, `Mailbox`.

One step as its TGN example takes it: sample, update the memory of all nodes of the block from
their mail, attend, score, then mail the batch's events to their endpoints. Times are float32, as
the library holds them. It has to be compiled when it is installed; where that failed, importing it
fails and the benchmark reports why.

Shape legend: B events of one batch, E events, D memory width.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tglite
import torch
from tglite import op
from tglite.nn import TemporalAttnLayer, TimeEncode
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from peers.contract import Settings, StageClock
from peers.decoder import PairScore
from peers.stream import Stream
from peers.worker import batch_ranges


class Peer:
    """The adapter; see `peers.contract.Adapter`."""

    def __init__(self, stream: Stream, settings: Settings) -> None:
        self.settings, self.sizes = settings, stream.sizes
        edges = np.stack([stream.source, stream.target], axis=1).astype(np.int32)
        graph = tglite.TGraph(edges, stream.time.astype(np.float32), self.sizes.num_nodes)
        graph.efeat = torch.from_numpy(stream.features)
        width = stream.features.shape[1]
        graph.mem = tglite.Memory(self.sizes.num_nodes, settings.memory)
        graph.mailbox = tglite.Mailbox(self.sizes.num_nodes, 1, 2 * settings.memory + width)
        self.graph, self.context = graph, tglite.TContext(graph)
        self.context.need_sampling(True)
        self.sampler = tglite.TSampler(
            settings.neighbors, strategy="recent", num_threads=settings.threads
        )
        self.time_encoder = TimeEncode(settings.time)
        self.updater = nn.GRUCell(2 * settings.memory + width + settings.time, settings.memory)
        self.attention = TemporalAttnLayer(
            self.context,
            num_heads=settings.heads,
            dim_node=settings.memory,
            dim_edge=width,
            dim_time=settings.time,
            dim_out=settings.embedding,
            dropout=settings.dropout,
        )
        self.decoder = PairScore(settings.embedding)
        self.modules = nn.ModuleList(
            [self.time_encoder, self.updater, self.attention, self.decoder]
        )
        self.optimizer = torch.optim.Adam(self.modules.parameters(), lr=settings.learning_rate)

    @staticmethod
    def versions() -> dict[str, str]:
        return {"tglite": tglite.__version__}

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.modules.parameters())

    def train_epoch(self, negative_E: np.ndarray, clock: StageClock) -> Iterator[float]:
        self.modules.train()
        self.context.train()
        self.graph.mem.reset()
        self.graph.mailbox.reset()
        for start, stop in batch_ranges(0, self.sizes.train_stop, self.settings.batch_size):
            self.optimizer.zero_grad()
            with clock.stage("prepare"):
                batch, head, tail = self._prepare(start, stop, negative_E)
            with clock.stage("forward"):
                positive, negative = self._scores(batch, head, tail)
                loss = bce(positive, torch.ones_like(positive))
                loss = loss + bce(negative, torch.zeros_like(negative))
            with clock.stage("state"):
                self._mail(batch)
            with clock.stage("backward"):
                loss.backward()
                self.optimizer.step()
            yield float(loss.detach())

    @torch.no_grad()
    def validate(self, negative_E: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        self.modules.eval()
        self.context.eval()
        size = self.settings.batch_size
        for start, stop in batch_ranges(self.sizes.train_stop, self.sizes.val_stop, size):
            batch, head, tail = self._prepare(start, stop, negative_E)
            positive, negative = self._scores(batch, head, tail)
            self._mail(batch)
            yield positive.view(-1).numpy(), negative.view(-1).numpy()

    def _prepare(
        self, start: int, stop: int, negative_E: np.ndarray
    ) -> tuple[tglite.TBatch, tglite.TBlock, tglite.TBlock]:
        batch = tglite.TBatch(self.graph, range=(start, stop))
        batch.neg_nodes = negative_E[start:stop]
        head = batch.block(self.context)
        tail = self.sampler.sample(op.dedup(head))
        op.preload(head, use_pin=False)
        return batch, head, tail

    def _scores(
        self, batch: tglite.TBatch, head: tglite.TBlock, tail: tglite.TBlock
    ) -> tuple[Tensor, Tensor]:
        memory = self._update_memory(tail)
        tail.dstdata["h"] = memory[: tail.num_dst()]
        tail.srcdata["h"] = memory[tail.num_dst() :]
        z = op.aggregate(head, [self.attention], key="h")
        source, target, other = batch.split_data(z)
        return self.decoder(source, target), self.decoder(source, other)

    def _update_memory(self, block: tglite.TBlock) -> Tensor:
        nodes = block.allnodes()
        mail_time = self.graph.mailbox.time[nodes]
        since = (mail_time - self.graph.mem.time[nodes]).squeeze()
        code = op.precomputed_times(self.context, 0, self.time_encoder, since)
        memory = self.updater(torch.cat([block.mail(), code], dim=1), block.mem_data())
        self.graph.mem.update(nodes, memory, mail_time)
        return memory

    def _mail(self, batch: tglite.TBatch) -> None:
        block = op.coalesce(batch.block_adj(self.context), by="latest")
        node, other = (torch.from_numpy(side).long() for side in (block.dstnodes, block.srcnodes))
        event = torch.from_numpy(block.eid).long()
        memory = self.graph.mem.data
        mail = torch.cat([memory[node], memory[other], self.graph.efeat[event]], dim=1)
        self.graph.mailbox.store(node, mail, torch.from_numpy(block.ets))
