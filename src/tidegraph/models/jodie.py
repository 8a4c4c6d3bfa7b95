"""JODIE: memory that drifts with time; no neighbours are looked at.

Kumar et al., "Predicting Dynamic Embedding Trajectory in Temporal Interaction Networks" (2019), as
the field evaluates it: trained for link prediction, its two mutually recurrent networks shared.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from tidegraph.batches.prepare import History
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.events.core import Schema
from tidegraph.models.base import (
    Encoded,
    TemporalModel,
    TrainingEvents,
    check_counts,
    check_dropout,
)
from tidegraph.models.layers import MemoryCell, TimeCode, TimeProjection
from tidegraph.ops.dropout import keep_mask


class JODIE(TemporalModel):
    """Joint dynamic user-item embeddings.

    m_u <- RNN([m_u ; m_v ; x ; Phi(t - l_u)], m_u) after each event with v (eq. 1-2), computed
    before the node's next use; z_u(t) = (1 + b + w dt') o m_u (eq. 3) with dt' the time since the
    node's last event, normalised by the training part's gaps.

    Args:
        schema: sizes of the data, `events.schema`.
        memory: width of the memory, and so of the embeddings.
        time: width of the time code of the messages.
        message: "last" or "mean" of a node's messages of one batch.
        cell: "rnn" as published, or "gru".
        time_code: "fixed" frequencies, or "trainable".
        projection: where w starts: "zero" (and no b), or "normal", drawn with b as in the published
            code.
        dropout: probability, on the projected memories.

    Raises:
        SettingError: a value out of range.

    >>> from tidegraph.events.core import Schema
    >>> JODIE(Schema(num_nodes=4, num_sources=4, bipartite=False)).history.neighbors
    ()
    """

    name: ClassVar[str] = "jodie"

    def __init__(
        self,
        schema: Schema,
        memory: int = 100,
        time: int = 100,
        message: Literal["last", "mean"] = "last",
        cell: Literal["rnn", "gru"] = "rnn",
        time_code: Literal["fixed", "trainable"] = "fixed",
        projection: Literal["zero", "normal"] = "zero",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(schema, memory)
        check_counts(time=time)
        check_dropout(dropout)
        self.dropout = dropout
        self.memory_width = memory
        self.history = History(neighbors=(), memory=True, message=message, seed_times=True)
        self.time_code = TimeCode(time, trainable=time_code == "trainable")
        self.memory_cell = MemoryCell(cell, memory, schema.event_features, time)
        first_target = schema.num_sources if schema.bipartite else None
        self.projection = TimeProjection(memory, first_target, projection)
        self.node_projection = (
            nn.Linear(schema.node_features, memory, bias=False) if schema.node_features else None
        )

    def fit_statistics(self, train: TrainingEvents) -> None:
        """Take the scale of the gaps between a node's events."""
        self.projection.fit(
            np.concatenate([train.source_E, train.target_E]),
            np.concatenate([train.time_E, train.time_E]),
        )

    def encode(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Encoded:
        """Update memory, then project it to the query times."""
        assert batch.mail is not None
        updated_UD = self.memory_cell(
            memory_UD, mail_UD, batch.mail, batch.features, self.time_code
        )
        own_UD = updated_UD
        if self.node_projection is not None:
            own_UD = updated_UD + self.node_projection(batch.node_features)
        projected_SD: Tensor = self.projection(own_UD, batch)
        if self.dropout and self.training:
            shape = tuple(projected_SD.shape)
            projected_SD = projected_SD * keep_mask(batch.key, shape, self.dropout, projected_SD)
        return Encoded(projected_SD, updated_UD)
