"""CPU kernels of temporal attention: one pass over the neighbours, nothing materialised.

A neighbour's row x = [table row ; event features ; time code] exists only in a scratch buffer of
one seed, which stays in the first-level cache. Work is cut into blocks of a fixed number of seeds,
so sums have the same order whatever the number of threads, and no two blocks write the same memory.

Shape legend: S seeds, K slots per seed, R table rows, D table width, F event-feature width,
T time-code width, W = D + F + T, X = W padded, H heads, B blocks.
"""

from __future__ import annotations

import numpy as np

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.ops.elementary import exponential
from tidegraph.ops.feature_rows import load_features
from tidegraph.ops.row_kernels import dots, expect_row, load_row, padded, weighted_sums
from tidegraph.ops.row_vectors import softmax_row
from tidegraph.ops.tiles import keep, place
from tidegraph.ops.time_kernels import split_turns, time_code, time_slope

BLOCK = 24
"""Seeds (or table rows) per block: whole tiles of the matrix products between kernels."""


@kernel(inner=True)
def _load_rows(  # type: ignore[no-untyped-def]
    row_KX, s, last, count_S, table_RD, neighbor_SK, event_SK, delta_SK, features_EF,
    turns_3X, limits, weight_T, bias_T,
):  # fmt: skip
    """The neighbours of seed s, each [table row ; features ; time code], and what is next up to
    `last`."""
    D = table_RD.shape[1]
    F = features_EF.shape[1]
    count = count_S[s]
    for i in range(count):
        load_row(row_KX, i, 0, table_RD, neighbor_SK[s, i])
        if F > 0:
            load_features(row_KX, i, D, features_EF, event_SK[s, i])
    # In a loop of their own: the copies above then wait for memory several rows at a time. While
    # time codes are computed, the next seed's rows come in.
    follow = s + 1
    expected = count_S[follow] if follow < last else 0
    for i in range(count):
        if i < expected:
            if D > 0:
                expect_row(table_RD, neighbor_SK[follow, i])
            if F > 0:
                expect_row(features_EF, event_SK[follow, i])
        time_code(row_KX, i, D + F, delta_SK[s, i], turns_3X, limits, weight_T, bias_T)


@kernel(inline=True)
def softmax(score_HK, count):  # type: ignore[no-untyped-def]
    """In place, over the first `count` slots of each head."""
    if score_HK.itemsize == 4:
        for h in range(score_HK.shape[0]):
            softmax_row(place(score_HK, h, 0), np.int64(count))
        keep(score_HK)
    else:
        _softmax_of_any(score_HK, count)


@kernel(inner=True)
def _softmax_of_any(score_HK, count):  # type: ignore[no-untyped-def]
    for h in range(score_HK.shape[0]):
        largest = score_HK.dtype.type(-np.inf)
        for i in range(count):
            largest = max(largest, score_HK[h, i])
        total = score_HK.dtype.type(0)
        for i in range(count):
            weight = exponential(score_HK[h, i] - largest)
            score_HK[h, i] = weight
            total += weight
        for i in range(count):
            score_HK[h, i] /= total


@kernel(inner=True)
def weigh(score_HK, count, s, keep_SKH, attention_SKH):  # type: ignore[no-untyped-def]
    """In place, over the first `count` slots of each head: softmax weights, after dropout.

    `attention[s]` gets those before dropout, 0 in unused slots.
    """
    softmax(score_HK, count)
    H = score_HK.shape[0]
    for i in range(attention_SKH.shape[1]):
        for h in range(H):
            attention_SKH[s, i, h] = score_HK[h, i] if i < count else 0
    if keep_SKH.shape[0] > 0:
        for i in range(count):
            for h in range(H):
                score_HK[h, i] *= keep_SKH[s, i, h]


@kernel(block=True)
def forward_block(  # type: ignore[no-untyped-def]
    first, last, query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S,
    features_EF, weight_T, bias_T, keep_SKH, attention_SKH, sum_HSW,
):  # fmt: skip
    H, _, W = query_HSW.shape
    K = neighbor_SK.shape[1]
    X = padded(W)
    turns_3X = np.empty((3, X), np.float32)
    limits = split_turns(weight_T, bias_T, turns_3X)
    row_KX = np.zeros((K, X), query_HSW.dtype)
    query_HX = np.zeros((H, X), query_HSW.dtype)
    sum_HX = np.empty((H, X), query_HSW.dtype)
    weight_HK = np.empty((H, K), query_HSW.dtype)
    only = query_HSW.shape[1] - 1  # 0 where all seeds ask the same query
    for s in range(first, last):
        count, own = count_S[s], min(s, only)
        _load_rows(
            row_KX, s, last, count_S, table_RD, neighbor_SK, event_SK, delta_SK, features_EF,
            turns_3X, limits, weight_T, bias_T,
        )  # fmt: skip
        for h in range(H):
            for j in range(W):
                query_HX[h, j] = query_HSW[h, own, j]
        dots(query_HX, row_KX, count, weight_HK)
        weigh(weight_HK, count, s, keep_SKH, attention_SKH)
        weighted_sums(weight_HK, row_KX, count, sum_HX)
        for h in range(H):
            for j in range(W):
                sum_HSW[h, s, j] = sum_HX[h, j]


