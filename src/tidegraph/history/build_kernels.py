"""Building the index: a stable counting sort of events by node, in parallel chunks.

Each chunk of events counts its entries per node; a running sum over (node, chunk) turns the counts
into write positions; each chunk then writes its entries in event order. Chunks are in event order
too, so every node's slice comes out sorted by (time, event) however many chunks there are.

Shape legend: E events, M entries, N nodes, C chunks, Z = 0 or E (no mask, or one).
"""

from __future__ import annotations

import numpy as np

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel


@kernel()
def count_chunk(source_E, target_E, keep_Z, first, last, directed, cursor_N):  # type: ignore[no-untyped-def]
    """Count the entries per node of events `first..last-1`; the first row with a bad node, or E."""
    num_nodes = len(cursor_N)
    for e in range(first, last):
        u = source_E[e]
        v = target_E[e]
        if (u < 0) | (u >= num_nodes) | (v < 0) | (v >= num_nodes):
            return e
        if len(keep_Z) > 0 and not keep_Z[e]:
            continue
        cursor_N[u] += 1
        if not directed and u != v:
            cursor_N[v] += 1
    return len(source_E)


@kernel()
def write_chunk(  # type: ignore[no-untyped-def]
    source_E, target_E, time_E, keep_Z, first, last, directed, offset, cursor_N, entries
):
    """Write the entries of events `first..last-1` at the positions that `cursor_N` hands out."""
    for e in range(first, last):
        if len(keep_Z) > 0 and not keep_Z[e]:
            continue
        u = source_E[e]
        v = target_E[e]
        entry = entries[cursor_N[u]]
        cursor_N[u] += 1
        entry.time = time_E[e]
        entry.event = offset + e
        entry.neighbor = v
        if not directed and u != v:  # a self-loop is one entry, not two
            entry = entries[cursor_N[v]]
            cursor_N[v] += 1
            entry.time = time_E[e]
            entry.event = offset + e
            entry.neighbor = u


@kernel(block=True)
def _count_share(c, end, source_E, target_E, keep_Z, directed, cursor_CN, bad_C):  # type: ignore[no-untyped-def]
    total, chunks = len(source_E), cursor_CN.shape[0]
    bad_C[c] = count_chunk(
        source_E, target_E, keep_Z, total * c // chunks, total * end // chunks, directed,
        cursor_CN[c],
    )  # fmt: skip


@kernel()
def count_entries(source_E, target_E, keep_Z, directed, cursor_CN):  # type: ignore[no-untyped-def]
    """`count_chunk` for every chunk; returns the first row with a bad node, or E."""
    bad_C = np.empty(cursor_CN.shape[0], np.int64)
    in_blocks(_count_share, len(bad_C), 1, (source_E, target_E, keep_Z, directed, cursor_CN, bad_C))
    return bad_C.min()


@kernel()
def first_events(source_E, target_E, keep_Z, directed, first_N):  # type: ignore[no-untyped-def]
    """Each node's first event (E, which `first_N` must hold on entry, for a node without any)."""
    for e in range(len(source_E) - 1, -1, -1):
        if len(keep_Z) > 0 and not keep_Z[e]:
            continue
        first_N[source_E[e]] = e
        if not directed:
            first_N[target_E[e]] = e


@kernel()
def locality_keys(cursor_CN, first_N, key_N):  # type: ignore[no-untyped-def]
    """Sort keys of the locality order: most entries first (by powers of two), then first event."""
    chunks, num_nodes = cursor_CN.shape
    for n in range(num_nodes):
        degree = np.int64(0)
        for c in range(chunks):
            degree += cursor_CN[c, n]
        magnitude = np.int64(0)
        while degree >> magnitude > 0:
            magnitude += 1
        key_N[n] = ((63 - magnitude) << 48) | first_N[n]


