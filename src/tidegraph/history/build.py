"""From columns of events to sorted entries: checks, the counting sort, and joining later events.

Everything here runs once per index; `TemporalIndex` calls it and keeps the result.

Shape legend: E events, M entries, N nodes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from tidegraph.errors import InputError
from tidegraph.history import build_kernels, checks

_MOST_CHUNKS = 8  # a chunk's counters take N words: more of them cost more than they save
_LINE_BYTES = 64
_SMALL = 20_000  # up to this many events or entries, waking other threads does not pay


def entry_type(time_type: np.dtype, num_events: int) -> np.dtype:
    """The layout of one entry: 16 bytes, or 24 where event ids need 64 bits."""
    event = np.int64 if num_events >= 2**31 else np.int32
    fields = [("time", time_type), ("event", event), ("neighbor", np.int32)]
    return np.dtype(fields, align=True)


def empty_lines(count: int, kind: np.dtype) -> np.ndarray:
    """An array with contents undefined that begins where a cache line begins.

    >>> empty_lines(100, np.dtype(np.int64)).ctypes.data % 64
    0
    """
    room = np.empty(count * kind.itemsize + _LINE_BYTES, np.uint8)
    skip = -room.ctypes.data % _LINE_BYTES
    return room[skip : skip + count * kind.itemsize].view(kind)


def check_events(
    source: Any,
    target: Any,
    time: Any,
    num_nodes: int,
    keep: Any,
    time_type: np.dtype | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The columns as the build kernels take them: int32, int32, int64 or float64, bool."""
    checks.as_count(num_nodes, "num_nodes")
    if time_type is None:
        untyped = not isinstance(time, np.ndarray) and len(time) == 0
        is_float = np.asarray(time).dtype.kind == "f" and not untyped
        time_type = checks.FLOAT64 if is_float else checks.INT64
    source = checks.as_nodes(source, "source", num_nodes)
    target = checks.as_nodes(target, "target", num_nodes)
    time = checks.as_times(time, "time", time_type)
    mask = np.empty(0, np.bool_) if keep is None else checks.as_vector(keep, "keep")
    if mask.dtype != np.bool_:
        raise InputError(f"keep holds {mask.dtype} values, expected true or false for each event.")
    lengths = {"source": len(source), "target": len(target), "time": len(time)}
    if keep is not None:
        lengths["keep"] = len(mask)
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {count}" for name, count in lengths.items())
        raise InputError(f"The columns differ in length: {found} rows.")
    return source, target, time, mask


def _check_order(time: np.ndarray) -> None:
    if not len(time):
        return
    if time.dtype == checks.FLOAT64 and not np.isfinite(time).all():
        row = int(np.flatnonzero(~np.isfinite(time))[0])
        raise InputError(f"time[{row}] is {time[row]}, expected a finite number.")
    late = time[1:] < time[:-1]
    if late.any():
        row = int(np.flatnonzero(late)[0]) + 1
        raise InputError(
            f"time[{row}] is {time[row]}, earlier than time[{row - 1}] = {time[row - 1]}: expected "
            "events sorted by time. Sort the rows by time (stably) first, or read them with "
            "tidegraph.read_table, which does."
        )
    _check_largest(time[-1], f"time[{len(time) - 1}]")


def _check_largest(time: Any, name: str) -> None:
    # The search turns "at or before t" into "before t + 1", which needs room above every event.
    if time == np.iinfo(np.int64).max and isinstance(time, np.integer):
        raise InputError(
            f"{name} is {time}, the largest int64, which is reserved: use a smaller one."
        )


