"""CPU kernels of a whole attention layer: a block of seeds goes through all its steps at once.

Between two steps of a layer stand matrix products, and a product of all seeds leaves its result in
the memory that both cores share, from where the next step reads it. Here a thread takes some seeds
through the queries, the attention, the values and the merge while their rows are in its own cache;
backward the same. Only the weights' gradients are sums over all seeds: they are left to the caller.

Over a table without columns (TGAT's first layer on most published streams) every seed asks the same
query: it is computed once, and Q is then 1, else S.

A mailbox's layer (APAN) adds the heads' results to the own row and normalises the sum, where others
put both side by side; its neighbours' rows are another table than the own ones.

Shape legend: S seeds, K slots per seed, R table rows, D own width, W width of a neighbour's row,
H heads, d width per head, E = H d, J = E + D, T time-code width, B blocks, Q queries.
"""

from __future__ import annotations

import numpy as np

from tidegraph._blocks import apart, in_blocks
from tidegraph._jit import kernel
from tidegraph.ops.attention_kernels import (
    BLOCK,
    backward_block,
    forward_block,
    gather_sum_block,
    table_block,
)
from tidegraph.ops.dropout import fill_block, relu_block, slope_block
from tidegraph.ops.row_kernels import add_columns, copy_row, load_row, sum_blocks
from tidegraph.ops.row_products import (
    JOB,
    SCRATCH,
    add_job,
    add_to_rows,
    multiply_rows,
    pack_jobs,
    packed_size,
)
from tidegraph.ops.tiles import FLOAT, address, keep

EPSILON = 1e-5
"""Added to the variance of what is normalised."""


@kernel(inner=True, sums=True)
def _query_bias(bias_E, time_ET, time_bias_T, out_E):  # type: ignore[no-untyped-def]
    """Phi(0) = cos(b) is the same for every seed: its projection is a bias."""
    T = time_ET.shape[1]
    code_T = np.empty(T, np.float32)
    for j in range(T):
        code_T[j] = np.cos(np.float64(time_bias_T[j]))
    for e in range(out_E.shape[0]):
        total = bias_E[e]
        for j in range(T):
            total += time_ET[e, j] * code_T[j]
        out_E[e] = total


@kernel(inner=True)
def _shared_query(bias_E, key_HdW, scale, query_1E, query_H1W):  # type: ignore[no-untyped-def]
    """What all seeds ask where none has a row of its own."""
    H, d, W = key_HdW.shape
    for e in range(bias_E.shape[0]):
        query_1E[0, e] = bias_E[e] * scale
    for h in range(H):
        for j in range(W):
            query_H1W[h, 0, j] = 0
        for i in range(d):
            for j in range(W):
                query_H1W[h, 0, j] += query_1E[0, h * d + i] * key_HdW[h, i, j]


@kernel(inner=True, sums=True)
def _normalize(joined_SJ, first, last, normal_SE, inverse_S):  # type: ignore[no-untyped-def]
    """The sum of a row's halves, without its mean and by its deviation; the latter's inverse."""
    E = normal_SE.shape[1]
    for s in range(first, last):
        total = np.float32(0)
        for j in range(E):
            total += joined_SJ[s, j] + joined_SJ[s, E + j]
        mean = total / np.float32(E)
        squares = np.float32(0)
        for j in range(E):
            normal_SE[s, j] = joined_SJ[s, j] + joined_SJ[s, E + j] - mean
            squares += normal_SE[s, j] * normal_SE[s, j]
        inverse = np.float32(1.0 / np.sqrt(np.float64(squares) / E + EPSILON))
        inverse_S[s] = inverse
        for j in range(E):
            normal_SE[s, j] *= inverse


@kernel(inner=True, sums=True)
def _normalize_backward(grad_joined_SJ, first, last, normal_SE, inverse_S):  # type: ignore[no-untyped-def]
    """From the gradient of `_normalize`'s rows, in the first halves, to those of both halves."""
    E = normal_SE.shape[1]
    for s in range(first, last):
        total, along = np.float32(0), np.float32(0)
        for j in range(E):
            total += grad_joined_SJ[s, j]
            along += grad_joined_SJ[s, j] * normal_SE[s, j]
        mean, along = total / np.float32(E), along / np.float32(E)
        for j in range(E):
            grad = inverse_S[s] * (grad_joined_SJ[s, j] - mean - normal_SE[s, j] * along)
            grad_joined_SJ[s, j] = grad
            grad_joined_SJ[s, E + j] = grad


