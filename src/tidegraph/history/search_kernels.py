"""The sampler's search: where the history of each of many roots ends in its node's slice.

A search goes down levels that are built once: level l has the time of every 8**l-th entry, and
level 0 are the entries themselves. On each level a root looks at eight neighbouring times, one
cache line, and what it counts there leaves eight on the level below. A binary search reads a line
for every halving; here one stands for three of them. Levels know times alone: a limit by event is
looked up at the end, close to where the time's is.

Roots of a tile go down in lockstep: one level of every root, then the next. The loads of one round
do not depend on each other and are asked for a round ahead, so the memory latency of a tile
overlaps instead of adding up.

Shape legend: N nodes, W roots of one tile, X = 1 or S (a value for all roots, or one for each),
Z = 0 or S (nothing, or one for each), L times of all levels, D levels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tidegraph._jit import kernel
from tidegraph.history.build import empty_lines
from tidegraph.history.kernels import is_before, place_of, prefetch, time_limit

TILE = 512
"""Most roots searched together: their search state (about 28 KB) stays in the first-level cache."""

BITS = 3
"""Bits of an entry's position that one level decides."""

PITCH = 1 << BITS
"""Entries of a level for one of the level above."""

LINE = 8
"""Times of one cache line."""

ENTRIES = 4
"""Entries of one cache line."""

NEAR = 16
"""Entries around one root's end among which its neighbour's is looked for first."""


