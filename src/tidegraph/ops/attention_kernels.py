"""CPU kernels of temporal attention: one pass over the neighbours, nothing materialised.

A neighbour's row x = [table row ; event features ; time code] is never built: its three pieces are
read in place (the time code is computed into a scratch row that stays in the first-level cache).
Work is cut into blocks of a fixed number of seeds, so sums have the same order whatever the number
of threads, and no two blocks write the same memory.

Shape legend: S seeds, K slots per seed, R table rows, D table width, F event-feature width,
T time-code width, W = D + F + T, H heads.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from tidegraph._jit import kernel
from tidegraph.ops.elementary import cosine, sine

BLOCK = 16
"""Seeds (or table rows) per block."""

LARGEST_DELTA = 1e12
"""Beyond it (years in nanoseconds) the C library's cosine is taken: the vectorised one counts
multiples of pi in a float64, which must stay far below 2**53."""


@kernel(sums=True, inline=True)
def _dot(a, b):  # type: ignore[no-untyped-def]
    total = a.dtype.type(0)
    for j in range(a.shape[0]):
        total += a[j] * b[j]
    return total


@kernel(sums=True, inline=True)
def _add_scaled(out, scale, x):  # type: ignore[no-untyped-def]
    for j in range(out.shape[0]):
        out[j] += scale * x[j]


@kernel(contract=True)
def time_code(code, delta, weight_T, bias_T):  # type: ignore[no-untyped-def]
    """code = cos(weight * delta + bias), the argument in float64 (exact for float32 factors)."""
    d = np.float64(delta)
    if abs(d) > LARGEST_DELTA:
        for j in range(weight_T.shape[0]):
            code[j] = math.cos(d * np.float64(weight_T[j]) + np.float64(bias_T[j]))
        return
    for j in range(weight_T.shape[0]):
        code[j] = cosine(d * np.float64(weight_T[j]) + np.float64(bias_T[j]))


@kernel(contract=True)
def time_code_and_slope(code, slope, delta, weight_T, bias_T):  # type: ignore[no-untyped-def]
    """`time_code`, and its derivative -sin(weight * delta + bias) in `slope`."""
    d = np.float64(delta)
    if abs(d) > LARGEST_DELTA:
        for j in range(weight_T.shape[0]):
            x = d * np.float64(weight_T[j]) + np.float64(bias_T[j])
            code[j] = math.cos(x)
            slope[j] = -math.sin(x)
        return
    for j in range(weight_T.shape[0]):
        x = d * np.float64(weight_T[j]) + np.float64(bias_T[j])
        code[j] = cosine(x)
        slope[j] = -sine(x)


@kernel(sums=True)
def _forward_block(  # type: ignore[no-untyped-def]
    first, last, query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S,
    features_EF, weight_T, bias_T, keep_SKH, attention_SKH, sum_HSW,
):  # fmt: skip
    H = query_HSW.shape[0]
    K = neighbor_SK.shape[1]
    D = table_RD.shape[1]
    F = features_EF.shape[1]
    T = weight_T.shape[0]
    dropout = keep_SKH.shape[0] > 0
    code_KT = np.empty((K, T), query_HSW.dtype)
    for s in range(first, last):
        n = count_S[s]
        for i in range(n, K):
            for h in range(H):
                attention_SKH[s, i, h] = 0
        for h in range(H):
            sum_HSW[h, s, :] = 0
        for i in range(n):
            row = table_RD[neighbor_SK[s, i]]
            feature = features_EF[event_SK[s, i]]
            time_code(code_KT[i], delta_SK[s, i], weight_T, bias_T)
            for h in range(H):
                query = query_HSW[h, s]
                attention_SKH[s, i, h] = (
                    _dot(query[:D], row)
                    + _dot(query[D : D + F], feature)
                    + _dot(query[D + F :], code_KT[i])
                )
        for h in range(H):
            if n == 0:
                break
            largest = attention_SKH[s, 0, h]
            for i in range(1, n):
                largest = max(largest, attention_SKH[s, i, h])
            total = query_HSW.dtype.type(0)
            for i in range(n):
                weight = query_HSW.dtype.type(math.exp(attention_SKH[s, i, h] - largest))
                attention_SKH[s, i, h] = weight
                total += weight
            for i in range(n):
                attention_SKH[s, i, h] /= total
        for i in range(n):
            row = table_RD[neighbor_SK[s, i]]
            feature = features_EF[event_SK[s, i]]
            for h in range(H):
                weight = attention_SKH[s, i, h]
                if dropout:
                    weight *= keep_SKH[s, i, h]
                out = sum_HSW[h, s]
                _add_scaled(out[:D], weight, row)
                _add_scaled(out[D : D + F], weight, feature)
                _add_scaled(out[D + F :], weight, code_KT[i])


@kernel(parallel=True)
def attention_forward(  # type: ignore[no-untyped-def]
    query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S,
    features_EF, weight_T, bias_T, keep_SKH, attention_SKH, sum_HSW,
):  # fmt: skip
    """Write softmax weights (before dropout) and weighted sums of neighbour rows.

    `keep_SKH` of shape [0, 0, 0] means no dropout; otherwise it multiplies the weights.
    """
    S = count_S.shape[0]
    blocks = (S + BLOCK - 1) // BLOCK
    for block in numba.prange(blocks):
        _forward_block(
            block * BLOCK, min(S, block * BLOCK + BLOCK), query_HSW, table_RD, neighbor_SK,
            event_SK, delta_SK, count_S, features_EF, weight_T, bias_T, keep_SKH,
            attention_SKH, sum_HSW,
        )  # fmt: skip


@kernel(sums=True)
def _backward_block(  # type: ignore[no-untyped-def]
    first, last, query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S,
    features_EF, weight_T, bias_T, keep_SKH, attention_SKH, grad_sum_HSW,
    grad_query_HSW, grad_score_SKH, grad_weight_T, grad_bias_T,
):  # fmt: skip
    H = query_HSW.shape[0]
    K = neighbor_SK.shape[1]
    D = table_RD.shape[1]
    F = features_EF.shape[1]
    T = weight_T.shape[0]
    dropout = keep_SKH.shape[0] > 0
    code_KT = np.empty((K, T), query_HSW.dtype)
    slope_KT = np.empty((K, T), query_HSW.dtype)
    grad_code_T = np.empty(T, query_HSW.dtype)
    grad_weight_T[:] = 0
    grad_bias_T[:] = 0
    for s in range(first, last):
        n = count_S[s]
        for i in range(n, K):
            for h in range(H):
                grad_score_SKH[s, i, h] = 0
        for h in range(H):
            grad_query_HSW[h, s, :] = 0
        for i in range(n):
            row = table_RD[neighbor_SK[s, i]]
            feature = features_EF[event_SK[s, i]]
            time_code_and_slope(code_KT[i], slope_KT[i], delta_SK[s, i], weight_T, bias_T)
            for h in range(H):
                grad = grad_sum_HSW[h, s]
                value = (
                    _dot(grad[:D], row)
                    + _dot(grad[D : D + F], feature)
                    + _dot(grad[D + F :], code_KT[i])
                )
                if dropout:
                    value *= keep_SKH[s, i, h]
                grad_score_SKH[s, i, h] = value
        for h in range(H):
            mean = query_HSW.dtype.type(0)
            for i in range(n):
                mean += attention_SKH[s, i, h] * grad_score_SKH[s, i, h]
            for i in range(n):
                grad_score_SKH[s, i, h] = attention_SKH[s, i, h] * (grad_score_SKH[s, i, h] - mean)
        for i in range(n):
            row = table_RD[neighbor_SK[s, i]]
            feature = features_EF[event_SK[s, i]]
            grad_code_T[:] = 0
            for h in range(H):
                weight = attention_SKH[s, i, h]
                if dropout:
                    weight *= keep_SKH[s, i, h]
                score = grad_score_SKH[s, i, h]
                out = grad_query_HSW[h, s]
                _add_scaled(out[:D], score, row)
                _add_scaled(out[D : D + F], score, feature)
                _add_scaled(out[D + F :], score, code_KT[i])
                _add_scaled(grad_code_T, score, query_HSW[h, s, D + F :])
                _add_scaled(grad_code_T, weight, grad_sum_HSW[h, s, D + F :])
            d = delta_SK[s, i]
            for j in range(T):
                step = grad_code_T[j] * slope_KT[i, j]
                grad_bias_T[j] += step
                grad_weight_T[j] += np.float64(step) * np.float64(d)


@kernel(parallel=True)
def attention_backward(  # type: ignore[no-untyped-def]
    query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S,
    features_EF, weight_T, bias_T, keep_SKH, attention_SKH, grad_sum_HSW,
    grad_query_HSW, grad_score_SKH, grad_weight_BT, grad_bias_BT,
):  # fmt: skip
    """Gradients by seed: query, scores; and of the time code, one float64 row a block."""
    S = count_S.shape[0]
    blocks = (S + BLOCK - 1) // BLOCK
    for block in numba.prange(blocks):
        _backward_block(
            block * BLOCK, min(S, block * BLOCK + BLOCK), query_HSW, table_RD, neighbor_SK,
            event_SK, delta_SK, count_S, features_EF, weight_T, bias_T, keep_SKH,
            attention_SKH, grad_sum_HSW, grad_query_HSW, grad_score_SKH,
            grad_weight_BT[block], grad_bias_BT[block],
        )  # fmt: skip


@kernel(sums=True)
def _table_block(  # type: ignore[no-untyped-def]
    first, last, query_HSW, grad_sum_HSW, attention_SKH, keep_SKH, grad_score_SKH,
    indptr_R1, slot_M, grad_table_RD,
):  # fmt: skip
    H = query_HSW.shape[0]
    K = attention_SKH.shape[1]
    D = grad_table_RD.shape[1]
    dropout = keep_SKH.shape[0] > 0
    for r in range(first, last):
        out = grad_table_RD[r]
        out[:] = 0
        for m in range(indptr_R1[r], indptr_R1[r + 1]):
            s = slot_M[m] // K
            i = slot_M[m] - s * K
            for h in range(H):
                weight = attention_SKH[s, i, h]
                if dropout:
                    weight *= keep_SKH[s, i, h]
                score = grad_score_SKH[s, i, h]
                query = query_HSW[h, s, :D]
                grad = grad_sum_HSW[h, s, :D]
                for j in range(D):
                    out[j] += score * query[j] + weight * grad[j]


@kernel(parallel=True)
def attention_backward_table(  # type: ignore[no-untyped-def]
    query_HSW, grad_sum_HSW, attention_SKH, keep_SKH, grad_score_SKH,
    indptr_R1, slot_M, grad_table_RD,
):  # fmt: skip
    """Gradient by table row: a gather over the slots that use the row, in slot order."""
    R = grad_table_RD.shape[0]
    blocks = (R + BLOCK - 1) // BLOCK
    for block in numba.prange(blocks):
        _table_block(
            block * BLOCK, min(R, block * BLOCK + BLOCK), query_HSW, grad_sum_HSW,
            attention_SKH, keep_SKH, grad_score_SKH, indptr_R1, slot_M, grad_table_RD,
        )  # fmt: skip


@kernel(sums=True)
def _gather_sum_block(first, last, grad_SD, indptr_R1, slot_M, out_RD):  # type: ignore[no-untyped-def]
    for r in range(first, last):
        out = out_RD[r]
        out[:] = 0
        for m in range(indptr_R1[r], indptr_R1[r + 1]):
            grad = grad_SD[slot_M[m]]
            for j in range(out.shape[0]):
                out[j] += grad[j]


@kernel(parallel=True)
def gather_sum(grad_SD, indptr_R1, slot_M, out_RD):  # type: ignore[no-untyped-def]
    """out[r] = sum of grad[s] over the slots s that use row r, in slot order."""
    R = out_RD.shape[0]
    blocks = (R + BLOCK - 1) // BLOCK
    for block in numba.prange(blocks):
        _gather_sum_block(
            block * BLOCK, min(R, block * BLOCK + BLOCK), grad_SD, indptr_R1, slot_M, out_RD
        )
