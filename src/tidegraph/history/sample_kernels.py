"""The sampler's kernels: for a block of roots, find each one's history and write k of it out.

Roots of a block are searched in lockstep: one step of every root's binary search, then the next
step. The loads of one round do not depend on each other, so the memory latency of a block overlaps
instead of adding up (measured: most of a root's time is cache misses).

Shape legend: S roots, K slots per root, N nodes, W roots of one block, X = 1 or S (a value for
all roots, or one for each), Z = 0 or S (nothing, or one for each).
"""

from __future__ import annotations

import numba
import numpy as np

from tidegraph._jit import kernel
from tidegraph.history.kernels import age, below, first_within, is_before, prefetch, time_limit
from tidegraph.keys import random_bits

INCLUSIVE, WINDOW, UNIFORM, PADDING, COUNT_ONLY = 1, 2, 4, 8, 16
"""Bits of `mode`. PADDING: node -1 is an empty row instead of an error."""

BLOCK = 512
"""Most roots of one block: its search state (about 24 KB) stays in the first-level cache."""

PITCH = 16
"""Every PITCH-th entry is also kept in a small array of its own. A search narrows there first:
those entries stay in the cache, and the last steps fall into a few adjacent lines."""

LINE = 4
"""Entries of one cache line, for prefetching: the lines that the last steps may touch, and the
twelve latest entries of the root that is `AHEAD` places further on (measured: a quarter faster)."""

AHEAD = 8


@kernel()
def find_slices(indptr_N1, nodes_S, times_S, first, last, mode, lo_W, hi_W, limit_W):  # type: ignore[no-untyped-def]
    """Look up the nodes' slices of roots `first..last-1`; the first bad root, or S."""
    num_nodes = len(indptr_N1) - 1
    padding = (mode & PADDING) != 0
    inclusive = (mode & INCLUSIVE) != 0
    for s in range(first, last):
        node = np.int64(nodes_S[s])
        lo = np.int64(0)
        hi = np.int64(0)
        if (node >= 0) & (node < num_nodes) & (times_S[s] == times_S[s]):
            lo = indptr_N1[node]
            hi = indptr_N1[node + 1]
        elif not (padding & (node == -1)):
            return s
        lo_W[s - first] = lo
        hi_W[s - first] = hi
        limit_W[s - first] = time_limit(times_S[s], inclusive)
    return len(nodes_S)


@kernel()
def search_in_lockstep(entries, limit_W, before_W, end_W, left_W, active_W):  # type: ignore[no-untyped-def]
    """Binary searches of a block, one step of each per round, without data-dependent branches.

    `end_W` holds the first positions on entry, and the ends of the eligible entries on return;
    `left_W` holds the numbers of entries to search.
    """
    active = 0
    for w in range(len(end_W)):
        active_W[active] = w
        active += left_W[w] > 0
    while active > 0:
        still = 0
        for a in range(active):
            w = active_W[a]
            left = left_W[w]
            half = (left + 1) >> 1
            end = end_W[w]
            entry = entries[np.uintp(end + half - 1)]
            yes = is_before(entry, limit_W[w], before_W[w])
            end_W[w] = end + (half & -np.int64(yes))
            left -= half
            left_W[w] = left
            active_W[np.uintp(still)] = w
            still += left > 0
        active = still


@kernel()
def find_ends(entries, coarse, lo_W, hi_W, limit_W, before_W, end_W):  # type: ignore[no-untyped-def]
    """Per root of a block, where its eligible entries end: first among the coarse entries, then
    within the `PITCH` entries that they leave."""
    left_W = np.empty_like(lo_W)
    active_W = np.empty_like(lo_W)
    for w in range(len(lo_W)):
        end_W[w] = (lo_W[w] + PITCH - 1) // PITCH
        left_W[w] = (hi_W[w] + PITCH - 1) // PITCH - end_W[w]
    search_in_lockstep(coarse, limit_W, before_W, end_W, left_W, active_W)
    for w in range(len(lo_W)):
        stop = min(hi_W[w], end_W[w] * PITCH)  # the next coarse entry is not eligible
        end_W[w] = max(lo_W[w], (end_W[w] - 1) * PITCH + 1)  # the previous one is
        left_W[w] = stop - end_W[w]
        for line in range(LINE - 1, PITCH, LINE):
            prefetch(entries, end_W[w] + line)
    search_in_lockstep(entries, limit_W, before_W, end_W, left_W, active_W)


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