@kernel(inner=True)
def _scale_rows(rows_SE, first, last, scale):  # type: ignore[no-untyped-def]
    for s in range(first, last):
        for j in range(rows_SE.shape[1]):
            rows_SE[s, j] *= scale


@kernel(inner=True)  # its arrays overlap the addresses that it forms
def _layer_forward_block(  # type: ignore[no-untyped-def]
    first, last, own_RD, self_S, table_NX, neighbor_SK, event_SK, delta_SK, count_S, features_EF,
    time_T, time_bias_T, packed_P, query_bias_E, merge_in_bias_E, merge_out_bias_E, key, merge_key,
    threshold, keep_scale, scale, keep_SKH, keep_X, attention_SKH, query_QE, query_HQW, sum_HSW,
    joined_SJ, normal_SE, inverse_S, hidden_SE, hidden_X, out_SE,
):  # fmt: skip
    H, S, W = sum_HSW.shape
    E, J = query_QE.shape[1], joined_SJ.shape[1]
    D, d, K = J - E, E // H, neighbor_SK.shape[1]
    scratch_X = np.empty(SCRATCH, np.float32)
    scratch, packed = address(scratch_X), address(packed_P)
    new = np.int64(1)
    rows = last - first
    row_E, row_J, row_W = E * FLOAT, J * FLOAT, W * FLOAT
    joined = address(joined_SJ) + first * row_J
    if D > 0:
        for s in range(first, last):
            load_row(joined_SJ, s, E, own_RD, self_S[s])
        query, own = address(query_QE) + first * row_E, joined + row_E
        apart(multiply_rows, (own, row_J, rows, D, packed, E, query, row_E, new, scratch))
        packed += packed_size(D, E) * FLOAT
        add_to_rows(query, row_E, rows, E, address(query_bias_E))
        _scale_rows(query_QE, first, last, scale)
        for h in range(H):
            wide = address(query_HQW) + (h * S + first) * row_W
            part = query + h * d * FLOAT
            apart(multiply_rows, (part, row_E, rows, d, packed, W, wide, row_W, new, scratch))
            packed += packed_size(d, W) * FLOAT

    if keep_X.shape[0] > 0:
        apart(fill_block, (first * K * H, last * K * H, key, threshold, keep_scale, keep_X))
    apart(forward_block, (
        first, last, query_HQW, table_NX, neighbor_SK, event_SK, delta_SK, count_S, features_EF,
        time_T, time_bias_T, keep_SKH, attention_SKH, sum_HSW,
    ))  # fmt: skip

    for h in range(H):
        wide = address(sum_HSW) + (h * S + first) * row_W
        part = joined + h * d * FLOAT
        apart(multiply_rows, (wide, row_W, rows, W, packed, d, part, row_J, new, scratch))
        packed += packed_size(W, d) * FLOAT
    hidden = address(hidden_SE) + first * row_E
    merged, row_M, M = joined, row_J, J
    if normal_SE.shape[0] > 0:
        _normalize(joined_SJ, first, last, normal_SE, inverse_S)
        merged, row_M, M = address(normal_SE) + first * row_E, row_E, E
    apart(multiply_rows, (merged, row_M, rows, M, packed, E, hidden, row_E, new, scratch))
    packed += packed_size(M, E) * FLOAT
    add_to_rows(hidden, row_E, rows, E, address(merge_in_bias_E))
    apart(relu_block, (first * E, last * E, merge_key, threshold, keep_scale, hidden_X))
    out = address(out_SE) + first * row_E
    apart(multiply_rows, (hidden, row_E, rows, E, packed, E, out, row_E, new, scratch))
    add_to_rows(out, row_E, rows, E, address(merge_out_bias_E))
    keep(scratch_X)


