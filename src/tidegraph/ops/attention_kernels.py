"""CPU kernels of temporal attention: one pass over the neighbours, nothing materialised.

A neighbour's row x = [table row ; event features ; time code] exists only in a scratch buffer of
one seed, which stays in the first-level cache and is padded to a multiple of the vector width: the
compiler's leftover loops, one element at a time, cost more than the padding (measured: three
separate dot products per row took 2.5 times as long). Work is cut into blocks of a fixed number of
seeds, so sums have the same order whatever the number of threads, and no two blocks write the same
memory.

Shape legend: S seeds, K slots per seed, R table rows, D table width, F event-feature width,
T time-code width, W = D + F + T, X = W padded, H heads, B blocks.
"""

from __future__ import annotations

import numba
import numpy as np

from tidegraph._jit import kernel
from tidegraph.ops.elementary import exponential
from tidegraph.ops.time_kernels import in_turns, time_code, time_slope

BLOCK = 16
"""Seeds (or table rows) per block."""

_VECTOR = 32  # elements: four vectors of eight float32, what the compiler unrolls to


@kernel(inline=True)
def _padded(width):  # type: ignore[no-untyped-def]
    return (width + _VECTOR - 1) // _VECTOR * _VECTOR


@kernel(inline=True)
def copy_row(out, row):  # type: ignore[no-untyped-def]
    """out = row, as a loop: a slice assignment compiles to ten times the code."""
    for j in range(row.shape[0]):
        out[j] = row[j]


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


@kernel()
def _load_rows(  # type: ignore[no-untyped-def]
    row_KX, s, n, table_RD, neighbor_SK, event_SK, delta_SK, features_EF,
    weight_X, bias_X, weight_T, bias_T,
):  # fmt: skip
    """The n neighbours of seed s, each [table row ; features ; time code ; padding]."""
    D = table_RD.shape[1]
    F = features_EF.shape[1]
    for i in range(n):
        copy_row(row_KX[i, :D], table_RD[neighbor_SK[s, i]])
        if F > 0:
            copy_row(row_KX[i, D : D + F], features_EF[event_SK[s, i]])
        time_code(row_KX[i, D + F :], delta_SK[s, i], weight_X, bias_X, weight_T, bias_T)


@kernel(sums=True)
def _forward_block(  # type: ignore[no-untyped-def]
    first, last, query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S,
    features_EF, weight_T, bias_T, keep_SKH, attention_SKH, sum_HSW,
):  # fmt: skip
    H, _, W = query_HSW.shape
    K = neighbor_SK.shape[1]
    X = _padded(W)
    code_width = X - table_RD.shape[1] - features_EF.shape[1]
    weight_X, bias_X = np.empty(code_width), np.empty(code_width)
    in_turns(weight_T, bias_T, weight_X, bias_X)
    row_KX = np.empty((K, X), query_HSW.dtype)
    query_HX = np.zeros((H, X), query_HSW.dtype)
    sum_HX = np.empty((H, X), query_HSW.dtype)
    dropout = keep_SKH.shape[0] > 0
    for s in range(first, last):
        n = count_S[s]
        for i in range(n, K):
            for h in range(H):
                attention_SKH[s, i, h] = 0
        _load_rows(
            row_KX, s, n, table_RD, neighbor_SK, event_SK, delta_SK, features_EF,
            weight_X, bias_X, weight_T, bias_T,
        )  # fmt: skip
        for h in range(H):
            copy_row(query_HX[h, :W], query_HSW[h, s])
            largest = query_HSW.dtype.type(-np.inf)
            for i in range(n):
                score = _dot(query_HX[h], row_KX[i])
                attention_SKH[s, i, h] = score
                largest = max(largest, score)
            total = query_HSW.dtype.type(0)
            for i in range(n):
                weight = exponential(attention_SKH[s, i, h] - largest)
                attention_SKH[s, i, h] = weight
                total += weight
            sum_HX[h] = 0
            for i in range(n):
                weight = attention_SKH[s, i, h] / total
                attention_SKH[s, i, h] = weight
                if dropout:
                    weight *= keep_SKH[s, i, h]
                _add_scaled(sum_HX[h], weight, row_KX[i])
            copy_row(sum_HSW[h, s], sum_HX[h, :W])


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
def _time_gradient(  # type: ignore[no-untyped-def]
    s, n, delta_SK, weight_X, bias_X, weight_T, bias_T, query_HX, grad_HX, attention_SKH,
    keep_SKH, grad_score_SKH, slope_X, grad_weight_T, grad_bias_T,
):  # fmt: skip
    """Add seed s's part of the gradients of the time code's parameters."""
    H, X = query_HX.shape
    T = grad_weight_T.shape[0]
    start = X - slope_X.shape[0]
    for i in range(n):
        time_slope(slope_X, delta_SK[s, i], weight_X, bias_X, weight_T, bias_T)
        d = np.float64(delta_SK[s, i])
        for h in range(H):
            weight = attention_SKH[s, i, h]
            if keep_SKH.shape[0] > 0:
                weight *= keep_SKH[s, i, h]
            score = grad_score_SKH[s, i, h]
            for j in range(T):
                code = score * query_HX[h, start + j] + weight * grad_HX[h, start + j]
                step = np.float64(code * slope_X[j])
                grad_bias_T[j] += step
                grad_weight_T[j] += step * d


