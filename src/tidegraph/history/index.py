"""`TemporalIndex`: who met whom, sorted by time, node by node. It answers "what came before t".

It is built once from the events (in parallel), never changes, and is shared by all batches and
threads. Sampling is one binary search per root: no pointer moves along with the stream, so any
root may ask about any time.

Shape legend: E events, M entries, N nodes, S roots, K slots per root.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from tidegraph.errors import InputError, SettingError, UnknownNodeError
from tidegraph.history import build, checks, sample_kernels, search_kernels
from tidegraph.history.kernels import NO_LIMIT
from tidegraph.history.neighbors import Neighbors

if TYPE_CHECKING:
    from tidegraph.events.core import Events

_NO_LIMIT = np.array([NO_LIMIT], np.int64)
_BY_ID = np.empty(0, np.int32)
_NO_SLOTS = np.empty(0, np.uint64)
_ONE_BLOCK = 64  # up to this many roots, waking the other threads costs more than it brings
_NO_WINDOW = {checks.INT64: np.uint64(0), checks.FLOAT64: np.float64(0)}  # unread without WINDOW
_ORDERS = ("plain", "locality")
_STRATEGIES = {"recent": 0, "uniform": sample_kernels.UNIFORM}


@dataclass(frozen=True, eq=False)
class TemporalIndex:
    """Time-sorted adjacency.

    Attributes:
        indptr_N1: [N+1] int64; the entries of the node in place p are
            `entries[indptr_N1[p]:indptr_N1[p+1]]`.
        entries: [M] records (time, event, neighbor), sorted by (time, event) within a node.
        num_nodes: N.
        num_events: E, including events that a `keep` mask left out.
        directed: whether an event is an entry of its source only.
        last_time: the time of event E-1, None for an index without events; from here on later
            events may be appended. Taken from the entries where it is not given.
        place_Z: [N] int32, the place of each node's entries; [0] where node n is in place n.

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
    place_Z: np.ndarray = field(default_factory=_BY_ID.copy)
    _levels: tuple[np.ndarray, np.ndarray] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        build.check_adjacency(self.indptr_N1, self.entries, self.num_nodes, self.num_events)
        build.check_places(self.place_Z, self.num_nodes)
        object.__setattr__(self, "_levels", search_kernels.time_levels(self.entries))
        if self.last_time is None and len(self.entries):
            object.__setattr__(self, "last_time", self.entries["time"].max())

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
        order: str = "plain",
    ) -> TemporalIndex:
        """Build the index of a stream of events.

        Args:
            source, target: [E] node ids in `0 .. num_nodes-1`.
            time: [E] non-decreasing, integers or float64. An event's id is its position.
            num_nodes: N.
            directed: enter an event under its source only (the neighbour is the target). By
                default it is entered under both endpoints, a self-loop once.
            keep: [E] bool; events where it is false are left out, and the others keep their ids.
            order: how the nodes' entries lie in memory. "plain": by node id. "locality": most
                entries first, then by first event: fewer cache misses, seldom less time. Answers
                never depend on it.

        Raises:
            UnknownNodeError: a node id outside `0 .. num_nodes-1`.
            InputError: unsorted or non-finite times, columns of different lengths or wrong types.
        """
        source, target, time, mask = build.check_events(source, target, time, num_nodes, keep)
        kind = build.entry_type(time.dtype, len(time))
        if order not in _ORDERS:
            known = " or ".join(f'"{name}"' for name in _ORDERS)
            raise SettingError(f"order is {order!r}, expected {known}.")
        place_Z = None if order == "locality" else _BY_ID
        indptr_N1, entries, place_Z = build.sort_by_node(
            source, target, time, mask, num_nodes, directed, 0, kind, place_Z
        )
        last = time[-1] if len(time) else None
        return cls(indptr_N1, entries, num_nodes, len(time), directed, last, place_Z)

    @classmethod
    def from_events(
        cls, events: Events, *, directed: bool = False, keep: Any = None, order: str = "plain"
    ) -> TemporalIndex:
        """`build` from `Events`."""
        return cls.build(
            events.source,
            events.target,
            events.time,
            events.schema.num_nodes,
            directed=directed,
            keep=keep,
            order=order,
        )

    def append(
        self, source: Any, target: Any, time: Any, num_nodes: int | None = None
    ) -> TemporalIndex:
        """A new index that also holds these later events; this one stays as it is.

        Queries equal those of an index built at once from all events. The cost is that of copying
        the entries: append in blocks, not event by event.

        Args:
            source, target, time: as in `build`; no time may be before `last_time`. The events'
                ids continue from `num_events`.
            num_nodes: N of the new index, where new nodes come along.

        Raises:
            InputError: an event before `last_time`, or anything that `build` refuses.
            SettingError: fewer nodes than before.
        """
        num_nodes = self.num_nodes if num_nodes is None else num_nodes
        if num_nodes < self.num_nodes:
            raise SettingError(
                f"num_nodes is {num_nodes}, but the index already has {self.num_nodes} nodes."
            )
        time_type = self.entries.dtype["time"] if self.num_events else None
        columns = build.check_events(source, target, time, num_nodes, None, time_type)
        time = columns[2]
        if not len(time):
            return replace(
                self,
                num_nodes=num_nodes,
                indptr_N1=self._indptr_for(num_nodes),
                place_Z=self._places_for(num_nodes),
            )
        if self.num_events and time[0] < self.last_time:
            raise InputError(
                f"time[0] is {time[0]}, before the index's last event at {self.last_time}: only "
                "later events can be appended. Build the index again from all events, sorted."
            )
        total = self.num_events + len(time)
        kind = build.entry_type(time.dtype, total)
        place_Z = self._places_for(num_nodes)
        *tail, _ = build.sort_by_node(
            *columns, num_nodes, self.directed, self.num_events, kind, place_Z
        )
        old = self.entries.astype(kind, copy=False)
        indptr_N1, entries = build.join(self._indptr_for(num_nodes), old, *tail)
        return TemporalIndex(indptr_N1, entries, num_nodes, total, self.directed, time[-1], place_Z)

    def _indptr_for(self, num_nodes: int) -> np.ndarray:
        """`indptr_N1` with empty slices for new nodes."""
        return np.pad(self.indptr_N1, (0, num_nodes - self.num_nodes), mode="edge")

    def _places_for(self, num_nodes: int) -> np.ndarray:
        """`place_Z` with new nodes in the last places."""
        if not len(self.place_Z):
            return self.place_Z
        new = np.arange(self.num_nodes, num_nodes, dtype=np.int32)
        return np.concatenate([self.place_Z, new])

    def entries_of(self, node: int) -> np.ndarray:
        """The node's entries, oldest first (a view).

        >>> index = TemporalIndex.build([0, 0], [1, 2], [10, 20], num_nodes=3)
        >>> index.entries_of(0)["neighbor"].tolist()
        [1, 2]
        """
        if not 0 <= node < self.num_nodes:
            raise UnknownNodeError(f"node {node}: the index has nodes 0 to {self.num_nodes - 1}.")
        place = int(self.place_Z[node]) if len(self.place_Z) else node
        return self.entries[self.indptr_N1[place] : self.indptr_N1[place + 1]]

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
        edge_times: bool = True,
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
            edge_times: also return the events' times (`time_SK`).
            out: write here instead of into new arrays.

        Returns:
            `Neighbors`, each row oldest first.

        Raises:
            UnknownNodeError, InputError, SettingError: with the row or the setting.
        """
        if strategy not in _STRATEGIES:
            known = " or ".join(f'"{name}"' for name in _STRATEGIES)
            raise SettingError(f"strategy is {strategy!r}, expected {known}.")
        k, key = checks.as_fanout(k), checks.as_key(key)
        query = self._query(nodes_S, times_S, window, inclusive, before_event, slot_S, padding)
        roots = len(query[0])
        if k == -1:
            k = int(self._count(query).max(initial=0))
        if out is None:
            kind = self.entries.dtype
            out = Neighbors.empty(roots, k, kind["event"], kind["time"], edge_times=edge_times)
        else:
            self._check_out(out, roots, k, edge_times)
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
        """The checked arguments: (nodes, times, before, slot, window, mode)."""
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
        limit = _NO_WINDOW[time_type] if window is None else checks.as_window(window, time_type)
        before = checks.as_limits(before_event, len(nodes), _NO_LIMIT)
        slots = checks.as_slots(slot, len(nodes), _NO_SLOTS)
        return *map(checks.writable, (nodes, times, before, slots)), limit, mode

    def _count(self, query: tuple[Any, ...]) -> np.ndarray:
        room = Neighbors.empty(0, 0, self.entries.dtype["event"], self.entries.dtype["time"])
        counts = np.empty(len(query[0]), np.int32)
        out = Neighbors(room.neighbor_SK, room.event_SK, room.delta_SK, room.time_SK, counts)
        self._run(query, sample_kernels.COUNT_ONLY, 0, 0, out)
        return counts

    def _run(self, query: tuple[Any, ...], mode: int, k: int, key: int, out: Neighbors) -> None:
        nodes, times, before, slot, window, query_mode = query
        roots = len(nodes)
        head = (
            self.indptr_N1, self.place_Z, self.entries, *self._levels, nodes, times, before, slot,
        )  # fmt: skip
        tail = (
            k, window, mode | query_mode, np.uint64(key),
            out.neighbor_SK, out.event_SK, out.delta_SK, out.time_SK, out.count_S,
        )  # fmt: skip
        if roots <= _ONE_BLOCK:
            bad = sample_kernels.sample_block(*head, 0, roots, *tail)
        else:
            blocks = max(numba.get_num_threads(), -(-roots // search_kernels.TILE))
            bad = sample_kernels.sample_parallel(blocks, *head, *tail)
        if bad < roots:
            if 0 <= nodes[bad] < self.num_nodes:
                raise InputError(f"times_S[{bad}] is {times[bad]}, expected a number.")
            raise checks.unknown_node("nodes_S", bad, int(nodes[bad]), self.num_nodes)

    def _check_out(self, out: Neighbors, roots: int, k: int, edge_times: bool) -> None:
        if not isinstance(out, Neighbors):
            raise InputError(f"out is {type(out).__name__}, expected Neighbors (Neighbors.empty).")
        kind = self.entries.dtype
        for name, array, shape, dtype in (
            ("neighbor_SK", out.neighbor_SK, (roots, k), checks.INT32),
            ("event_SK", out.event_SK, (roots, k), kind["event"]),
            ("delta_SK", out.delta_SK, (roots, k), np.float32),
            ("time_SK", out.time_SK, (roots, k if edge_times else 0), kind["time"]),
            ("count_S", out.count_S, (roots,), checks.INT32),
        ):
            if array.shape != shape or array.dtype != dtype or not array.flags.carray:
                raise InputError(
                    f"out.{name} has shape {array.shape} and type {array.dtype}, expected a "
                    f"contiguous, writable array of shape {shape} and type {dtype}."
                )
