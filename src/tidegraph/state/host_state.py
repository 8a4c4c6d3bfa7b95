"""`HostState`: a node state that lives on the host while steps run on a device.

Reads go through a `SlimCache`: only rows that are neither on the device nor known to be zero cross.
Writes go both ways at once: the device's rows follow in place, the host's table gets a copy, so the
table is always whole (checkpoints, digests and clones read it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from tidegraph.batches.prepared import PreparedBatch
from tidegraph.errors import SettingError
from tidegraph.features import Residents, SlimCache
from tidegraph.state.columns import RowWrite
from tidegraph.state.node_state import NodeState


class _Vectors:
    """Memory and mail side by side, as the cache's table: [N, 2 D]."""

    def __init__(self, state: NodeState, pin: bool) -> None:
        self._state, self._pin = state, pin

    @property
    def width(self) -> int:
        return 2 * int(self._state.memory_ND.shape[1])

    def rows(self, index: np.ndarray) -> Tensor:
        state, row_X = self._state, torch.from_numpy(index)
        D = state.memory_ND.shape[1]
        rows_XW = torch.empty(len(index), 2 * D, dtype=state.memory_ND.dtype, pin_memory=self._pin)
        rows_XW[:, :D] = state.memory_ND.index_select(0, row_X)
        rows_XW[:, D:] = state.mail_ND.index_select(0, row_X)
        return rows_XW


def _any_bit(rows_ND: Tensor) -> Tensor:
    """[N] bool: rows that are not +0 throughout."""
    return ((rows_ND != 0) | rows_ND.signbit()).any(1)


class HostState(NodeState):
    """Node state on the host, read and written by a device.

    Args:
        state: its vectors (on the host) are taken over, not copied.
        device: where steps run.
        residents: makes slots and policy for a number of nodes.

    Raises:
        SettingError: other columns than memory and mail.

    >>> from tidegraph.features import NextUse
    >>> state = HostState(NodeState(3, 4), "cpu", lambda nodes: NextUse(nodes, slots=1))
    >>> state.cache.row_bytes
    32
    """

    def __init__(
        self,
        state: NodeState,
        device: torch.device | str,
        residents: Callable[[int], Residents],
    ) -> None:
        if set(state.tables) != {"memory", "mail"}:
            raise SettingError(
                f"state='host' keeps memory and mail vectors on the host; this model's state has "
                f"{', '.join(state.tables)}: use state='device'"
            )
        self.columns, self.tables, self.version = state.columns, dict(state.tables), state.version
        self._share()
        self._device, self._residents = torch.device(device), residents
        self._open()

    def _open(self) -> None:
        # What was never written is zero. The state keeps account itself rather than infer it from
        # a batch's history, so that no reader has to trust that the two agree.
        self.written_N = (_any_bit(self.memory_ND) | _any_bit(self.mail_ND)).numpy()
        self.cache = SlimCache(
            _Vectors(self, pin=self._device.type == "cuda"),
            self._residents(self.num_nodes),
            self._device,
            self.memory_ND.dtype,
        )

    @property
    def device(self) -> torch.device:
        """Where steps run."""
        return self._device

    def to(self, device: torch.device | str) -> NodeState:
        """Run steps on `device` from now on; the vectors stay on the host."""
        self._device = torch.device(device)
        self._open()
        return self

    def reset(self) -> None:
        """Forget everything: zero vectors, version 0."""
        super().reset()
        self.written_N.fill(False)
        self.cache.clear()

    def clone(self) -> HostState:
        """An independent copy of the same version, with an empty cache."""
        return HostState(super().clone(), self._device, self._residents)

    def grow(self, num_nodes: int) -> None:
        """Make room for nodes never seen before; they start at zero."""
        if num_nodes > self.num_nodes:
            super().grow(num_nodes)
            self._open()

    def announce(self, node_U: Tensor) -> None:
        """A batch with these nodes will be read, after all that were announced before it."""
        with self._changed:
            self.cache.announce(node_U)

    def read(self, batch: PreparedBatch) -> tuple[Tensor, ...]:
        """Memory and mail vectors [U, D] on the device, of a batch that is still on the host."""
        return super().read(batch)

    def _newest(self, batch: PreparedBatch) -> tuple[Tensor, ...]:
        zero_U = ~self.written_N[batch.node_U.numpy()]
        rows_UW = self.cache.fetch(batch.node_U, zero_U)
        D = rows_UW.shape[1] // 2
        return rows_UW[:, :D].contiguous(), rows_UW[:, D:].contiguous()

    def _current(self, row: RowWrite) -> RowWrite:
        value_W = self.tables[row.column].index_select(0, row.node_W.cpu().long())
        return RowWrite(row.column, row.node_W, value_W.to(self._device))

    def apply(self, rows: Sequence[RowWrite]) -> None:
        """As `NodeState.apply`, for rows on the device: the two columns of the same nodes."""
        if not rows:
            return
        memory, mail = rows
        assert (memory.column, mail.column) == ("memory", "mail")
        memory_WD, mail_WD = memory.value_W.detach(), mail.value_W.detach()
        node_W = memory.node_W.cpu()
        self.cache.put(node_W.numpy(), torch.cat([memory_WD, mail_WD], dim=1))
        self.memory_ND.index_copy_(0, node_W.long(), memory_WD.cpu())
        self.mail_ND.index_copy_(0, node_W.long(), mail_WD.cpu())
        self.written_N[node_W.numpy()] = True
