"""DyGFormer: a transformer over the first-hop histories of both nodes of a pair.

Yu et al., "Towards Better Dynamic Graph Learning: New Architecture and Unified Library" (NeurIPS
2023). Padding is masked, so a score does not depend on which other pairs are in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding as looked_up

from tidegraph.batches.prepare import History
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.errors import SettingError
from tidegraph.events.core import Schema
from tidegraph.models.base import check_counts, check_dropout
from tidegraph.models.layers import TimeCode
from tidegraph.models.pairs import Pairing, PairModel, counts_of
from tidegraph.models.tokens import event_rows, node_rows, sequence_of
from tidegraph.models.transformer import AttentionBlock, linear


@dataclass(frozen=True, eq=False)
class _Alone:
    """What belongs to a seed: its patches without co-occurrence, and which tokens are real."""

    patch_SNC: Tensor
    used_SJ: Tensor


class DyGFormer(PairModel):
    """DyGFormer.

    A node's sequence is the node itself, then its latest events, newest first (section 3.1). A
    token has node features, event features, Phi(t - tau), and how often its node occurs in both
    sequences: f(count in its own) + f(count in the partner's) with f two linear layers (eq. 2-4).
    Every `patch` tokens are one patch (eq. 5), each channel is projected to `channel` numbers
    (eq. 6), and the patches of both sequences, side by side, pass pre-norm transformer layers
    (eq. 7-9). An embedding is the projected mean over a side's patches (eq. 10).

    Differences from the authors' code: patches without any real token are masked instead of read
    as zeros, a channel that the data does not have (no event or node features) is left out instead
    of filled with zeros, and attention weights are not dropped (what the layers add to the residual
    is).

    `embed` gives a node's embedding beside itself: its own sequence on both sides.

    Args:
        schema: sizes of the data, `events.schema`.
        time: width of the time code.
        channel: width of each channel in a patch.
        embedding: width of the embeddings.
        length: tokens of a sequence, the node itself included.
        patch: tokens per patch.
        layers: transformer layers.
        heads: attention heads.
        dropout: probability, in the transformer layers.
        time_code: "fixed" frequencies, or "trainable" as in the paper.
        inclusive: events at exactly the query time are history too.
        visibility: of neighbours: up to each "event", or only earlier batches ("batch").

    Raises:
        SettingError: a value out of range.

    >>> from tidegraph.events.core import Schema
    >>> DyGFormer(Schema(num_nodes=4, num_sources=4, bipartite=False)).history.neighbors
    (31,)
    """

    name: ClassVar[str] = "dygformer"

    def __init__(
        self,
        schema: Schema,
        time: int = 100,
        channel: int = 50,
        embedding: int = 100,
        length: int = 32,
        patch: int = 1,
        layers: int = 2,
        heads: int = 2,
        dropout: float = 0.1,
        time_code: Literal["fixed", "trainable"] = "fixed",
        inclusive: bool = False,
        visibility: Literal["event", "batch"] = "event",
    ) -> None:
        super().__init__(schema, embedding)
        check_counts(time=time, channel=channel, patch=patch, layers=layers, heads=heads)
        if length < 2:
            raise SettingError(f"length={length}: expected 2 or more, the node and an event")
        check_dropout(dropout)
        self.patch, self.dropout = patch, dropout
        self.history = History(
            neighbors=(length - 1,),
            inclusive=inclusive,
            visibility=visibility,
            memory=False,
            shared=True,
        )
        self.time_code = TimeCode(time, trainable=time_code == "trainable")
        widths = [w for w in (schema.node_features, schema.event_features, time) if w]
        self.channels = nn.ModuleList(nn.Linear(patch * width, channel) for width in widths)
        self.count_in = nn.Linear(1, channel)
        self.count_out = nn.Linear(channel, channel)
        self.count_channel = nn.Linear(patch * channel, channel)
        width = channel * (len(widths) + 1)
        self.blocks = nn.ModuleList(
            AttentionBlock(width, heads, 4 * width, dropout, norm_first=True) for _ in range(layers)
        )
        self.result = nn.Linear(width, embedding)

    def alone(self, batch: PreparedBatch) -> _Alone:
        """Patches of node features, event features and time codes."""
        like, found = self.result.weight, sequence_of(batch)
        used_SJ = found.used_SJ
        code_SJT = self.time_code(found.delta_SJ).masked_fill(~used_SJ.unsqueeze(2), 0.0)
        parts = [code_SJT]
        if batch.features.shape[1]:
            parts.insert(0, event_rows(batch, found.event_SJ, found.of_event_SJ, like))
        if batch.node_features is not None:
            node_SJG = node_rows(batch, like)[found.row_SJ].masked_fill(~used_SJ.unsqueeze(2), 0.0)
            parts.insert(0, node_SJG)
        patches = [
            layer(in_patches(part, self.patch))
            for layer, part in zip(self.channels, parts, strict=True)
        ]
        return _Alone(torch.cat(patches, dim=2), used_SJ)

    def beside(self, batch: PreparedBatch, alone: _Alone, pairing: Pairing) -> Tensor:
        """[P, 2, D]."""
        assert batch.shared is not None
        J = alone.used_SJ.shape[1]
        shared = batch.shared
        own_P2J, other_P2J = counts_of(shared.own_SJ[:, :J], shared.across_P2J[..., :J], pairing)
        seed_P2 = torch.stack([pairing.first_P, pairing.second_P], dim=1)
        used_P2J = alone.used_SJ[seed_P2]
        # A count is at most the length of a sequence: f is computed once for each.
        table_CD = self._counts(J + 1)
        count_P2JD = looked_up(own_P2J, table_CD) + looked_up(other_P2J, table_CD)
        count_P2JD = count_P2JD.masked_fill(~used_P2J.unsqueeze(3), 0.0)
        count_XND = linear(self.count_channel, in_patches(count_P2JD.flatten(0, 1), self.patch))
        P, N = len(seed_P2), count_XND.shape[1]
        patch_XNC = alone.patch_SNC.index_select(0, seed_P2.flatten())
        patch_XNW = torch.cat([patch_XNC, count_XND], dim=2)
        used_P2N = used_P2J[..., :: self.patch]  # real tokens come first
        row_PYW, used_PY = patch_XNW.view(P, 2 * N, -1), used_P2N.flatten(1, 2)
        for number, block in enumerate(self.blocks):
            row_PYW = block(row_PYW, row_PYW, used_PY, pairing.key + 4 * number)
        row_P2NW = row_PYW.view(P, 2, N, -1).masked_fill(~used_P2N.unsqueeze(3), 0.0)
        mean_P2W = row_P2NW.sum(2) / used_P2N.sum(2, keepdim=True)
        return linear(self.result, mean_P2W)

    def _counts(self, largest: int) -> Tensor:
        """[largest + 1, channel], f of every possible count."""
        count_C1 = torch.arange(largest + 1, device=self.count_in.weight.device).unsqueeze(1)
        hidden = torch.relu(linear(self.count_in, count_C1.to(self.count_in.weight.dtype)))
        return linear(self.count_out, hidden)


def in_patches(token_SJI: Tensor, patch: int) -> Tensor:
    """[S, N, patch * I]: every `patch` tokens side by side, zeros after the last."""
    S, J, width = token_SJI.shape
    missing = -J % patch
    if missing:
        token_SJI = torch.cat([token_SJI, token_SJI.new_zeros(S, missing, width)], dim=1)
    return token_SJI.reshape(S, -1, patch * width)
