"""The kernels that draw negatives: one pass over the rows, exact, without rejection loops.

Where some destinations are not allowed, a rank among the allowed ones is drawn and then moved past
the forbidden ranks, which are kept in ascending order. That ends always and is uniform.

Shape legend: E events, N nodes, P distinct (source, target) pairs, B rows, C slots, L pool.
"""

from __future__ import annotations

import numpy as np

from tidegraph._jit import kernel
from tidegraph.keys import random_below, random_bits


@kernel()
def draw_from_pool(key, position_B, pool_L, negative_BC):  # type: ignore[no-untyped-def]
    for row in range(negative_BC.shape[0]):
        row_key = random_bits(key, position_B[row])
        for slot in range(negative_BC.shape[1]):
            negative_BC[row, slot] = pool_L[random_below(row_key, slot, len(pool_L))]


@kernel(inner=True)
def _skip(rank, excluded, begin, end):  # type: ignore[no-untyped-def]
    """The rank-th number that is not among the ascending numbers excluded[begin:end]."""
    for at in range(begin, end):
        if rank < excluded[at]:
            break
        rank += 1
    return rank


@kernel()
def draw_legal_ranks(  # type: ignore[no-untyped-def]
    key, position_B, limit_E, group_E, offset, true, pool_L, fall_back, negative_BC
):
    """Drawn by rank among the legal ones: exact, and no rejection loop. Returns a row or -1."""
    for row in range(negative_BC.shape[0]):
        position = position_B[row]
        limit = limit_E[position] if len(limit_E) else len(pool_L)
        begin = offset[group_E[position]] if len(group_E) else 0
        end = offset[group_E[position] + 1] if len(group_E) else 0
        below = np.searchsorted(true[begin:end], limit)
        if limit - below <= 0 and fall_back:
            limit, below = len(pool_L), end - begin
        legal = limit - below
        if legal <= 0:
            return row
        row_key = random_bits(key, position)
        for slot in range(negative_BC.shape[1]):
            rank = random_below(row_key, slot, legal)
            negative_BC[row, slot] = pool_L[_skip(rank, true, begin, begin + below)]
    return -1


@kernel(inner=True)
def _choose_distinct(key, population, chosen, table):  # type: ignore[no-untyped-def]
    """Floyd's sample of len(chosen) distinct numbers below `population`.

    `table` is scratch: a power of two of slots, more than len(chosen).
    """
    table[:] = -1
    size = len(chosen)
    for index in range(size):
        last = population - size + index
        number = random_below(key, index, last + 1)
        for attempt in range(2):
            if attempt == 1:
                number = last
            at = (number * 0x9E3779B1) & (len(table) - 1)
            while table[at] != -1 and table[at] != number:
                at = (at + 1) & (len(table) - 1)
            if table[at] == -1:
                table[at] = number
                break
        chosen[index] = number


@kernel(inline=True)
def _table_size(count):  # type: ignore[no-untyped-def]
    size = 4
    while size < 2 * count:
        size *= 2
    return size


@kernel()
def choose_places(key, legal, skipped, chosen):  # type: ignore[no-untyped-def]
    """Distinct numbers that are not in `skipped` (ascending), out of legal + len(skipped)."""
    _choose_distinct(key, legal, chosen, np.empty(_table_size(len(chosen)), np.int64))
    for index in range(len(chosen)):
        chosen[index] = _skip(chosen[index], skipped, 0, len(skipped))


@kernel()
def draw_places(key, legal, skipped, drawn):  # type: ignore[no-untyped-def]
    """As `choose_places`, with replacement. `legal` may exceed 32 bits: the modulo's bias is
    below legal / 2**64."""
    for index in range(len(drawn)):
        number = np.int64(random_bits(key, index) % np.uint64(legal))
        drawn[index] = _skip(number, skipped, 0, len(skipped))


@kernel()
def draw_past_partners(  # type: ignore[no-untyped-def]
    key,
    position_B,
    source_E,
    offset_N,
    first_P,
    target_P,
    absent,
    train_stop,
    start,
    rank_N,
    pool_L,
    negative_BC,
):
    count = negative_BC.shape[1]
    chosen = np.empty(count, np.int64)
    table = np.empty(_table_size(count), np.int64)
    for row in range(negative_BC.shape[0]):
        source = source_E[position_B[row]]
        begin, end = offset_N[source], offset_N[source + 1]
        low = begin + np.searchsorted(first_P[begin:end], train_stop)
        high = begin + np.searchsorted(first_P[begin:end], start)
        skip_begin = np.searchsorted(absent, low)
        skip_end = np.searchsorted(absent, high)
        legal = max(high - low, 0) - max(skip_end - skip_begin, 0)
        past = min(legal, count)
        row_key = random_bits(key, position_B[row])
        _choose_distinct(row_key, legal, chosen[:past], table)
        for slot in range(past):
            place = _skip(low + chosen[slot], absent, skip_begin, skip_end)
            negative_BC[row, slot] = target_P[place]
        if past == count:
            continue
        taken = _ranks_of_pairs(begin, end, absent, target_P, rank_N)
        legal = len(pool_L) - len(taken)
        if legal <= 0:
            return row
        for slot in range(past, count):
            rank = _skip(random_below(row_key, slot, legal), taken, 0, len(taken))
            negative_BC[row, slot] = pool_L[rank]
    return -1


@kernel(inner=True)
def _ranks_of_pairs(begin, end, pairs, target_P, rank_N):  # type: ignore[no-untyped-def]
    """Ascending pool ranks of the targets of the ascending `pairs` that lie in [begin, end)."""
    first, last = np.searchsorted(pairs, begin), np.searchsorted(pairs, end)
    rank = np.empty(last - first, np.int64)
    size = 0
    for at in range(first, last):
        if rank_N[target_P[pairs[at]]] >= 0:
            rank[size] = rank_N[target_P[pairs[at]]]
            size += 1
    return np.sort(rank[:size])


@kernel()
def mask_true(rank_B, group_B, offset, true, mask_BC):  # type: ignore[no-untyped-def]
    """Column c of row b holds rank c, or c + 1 from the row's own true rank on."""
    for row in range(len(rank_B)):
        for at in range(offset[group_B[row]], offset[group_B[row] + 1]):
            if true[at] < rank_B[row]:
                mask_BC[row, true[at]] = False
            elif true[at] > rank_B[row]:
                mask_BC[row, true[at] - 1] = False