@kernel()
def layer_forward(  # type: ignore[no-untyped-def]
    own_RD, self_S, table_NX, neighbor_SK, event_SK, delta_SK, count_S, features_EF, time_T,
    time_bias_T, query_ED, query_bias_E, query_time_ET, key_HdW, value_HWd, merge_in_EM,
    merge_in_bias_E, merge_out_EE, merge_out_bias_E, key, merge_key, threshold, keep_scale, scale,
    keep_SKH, attention_SKH, query_QE, query_HQW, sum_HSW, joined_SJ, normal_SE, inverse_S,
    hidden_SE, out_SE,
):  # fmt: skip
    """Embeddings of all seeds into `out_SE`; the arrays after `scale` are written.

    `query_QE` is kept after its multiplication by `scale`; without columns in the table it has one
    row, and so has `query_HQW` for each head. `normal_SE` without rows means that nothing is
    normalised: M is then J, else E. A `keep_SKH` of shape [0, 0, 0] means no
    dropout on the attention weights.
    """
    H, d, W = key_HdW.shape
    E, D = query_ED.shape
    M = merge_in_EM.shape[1]
    size = packed_size(D, E) + H * (packed_size(d, W) + packed_size(W, d))
    packed_P = np.empty(size + packed_size(M, E) + packed_size(E, E), np.float32)
    jobs_N7 = np.empty((2 * H + 3, JOB), np.int64)
    to, n = address(packed_P), np.int64(0)
    bias_E = np.empty(E, np.float32)
    _query_bias(query_bias_E, query_time_ET, time_bias_T, bias_E)
    if D > 0:
        to = add_job(jobs_N7, n, address(query_ED), FLOAT, D * FLOAT, D, E, to)
        n += 1
        for h in range(H):
            place = address(key_HdW) + h * d * W * FLOAT
            to = add_job(jobs_N7, n, place, W * FLOAT, FLOAT, d, W, to)
            n += 1
    else:
        _shared_query(bias_E, key_HdW, scale, query_QE, query_HQW)
    for h in range(H):
        place = address(value_HWd) + h * d * W * FLOAT
        to = add_job(jobs_N7, n, place, d * FLOAT, FLOAT, W, d, to)
        n += 1
    to = add_job(jobs_N7, n, address(merge_in_EM), FLOAT, M * FLOAT, M, E, to)
    to = add_job(jobs_N7, n + 1, address(merge_out_EE), FLOAT, E * FLOAT, E, E, to)
    pack_jobs(jobs_N7[: n + 2])
    in_blocks(
        _layer_forward_block, count_S.shape[0], BLOCK,
        (own_RD, self_S, table_NX, neighbor_SK, event_SK, delta_SK, count_S, features_EF, time_T,
         time_bias_T, packed_P, bias_E, merge_in_bias_E, merge_out_bias_E, key, merge_key,
         threshold, keep_scale, scale, keep_SKH, keep_SKH.reshape(keep_SKH.size), attention_SKH,
         query_QE, query_HQW, sum_HSW, joined_SJ, normal_SE, inverse_S, hidden_SE,
         hidden_SE.reshape(hidden_SE.size), out_SE),
    )  # fmt: skip


