"""The sampler's kernels: for a block of roots, find each one's history and write k of it out.

Shape legend: S roots, K slots per root, N nodes, W roots of one block, X = 1 or S (a value for
all roots, or one for each), Z = 0 or S (nothing, or one for each).
"""

from __future__ import annotations

import numpy as np

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.history.kernels import age, below, first_within, prefetch
from tidegraph.history.search_kernels import ENTRIES, TILE, search_tile
from tidegraph.keys import random_bits

INCLUSIVE, WINDOW, UNIFORM, PADDING, COUNT_ONLY = 1, 2, 4, 8, 16
"""Bits of `mode`. PADDING: node -1 is an empty row instead of an error."""

AHEAD = 8
"""The twelve latest entries of the root so many places further on are prefetched (measured: a
quarter faster)."""


@kernel(inner=True)
def first_bad_root(nodes_S, times_S, first, last, num_nodes, padding):  # type: ignore[no-untyped-def]
    """The first of roots `first..last-1` whose node or time cannot be looked up, or S."""
    for s in range(first, last):
        node = nodes_S[s]
        known = (node >= 0) & (node < num_nodes) & (times_S[s] == times_S[s])
        if not (known | (padding & (node == -1))):
            return s
    return len(nodes_S)


@kernel()
def choose(pick_K, k, available, root_key):  # type: ignore[no-untyped-def]
    """Fill `pick_K[:k]` with k distinct ascending numbers of `[0, available)`.

    Floyd's method: every set is equally likely, k draws suffice. The numbers are kept sorted, so
    that membership is a binary search.
    """
    for j in range(k):
        top = available - k + j
        value = below(random_bits(root_key, np.uint64(j)), top + 1)
        place = np.int64(0)
        left = np.int64(j)
        while left > 0:
            half = (left + 1) >> 1
            place += half if pick_K[place + half - 1] < value else 0
            left -= half
        if (place < j) and (pick_K[place] == value):
            pick_K[j] = top  # above everything chosen so far
        else:
            for i in range(j, place, -1):
                pick_K[i] = pick_K[i - 1]
            pick_K[place] = value


@kernel(inner=True)
def write_rows(  # type: ignore[no-untyped-def]
    entries, times_S, slot_Z, first, lo_W, end_W, k, window, mode, key,
    neighbor_SK, event_SK, delta_SK, time_SK, count_S,
):  # fmt: skip
    """Choose and write the neighbours of roots `first..first+W-1` (arguments of `sample_block`)."""
    width = len(lo_W)
    uniform = (mode & UNIFORM) != 0
    counted = (mode & COUNT_ONLY) != 0
    windowed = (mode & WINDOW) != 0
    timed = time_SK.shape[1] > 0
    start_W = lo_W
    if windowed or not (uniform or counted):
        start_W = np.empty_like(lo_W)
        for n in range(width):
            w = np.uintp(n)
            start = lo_W[w]
            if not (uniform or counted):
                start = max(start, end_W[w] - k)
            if windowed:
                start = first_within(entries, start, end_W[w], times_S[first + n], window)
            start_W[w] = start
    most = np.iinfo(np.int32).max if counted else k
    for n in range(width):
        w = np.uintp(n)
        count_S[np.uintp(first + n)] = min(most, end_W[w] - start_W[w])
    if counted:
        return
    pick_K = np.empty(k if uniform else 0, np.int64)
    for n in range(width):
        w, s = np.uintp(n), np.uintp(first + n)
        start, end = start_W[w], end_W[w]
        near = np.uintp(min(n + AHEAD, width - 1))
        ahead = end_W[near] - 1
        stop = max(lo_W[near], ahead - 3 * ENTRIES)
        while ahead >= stop:
            prefetch(entries, ahead)
            ahead -= ENTRIES
        take, time = min(k, end - start), times_S[s]
        drawn = uniform & (end - start > k)
        if drawn:
            slot = slot_Z[s] if len(slot_Z) > 0 else np.uint64(s)
            choose(pick_K, k, end - start, random_bits(key, slot))
        for m in range(take):
            # Whole arrays and two indices, not row views, and no calls: either counts references.
            j = np.uintp(m)
            place = start + (pick_K[j] if drawn else m)
            entry = entries[np.uintp(place)]
            neighbor_SK[s, j] = entry.neighbor
            event_SK[s, j] = entry.event
            delta_SK[s, j] = np.float32(age(time, entry.time))  # exact before it is rounded
            if timed:
                time_SK[s, j] = entry.time
        for m in range(take, k):
            j = np.uintp(m)
            neighbor_SK[s, j] = -1
            event_SK[s, j] = -1
            delta_SK[s, j] = 0
            if timed:
                time_SK[s, j] = 0


