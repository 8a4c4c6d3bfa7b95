"""CPU kernels of attention where all seeds ask the same query and nodes have no features.

A neighbour is then an event and a time difference alone. What depends on the event (its part of
the score, its projected value) is given per distinct event; only time codes are made per slot.

Shape legend: S seeds, K slots, E distinct events, H heads, d width per head, T time-code width,
X = T padded, B blocks.
"""

from __future__ import annotations

import numpy as np

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.ops.attention_kernels import BLOCK as BLOCK
from tidegraph.ops.attention_kernels import score_slope, weigh
from tidegraph.ops.row_kernels import dots, padded, weighted_sums
from tidegraph.ops.time_kernels import split_turns, time_code


@kernel(inline=True)
def _load_codes(row_KX, s, count, delta_SK, turns_3X, limits, weight_T, bias_T):  # type: ignore[no-untyped-def]
    for i in range(count):
        time_code(row_KX, i, 0, delta_SK[s, i], turns_3X, limits, weight_T, bias_T)


@kernel(inner=True, contract=True)
def _add_values(value_SHd, s, h, weight_HK, count, row_SK, value_EHd):  # type: ignore[no-untyped-def]
    d = value_EHd.shape[2]
    for j in range(d):
        value_SHd[s, h, j] = 0
    for i in range(count):
        weight, row = weight_HK[h, i], row_SK[s, i]
        for j in range(d):
            value_SHd[s, h, j] += weight * value_EHd[row, h, j]


@kernel(inner=True, sums=True)
def _value_dot(grad_SHd, s, h, value_EHd, row):  # type: ignore[no-untyped-def]
    total = grad_SHd.dtype.type(0)
    for j in range(value_EHd.shape[2]):
        total += grad_SHd[s, h, j] * value_EHd[row, h, j]
    return total


@kernel(block=True)
def _forward_block(  # type: ignore[no-untyped-def]
    first, last, query_HT, score_EH, value_EHd, row_SK, delta_SK, count_S, weight_T, bias_T,
    keep_SKH, attention_SKH, value_SHd, code_HST,
):  # fmt: skip
    H, T = query_HT.shape
    K = row_SK.shape[1]
    X = padded(T)
    turns_3X = np.empty((3, X), np.float32)
    limits = split_turns(weight_T, bias_T, turns_3X)
    row_KX = np.empty((K, X), query_HT.dtype)
    query_HX = np.zeros((H, X), query_HT.dtype)
    sum_HX = np.empty((H, X), query_HT.dtype)
    weight_HK = np.empty((H, K), query_HT.dtype)
    for h in range(H):
        for j in range(T):
            query_HX[h, j] = query_HT[h, j]
    for s in range(first, last):
        count = count_S[s]
        _load_codes(row_KX, s, count, delta_SK, turns_3X, limits, weight_T, bias_T)
        dots(query_HX, row_KX, count, weight_HK)
        for i in range(count):
            for h in range(H):
                weight_HK[h, i] += score_EH[row_SK[s, i], h]
        weigh(weight_HK, count, s, keep_SKH, attention_SKH)
        weighted_sums(weight_HK, row_KX, count, sum_HX)
        for h in range(H):
            for j in range(T):
                code_HST[h, s, j] = sum_HX[h, j]
            _add_values(value_SHd, s, h, weight_HK, count, row_SK, value_EHd)


@kernel()
def forward(  # type: ignore[no-untyped-def]
    query_HT, score_EH, value_EHd, row_SK, delta_SK, count_S, weight_T, bias_T, keep_SKH,
    attention_SKH, value_SHd, code_HST,
):  # fmt: skip
    """Softmax weights (before dropout), weighted sums of values and of time codes."""
    S = count_S.shape[0]
    in_blocks(
        _forward_block, S, BLOCK,
        (query_HT, score_EH, value_EHd, row_SK, delta_SK, count_S, weight_T, bias_T, keep_SKH,
         attention_SKH, value_SHd, code_HST),
    )  # fmt: skip


