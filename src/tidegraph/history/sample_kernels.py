"""The sampler's kernels: for a block of roots, find each one's history and write k of it out.

Roots of a block are searched in lockstep: one step of every root's binary search, then the next
step. The loads of one round do not depend on each other, so the memory latency of a block overlaps
instead of adding up (measured: most of a root's time is cache misses).

Shape legend: S roots, K slots per root, N nodes, W roots of one block, X = 1 or S (a value for
all roots, or one for each), Z = 0 or S (nothing, or one for each).
"""

from __future__ import annotations

import numpy as np

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.history.kernels import (
    age,
    below,
    first_within,
    is_before,
    place_of,
    prefetch,
    time_limit,
)
from tidegraph.keys import random_bits

INCLUSIVE, WINDOW, UNIFORM, PADDING, COUNT_ONLY, SORTED = 1, 2, 4, 8, 16, 32
"""Bits of `mode`. PADDING: node -1 is an empty row instead of an error."""

TILE = 512
"""Most roots searched together: their search state (about 28 KB) stays in the first-level cache."""

DIGIT = 11
"""Bits per pass of the radix sort: its counters (16 KB) stay in the first-level cache."""

PITCH = 16
"""Every PITCH-th entry is also kept in a small array of its own. A search narrows there first:
those entries stay in the cache, and the last steps fall into a few adjacent lines."""

LINE = 4
"""Entries of one cache line, for prefetching: the lines that the last steps may touch, and the
twelve latest entries of the root that is `AHEAD` places further on (measured: a quarter faster)."""

AHEAD = 8

SHORT = PITCH
"""A slice of so few entries is searched directly: a coarse entry would be one more line to load."""

SORTED_BLOCK = 16_384
"""Most roots sorted together: their search state (384 KB) stays in the second-level cache."""

WORTH_SORTING = 0.9
"""Share of different nodes from which on the order of the roots brings less than it costs."""


@kernel(inner=True)
def first_bad_root(nodes_S, times_S, first, last, num_nodes, padding):  # type: ignore[no-untyped-def]
    """The first of roots `first..last-1` whose node or time cannot be looked up, or S."""
    for s in range(first, last):
        node = nodes_S[s]
        known = (node >= 0) & (node < num_nodes) & (times_S[s] == times_S[s])
        if not (known | (padding & (node == -1))):
            return s
    return len(nodes_S)


@kernel(inner=True)
def sort_roots(nodes_S, place_Z, first, num_nodes, order_W):  # type: ignore[no-untyped-def]
    """Roots `first..first+W-1` in the order of their slices, ties in the given order.

    A radix sort of (place, root) words by the place's bits. Padding comes first. Returns how many
    different places there are.
    """
    width = len(order_W)
    word_W = np.empty(width, np.uint64)
    other_W = np.empty(width, np.uint64)
    for w in range(width):
        node = np.int64(nodes_S[first + w])
        place = place_of(place_Z, node) if node >= 0 else np.int64(0)
        word_W[w] = (np.uint64(place) << np.uint64(32)) | np.uint64(w)
    start_D = np.empty(1 << DIGIT, np.int64)
    mask = np.uint64((1 << DIGIT) - 1)
    shift = np.uint64(32)
    while (num_nodes - 1) >> np.int64(shift - np.uint64(32)) > 0:
        start_D[:] = 0
        for w in range(width):
            start_D[(word_W[w] >> shift) & mask] += 1
        total = np.int64(0)
        for d in range(1 << DIGIT):
            count = start_D[d]
            start_D[d] = total
            total += count
        for w in range(width):
            digit = (word_W[w] >> shift) & mask
            other_W[np.uintp(start_D[digit])] = word_W[w]
            start_D[digit] += 1
        word_W, other_W = other_W, word_W
        shift += np.uint64(DIGIT)
    different = 0
    previous = np.uint64(0xFFFFFFFF)
    for w in range(width):
        place_bits = word_W[w] >> np.uint64(32)
        different += place_bits != previous
        previous = place_bits
        order_W[w] = first + np.int64(word_W[w] & np.uint64(0xFFFFFFFF))
    return different