@kernel()
def sample_block(  # type: ignore[no-untyped-def]
    indptr_N1, place_Z, entries, time_L, level_D, nodes_S, times_S, before_X, slot_Z, first, last,
    k, window, mode, key, neighbor_SK, event_SK, delta_SK, time_SK, count_S,
):  # fmt: skip
    """Answer roots `first..last-1`; returns the first bad root (nothing written), or S.

    `place_Z` is the place of each node's slice (nothing: its id), `time_L` and `level_D` come from
    `time_levels`. The last five arrays are the fields of `Neighbors`. A `time_SK` of width 0 is not
    written. With COUNT_ONLY only `count_S` is written, and `k` does not cap it.
    """
    num_nodes = len(indptr_N1) - 1
    bad = first_bad_root(nodes_S, times_S, first, last, num_nodes, (mode & PADDING) != 0)
    if bad < len(nodes_S):
        return bad
    inclusive = (mode & INCLUSIVE) != 0
    for begin in range(first, last, TILE):
        width = min(TILE, last - begin)
        lo_W, end_W = np.empty(width, np.int64), np.empty(width, np.int64)
        search_tile(
            indptr_N1, place_Z, entries, time_L, level_D, nodes_S, times_S, before_X, begin,
            inclusive, lo_W, end_W,
        )  # fmt: skip
        write_rows(
            entries, times_S, slot_Z, begin, lo_W, end_W, k, window, mode, key, neighbor_SK,
            event_SK, delta_SK, time_SK, count_S,
        )  # fmt: skip
    return len(nodes_S)


@kernel(block=True)
def _sample_share(  # type: ignore[no-untyped-def]
    block, _, size, bad_B, indptr_N1, place_Z, entries, time_L, level_D, nodes_S, times_S, before_X,
    slot_Z, k, window, mode, key, neighbor_SK, event_SK, delta_SK, time_SK, count_S,
):  # fmt: skip
    total = len(nodes_S)
    first = min(block * size, total)
    bad_B[block] = sample_block(
        indptr_N1, place_Z, entries, time_L, level_D, nodes_S, times_S, before_X, slot_Z, first,
        min(first + size, total), k, window, mode, key, neighbor_SK, event_SK, delta_SK, time_SK,
        count_S,
    )  # fmt: skip


@kernel()
def sample_parallel(  # type: ignore[no-untyped-def]
    blocks, indptr_N1, place_Z, entries, time_L, level_D, nodes_S, times_S, before_X, slot_Z, k,
    window, mode, key, neighbor_SK, event_SK, delta_SK, time_SK, count_S,
):  # fmt: skip
    """`sample_block` over all roots in `blocks` blocks; returns the first bad root, or S."""
    bad_B = np.empty(blocks, np.int64)
    in_blocks(
        _sample_share, blocks, 1,
        ((len(nodes_S) + blocks - 1) // blocks, bad_B, indptr_N1, place_Z, entries, time_L, level_D,
         nodes_S, times_S, before_X, slot_Z, k, window, mode, key, neighbor_SK, event_SK, delta_SK,
         time_SK, count_S),
    )  # fmt: skip
    return bad_B.min()