@kernel()
def attention_forward(  # type: ignore[no-untyped-def]
    query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S,
    features_EF, weight_T, bias_T, keep_SKH, attention_SKH, sum_HSW,
):  # fmt: skip
    """Write softmax weights (before dropout) and weighted sums of neighbour rows.

    `keep_SKH` of shape [0, 0, 0] means no dropout; otherwise it multiplies the weights.
    """
    S = count_S.shape[0]
    in_blocks(
        forward_block, S, BLOCK,
        (query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S, features_EF, weight_T,
         bias_T, keep_SKH, attention_SKH, sum_HSW),
    )  # fmt: skip


@kernel(inner=True, contract=True)
def _time_gradient(  # type: ignore[no-untyped-def]
    s, count, start, delta_SK, turns_3X, limits, weight_T, bias_T, query_HSW, grad_HX,
    attention_SKH, keep_SKH, score_HK, slope_1X, grad_weight_T, grad_bias_T,
):  # fmt: skip
    """Add seed s's part of the gradients of the time code's parameters."""
    own = min(s, query_HSW.shape[1] - 1)
    for i in range(count):
        time_slope(slope_1X, 0, 0, delta_SK[s, i], turns_3X, limits, weight_T, bias_T)
        d = np.float64(delta_SK[s, i])
        for h in range(query_HSW.shape[0]):
            weight = attention_SKH[s, i, h]
            if keep_SKH.shape[0] > 0:
                weight *= keep_SKH[s, i, h]
            score = score_HK[h, i]
            for k in range(grad_weight_T.shape[0]):
                j = np.uintp(k)
                c = np.uintp(start) + j
                code = score * query_HSW[h, own, c] + weight * grad_HX[h, c]
                step = np.float64(code * slope_1X[0, j])
                grad_bias_T[j] += step
                grad_weight_T[j] += step * d


@kernel(inner=True)
def score_slope(attention_SKH, s, score_HK, count, grad_score_SKH):  # type: ignore[no-untyped-def]
    """In place, from gradients of the weights to gradients of the scores: a_i (v_i - sum a_j v_j).

    `grad_score[s]` gets them too, 0 in unused slots.
    Gradients are taken relative to that of the largest weight: where one weight is nearly 1, its
    own gradient would cancel against the sum.
    """
    for h in range(score_HK.shape[0]):
        largest = 0
        for i in range(1, count):
            if attention_SKH[s, i, h] > attention_SKH[s, largest, h]:
                largest = i
        base = score_HK[h, largest]
        mean = score_HK.dtype.type(0)
        for i in range(count):
            score_HK[h, i] -= base
            mean += attention_SKH[s, i, h] * score_HK[h, i]
        for i in range(count):
            score_HK[h, i] = attention_SKH[s, i, h] * (score_HK[h, i] - mean)
    for i in range(grad_score_SKH.shape[1]):
        for h in range(score_HK.shape[0]):
            grad_score_SKH[s, i, h] = score_HK[h, i] if i < count else 0


