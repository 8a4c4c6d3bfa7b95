"""Small compiled helpers on one node's slice of the index: search, age, and random draws.

Every sampler is built from these, and other rooms may call them from their own kernels. All of
them take the index's `entries` and absolute positions; a node's slice is
`indptr_N1[place] .. indptr_N1[place + 1]` with `place_of(place_Z, node)`, sorted by (time, event).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from tidegraph._jit import kernel

NO_LIMIT = np.int64(np.iinfo(np.int64).max)
"""A `before_event` that leaves nothing out."""


def age(later: Any, earlier: Any) -> Any:
    """`later - earlier` for `later >= earlier`, without overflow.

    For int64 times the difference is taken modulo 2**64 and returned as uint64, so that it is
    exact even where it exceeds the largest int64. For float64 it is the ordinary difference.
    """
    raise NotImplementedError("compiled code only")


@overload(age, inline="always")
def _age(later, earlier):  # type: ignore[no-untyped-def]
    if isinstance(later, types.Integer):
        return lambda later, earlier: np.uint64(later) - np.uint64(earlier)
    return lambda later, earlier: later - earlier


def time_limit(time: Any, inclusive: Any) -> Any:
    """The smallest time that is no longer history at `time`, so that one comparison decides.

    int64: `time`, or `time + 1` if inclusive (the index holds no event at the largest int64, so
    staying there is right). float64: `time`, or the next larger number.
    """
    raise NotImplementedError("compiled code only")


@overload(time_limit, inline="always")
def _time_limit(time, inclusive):  # type: ignore[no-untyped-def]
    if isinstance(time, types.Integer):
        return lambda time, inclusive: time + np.int64(inclusive & (time < NO_LIMIT))
    return lambda time, inclusive: np.nextafter(time, np.inf) if inclusive else time


@kernel(inline=True)
def place_of(place_Z, node):  # type: ignore[no-untyped-def]
    """The place of the node's slice: `indptr_N1[place] .. indptr_N1[place + 1]`."""
    return np.int64(place_Z[np.uintp(node)]) if len(place_Z) > 0 else np.int64(node)


@kernel(inner=True)
def is_before(entry, limit, before_event):  # type: ignore[no-untyped-def]
    """Whether `entry` is history: the one rule behind every query.

    Both conditions can only turn from true to false along a node's slice, because events are
    numbered in time order. So one binary search answers both.
    """
    return (entry.time < limit) & (entry.event < before_event)


@kernel()
def count_before(entries, lo, hi, time, before_event, inclusive):  # type: ignore[no-untyped-def]
    """End position of the entries in `[lo, hi)` that are history at `time`.

    Args:
        entries: the index's entries.
        lo, hi: int64, absolute positions of the node's slice.
        time: query time, of the index's own type.
        before_event: int64; only events with a smaller id count (`NO_LIMIT` for all).
        inclusive: whether entries at exactly `time` count.

    Returns:
        int64 position `end`: the eligible entries are `entries[lo:end]`.
    """
    limit = time_limit(time, inclusive)
    base = lo
    left = hi - lo
    while left > 0:
        half = (left + 1) >> 1
        entry = entries[np.uintp(base + half - 1)]
        base += half if is_before(entry, limit, before_event) else 0
        left -= half
    return base


@kernel()
def first_within(entries, lo, end, time, window):  # type: ignore[no-untyped-def]
    """First position in `[lo, end)` whose entry is at most `window` old (`end` if none is).

    The entries must be history at `time`. `window` is uint64 for int64 times, else float64.
    """
    base = lo
    left = end - lo
    while left > 0:
        half = (left + 1) >> 1
        entry = entries[np.uintp(base + half - 1)]
        base += half if age(time, entry.time) > window else 0
        left -= half
    return base


@kernel()
def below(bits, bound):  # type: ignore[no-untyped-def]
    """An integer in `[0, bound)` from 64 random bits, for any bound up to 2**53.

    (The product rounds to less than `bound`: the largest factor is 1 - 2**-53.)
    """
    return np.int64(np.float64(bits >> np.uint64(11)) * 2.0**-53 * np.float64(bound))


def _prefetch(context: Any, array: Any, index: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        data = target.make_array(kind)(target, builder, arguments[0]).data
        number = ir.IntType(32)
        pointer = ir.IntType(8).as_pointer()
        shape = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        instruction = builder.module.declare_intrinsic("llvm.prefetch", [pointer], shape)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), pointer)
        read, keep, from_data = number(0), number(3), number(1)
        builder.call(instruction, [address, read, keep, from_data])
        return target.get_dummy_value()

    return types.void(array, types.intp), generate


prefetch: Any = intrinsic(_prefetch)
"""`prefetch(array, index)` starts loading an element into the cache; any index is allowed."""
