"""CPU kernels over segments: softmax, weighted sums, and attention over ragged neighbourhoods.

Work is cut as `segment_cuts` says: a parallel loop over blocks of pieces, each piece at most 64
edges of one segment. A whole segment is finished by its piece; a split one leaves partial results,
which a short serial pass adds in order. No atomics, and no order that depends on threads.

Shape legend: S segments, M edges, U pieces, X split segments, P their pieces, B blocks, R table
rows, H heads, G heads of a table's rows (H, or 1 where heads share them), d width per head, D table
width, F event-feature width, T time-code width, W = D + F + T, Z = W padded.
"""

from __future__ import annotations

import numpy as np

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.ops.elementary import exponential
from tidegraph.ops.feature_rows import load_features
from tidegraph.ops.row_kernels import copy_row, load_row, padded
from tidegraph.ops.segment_cuts import PIECE
from tidegraph.ops.time_kernels import split_turns, time_code, time_slope


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


# ---------------------------------------------------------------- partial results, in order


@kernel()
def merge_softmax(part_X1, largest_HP, total_HP, factor_HP):  # type: ignore[no-untyped-def]
    """What each piece's weights, relative to its own largest score, are multiplied by."""
    for h in range(largest_HP.shape[0]):
        for x in range(part_X1.shape[0] - 1):
            largest = largest_HP[h, part_X1[x]]
            for p in range(part_X1[x], part_X1[x + 1]):
                largest = max(largest, largest_HP[h, p])
            total = largest_HP.dtype.type(0)
            for p in range(part_X1[x], part_X1[x + 1]):
                factor_HP[h, p] = exponential(largest_HP[h, p] - largest)
                total += factor_HP[h, p] * total_HP[h, p]
            for p in range(part_X1[x], part_X1[x + 1]):
                factor_HP[h, p] /= total


@kernel(sums=True)
def merge_parts(split_X, part_X1, factor_P, part_PZ, out_SZ):  # type: ignore[no-untyped-def]
    """out[s] = sum of factor * part over the pieces of s; `factor_P` of length 0 means 1."""
    scaled = factor_P.shape[0] > 0
    for x in range(split_X.shape[0]):
        out = out_SZ[split_X[x]]
        out[:] = 0
        for p in range(part_X1[x], part_X1[x + 1]):
            scale = factor_P[p] if scaled else out_SZ.dtype.type(1)
            _add_scaled(out, scale, part_PZ[p])


@kernel()
def share_totals(part_X1, value_HP):  # type: ignore[no-untyped-def]
    """Replace every piece's value by the total over its segment."""
    for h in range(value_HP.shape[0]):
        for x in range(part_X1.shape[0] - 1):
            total = value_HP.dtype.type(0)
            for p in range(part_X1[x], part_X1[x + 1]):
                total += value_HP[h, p]
            for p in range(part_X1[x], part_X1[x + 1]):
                value_HP[h, p] = total


@kernel(block=True)
def _rescale_block(block, _, block_B1, first_U1, part_U, factor_HP, weight_MH):  # type: ignore[no-untyped-def]
    first_u, last_u = block_B1[block], block_B1[block + 1]
    for u in range(first_u, last_u):
        p = part_U[u]
        if p >= 0:
            for m in range(first_U1[u], first_U1[u + 1]):
                for h in range(weight_MH.shape[1]):
                    weight_MH[m, h] *= factor_HP[h, p]


@kernel()
def rescale(block_B1, first_U1, part_U, factor_HP, weight_MH):  # type: ignore[no-untyped-def]
    """Multiply the weights of split segments by their piece's factor."""
    in_blocks(
        _rescale_block, block_B1.shape[0] - 1, 1, (block_B1, first_U1, part_U, factor_HP, weight_MH)
    )


# ---------------------------------------------------------------- softmax


@kernel(block=True, sums=True)
def _softmax_block(  # type: ignore[no-untyped-def]
    block, _, block_B1, first_U1, part_U, score_MH, weight_MH, largest_HP, total_HP
):
    first_u, last_u = block_B1[block], block_B1[block + 1]
    for u in range(first_u, last_u):
        first, last, p = first_U1[u], first_U1[u + 1], part_U[u]
        for h in range(score_MH.shape[1]):
            largest = score_MH.dtype.type(-np.inf)
            for m in range(first, last):
                largest = max(largest, score_MH[m, h])
            total = score_MH.dtype.type(0)
            for m in range(first, last):
                weight = exponential(score_MH[m, h] - largest)
                weight_MH[m, h] = weight
                total += weight
            if p >= 0:
                largest_HP[h, p] = largest
                total_HP[h, p] = total
            else:
                for m in range(first, last):
                    weight_MH[m, h] /= total