def sort_by_node(
    source: np.ndarray,
    target: np.ndarray,
    time: np.ndarray,
    mask: np.ndarray,
    num_nodes: int,
    directed: bool,
    offset: int,
    kind: np.dtype,
    place_Z: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(indptr_N1, entries, place_Z) of checked columns; event ids start at `offset`.

    The slices lie in the order `place_Z` (empty: by id); None chooses one for locality.
    """
    _check_order(time)
    chunks = min(numba.get_num_threads(), _MOST_CHUNKS) if len(time) > _SMALL else 1
    cursor_CN = np.zeros((chunks, num_nodes), np.int64)
    if chunks == 1:
        bad = build_kernels.count_chunk(source, target, mask, 0, len(time), directed, cursor_CN[0])
    else:
        bad = build_kernels.count_entries(source, target, mask, directed, cursor_CN)
    if bad < len(time):
        name, node = ("source", source[bad])
        if 0 <= node < num_nodes:
            name, node = ("target", target[bad])
        raise checks.unknown_node(name, bad, int(node), num_nodes)
    if place_Z is None:
        node_Z = _locality_order(source, target, mask, directed, cursor_CN)
        place_Z = _inverse(node_Z)
    else:
        node_Z = _inverse(place_Z)
    indptr_N1 = np.empty(num_nodes + 1, np.int64)
    largest = build_kernels.counts_to_positions(cursor_CN, node_Z, indptr_N1)
    if largest >= 2**31:
        raise InputError(f"One node has {largest} events; at most 2**31 - 1 are supported.")
    entries = empty_lines(int(indptr_N1[-1]), kind)
    if chunks == 1:
        build_kernels.write_chunk(
            source, target, time, mask, 0, len(time), directed, offset, cursor_CN[0], entries
        )
    else:
        build_kernels.write_entries(
            source, target, time, mask, directed, offset, cursor_CN, entries
        )
    return indptr_N1, entries, place_Z


def _locality_order(
    source: np.ndarray, target: np.ndarray, mask: np.ndarray, directed: bool, count_CN: np.ndarray
) -> np.ndarray:
    """The nodes by size of their slices (in powers of two), then by their first event.

    Nodes with many entries are asked most: together, their slices' borders stay in the cache. Of
    the others, those that come up at the same time share lines and pages.
    """
    num_nodes = count_CN.shape[1]
    first_N = np.full(num_nodes, len(source), np.int64)
    build_kernels.first_events(source, target, mask, directed, first_N)
    build_kernels.locality_keys(count_CN, first_N, first_N)
    return np.argsort(first_N, kind="stable").astype(np.int32)


def _inverse(order_Z: np.ndarray) -> np.ndarray:
    inverse = np.empty(len(order_Z), np.int32)
    inverse[order_Z] = np.arange(len(order_Z), dtype=np.int32)
    return inverse


def check_places(place_Z: np.ndarray, num_nodes: int) -> None:
    """Refuse a node order that is not a permutation.

    Raises:
        InputError: another type or length, or a place that is missing.
    """
    if place_Z.dtype != checks.INT32 or place_Z.shape not in ((0,), (num_nodes,)):
        raise InputError(
            f"place_Z has shape {place_Z.shape} and type {place_Z.dtype}, expected int32 and no "
            f"value or num_nodes = {num_nodes}."
        )
    if len(place_Z) and (
        place_Z.min() < 0 or (np.bincount(place_Z, minlength=num_nodes) != 1).any()
    ):
        raise InputError("place_Z must hold every place from 0 to num_nodes - 1 once.")


def join(
    old_N1: np.ndarray, old: np.ndarray, new_N1: np.ndarray, new: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(indptr_N1, entries) of two adjacencies over the same nodes, the second one later."""
    indptr_N1 = old_N1 + new_N1
    entries = empty_lines(len(old) + len(new), new.dtype)
    if len(entries) <= _SMALL:
        last = len(indptr_N1) - 1
        build_kernels.join_nodes(indptr_N1, entries, old_N1, old, new_N1, new, 0, last)
    else:
        blocks = numba.get_num_threads() * 8
        build_kernels.join_entries(indptr_N1, entries, old_N1, old, new_N1, new, blocks)
    return indptr_N1, entries


def check_adjacency(
    indptr_N1: np.ndarray, entries: np.ndarray, num_nodes: int, num_events: int
) -> None:
    """Refuse an adjacency that searches would silently answer wrongly.

    Raises:
        InputError: wrong shapes or types, or a node whose entries are not sorted by (time, event).
    """
    if entries.dtype not in _entry_types() or entries.ndim != 1:
        raise InputError(
            f"entries has type {entries.dtype} and shape {entries.shape}, expected a vector of "
            "records (time: int64 or float64, event: int32 or int64, neighbor: int32); "
            "tidegraph.history.entry_type makes the type."
        )
    if indptr_N1.dtype != np.int64 or indptr_N1.shape != (num_nodes + 1,):
        raise InputError(
            f"indptr_N1 has shape {indptr_N1.shape} and type {indptr_N1.dtype}, expected int64 "
            f"and num_nodes + 1 = {num_nodes + 1} values."
        )
    if indptr_N1[0] != 0 or indptr_N1[-1] != len(entries) or (np.diff(indptr_N1) < 0).any():
        raise InputError(
            f"indptr_N1 must rise from 0 to the {len(entries)} entries without falling."
        )
    if len(entries) <= _SMALL:
        bad = build_kernels.first_unsorted(indptr_N1, entries, num_events, 0, num_nodes)
    else:
        blocks = numba.get_num_threads() * 8
        bad = build_kernels.check_entries(indptr_N1, entries, num_events, blocks)
    if bad < len(entries):
        raise _unsorted(indptr_N1, entries, bad, num_nodes, num_events)
    if len(entries) and entries.dtype["time"] == checks.INT64:
        lasts = entries["time"][indptr_N1[1:][np.diff(indptr_N1) > 0] - 1]
        _check_largest(lasts.max(), "the last entry's time")


def _entry_types() -> tuple[np.dtype, ...]:
    return tuple(entry_type(time, e) for time in (checks.INT64, checks.FLOAT64) for e in (0, 2**31))


def _unsorted(
    indptr_N1: np.ndarray, entries: np.ndarray, bad: int, num_nodes: int, num_events: int
) -> InputError:
    node = int(np.searchsorted(indptr_N1, bad, side="right")) - 1
    row = bad - int(indptr_N1[node])
    entry = entries[bad]
    where = f"Node {node}, row {row} of its entries (entry {bad}), is {entry}"
    if not (0 <= entry["event"] < num_events and 0 <= entry["neighbor"] < num_nodes):
        return InputError(
            f"{where}: expected an event below {num_events} and a neighbor below {num_nodes}."
        )
    before = f", after {entries[bad - 1]}" if row else ""
    return InputError(
        f"{where}{before}: expected each node's entries sorted by (time, event), without NaN and "
        "without repeats. Sort them, or let TemporalIndex.build do it from the events."
    )
