"""One temporal attention layer as one operator: queries, attention, values and merge.

Written as separate modules, a layer is some twenty small operations forward and thirty backward,
whose dispatch costs as much as the attention itself at usual batch sizes. Here the forward and the
backward pass are written out by hand over the same kernels; `composed` is the same layer in plain
autograd, for other devices and for tests.

Shape legend: S seeds, K slots, R table rows, D table width, F event-feature width, T time-code
width, W = D + F + T, H heads, d width per head, E = H d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tidegraph.batches.prepared import Hop
from tidegraph.ops import functions, layer_kernels
from tidegraph.ops.deferred import Deferred
from tidegraph.ops.dropout import dropout_arguments, keep_mask
from tidegraph.ops.feature_rows import feature_array
from tidegraph.ops.products import batched_product, in_float32, product, scores_exactly
from tidegraph.ops.shared_layer import shared_layer
from tidegraph.ops.shared_query import shared_query_layer


@dataclass(frozen=True)
class LayerWeights:
    """Parameters of an attention layer.

    Attributes:
        query, query_bias: [E, D], [E].
        query_time: [E, T].
        key: [H, d, W].
        value: [H, W, d].
        merge_in, merge_in_bias: [E, E + D], [E].
        merge_out, merge_out_bias: [E, E], [E].
        time, time_bias: [T], the time code's parameters.
    """

    query: Tensor
    query_bias: Tensor
    query_time: Tensor
    key: Tensor
    value: Tensor
    merge_in: Tensor
    merge_in_bias: Tensor
    merge_out: Tensor
    merge_out_bias: Tensor
    time: Tensor
    time_bias: Tensor


def attention_layer(
    table_RD: Tensor,
    weights: LayerWeights,
    hop: Hop,
    features_EF: Tensor,
    dropout: float = 0.0,
    key: int | Tensor = 0,
) -> Tensor:
    """Embeddings of a hop's seeds (TGAT eq. 5-8, TGN eq. 9-11).

    q = W_q [h ; Phi(0)]; keys and values from [h_u ; x ; Phi(t - tau)] without bias;
    z = W_2 relu(W_1 [r ; h]), r the heads' weighted sums, zero where a seed has no neighbours.

    Args:
        table_RD: [R, D], rows of the layer below.
        weights: parameters.
        hop: neighbourhoods.
        features_EF: [E, F] event features.
        dropout: probability, on attention weights and on the hidden layer of the merge; 0 for none.
        key: random stream of the dropout masks; a tensor where the step is captured or compiled.

    Returns:
        [S, E].
    """
    rows = attention_rows(table_RD, weights, hop, features_EF, dropout, key)
    return rows.result() if isinstance(rows, Deferred) else rows


def attention_rows(
    table_RD: Tensor,
    weights: LayerWeights,
    hop: Hop,
    features_EF: Tensor,
    dropout: float = 0.0,
    key: int | Tensor = 0,
) -> Tensor | Deferred:
    """As `attention_layer`; while scoring, the last product may be left to the caller."""
    if not functions._fast(table_RD) or isinstance(key, Tensor):
        return composed(table_RD, weights, hop, features_EF, dropout, key)
    # Never by the size of the batch: each path has its own rounding.
    if not dropout and in_float32(table_RD) and scores_exactly(table_RD):
        return shared_layer(table_RD, weights, hop, features_EF)
    if not table_RD.shape[1] and not weights.time.requires_grad:
        return shared_query_layer(weights, hop, features_EF, dropout, key)
    if not in_float32(table_RD):
        return composed(table_RD, weights, hop, features_EF, dropout, key)
    key -= (key & 1 << 63) << 1  # signed: PyTorch's profiler records int64 arguments
    # One by one: autograd sees tensors only as arguments of their own.
    result: Tensor = _AttentionLayer.apply(  # type: ignore[no-untyped-call]
        table_RD, *vars(weights).values(), hop, features_EF, dropout, key
    )
    return result


def composed(
    table_RD: Tensor,
    weights: LayerWeights,
    hop: Hop,
    features_EF: Tensor,
    dropout: float,
    key: int | Tensor,
) -> Tensor:
    """`attention_layer` from single operators, differentiated by autograd."""
    w = weights
    S, K = hop.neighbor_SK.shape
    H, d, _ = w.key.shape
    own_SD = functions.gather_rows(table_RD, hop.self_S, hop.self_uses)
    # Phi(0) = cos(b) is the same for every seed: its projection is a bias.
    bias_E = w.query_bias + w.query_time @ torch.cos(w.time_bias)
    query_HSd = product(own_SD, w.query.t(), bias_E).view(S, H, d).transpose(0, 1)
    query_HSW = batched_product(query_HSd, w.key / math.sqrt(d))
    keep_SKH = keep_mask(key, (S, K, H), dropout, table_RD) if dropout else None
    sum_HSW = functions.temporal_attention(
        query_HSW, table_RD, hop, features_EF, w.time, w.time_bias, keep_SKH
    )
    result_SE = batched_product(sum_HSW, w.value).transpose(0, 1).reshape(S, -1)
    joined_SJ = torch.cat([result_SE, own_SD], dim=1)
    hidden_SE = torch.relu(product(joined_SJ, w.merge_in.t(), w.merge_in_bias))
    if dropout:
        hidden_SE = hidden_SE * keep_mask(key + 1, tuple(hidden_SE.shape), dropout, table_RD)
    return product(hidden_SE, w.merge_out.t(), w.merge_out_bias)


class _AttentionLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        hop: Hop
        *tensors, hop, features_EF, dropout, key = arguments
        table_RD, *parameters = (tensor.detach().contiguous() for tensor in tensors)
        w = LayerWeights(*parameters)
        S, K = hop.neighbor_SK.shape
        H, d, W = w.key.shape
        E, new = H * d, table_RD.new_empty
        keep_SKH = new((S, K, H) if dropout else (0, 0, 0))
        attention_SKH, query_SE, query_HSW = new(S, K, H), new(S, E), new(H, S, W)
        sum_HSW, hidden_SE = new(H, S, W), new(S, E)
        out_SE: Tensor = new(S, E)
        joined_SJ = new(S, E + table_RD.shape[1])  # [heads' results ; own rows]
        layer_kernels.layer_forward(
            table_RD.numpy(), hop.self_S.numpy(), *_hop_arrays(hop, features_EF, w),
            w.query.numpy(), w.query_bias.numpy(), w.query_time.numpy(), w.key.numpy(),
            w.value.numpy(), w.merge_in.numpy(), w.merge_in_bias.numpy(), w.merge_out.numpy(),
            w.merge_out_bias.numpy(), *dropout_arguments(key, dropout), _scale(d),
            keep_SKH.numpy(), attention_SKH.numpy(), query_SE.numpy(), query_HSW.numpy(),
            sum_HSW.numpy(), joined_SJ.numpy(), hidden_SE.numpy(), out_SE.numpy(),
        )  # fmt: skip
        ctx.save_for_backward(
            table_RD, *parameters, joined_SJ, query_SE, query_HSW, attention_SKH, sum_HSW, hidden_SE
        )
        ctx.hop, ctx.features_EF, ctx.keep_SKH, ctx.dropout = hop, features_EF, keep_SKH, dropout
        return out_SE

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (table_RD, *parameters, joined_SJ, query_SE, query_HSW, attention_SKH, sum_HSW,
         hidden_SE) = ctx.saved_tensors  # fmt: skip
        w, hop = LayerWeights(*parameters), ctx.hop
        train_table, train_time = ctx.needs_input_grad[0], ctx.needs_input_grad[10]
        grad_SE = grads[0].contiguous()
        H, d, _ = w.key.shape
        E, S = H * d, len(grad_SE)
        like = torch.empty_like
        grad_hidden_SE, grad_joined_SJ, grad_query_SE = (
            like(grad_SE),
            like(joined_SJ),
            like(grad_SE),
        )
        grad_sum_HSW, grad_query_HSW = like(sum_HSW), like(sum_HSW)
        time_width = len(w.time) if train_time else 0
        grad_time_BT = functions.partial_rows(S, time_width)
        grad_time_bias_BT = functions.partial_rows(S, time_width)
        grad_table_RD = like(table_RD) if train_table else table_RD[:0]
        layer_kernels.layer_backward(
            grad_SE.numpy(), table_RD.numpy(), *_hop_arrays(hop, ctx.features_EF, w),
            w.query.numpy(), w.key.numpy(), w.value.numpy(), w.merge_in.numpy(),
            w.merge_out.numpy(), ctx.keep_SKH.numpy(), attention_SKH.numpy(), query_HSW.numpy(),
            hidden_SE.numpy(), np.float32(1.0 / (1.0 - ctx.dropout)), _scale(d),
            hop.neighbor_uses.indptr_R1.numpy(), hop.neighbor_uses.position_M.numpy(),
            hop.self_uses.indptr_R1.numpy(), hop.self_uses.position_M.numpy(),
            grad_hidden_SE.numpy(), grad_joined_SJ.numpy(), grad_sum_HSW.numpy(),
            grad_query_HSW.numpy(), grad_query_SE.numpy(), grad_time_BT.numpy(),
            grad_time_bias_BT.numpy(), grad_table_RD.numpy(),
        )  # fmt: skip
        grad_result_HSd = grad_joined_SJ[:, :E].view(S, H, d).transpose(0, 1)
        query_HdS = query_SE.view(S, H, d).permute(1, 2, 0)
        grad_query_bias = grad_query_SE.sum(0)
        grad_time, grad_time_bias = None, None
        if train_time:
            grad_time = grad_time_BT.sum(0).float()
            grad_time_bias = grad_time_bias_BT.sum(0).float() - torch.sin(w.time_bias) * (
                w.query_time.t() @ grad_query_bias
            )
        return (
            grad_table_RD if train_table else None,
            torch.mm(grad_query_SE.t(), joined_SJ[:, E:]), grad_query_bias,
            torch.outer(grad_query_bias, torch.cos(w.time_bias)),
            torch.bmm(query_HdS, grad_query_HSW),
            torch.bmm(sum_HSW.transpose(1, 2), grad_result_HSd),
            torch.mm(grad_hidden_SE.t(), joined_SJ), grad_hidden_SE.sum(0),
            torch.mm(grad_SE.t(), hidden_SE), grad_SE.sum(0),
            grad_time, grad_time_bias, None, None, None, None,
        )  # fmt: skip


def _hop_arrays(hop: Hop, features_EF: Tensor, w: LayerWeights) -> tuple[np.ndarray, ...]:
    """What the attention kernels read of a hop and of what its slots name, in their order."""
    return (
        hop.neighbor_SK.numpy(), hop.event_SK.numpy(), hop.delta_SK.numpy(), hop.count_S.numpy(),
        feature_array(features_EF), w.time.numpy(), w.time_bias.numpy(),
    )  # fmt: skip


def _scale(width: int) -> np.float32:
    return np.float32(1.0 / math.sqrt(width))
