"""CPU kernels of preparation: deduplication, transposes, pending mail, and what a step writes.

All are exact integer work. The hash tables are private to a call, so any number of batches can be
prepared at once.

Shape legend: P pairs, R rows, M positions, U unique nodes, B events.
"""

from __future__ import annotations

import numpy as np

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.history.kernels import place_of

_SPARSE = 8
"""So many times as many nodes as entries, and a table of all nodes costs more than hashing."""


@kernel(inline=True)
def _hash(node, time, bound):  # type: ignore[no-untyped-def]
    value = (
        np.uint64(node) * np.uint64(0x9E3779B97F4A7C15)
        ^ np.uint64(time) * np.uint64(0xC2B2AE3D27D4EB4F)
        ^ np.uint64(bound) * np.uint64(0x165667B19E3779F9)
    )
    value = (value ^ (value >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return value ^ (value >> np.uint64(32))


@kernel(inner=True)
def _unique_numbers(node_P, most, inverse_P, first_P):  # type: ignore[no-untyped-def]
    """`unique_pairs` of nodes alone, none above `most`: a table of all of them."""
    number_N = np.full(most + 1, -1, np.int32)
    count = 0
    for p in range(node_P.shape[0]):
        node = node_P[p]
        if node < 0:
            inverse_P[p] = -1
            continue
        number = number_N[node]
        if number < 0:
            number = count
            number_N[node] = count
            first_P[count] = p
            count += 1
        inverse_P[p] = number
    return count


@kernel()
def unique_pairs(node_P, time_P, bound_P, inverse_P, first_P):  # type: ignore[no-untyped-def]
    """Number distinct (node, time, bound) in order of first appearance.

    `time_P` is int64 (float times are passed as their bits). A negative node is padding: its
    inverse is -1. Writes `inverse_P` and, for each distinct pair, its first position in `first_P`;
    returns how many there are. An empty `bound_P` (or `time_P`) means one value for all.
    """
    P = node_P.shape[0]
    has_time = time_P.shape[0] > 0
    has_bound = bound_P.shape[0] > 0
    if not has_time and not has_bound:
        most = np.int64(-1)
        for p in range(P):
            most = max(most, np.int64(node_P[p]))
        if most < _SPARSE * P:
            return _unique_numbers(node_P, most, inverse_P, first_P)
    size = 16
    while size < 2 * P:
        size *= 2
    slot = np.full(size, -1, np.int32)
    mask = np.uint64(size - 1)
    count = 0
    for p in range(P):
        node = node_P[p]
        if node < 0:
            inverse_P[p] = -1
            continue
        time = time_P[p] if has_time else np.int64(0)
        bound = bound_P[p] if has_bound else np.int64(0)
        h = _hash(node, time, bound) & mask
        while True:
            found = slot[h]
            if found < 0:
                slot[h] = count
                first_P[count] = p
                inverse_P[p] = count
                count += 1
                break
            q = first_P[found]
            if (
                node_P[q] == node
                and (not has_time or time_P[q] == time)
                and (not has_bound or bound_P[q] == bound)
            ):
                inverse_P[p] = found
                break
            h = (h + np.uint64(1)) & mask
    return count


@kernel()
def transpose(index_P, indptr_R1, position_M):  # type: ignore[no-untyped-def]
    """Positions by row, ascending (a counting sort); negative entries are left out."""
    R = indptr_R1.shape[0] - 1
    indptr_R1[:] = 0
    for p in range(index_P.shape[0]):
        if index_P[p] >= 0:
            indptr_R1[index_P[p] + 1] += 1
    for r in range(R):
        indptr_R1[r + 1] += indptr_R1[r]
    cursor = indptr_R1[:R].copy()
    for p in range(index_P.shape[0]):
        r = index_P[p]
        if r >= 0:
            position_M[cursor[r]] = p
            cursor[r] += 1
    return indptr_R1[R]


@kernel(inline=True)
def _first_at_or_after(entries, low, high, event):  # type: ignore[no-untyped-def]
    """Smallest position in [low, high) whose event id is >= `event`, or `high`."""
    while low < high:
        middle = (low + high) >> 1
        if entries[middle].event < event:
            low = middle + 1
        else:
            high = middle
    return low


@kernel(inner=True)
def _batch_of(first_event_B, event):  # type: ignore[no-untyped-def]
    """The last batch that starts at or before `event`, -1 if none."""
    low, high = 0, first_event_B.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if first_event_B[middle] <= event:
            low = middle + 1
        else:
            high = middle
    return low - 1


@kernel(block=True)
def _mail_block(  # type: ignore[no-untyped-def]
    first, last, node_U, indptr_N1, place_Z, entries, batch_start, first_event_B, version_B,
    begin_U, end_U, applied_U,
):  # fmt: skip
    for u in range(first, last):
        place = place_of(place_Z, node_U[u])
        low = indptr_N1[place]
        end = _first_at_or_after(entries, low, indptr_N1[place + 1], batch_start)
        begin = applied = end
        if end > low:
            event = entries[end - 1].event
            batch = _batch_of(first_event_B, event)
            # Most nodes have one event in the batch of their mail: step back before searching.
            start = first_event_B[batch] if batch >= 0 else np.int64(0)
            begin = end - 1
            steps = 0
            while begin > low and entries[begin - 1].event >= start:
                begin -= 1
                steps += 1
                if steps == 8:
                    begin = _first_at_or_after(entries, low, begin, start)
                    break
            applied = begin
            if batch >= 0 and version_B[batch] < batch:
                start = first_event_B[version_B[batch]]
                applied = _first_at_or_after(entries, low, begin, start)
        begin_U[u] = begin
        end_U[u] = end
        applied_U[u] = applied


@kernel()
def find_mail(  # type: ignore[no-untyped-def]
    node_U, indptr_N1, place_Z, entries, batch_start, first_event_B, version_B,
    begin_U, end_U, applied_U,
):  # fmt: skip
    """For each node the entries [begin, end) of the last batch before `batch_start` it was in.

    That batch applied the mail of the version it read: the last entry before `applied`, which is
    `begin` unless it read a stale version.
    """
    U = node_U.shape[0]
    in_blocks(
        _mail_block, U, 128,
        (node_U, indptr_N1, place_Z, entries, batch_start, first_event_B, version_B, begin_U,
         end_U, applied_U),
    )  # fmt: skip


@kernel()
def list_mail(  # type: ignore[no-untyped-def]
    node_U, indptr_N1, place_Z, entries, begin_U, end_U, applied_U, origin, only_last, now_U,
    row_M, indptr_M1, event_L, delta_L,
):  # fmt: skip
    """Compact the nodes with mail; delta is mail time minus the time of the mail applied last.

    Where `now_U` is not empty, delta is that time minus the time of the mail applied last.
    """
    M = 0
    L = 0
    indptr_M1[0] = 0
    for u in range(node_U.shape[0]):
        begin, end = begin_U[u], end_U[u]
        if begin == end:
            continue
        updated = origin
        if applied_U[u] > indptr_N1[place_of(place_Z, node_U[u])]:
            updated = entries[applied_U[u] - 1].time
        if only_last:
            begin = end - 1
        row_M[M] = u
        for position in range(begin, end):
            event_L[L] = entries[position].event
            now = now_U[u] if now_U.shape[0] > 0 else entries[position].time
            delta_L[L] = now - updated
            L += 1
        M += 1
        indptr_M1[M] = L
    return M, L


@kernel()
def list_writes(  # type: ignore[no-untyped-def]
    source_row_B, target_row_B, only_last, U, row_W, indptr_W1, partner_row_P
):
    """Endpoints of the batch and the rows of the partners that form their new mail.

    With `only_last` a node's partner is that of its latest event; otherwise all, in event order.
    """
    B = source_row_B.shape[0]
    order_U = np.full(U, -1, np.int32)
    W = 0
    for b in range(B):
        for side in range(2):
            row = source_row_B[b] if side == 0 else target_row_B[b]
            if order_U[row] < 0:
                order_U[row] = W
                row_W[W] = row
                W += 1
    if only_last:
        for w in range(W + 1):
            indptr_W1[w] = w
        for b in range(B):
            source, target = source_row_B[b], target_row_B[b]
            partner_row_P[order_U[source]] = target
            partner_row_P[order_U[target]] = source
        return W, W
    indptr_W1[: W + 1] = 0
    for b in range(B):
        source, target = source_row_B[b], target_row_B[b]
        indptr_W1[order_U[source] + 1] += 1
        if target != source:
            indptr_W1[order_U[target] + 1] += 1
    for w in range(W):
        indptr_W1[w + 1] += indptr_W1[w]
    cursor = indptr_W1[: W + 1].copy()
    for b in range(B):
        source, target = source_row_B[b], target_row_B[b]
        partner_row_P[cursor[order_U[source]]] = target
        cursor[order_U[source]] += 1
        if target != source:
            partner_row_P[cursor[order_U[target]]] = source
            cursor[order_U[target]] += 1
    return W, indptr_W1[W]


@kernel()
def list_ends(  # type: ignore[no-untyped-def]
    source_row_B, target_row_B, only_last, U, row_W, indptr_W1, root_W, partner_root_P
):
    """For what `list_writes` listed, the roots (sources 0..B-1, targets B..2B-1) they belong to.

    `root_W`: each node at its last event; `partner_root_P`: each partner at its event.
    """
    B = source_row_B.shape[0]
    order_U = np.full(U, -1, np.int32)
    for w in range(row_W.shape[0]):
        order_U[row_W[w]] = w
    cursor = indptr_W1.copy()
    for b in range(B):
        source, target = order_U[source_row_B[b]], order_U[target_row_B[b]]
        root_W[source] = b
        root_W[target] = B + b
        if only_last:
            partner_root_P[source] = B + b
            partner_root_P[target] = b
            continue
        partner_root_P[cursor[source]] = B + b
        cursor[source] += 1
        if target != source:
            partner_root_P[cursor[target]] = b
            cursor[target] += 1


@kernel()
def elapsed(row_S, time_S, begin_U, end_U, entries, origin, elapsed_S):  # type: ignore[no-untyped-def]
    """Query time minus the time of the node's last event before the batch, or minus `origin`."""
    for s in range(row_S.shape[0]):
        u = row_S[s]
        last = origin
        if end_U[u] > begin_U[u]:
            last = entries[end_U[u] - 1].time
        elapsed_S[s] = time_S[s] - last


@kernel()
def list_delivery(row_BX, indptr_V1, event_X):  # type: ignore[no-untyped-def]
    """The events that reach each receiver, each once, ascending; returns how many that is in all.

    `row_BX` has, per event, the receivers' numbers (-1 for padding, repeats allowed).
    """
    V = indptr_V1.shape[0] - 1
    seen_V = np.full(V, -1, np.int32)
    indptr_V1[:] = 0
    for b in range(row_BX.shape[0]):
        for x in range(row_BX.shape[1]):
            v = row_BX[b, x]
            if v >= 0 and seen_V[v] != b:
                seen_V[v] = b
                indptr_V1[v + 1] += 1
    for v in range(V):
        indptr_V1[v + 1] += indptr_V1[v]
    cursor = indptr_V1.copy()
    seen_V[:] = -1
    for b in range(row_BX.shape[0]):
        for x in range(row_BX.shape[1]):
            v = row_BX[b, x]
            if v >= 0 and seen_V[v] != b:
                seen_V[v] = b
                event_X[cursor[v]] = b
                cursor[v] += 1
    return indptr_V1[V]