@kernel()
def counts_to_positions(cursor_CN, node_Z, indptr_N1):  # type: ignore[no-untyped-def]
    """Replace counts by first write positions, fill `indptr_N1`, return the largest degree.

    `node_Z` lists the nodes in the order of their slices (nothing: by id).
    """
    chunks, num_nodes = cursor_CN.shape
    position = np.int64(0)
    largest = np.int64(0)
    for place in range(num_nodes):
        n = np.int64(node_Z[place]) if len(node_Z) > 0 else np.int64(place)
        indptr_N1[place] = position
        for c in range(chunks):
            count = cursor_CN[c, n]
            cursor_CN[c, n] = position
            position += count
        largest = max(largest, position - indptr_N1[place])
    indptr_N1[num_nodes] = position
    return largest


@kernel(block=True)
def _write_share(  # type: ignore[no-untyped-def]
    c, end, source_E, target_E, time_E, keep_Z, directed, offset, cursor_CN, entries
):
    total, chunks = len(source_E), cursor_CN.shape[0]
    write_chunk(
        source_E, target_E, time_E, keep_Z, total * c // chunks, total * end // chunks,
        directed, offset, cursor_CN[c], entries,
    )  # fmt: skip


@kernel()
def write_entries(  # type: ignore[no-untyped-def]
    source_E, target_E, time_E, keep_Z, directed, offset, cursor_CN, entries
):
    """`write_chunk` for every chunk."""
    in_blocks(
        _write_share, cursor_CN.shape[0], 1,
        (source_E, target_E, time_E, keep_Z, directed, offset, cursor_CN, entries),
    )  # fmt: skip


@kernel()
def first_unsorted(indptr_N1, entries, num_events, first, last):  # type: ignore[no-untyped-def]
    """The first entry of nodes `first..last-1` that is out of order or of range, or M."""
    num_nodes = len(indptr_N1) - 1
    for n in range(first, last):
        for m in range(indptr_N1[n], indptr_N1[n + 1]):
            entry = entries[m]
            good = (entry.event >= 0) & (entry.event < num_events)
            good &= (entry.neighbor >= 0) & (entry.neighbor < num_nodes)
            if m > indptr_N1[n]:
                previous = entries[m - 1]
                good &= (previous.time <= entry.time) & (previous.event < entry.event)
            if not good:
                return m
    return len(entries)


@kernel(block=True)
def _check_share(b, end, indptr_N1, entries, num_events, bad_B):  # type: ignore[no-untyped-def]
    num_nodes, blocks = len(indptr_N1) - 1, len(bad_B)
    bad_B[b] = first_unsorted(
        indptr_N1, entries, num_events, num_nodes * b // blocks, num_nodes * end // blocks
    )


@kernel()
def check_entries(indptr_N1, entries, num_events, blocks):  # type: ignore[no-untyped-def]
    """`first_unsorted` of all nodes, blocks of nodes side by side."""
    bad_B = np.empty(blocks, np.int64)
    in_blocks(_check_share, blocks, 1, (indptr_N1, entries, num_events, bad_B))
    return bad_B.min()


@kernel()
def join_nodes(indptr_N1, entries, old_N1, old, new_N1, new, first, last):  # type: ignore[no-untyped-def]
    """Nodes `first..last-1`: the old slice, then the new one (all its events are later)."""
    for n in range(first, last):
        at = indptr_N1[n]
        for m in range(old_N1[n], old_N1[n + 1]):
            entries[at] = old[m]
            at += 1
        for m in range(new_N1[n], new_N1[n + 1]):
            entries[at] = new[m]
            at += 1


@kernel(block=True)
def _join_share(b, end, indptr_N1, entries, old_N1, old, new_N1, new, blocks):  # type: ignore[no-untyped-def]
    num_nodes = len(indptr_N1) - 1
    join_nodes(
        indptr_N1, entries, old_N1, old, new_N1, new, num_nodes * b // blocks,
        num_nodes * end // blocks,
    )  # fmt: skip


@kernel()
def join_entries(indptr_N1, entries, old_N1, old, new_N1, new, blocks):  # type: ignore[no-untyped-def]
    """`join_nodes` of all nodes, blocks of nodes side by side."""
    in_blocks(_join_share, blocks, 1, (indptr_N1, entries, old_N1, old, new_N1, new, blocks))
