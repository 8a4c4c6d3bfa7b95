"""CPU kernels of scoring: a seed's hidden units from what its group has in common.

Seeds come group by group, and those of one group are computed side by side, step by step: what a
step takes of the group is then in registers or in the nearest cache for all of them.

Time codes depend on a seed's own time differences. Its slots' differ from the last slot's by gaps
that are the group's, and the cosine of a sum is made of cosines and sines of its parts: so a seed
takes one circle (cosines and slopes) of its last slot's difference, and everything else is the
group's. That holds where the gaps are exact; other seeds take a code for each slot.

Shape legend: S seeds, K slots, G groups (distinct neighbourhoods), A distinct own rows, V distinct
value rows, H heads, D table width, T time-code width, W width of a query, E embedding width, N
seeds of a run, B seeds of a block, Q = H * slots in use, X and P padded T and E, Y = 2 X.
"""

from __future__ import annotations

import numpy as np

from tidegraph._blocks import apart, in_blocks
from tidegraph._jit import kernel
from tidegraph.ops.row_kernels import dots, weighted_sums
from tidegraph.ops.row_products import SCRATCH, multiply_rows
from tidegraph.ops.row_vectors import (
    WIDTH,
    dot_rows,
    same_gaps,
    softmax_row,
    sum_rows_from,
    sum_turned_rows,
    turned,
    whole_gaps,
)
from tidegraph.ops.tiles import FLOAT, LANES, address, copy_numbers, keep, place, prefetch_bytes
from tidegraph.ops.time_kernels import split_turns, time_circle, time_code

_SEEDS = 96
"""Seeds whose sums are multiplied together, while they are in the cache."""
_RUN = 16
"""Seeds of one group that are computed side by side."""
_AHEAD = 8  # seeds between the one that is computed and the one whose differences are sent for