def time_levels(entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(time_L, level_D): the levels above the entries, and where each begins in `time_L`.

    `level_D[0]` belongs to the entries and is not used. A level begins with a cache line, and
    behind it are `PITCH` times that are read but do not count.
    """
    sizes = [len(entries)]
    while sizes[-1] > PITCH:
        sizes.append(-(-sizes[-1] // PITCH))
    starts = np.zeros(len(sizes), np.int64)
    for level in range(2, len(sizes)):
        starts[level] = starts[level - 1] + -(-sizes[level - 1] // LINE) * LINE + PITCH
    total = int(starts[-1]) + sizes[-1] + PITCH
    kind = entries.dtype["time"]
    time_L = empty_lines(total, kind)
    time_L[:] = 0
    below = entries["time"]
    for level in range(1, len(sizes)):
        below = below[::PITCH]
        time_L[starts[level] : starts[level] + sizes[level]] = below
    return time_L, starts


@kernel(inline=True)
def _at_level(position, level):  # type: ignore[no-untyped-def]
    """The first place of a level at or after a position among the entries."""
    shift = BITS * level
    return (position + (np.int64(1) << shift) - 1) >> shift


@kernel(inline=True)
def _first_level(size):  # type: ignore[no-untyped-def]
    """The lowest level where a slice of so many entries (below 2**31) has at most `PITCH`."""
    level = np.int64(0)
    for above in range(1, 11):
        level += np.int64(size > np.int64(1) << (BITS * above))
    return level


def _count_before(context: Any, times: Any, first: Any, count: Any, limit: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        data = target.make_array(kind)(target, builder, arguments[0]).data
        _, first, count, limit = arguments
        whole = isinstance(kind.dtype, types.Integer)
        number = ir.IntType(64) if whole else ir.DoubleType()
        lanes = ir.VectorType(number, PITCH)
        place = builder.bitcast(builder.gep(data, [first]), lanes.as_pointer())
        time = builder.load(place, align=8)
        compare = builder.icmp_signed if whole else builder.fcmp_ordered
        index, word = ir.IntType(32), ir.IntType(64)
        one = builder.insert_element(ir.Constant(lanes, ir.Undefined), limit, index(0))
        nowhere = ir.Constant(ir.VectorType(index, PITCH), [0] * PITCH)
        before = compare("<", time, builder.shuffle_vector(one, one, nowhere))
        found = builder.zext(builder.bitcast(before, ir.IntType(PITCH)), word)
        counted = builder.sub(builder.shl(word(1), count), word(1))
        return builder.ctpop(builder.and_(found, counted))

    return types.int64(times, types.int64, types.int64, times.dtype), generate


_times_before: Any = intrinsic(_count_before)
"""How many of the `count` (at most `PITCH`) times from `first` on are before `limit`."""


@kernel(inner=True)
def _step_back(entries, lo, end, before):  # type: ignore[no-untyped-def]
    """The end of those entries of `[lo, end)` whose event is before `before`, where that of the
    last is not: mostly close."""
    step = np.int64(1)
    while end - step > lo and entries[np.uintp(end - step - 1)].event >= before:
        end -= step
        step *= 2
    base = max(lo, end - step)
    left = end - base
    while left > 0:
        half = (left + 1) >> 1
        base += half if entries[np.uintp(base + half - 1)].event < before else 0
        left -= half
    return base


@kernel(inline=True)
def _ask_for(time_L, entries, level, start, begin, stop):  # type: ignore[no-untyped-def]
    """Prefetch places `begin..stop-1` of a level that starts at `start`."""
    if level > 0:
        prefetch(time_L, start + begin)
        prefetch(time_L, start + stop - 1)
    else:
        while begin < stop:
            prefetch(entries, begin)
            begin += ENTRIES


@kernel(inner=True)
def search_listed(  # type: ignore[no-untyped-def]
    entries, time_L, level_D, lo_W, hi_W, limit_W, before_W, end_W, list_W, listed
):
    """Where the eligible entries of the listed roots end."""
    # Roots that begin on a higher level come first, so that those of a round are neighbours.
    first_I, root_I = np.empty(listed, np.uintp), np.empty(listed, np.uintp)
    lo_I, hi_I = np.empty(listed, np.int64), np.empty(listed, np.int64)
    begin_I, stop_I = np.empty(listed, np.int64), np.empty(listed, np.int64)
    limit_I = np.empty(listed, limit_W.dtype)
    upto_D = np.zeros(len(level_D) + 1, np.int64)  # how many begin on this level or above
    for n in range(listed):
        i = np.uintp(n)
        w = np.uintp(list_W[i])
        first = np.uintp(_first_level(hi_W[w] - lo_W[w]))
        first_I[i] = first
        upto_D[first] += 1
    for level in range(len(level_D) - 1, -1, -1):
        upto_D[level] += upto_D[level + 1]
    for n in range(listed):
        w = np.uintp(list_W[np.uintp(n)])
        above = first_I[np.uintp(n)] + np.uintp(1)
        i = np.uintp(upto_D[above])
        upto_D[above] += 1
        root_I[i] = w
        lo_I[i], hi_I[i], limit_I[i] = lo_W[w], hi_W[w], limit_W[w]
    # Now each holds what the one above it held: the end of its own level's roots.
    begun = 0
    for level in range(len(level_D) - 1, -1, -1):
        start = level_D[level]
        for n in range(begun, upto_D[level + 1]):
            i = np.uintp(n)
            begin, stop = _at_level(lo_I[i], level), _at_level(hi_I[i], level)
            begin_I[i], stop_I[i] = begin, stop
            _ask_for(time_L, entries, level, start, begin, stop)
        begun = upto_D[level + 1]
        if level == 0:
            break
        below, next_start = level - 1, level_D[level - 1]
        for n in range(begun):
            i = np.uintp(n)
            begin = begin_I[i]
            place = begin + _times_before(time_L, start + begin, stop_I[i] - begin, limit_I[i])
            # The entry at the place before is history, the one at the place is not.
            begin = max(_at_level(lo_I[i], below), ((place - 1) << BITS) + 1)
            stop = min(_at_level(hi_I[i], below), place << BITS)
            begin_I[i], stop_I[i] = begin, stop
            _ask_for(time_L, entries, below, next_start, begin, stop)
    for n in range(listed):
        i = np.uintp(n)
        end, limit = begin_I[i], limit_I[i]
        left = stop_I[i] - end
        while left > 0:
            half = (left + 1) >> 1
            end += half if entries[np.uintp(end + half - 1)].time < limit else 0
            left -= half
        w = root_I[i]
        if (end > lo_I[i]) and (entries[np.uintp(end - 1)].event >= before_W[w]):
            end = _step_back(entries, lo_I[i], end, before_W[w])
        end_W[w] = end


@kernel(inner=True)
def find_near(entries, lo, hi, limit, before, near):  # type: ignore[no-untyped-def]
    """The end of the eligible entries in `[lo, hi)` if it is within `NEAR` of `near`, or -1."""
    end = near
    if (end < hi) and is_before(entries[np.uintp(end)], limit, before):
        stop = min(hi, near + NEAR)
        end += 1
        while (end < stop) and is_before(entries[np.uintp(end)], limit, before):
            end += 1
        return end if (end < stop) | (stop == hi) else -1
    stop = max(lo, near - NEAR)
    while (end > stop) and not is_before(entries[np.uintp(end - 1)], limit, before):
        end -= 1
    return end if (end > stop) | (stop == lo) else -1


@kernel(inner=True)
def search_tile(  # type: ignore[no-untyped-def]
    indptr_N1, place_Z, entries, time_L, level_D, nodes_S, times_S, before_X, first, inclusive,
    lo_W, end_W,
):  # fmt: skip
    """For roots `first..first+W-1`: where their node's entries begin, and its history ends.

    The first of neighbouring roots of one node is searched; the others' ends are mostly close to
    that one's, so they look there first and are searched only if it is not.
    """
    width = len(lo_W)
    hi_W = np.empty(width, np.int64)
    before_W = np.empty(width, np.int64)
    list_W = np.empty(width, np.int64)
    limit_W = np.empty(width, times_S.dtype)
    one_limit = len(before_X) == 1
    for n in range(width):
        node = np.int64(nodes_S[np.uintp(first + n)])
        prefetch(indptr_N1, place_of(place_Z, max(node, 0)))
    listed = 0
    previous = np.int64(-2)
    for n in range(width):
        w, s = np.uintp(n), np.uintp(first + n)
        limit_W[w] = time_limit(times_S[s], inclusive)
        before_W[w] = before_X[0] if one_limit else before_X[s]
        node = np.int64(nodes_S[s])
        lo, hi = np.int64(0), np.int64(0)  # padding has an empty slice
        if node >= 0:
            place = place_of(place_Z, node)
            lo, hi = indptr_N1[np.uintp(place)], indptr_N1[np.uintp(place + 1)]
        lo_W[w], hi_W[w] = lo, hi
        list_W[np.uintp(listed)] = n
        listed += node != previous
        previous = node
    search_listed(entries, time_L, level_D, lo_W, hi_W, limit_W, before_W, end_W, list_W, listed)
    if listed == width:
        return
    far = 0
    near = np.int64(0)
    previous = np.int64(-2)
    for n in range(width):
        w = np.uintp(n)
        node = np.int64(nodes_S[np.uintp(first + n)])
        if node != previous:
            near, previous = end_W[w], node
            continue
        end = find_near(entries, lo_W[w], hi_W[w], limit_W[w], before_W[w], near)
        if end >= 0:
            near = end
            end_W[w] = end
        else:
            list_W[np.uintp(far)] = n
            far += 1
    search_listed(entries, time_L, level_D, lo_W, hi_W, limit_W, before_W, end_W, list_W, far)