@kernel()
def softmax_forward(  # type: ignore[no-untyped-def]
    block_B1, first_U1, part_U, score_MH, weight_MH, largest_HP, total_HP
):
    """Softmax of whole segments; of split ones, each piece's own terms, largest and total."""
    in_blocks(
        _softmax_block, block_B1.shape[0] - 1, 1,
        (block_B1, first_U1, part_U, score_MH, weight_MH, largest_HP, total_HP),
    )  # fmt: skip


@kernel(block=True, sums=True)
def _softmax_mean_block(  # type: ignore[no-untyped-def]
    block, _, block_B1, first_U1, part_U, weight_MH, grad_weight_MH, mean_HP, grad_score_MH
):
    first_u, last_u = block_B1[block], block_B1[block + 1]
    for u in range(first_u, last_u):
        first, last, p = first_U1[u], first_U1[u + 1], part_U[u]
        for h in range(weight_MH.shape[1]):
            mean = weight_MH.dtype.type(0)
            for m in range(first, last):
                mean += weight_MH[m, h] * grad_weight_MH[m, h]
            if p >= 0:
                mean_HP[h, p] = mean
            for m in range(first, last):
                grad_score_MH[m, h] = weight_MH[m, h] * (grad_weight_MH[m, h] - mean)


@kernel()
def softmax_backward(  # type: ignore[no-untyped-def]
    block_B1, first_U1, part_U, weight_MH, grad_weight_MH, mean_HP, grad_score_MH
):
    """Gradients of the scores of whole segments; of split ones, each piece's part of the mean."""
    in_blocks(
        _softmax_mean_block, block_B1.shape[0] - 1, 1,
        (block_B1, first_U1, part_U, weight_MH, grad_weight_MH, mean_HP, grad_score_MH),
    )  # fmt: skip


@kernel(block=True)
def _softmax_split_block(  # type: ignore[no-untyped-def]
    block, _, block_B1, first_U1, part_U, weight_MH, grad_weight_MH, mean_HP, grad_score_MH
):
    first_u, last_u = block_B1[block], block_B1[block + 1]
    for u in range(first_u, last_u):
        p = part_U[u]
        if p >= 0:
            for m in range(first_U1[u], first_U1[u + 1]):
                for h in range(weight_MH.shape[1]):
                    step = grad_weight_MH[m, h] - mean_HP[h, p]
                    grad_score_MH[m, h] = weight_MH[m, h] * step


@kernel()
def softmax_backward_split(  # type: ignore[no-untyped-def]
    block_B1, first_U1, part_U, weight_MH, grad_weight_MH, mean_HP, grad_score_MH
):
    """Gradients of the scores of split segments, whose means are known now."""
    in_blocks(
        _softmax_split_block, block_B1.shape[0] - 1, 1,
        (block_B1, first_U1, part_U, weight_MH, grad_weight_MH, mean_HP, grad_score_MH),
    )  # fmt: skip


# ---------------------------------------------------------------- weighted sums


@kernel(block=True, sums=True)
def _sum_block(  # type: ignore[no-untyped-def]
    block, _, block_B1, segment_U, first_U1, part_U, order_M, column_M, weight_MH,
    table_RGd, out_SGd, part_PGd,
):  # fmt: skip
    first_u, last_u = block_B1[block], block_B1[block + 1]
    H = weight_MH.shape[1]
    shared_rows, shared_out = table_RGd.shape[1] == 1, out_SGd.shape[1] == 1
    ordered = order_M.shape[0] > 0
    for u in range(first_u, last_u):
        p = part_U[u]
        out_Gd = part_PGd[p] if p >= 0 else out_SGd[segment_U[u]]
        out_Gd[:] = 0
        for i in range(first_U1[u], first_U1[u + 1]):
            m = np.int64(order_M[i]) if ordered else i
            row_Gd = table_RGd[column_M[m]]
            for h in range(H):
                _add_scaled(
                    out_Gd[0 if shared_out else h],
                    weight_MH[m, h],
                    row_Gd[0 if shared_rows else h],
                )