@kernel(inner=True)
def find_slices(indptr_N1, place_Z, nodes_S, root_W, lo_W, hi_W):  # type: ignore[no-untyped-def]
    """Where the entries of the roots' nodes lie; a padding root gets an empty slice."""
    for w in range(len(root_W)):
        node = np.int64(nodes_S[np.uintp(root_W[w])])
        lo_W[w] = 0
        hi_W[w] = 0
        if node >= 0:
            place = place_of(place_Z, node)
            lo_W[w] = indptr_N1[np.uintp(place)]
            hi_W[w] = indptr_N1[np.uintp(place + 1)]


@kernel(inner=True)
def search_in_lockstep(entries, limit_W, before_W, end_W, left_W, active_W, active):  # type: ignore[no-untyped-def]
    """Binary searches of a tile, one step of each per round, without data-dependent branches.

    `end_W` holds the first positions on entry, and the ends of the eligible entries on return;
    `left_W` holds the numbers of entries to search. `active_W` lists the roots to search, `active`
    of them; it is used up.
    """
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


@kernel(inner=True)
def search_listed(  # type: ignore[no-untyped-def]
    entries, coarse, lo_W, hi_W, limit_W, before_W, end_W, left_W, active_W, list_W, listed
):
    """Where the eligible entries of the listed roots end: first among the coarse entries, then
    within the `PITCH` entries that they leave. A slice of `SHORT` entries is searched directly."""
    active = 0
    for i in range(listed):
        w = list_W[i]
        lo = lo_W[w]
        hi = hi_W[w]
        if hi - lo <= SHORT:
            continue
        end_W[w] = (lo + PITCH - 1) // PITCH
        left_W[w] = (hi + PITCH - 1) // PITCH - end_W[w]
        active_W[active] = w
        active += 1
    search_in_lockstep(coarse, limit_W, before_W, end_W, left_W, active_W, active)
    active = 0
    for i in range(listed):
        w = list_W[i]
        begin = lo_W[w]
        stop = hi_W[w]
        if stop - begin > SHORT:
            stop = min(stop, end_W[w] * PITCH)  # the next coarse entry is not eligible
            begin = max(begin, (end_W[w] - 1) * PITCH + 1)  # the previous one is
        end_W[w] = begin
        left_W[w] = stop - begin
        active_W[active] = w
        active += stop > begin
        while begin < stop:
            prefetch(entries, begin)
            begin += LINE
    search_in_lockstep(entries, limit_W, before_W, end_W, left_W, active_W, active)


@kernel(inner=True)
def find_near(entries, lo, hi, limit, before, near):  # type: ignore[no-untyped-def]
    """The end of the eligible entries in `[lo, hi)` if it is within `PITCH` of `near`, or -1."""
    end = near
    if (end < hi) and is_before(entries[np.uintp(end)], limit, before):
        stop = min(hi, near + PITCH)
        end += 1
        while (end < stop) and is_before(entries[np.uintp(end)], limit, before):
            end += 1
        return end if (end < stop) | (stop == hi) else -1
    stop = max(lo, near - PITCH)
    while (end > stop) and not is_before(entries[np.uintp(end - 1)], limit, before):
        end -= 1
    return end if (end > stop) | (stop == lo) else -1