@kernel(sums=True)
def _backward_block(  # type: ignore[no-untyped-def]
    first, last, query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S,
    features_EF, weight_T, bias_T, keep_SKH, attention_SKH, grad_sum_HSW,
    grad_query_HSW, grad_score_SKH, grad_weight_T, grad_bias_T,
):  # fmt: skip
    H, _, W = query_HSW.shape
    K = neighbor_SK.shape[1]
    X = _padded(W)
    code_width = X - table_RD.shape[1] - features_EF.shape[1]
    weight_X, bias_X = np.empty(code_width), np.empty(code_width)
    in_turns(weight_T, bias_T, weight_X, bias_X)
    row_KX = np.empty((K, X), query_HSW.dtype)
    query_HX = np.zeros((H, X), query_HSW.dtype)
    grad_HX = np.zeros((H, X), query_HSW.dtype)
    sum_X = np.empty(X, query_HSW.dtype)
    slope_X = np.empty(code_width, query_HSW.dtype)
    dropout = keep_SKH.shape[0] > 0
    train_time = grad_weight_T.shape[0] > 0
    grad_weight_T[:] = 0
    grad_bias_T[:] = 0
    for s in range(first, last):
        n = count_S[s]
        for i in range(n, K):
            for h in range(H):
                grad_score_SKH[s, i, h] = 0
        _load_rows(
            row_KX, s, n, table_RD, neighbor_SK, event_SK, delta_SK, features_EF,
            weight_X, bias_X, weight_T, bias_T,
        )  # fmt: skip
        for h in range(H):
            copy_row(grad_HX[h, :W], grad_sum_HSW[h, s])
            mean = query_HSW.dtype.type(0)
            for i in range(n):
                value = _dot(grad_HX[h], row_KX[i])
                if dropout:
                    value *= keep_SKH[s, i, h]
                grad_score_SKH[s, i, h] = value
                mean += attention_SKH[s, i, h] * value
            sum_X[:] = 0
            for i in range(n):
                score = attention_SKH[s, i, h] * (grad_score_SKH[s, i, h] - mean)
                grad_score_SKH[s, i, h] = score
                _add_scaled(sum_X, score, row_KX[i])
            copy_row(grad_query_HSW[h, s], sum_X[:W])
        if train_time:
            for h in range(H):
                copy_row(query_HX[h, :W], query_HSW[h, s])
            _time_gradient(
                s, n, delta_SK, weight_X, bias_X, weight_T, bias_T, query_HX, grad_HX,
                attention_SKH, keep_SKH, grad_score_SKH, slope_X, grad_weight_T, grad_bias_T,
            )  # fmt: skip


@kernel(parallel=True)
def attention_backward(  # type: ignore[no-untyped-def]
    query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S,
    features_EF, weight_T, bias_T, keep_SKH, attention_SKH, grad_sum_HSW,
    grad_query_HSW, grad_score_SKH, grad_weight_BT, grad_bias_BT,
):  # fmt: skip
    """Gradients by seed: query, scores; and of the time code, one float64 row a block.

    `grad_weight_BT` and `grad_bias_BT` of width 0 mean a fixed time code.
    """
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