@kernel()
def weighted_sum(  # type: ignore[no-untyped-def]
    block_B1, segment_U, first_U1, part_U, order_M, column_M, weight_MH,
    table_RGd, out_SGd, part_PGd,
):  # fmt: skip
    """out[s, h] = sum over the edges m of s of weight[m, h] * table[column[m], h].

    Where the table has one head, all heads read it; where the result has one, they add up in it.
    `order_M` of length 0 means that edge i is the i-th; else the i-th is edge `order_M[i]`.
    """
    in_blocks(
        _sum_block, block_B1.shape[0] - 1, 1,
        (block_B1, segment_U, first_U1, part_U, order_M, column_M, weight_MH, table_RGd, out_SGd,
         part_PGd),
    )  # fmt: skip


@kernel(block=True, sums=True)
def _weight_gradient_block(  # type: ignore[no-untyped-def]
    block, _, block_B1, segment_U, first_U1, column_M, table_RGd, grad_SHd, grad_weight_MH
):
    first_u, last_u = block_B1[block], block_B1[block + 1]
    H = grad_SHd.shape[1]
    shared = table_RGd.shape[1] == 1
    for u in range(first_u, last_u):
        grad_Hd = grad_SHd[segment_U[u]]
        for m in range(first_U1[u], first_U1[u + 1]):
            row_Gd = table_RGd[column_M[m]]
            for h in range(H):
                grad_weight_MH[m, h] = _dot(grad_Hd[h], row_Gd[0 if shared else h])


@kernel()
def weighted_sum_weight_gradient(  # type: ignore[no-untyped-def]
    block_B1, segment_U, first_U1, column_M, table_RGd, grad_SHd, grad_weight_MH
):
    """grad_weight[m, h] = grad[segment of m, h] . table[column[m], h]."""
    in_blocks(
        _weight_gradient_block, block_B1.shape[0] - 1, 1,
        (block_B1, segment_U, first_U1, column_M, table_RGd, grad_SHd, grad_weight_MH),
    )  # fmt: skip


# ---------------------------------------------------------------- attention


@kernel(inner=True)
def _load_rows(  # type: ignore[no-untyped-def]
    row_KZ, first, n, table_RD, neighbor_M, event_M, delta_M, features_EF,
    turns_3Z, limits, weight_T, bias_T,
):  # fmt: skip
    """Edges first .. first + n, each [table row ; features ; time code ; padding]."""
    D = table_RD.shape[1]
    F = features_EF.shape[1]
    for i in range(n):
        m = first + i
        load_row(row_KZ, i, 0, table_RD, neighbor_M[m])
        if F > 0:
            load_features(row_KZ, i, D, features_EF, event_M[m])
        time_code(row_KZ, i, D + F, delta_M[m], turns_3Z, limits, weight_T, bias_T)


@kernel(block=True, sums=True)
def _attend_block(  # type: ignore[no-untyped-def]
    block, _, block_B1, segment_U, first_U1, part_U, query_HSW, table_RD, neighbor_M, event_M,
    delta_M, features_EF, weight_T, bias_T, keep_MH, attention_MH, sum_HSW,
    largest_HP, total_HP, part_HPW,
):  # fmt: skip
    first_u, last_u = block_B1[block], block_B1[block + 1]
    H, _, W = query_HSW.shape
    Z = padded(W)
    code_width = Z - table_RD.shape[1] - features_EF.shape[1]
    turns_3Z = np.empty((3, padded(code_width)), np.float32)
    limits = split_turns(weight_T, bias_T, turns_3Z)
    row_KZ = np.zeros((PIECE, Z), query_HSW.dtype)
    query_Z = np.zeros(Z, query_HSW.dtype)
    sum_Z = np.empty(Z, query_HSW.dtype)
    dropout = keep_MH.shape[0] > 0
    for u in range(first_u, last_u):
        s, first, p = segment_U[u], first_U1[u], part_U[u]
        n = first_U1[u + 1] - first
        _load_rows(
            row_KZ, first, n, table_RD, neighbor_M, event_M, delta_M, features_EF,
            turns_3Z, limits, weight_T, bias_T,
        )  # fmt: skip
        for h in range(H):
            copy_row(query_Z[:W], query_HSW[h, s])
            largest = query_HSW.dtype.type(-np.inf)
            for i in range(n):
                score = _dot(query_Z, row_KZ[i])
                attention_MH[first + i, h] = score
                largest = max(largest, score)
            total = query_HSW.dtype.type(0)
            for i in range(n):
                weight = exponential(attention_MH[first + i, h] - largest)
                attention_MH[first + i, h] = weight
                total += weight
            if p >= 0:  # weights stay relative to this piece until all pieces are known
                largest_HP[h, p] = largest
                total_HP[h, p] = total
                total = query_HSW.dtype.type(1)
            sum_Z[:] = 0
            for i in range(n):
                weight = attention_MH[first + i, h] / total
                attention_MH[first + i, h] = weight
                if dropout:
                    weight *= keep_MH[first + i, h]
                _add_scaled(sum_Z, weight, row_KZ[i])
            copy_row(part_HPW[h, p] if p >= 0 else sum_HSW[h, s], sum_Z[:W])


