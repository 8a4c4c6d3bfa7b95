"""What makes past versions of a state readable: the rows that later writes replaced.

A state keeps one copy of its tables, the newest. A reader that may be a few batches behind gets
its version by putting back what was replaced since: memory grows with the rows written, never with
the number of nodes.

Shape legend: N nodes, W nodes written, U nodes read, M slots of a ring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tidegraph.state.columns import RowWrite


@dataclass(frozen=True, eq=False)
class Replaced:
    """The rows that one write replaced; putting them back into version v + 1 gives version v.

    Attributes:
        rows: as writes of the old values.
    """

    rows: tuple[RowWrite, ...]


class PastVersions:
    """The replaced rows of the last writes.

    Args:
        keep: how many writes can be undone; 0 keeps nothing.
        replaced: by the latest writes, oldest first.

    >>> past = PastVersions(keep=1)
    >>> past.add(Replaced((RowWrite("memory", torch.tensor([2]), torch.zeros(1, 3)),)))
    >>> rows = {"memory": torch.ones(2, 3)}
    >>> past.undo(torch.tensor([0, 2]), rows, writes=1, num_nodes=4)[0].tolist()
    [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """

    def __init__(self, keep: int = 0, replaced: Sequence[Replaced] = ()) -> None:
        self.keep = keep
        self._replaced = deque(replaced, maxlen=keep)
        self._place_N = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self._replaced)

    @property
    def replaced(self) -> tuple[Replaced, ...]:
        """Oldest first."""
        return tuple(self._replaced)

    def add(self, replaced: Replaced) -> None:
        """Note what a write is about to replace."""
        self._replaced.append(replaced)

    def undo(
        self, node_U: Tensor, newest: Mapping[str, Tensor], *, writes: int, num_nodes: int
    ) -> tuple[Tensor, ...]:
        """Rows read from the newest version as they were `writes` writes earlier.

        Args:
            node_U: int32 or int64 [U], distinct nodes.
            newest: by column, [U, ...]; not changed.
            writes: how many of the latest writes to take back, at most `len(self)`.
            num_nodes: N.
        """
        U = len(node_U)
        place_N = self._places(num_nodes, node_U.device)
        node_U = node_U.long()
        place_N[node_U] = torch.arange(U, device=node_U.device)
        # One row more takes what belongs to nobody here: fixed shapes, so no GPU has to be asked
        # how many rows there are.
        result = {
            name: torch.cat([rows, rows.new_empty(1, *rows.shape[1:])])
            for name, rows in newest.items()
        }
        # Latest first, so that of several replaced rows of one node the earliest stays.
        for replaced in list(self._replaced)[::-1][:writes]:
            for old in replaced.rows:
                place_W = place_N.index_select(0, old.node_W.long())
                place_W = torch.where(place_W < 0, U, place_W)
                table = result[old.column]
                if old.slot_W is not None:
                    place_W = place_W * table.shape[1] + old.slot_W
                    table = table.flatten(0, 1)
                table.index_copy_(0, place_W, old.value_W)
        place_N[node_U] = -1
        return tuple(rows[:U] for rows in result.values())

    def _places(self, num_nodes: int, device: torch.device) -> Tensor:
        """Scratch int64 [N], -1 throughout."""
        if len(self._place_N) != num_nodes or self._place_N.device != device:
            with torch.inference_mode(False):
                self._place_N = torch.full((num_nodes,), -1, dtype=torch.int64, device=device)
        return self._place_N


class StreamOrder:
    """Reads and writes from several CUDA streams happen on the device in the order they are issued.

    Whoever issues them does so one at a time (under a lock). Elsewhere than on CUDA, and with one
    stream, nothing else is needed, and all of this does nothing.

    Args:
        several: streams there are.
    """

    def __init__(self, several: bool) -> None:
        self._several = several
        self._written: torch.cuda.Event | None = None
        self._read: torch.cuda.Event | None = None

    def before_read(self, device: torch.device) -> None:
        """The current stream waits for the latest write."""
        if device.type == "cuda" and self._written is not None:
            torch.cuda.current_stream(device).wait_event(self._written)

    def after_read(self, device: torch.device) -> None:
        """The next write will wait for what the current stream has read."""
        if self._several and device.type == "cuda":
            self._read = torch.cuda.current_stream(device).record_event()

    def before_write(self, device: torch.device) -> None:
        """The current stream waits for the latest read."""
        if device.type == "cuda" and self._read is not None:
            torch.cuda.current_stream(device).wait_event(self._read)

    def after_write(self, device: torch.device) -> None:
        """The next read will wait for what the current stream has written."""
        if self._several and device.type == "cuda":
            self._written = torch.cuda.current_stream(device).record_event()