@kernel(inner=True)
def find_ends(entries, coarse, lo_W, hi_W, limit_W, before_W, end_W):  # type: ignore[no-untyped-def]
    """Per root of a tile, where its eligible entries end.

    The first of neighbouring roots of one node is searched; the others' ends are mostly close to
    that one's, so they look there first and are searched only if it is not.
    """
    width = len(lo_W)
    left_W = np.empty_like(lo_W)
    active_W = np.empty_like(lo_W)
    list_W = np.empty_like(lo_W)
    listed = 0
    for w in range(width):
        list_W[listed] = w
        listed += (w == 0) | (lo_W[w] != lo_W[w - 1]) | (hi_W[w] != hi_W[w - 1])
    search_listed(
        entries, coarse, lo_W, hi_W, limit_W, before_W, end_W, left_W, active_W, list_W, listed
    )
    if listed == width:
        return
    far = 0
    near = np.int64(0)
    for w in range(width):
        if (w == 0) or (lo_W[w] != lo_W[w - 1]) or (hi_W[w] != hi_W[w - 1]):
            near = end_W[w]
            continue
        end = find_near(entries, lo_W[w], hi_W[w], limit_W[w], before_W[w], near)
        if end >= 0:
            near = end
            end_W[w] = end
        else:
            list_W[far] = w
            far += 1
    search_listed(
        entries, coarse, lo_W, hi_W, limit_W, before_W, end_W, left_W, active_W, list_W, far
    )


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
def search_tile(  # type: ignore[no-untyped-def]
    indptr_N1, place_Z, entries, coarse, nodes_S, times_S, before_X, root_W, inclusive, lo_W, end_W
):
    """For the roots listed in `root_W`: where their node's entries begin, and its history ends."""
    width = len(root_W)
    hi_W = np.empty(width, np.int64)
    before_W = np.empty(width, np.int64)
    limit_W = np.empty(width, times_S.dtype)
    find_slices(indptr_N1, place_Z, nodes_S, root_W, lo_W, hi_W)
    one_limit = len(before_X) == 1
    for w in range(width):
        s = np.uintp(root_W[w])
        limit_W[w] = time_limit(times_S[s], inclusive)
        before_W[w] = before_X[0] if one_limit else before_X[s]
    find_ends(entries, coarse, lo_W, hi_W, limit_W, before_W, end_W)


@kernel(inner=True)
def write_rows(  # type: ignore[no-untyped-def]
    entries, times_S, slot_Z, first, lo_W, end_W, k, window, mode, key,
    neighbor_SK, event_SK, delta_SK, time_SK, count_S,
):  # fmt: skip
    """Choose and write the neighbours of roots `first..first+W-1` (arguments of `sample_block`)."""
    width = len(lo_W)
    uniform = (mode & UNIFORM) != 0
    timed = time_SK.shape[1] > 0
    whole = uniform | ((mode & COUNT_ONLY) != 0)
    pick_K = np.empty(k if uniform else 0, np.int64)
    for w in range(width):
        s = first + w
        start = lo_W[w]
        end = end_W[w]
        if not whole:
            start = max(start, end - k)
        if (mode & WINDOW) != 0:
            start = first_within(entries, start, end, times_S[s], window)
        if (mode & COUNT_ONLY) != 0:
            count_S[s] = end - start
            continue
        take = min(k, end - start)
        count_S[s] = take
        near = min(w + AHEAD, width - 1)
        ahead = end_W[near] - 1
        stop = max(lo_W[near], ahead - 3 * LINE)
        while ahead >= stop:
            prefetch(entries, ahead)
            ahead -= LINE
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


@kernel(inner=True)
def write_slot(entry, time, s, j, neighbor_SK, event_SK, delta_SK):  # type: ignore[no-untyped-def]
    """One neighbour into slot j of root s. The difference is exact before it becomes float32.

    Whole arrays and two indices, not row views: a view costs reference counting per root.
    """
    row, slot = np.uintp(s), np.uintp(j)
    neighbor_SK[row, slot] = entry.neighbor
    event_SK[row, slot] = entry.event
    delta_SK[row, slot] = np.float32(age(time, entry.time))


@kernel(inner=True)
def search_sorted(  # type: ignore[no-untyped-def]
    indptr_N1, place_Z, entries, coarse, nodes_S, times_S, before_X, first, order_W, inclusive,
    lo_W, end_W,
):  # fmt: skip
    """`search_tile` of roots `first..first+W-1` in the order `order_W`, tile after tile."""
    width = len(order_W)
    lo_T = np.empty(TILE, np.int64)
    end_T = np.empty(TILE, np.int64)
    for begin in range(0, width, TILE):
        root_T = order_W[begin : min(begin + TILE, width)]
        size = len(root_T)
        search_tile(
            indptr_N1, place_Z, entries, coarse, nodes_S, times_S, before_X, root_T, inclusive,
            lo_T[:size], end_T[:size],
        )  # fmt: skip
        for w in range(size):
            lo_W[np.uintp(root_T[w] - first)] = lo_T[w]
            end_W[np.uintp(root_T[w] - first)] = end_T[w]


