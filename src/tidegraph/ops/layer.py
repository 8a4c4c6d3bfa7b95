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
from torch.nn.functional import layer_norm

from tidegraph.batches.prepared import Hop
from tidegraph.ops import attention_kernels, functions, layer_kernels
from tidegraph.ops.arrays import array_of, weight_gradient
from tidegraph.ops.deferred import Deferred
from tidegraph.ops.dropout import dropout_arguments, keep_mask
from tidegraph.ops.feature_rows import feature_array
from tidegraph.ops.products import batched_product, in_float32, product, scores_exactly
from tidegraph.ops.shared_layer import shared_layer


@dataclass(frozen=True)
class LayerWeights:
    """Parameters of an attention layer.

    Attributes:
        query, query_bias: [E, D], [E].
        query_time: [E, T], or of width 0.
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
    # Never by the size of the batch: each path has its own rounding.
    scoring = not dropout and in_float32(table_RD) and scores_exactly(table_RD)
    if scoring and functions._fast(table_RD) and not isinstance(key, Tensor):
        return shared_layer(table_RD, weights, hop, features_EF)
    return _layer(table_RD, table_RD, weights, hop, features_EF, dropout, key, normalize=False)


def mailbox_layer(
    own_RD: Tensor,
    mail_NX: Tensor,
    weights: LayerWeights,
    hop: Hop,
    dropout: float = 0.0,
    key: int | Tensor = 0,
) -> Tensor:
    """Embeddings from a node's mails (APAN eq. 2-5): W_2 relu(W_1 norm(r + h) + b_1) + b_2.

    r are the heads' weighted sums of the mails, h the own row; `norm` takes the mean away and
    divides by the deviation. A scale and a shift after it are the caller's to put into W_1 and b_1.

    Args:
        own_RD: [R, D] with D = H d.
        mail_NX: [N, X] mails, constants.
        weights: parameters; `merge_in` [E, E], and a `query_time` of width 0 for queries without a
            time code.
        hop: the mails of each seed; without transposes of its neighbours.
        dropout, key: as in `attention_layer`.

    Returns:
        [S, E].
    """
    none = mail_NX.new_empty(1, 0)
    return _layer(own_RD, mail_NX, weights, hop, none, dropout, key, normalize=True)


def _layer(
    own_RD: Tensor,
    table_NX: Tensor,
    weights: LayerWeights,
    hop: Hop,
    features_EF: Tensor,
    dropout: float,
    key: int | Tensor,
    *,
    normalize: bool,
) -> Tensor:
    if not functions._fast(own_RD) or isinstance(key, Tensor) or not in_float32(own_RD):
        return composed(own_RD, weights, hop, features_EF, dropout, key, table_NX, normalize)
    key -= (key & 1 << 63) << 1  # signed: PyTorch's profiler records int64 arguments
    # One by one: autograd sees tensors only as arguments of their own.
    result: Tensor = _AttentionLayer.apply(  # type: ignore[no-untyped-call]
        own_RD, *vars(weights).values(), table_NX, hop, features_EF, dropout, key, normalize
    )
    return result


def composed(
    own_RD: Tensor,
    weights: LayerWeights,
    hop: Hop,
    features_EF: Tensor,
    dropout: float,
    key: int | Tensor,
    table_NX: Tensor | None = None,
    normalize: bool = False,
) -> Tensor:
    """A layer from single operators, differentiated by autograd."""
    w, table_NX = weights, own_RD if table_NX is None else table_NX
    S, K = hop.neighbor_SK.shape
    H, d, _ = w.key.shape
    own_SD = functions.gather_rows(own_RD, hop.self_S, hop.self_uses)
    # Phi(0) = cos(b) is the same for every seed: its projection is a bias.
    bias_E = w.query_bias
    if w.query_time.shape[1]:
        bias_E = bias_E + w.query_time @ torch.cos(w.time_bias)
    query_HSd = product(own_SD, w.query.t(), bias_E).view(S, H, d).transpose(0, 1)
    query_HSW = batched_product(query_HSd, w.key / math.sqrt(d))
    keep_SKH = keep_mask(key, (S, K, H), dropout, own_RD) if dropout else None
    sum_HSW = functions.temporal_attention(
        query_HSW, table_NX, hop, features_EF, w.time, w.time_bias, keep_SKH
    )
    result_SE = batched_product(sum_HSW, w.value).transpose(0, 1).reshape(S, -1)
    if normalize:
        merged_SM = layer_norm(result_SE + own_SD, (H * d,), eps=layer_kernels.EPSILON)
    else:
        merged_SM = torch.cat([result_SE, own_SD], dim=1)
    hidden_SE = torch.relu(product(merged_SM, w.merge_in.t(), w.merge_in_bias))
    if dropout:
        hidden_SE = hidden_SE * keep_mask(key + 1, tuple(hidden_SE.shape), dropout, own_RD)
    return product(hidden_SE, w.merge_out.t(), w.merge_out_bias)


class _AttentionLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        hop: Hop
        *tensors, table, hop, features_EF, dropout, key, normalize = arguments
        (own_RD, query_ED, query_bias_E, query_time_ET, key_HdW, value_HWd, merge_in_EM,
         merge_in_bias_E, merge_out_EE, merge_out_bias_E, time_T, time_bias_T,
        ) = map(array_of, tensors)  # fmt: skip
        S, K = hop.neighbor_SK.shape
        H, d, W = key_HdW.shape
        E = H * d
        keep_SKH = np.empty((S, K, H) if dropout else (0, 0, 0), np.float32)
        attention_SKH = np.empty((S, K, H), np.float32)
        D = own_RD.shape[1]
        Q = S if D else 1  # all seeds ask the same where they have no rows
        query_QE, query_HQW = np.empty((Q, E), np.float32), np.empty((H, Q, W), np.float32)
        sum_HSW, hidden_SE = np.empty((H, S, W), np.float32), np.empty((S, E), np.float32)
        joined_SJ = np.empty((S, E + D), np.float32)  # [heads' results ; own rows]
        normal_SE = np.empty((S if normalize else 0, E), np.float32)
        inverse_S = np.empty(len(normal_SE), np.float32)
        out_SE = np.empty((S, E), np.float32)
        # A table of constants, or the own rows again, which autograd has seen.
        table_NX = own_RD if table is tensors[0] else array_of(table)
        read = (
            table_NX, hop.neighbor_SK.numpy(), hop.event_SK.numpy(), hop.delta_SK.numpy(),
            hop.count_S.numpy(), feature_array(features_EF), time_T, time_bias_T,
        )  # fmt: skip
        layer_kernels.layer_forward(
            own_RD, hop.self_S.numpy(), *read, query_ED, query_bias_E, query_time_ET, key_HdW,
            value_HWd, merge_in_EM, merge_in_bias_E, merge_out_EE, merge_out_bias_E,
            *dropout_arguments(key, dropout), _scale(d), keep_SKH, attention_SKH, query_QE,
            query_HQW, sum_HSW, joined_SJ, normal_SE, inverse_S, hidden_SE, out_SE,
        )  # fmt: skip
        # To notice if one is changed before the way back: mails are read where the state has them.
        ctx.save_for_backward(*tensors, table)
        ctx.hop, ctx.dropout = hop, dropout
        ctx.weights = query_ED, key_HdW, value_HWd, merge_in_EM, merge_out_EE
        ctx.own_RD, ctx.read = own_RD, read
        ctx.made = keep_SKH, attention_SKH, query_HQW, normal_SE, inverse_S, hidden_SE
        ctx.factors = query_QE, sum_HSW, joined_SJ, normal_SE if normalize else joined_SJ
        return torch.from_numpy(out_SE)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (_, _, _, query_time, *_, time, time_bias, _) = ctx.saved_tensors
        hop, hidden_SE = ctx.hop, ctx.made[-1]
        query_QE, sum_HSW, joined_SJ, merged_SM = ctx.factors
        own_RD, train_time = ctx.own_RD, ctx.needs_input_grad[10]
        train_own = bool(ctx.needs_input_grad[0] and own_RD.shape[1])
        grad_SE = array_of(grads[0])
        H, S, W = sum_HSW.shape
        E, shared = grad_SE.shape[1], not own_RD.shape[1]
        d, like = E // H, np.empty_like
        grad_hidden_SE, grad_joined_SJ = like(grad_SE), like(joined_SJ)
        blocks = -(-S // attention_kernels.BLOCK)
        rows = blocks if shared else S
        grad_query_QE, grad_query_HQW = like(query_QE), np.empty((H, rows, W), np.float32)
        grad_sum_HSW = like(sum_HSW)
        grad_time_BT = np.empty((blocks, len(time) if train_time else 0))
        grad_time_bias_BT = like(grad_time_BT)
        grad_bias_3E = np.empty((3, E), np.float32)
        grad_query_time_ET = np.empty(tuple(query_time.shape), np.float32)
        grad_own_RD = like(own_RD) if train_own else own_RD[:0]
        layer_kernels.layer_backward(
            grad_SE, *ctx.read, *ctx.weights, *ctx.made,
            np.float32(1.0 / (1.0 - ctx.dropout)), _scale(d),
            hop.neighbor_uses.indptr_R1.numpy(), hop.neighbor_uses.position_M.numpy(),
            hop.self_uses.indptr_R1.numpy(), hop.self_uses.position_M.numpy(),
            grad_hidden_SE, grad_joined_SJ, grad_sum_HSW, grad_query_HQW, grad_query_QE,
            grad_time_BT, grad_time_bias_BT, grad_bias_3E, grad_query_time_ET, grad_own_RD,
        )  # fmt: skip
        grad_query_bias, grad_in_bias, grad_out_bias = torch.from_numpy(grad_bias_3E).unbind()
        grad_time, grad_time_bias = None, None
        if train_time:
            grad_time = torch.from_numpy(grad_time_BT).sum(0).float()
            grad_time_bias = torch.from_numpy(grad_time_bias_BT).sum(0).float()
            if query_time.shape[1]:
                grad_time_bias -= torch.sin(time_bias) * (query_time.t() @ grad_query_bias)
        if shared:
            grad_query_HQW = grad_query_HQW[:, :1]
        query_HQd = query_QE.reshape(-1, H, d).transpose(1, 0, 2)
        grad_result_HSd = grad_joined_SJ[:, :E].reshape(S, H, d).transpose(1, 0, 2)
        return (
            torch.from_numpy(grad_own_RD) if train_own else None,
            None if shared else weight_gradient(grad_query_QE, joined_SJ[:, E:]), grad_query_bias,
            torch.from_numpy(grad_query_time_ET),
            weight_gradient(query_HQd, grad_query_HQW),
            # The wide factor second: MKL takes 0.6 to 0.8 of the time (fifty columns, two heads).
            weight_gradient(grad_result_HSd, sum_HSW).transpose(1, 2).contiguous(),
            weight_gradient(grad_hidden_SE, merged_SM), grad_in_bias,
            weight_gradient(grad_SE, hidden_SE), grad_out_bias,
            grad_time, grad_time_bias, None, None, None, None, None, None,
        )  # fmt: skip


def _scale(width: int) -> np.float32:
    return np.float32(1.0 / math.sqrt(width))
