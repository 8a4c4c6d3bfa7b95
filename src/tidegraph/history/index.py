"""`TemporalIndex`: who met whom, sorted by time, node by node. It answers "what came before t".

It is built once from the events (in parallel), never changes, and is shared by all batches and
threads. Sampling is one binary search per root: no pointer moves along with the stream, so any
root may ask about any time.

Shape legend: E events, M entries, N nodes, S roots, K slots per root.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from tidegraph.errors import InputError, SettingError
from tidegraph.history import build_kernels, checks, sample_kernels
from tidegraph.history.kernels import NO_LIMIT
from tidegraph.history.neighbors import Neighbors

if TYPE_CHECKING:
    from tidegraph.events.core import Events

_NO_LIMIT = np.array([NO_LIMIT], np.int64)
_NO_SLOTS = np.empty(0, np.uint64)
_ONE_BLOCK = 64  # up to this many roots, waking the other threads costs more than it brings
_KEY_MASK = (1 << 64) - 1
_STRATEGIES = {"recent": 0, "uniform": sample_kernels.UNIFORM}


def entry_type(time_type: np.dtype, num_events: int) -> np.dtype:
    """The layout of one entry: 16 bytes, or 24 where event ids need 64 bits."""
    event = np.int64 if num_events >= 2**31 else np.int32
    fields = [("time", time_type), ("event", event), ("neighbor", np.int32)]
    return np.dtype(fields, align=True)


@dataclass(frozen=True, eq=False)
class TemporalIndex:
    """Time-sorted adjacency.

    Attributes:
        indptr_N1: [N+1] int64; node n's entries are `entries[indptr_N1[n]:indptr_N1[n+1]]`.
        entries: [M] records (time, event, neighbor), sorted by (time, event) within a node.
        num_nodes: N.
        num_events: E, including events that a `keep` mask left out.
        directed: whether an event is an entry of its source only.
        last_time: the time of event E-1, None for an index without events. Later events may be
            appended from here on.

    >>> index = TemporalIndex.build([0, 0, 1], [1, 2, 2], [10, 20, 30], num_nodes=3)
    >>> index.sample([2], [30], k=2).neighbor_SK.tolist()
    [[0, -1]]
    """

    indptr_N1: np.ndarray
    entries: np.ndarray
    num_nodes: int
    num_events: int
    directed: bool
    last_time: Any = None

    @classmethod
    def build(
        cls,
        source: Any,
        target: Any,
        time: Any,
        num_nodes: int,
        *,
        directed: bool = False,
        keep: Any = None,
    ) -> TemporalIndex:
        """Build the index of a stream of events.

        Args:
            source, target: [E] node ids in `0 .. num_nodes-1`.
            time: [E] non-decreasing, integers or float64. An event's id is its position.
            num_nodes: N.
            directed: enter an event under its source only (the neighbour is the target). By
                default it is entered under both endpoints, a self-loop once.
            keep: [E] bool; events where it is false are left out, and the others keep their ids.

        Raises:
            UnknownNodeError: a node id outside `0 .. num_nodes-1`.
            InputError: unsorted or non-finite times, columns of different lengths or wrong types.
        """
        source, target, time, mask = _check_events(source, target, time, num_nodes, keep, None)
        kind = entry_type(time.dtype, len(time))
        indptr, entries = _sort_by_node(source, target, time, mask, num_nodes, directed, 0, kind)
        last = time[-1] if len(time) else None
        return cls(indptr, entries, num_nodes, len(time), directed, last)

    @classmethod
    def from_events(
        cls, events: Events, *, directed: bool = False, keep: Any = None
    ) -> TemporalIndex:
        """`build` from `Events`."""
        return cls.build(
            events.source,
            events.target,
            events.time,
            events.schema.num_nodes,
            directed=directed,
            keep=keep,
        )

    def sample(
        self,
        nodes_S: Any,
        times_S: Any,
        k: int,
        *,
        strategy: str = "recent",
        window: float | None = None,
        inclusive: bool = False,
        before_event: Any = None,
        key: int = 0,
        slot_S: Any = None,
        padding: bool = False,
        out: Neighbors | None = None,
    ) -> Neighbors:
        """For each root (node, time), up to `k` neighbours that it met before.

        Args:
            nodes_S: [S] node ids.
            times_S: [S] query times, in the type of the index's times (or exactly convertible).
            k: neighbours per root; -1 takes all, and K is then the largest number found.
            strategy: "recent", the k latest; or "uniform", k drawn without replacement.
            window: only events of age `time - event time <= window` (the border counts); `k` caps
                what the window leaves.
            inclusive: whether events at exactly the query time count. Not by default.
            before_event: an event id, or one per root: only events with a smaller id count. The
                first event of a batch hides the batch from itself.
            key: 64-bit key of the uniform draws (`tidegraph.keys.make_key`).
            slot_S: [S] number that identifies a root within `key`; its position by default. With
                the same numbers, a root draws the same neighbours in whatever call it comes.
            padding: node -1 is allowed and gets an empty row.
            out: write here instead of into new arrays.

        Returns:
            `Neighbors`, each row oldest first.

        Raises:
            UnknownNodeError, InputError, SettingError: with the row or the setting.
        """
        if strategy not in _STRATEGIES:
            known = " or ".join(f'"{name}"' for name in _STRATEGIES)
            raise SettingError(f"strategy is {strategy!r}, expected {known}.")
        k = checks.as_fanout(k)
        query = self._query(nodes_S, times_S, window, inclusive, before_event, slot_S, padding)
        roots = len(query[0])
        if k == -1:
            k = int(self._count(query).max(initial=0))
        if out is None:
            out = Neighbors.empty(roots, k, self.entries.dtype["event"], self.entries.dtype["time"])
        else:
            self._check_out(out, roots, k)
        self._run(query, _STRATEGIES[strategy], k, key, out)
        return out

    def degree(
        self,
        nodes_S: Any,
        times_S: Any,
        *,
        window: float | None = None,
        inclusive: bool = False,
        before_event: Any = None,
    ) -> np.ndarray:
        """[S] int64, how many events `sample` could choose from; arguments as there."""
        query = self._query(nodes_S, times_S, window, inclusive, before_event, None, False)
        return self._count(query).astype(np.int64)

    def _query(
        self,
        nodes: Any,
        times: Any,
        window: float | None,
        inclusive: bool,
        before_event: Any,
        slot: Any,
        padding: bool,
    ) -> tuple[Any, ...]:
        """Checked arguments in the order of the kernels: (nodes, times, before, slot, window, mode)."""
        time_type = self.entries.dtype["time"]
        nodes = checks.as_nodes(nodes, "nodes_S", self.num_nodes)
        times = checks.as_times(times, "times_S", time_type)
        if len(nodes) != len(times):
            raise InputError(
                f"{len(nodes)} nodes but {len(times)} times: expected one time for each node."
            )
        mode = sample_kernels.INCLUSIVE if inclusive else 0
        if padding:
            mode |= sample_kernels.PADDING
        if window is not None:
            mode |= sample_kernels.WINDOW
        limit = checks.as_window(0 if window is None else window, time_type)
        before = checks.as_limits(before_event, len(nodes), _NO_LIMIT)
        return nodes, times, before, checks.as_slots(slot, len(nodes), _NO_SLOTS), limit, mode

    def _count(self, query: tuple[Any, ...]) -> np.ndarray:
        room = Neighbors.empty(0, 0, self.entries.dtype["event"], self.entries.dtype["time"])
        counts = np.empty(len(query[0]), np.int32)
        out = Neighbors(room.neighbor_SK, room.event_SK, room.delta_SK, room.time_SK, counts)
        self._run(query, sample_kernels.COUNT_ONLY, 0, 0, out)
        return counts

    def _run(self, query: tuple[Any, ...], mode: int, k: int, key: int, out: Neighbors) -> None:
        nodes, times, before, slot, window, query_mode = query
        roots = len(nodes)
        head = (self.indptr_N1, self.entries, nodes, times, before, slot)
        tail = (
            k, window, mode | query_mode, np.uint64(key & _KEY_MASK),
            out.neighbor_SK, out.event_SK, out.delta_SK, out.time_SK, out.count_S,
        )  # fmt: skip
        if roots <= _ONE_BLOCK:
            bad = sample_kernels.sample_block(*head, 0, roots, *tail)
        else:
            blocks = max(numba.get_num_threads(), -(-roots // sample_kernels.BLOCK))
            bad = sample_kernels.sample_parallel(blocks, *head, *tail)
        if bad < roots:
            if 0 <= nodes[bad] < self.num_nodes:
                raise InputError(f"times_S[{bad}] is {times[bad]}, expected a number.")
            raise checks.unknown_node("nodes_S", bad, int(nodes[bad]), self.num_nodes)

    def _check_out(self, out: Neighbors, roots: int, k: int) -> None:
        kind = self.entries.dtype
        for name, array, shape, dtype in (
            ("neighbor_SK", out.neighbor_SK, (roots, k), checks.INT32),
            ("event_SK", out.event_SK, (roots, k), kind["event"]),
            ("delta_SK", out.delta_SK, (roots, k), np.float32),
            ("time_SK", out.time_SK, (roots, k), kind["time"]),
            ("count_S", out.count_S, (roots,), checks.INT32),
        ):
            if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
                raise InputError(
                    f"out.{name} has shape {array.shape} and type {array.dtype}, expected a "
                    f"contiguous array of shape {shape} and type {dtype}."
                )


def _check_events(
    source: Any, target: Any, time: Any, num_nodes: int, keep: Any, time_type: np.dtype | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The columns as the build kernels take them: int32, int32, int64 or float64, bool."""
    if num_nodes < 0 or num_nodes >= 2**31:
        raise SettingError(f"num_nodes is {num_nodes}, expected 0 to 2**31 - 1.")
    if time_type is None:
        kind = np.asarray(time).dtype.kind
        time_type = checks.FLOAT64 if kind == "f" and len(time) else checks.INT64
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
    if len(time) and not np.isfinite(time).all():
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