@kernel(inline=True)
def _half_padded(width):  # type: ignore[no-untyped-def]
    return (width + WIDTH // 2 - 1) // (WIDTH // 2) * (WIDTH // 2)


@kernel(inner=True)
def _load_group(  # type: ignore[no-untyped-def]
    g, own, value_GK, feature_GK, query_AHW, base_AE, score_GHK, value_VE, feature_NE,
    T, query_HX, score_Q, row_QP, base_P,
):  # fmt: skip
    """What a group's seeds have in common; returns the number of its slots.

    `query_HX` gets the queries of the time code, `score_Q` the scores of everything else, and
    `row_QP` the slots as the merge layer's hidden units see them, the first head's first.
    """
    H, E = score_GHK.shape[1], base_AE.shape[1]
    count = 0
    while count < value_GK.shape[1] and value_GK[g, count] >= 0:
        count += 1
    width = np.int64(E)
    for h in range(H):
        for i in range(count):
            q = h * count + i
            score_Q[q] = score_GHK[g, h, i]
            copy_numbers(place(row_QP, q, 0), place(value_VE, value_GK[g, i], h * E), width)
            if feature_NE.shape[0] > 0:
                n = feature_GK[g, i]
                for j in range(E):
                    row_QP[q, j] += feature_NE[n, h * E + j]
    start = query_AHW.shape[2] - T
    for h in range(H):
        for j in range(T):
            query_HX[h, j] = query_AHW[own, h, start + j]
    for j in range(E):
        base_P[j] = base_AE[own, j]
    return count


@kernel(inner=True)
def _turn_queries(query_HX, zero_X, circle_KY, count, query_QY):  # type: ignore[no-untyped-def]
    """[query * cosine | -query * slope]: cos(x + y) = cos x cos y - sin x sin y."""
    X = np.int64(query_HX.shape[1])
    zero = address(zero_X)
    for h in range(query_HX.shape[0]):
        query = place(query_HX, h, 0)
        for i in range(count):
            cosine, out = place(circle_KY, i, 0), place(query_QY, h * count + i, 0)
            slope = cosine + X * FLOAT
            turned(query, zero, cosine, slope, out, X)
            turned(zero, query, cosine, slope, out + X * FLOAT, X)


@kernel(inline=True)
def _weigh(weight_NQ, n, score_Q, heads, count):  # type: ignore[no-untyped-def]
    """In place, from the time code's scores to weights."""
    for q in range(heads * count):
        weight_NQ[n, q] += score_Q[q]
    for h in range(heads):
        softmax_row(place(weight_NQ, n, h * count), np.int64(count))


@kernel(inner=True)
def _weigh_run(circle_NY, seeds, query_QY, score_Q, heads, count, weight_NQ):  # type: ignore[no-untyped-def]
    """The weights of a run's seeds."""
    Y = np.int64(circle_NY.shape[1])
    for n in range(0, seeds, 2):
        other = min(n + 1, seeds - 1)  # a last seed alone is both
        out_row = np.int64(other - n) * np.int64(weight_NQ.strides[0])
        dot_rows(
            place(circle_NY, n, 0), place(circle_NY, other, 0), address(query_QY), Y * FLOAT,
            np.int64(heads * count), place(weight_NQ, n, 0), out_row, Y,
        )  # fmt: skip
    for n in range(seeds):
        _weigh(weight_NQ, n, score_Q, heads, count)


@kernel(inner=True)
def _sum_codes(weight_NQ, circle_NY, seeds, circle_KY, heads, count, T, out):  # type: ignore[no-untyped-def]
    """The weighted time codes of a run's seeds, [seeds, H T] from the address `out` on.

    What is written beyond T is overwritten by the next head, or the next seed.
    """
    X = np.int64(circle_NY.shape[1] // 2)
    for n in range(seeds):
        for h in range(0, heads, 2):
            other = min(h + 1, heads - 1)
            sum_turned_rows(
                place(weight_NQ, n, h * count), place(weight_NQ, n, other * count),
                address(circle_KY), 2 * X * FLOAT, np.int64(count), place(circle_NY, n, 0),
                out + np.int64((n * heads + h) * T) * FLOAT, np.int64((other - h) * T) * FLOAT, X,
            )  # fmt: skip


@kernel(inner=True)
def _add_values(base_P, weight_NQ, seeds, row_QP, slots, hidden_BP, b):  # type: ignore[no-untyped-def]
    """The hidden units of a run's seeds, but for the time code: the base and the weighted slots."""
    P = np.int64(hidden_BP.shape[1])
    for n in range(0, seeds, 2):
        other = min(n + 1, seeds - 1)
        sum_rows_from(
            address(base_P), place(weight_NQ, n, 0), place(weight_NQ, other, 0), address(row_QP),
            P * FLOAT, np.int64(slots), place(hidden_BP, b + n, 0),
            np.int64(other - n) * P * FLOAT, P,
        )  # fmt: skip


@kernel(inner=True)
def _embed_alone(  # type: ignore[no-untyped-def]
    s, delta_SK, count, query_HX, score_Q, turns_3X, limits, weight_T, bias_T, code_KX, sum_HX,
    weight_HK, weight_NQ, sums_BT, b,
):  # fmt: skip
    """Weights and sums of a seed by a time code for each slot."""
    heads, T = query_HX.shape[0], weight_T.shape[0]
    for i in range(count):
        time_code(code_KX, i, 0, delta_SK[s, i], turns_3X, limits, weight_T, bias_T)
    dots(query_HX, code_KX, count, weight_HK)
    for h in range(heads):
        for i in range(count):
            weight_NQ[0, h * count + i] = weight_HK[h, i]
    _weigh(weight_NQ, 0, score_Q, heads, count)
    for h in range(heads):
        for i in range(count):
            weight_HK[h, i] = weight_NQ[0, h * count + i]
    weighted_sums(weight_HK, code_KX, count, sum_HX)
    for h in range(heads):
        for j in range(T):
            sums_BT[b, h * T + j] = sum_HX[h, j]


@kernel(inline=True)
def _expect(seed_X, x, last, delta_SK, hidden_SE):  # type: ignore[no-untyped-def]
    """Send for where a seed's result goes, and for the differences of one that comes later."""
    soon = seed_X[min(x + _AHEAD, last - 1)]
    prefetch_bytes(place(delta_SK, soon, 0), np.int64(delta_SK.shape[1]) * FLOAT)
    prefetch_bytes(place(hidden_SE, seed_X[x], 0), np.int64(hidden_SE.shape[1]) * FLOAT)


@kernel(inner=True)
def _embed_rows(  # type: ignore[no-untyped-def]
    first, last, seed_X, group_S, delta_SK, own_G, value_GK, feature_GK, query_AHW, base_AE,
    score_GHK, value_VE, feature_NE, weight_T, bias_T, hidden_SE,
    turns_3X, gap_turns_3X, zero_X, scratch_2X, code_KX, circle_KY, circle_NY, gap_K,
    query_HX, query_QY, score_Q, row_QP, base_P, sum_HX, weight_HK, weight_NQ, sums_BT, hidden_BP,
):  # fmt: skip
    """Weighted time codes (`sums_BT`) and the hidden units without them (`hidden_BP`) of the seeds
    `seed_X[first : last]`.

    A kernel of its own, which is handed its scratch arrays: where they are made, each call that
    they are handed on to would count references.
    """
    heads, T = query_HX.shape[0], weight_T.shape[0]
    limits = split_turns(weight_T, bias_T, turns_3X)
    gap_limits = split_turns(weight_T, zero_X, gap_turns_3X)
    delta_bytes = np.int64(delta_SK.strides[0])
    deltas, gaps, sums = address(delta_SK), address(gap_K), address(sums_BT)
    loaded, count, known = -1, 0, False
    x = first
    while x < last:
        s, b = seed_X[x], x - first
        g = group_S[s]
        if g != loaded:
            count = _load_group(
                g, own_G[g], value_GK, feature_GK, query_AHW, base_AE, score_GHK, value_VE,
                feature_NE, T, query_HX, score_Q, row_QP, base_P,
            )  # fmt: skip
            loaded, known = g, False
        slots = np.int64(count)
        at = deltas + np.int64(s) * delta_bytes
        if count > 0 and not (known and same_gaps(at, slots, gaps) == 1):
            known = whole_gaps(at, slots, gaps) == 1
            if known:
                for i in range(count):
                    time_circle(
                        circle_KY, i, gap_K[i], gap_turns_3X, gap_limits, weight_T, zero_X,
                        scratch_2X,
                    )  # fmt: skip
                _turn_queries(query_HX, zero_X, circle_KY, count, query_QY)
        seeds = 0
        while known and seeds < _RUN and x + seeds < last:
            s = seed_X[x + seeds]
            if group_S[s] != g:
                break
            if seeds > 0 and same_gaps(deltas + np.int64(s) * delta_bytes, slots, gaps) == 0:
                break
            _expect(seed_X, x + seeds, last, delta_SK, hidden_SE)
            time_circle(
                circle_NY, seeds, delta_SK[s, count - 1], turns_3X, limits, weight_T, bias_T,
                scratch_2X,
            )  # fmt: skip
            seeds += 1
        if seeds > 0:
            _weigh_run(circle_NY, seeds, query_QY, score_Q, heads, count, weight_NQ)
            out = sums + np.int64(b * heads * T) * FLOAT
            _sum_codes(weight_NQ, circle_NY, seeds, circle_KY, heads, count, T, out)
        else:
            _expect(seed_X, x, last, delta_SK, hidden_SE)
            _embed_alone(
                s, delta_SK, count, query_HX, score_Q, turns_3X, limits, weight_T, bias_T, code_KX,
                sum_HX, weight_HK, weight_NQ, sums_BT, b,
            )  # fmt: skip
            seeds = 1
        _add_values(base_P, weight_NQ, seeds, row_QP, heads * count, hidden_BP, b)
        x += seeds


@kernel(block=True)
def _embed_block(  # type: ignore[no-untyped-def]
    first, last, seed_X, group_S, delta_SK, own_G, value_GK, feature_GK, query_AHW, base_AE,
    score_GHK, value_VE, feature_NE, time_packed, weight_T, bias_T, hidden_SE,
):  # fmt: skip
    H, K = score_GHK.shape[1], delta_SK.shape[1]
    T, E = weight_T.shape[0], base_AE.shape[1]
    X, P = _half_padded(T), _half_padded(E)
    turns_3X, gap_turns_3X = np.empty((3, X), np.float32), np.empty((3, X), np.float32)
    zero_X, scratch_2X = np.zeros(X, np.float32), np.zeros((2, X), np.float32)
    code_KX, circle_KY = np.zeros((K, X), np.float32), np.zeros((K, 2 * X), np.float32)
    circle_NY = np.zeros((_RUN, 2 * X), np.float32)
    gap_K = np.empty(K, np.float32)
    query_HX, query_QY = np.zeros((H, X), np.float32), np.zeros((H * K, 2 * X), np.float32)
    score_Q, weight_NQ = np.empty(H * K, np.float32), np.empty((_RUN, H * K), np.float32)
    row_QP, base_P = np.zeros((H * K, P), np.float32), np.zeros(P, np.float32)
    sum_HX, weight_HK = np.empty((H, X), np.float32), np.empty((H, K), np.float32)
    # `_sum_codes` writes X columns for each head, the last one's beyond the last seed's row.
    sums = np.empty(_SEEDS * H * T + X - T, np.float32)
    sums_BT = sums[: _SEEDS * H * T].reshape(_SEEDS, H * T)
    hidden_BP = np.empty((_SEEDS, P), np.float32)
    scratch = np.empty(SCRATCH, np.float32)
    _embed_rows(
        first, last, seed_X, group_S, delta_SK, own_G, value_GK, feature_GK, query_AHW, base_AE,
        score_GHK, value_VE, feature_NE, weight_T, bias_T, hidden_SE,
        turns_3X, gap_turns_3X, zero_X, scratch_2X, code_KX, circle_KY, circle_NY, gap_K,
        query_HX, query_QY, score_Q, row_QP, base_P, sum_HX, weight_HK, weight_NQ, sums_BT,
        hidden_BP,
    )  # fmt: skip
    depth = np.int64(H * T)
    columns = np.int64((E + LANES - 1) // LANES * LANES)  # the last panel is padded with zeros
    apart(multiply_rows, (
        address(sums), depth * FLOAT, last - first, depth, address(time_packed), columns,
        address(hidden_BP), np.int64(P) * FLOAT, np.int64(0), address(scratch),
    ))  # fmt: skip
    keep(sums)
    keep(scratch)
    keep(hidden_BP)
    zero = np.float32(0)
    for b in range(last - first):
        s = seed_X[first + b]
        for j in range(E):
            hidden_SE[s, j] = max(hidden_BP[b, j], zero)


@kernel()
def embed_seeds(  # type: ignore[no-untyped-def]
    seed_X, group_S, delta_SK, own_G, value_GK, feature_GK, query_AHW, base_AE, score_GHK,
    value_VE, feature_NE, time_packed, weight_T, bias_T, hidden_SE,
):  # fmt: skip
    """The merge layer's hidden units of the seeds `seed_X`, which come group by group.

    Args:
        group_S: rows of the arrays by group.
        own_G: rows of `query_AHW` (key projection applied) and `base_AE` (the seed's own part of
            the hidden layer).
        value_GK, feature_GK: rows of `value_VE` and `feature_NE` [., H E], the slots' parts of the
            hidden layer by head; -1 beyond the last slot.
        time_packed: the same for the time code, [H T, E].
    """
    seeds = seed_X.shape[0]
    in_blocks(
        _embed_block, seeds, _SEEDS,
        (seed_X, group_S, delta_SK, own_G, value_GK, feature_GK, query_AHW, base_AE, score_GHK,
         value_VE, feature_NE, time_packed, weight_T, bias_T, hidden_SE),
    )  # fmt: skip
