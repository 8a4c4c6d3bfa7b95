"""CPU kernels behind `history.walks` and `history.encounters`: walks back in time, and windows.

Every random number belongs to (key, root, walk, step), so a walk does not depend on threads, on the
other roots of a call, or on how often its root is asked for.

Shape legend: S roots, X = 1 or S (a value for all roots, or one for each), M walks per root,
L steps per walk, N nodes.
"""

from __future__ import annotations

import math

import numpy as np

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.history.kernels import age, below, count_before, first_within, place_of
from tidegraph.keys import random_bits

_TRIALS = 8
_BLOCK = 16
_UNIT = 2.0**-53


@kernel(inline=True)
def _uniform(key, slot):  # type: ignore[no-untyped-def]
    return np.float64(random_bits(key, slot) >> np.uint64(11)) * _UNIT


@kernel(inner=True)
def _by_weight(entries, low, end, bias, share):  # type: ignore[no-untyped-def]
    """The entry at `share` (0 to 1) of all weights exp(-bias age), counted from the latest back.

    Weights fall from there on, so it stops where what is left could not change the sum.
    """
    latest = entries[end - 1].time
    total = 0.0
    first = end
    while first > low:
        first -= 1
        weight = math.exp(-bias * np.float64(age(latest, entries[first].time)))
        total += weight
        if weight * (first - low) < total * _UNIT:
            break
    wanted = share * total
    position = end
    passed = 0.0
    while position > first:
        position -= 1
        passed += math.exp(-bias * np.float64(age(latest, entries[position].time)))
        if passed > wanted:
            break
    return position


@kernel(inner=True)
def draw_entry(entries, low, end, bias, key, slot):  # type: ignore[no-untyped-def]
    """One of entries[low:end] with probability proportional to exp(-bias age).

    An entry drawn evenly is kept with its weight relative to the latest one's, which is exact and
    mostly needs one or two trials; after `_TRIALS` all weights are summed, which is exact as well.
    Uses the numbers `slot .. slot + 2 * _TRIALS` of stream `key`.
    """
    latest = entries[end - 1].time
    for trial in range(_TRIALS):
        at = slot + np.uint64(2 * trial)
        position = low + below(random_bits(key, at), end - low)
        if bias == 0:
            return position
        weight = math.exp(-bias * np.float64(age(latest, entries[position].time)))
        if _uniform(key, at + np.uint64(1)) < weight:
            return position
    return _by_weight(entries, low, end, bias, _uniform(key, slot + np.uint64(2 * _TRIALS)))


@kernel()
def _walk(  # type: ignore[no-untyped-def]
    indptr_N1, place_Z, entries, node, time, before, inclusive, bias, key, slot,
    node_L, event_L, delta_L,
):  # fmt: skip
    """One walk back in time from (node, time); what follows its end is -1, 0, 0."""
    L = node_L.shape[0]
    node_L[:] = -1
    event_L[:] = -1
    delta_L[:] = 0
    for step in range(L):
        place = place_of(place_Z, node)
        low = indptr_N1[place]
        end = count_before(entries, low, indptr_N1[place + 1], time, before, inclusive)
        if end == low:
            return
        start = slot + np.uint64(step * (2 * _TRIALS + 1))
        entry = entries[draw_entry(entries, low, end, bias, key, start)]
        node_L[step] = entry.neighbor
        event_L[step] = entry.event
        delta_L[step] = age(time, entry.time)
        node = entry.neighbor
        time = entry.time
        if inclusive:  # an event is no history of itself
            before = np.int64(entry.event)


@kernel(block=True)
def _walk_block(  # type: ignore[no-untyped-def]
    first, last, indptr_N1, place_Z, entries, node_S, time_S, before_X, inclusive, bias, key,
    slot_S, node_SML, event_SML, delta_SML,
):  # fmt: skip
    M, L = node_SML.shape[1:]
    for s in range(first, last):
        before = before_X[s] if len(before_X) > 1 else before_X[0]
        own_key = random_bits(key, slot_S[s])
        for m in range(M):
            _walk(
                indptr_N1, place_Z, entries, np.int64(node_S[s]), time_S[s], np.int64(before),
                inclusive, bias, own_key, np.uint64(m * L * (2 * _TRIALS + 1)),
                node_SML[s, m], event_SML[s, m], delta_SML[s, m],
            )  # fmt: skip


@kernel()
def walks(  # type: ignore[no-untyped-def]
    indptr_N1, place_Z, entries, node_S, time_S, before_X, inclusive, bias, key, slot_S,
    node_SML, event_SML, delta_SML,
):  # fmt: skip
    """M walks of L steps from each root, each step to an event strictly before the last one's."""
    S = node_S.shape[0]
    in_blocks(
        _walk_block, S, _BLOCK,
        (indptr_N1, place_Z, entries, node_S, time_S, before_X, inclusive, bias, key, slot_S,
         node_SML, event_SML, delta_SML),
    )  # fmt: skip


@kernel(block=True)
def _window_block(  # type: ignore[no-untyped-def]
    first, last, indptr_N1, place_Z, entries, node_S, time_S, before_X, inclusive, window, low_S,
    end_S,
):  # fmt: skip
    for s in range(first, last):
        before = before_X[s] if len(before_X) > 1 else before_X[0]
        place = place_of(place_Z, np.int64(node_S[s]))
        low, high = indptr_N1[place], indptr_N1[place + 1]
        end = count_before(entries, low, high, time_S[s], np.int64(before), inclusive)
        low_S[s] = first_within(entries, low, end, time_S[s], window)
        end_S[s] = end


@kernel()
def find_windows(  # type: ignore[no-untyped-def]
    indptr_N1, place_Z, entries, node_S, time_S, before_X, inclusive, window, low_S, end_S
):
    """For each root the entries [low, end) of the last `window` time units before its time."""
    in_blocks(
        _window_block, node_S.shape[0], _BLOCK,
        (indptr_N1, place_Z, entries, node_S, time_S, before_X, inclusive, window, low_S, end_S),
    )  # fmt: skip


@kernel()
def list_windows(entries, low_S, end_S, neighbor_X):  # type: ignore[no-untyped-def]
    """The neighbours of all windows, root by root, oldest first."""
    x = 0
    for s in range(low_S.shape[0]):
        for position in range(low_S[s], end_S[s]):
            neighbor_X[x] = entries[position].neighbor
            x += 1