@kernel()
def sample_block(  # type: ignore[no-untyped-def]
    indptr_N1, entries, coarse, nodes_S, times_S, before_X, slot_Z, first, last, k, window, mode,
    key, neighbor_SK, event_SK, delta_SK, time_SK, count_S,
):  # fmt: skip
    """Answer roots `first..last-1`; returns the first bad root (nothing written), or S.

    `coarse` is every PITCH-th of `entries`. The last five arrays are the fields of `Neighbors`.
    A `time_SK` of width 0 is not written. With COUNT_ONLY only `count_S` is written, and `k` does
    not cap it.
    """
    width = last - first
    lo_W = np.empty(width, np.int64)
    end_W = np.empty(width, np.int64)
    before_W = np.empty(width, np.int64)
    limit_W = np.empty(width, times_S.dtype)
    bad = find_slices(indptr_N1, nodes_S, times_S, first, last, mode, lo_W, end_W, limit_W)
    if bad < len(nodes_S):
        return bad
    if len(before_X) == 1:
        before_W[:] = before_X[0]
    else:
        before_W[:] = before_X[first:last]
    find_ends(entries, coarse, lo_W, end_W.copy(), limit_W, before_W, end_W)

    uniform = (mode & UNIFORM) != 0
    timed = time_SK.shape[1] > 0
    whole = uniform | ((mode & COUNT_ONLY) != 0)
    pick_K = np.empty(k if uniform else 0, np.int64)
    for s in range(first, last):
        start = lo_W[s - first]
        end = end_W[s - first]
        if not whole:
            start = max(start, end - k)
        if (mode & WINDOW) != 0:
            start = first_within(entries, start, end, times_S[s], window)
        if (mode & COUNT_ONLY) != 0:
            count_S[s] = end - start
            continue
        take = min(k, end - start)
        count_S[s] = take
        ahead = end_W[min(s + AHEAD, last - 1) - first]
        for line in range(1, 3 * LINE, LINE):
            prefetch(entries, ahead - line)
        if uniform & (end - start > k):
            slot = slot_Z[s] if len(slot_Z) > 0 else np.uint64(s)
            choose(pick_K, k, end - start, random_bits(key, slot))
            for j in range(k):
                entry = entries[np.uintp(start + pick_K[j])]
                write_slot(entry, times_S[s], s, j, neighbor_SK, event_SK, delta_SK)
                if timed:
                    time_SK[np.uintp(s), np.uintp(j)] = entry.time
            continue
        for j in range(take):
            entry = entries[np.uintp(start + j)]
            write_slot(entry, times_S[s], s, j, neighbor_SK, event_SK, delta_SK)
            if timed:
                time_SK[np.uintp(s), np.uintp(j)] = entry.time
        for j in range(take, k):
            neighbor_SK[np.uintp(s), np.uintp(j)] = -1
            event_SK[np.uintp(s), np.uintp(j)] = -1
            delta_SK[np.uintp(s), np.uintp(j)] = 0
            if timed:
                time_SK[np.uintp(s), np.uintp(j)] = 0
    return len(nodes_S)


@kernel()
def write_slot(entry, time, s, j, neighbor_SK, event_SK, delta_SK):  # type: ignore[no-untyped-def]
    """One neighbour into slot j of root s. The difference is exact before it becomes float32.

    Whole arrays and two indices, not row views: a view costs reference counting per root.
    """
    row, slot = np.uintp(s), np.uintp(j)
    neighbor_SK[row, slot] = entry.neighbor
    event_SK[row, slot] = entry.event
    delta_SK[row, slot] = np.float32(age(time, entry.time))


@kernel(parallel=True)
def sample_parallel(  # type: ignore[no-untyped-def]
    blocks, indptr_N1, entries, coarse, nodes_S, times_S, before_X, slot_Z, k, window, mode, key,
    neighbor_SK, event_SK, delta_SK, time_SK, count_S,
):  # fmt: skip
    """`sample_block` over all roots in `blocks` blocks; returns the first bad root, or S."""
    total = len(nodes_S)
    size = (total + blocks - 1) // blocks
    bad = total
    for b in numba.prange(blocks):
        first = min(b * size, total)
        last = min(first + size, total)
        found = sample_block(
            indptr_N1, entries, coarse, nodes_S, times_S, before_X, slot_Z, first, last, k, window,
            mode, key, neighbor_SK, event_SK, delta_SK, time_SK, count_S,
        )  # fmt: skip
        bad = min(bad, found)
    return bad
