"""What a node state consists of, and what a step leaves in it.

A model declares the columns of its state; reading, writing, copying, growing and saving work over
whatever was declared. A step's result is a list of writes to distinct rows, so that their order
can never matter.

Shape legend: N nodes, W nodes written, U unique nodes of a batch, P partners, D width, M slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tidegraph.batches.prepared import Writes


@dataclass(frozen=True)
class Column:
    """One table of a node state, zero for every node at first.

    Attributes:
        name: "memory" and "mail" for models like TGN.
        shape: of one node's row: (D,) for a vector, (M, D) for a ring of M of them, () for a
            number.
        dtype: of its numbers.
        in_place: a step reads it where it lies, by the nodes' numbers: rows of thousands of numbers
            cost more to copy than to use. The step is done with it before it writes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    in_place: bool = False


def memory_columns(width: int) -> tuple[Column, ...]:
    """Memory and mail vectors of one width: the state of TGN, JODIE and DyRep.

    >>> [column.name for column in memory_columns(100)]
    ['memory', 'mail']
    """
    return Column("memory", (width,)), Column("mail", (width,))


@dataclass(frozen=True, eq=False)
class RowWrite:
    """New rows of one column.

    Attributes:
        column: its name.
        node_W: int32 [W], distinct nodes.
        value_W: [W, ...], one row each; one slot each where `slot_W` is given.
        slot_W: int64 [W] or None, the slot of a ring column.
    """

    column: str
    node_W: Tensor
    value_W: Tensor
    slot_W: Tensor | None = None


@dataclass(frozen=True, eq=False)
class RingPush:
    """One more entry in each named node's rings; the oldest one makes room.

    Attributes:
        counter: the integer column that counts a node's entries; entry n lies in slot n modulo M.
        node_W: int32 [W], distinct nodes.
        values: by ring column, [W, ...].
    """

    counter: str
    node_W: Tensor
    values: Mapping[str, Tensor]


StateWrites = tuple[RowWrite | RingPush, ...]


def memory_writes(
    writes: Writes | None, updated_UD: Tensor | None, sent_PD: Tensor | None = None
) -> StateWrites:
    """The endpoints' updated memories and their new mail.

    Only endpoints of the batch's events are written: other nodes were updated for this computation
    alone, and their mail stays pending.

    Args:
        writes: who is written; None writes nothing.
        updated_UD: updated memories of the batch's nodes.
        sent_PD: what each partner sends; by default its updated memory.
    """
    if writes is None or updated_UD is None:
        return ()
    updated_UD = updated_UD.detach()
    if sent_PD is None:
        sent_PD = updated_UD.index_select(0, writes.partner_row_P)
    return (
        RowWrite("memory", writes.node_W, updated_UD.index_select(0, writes.row_W)),
        RowWrite("mail", writes.node_W, mean_of_partners(writes, sent_PD.detach())),
    )


def partner_mean(writes: Writes, updated_UD: Tensor) -> Tensor:
    """[W, D]: mean of the partners' updated memories, per written node."""
    return mean_of_partners(writes, updated_UD.index_select(0, writes.partner_row_P))


def mean_of_partners(writes: Writes, partner_PD: Tensor) -> Tensor:
    """[W, D]: mean of what the partners sent, per written node."""
    if partner_PD.shape[0] == writes.node_W.shape[0]:
        return partner_PD
    partners_W = (writes.indptr_W1[1:] - writes.indptr_W1[:-1]).clamp(min=1)
    # Not by repeating each writer: a GPU would have to be waited for, to count. Partners beyond the
    # last border are padding and fall to the last writer, which then is padding too.
    place_P = torch.arange(len(partner_PD), dtype=torch.int32, device=partner_PD.device)
    owner_P = torch.searchsorted(writes.indptr_W1[1:].contiguous(), place_P, right=True)
    owner_P = owner_P.clamp(max=len(partners_W) - 1)
    total_WD = partner_PD.new_zeros(len(partners_W), partner_PD.shape[1])
    return total_WD.index_add_(0, owner_P, partner_PD) / partners_W.unsqueeze(1)
