"""`NodeState`: the vectors that training cannot recompute from history, with explicit versions.

Executing batch `b` publishes version `b + 1`, and a batch reads exactly the version it was prepared
for: `b`, or an earlier one that the state still keeps. Mail is kept as references (which event,
which partner: all of it history) plus the one thing that is state, the partner's memory at that
time. Other models declare other columns; everything here works over any.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tidegraph.batches.prepared import PreparedBatch
from tidegraph.errors import TidegraphError
from tidegraph.state.columns import (
    Column,
    RingPush,
    RowWrite,
    StateWrites,
    memory_columns,
    memory_writes,
)
from tidegraph.state.versions import PastVersions, Replaced, StreamOrder


class VersionError(TidegraphError, RuntimeError):
    """A batch met a state version other than the one it needs."""


class NodeState:
    """The state's tables, one row a node.

    Args:
        num_nodes: N.
        columns: what a model declares (`model.columns`); a number is short for memory and mail
            vectors of that width.

    Attributes:
        columns: as declared.
        tables: [N, *shape] by column.
        version: number of batches executed since the reset.
        past: what makes the versions before it readable; nothing by default.

    Any number of threads may read while one writes: a read is of one version, never of two.

    >>> state = NodeState(3, 4)
    >>> state.version, tuple(state.memory_ND.shape)
    (0, (3, 4))
    """

    def __init__(self, num_nodes: int, columns: int | Sequence[Column]) -> None:
        if isinstance(columns, int):
            columns = memory_columns(columns)
        self.columns = tuple(columns)
        self.tables = {
            column.name: torch.zeros(num_nodes, *column.shape, dtype=column.dtype)
            for column in self.columns
        }
        self.version = 0
        self._share()

    def _share(self) -> None:
        """What readers and the writer have in common."""
        self.past = PastVersions()
        self._changed = threading.Condition()
        self._order = StreamOrder(several=False)

    @property
    def memory_ND(self) -> Tensor:
        """float32 [N, D]."""
        return self.tables["memory"]

    @memory_ND.setter
    def memory_ND(self, value: Tensor) -> None:
        self.tables["memory"] = value

    @property
    def mail_ND(self) -> Tensor:
        """float32 [N, D], (mean of) what the partners sent with a node's pending mail."""
        return self.tables["mail"]

    @mail_ND.setter
    def mail_ND(self, value: Tensor) -> None:
        self.tables["mail"] = value

    @property
    def num_nodes(self) -> int:
        """N."""
        return int(self._first.shape[0])

    @property
    def device(self) -> torch.device:
        """Where the tables are."""
        return self._first.device

    @property
    def _first(self) -> Tensor:
        return self.tables[self.columns[0].name]

    @property
    def empty(self) -> bool:
        """There is nothing to keep: the model has no memory."""
        return all(0 in column.shape for column in self.columns)

    def to(self, device: torch.device | str) -> NodeState:
        """Move every table to `device` (in place) and return self."""
        self.tables = {name: table.to(device) for name, table in self.tables.items()}
        return self

    def reset(self) -> None:
        """Forget everything: zeros, version 0."""
        for table in self.tables.values():
            table.zero_()
        self.version = 0
        self.past = PastVersions(self.past.keep)

    def keep_versions(self, keep: int, replaced: tuple[Replaced, ...] = ()) -> None:
        """Keep the last `keep` versions before the newest one readable, from the next write on.

        Args:
            keep: 0 forgets all of them.
            replaced: by the latest writes, oldest first, where a checkpoint had them.
        """
        self.past = PastVersions(keep, replaced)
        self._order = StreamOrder(several=keep > 0)

    def clone(self) -> NodeState:
        """An independent copy of the same version, without those before it."""
        copy = NodeState(0, self.columns)
        copy.tables = {name: table.clone() for name, table in self.tables.items()}
        copy.version = self.version
        return copy

    def grow(self, num_nodes: int) -> None:
        """Make room for nodes never seen before; they start at zero."""
        more = num_nodes - self.num_nodes
        if more > 0:
            for name, table in self.tables.items():
                self.tables[name] = torch.cat([table, table.new_zeros(more, *table.shape[1:])])

    def read(self, batch: PreparedBatch) -> tuple[Tensor, ...]:
        """Rows of the batch's nodes, [U, *shape] of every column, at exactly its version.

        Of a column that is read in place it is the table itself.

        Raises:
            VersionError: the state does not have the version that the batch needs.
        """
        with self._changed:
            self.check_version(batch)
            self._order.before_read(self.device)
            if self.past.keep and any(column.in_place for column in self.columns):
                rows = self._copied(batch)
            else:
                rows = self._newest(batch)
                rows = self._undone(batch, rows) if batch.version < self.version else rows
            self._order.after_read(self.device)
        return rows

    def _undone(self, batch: PreparedBatch, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Newest rows as they were at the batch's version."""
        named = dict(zip((column.name for column in self.columns), rows, strict=True))
        return self.past.undo(
            batch.node_U.to(self.device),
            named,
            writes=self.version - batch.version,
            num_nodes=self.num_nodes,
        )

    def _copied(self, batch: PreparedBatch) -> tuple[Tensor, ...]:
        """As `_newest`, at the batch's version, of copies: other batches may be written before this
        one is executed, and must not reach what it reads in place."""
        every_N = torch.arange(self.num_nodes, device=self.device)
        tables = self.past.undo(
            every_N,
            {column.name: self.tables[column.name] for column in self.columns},
            writes=self.version - batch.version,
            num_nodes=self.num_nodes,
        )
        return tuple(
            table if column.in_place else table.index_select(0, batch.node_U)
            for column, table in zip(self.columns, tables, strict=True)
        )

    def _newest(self, batch: PreparedBatch) -> tuple[Tensor, ...]:
        return tuple(
            self.tables[column.name]
            if column.in_place
            else self.tables[column.name].index_select(0, batch.node_U)
            for column in self.columns
        )

    def check_version(self, batch: PreparedBatch) -> None:
        """Refuse a batch that needs a version which is not there.

        Raises:
            VersionError: says which.
        """
        if not self.version - len(self.past) <= batch.version <= self.version:
            kept = f" and keeps the {len(self.past)} before it" if len(self.past) else ""
            raise VersionError(
                f"batch {batch.number} needs state version {batch.version}, the state is at "
                f"version {self.version}{kept}: batches must be executed in order, once each"
            )

    def wait_for(self, version: int, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Wait until `version` is published, by another thread.

        Args:
            version: to wait for.
            stopped: asked whenever something changes (`wake` says so too); true ends the wait.

        Returns:
            whether it is.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.version >= version or stopped())
            return self.version >= version

    def wake(self) -> None:
        """Let those who wait ask whether they have been stopped."""
        with self._changed:
            self._changed.notify_all()

    def write(self, batch: PreparedBatch, changes: StateWrites | Tensor | None) -> None:
        """Persist what a step left behind; publishes the next version.

        Writes follow each other in the order of the batches, whatever version a batch has read.

        Args:
            batch: that was executed.
            changes: `model.state_writes(batch, encoded)`; a tensor [U, D] is short for updated
                memories of which the endpoints' are kept, and sent as mail (`memory_writes`).

        Raises:
            VersionError: it is another batch's turn.
        """
        if batch.number != self.version:
            raise VersionError(
                f"batch {batch.number} would publish version {batch.number + 1}, the state is at "
                f"version {self.version}: batches must be executed in order, once each"
            )
        if changes is None or isinstance(changes, Tensor):
            changes = memory_writes(batch.writes, changes)
        with self._changed:
            self._order.before_write(self.device)
            rows = self.row_writes(changes) if batch.writes is not None else ()
            if self.past.keep:
                self.past.add(Replaced(tuple(self._current(row) for row in rows)))
            self.apply(rows)
            self._order.after_write(self.device)
            self.version += 1
            self._changed.notify_all()

    def _current(self, row: RowWrite) -> RowWrite:
        """The write that would put back what `row` is about to overwrite."""
        table, place_W = self._place(row)
        return RowWrite(row.column, row.node_W, table.index_select(0, place_W), row.slot_W)

    def _place(self, row: RowWrite) -> tuple[Tensor, Tensor]:
        """The column as a table of single rows (or slots), and which of them are written."""
        table, node_W = self.tables[row.column], row.node_W.long()
        if row.slot_W is None:
            return table, node_W
        return table.flatten(0, 1), node_W * table.shape[1] + row.slot_W

    def row_writes(self, changes: StateWrites) -> tuple[RowWrite, ...]:
        """The same changes with every ring's entry at its slot: what is overwritten, row by row."""
        found: list[RowWrite] = []
        for change in changes:
            if isinstance(change, RowWrite):
                found.append(change)
            else:
                found += self._pushed(change)
        return tuple(found)

    def _pushed(self, push: RingPush) -> list[RowWrite]:
        count_W = self.tables[push.counter].index_select(0, push.node_W)
        found = []
        for name, value_W in push.values.items():
            slot_W = count_W % self.tables[name].shape[1]
            found.append(RowWrite(name, push.node_W, value_W, slot_W))
        return [*found, RowWrite(push.counter, push.node_W, count_W + 1)]

    def apply(self, rows: Sequence[RowWrite]) -> None:
        """Overwrite rows; the version stays."""
        for row in rows:
            table, place_W = self._place(row)
            table.index_copy_(0, place_W, row.value_W.detach())

    def checksum(self) -> str:
        """A digest of all tables and the version."""
        digest = hashlib.sha256(str(self.version).encode())
        for column in self.columns:
            digest.update(self.tables[column.name].cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()