@kernel()
def attention_forward(  # type: ignore[no-untyped-def]
    block_B1, segment_U, first_U1, part_U, query_HSW, table_RD, neighbor_M, event_M, delta_M,
    features_EF, weight_T, bias_T, keep_MH, attention_MH, sum_HSW, largest_HP, total_HP, part_HPW,
):  # fmt: skip
    """Softmax weights (before dropout) and weighted sums of whole segments; of split ones, each
    piece's own. `keep_MH` of shape [0, 0] means no dropout."""
    in_blocks(
        _attend_block, block_B1.shape[0] - 1, 1,
        (block_B1, segment_U, first_U1, part_U, query_HSW, table_RD, neighbor_M, event_M, delta_M,
         features_EF, weight_T, bias_T, keep_MH, attention_MH, sum_HSW, largest_HP, total_HP,
         part_HPW),
    )  # fmt: skip


@kernel(inner=True, sums=True)
def _time_gradient(  # type: ignore[no-untyped-def]
    first, n, delta_M, turns_3Z, limits, weight_T, bias_T, query_HZ, grad_HZ, attention_MH,
    keep_MH, grad_score_MH, slope_1Z, grad_weight_T, grad_bias_T,
):  # fmt: skip
    """Add the part of n edges to the gradients of the time code's parameters."""
    H, Z = query_HZ.shape
    start = Z - slope_1Z.shape[1]
    for m in range(first, first + n):
        time_slope(slope_1Z, 0, 0, delta_M[m], turns_3Z, limits, weight_T, bias_T)
        d = np.float64(delta_M[m])
        for h in range(H):
            weight = attention_MH[m, h]
            if keep_MH.shape[0] > 0:
                weight *= keep_MH[m, h]
            score = grad_score_MH[m, h]
            for j in range(grad_weight_T.shape[0]):
                code = score * query_HZ[h, start + j] + weight * grad_HZ[h, start + j]
                step = np.float64(code * slope_1Z[0, j])
                grad_bias_T[j] += step
                grad_weight_T[j] += step * d


@kernel(block=True, sums=True)
def _attend_backward_block(  # type: ignore[no-untyped-def]
    block, _, block_B1, segment_U, first_U1, part_U, query_HSW, table_RD, neighbor_M, event_M,
    delta_M, features_EF, weight_T, bias_T, keep_MH, attention_MH, sum_HSW, grad_sum_HSW,
    grad_query_HSW, grad_score_MH, part_HPW, grad_weight_BT, grad_bias_BT,
):  # fmt: skip
    grad_weight_T, grad_bias_T = grad_weight_BT[block], grad_bias_BT[block]
    first_u, last_u = block_B1[block], block_B1[block + 1]
    H, _, W = query_HSW.shape
    Z = padded(W)
    code_width = Z - table_RD.shape[1] - features_EF.shape[1]
    turns_3Z = np.empty((3, padded(code_width)), np.float32)
    limits = split_turns(weight_T, bias_T, turns_3Z)
    row_KZ = np.zeros((PIECE, Z), query_HSW.dtype)
    query_HZ = np.zeros((H, Z), query_HSW.dtype)
    grad_HZ = np.zeros((H, Z), query_HSW.dtype)
    sum_Z = np.empty(Z, query_HSW.dtype)
    slope_1Z = np.empty((1, code_width), query_HSW.dtype)
    dropout = keep_MH.shape[0] > 0
    train_time = grad_weight_T.shape[0] > 0
    grad_weight_T[:] = 0
    grad_bias_T[:] = 0
    for u in range(first_u, last_u):
        s, first, p = segment_U[u], first_U1[u], part_U[u]
        n = first_U1[u + 1] - first
        _load_rows(
            row_KZ, first, n, table_RD, neighbor_M, event_M, delta_M, features_EF,
            turns_3Z, limits, weight_T, bias_T,
        )  # fmt: skip
        for h in range(H):
            copy_row(grad_HZ[h, :W], grad_sum_HSW[h, s])
            mean = query_HSW.dtype.type(0)
            for i in range(n):
                value = _dot(grad_HZ[h], row_KZ[i])
                if dropout:
                    value *= keep_MH[first + i, h]
                grad_score_MH[first + i, h] = value
                mean += attention_MH[first + i, h] * value
            if p >= 0:
                # Over all pieces, sum a keep (g . x) = g . sum a keep x: no other piece is needed.
                mean = _dot(grad_sum_HSW[h, s], sum_HSW[h, s])
            sum_Z[:] = 0
            for i in range(n):
                score = attention_MH[first + i, h] * (grad_score_MH[first + i, h] - mean)
                grad_score_MH[first + i, h] = score
                _add_scaled(sum_Z, score, row_KZ[i])
            copy_row(part_HPW[h, p] if p >= 0 else grad_query_HSW[h, s], sum_Z[:W])
        if train_time:
            for h in range(H):
                copy_row(query_HZ[h, :W], query_HSW[h, s])
            _time_gradient(
                first, n, delta_M, turns_3Z, limits, weight_T, bias_T, query_HZ, grad_HZ,
                attention_MH, keep_MH, grad_score_MH, slope_1Z, grad_weight_T, grad_bias_T,
            )  # fmt: skip


