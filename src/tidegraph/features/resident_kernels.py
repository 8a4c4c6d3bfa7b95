"""CPU kernels of `Residents`: which rows of a host table are on the device, and who has to leave.

Resident rows hang in doubly linked lists, one per announced batch in which they are used next and
one, in order of last use, for rows without an announced use. So a step costs as much as the rows it
touches, however large the cache is. All are exact integer work.

Lists share one array of links: places 0 .. C - 1 are the slots, place C + l is the head of list l;
list 0 is "no announced use", list 1 + t mod (L - 1) is "next used at time t".

Shape legend: N rows of the table, C slots, L lists, U distinct rows of a batch, P uses announced.
"""

from __future__ import annotations

import numpy as np

from tidegraph._jit import kernel

NEVER = np.int32(2**31 - 1)


@kernel(inline=True)
def _unlink(place, after, before):  # type: ignore[no-untyped-def]
    after[before[place]] = after[place]
    before[after[place]] = before[place]


@kernel(inline=True)
def _append(place, head, after, before):  # type: ignore[no-untyped-def]
    last = before[head]
    after[last] = place
    before[place] = last
    after[place] = head
    before[head] = place


@kernel(inline=True)
def _head(time, C, L):  # type: ignore[no-untyped-def]
    return C if time == NEVER else C + 1 + time % (L - 1)


@kernel()
def split_rows(row_U, skip_U, slot_N, hit_U, hit_slot_U, miss_U):  # type: ignore[no-untyped-def]
    """Positions that are resident (with their slots) and positions that are not.

    Positions with `skip_U` are in neither; an empty `skip_U` skips none. Returns both counts.
    """
    hits, misses = 0, 0
    some = skip_U.shape[0] > 0
    for u in range(row_U.shape[0]):
        if some and skip_U[u]:
            continue
        slot = slot_N[row_U[u]]
        if slot >= 0:
            hit_U[hits] = u
            hit_slot_U[hits] = slot
            hits += 1
        else:
            miss_U[misses] = u
            misses += 1
    return hits, misses


@kernel()
def announce_rows(  # type: ignore[no-untyped-def]
    row_U, time, first, base, next_P, next_N, last_N, slot_N, after, before, C, L
):
    """Note that `row_U` will be used at `time`, later than all that was announced before.

    `next_N` is each row's earliest announced use, `last_N` the number of its latest; use number p
    is described by `next_P[p - base]`, the time of the same row's following use. This batch's uses
    are numbered from `first`.
    """
    for u in range(row_U.shape[0]):
        row = row_U[u]
        if next_N[row] == NEVER:
            next_N[row] = time
            slot = slot_N[row]
            if slot >= 0:
                _unlink(slot, after, before)
                _append(slot, _head(time, C, L), after, before)
        else:
            next_P[last_N[row] - base] = time
        last_N[row] = first + u
        next_P[first - base + u] = NEVER


@kernel()
def use_rows(  # type: ignore[no-untyped-def]
    row_U, now, following_U, next_N, slot_N, used_C, after, before, C, L
):
    """Move the resident rows of `row_U` to the list of their next use.

    `following_U` holds the uses that follow this one where this one was announced; else it
    is empty.
    """
    announced = following_U.shape[0] > 0
    for u in range(row_U.shape[0]):
        row = row_U[u]
        if announced:
            next_N[row] = following_U[u]
        slot = slot_N[row]
        if slot >= 0:
            used_C[slot] = now
            _unlink(slot, after, before)
            _append(slot, _head(next_N[row], C, L), after, before)


@kernel()
def admit_rows(  # type: ignore[no-untyped-def]
    row_X, now, latest, free, next_N, slot_N, row_C, used_C, after, before, C, L, place_X, slot_X
):
    """Make rows resident that are worth more than what has to leave for them.

    Worth more: used sooner; among rows without an announced use, used more recently. `latest` is
    the latest announced time, `free` how many slots were never used (they are the last ones).
    Writes positions in `row_X` of the rows that stay and their slots; returns how many, and what is
    left of `free`.
    """
    far = latest
    for x in range(row_X.shape[0]):
        row = row_X[x]
        if slot_N[row] >= 0:
            continue
        time = next_N[row]
        victim = -1
        if free > 0:
            victim = C - free
            free -= 1
        else:
            oldest = after[C]
            if oldest < C:
                if time != NEVER or used_C[oldest] < now:
                    victim = oldest
            elif time != NEVER:
                while far > time and after[_head(far, C, L)] >= C:
                    far -= 1
                if far > time:
                    victim = after[_head(far, C, L)]
            if victim < 0:
                continue
            slot_N[row_C[victim]] = -1
            _unlink(victim, after, before)
        slot_N[row] = victim
        row_C[victim] = row
        used_C[victim] = now
        _append(victim, _head(time, C, L), after, before)
    count = 0
    for x in range(row_X.shape[0]):
        slot = slot_N[row_X[x]]
        if slot >= 0:
            place_X[count] = x
            slot_X[count] = slot
            count += 1
    return count, free


@kernel()
def admit_chosen(row_X, chosen_N, free, slot_N, row_C, C, place_X, slot_X):  # type: ignore[no-untyped-def]
    """As `admit_rows`, for a set of rows that was chosen once: they enter as they come."""
    count = 0
    for x in range(row_X.shape[0]):
        row = row_X[x]
        if slot_N[row] < 0 and chosen_N[row] and free > 0:
            slot_N[row] = C - free
            row_C[C - free] = row
            free -= 1
        if slot_N[row] >= 0:
            place_X[count] = x
            slot_X[count] = slot_N[row]
            count += 1
    return count, free


@kernel()
def find_rows(row_X, slot_N, place_X, slot_X):  # type: ignore[no-untyped-def]
    """Positions and slots of the rows that are resident; returns how many."""
    count = 0
    for x in range(row_X.shape[0]):
        slot = slot_N[row_X[x]]
        if slot >= 0:
            place_X[count] = x
            slot_X[count] = slot
            count += 1
    return count
