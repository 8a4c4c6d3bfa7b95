"""GraphMixer: the latest events through one MLP-mixer block, and a mean over a window of time.

Cong et al., "Do We Really Need Complicated Model Architectures for Temporal Networks?" (ICLR 2023).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from tidegraph.batches.prepare import History
from tidegraph.batches.prepared import Hop, PreparedBatch
from tidegraph.errors import SettingError
from tidegraph.events.core import Schema
from tidegraph.models.base import Encoded, TemporalModel, check_counts, check_dropout
from tidegraph.models.layers import TimeCode
from tidegraph.models.tokens import event_rows, take_tokens
from tidegraph.models.transformer import dropped, linear
from tidegraph.ops import segment_mean


class GraphMixer(TemporalModel):
    """GraphMixer.

    Link encoder (section 3.1): tokens [cos(w (t - t_j)) ; x_j] of the K latest events, newest
    first, zeros where there are fewer; a linear layer; H <- H + W_2 GELU(W_1 LN(H)) across tokens;
    H <- H + GELU(LN(H) W_3) W_4 across channels; the mean over all K tokens. The code's
    frequencies are fixed, w_j = a^(-(j - 1) / a) with a = sqrt(T), and never learned.

    Node encoder (section 3.2): the node's features plus the mean of the features of everyone it met
    in the window [t - T, t), once per event; the whole window, however many they are. Without node
    features there is nothing to encode and the encoder is left out.

    Args:
        schema: sizes of the data, `events.schema`.
        time: width of the time code.
        embedding: width of tokens and embeddings.
        neighbors: K, latest events.
        token_factor: width of the token MLP, times K.
        channel_factor: width of the channel MLP, times `embedding`.
        layers: mixer blocks.
        dropout: probability, in the mixer's hidden layers.
        node_window: T of the node encoder in the data's time units; none: the node's own
            features alone.
        inclusive: events at exactly the query time are history too.
        visibility: of neighbours: up to each "event", or only earlier batches ("batch").

    Raises:
        SettingError: a value out of range.

    >>> from tidegraph.events.core import Schema
    >>> GraphMixer(Schema(num_nodes=4, num_sources=4, bipartite=False)).history.neighbors
    (30,)
    """

    name: ClassVar[str] = "graphmixer"

    def __init__(
        self,
        schema: Schema,
        time: int = 100,
        embedding: int = 100,
        neighbors: int = 30,
        token_factor: float = 0.5,
        channel_factor: float = 4.0,
        layers: int = 1,
        dropout: float = 0.1,
        node_window: float | None = None,
        inclusive: bool = False,
        visibility: Literal["event", "batch"] = "event",
    ) -> None:
        super().__init__(schema, embedding)
        check_counts(time=time, neighbors=neighbors, layers=layers)
        for name, factor in (("token_factor", token_factor), ("channel_factor", channel_factor)):
            if not 0 < factor < float("inf"):
                raise SettingError(f"{name}={factor}: expected a number above 0")
        check_dropout(dropout)
        if node_window is not None and not 0 < node_window < float("inf"):
            raise SettingError(
                f"node_window={node_window}: expected a number of time units above 0, or none"
            )
        self.dropout = dropout
        self.history = History(
            neighbors=(neighbors,),
            inclusive=inclusive,
            visibility=visibility,
            memory=False,
            met_within=node_window if schema.node_features else None,
        )
        self.time_code = TimeCode(time, trainable=False)
        self.time_code.weight.data = frequencies(time)
        self.token_layer = nn.Linear(time + schema.event_features, embedding)
        tokens = max(1, int(token_factor * neighbors))
        channels = max(1, int(channel_factor * embedding))
        self.mixers = nn.ModuleList(
            MixerBlock(neighbors, embedding, tokens, channels, dropout) for _ in range(layers)
        )
        self.merge_layer = nn.Linear(embedding + schema.node_features, embedding)

    def encode(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Encoded:
        """Mix each seed's latest events, and merge with what the node encoder says."""
        hop = batch.hops[0]
        mixed_SKD = linear(self.token_layer, self.tokens(batch, hop))
        for number, mixer in enumerate(self.mixers):
            mixed_SKD = mixer(mixed_SKD, batch.key + 4 * number)
        parts = [mixed_SKD.mean(1)]
        if batch.node_features is not None:
            parts.append(self.nodes(batch, hop))
        return Encoded(linear(self.merge_layer, torch.cat(parts, dim=1)))

    def tokens(self, batch: PreparedBatch, hop: Hop) -> Tensor:
        """[S, K, T + F], newest first, zeros for events that there are not."""
        found = take_tokens(hop, hop.neighbor_SK.shape[1])
        code_SKT = self.time_code(found.delta_SK)
        code_SKT = code_SKT.masked_fill(~found.used_SK.unsqueeze(2), 0.0)
        feature_SKF = event_rows(batch, found.event_SK, found.used_SK, code_SKT)
        return torch.cat([code_SKT, feature_SKF], dim=2)

    def nodes(self, batch: PreparedBatch, hop: Hop) -> Tensor:
        """[S, G]: own features, plus the mean over the window."""
        assert batch.node_features is not None
        own_SG = batch.node_features[hop.self_S.long()]
        met = batch.met
        if met is None:
            return own_SG
        return own_SG + segment_mean(batch.node_features, met.neighbor_X, met.indptr_S1, met.uses)


class MixerBlock(nn.Module):
    """One block of an MLP-mixer: across tokens, then across channels, each with a residual.

    Args:
        tokens: K.
        channels: D.
        token_hidden, channel_hidden: widths of the two hidden layers.
        dropout: probability, after each layer.
    """

    def __init__(
        self, tokens: int, channels: int, token_hidden: int, channel_hidden: int, dropout: float
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.token_norm = nn.LayerNorm(channels)
        self.token_in = nn.Linear(tokens, token_hidden)
        self.token_out = nn.Linear(token_hidden, tokens)
        self.channel_norm = nn.LayerNorm(channels)
        self.channel_in = nn.Linear(channels, channel_hidden)
        self.channel_out = nn.Linear(channel_hidden, channels)

    def forward(self, token_SKD: Tensor, key: int | Tensor) -> Tensor:
        """[S, K, D]; `key` is the random stream of the dropout."""
        rate = self.dropout if self.training else 0.0
        normed_SDK = self.token_norm(token_SKD).transpose(1, 2)
        hidden = dropped(gelu(linear(self.token_in, normed_SDK)), rate, key)
        mixed_SDK = dropped(linear(self.token_out, hidden), rate, key + 1)
        token_SKD = token_SKD + mixed_SDK.transpose(1, 2)
        hidden = gelu(linear(self.channel_in, self.channel_norm(token_SKD)))
        hidden = dropped(hidden, rate, key + 2)
        return token_SKD + dropped(linear(self.channel_out, hidden), rate, key + 3)


def frequencies(width: int) -> Tensor:
    """w_j = a^(-(j - 1) / a) with a = sqrt(T): the paper's fixed time code."""
    root = float(width) ** 0.5
    exponent = -torch.arange(width, dtype=torch.float64) / root
    return torch.pow(torch.tensor(root, dtype=torch.float64), exponent).float()
