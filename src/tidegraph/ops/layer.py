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

import torch
from torch import Tensor

from tidegraph.batches.prepared import Hop
from tidegraph.ops import attention_kernels, functions
from tidegraph.ops.deferred import Deferred
from tidegraph.ops.dropout import keep_mask, relu_dropout_, relu_slope_
from tidegraph.ops.products import batched_product, precision, product, scores_exactly
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
    if not dropout and precision() == "fp32" and scores_exactly(table_RD):
        return shared_layer(table_RD, weights, hop, features_EF)
    if not table_RD.shape[1] and not weights.time.requires_grad:
        return shared_query_layer(weights, hop, features_EF, dropout, key)
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
        *tensors, hop, features_EF, dropout, key = arguments
        table_RD, *parameters = tensors
        w = LayerWeights(*parameters)
        table_RD = table_RD.detach().contiguous()
        time_T, time_bias_T = w.time.detach(), w.time_bias.detach()
        S, K = hop.neighbor_SK.shape
        H, d, _ = w.key.shape
        E = H * d
        joined_SJ = table_RD.new_empty(S, E + table_RD.shape[1])  # [heads' results ; own rows]
        own_SD = joined_SJ[:, E:]
        attention_kernels.gather_into(table_RD.numpy(), hop.self_S.numpy(), own_SD.numpy())
        bias_E = w.query_bias + w.query_time @ torch.cos(w.time_bias)
        query_SE = product(own_SD, w.query.t(), bias_E)
        query_HSd = query_SE.view(S, H, d).transpose(0, 1)
        query_HSW = batched_product(query_HSd, w.key / math.sqrt(d))
        keep_SKH = keep_mask(key, (S, K, H) if dropout else (0, 0, 0), dropout, table_RD)
        sum_HSW, attention_SKH = functions.attend(
            query_HSW, table_RD, time_T, time_bias_T, hop, features_EF, keep_SKH
        )
        for h in range(H):
            product(sum_HSW[h], w.value[h], out=joined_SJ[:, h * d : (h + 1) * d])
        hidden_SE = product(joined_SJ, w.merge_in.t(), w.merge_in_bias)
        relu_dropout_(hidden_SE, key + 1, dropout)
        ctx.save_for_backward(
            table_RD, *parameters, joined_SJ, query_SE, query_HSW, attention_SKH, sum_HSW, hidden_SE
        )
        ctx.hop, ctx.features_EF, ctx.keep_SKH, ctx.dropout = hop, features_EF, keep_SKH, dropout
        return product(hidden_SE, w.merge_out.t(), w.merge_out_bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (table_RD, *parameters, joined_SJ, query_SE, query_HSW, attention_SKH, sum_HSW,
         hidden_SE) = ctx.saved_tensors  # fmt: skip
        w, hop = LayerWeights(*parameters), ctx.hop
        train_table, train_time = ctx.needs_input_grad[0], ctx.needs_input_grad[10]
        grad_SE = grads[0].contiguous()
        H, d, _ = w.key.shape
        E, scale = H * d, 1.0 / math.sqrt(d)

        grad_merge_out = product(grad_SE.t(), hidden_SE)
        grad_hidden_SE = product(grad_SE, w.merge_out)
        relu_slope_(grad_hidden_SE, hidden_SE, 1.0 / (1.0 - ctx.dropout))
        grad_merge_in = product(grad_hidden_SE.t(), joined_SJ)
        grad_joined_SJ = product(grad_hidden_SE, w.merge_in)

        grad_result_HSd = grad_joined_SJ[:, :E].view(-1, H, d).transpose(0, 1)
        grad_value = batched_product(sum_HSW.transpose(1, 2), grad_result_HSd)
        grad_sum_HSW = batched_product(grad_result_HSd, w.value.transpose(1, 2))
        grad = functions.attend_backward(
            query_HSW, table_RD, w.time.detach(), w.time_bias.detach(), hop, ctx.features_EF,
            ctx.keep_SKH, attention_SKH, grad_sum_HSW, train_table=train_table,
            train_time=train_time,
        )  # fmt: skip
        query_HSd = query_SE.view(-1, H, d).transpose(0, 1)
        grad_key = batched_product(query_HSd.transpose(1, 2), grad.query_HSW).mul_(scale)
        grad_query_SE = torch.empty_like(query_SE)
        key_HWd = (w.key * scale).transpose(1, 2)
        for h in range(H):
            out = grad_query_SE[:, h * d : (h + 1) * d]
            product(grad.query_HSW[h], key_HWd[h], out=out)

        own_SD, grad_own_SD = joined_SJ[:, E:], grad_joined_SJ[:, E:]
        grad_query = product(grad_query_SE.t(), own_SD)
        grad_query_bias = grad_query_SE.sum(0)
        if train_table:
            assert grad.table_RD is not None
            grad_own_SD = grad_own_SD + product(grad_query_SE, w.query)
            functions.sum_of_uses(grad_own_SD, hop.self_uses, len(table_RD), grad.table_RD)
        code_T = torch.cos(w.time_bias)
        grad_time_bias = grad.bias_T
        if grad_time_bias is not None:
            grad_time_bias = grad_time_bias - torch.sin(w.time_bias) * (
                w.query_time.t() @ grad_query_bias
            )
        return (
            grad.table_RD, grad_query, grad_query_bias, torch.outer(grad_query_bias, code_T),
            grad_key, grad_value, grad_merge_in, grad_hidden_SE.sum(0), grad_merge_out,
            grad_SE.sum(0), grad.weight_T, grad_time_bias, None, None, None, None,
        )  # fmt: skip