def _sort_by_node(
    source: np.ndarray,
    target: np.ndarray,
    time: np.ndarray,
    mask: np.ndarray,
    num_nodes: int,
    directed: bool,
    offset: int,
    kind: np.dtype,
) -> tuple[np.ndarray, np.ndarray]:
    """(indptr_N1, entries) of checked columns; event ids start at `offset`."""
    _check_order(time)
    # A chunk's counters take N words: more than a few chunks would cost more than they save.
    chunks = min(numba.get_num_threads(), 8) if len(time) > 20_000 else 1
    cursor_CN = np.zeros((chunks, num_nodes), np.int64)
    bad = build_kernels.count_entries(source, target, mask, directed, cursor_CN)
    if bad < len(time):
        name, node = ("source", source[bad])
        if 0 <= node < num_nodes:
            name, node = ("target", target[bad])
        raise checks.unknown_node(name, bad, int(node), num_nodes)
    indptr_N1 = np.empty(num_nodes + 1, np.int64)
    largest = build_kernels.counts_to_positions(cursor_CN, indptr_N1)
    if largest >= 2**31:
        raise InputError(f"One node has {largest} events; at most 2**31 - 1 are supported.")
    entries = np.empty(indptr_N1[-1], kind)
    build_kernels.write_entries(source, target, time, mask, directed, offset, cursor_CN, entries)
    return indptr_N1, entries