@kernel(block=True)
def _backward_block(  # type: ignore[no-untyped-def]
    first, last, value_EHd, row_SK, delta_SK, count_S, weight_T, bias_T, keep_SKH,
    attention_SKH, grad_value_SHd, grad_code_HST, grad_score_SKH, grad_query_BHT,
):  # fmt: skip
    block = first // BLOCK
    H, _, T = grad_code_HST.shape
    K = row_SK.shape[1]
    X = padded(T)
    turns_3X = np.empty((3, X), np.float32)
    limits = split_turns(weight_T, bias_T, turns_3X)
    row_KX = np.empty((K, X), grad_code_HST.dtype)
    grad_HX = np.zeros((H, X), grad_code_HST.dtype)
    sum_HX = np.empty((H, X), grad_code_HST.dtype)
    score_HK = np.empty((H, K), grad_code_HST.dtype)
    dropout = keep_SKH.shape[0] > 0
    for h in range(H):
        for j in range(T):
            grad_query_BHT[block, h, j] = 0
    for s in range(first, last):
        count = count_S[s]
        _load_codes(row_KX, s, count, delta_SK, turns_3X, limits, weight_T, bias_T)
        for h in range(H):
            for j in range(T):
                grad_HX[h, j] = grad_code_HST[h, s, j]
        dots(grad_HX, row_KX, count, score_HK)
        for i in range(count):
            for h in range(H):
                score_HK[h, i] += _value_dot(grad_value_SHd, s, h, value_EHd, row_SK[s, i])
                if dropout:
                    score_HK[h, i] *= keep_SKH[s, i, h]
        score_slope(attention_SKH, s, score_HK, count, grad_score_SKH)
        weighted_sums(score_HK, row_KX, count, sum_HX)
        for h in range(H):
            for j in range(T):
                grad_query_BHT[block, h, j] += sum_HX[h, j]


@kernel()
def backward(  # type: ignore[no-untyped-def]
    value_EHd, row_SK, delta_SK, count_S, weight_T, bias_T, keep_SKH, attention_SKH,
    grad_value_SHd, grad_code_HST, grad_score_SKH, grad_query_BHT,
):  # fmt: skip
    """Gradients of the scores, slot by slot, and of the query, one float64 row a block."""
    S = count_S.shape[0]
    in_blocks(
        _backward_block, S, BLOCK,
        (value_EHd, row_SK, delta_SK, count_S, weight_T, bias_T, keep_SKH, attention_SKH,
         grad_value_SHd, grad_code_HST, grad_score_SKH, grad_query_BHT),
    )  # fmt: skip


@kernel(block=True, contract=True)
def _events_block(  # type: ignore[no-untyped-def]
    first, last, indptr_E1, slot_M, keep_SKH, attention_SKH, grad_value_SHd, grad_score_SKH,
    grad_score_EH, grad_value_EHd,
):  # fmt: skip
    K, H = attention_SKH.shape[1:]
    d = grad_value_EHd.shape[2]
    dropout = keep_SKH.shape[0] > 0
    for e in range(first, last):
        for h in range(H):
            grad_score_EH[e, h] = 0
            for j in range(d):
                grad_value_EHd[e, h, j] = 0
        for m in range(indptr_E1[e], indptr_E1[e + 1]):
            s = slot_M[m] // K
            i = slot_M[m] - s * K
            for h in range(H):
                weight = attention_SKH[s, i, h]
                if dropout:
                    weight *= keep_SKH[s, i, h]
                grad_score_EH[e, h] += grad_score_SKH[s, i, h]
                for j in range(d):
                    grad_value_EHd[e, h, j] += weight * grad_value_SHd[s, h, j]


@kernel()
def backward_events(  # type: ignore[no-untyped-def]
    indptr_E1, slot_M, keep_SKH, attention_SKH, grad_value_SHd, grad_score_SKH, grad_score_EH,
    grad_value_EHd,
):  # fmt: skip
    """Gradients by event: gathered over the slots that name it, in slot order."""
    E = grad_score_EH.shape[0]
    in_blocks(
        _events_block, E, BLOCK,
        (indptr_E1, slot_M, keep_SKH, attention_SKH, grad_value_SHd, grad_score_SKH,
         grad_score_EH, grad_value_EHd),
    )  # fmt: skip


@kernel()
def used_events(event_SK, count_S, out_X):  # type: ignore[no-untyped-def]
    """The slots' events row by row, -1 for padding."""
    S, K = event_SK.shape
    for s in range(S):
        for i in range(K):
            out_X[s * K + i] = event_SK[s, i] if i < count_S[s] else -1
