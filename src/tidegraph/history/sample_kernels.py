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
from tidegraph.history.kernels import age, below, first_within, is_before
from tidegraph.keys import random_bits

INCLUSIVE, WINDOW, UNIFORM, PADDING, COUNT_ONLY = 1, 2, 4, 8, 16
"""Bits of `mode`. PADDING: node -1 is an empty row instead of an error."""

BLOCK = 512
"""Most roots of one block: its search state (about 16 KB) stays in the first-level cache."""


@kernel()
def find_slices(indptr_N1, nodes_S, times_S, first, last, mode, lo_W, left_W):  # type: ignore[no-untyped-def]
    """Look up the nodes' slices of roots `first..last-1`; the first bad root, or S."""
    num_nodes = len(indptr_N1) - 1
    padding = (mode & PADDING) != 0
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
        left_W[s - first] = hi - lo
    return len(nodes_S)


@kernel()
def search_in_lockstep(entries, times_S, before_X, first, inclusive, end_W, left_W, active_W):  # type: ignore[no-untyped-def]
    """Binary searches of a block, one step of each per round, without data-dependent branches.

    `end_W` holds the slices' starts on entry and the ends of the eligible entries on return.
    """
    per_root = np.int64(len(before_X) > 1)
    active = 0
    for w in range(len(end_W)):
        active_W[active] = w
        active += left_W[w] > 0
    while active > 0:
        still = 0
        for a in range(active):
            w = active_W[a]
            s = first + w
            half = (left_W[w] + 1) >> 1
            entry = entries[np.uintp(end_W[w] + half - 1)]
            yes = is_before(entry, times_S[s], before_X[s * per_root], inclusive)
            end_W[w] += half * np.int64(yes)
            left = left_W[w] - half
            left_W[w] = left
            active_W[still] = w
            still += left > 0
        active = still


@kernel()
def choose(pick_K, k, available, root_key):  # type: ignore[no-untyped-def]
    """Fill `pick_K[:k]` with k distinct ascending numbers of `[0, available)`, each set equally
    likely (Floyd's method; kept sorted, so membership is a binary search)."""
    for j in range(k):
        top = available - k + j
        value = below(random_bits(root_key, np.uint64(j)), top + 1)
        place = np.searchsorted(pick_K[:j], value)
        if place < j and pick_K[place] == value:
            pick_K[j] = top  # above everything chosen so far
            continue
        for i in range(j, place, -1):
            pick_K[i] = pick_K[i - 1]
        pick_K[place] = value


@kernel()
def sample_block(  # type: ignore[no-untyped-def]
    indptr_N1, entries, nodes_S, times_S, before_X, slot_Z, first, last, k, window, mode, key,
    neighbor_SK, event_SK, delta_SK, time_SK, count_S,
):  # fmt: skip
    """Answer roots `first..last-1`; returns the first bad root (nothing written), or S.

    Arrays of the result are rows of `TemporalIndex.sample`'s output. With COUNT_ONLY only
    `count_S` is written, and `k` does not cap it.
    """
    width = last - first
    lo_W = np.empty(width, np.int64)
    left_W = np.empty(width, np.int64)
    active_W = np.empty(width, np.int64)
    bad = find_slices(indptr_N1, nodes_S, times_S, first, last, mode, lo_W, left_W)
    if bad < len(nodes_S):
        return bad
    end_W = lo_W.copy()
    inclusive = (mode & INCLUSIVE) != 0
    search_in_lockstep(entries, times_S, before_X, first, inclusive, end_W, left_W, active_W)

    uniform = (mode & UNIFORM) != 0
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
        if uniform & (end - start > k):
            slot = slot_Z[s] if len(slot_Z) > 0 else np.uint64(s)
            choose(pick_K, k, end - start, random_bits(key, slot))
            for j in range(k):
                write_slot(
                    entries[np.uintp(start + pick_K[j])], times_S[s], j,
                    neighbor_SK[s], event_SK[s], delta_SK[s], time_SK[s],
                )  # fmt: skip
        else:
            write_run(
                entries, start, take, times_S[s],
                neighbor_SK[s], event_SK[s], delta_SK[s], time_SK[s],
            )  # fmt: skip
    return len(nodes_S)


@kernel()
def write_slot(entry, time, j, neighbor_K, event_K, delta_K, time_K):  # type: ignore[no-untyped-def]
    """One neighbour into slot j. The difference is exact before it becomes float32."""
    neighbor_K[j] = entry.neighbor
    event_K[j] = entry.event
    delta_K[j] = np.float32(age(time, entry.time))
    time_K[j] = entry.time


@kernel()
def write_run(entries, start, take, time, neighbor_K, event_K, delta_K, time_K):  # type: ignore[no-untyped-def]
    """`take` consecutive entries into the first slots, padding into the rest."""
    for j in range(take):
        write_slot(entries[np.uintp(start + j)], time, j, neighbor_K, event_K, delta_K, time_K)
    for j in range(take, len(neighbor_K)):
        neighbor_K[j] = -1
        event_K[j] = -1
        delta_K[j] = 0
        time_K[j] = 0


@kernel(parallel=True)
def sample_parallel(  # type: ignore[no-untyped-def]
    blocks, indptr_N1, entries, nodes_S, times_S, before_X, slot_Z, k, window, mode, key,
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
            indptr_N1, entries, nodes_S, times_S, before_X, slot_Z, first, last, k, window, mode,
            key, neighbor_SK, event_SK, delta_SK, time_SK, count_S,
        )  # fmt: skip
        bad = min(bad, found)
    return bad