@kernel(inner=True)
def _layer_backward_block(  # type: ignore[no-untyped-def]
    first, last, grad_SE, table_NX, neighbor_SK, event_SK, delta_SK, count_S, features_EF, time_T,
    time_bias_T, packed_P, keep_SKH, attention_SKH, query_HQW, normal_SE, inverse_S, hidden_X,
    keep_scale, scale, train_own, grad_hidden_SE, grad_hidden_X, grad_joined_SJ, grad_sum_HSW,
    grad_query_HQW, grad_query_QE, grad_score_SKH, grad_weight_BT, grad_bias_BT, column_BX,
):  # fmt: skip
    H, S, W = grad_sum_HSW.shape
    E, J = grad_SE.shape[1], grad_joined_SJ.shape[1]
    D, d = J - E, E // H
    scratch_X = np.empty(SCRATCH, np.float32)
    scratch, packed = address(scratch_X), address(packed_P)
    new, more = np.int64(1), np.int64(0)
    rows = last - first
    row_E, row_J, row_W = E * FLOAT, J * FLOAT, W * FLOAT
    out = address(grad_SE) + first * row_E
    hidden = address(grad_hidden_SE) + first * row_E
    joined = address(grad_joined_SJ) + first * row_J
    query = address(grad_query_QE) + first * row_E

    apart(multiply_rows, (out, row_E, rows, E, packed, E, hidden, row_E, new, scratch))
    packed += packed_size(E, E) * FLOAT
    apart(slope_block, (first * E, last * E, grad_hidden_X, hidden_X, keep_scale))
    M = E if normal_SE.shape[0] > 0 else J
    apart(multiply_rows, (hidden, row_E, rows, E, packed, M, joined, row_J, new, scratch))
    packed += packed_size(E, M) * FLOAT
    if normal_SE.shape[0] > 0:
        _normalize_backward(grad_joined_SJ, first, last, normal_SE, inverse_S)
    for h in range(H):
        wide = address(grad_sum_HSW) + (h * S + first) * row_W
        part = joined + h * d * FLOAT
        apart(multiply_rows, (part, row_J, rows, d, packed, W, wide, row_W, new, scratch))
        packed += packed_size(d, W) * FLOAT

    apart(backward_block, (
        first, last, query_HQW, table_NX, neighbor_SK, event_SK, delta_SK, count_S, features_EF,
        time_T, time_bias_T, keep_SKH, attention_SKH, grad_sum_HSW, grad_query_HQW, grad_score_SKH,
        grad_weight_BT, grad_bias_BT,
    ))  # fmt: skip

    add_columns(grad_hidden_SE, first, last, column_BX, first // BLOCK, E)
    add_columns(grad_SE, first, last, column_BX, first // BLOCK, 2 * E)
    if D > 0:
        for h in range(H):
            wide = address(grad_query_HQW) + (h * S + first) * row_W
            part = query + h * d * FLOAT
            apart(multiply_rows, (wide, row_W, rows, W, packed, d, part, row_E, new, scratch))
            packed += packed_size(W, d) * FLOAT
        _scale_rows(grad_query_QE, first, last, scale)
        add_columns(grad_query_QE, first, last, column_BX, first // BLOCK, 0)
        if train_own:
            own = joined + row_E
            apart(multiply_rows, (query, row_E, rows, E, packed, D, own, row_J, more, scratch))
    keep(scratch_X)


@kernel(inner=True)
def _layer_table_block(  # type: ignore[no-untyped-def]
    first, last, query_HQW, grad_sum_HSW, attention_SKH, keep_SKH, grad_score_SKH, indptr_R1,
    slot_M, grad_own_SD, self_indptr_R1, self_M, grad_table_RD,
):  # fmt: skip
    apart(table_block, (
        first, last, query_HQW, grad_sum_HSW, attention_SKH, keep_SKH, grad_score_SKH, indptr_R1,
        slot_M, grad_table_RD,
    ))  # fmt: skip
    apart(gather_sum_block, (first, last, grad_own_SD, self_indptr_R1, self_M, True, grad_table_RD))


@kernel(inner=True)
def _shared_query_gradients(grad_query_HBW, key_HdW, scale, grad_bias_E):  # type: ignore[no-untyped-def]
    """The blocks' gradients of the one query, added up in their first row; that of its bias."""
    H, d, W = key_HdW.shape
    total_W = np.empty(W, np.float64)
    for h in range(H):
        sum_blocks(grad_query_HBW[h], 0, total_W)
        copy_row(grad_query_HBW[h, 0], total_W)
        for i in range(d):
            total = 0.0
            for j in range(W):
                total += key_HdW[h, i, j] * total_W[j]
            grad_bias_E[h * d + i] = total * scale


@kernel(inner=True)
def _bias_gradients(column_BX, time_bias_T, grad_bias_3E, grad_query_time_ET):  # type: ignore[no-untyped-def]
    """The blocks' sums added up; the queries' time weights met cos(b) in every seed."""
    E = grad_bias_3E.shape[1]
    sum_blocks(column_BX, E, grad_bias_3E[1])
    sum_blocks(column_BX, 2 * E, grad_bias_3E[2])
    for j in range(grad_query_time_ET.shape[1]):
        code = np.float32(np.cos(np.float64(time_bias_T[j])))
        for e in range(E):
            grad_query_time_ET[e, j] = grad_bias_3E[0, e] * code


@kernel()
def layer_backward(  # type: ignore[no-untyped-def]
    grad_SE, table_NX, neighbor_SK, event_SK, delta_SK, count_S, features_EF, time_T, time_bias_T,
    query_ED, key_HdW, value_HWd, merge_in_EM, merge_out_EE,
    keep_SKH, attention_SKH, query_HQW, normal_SE, inverse_S, hidden_SE, keep_scale, scale,
    indptr_R1, slot_M, self_indptr_R1, self_M,
    grad_hidden_SE, grad_joined_SJ, grad_sum_HSW, grad_query_HQW, grad_query_QE, grad_weight_BT,
    grad_bias_BT, grad_bias_3E, grad_query_time_ET, grad_own_RD,
):  # fmt: skip
    """From the gradient of the embeddings to those of every row before; the arrays from
    `grad_hidden_SE` on are written.

    `grad_bias_3E` gets those of the biases: of the queries, of the merge's first and second matrix.
    Where all seeds share a query, `grad_query_HQW` has a row a block, and the first gets their sum.
    A `grad_own_RD` without rows means own rows that are not trained, an
    `indptr_R1` without borders neighbours' rows that are constants, a `grad_weight_BT` of width 0
    a fixed time code.
    """
    H, d, W = key_HdW.shape
    E, D = query_ED.shape
    M = merge_in_EM.shape[1]
    size = packed_size(E, E) + packed_size(E, M) + packed_size(E, D)
    size += H * (packed_size(d, W) + packed_size(W, d))
    packed_P = np.empty(size, np.float32)
    jobs_N7 = np.empty((2 * H + 3, JOB), np.int64)
    to, n = address(packed_P), np.int64(2)
    to = add_job(jobs_N7, np.int64(0), address(merge_out_EE), E * FLOAT, FLOAT, E, E, to)
    to = add_job(jobs_N7, np.int64(1), address(merge_in_EM), M * FLOAT, FLOAT, E, M, to)
    for h in range(H):
        place = address(value_HWd) + h * d * W * FLOAT
        to = add_job(jobs_N7, n, place, FLOAT, d * FLOAT, d, W, to)
        n += 1
    if D > 0:
        for h in range(H):
            place = address(key_HdW) + h * d * W * FLOAT
            to = add_job(jobs_N7, n, place, FLOAT, W * FLOAT, W, d, to)
            n += 1
        to = add_job(jobs_N7, n, address(query_ED), D * FLOAT, FLOAT, E, D, to)
        n += 1
    pack_jobs(jobs_N7[:n])
    grad_score_SKH = np.empty_like(attention_SKH)
    train_own = grad_own_RD.shape[0] > 0
    column_BX = np.empty((-(-count_S.shape[0] // BLOCK), 3 * E), np.float32)
    in_blocks(
        _layer_backward_block, count_S.shape[0], BLOCK,
        (grad_SE, table_NX, neighbor_SK, event_SK, delta_SK, count_S, features_EF, time_T,
         time_bias_T, packed_P, keep_SKH, attention_SKH, query_HQW, normal_SE, inverse_S,
         hidden_SE.reshape(hidden_SE.size), keep_scale, scale, train_own, grad_hidden_SE,
         grad_hidden_SE.reshape(grad_hidden_SE.size), grad_joined_SJ, grad_sum_HSW, grad_query_HQW,
         grad_query_QE, grad_score_SKH, grad_weight_BT, grad_bias_BT, column_BX),
    )  # fmt: skip
    if D > 0:
        sum_blocks(column_BX, 0, grad_bias_3E[0])
    else:
        _shared_query_gradients(grad_query_HQW, key_HdW, scale, grad_bias_3E[0])
    _bias_gradients(column_BX, time_bias_T, grad_bias_3E, grad_query_time_ET)
    if train_own and indptr_R1.shape[0] > 0:
        in_blocks(
            _layer_table_block, grad_own_RD.shape[0], BLOCK,
            (query_HQW, grad_sum_HSW, attention_SKH, keep_SKH, grad_score_SKH, indptr_R1, slot_M,
             grad_joined_SJ[:, E:], self_indptr_R1, self_M, grad_own_RD),
        )  # fmt: skip
    elif train_own:
        in_blocks(
            gather_sum_block, grad_own_RD.shape[0], BLOCK,
            (grad_joined_SJ[:, E:], self_indptr_R1, self_M, False, grad_own_RD),
        )  # fmt: skip
