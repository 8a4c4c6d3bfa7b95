"""CPU kernels of scoring: what seeds with one neighbourhood share is computed once for all of them.

Candidates of many events ask about the same nodes at different times. As long as nothing happens to
a node, its neighbourhood stays the same, and only the time differences move: everything else (the
query, the scores and values of memories and features) is the neighbourhood's.

What differs from seed to seed is in `shared_embedding`.

Shape legend: S seeds, K slots, G groups (distinct neighbourhoods), A distinct own rows, H heads,
D table width, F event-feature width, T time-code width, W = D + F + T, X padded width.
"""

from __future__ import annotations

import numpy as np

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.ops.attention_kernels import BLOCK
from tidegraph.ops.feature_rows import load_features
from tidegraph.ops.row_kernels import dots, load_row, padded


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