@kernel(block=True)
def backward_block(  # type: ignore[no-untyped-def]
    first, last, query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S,
    features_EF, weight_T, bias_T, keep_SKH, attention_SKH, grad_sum_HSW,
    grad_query_HSW, grad_score_SKH, grad_weight_BT, grad_bias_BT,
):  # fmt: skip
    grad_weight_T, grad_bias_T = grad_weight_BT[first // BLOCK], grad_bias_BT[first // BLOCK]
    H, _, W = query_HSW.shape
    K = neighbor_SK.shape[1]
    X = padded(W)
    turns_3X = np.empty((3, X), np.float32)
    limits = split_turns(weight_T, bias_T, turns_3X)
    row_KX = np.zeros((K, X), query_HSW.dtype)
    grad_HX = np.zeros((H, X), query_HSW.dtype)
    sum_HX = np.empty((H, X), query_HSW.dtype)
    score_HK = np.empty((H, K), query_HSW.dtype)
    slope_1X = np.empty((1, X), query_HSW.dtype)
    start = table_RD.shape[1] + features_EF.shape[1]
    dropout = keep_SKH.shape[0] > 0
    train_time = grad_weight_T.shape[0] > 0
    grad_weight_T[:] = 0
    grad_bias_T[:] = 0
    shared, block = query_HSW.shape[1] < count_S.shape[0], first // BLOCK
    if shared:
        for h in range(H):
            for j in range(W):
                grad_query_HSW[h, block, j] = 0
    for s in range(first, last):
        count = count_S[s]
        _load_rows(
            row_KX, s, last, count_S, table_RD, neighbor_SK, event_SK, delta_SK, features_EF,
            turns_3X, limits, weight_T, bias_T,
        )  # fmt: skip
        for h in range(H):
            for j in range(W):
                grad_HX[h, j] = grad_sum_HSW[h, s, j]
        dots(grad_HX, row_KX, count, score_HK)
        if dropout:
            for i in range(count):
                for h in range(H):
                    score_HK[h, i] *= keep_SKH[s, i, h]
        score_slope(attention_SKH, s, score_HK, count, grad_score_SKH)
        weighted_sums(score_HK, row_KX, count, sum_HX)
        for h in range(H):
            if shared:
                for j in range(W):
                    grad_query_HSW[h, block, j] += sum_HX[h, j]
            else:
                for j in range(W):
                    grad_query_HSW[h, s, j] = sum_HX[h, j]
        if train_time:
            _time_gradient(
                s, count, start, delta_SK, turns_3X, limits, weight_T, bias_T, query_HSW, grad_HX,
                attention_SKH, keep_SKH, score_HK, slope_1X, grad_weight_T, grad_bias_T,
            )  # fmt: skip


@kernel()
def attention_backward(  # type: ignore[no-untyped-def]
    query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S,
    features_EF, weight_T, bias_T, keep_SKH, attention_SKH, grad_sum_HSW,
    grad_query_HSW, grad_score_SKH, grad_weight_BT, grad_bias_BT,
):  # fmt: skip
    """Gradients by seed: query, scores; and of the time code, one float64 row a block.

    Where all seeds ask one query (`query_HSW` [H, 1, W]), `grad_query_HSW` has a row a block.
    `grad_weight_BT` and `grad_bias_BT` of width 0 mean a fixed time code.
    """
    S = count_S.shape[0]
    in_blocks(
        backward_block, S, BLOCK,
        (query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S, features_EF, weight_T,
         bias_T, keep_SKH, attention_SKH, grad_sum_HSW, grad_query_HSW, grad_score_SKH,
         grad_weight_BT, grad_bias_BT),
    )  # fmt: skip


@kernel(block=True, contract=True)
def table_block(  # type: ignore[no-untyped-def]
    first, last, query_HSW, grad_sum_HSW, attention_SKH, keep_SKH, grad_score_SKH,
    indptr_R1, slot_M, grad_table_RD,
):  # fmt: skip
    H = query_HSW.shape[0]
    K = attention_SKH.shape[1]
    D = grad_table_RD.shape[1]
    dropout = keep_SKH.shape[0] > 0
    for r in range(first, last):
        for j in range(D):
            grad_table_RD[r, j] = 0
        for m in range(indptr_R1[r], indptr_R1[r + 1]):
            s = slot_M[m] // K
            i = slot_M[m] - s * K
            # Two heads at a time, so that the row is read and written once for both.
            for h in range(0, H // 2 * 2, 2):
                a, b = attention_SKH[s, i, h], attention_SKH[s, i, h + 1]
                if dropout:
                    a *= keep_SKH[s, i, h]
                    b *= keep_SKH[s, i, h + 1]
                c, d = grad_score_SKH[s, i, h], grad_score_SKH[s, i, h + 1]
                for j in range(D):
                    grad_table_RD[r, j] += (
                        c * query_HSW[h, s, j]
                        + a * grad_sum_HSW[h, s, j]
                        + d * query_HSW[h + 1, s, j]
                        + b * grad_sum_HSW[h + 1, s, j]
                    )
            if H % 2:
                h = H - 1
                a = attention_SKH[s, i, h]
                if dropout:
                    a *= keep_SKH[s, i, h]
                c = grad_score_SKH[s, i, h]
                for j in range(D):
                    grad_table_RD[r, j] += c * query_HSW[h, s, j] + a * grad_sum_HSW[h, s, j]


@kernel()
def attention_backward_table(  # type: ignore[no-untyped-def]
    query_HSW, grad_sum_HSW, attention_SKH, keep_SKH, grad_score_SKH,
    indptr_R1, slot_M, grad_table_RD,
):  # fmt: skip
    """Gradient by table row: a gather over the slots that use the row, in slot order."""
    R = grad_table_RD.shape[0]
    in_blocks(
        table_block, R, BLOCK,
        (query_HSW, grad_sum_HSW, attention_SKH, keep_SKH, grad_score_SKH, indptr_R1, slot_M,
         grad_table_RD),
    )  # fmt: skip


@kernel(block=True)
def gather_sum_block(first, last, grad_SD, indptr_R1, slot_M, add, out_RD):  # type: ignore[no-untyped-def]
    D = out_RD.shape[1]
    for r in range(first, last):
        if not add:
            for j in range(D):
                out_RD[r, j] = 0
        for m in range(indptr_R1[r], indptr_R1[r + 1]):
            s = slot_M[m]
            for j in range(D):
                out_RD[r, j] += grad_SD[s, j]


@kernel()
def gather_sum(grad_SD, indptr_R1, slot_M, add, out_RD):  # type: ignore[no-untyped-def]
    """out[r] = (out[r] if `add`) + sum of grad[s] over the slots s using row r, in slot order."""
    R = out_RD.shape[0]
    in_blocks(gather_sum_block, R, BLOCK, (grad_SD, indptr_R1, slot_M, add, out_RD))
