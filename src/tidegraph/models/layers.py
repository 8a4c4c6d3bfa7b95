"""Building blocks that models share: the time code, temporal attention, the memory cells.

Shape legend: S seeds, K slots, R table rows, D width, F event-feature width, T time-code width,
W = D + F + T, H heads, d = width per head.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from tidegraph import ops
from tidegraph.batches.prepared import Hop, Mail, PreparedBatch
from tidegraph.errors import SettingError
from tidegraph.ops.products import product


class TimeCode(nn.Module):
    """Phi(d) = cos(w d + b), w_j = 10^(-9 (j-1) / (T-1)), b = 0 at first (TGAT eq. 6, TGN).

    Args:
        width: T.
        trainable: learn w and b.
    """

    def __init__(self, width: int, trainable: bool = True) -> None:
        super().__init__()
        if torch.get_default_device().type == "meta":
            # A model of shapes alone: to compute them would load PyTorch's compiler, two seconds.
            weight = torch.empty(width)
        else:
            weight = (10.0 ** torch.linspace(0, -9, width, dtype=torch.float64)).float()
        self.weight = nn.Parameter(weight, requires_grad=trainable)
        self.bias = nn.Parameter(torch.zeros(width), requires_grad=trainable)

    def forward(self, delta: Tensor) -> Tensor:
        """[..., T] from time differences [...]."""
        return ops.time_code(delta, self.weight, self.bias)


class AttentionLayer(nn.Module):
    """One temporal attention layer and its merge (TGAT eq. 5-8, TGN eq. 9-11).

    q = W_q [h ; Phi(0)]; keys and values from [h_u ; x ; Phi(t - tau)] without bias (a key bias
    cancels in the softmax); z = W_2 relu(W_1 [r ; h]) with r the heads' sums, zero where a seed
    has no neighbours.

    Args:
        width: D of the rows attended to (and of the seeds' own rows).
        features: F.
        time: T.
        embedding: output width; divisible by `heads`.
        heads: H.
        dropout: probability on attention weights and on the merged hidden layer.
    """

    def __init__(
        self, width: int, features: int, time: int, embedding: int, heads: int, dropout: float
    ) -> None:
        super().__init__()
        if embedding % heads:
            raise SettingError(f"embedding={embedding} is not divisible by heads={heads}")
        self.heads, self.dropout = heads, dropout
        head_width = embedding // heads
        self.query = nn.Linear(width, embedding)
        self.query_time = nn.Parameter(torch.empty(embedding, time))
        self.key = nn.Parameter(torch.empty(heads, head_width, width + features + time))
        self.value = nn.Parameter(torch.empty(heads, width + features + time, head_width))
        self.merge_in = nn.Linear(embedding + width, embedding)
        self.merge_out = nn.Linear(embedding, embedding)
        for parameter in (self.query_time, self.key, self.value):
            bound = 1.0 / math.sqrt(width + features + time)
            nn.init.uniform_(parameter, -bound, bound)

    def forward(
        self,
        table_RD: Tensor,
        hop: Hop,
        features_EF: Tensor,
        time_code: TimeCode,
        key: int | Tensor,
        *,
        defer: bool = False,
    ) -> Tensor | ops.Deferred:
        """Embeddings [S, embedding] of the hop's seeds from the table below it.

        Args:
            key: random stream of this layer's dropout in this batch.
            defer: while scoring, leave the last product to the caller.
        """
        weights = ops.LayerWeights(
            query=self.query.weight,
            query_bias=self.query.bias,
            query_time=self.query_time,
            key=self.key,
            value=self.value,
            merge_in=self.merge_in.weight,
            merge_in_bias=self.merge_in.bias,
            merge_out=self.merge_out.weight,
            merge_out_bias=self.merge_out.bias,
            time=time_code.weight,
            time_bias=time_code.bias,
        )
        dropout = self.dropout if self.training else 0.0
        layer = ops.attention_rows if defer else ops.attention_layer
        return layer(table_RD, weights, hop, features_EF, dropout, key)


def attend(
    layers: nn.ModuleList, table_RD: Tensor, batch: PreparedBatch, time_code: TimeCode
) -> Tensor | ops.Deferred:
    """Layer over layer, the innermost first; the last one may leave its last product undone."""
    rows: Tensor | ops.Deferred = table_RD
    for depth, (layer, hop) in enumerate(zip(layers, batch.hops, strict=True)):
        last = depth + 1 == len(layers) and isinstance(layer, AttentionLayer)
        options = {"defer": True} if last else {}
        rows = layer(rows, hop, batch.features, time_code, batch.key + 2 * depth, **options)
    return rows


class SumLayer(nn.Module):
    """Neighbours summed instead of attended to (TGN, section 3.1, "temporal graph sum").

    z = W_2 [h ; relu(W_1 sum_j [h_j ; x_j ; Phi(t - t_j)])]: the sum is taken before the
    projection, which is the same and costs a neighbour no product.

    Args:
        width: D of the rows summed (and of the seeds' own rows).
        features: F.
        time: T.
        embedding: output width.
    """

    def __init__(self, width: int, features: int, time: int, embedding: int) -> None:
        super().__init__()
        self.row_width = width + features + time
        self.neighbor = nn.Linear(self.row_width, embedding, bias=False)
        self.merge = nn.Linear(width + embedding, embedding)

    def forward(
        self, table_RD: Tensor, hop: Hop, features_EF: Tensor, time_code: TimeCode, key: int
    ) -> Tensor:
        """As `AttentionLayer`; nothing is dropped, so `key` has no effect."""
        # Equal scores give the mean.
        query_1SW = table_RD.new_zeros(1, len(hop.self_S), self.row_width)
        mean_SW = ops.temporal_attention(
            query_1SW, table_RD, hop, features_EF, time_code.weight, time_code.bias
        )[0]
        sum_SW = mean_SW * hop.count_S.to(mean_SW.dtype).unsqueeze(1)
        own_SD = ops.gather_rows(table_RD, hop.self_S, hop.self_uses)
        around_SE = torch.relu(product(sum_SW, self.neighbor.weight.t()))
        joined_SJ = torch.cat([own_SD, around_SE], dim=1)
        return product(joined_SJ, self.merge.weight.t(), self.merge.bias)


class MemoryCell(nn.Module):
    """The memory update over pending mail (TGN eq. 1-4).

    Args:
        cell: "gru" or "rnn".
        width: D of memory and of mail.
        features: F.
        time: T.
    """

    def __init__(self, cell: str, width: int, features: int, time: int) -> None:
        super().__init__()
        if cell not in ("gru", "rnn"):
            raise SettingError(f"memory cell {cell!r}: expected 'gru' or 'rnn'")
        self.cell = cell
        gates = 3 * width if cell == "gru" else width
        self.weight_ih = nn.Parameter(torch.empty(gates, 2 * width + features + time))
        self.weight_hh = nn.Parameter(torch.empty(gates, width))
        self.bias_ih = nn.Parameter(torch.empty(gates))
        self.bias_hh = nn.Parameter(torch.empty(gates))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1.0 / math.sqrt(width), 1.0 / math.sqrt(width))

    def forward(
        self,
        memory_UD: Tensor,
        mail_UD: Tensor,
        mail: Mail,
        features_EF: Tensor,
        time_code: TimeCode,
    ) -> Tensor:
        """[U, D] updated memories."""
        return ops.memory_update(
            self.cell,
            memory_UD,
            mail_UD,
            mail,
            features_EF,
            time_code.weight,
            time_code.bias,
            self.weight_ih,
            self.weight_hh,
            self.bias_ih,
            self.bias_hh,
        )


class TimeProjection(nn.Module):
    """z(t) = (1 + b + w dt') o m: where a memory drifts to as time passes (JODIE eq. 3, "time").

    dt' is the time since the node's last event in standard deviations of the training part's gaps
    (one scale for each side of a bipartite stream). Gaps have long tails, and how long a node has
    been away says much about it: `most` of them is only there to keep numbers finite.

    Args:
        width: D.
        first_target: first node of the second side; None where sources and targets are alike.
        start: "zero": no b, and w = 0 at first, so that an embedding begins as the memory itself;
            "normal": w and b drawn from a normal distribution, as in JODIE's published code.
    """

    most = 1e4

    gap_mean: Tensor
    gap_scale: Tensor

    def __init__(self, width: int, first_target: int | None, start: str = "zero") -> None:
        super().__init__()
        if start not in ("zero", "normal"):
            raise SettingError(f"projection {start!r}: expected 'zero' or 'normal'")
        self.first_target = first_target
        drawn = start == "normal"
        self.weight = nn.Parameter(torch.randn(width) if drawn else torch.zeros(width))
        self.offset = nn.Parameter(torch.randn(width)) if drawn else None
        self.register_buffer("gap_mean", torch.zeros(2))
        self.register_buffer("gap_scale", torch.ones(2))

    def fit(self, node_X: np.ndarray, time_X: np.ndarray) -> None:
        """Take mean and deviation of the times between two consecutive events of a node.

        Args:
            node_X, time_X: the ends of the training events.
        """
        order_X = np.lexsort((time_X, node_X))
        node_X, time_X = node_X[order_X], time_X[order_X]
        same = node_X[1:] == node_X[:-1]
        gap = np.diff(time_X).astype(np.float64)[same]
        second = np.zeros(len(gap), bool)
        if self.first_target is not None:
            second = node_X[1:][same] >= self.first_target
        for side, chosen in enumerate((gap[~second], gap[second])):
            if len(chosen):
                self.gap_mean[side] = float(chosen.mean())
                # All gaps alike: their size is the only scale there is.
                scale = float(chosen.std()) or float(chosen.mean()) or 1.0
                self.gap_scale[side] = scale

    def forward(self, memory_UD: Tensor, batch: PreparedBatch) -> Tensor:
        """[S, D] from the memories of the batch's nodes."""
        seeds = batch.seeds
        assert seeds is not None
        time_S = ops.normalized_gaps(
            seeds, batch.node_U, self.first_target, self.gap_mean, self.gap_scale, self.most
        )
        return ops.time_projection(memory_UD, seeds, time_S, self.weight, self.offset)
