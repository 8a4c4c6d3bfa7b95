"""DyRep: memory whose messages carry what the partner's neighbourhood looks like.

Trivedi et al., "DyRep: Learning Representations over Dynamic Graphs" (2019), in the form in which
the field evaluates it (TGN, section 4): a recurrent memory, and messages in which the partner's
temporal attention embedding stands in place of its memory.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from tidegraph import ops
from tidegraph.batches.prepare import History
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.events.core import Schema
from tidegraph.models.base import Encoded, TemporalModel, check_counts, check_dropout
from tidegraph.models.layers import AttentionLayer, MemoryCell, TimeCode


class DyRep(TemporalModel):
    """Memory with localized embedding propagation.

    m_u <- RNN([m_u ; h_v ; x ; Phi(t - l_u)], m_u) after each event with v, where h_v is v's
    attention over its latest neighbours just before the event (eq. 4: localized propagation,
    self-propagation, exogenous drive). A pair is scored from the memories ("identity", as
    published) or from the attention embeddings.

    Stored mail is a constant, so with "identity" no gradient reaches the attention: it stays the
    random projection that it starts as. With "attention" it is trained.

    Args:
        schema: sizes of the data, `events.schema`.
        memory: width of the memory, and so of the embeddings.
        time: width of the time code.
        neighbors: most recent neighbours that a message looks at.
        heads: attention heads.
        dropout: probability, on attention weights and the merged hidden layer.
        message: "last" or "mean" of a node's messages of one batch.
        cell: "rnn" as published, or "gru".
        embedding_module: a pair is scored from memory ("identity") or from "attention".
        time_code: "fixed" frequencies, or "trainable".

    Raises:
        SettingError: a value out of range.

    >>> from tidegraph.events.core import Schema
    >>> DyRep(Schema(num_nodes=4, num_sources=4, bipartite=False)).history.endpoints
    True
    """

    name: ClassVar[str] = "dyrep"
    memory_from_embeddings: ClassVar[bool] = True

    def __init__(
        self,
        schema: Schema,
        memory: int = 100,
        time: int = 100,
        neighbors: int = 10,
        heads: int = 2,
        dropout: float = 0.1,
        message: Literal["last", "mean"] = "last",
        cell: Literal["rnn", "gru"] = "rnn",
        embedding_module: Literal["identity", "attention"] = "identity",
        time_code: Literal["fixed", "trainable"] = "fixed",
    ) -> None:
        super().__init__(schema, memory)
        check_counts(time=time, heads=heads, neighbors=neighbors)
        check_dropout(dropout)
        self.memory_width = memory
        self.history = History(neighbors=(neighbors,), memory=True, message=message, endpoints=True)
        features = schema.event_features
        self.embedding_module = embedding_module
        self.time_code = TimeCode(time, trainable=time_code == "trainable")
        self.memory_cell = MemoryCell(cell, memory, features, time)
        self.attention = AttentionLayer(memory, features, time, memory, heads, dropout)
        self.attention.requires_grad_(embedding_module == "attention")
        self.node_projection = (
            nn.Linear(schema.node_features, memory, bias=False) if schema.node_features else None
        )

    def encode(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Encoded:
        """Update memory, and attend: for the messages, or for the scores as well."""
        assert batch.mail is not None
        updated_UD = self.memory_cell(
            memory_UD, mail_UD, batch.mail, batch.features, self.time_code
        )
        own_UD = updated_UD
        if self.node_projection is not None:
            own_UD = updated_UD + self.node_projection(batch.node_features)
        hop = batch.hops[0]
        trained = self.embedding_module == "attention"
        with torch.set_grad_enabled(torch.is_grad_enabled() and trained):
            attended_SD = self.attention(own_UD, hop, batch.features, self.time_code, batch.key)
        seed_SD = attended_SD
        if not trained:
            seed_SD = ops.gather_rows(own_UD, hop.self_S, hop.self_uses)
        return Encoded(seed_SD, updated_UD, attended_SD)
