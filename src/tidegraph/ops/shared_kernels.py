"""CPU kernels of scoring: what seeds with one neighbourhood share is computed once for all of them.

Candidates of many events ask about the same nodes at different times. As long as nothing happens to
a node, its neighbourhood stays the same, and only the time differences move: everything else (the
query, the scores and values of memories and features) is the neighbourhood's.

Shape legend: S seeds, K slots, G groups (distinct neighbourhoods), A distinct own rows, V distinct
value rows, H heads, D table width, F event-feature width, T time-code width, W = D + F + T,
E embedding width, X padded width.
"""

from __future__ import annotations

import numpy as np

from tidegraph._blocks import apart, in_blocks
from tidegraph._jit import kernel
from tidegraph.ops.attention_kernels import BLOCK, softmax
from tidegraph.ops.feature_rows import load_features
from tidegraph.ops.row_kernels import dots, load_row, padded, weighted_sums
from tidegraph.ops.row_products import SCRATCH, multiply_rows
from tidegraph.ops.row_vectors import WIDTH, add_rows, turned
from tidegraph.ops.tiles import FLOAT, LANES, address, keep, place
from tidegraph.ops.time_kernels import split_turns, time_circle, time_code

_SEEDS = 48
"""Seeds whose sums are multiplied together, while they are in the cache."""
_EXACT = 2.0**24  # whole numbers below it are exact in float32, and so are their differences


@kernel(inline=True)
def _mixed(value, part):  # type: ignore[no-untyped-def]
    value = (value ^ np.uint64(part)) * np.uint64(0x9E3779B97F4A7C15)
    return value ^ (value >> np.uint64(32))


@kernel(inner=True)
def _same(s, q, self_S, neighbor_SK, event_SK, count_S):  # type: ignore[no-untyped-def]
    if self_S[s] != self_S[q] or count_S[s] != count_S[q]:
        return False
    for i in range(count_S[s]):
        if neighbor_SK[s, i] != neighbor_SK[q, i] or event_SK[s, i] != event_SK[q, i]:
            return False
    return True


