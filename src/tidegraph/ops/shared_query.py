"""A first attention layer over nodes without features, where every seed asks the same query.

Then q depends on parameters alone, and a neighbour is its event and its age: scores and values of
events are computed once per distinct event of the batch, and neither a query per seed nor a row of
features per slot exists. The result is that of `attention_layer`.

Shape legend: S seeds, K slots, E distinct events, F event-feature width, H heads, d width per head,
T time-code width.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tidegraph.batches.prepared import Hop
from tidegraph.batches.rows import NONE, distinct, transposed
from tidegraph.ops import shared_query_kernels
from tidegraph.ops.dropout import keep_mask, relu_dropout_, relu_slope_
from tidegraph.ops.products import batched_product, product

if TYPE_CHECKING:
    from tidegraph.ops.layer import LayerWeights


def shared_query_layer(
    weights: LayerWeights, hop: Hop, features_EF: Tensor, dropout: float, key: int
) -> Tensor:
    """`attention_layer` over a table of width 0 with a fixed time code, on a CPU: [S, H d]."""
    w = weights
    H, d, _ = w.key.shape
    F = features_EF.shape[1]
    used_E, row_SK, indptr_E1, slot_M = _distinct(hop, F)
    feature_EF = features_EF.index_select(0, used_E).to(w.key.dtype)
    bias_E = w.query_bias + w.query_time @ torch.cos(w.time_bias)
    query_HW = batched_product(bias_E.view(H, 1, d), w.key / math.sqrt(d)).squeeze(1)
    # Scores and values of events by one product.
    value_FE = w.value[:, :F].transpose(0, 1).reshape(F, H * d)
    both_EX = product(feature_EF, torch.cat([value_FE, query_HW[:, :F].t()], dim=1))
    value_EHd, score_EH = both_EX[:, : H * d].reshape(-1, H, d), both_EX[:, H * d :]
    S, K = hop.neighbor_SK.shape
    keep_SKH = keep_mask(key, (S, K, H) if dropout else (0, 0, 0), dropout, score_EH)
    sum_SHd, code_HST = _Attend.apply(  # type: ignore[no-untyped-call]
        query_HW[:, F:], score_EH, value_EHd, w.time.detach(), w.time_bias.detach(), hop, row_SK,
        keep_SKH, indptr_E1, slot_M,
    )  # fmt: skip
    of_time_SHd = batched_product(code_HST, w.value[:, F:]).transpose(0, 1)
    result_SE = (sum_SHd + of_time_SHd).reshape(S, H * d)
    hidden_SE = product(result_SE, w.merge_in.t(), w.merge_in_bias)
    hidden_SE = _ReluDropout.apply(hidden_SE, key + 1, dropout)  # type: ignore[no-untyped-call]
    return product(hidden_SE, w.merge_out.t(), w.merge_out_bias)


def _distinct(hop: Hop, width: int) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray]:
    """Rows of the hop's distinct events, each slot's number among them, and its transpose.

    Without features all events are alike: one row stands for them.
    """
    S, K = hop.event_SK.shape
    if not width:
        row_SK = torch.zeros(S, K, dtype=torch.int32)
        return torch.zeros(1, dtype=torch.int64), row_SK, NONE, NONE
    event_X = np.empty(S * K, np.int32)
    shared_query_kernels.used_events(hop.event_SK.numpy(), hop.count_S.numpy(), event_X)
    first_E, row_X = distinct(event_X)
    indptr_E1, slot_M = transposed(row_X, len(first_E))
    used_E = torch.from_numpy(event_X[first_E]).long()
    return used_E, torch.from_numpy(row_X).view(S, K), indptr_E1, slot_M


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        (query_HT, score_EH, value_EHd, weight_T, bias_T, hop, row_SK, keep_SKH, indptr_E1,
         slot_M) = arguments  # fmt: skip
        query_HT, value_EHd = query_HT.detach().contiguous(), value_EHd.detach().contiguous()
        H, T = query_HT.shape
        S, K = row_SK.shape
        attention_SKH = query_HT.new_empty(S, K, H)
        sum_SHd, code_HST = (
            query_HT.new_empty(S, H, value_EHd.shape[2]),
            query_HT.new_empty(H, S, T),
        )
        shared_query_kernels.forward(
            query_HT.numpy(), score_EH.detach().contiguous().numpy(), value_EHd.numpy(),
            row_SK.numpy(), hop.delta_SK.numpy(), hop.count_S.numpy(), weight_T.numpy(),
            bias_T.numpy(), keep_SKH.numpy(), attention_SKH.numpy(), sum_SHd.numpy(),
            code_HST.numpy(),
        )  # fmt: skip
        ctx.save_for_backward(value_EHd, weight_T, bias_T, attention_SKH)
        ctx.rest = hop, row_SK, keep_SKH, indptr_E1, slot_M
        return sum_SHd, code_HST

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        value_EHd, weight_T, bias_T, attention_SKH = ctx.saved_tensors
        hop, row_SK, keep_SKH, indptr_E1, slot_M = ctx.rest
        grad_value_SHd, grad_code_HST = grads[0].contiguous(), grads[1].contiguous()
        H, S, T = grad_code_HST.shape
        blocks = -(-S // shared_query_kernels.BLOCK)
        grad_score_SKH = torch.empty_like(attention_SKH)
        grad_query_BHT = torch.empty(blocks, H, T, dtype=torch.float64)
        shared_query_kernels.backward(
            value_EHd.numpy(), row_SK.numpy(), hop.delta_SK.numpy(), hop.count_S.numpy(),
            weight_T.numpy(), bias_T.numpy(), keep_SKH.numpy(), attention_SKH.numpy(),
            grad_value_SHd.numpy(), grad_code_HST.numpy(), grad_score_SKH.numpy(),
            grad_query_BHT.numpy(),
        )  # fmt: skip
        grad_query_HT = grad_query_BHT.sum(0).to(weight_T.dtype)
        grad_score_EH = grad_code_HST.new_zeros(len(value_EHd), H)
        grad_value_EHd = torch.zeros_like(value_EHd)
        if len(indptr_E1):
            shared_query_kernels.backward_events(
                indptr_E1, slot_M, keep_SKH.numpy(), attention_SKH.numpy(),
                grad_value_SHd.numpy(), grad_score_SKH.numpy(), grad_score_EH.numpy(),
                grad_value_EHd.numpy(),
            )  # fmt: skip
        return grad_query_HT, grad_score_EH, grad_value_EHd, *(None,) * 7


class _ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, key: int, dropout: float) -> Tensor:
        result = relu_dropout_(x.detach().clone(), key, dropout)
        ctx.save_for_backward(result)
        ctx.dropout = dropout
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (result,) = ctx.saved_tensors
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        return relu_slope_(grad, result, 1.0 / (1.0 - ctx.dropout)), None, None
