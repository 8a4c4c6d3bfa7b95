"""TGN: memory updated by messages, temporal attention over the most recent neighbours.

Rossi et al., "Temporal Graph Networks for Deep Learning on Dynamic Graphs" (2020), with DistTGL's
time input (mail time minus last update), so that each node is updated once per batch.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tidegraph import ops
from tidegraph.batches.prepare import History
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.errors import SettingError
from tidegraph.events.core import Schema
from tidegraph.models.base import (
    Encoded,
    TemporalModel,
    TrainingEvents,
    check_counts,
    check_dropout,
)
from tidegraph.models.layers import (
    AttentionLayer,
    MemoryCell,
    SumLayer,
    TimeCode,
    TimeProjection,
    attend,
)
from tidegraph.models.static_memory import pretrain_static


class TGN(TemporalModel):
    """Temporal Graph Network.

    Message of event n for u: [m_u ; m_v ; x_n ; Phi(t_n - l_u)] (eq. 1); of several pending
    messages the chronologically last counts, or their mean (eq. 2-3); m_u <- GRU(message, m_u)
    (eq. 4), computed before the embedding for all nodes involved and persisted for the batch's
    endpoints; embedding by one or two attention layers over memory (plus projected node features).

    Other embeddings of the paper (section 3.1): "sum" over neighbours in place of attention,
    "identity" (the memory itself) and "time" (JODIE's projection), both without neighbours.
    DistTGL's static memory: h_v = m_v + P q_v, q learned by link prediction without time before
    training starts.

    The time code is fixed by default: an optimiser step of 1e-4 is large for a frequency of 1e-6,
    so that trained, the slow frequencies are lost at once where time differences are large.

    Args:
        schema: sizes of the data, `events.schema`.
        memory: width of the memory.
        time: width of the time code.
        embedding: width of the embeddings; that of the memory for "identity" and "time".
        neighbors: most recent neighbours per layer.
        layers: attention layers, 1 or 2.
        heads: attention heads.
        dropout: probability, on attention weights and the merged hidden layer.
        message: "last" or "mean".
        cell: "gru" or "rnn".
        time_code: "fixed" frequencies, or "trainable" as in the paper.
        strategy: "recent" or "uniform" neighbours.
        window: only neighbours of the last so many time units; all by default.
        inclusive: events at exactly the query time are history too.
        visibility: of neighbours: up to each "event", or only earlier batches ("batch").
        embedding_module: "attention", "sum", "identity" or "time".
        memory_time: messages' age at the time of their event ("mail"), or at the time that is asked
            about ("query"; then a node is updated once per query time, with one layer at most).
        static: width of the static node memory; 0 for none.

    Raises:
        SettingError: a value out of range.

    >>> from tidegraph.events.core import Schema
    >>> TGN(Schema(num_nodes=4, num_sources=4, bipartite=False)).memory_width
    100
    """

    name: ClassVar[str] = "tgn"
    static_NQ: Tensor

    def __init__(
        self,
        schema: Schema,
        memory: int = 100,
        time: int = 100,
        embedding: int = 100,
        neighbors: int = 10,
        layers: int = 1,
        heads: int = 2,
        dropout: float = 0.1,
        message: Literal["last", "mean"] = "last",
        cell: Literal["gru", "rnn"] = "gru",
        time_code: Literal["fixed", "trainable"] = "fixed",
        strategy: Literal["recent", "uniform"] = "recent",
        window: float | None = None,
        inclusive: bool = False,
        visibility: Literal["event", "batch"] = "event",
        embedding_module: Literal["attention", "sum", "identity", "time"] = "attention",
        memory_time: Literal["mail", "query"] = "mail",
        static: int = 0,
    ) -> None:
        super().__init__(schema, embedding)
        alone = embedding_module in ("identity", "time")
        if alone and embedding != memory:
            raise SettingError(
                f"embedding={embedding} with embedding_module={embedding_module!r}: the embedding "
                f"is the memory, so give embedding={memory} as well"
            )
        if memory_time == "query" and layers > 1 and not alone:
            raise SettingError("memory_time='query' needs layers=1")
        if static < 0:
            raise SettingError(f"static={static}: expected 0 or more")
        if layers not in (1, 2):
            raise SettingError(f"layers={layers}: TGN has 1 or 2 attention layers")
        check_counts(memory=memory, time=time, heads=heads)
        check_dropout(dropout)
        self.memory_width = memory
        self.history = History(
            neighbors=() if alone else (neighbors,) * layers,
            strategy=strategy,
            window=window,
            inclusive=inclusive,
            visibility=visibility,
            memory=True,
            message=message,
            memory_time=memory_time,
            seed_times=embedding_module == "time",
        )
        features = schema.event_features
        self.time_code = TimeCode(time, trainable=time_code == "trainable")
        self.memory_cell = MemoryCell(cell, memory, features, time)
        widths = () if alone else (memory, embedding)[:layers]
        self.attention = nn.ModuleList(
            SumLayer(width, features, time, embedding)
            if embedding_module == "sum"
            else AttentionLayer(width, features, time, embedding, heads, dropout)
            for width in widths
        )
        self.node_projection = (
            nn.Linear(schema.node_features, memory, bias=False) if schema.node_features else None
        )
        # Made last, so that models without them start from the weights they always had.
        first_target = schema.num_sources if schema.bipartite else None
        self.projection = (
            TimeProjection(memory, first_target) if embedding_module == "time" else None
        )
        self.rows_alone = embedding_module == "attention"
        self.static = static
        self.static_projection = nn.Linear(static, memory, bias=False) if static else None
        if static:
            self.register_buffer("static_NQ", torch.zeros(schema.num_nodes, static))

    def fit_statistics(self, train: TrainingEvents) -> None:
        """Learn the static memory, and the scale of the gaps between a node's events."""
        if self.projection is not None:
            self.projection.fit(
                np.concatenate([train.source_E, train.target_E]),
                np.concatenate([train.time_E, train.time_E]),
            )
        if self.static:
            learned_NQ = pretrain_static(train, self.schema.num_nodes, self.static)
            self.static_NQ.copy_(learned_NQ)

    def encode(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Encoded:
        """Update memory, then attend, innermost layer first."""
        updated_UD = self.evolve(batch, memory_UD, mail_UD)
        table_RD = updated_UD
        if self.node_projection is not None:
            assert batch.node_features is not None
            table_RD = updated_UD + ops.linear(batch.node_features, self.node_projection)
        if self.static_projection is not None:
            table_RD = table_RD + ops.linear(self._static(batch.node_U), self.static_projection)
        if self.projection is not None:
            return Encoded(self.projection(table_RD, batch), updated_UD)
        return Encoded(attend(self.attention, table_RD, batch, self.time_code), updated_UD)

    def _static(self, node_U: Tensor) -> Tensor:
        """[U, Q]; zeros for nodes that came after training."""
        known = len(self.static_NQ)
        row_UQ = self.static_NQ.index_select(0, node_U.clamp(max=known - 1))
        return row_UQ * (node_U < known).unsqueeze(1)

    def evolve(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Tensor:
        """The memory cell over the pending mail."""
        assert batch.mail is not None
        updated_UD: Tensor = self.memory_cell(
            memory_UD, mail_UD, batch.mail, batch.features, self.time_code
        )
        return updated_UD
