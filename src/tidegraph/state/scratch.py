"""`ScratchRows`: a node state with one more row, for the padding of batches in fixed shapes.

Padding must read and write somewhere, and every row of the state is a node. So the tables get a
row N that is none. The state keeps its own N rows as views of the larger tables: reads, resets,
checkpoints and digests do not know of it.

Shape legend: N nodes, X = N + 1 rows, U unique nodes, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tidegraph.batches.padding import real_rows
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.state.columns import StateWrites
from tidegraph.state.node_state import NodeState


class ScratchRows:
    """Reads and writes padded batches; versions are somebody else's business.

    Args:
        state: on the device; its tables move into larger ones, and stay there as long as they are
            changed in place.

    >>> state = NodeState(3, 4)
    >>> [tuple(table.shape) for table in ScratchRows(state).tables()]
    [(4, 4), (4, 4)]
    >>> tuple(state.memory_ND.shape)
    (3, 4)
    """

    def __init__(self, state: NodeState) -> None:
        self.state = state
        self._whole = NodeState(0, state.columns)
        self._own: dict[str, Tensor] = {}

    def tables(self) -> tuple[Tensor, ...]:
        """[N + 1, *shape] of every column; other tensors if the state's own were replaced."""
        own = self.state.tables
        if any(own[name] is not self._own.get(name) for name in own):
            self._whole.tables = {
                name: torch.cat([table, table.new_zeros(1, *table.shape[1:])])
                for name, table in own.items()
            }
            for name, table in self._whole.tables.items():
                own[name] = table[:-1]
            self._own = dict(own)
        return tuple(self._whole.tables.values())

    def read(self, batch: PreparedBatch) -> tuple[Tensor, ...]:
        """Rows [U, *shape] of a padded batch's nodes, column by column; zeros for padding."""
        assert batch.padding is not None
        count = batch.padding.node_count
        return tuple(
            real_rows(table.index_select(0, batch.node_U), count) for table in self.tables()
        )

    def write(self, batch: PreparedBatch, changes: StateWrites) -> None:
        """As `NodeState.write`; what padding writes goes to row N."""
        self.tables()
        if batch.writes is not None:
            self._whole.apply(self._whole.row_writes(changes))
