"""`NodeState`: the vectors that training cannot recompute from history, with explicit versions.

Batch `b` reads version `b` and its execution publishes version `b + 1`. Mail is kept as
references (which event, which partner: all of it history) plus the one thing that is state, the
partner's memory at that time.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from tidegraph.batches.prepared import PreparedBatch, Writes
from tidegraph.errors import TidegraphError


class VersionError(TidegraphError, RuntimeError):
    """A batch met a state version other than the one it needs."""


class NodeState:
    """Memory and mail vectors of all nodes.

    Attributes:
        memory_ND: float32 [N, D].
        mail_ND: float32 [N, D], (mean of) the partners' memories when the mail was sent.
        version: number of batches executed since the reset.

    >>> state = NodeState(3, 4)
    >>> state.version, tuple(state.memory_ND.shape)
    (0, (3, 4))
    """

    def __init__(self, num_nodes: int, width: int) -> None:
        self.memory_ND = torch.zeros(num_nodes, width)
        self.mail_ND = torch.zeros(num_nodes, width)
        self.version = 0

    @property
    def num_nodes(self) -> int:
        """N."""
        return int(self.memory_ND.shape[0])

    @property
    def device(self) -> torch.device:
        """Where the vectors are."""
        return self.memory_ND.device

    def to(self, device: torch.device | str) -> NodeState:
        """Move every vector to `device` (in place) and return self."""
        self.memory_ND = self.memory_ND.to(device)
        self.mail_ND = self.mail_ND.to(device)
        return self

    def reset(self) -> None:
        """Forget everything: zero vectors, version 0."""
        self.memory_ND.zero_()
        self.mail_ND.zero_()
        self.version = 0

    def clone(self) -> NodeState:
        """An independent copy of the same version."""
        copy = NodeState(0, 0)
        copy.memory_ND, copy.mail_ND = self.memory_ND.clone(), self.mail_ND.clone()
        copy.version = self.version
        return copy

    def grow(self, num_nodes: int) -> None:
        """Make room for nodes never seen before; they start at zero."""
        more = num_nodes - self.num_nodes
        if more > 0:
            zeros = self.memory_ND.new_zeros(more, self.memory_ND.shape[1])
            self.memory_ND = torch.cat([self.memory_ND, zeros])
            self.mail_ND = torch.cat([self.mail_ND, zeros])

    def read(self, batch: PreparedBatch) -> tuple[Tensor, Tensor]:
        """Memory and mail vectors [U, D] of the batch's nodes, at exactly its version.

        Raises:
            VersionError: the state is at another version than the batch needs.
        """
        self.check_version(batch)
        return self.memory_ND.index_select(0, batch.node_U), self.mail_ND.index_select(
            0, batch.node_U
        )

    def check_version(self, batch: PreparedBatch) -> None:
        """Refuse a batch that needs another version.

        Raises:
            VersionError: says which.
        """
        if batch.version != self.version:
            raise VersionError(
                f"batch {batch.number} needs state version {batch.version}, the state is at "
                f"version {self.version}: batches must be executed in order, once each"
            )

    def write(self, batch: PreparedBatch, updated_UD: Tensor | None) -> None:
        """Persist the endpoints' updated memories and their new mail; publishes the next version.

        Only endpoints of the batch's events are written: other nodes were updated for this
        computation alone, and their mail stays pending.
        """
        writes = batch.writes
        if writes is not None and updated_UD is not None:
            updated_UD = updated_UD.detach()
            node_W = writes.node_W.long()
            self.memory_ND.index_copy_(0, node_W, updated_UD.index_select(0, writes.row_W))
            self.mail_ND.index_copy_(0, node_W, partner_mean(writes, updated_UD))
        self.version += 1

    def checksum(self) -> str:
        """A digest of all vectors and the version."""
        digest = hashlib.sha256(str(self.version).encode())
        for tensor in (self.memory_ND, self.mail_ND):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def partner_mean(writes: Writes, updated_UD: Tensor) -> Tensor:
    """[W, D]: mean of the partners' updated memories, per written node."""
    partner_PD = updated_UD.index_select(0, writes.partner_row_P)
    if partner_PD.shape[0] == writes.node_W.shape[0]:
        return partner_PD
    partners_W = (writes.indptr_W1[1:] - writes.indptr_W1[:-1]).long()
    owner_P = torch.repeat_interleave(
        torch.arange(len(partners_W), device=partner_PD.device),
        partners_W,
        output_size=partner_PD.shape[0],  # or a GPU would have to be waited for, to count
    )
    total_WD = partner_PD.new_zeros(len(partners_W), partner_PD.shape[1])
    return total_WD.index_add_(0, owner_P, partner_PD) / partners_W.unsqueeze(1)
