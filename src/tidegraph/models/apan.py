"""APAN: a mailbox per node, filled after each event; embedding a node looks at its mails alone.

Wang et al., "APAN: Asynchronous Propagation Attention Network for Real-time Temporal Graph
Embedding" (2021). Neighbours are needed only after an event, to deliver its mail.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from tidegraph import ops
from tidegraph.batches.prepare import History
from tidegraph.batches.prepared import Hop, PreparedBatch, Uses
from tidegraph.errors import SettingError
from tidegraph.events.core import Schema
from tidegraph.models.base import Encoded, TemporalModel, check_counts, check_dropout
from tidegraph.models.layers import TimeCode
from tidegraph.state.columns import Column, RingPush, RowWrite, StateWrites


class APAN(TemporalModel):
    """Asynchronous propagation attention network.

    z_v(t) = MLP(LN(attention(m_v over v's latest mails with Phi(t - mail time)) + m_v)); after an
    event (u, v, x) m_u := z_u, m_v := z_v, and the mail [z_u + z_v ; x] goes to u, v and their
    latest neighbours before the event. (The paper adds x as well, which takes features as wide as
    embeddings; beside the sum, the attention's own projections do the same for any width.)

    A node receives one mail a batch: the mean of the mails of all events that reach it (the paper's
    reduction), at the time of the latest of them. A node's memory is that of its last event in the
    batch. A mailbox is a ring: the oldest mail makes room.

    Args:
        schema: sizes of the data, `events.schema`.
        memory: width of the memory, and so of the embeddings.
        time: width of the time code.
        mails: mails that a node keeps.
        neighbors: latest neighbours of each endpoint that receive its mail too.
        heads: attention heads.
        dropout: probability, on attention weights and on the hidden layer.
        time_code: "fixed" frequencies, or "trainable".
        inclusive: events at exactly the time of the event count as neighbours too.
        visibility: of neighbours: up to each "event", or only earlier batches ("batch").

    Raises:
        SettingError: a value out of range.

    >>> from tidegraph.events.core import Schema
    >>> model = APAN(Schema(num_nodes=4, num_sources=4, bipartite=False))
    >>> [column.shape for column in model.columns]
    [(100,), (10, 100), (10,), ()]
    """

    name: ClassVar[str] = "apan"
    memory_from_embeddings: ClassVar[bool] = True

    def __init__(
        self,
        schema: Schema,
        memory: int = 100,
        time: int = 100,
        mails: int = 10,
        neighbors: int = 10,
        heads: int = 2,
        dropout: float = 0.1,
        time_code: Literal["fixed", "trainable"] = "fixed",
        inclusive: bool = False,
        visibility: Literal["event", "batch"] = "event",
    ) -> None:
        super().__init__(schema, memory)
        check_counts(time=time, mails=mails, heads=heads)
        if neighbors < 0:
            raise SettingError(f"neighbors={neighbors}: expected 0 or more")
        check_dropout(dropout)
        if memory % heads:
            raise SettingError(f"memory={memory} is not divisible by heads={heads}")
        self.memory_width, self.mails, self.heads, self.dropout = memory, mails, heads, dropout
        self.history = History(
            neighbors=(), memory=True, inclusive=inclusive, visibility=visibility,
            seed_times=True, endpoints=True, delivery=neighbors,
        )  # fmt: skip
        self.mail_width = memory + schema.event_features
        width = self.mail_width + time
        self.time_code = TimeCode(time, trainable=time_code == "trainable")
        self.query = nn.Linear(memory, memory)
        # No key or value bias: one cancels in the softmax, the other is the next layer's.
        self.key = nn.Parameter(torch.empty(heads, memory // heads, width))
        self.value = nn.Parameter(torch.empty(heads, width, memory // heads))
        for parameter in (self.key, self.value):
            nn.init.uniform_(parameter, -1.0 / math.sqrt(width), 1.0 / math.sqrt(width))
        self.norm = nn.LayerNorm(memory)
        self.hidden = nn.Linear(memory, memory)
        self.out = nn.Linear(memory, memory)
        self.node_projection = (
            nn.Linear(schema.node_features, memory, bias=False) if schema.node_features else None
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        """Memory, and the mailbox: mails, their times, and how many ever arrived.

        Times are kept as the 64 bits of the stream's own type, so that differences are exact.
        """
        return (
            Column("memory", (self.memory_width,)),
            Column("mail", (self.mails, self.mail_width), in_place=True),
            Column("mail_time", (self.mails,), torch.int64),
            Column("mail_count", (), torch.int64),
        )

    def encode(  # type: ignore[override]  # one tensor per column
        self,
        batch: PreparedBatch,
        memory_UD: Tensor,
        mail_NMX: Tensor,
        time_UM: Tensor,
        count_U: Tensor,
    ) -> Encoded:
        """Attend over each seed's mails."""
        seeds = batch.seeds
        assert seeds is not None
        if self.node_projection is not None:
            memory_UD = memory_UD + self.node_projection(batch.node_features)
        norm, hidden = self.norm, self.hidden
        weights = ops.LayerWeights(
            query=self.query.weight,
            query_bias=self.query.bias,
            query_time=self.query.weight.new_empty(self.memory_width, 0),
            key=self.key,
            value=self.value,
            # The normalisation's scale and shift, as part of the matrix behind it.
            merge_in=hidden.weight * norm.weight,
            merge_in_bias=torch.addmv(hidden.bias, hidden.weight, norm.bias),
            merge_out=self.out.weight,
            merge_out_bias=self.out.bias,
            time=self.time_code.weight,
            time_bias=self.time_code.bias,
        )
        hop = self._mails_as_neighbors(batch, time_UM, count_U, len(mail_NMX))
        dropout = self.dropout if self.training else 0.0
        rows_SD = ops.mailbox_layer(
            memory_UD, mail_NMX.flatten(0, 1), weights, hop, dropout, batch.key
        )
        return Encoded(rows_SD)

    def _mails_as_neighbors(
        self, batch: PreparedBatch, time_UM: Tensor, count_U: Tensor, num_nodes: int
    ) -> Hop:
        """The seeds' mails as rows of the table of all mails."""
        seeds = batch.seeds
        assert seeds is not None
        kind = torch.int32 if num_nodes * self.mails < 2**31 else torch.int64
        slot_M = torch.arange(self.mails, dtype=kind, device=seeds.row_S.device)
        node_S = batch.node_U.index_select(0, seeds.row_S).to(kind)
        mail_time_SM = time_UM.index_select(0, seeds.row_S).view(seeds.time_S.dtype)
        row_SM = node_S.unsqueeze(1) * self.mails + slot_M
        none = row_SM.new_empty(0)
        no_uses = Uses(none, none)  # mails are constants: no gradient is summed by their rows
        return Hop(
            self_S=seeds.row_S,
            neighbor_SK=row_SM,
            event_SK=torch.zeros_like(row_SM, dtype=torch.int32),
            delta_SK=(seeds.time_S.unsqueeze(1) - mail_time_SM).float(),
            count_S=count_U.clamp(max=self.mails).int().index_select(0, seeds.row_S),
            self_uses=seeds.row_uses,
            neighbor_uses=no_uses,
        )

    def state_writes(self, batch: PreparedBatch, encoded: Encoded) -> StateWrites:
        """The endpoints' embeddings become their memory; mail goes out."""
        writes, ends, delivery = batch.writes, batch.ends, batch.delivery
        if writes is None:
            return ()
        assert ends is not None
        assert delivery is not None
        seed_SD = encoded.seed_SD.detach()
        mail_VX = ops.delivered_mails(seed_SD, batch.root_R, batch.features, delivery)
        time_V = delivery.time_V.view(torch.int64)
        push = RingPush("mail_count", delivery.node_V, {"mail": mail_VX, "mail_time": time_V})
        return RowWrite("memory", writes.node_W, seed_SD.index_select(0, ends.seed_W)), push
