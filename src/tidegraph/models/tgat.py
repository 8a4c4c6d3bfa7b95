"""TGAT: temporal attention over recent neighbours and their neighbours, without memory.

Xu et al., "Inductive Representation Learning on Temporal Graphs" (ICLR 2020). What a layer makes of
a (node, time) is computed once, however many roots and neighbours name it.
"""

from __future__ import annotations

import warnings
from typing import ClassVar, Literal

from torch import Tensor, nn

from tidegraph.batches.prepare import History
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.errors import SettingError
from tidegraph.events.core import Schema
from tidegraph.models.base import Encoded, TemporalModel, check_counts, check_dropout
from tidegraph.models.layers import AttentionLayer, TimeCode, attend
from tidegraph.models.tokens import node_rows


class TGAT(TemporalModel):
    """Temporal Graph Attention Network.

    h^0_v = node features (no numbers where the data has none: zeros would add nothing); layer l
    attends from [h_v(t) ; Phi(0)] over [h_u(tau) ; x ; Phi(t - tau)] of the latest events (u, x,
    tau) before t (eq. 5-7), and merges the result with h_v(t) (eq. 8). Layer l - 1 of a neighbour
    is taken at the time of the event that led to it, tau. Phi is eq. 6.

    The time code is fixed by default, for the reason that TGN's is.

    Args:
        schema: sizes of the data, `events.schema`.
        time: width of the time code.
        embedding: width of the embeddings.
        neighbors: neighbours per layer.
        layers: attention layers, 1 to 3.
        heads: attention heads.
        dropout: probability, on attention weights and the merged hidden layer.
        time_code: "fixed" frequencies, or "trainable" as in the paper.
        strategy: "recent" or "uniform" neighbours.
        window: only neighbours of the last so many time units; all by default.
        inclusive: events at exactly the query time are history too.
        visibility: of neighbours: up to each "event", or only earlier batches ("batch").

    Raises:
        SettingError: a value out of range.

    >>> from tidegraph.events.core import Schema
    >>> TGAT(Schema(num_nodes=4, num_sources=4, bipartite=False)).history.neighbors
    (20, 20)
    """

    name: ClassVar[str] = "tgat"

    def __init__(
        self,
        schema: Schema,
        time: int = 100,
        embedding: int = 100,
        neighbors: int = 20,
        layers: int = 2,
        heads: int = 2,
        dropout: float = 0.1,
        time_code: Literal["fixed", "trainable"] = "fixed",
        strategy: Literal["recent", "uniform"] = "recent",
        window: float | None = None,
        inclusive: bool = False,
        visibility: Literal["event", "batch"] = "event",
    ) -> None:
        super().__init__(schema, embedding)
        if layers not in (1, 2, 3):
            raise SettingError(f"layers={layers}: TGAT has 1 to 3 attention layers")
        check_counts(time=time, heads=heads, neighbors=neighbors)
        check_dropout(dropout)
        self.history = History(
            neighbors=(neighbors,) * layers,
            strategy=strategy,
            window=window,
            inclusive=inclusive,
            visibility=visibility,
            memory=False,
        )
        self.rows_alone = True
        features, nodes = schema.event_features, schema.node_features
        self.time_code = TimeCode(time, trainable=time_code == "trainable")
        with warnings.catch_warnings():  # PyTorch remarks on weights of width 0
            warnings.simplefilter("ignore", UserWarning)
            self.attention = nn.ModuleList(
                AttentionLayer(width, features, time, embedding, heads, dropout)
                for width in (nodes, *(embedding,) * (layers - 1))
            )

    def encode(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Encoded:
        """Attend, innermost layer first."""
        table_RD = node_rows(batch, self.output_layer.weight)
        return Encoded(attend(self.attention, table_RD, batch, self.time_code))