@kernel()
def attention_backward(  # type: ignore[no-untyped-def]
    block_B1, segment_U, first_U1, part_U, query_HSW, table_RD, neighbor_M, event_M, delta_M,
    features_EF, weight_T, bias_T, keep_MH, attention_MH, sum_HSW, grad_sum_HSW,
    grad_query_HSW, grad_score_MH, part_HPW, grad_weight_BT, grad_bias_BT,
):  # fmt: skip
    """Gradients by segment: query (of split ones, each piece's part), scores; and of the time code,
    one float64 row a block, of width 0 where the code is fixed."""
    in_blocks(
        _attend_backward_block, block_B1.shape[0] - 1, 1,
        (block_B1, segment_U, first_U1, part_U, query_HSW, table_RD, neighbor_M, event_M, delta_M,
         features_EF, weight_T, bias_T, keep_MH, attention_MH, sum_HSW, grad_sum_HSW,
         grad_query_HSW, grad_score_MH, part_HPW, grad_weight_BT, grad_bias_BT),
    )  # fmt: skip


@kernel(block=True, sums=True)
def _table_block(  # type: ignore[no-untyped-def]
    block, _, block_B1, row_U, first_U1, part_U, edge_M, segment_M, query_HSW, grad_sum_HSW,
    attention_MH, keep_MH, grad_score_MH, grad_table_RD, part_PD,
):  # fmt: skip
    first_u, last_u = block_B1[block], block_B1[block + 1]
    H = query_HSW.shape[0]
    D = grad_table_RD.shape[1]
    dropout = keep_MH.shape[0] > 0
    for u in range(first_u, last_u):
        p = part_U[u]
        out = part_PD[p] if p >= 0 else grad_table_RD[row_U[u]]
        out[:] = 0
        for i in range(first_U1[u], first_U1[u + 1]):
            m = edge_M[i]
            s = segment_M[m]
            for h in range(H):
                weight = attention_MH[m, h]
                if dropout:
                    weight *= keep_MH[m, h]
                score = grad_score_MH[m, h]
                query = query_HSW[h, s, :D]
                grad = grad_sum_HSW[h, s, :D]
                for j in range(D):
                    out[j] += score * query[j] + weight * grad[j]


@kernel()
def attention_backward_table(  # type: ignore[no-untyped-def]
    block_B1, row_U, first_U1, part_U, edge_M, segment_M, query_HSW, grad_sum_HSW,
    attention_MH, keep_MH, grad_score_MH, grad_table_RD, part_PD,
):  # fmt: skip
    """Gradient by table row: a gather over the edges that use the row, cut like any segment."""
    in_blocks(
        _table_block, block_B1.shape[0] - 1, 1,
        (block_B1, row_U, first_U1, part_U, edge_M, segment_M, query_HSW, grad_sum_HSW,
         attention_MH, keep_MH, grad_score_MH, grad_table_RD, part_PD),
    )  # fmt: skip