@kernel()
def group_seeds(self_S, neighbor_SK, event_SK, count_S, group_S, first_G):  # type: ignore[no-untyped-def]
    """Number the distinct (own row, neighbours, events), in order of first appearance.

    Writes each seed's group and each group's first seed; returns how many there are.
    """
    S = self_S.shape[0]
    size = 16
    while size < 2 * S:
        size *= 2
    mask = np.uint64(size - 1)
    slot = np.full(size, -1, np.int32)
    groups = 0
    for s in range(S):
        h = _mixed(np.uint64(count_S[s]), self_S[s])
        for i in range(count_S[s]):
            h = _mixed(h, (np.int64(event_SK[s, i]) << 32) | np.int64(neighbor_SK[s, i]))
        h = (h * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(17)
        while True:
            h &= mask
            found = slot[h]
            if found < 0:
                slot[h] = groups
                first_G[groups] = s
                group_S[s] = groups
                groups += 1
                break
            if _same(s, first_G[found], self_S, neighbor_SK, event_SK, count_S):
                group_S[s] = found
                break
            h += np.uint64(1)
    return groups


@kernel()
def used_slots(first_G, neighbor_SK, event_SK, count_S, neighbor_GK, event_GK):  # type: ignore[no-untyped-def]
    """Copy the groups' slots; unused ones become -1."""
    for g in range(first_G.shape[0]):
        s = first_G[g]
        for i in range(neighbor_SK.shape[1]):
            used = i < count_S[s]
            neighbor_GK[g, i] = neighbor_SK[s, i] if used else -1
            event_GK[g, i] = event_SK[s, i] if used else -1


@kernel(block=True)
def _static_block(  # type: ignore[no-untyped-def]
    first, last, own_G, neighbor_GK, event_GK, query_AHW, table_RD, features_EF, score_GHK
):
    H, W = query_AHW.shape[1], table_RD.shape[1] + features_EF.shape[1]
    K, D = neighbor_GK.shape[1], table_RD.shape[1]
    X = padded(W)
    row_KX = np.zeros((K, X), query_AHW.dtype)
    query_HX = np.zeros((H, X), query_AHW.dtype)
    for g in range(first, last):
        count = 0
        while count < K and neighbor_GK[g, count] >= 0:
            load_row(row_KX, count, 0, table_RD, neighbor_GK[g, count])
            if W > D:
                load_features(row_KX, count, D, features_EF, event_GK[g, count])
            count += 1
        for h in range(H):
            for j in range(W):
                query_HX[h, j] = query_AHW[own_G[g], h, j]
        dots(query_HX, row_KX, count, score_GHK[g])


@kernel()
def static_scores(  # type: ignore[no-untyped-def]
    own_G, neighbor_GK, event_GK, query_AHW, table_RD, features_EF, score_GHK
):
    """score[g, h, i] = query . [table row ; event features] of slot i: all but the time code."""
    G = own_G.shape[0]
    in_blocks(
        _static_block, G, BLOCK,
        (own_G, neighbor_GK, event_GK, query_AHW, table_RD, features_EF, score_GHK),
    )  # fmt: skip


@kernel(inner=True)
def _load_values(g, value_GK, feature_GK, value_VE, feature_NE, row_KE, width):  # type: ignore[no-untyped-def]
    """The group's slots as the merge layer's hidden units see them, all heads side by side."""
    for i in range(value_GK.shape[1]):
        v = value_GK[g, i]
        if v < 0:
            return i
        for j in range(width):
            row_KE[i, j] = value_VE[v, j]
        if feature_NE.shape[0] > 0:
            n = feature_GK[g, i]
            for j in range(width):
                row_KE[i, j] += feature_NE[n, j]
    return value_GK.shape[1]


@kernel(inner=True)
def _exact_gaps(s, delta_SK, count, gap_K):  # type: ignore[no-untyped-def]
    """Times between the slots' events and the last one's, where float32 holds them exactly.

    Returns whether it does: a matter of the seed's own differences, so that a seed is computed in
    the same way whatever is beside it.
    """
    if count == 0:
        return False
    last = np.float64(delta_SK[s, count - 1])
    exact = True
    for i in range(count):  # to the end in any case: a way out would be a branch for each
        delta = np.float64(delta_SK[s, i])
        exact &= (abs(delta) < _EXACT) & (delta == np.rint(delta))
        gap_K[i] = delta - last
    return exact


@kernel(inner=True)
def _load_circles(  # type: ignore[no-untyped-def]
    gap_K, count, loaded_K, circle_KY, turns_3X, limits, weight_T, zero_T, scratch_2X
):
    """[cosines | slopes] of the gaps, unless they are there already."""
    same = True
    for i in range(count):
        same &= gap_K[i] == loaded_K[i]
    if same:
        return
    for i in range(count):
        time_circle(circle_KY, i, gap_K[i], turns_3X, limits, weight_T, zero_T, scratch_2X)
        loaded_K[i] = gap_K[i]


@kernel(inline=True)
def _half_padded(width):  # type: ignore[no-untyped-def]
    return (width + WIDTH // 2 - 1) // (WIDTH // 2) * (WIDTH // 2)


@kernel(inner=True)
def _turn_queries(query_HX, zero_X, circle_1Y, turned_HY):  # type: ignore[no-untyped-def]
    """[query * cosine | -query * slope]: cos(x + y) = cos x cos y - sin x sin y."""
    X = np.int64(query_HX.shape[1])
    zero, cosine = address(zero_X), address(circle_1Y)
    slope = cosine + X * FLOAT
    for h in range(query_HX.shape[0]):
        query, out = place(query_HX, h, 0), place(turned_HY, h, 0)
        turned(query, zero, cosine, slope, out, X)
        turned(zero, query, cosine, slope, out + X * FLOAT, X)


@kernel()
def _weights(score_HK, static_GHK, g, count):  # type: ignore[no-untyped-def]
    for h in range(score_HK.shape[0]):
        for i in range(count):
            score_HK[h, i] += static_GHK[g, h, i]
    softmax(score_HK, count)


@kernel(inner=True)
def _turn_sums(sum_HY, circle_1Y, T, sums):  # type: ignore[no-untyped-def]
    H, X = sum_HY.shape[0], np.int64(sum_HY.shape[1] // 2)
    cosine = address(circle_1Y)
    for h in range(H):
        part = place(sum_HY, h, 0)
        # What is written beyond T is overwritten by the next head, or the next seed.
        turned(
            part, part + X * FLOAT, cosine, cosine + X * FLOAT, sums + np.int64(h * T) * FLOAT,
            np.int64(T),
        )  # fmt: skip


@kernel(inner=True)
def _add_values(weight_HK, count, row_KE, hidden_BP, b):  # type: ignore[no-untyped-def]
    """The weighted slots of all heads, added to a seed's hidden units."""
    P = np.int64(hidden_BP.shape[1])
    row_bytes = np.int64(row_KE.strides[0])
    E = (np.int64(row_KE.shape[1]) - WIDTH // 2) // weight_HK.shape[0]
    for h in range(weight_HK.shape[0]):
        # Columns from E on are another head's: they meet those of `hidden_BP` that nobody reads.
        add_rows(
            place(weight_HK, h, 0), place(row_KE, 0, h * E), row_bytes, np.int64(count),
            place(hidden_BP, b, 0), P,
        )  # fmt: skip


@kernel(block=True)
def _embed_block(  # type: ignore[no-untyped-def]
    first, last, seed_X, group_S, delta_SK, own_G, value_GK, feature_GK, query_AHW, base_AE,
    score_GHK, value_VE, feature_NE, time_packed, weight_T, bias_T, hidden_SE,
):  # fmt: skip
    H, K = score_GHK.shape[1], delta_SK.shape[1]
    T, E = weight_T.shape[0], base_AE.shape[1]
    start = query_AHW.shape[2] - T
    X, P = _half_padded(T), _half_padded(E)
    turns_3X, gap_turns_3X = np.empty((3, X), np.float32), np.empty((3, X), np.float32)
    limits = split_turns(weight_T, bias_T, turns_3X)
    zero_T = np.zeros(T, np.float32)
    gap_limits = split_turns(weight_T, zero_T, gap_turns_3X)
    code_KX, circle_KY = np.zeros((K, X), np.float32), np.zeros((K, 2 * X), np.float32)
    circle_1Y, scratch_2X = np.zeros((1, 2 * X), np.float32), np.zeros((2, X), np.float32)
    zero_X = np.zeros(X, np.float32)
    gap_K, loaded_K = np.empty(K, np.float64), np.full(K, np.nan)
    query_HX, turned_HY = np.zeros((H, X), np.float32), np.zeros((H, 2 * X), np.float32)
    sum_HX, sum_HY = np.empty((H, X), np.float32), np.empty((H, 2 * X), np.float32)
    weight_HK = np.empty((H, K), np.float32)
    row_KE = np.zeros((K, H * E + WIDTH // 2), np.float32)
    sums = np.empty(_SEEDS * H * T + LANES, np.float32)
    sums_BT = sums[: _SEEDS * H * T].reshape(_SEEDS, H * T)
    hidden_BP = np.zeros((_SEEDS, P), np.float32)
    result_BE = np.empty((_SEEDS, E), np.float32)
    scratch = np.empty(SCRATCH, np.float32)
    loaded = -1
    count = 0
    for b in range(last - first):
        s = seed_X[first + b]
        g = group_S[s]
        if g != loaded:
            count = _load_values(g, value_GK, feature_GK, value_VE, feature_NE, row_KE, H * E)
            for h in range(H):
                for j in range(T):
                    query_HX[h, j] = query_AHW[own_G[g], h, start + j]
            loaded = g
        if _exact_gaps(s, delta_SK, count, gap_K):
            _load_circles(
                gap_K, count, loaded_K, circle_KY, gap_turns_3X, gap_limits, weight_T, zero_T,
                scratch_2X,
            )  # fmt: skip
            time_circle(
                circle_1Y, 0, delta_SK[s, count - 1], turns_3X, limits, weight_T, bias_T, scratch_2X
            )
            _turn_queries(query_HX, zero_X, circle_1Y, turned_HY)
            dots(turned_HY, circle_KY, count, weight_HK)
            _weights(weight_HK, score_GHK, g, count)
            weighted_sums(weight_HK, circle_KY, count, sum_HY)
            _turn_sums(sum_HY, circle_1Y, T, address(sums) + np.int64(b * H * T) * FLOAT)
        else:
            for i in range(count):
                time_code(code_KX, i, 0, delta_SK[s, i], turns_3X, limits, weight_T, bias_T)
            dots(query_HX, code_KX, count, weight_HK)
            _weights(weight_HK, score_GHK, g, count)
            weighted_sums(weight_HK, code_KX, count, sum_HX)
            for h in range(H):
                for j in range(T):
                    sums_BT[b, h * T + j] = sum_HX[h, j]
        for j in range(E):
            hidden_BP[b, j] = base_AE[own_G[g], j]
        _add_values(weight_HK, count, row_KE, hidden_BP, b)
    depth = np.int64(H * T)
    apart(multiply_rows, (
        address(sums), depth * 4, last - first, depth, address(time_packed), np.int64(E),
        address(result_BE), np.int64(4 * E), np.int64(1), address(scratch),
    ))  # fmt: skip
    keep(sums)
    keep(scratch)
    keep(result_BE)
    zero = np.float32(0)
    for b in range(last - first):
        s = seed_X[first + b]
        for j in range(E):
            hidden_SE[s, j] = max(hidden_BP[b, j] + result_BE[b, j], zero)


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
