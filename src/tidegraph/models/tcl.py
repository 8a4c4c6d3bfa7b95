"""TCL: a transformer in two streams, one per node of a pair, that attend to each other.

Wang et al., "TCL: Transformer-based Dynamic Graph Modelling via Contrastive Learning" (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from tidegraph.batches.prepare import History
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.events.core import Schema
from tidegraph.models.base import check_counts, check_dropout
from tidegraph.models.layers import TimeCode
from tidegraph.models.pairs import Pairing, PairModel
from tidegraph.models.tokens import event_rows, node_rows, sequence_of
from tidegraph.models.transformer import AttentionBlock, linear


@dataclass(frozen=True, eq=False)
class _Alone:
    """A seed's tokens after the first layer's self-attention, and which of them are real."""

    token_SJD: Tensor
    used_SJ: Tensor


class TCL(PairModel):
    """TCL.

    A node's sequence is the node itself, then its latest events, newest first. A token is the sum
    of projected node features, event features and Phi(t - tau) and of a vector for its place in the
    sequence (the paper's depth encoding, over first-hop histories as in the field's benchmark
    library). Each layer lets a side's tokens attend to each other, then to the partner's tokens;
    both sides share weights. Blocks normalise after their residuals. A node's embedding is its own
    token at the end. Padding is masked.

    Attention weights are not dropped, what the layers add to the residual is. Trained by the link
    loss here, like every other model, in place of the paper's contrastive one.

    `embed` gives a node's embedding beside itself: its own sequence on both sides.

    Args:
        schema: sizes of the data, `events.schema`.
        time: width of the time code.
        embedding: width of tokens and embeddings.
        neighbors: latest events in a sequence.
        layers: pairs of self-attention and cross-attention.
        heads: attention heads.
        dropout: probability, in the transformer layers.
        time_code: "fixed" frequencies, or "trainable".
        inclusive: events at exactly the query time are history too.
        visibility: of neighbours: up to each "event", or only earlier batches ("batch").

    Raises:
        SettingError: a value out of range.

    >>> from tidegraph.events.core import Schema
    >>> TCL(Schema(num_nodes=4, num_sources=4, bipartite=False)).history.neighbors
    (20,)
    """

    name: ClassVar[str] = "tcl"

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
        inclusive: bool = False,
        visibility: Literal["event", "batch"] = "event",
    ) -> None:
        super().__init__(schema, embedding)
        check_counts(time=time, neighbors=neighbors, layers=layers, heads=heads)
        check_dropout(dropout)
        self.history = History(
            neighbors=(neighbors,), inclusive=inclusive, visibility=visibility, memory=False
        )
        self.time_code = TimeCode(time, trainable=time_code == "trainable")
        widths = schema.node_features + schema.event_features + time
        self.token_layer = nn.Linear(widths, embedding)
        self.place = nn.Embedding(neighbors + 1, embedding)
        nn.init.normal_(self.place.weight, std=0.1)
        blocks = [
            AttentionBlock(embedding, heads, 4 * embedding, dropout, norm_first=False)
            for _ in range(2 * layers)
        ]
        self.self_blocks, self.cross_blocks = (
            nn.ModuleList(blocks[::2]),
            nn.ModuleList(blocks[1::2]),
        )
        self.result = nn.Linear(embedding, embedding)

    def alone(self, batch: PreparedBatch) -> _Alone:
        """Tokens, after attending to each other once: that far a seed has no partner."""
        like, found = self.result.weight, sequence_of(batch)
        used_SJ = found.used_SJ
        part_SJI = torch.cat(
            [
                node_rows(batch, like)[found.row_SJ],
                event_rows(batch, found.event_SJ, found.of_event_SJ, like),
                self.time_code(found.delta_SJ),
            ],
            dim=2,
        )
        token_SJD = linear(self.token_layer, part_SJI) + self.place.weight[: used_SJ.shape[1]]
        token_SJD = self.self_blocks[0](token_SJD, token_SJD, used_SJ, batch.key)
        return _Alone(token_SJD, used_SJ)

    def beside(self, batch: PreparedBatch, alone: _Alone, pairing: Pairing) -> Tensor:
        """[P, 2, D]."""
        P, key = len(pairing.first_P), pairing.key + 4
        # Both sides are rows of one tensor: first sides, then second sides.
        seed_X = torch.cat([pairing.first_P, pairing.second_P])
        side_XJD = alone.token_SJD.index_select(0, seed_X)
        used_XJ = alone.used_SJ.index_select(0, seed_X)
        partner_used_XJ = used_XJ.roll(P, 0)
        for number, cross in enumerate(self.cross_blocks):
            if number:
                side_XJD = self.self_blocks[number](side_XJD, side_XJD, used_XJ, key)
            last = number == len(self.cross_blocks) - 1
            asking = side_XJD[:, :1] if last else side_XJD  # only the node's own token is read
            side_XJD = cross(asking, side_XJD.roll(P, 0), partner_used_XJ, key + 4)
            key += 8
        own_XD = linear(self.result, side_XJD[:, 0])
        return torch.stack([own_XD[:P], own_XD[P:]], dim=1)
