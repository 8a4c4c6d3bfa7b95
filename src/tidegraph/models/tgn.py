"""TGN: memory updated by messages, temporal attention over the most recent neighbours.

Rossi et al., "Temporal Graph Networks for Deep Learning on Dynamic Graphs" (2020), with DistTGL's
time input (mail time minus last update), so that each node is updated once per batch.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from tidegraph.batches.prepare import History
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.errors import SettingError
from tidegraph.events.core import Schema
from tidegraph.models.base import Encoded, TemporalModel
from tidegraph.models.layers import AttentionLayer, MemoryCell, TimeCode


class TGN(TemporalModel):
    """Temporal Graph Network.

    Message of event n for u: [m_u ; m_v ; x_n ; Phi(t_n - l_u)] (eq. 1); of several pending
    messages the chronologically last counts, or their mean (eq. 2-3); m_u <- GRU(message, m_u)
    (eq. 4), computed before the embedding for all nodes involved and persisted for the batch's
    endpoints; embedding by one or two attention layers over memory (plus projected node features).

    The time code is fixed by default: an optimiser step of 1e-4 is large for a frequency of 1e-6,
    so that trained, the slow frequencies are lost at once where time differences are large.

    Args:
        schema: sizes of the data, `events.schema`.
        memory: width of the memory.
        time: width of the time code.
        embedding: width of the embeddings.
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

    Raises:
        SettingError: a value out of range.

    >>> from tidegraph.events.core import Schema
    >>> TGN(Schema(num_nodes=4, num_sources=4, bipartite=False)).memory_width
    100
    """

    name: ClassVar[str] = "tgn"

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
    ) -> None:
        super().__init__(schema, embedding)
        if layers not in (1, 2):
            raise SettingError(f"layers={layers}: TGN has 1 or 2 attention layers")
        for width_name, width in (("memory", memory), ("time", time), ("heads", heads)):
            if width < 1:
                raise SettingError(f"{width_name}={width}: expected 1 or more")
        if not 0 <= dropout < 1:
            raise SettingError(f"dropout={dropout}: expected a probability from 0 to below 1")
        self.memory_width = memory
        self.history = History(
            neighbors=(neighbors,) * layers,
            strategy=strategy,
            window=window,
            inclusive=inclusive,
            visibility=visibility,
            memory=True,
            message=message,
        )
        features = schema.event_features
        self.time_code = TimeCode(time, trainable=time_code == "trainable")
        self.memory_cell = MemoryCell(cell, memory, features, time)
        self.attention = nn.ModuleList(
            AttentionLayer(width, features, time, embedding, heads, dropout)
            for width in (memory, embedding)[:layers]
        )
        self.node_projection = (
            nn.Linear(schema.node_features, memory, bias=False) if schema.node_features else None
        )

    def encode(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Encoded:
        """Update memory, then attend, innermost layer first."""
        assert batch.mail is not None
        updated_UD = self.memory_cell(
            memory_UD, mail_UD, batch.mail, batch.features, self.time_code
        )
        table_RD = updated_UD
        if self.node_projection is not None:
            table_RD = updated_UD + self.node_projection(batch.node_features)
        for depth, (layer, hop) in enumerate(zip(self.attention, batch.hops, strict=True)):
            table_RD = layer(table_RD, hop, batch.features, self.time_code, batch.key + 2 * depth)
        return Encoded(table_RD, updated_UD)