@kernel()
def sample_block(  # type: ignore[no-untyped-def]
    indptr_N1, place_Z, entries, coarse, nodes_S, times_S, before_X, slot_Z, first, last, k, window,
    mode, key, neighbor_SK, event_SK, delta_SK, time_SK, count_S,
):  # fmt: skip
    """Answer roots `first..last-1`; returns the first bad root (nothing written), or S.

    `place_Z` is the place of each node's slice (nothing: its id). `coarse` is every PITCH-th of
    `entries`. The last five arrays are the fields of `Neighbors`. A `time_SK` of width 0 is not
    written. With COUNT_ONLY only `count_S` is written, and `k` does not cap it.

    With SORTED the roots are searched in the order of their slices, unless almost all nodes are
    different. The rows are written in the given order all the same: what the searches loaded is
    still in the cache, and scattered writes cost more than scattered reads (measured: more than
    the order had brought).
    """
    num_nodes = len(indptr_N1) - 1
    bad = first_bad_root(nodes_S, times_S, first, last, num_nodes, (mode & PADDING) != 0)
    if bad < len(nodes_S):
        return bad
    inclusive = (mode & INCLUSIVE) != 0
    root_W = np.arange(first, last)
    lo_W = np.empty(last - first, np.int64)
    end_W = np.empty(last - first, np.int64)
    step = TILE
    searched = False
    if (mode & SORTED) != 0:
        different = sort_roots(nodes_S, place_Z, first, num_nodes, root_W)
        if different < WORTH_SORTING * (last - first):
            step = last - first
            searched = True
            search_sorted(
                indptr_N1, place_Z, entries, coarse, nodes_S, times_S, before_X, first, root_W,
                inclusive, lo_W, end_W,
            )  # fmt: skip
        else:
            root_W = np.arange(first, last)
    for begin in range(0, last - first, step):
        stop = min(begin + step, last - first)
        if not searched:
            search_tile(
                indptr_N1, place_Z, entries, coarse, nodes_S, times_S, before_X, root_W[begin:stop],
                inclusive, lo_W[begin:stop], end_W[begin:stop],
            )  # fmt: skip
        write_rows(
            entries, times_S, slot_Z, first + begin, lo_W[begin:stop], end_W[begin:stop], k, window,
            mode, key, neighbor_SK, event_SK, delta_SK, time_SK, count_S,
        )  # fmt: skip
    return len(nodes_S)


@kernel(block=True)
def _sample_share(  # type: ignore[no-untyped-def]
    block, _, size, bad_B, indptr_N1, place_Z, entries, coarse, nodes_S, times_S, before_X, slot_Z,
    k, window, mode, key, neighbor_SK, event_SK, delta_SK, time_SK, count_S,
):  # fmt: skip
    total = len(nodes_S)
    first = min(block * size, total)
    bad_B[block] = sample_block(
        indptr_N1, place_Z, entries, coarse, nodes_S, times_S, before_X, slot_Z, first,
        min(first + size, total), k, window, mode, key, neighbor_SK, event_SK, delta_SK, time_SK,
        count_S,
    )  # fmt: skip


@kernel()
def sample_parallel(  # type: ignore[no-untyped-def]
    blocks, indptr_N1, place_Z, entries, coarse, nodes_S, times_S, before_X, slot_Z, k, window,
    mode, key, neighbor_SK, event_SK, delta_SK, time_SK, count_S,
):  # fmt: skip
    """`sample_block` over all roots in `blocks` blocks; returns the first bad root, or S."""
    bad_B = np.empty(blocks, np.int64)
    in_blocks(
        _sample_share, blocks, 1,
        ((len(nodes_S) + blocks - 1) // blocks, bad_B, indptr_N1, place_Z, entries, coarse, nodes_S,
         times_S, before_X, slot_Z, k, window, mode, key, neighbor_SK, event_SK, delta_SK, time_SK,
         count_S),
    )  # fmt: skip
    return bad_B.min()
