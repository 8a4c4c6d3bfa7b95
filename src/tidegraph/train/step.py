"""A whole training step in fixed shapes, written so that it can be captured.

Between its first and its last line the host decides nothing: no shape, branch or number depends on
the values of a tensor. Everything that differs between two batches of a template (indices, counts,
keys of random streams) is read from tensors, so the same recorded operations serve all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from tidegraph.batches.padding import inert
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.models.base import TemporalModel
from tidegraph.ops import link_loss
from tidegraph.state import RingPush, RowWrite, ScratchRows, StateWrites
from tidegraph.train.adam import Adam


def padded_loss(
    model: TemporalModel, batch: PreparedBatch, *vectors: Tensor
) -> tuple[Tensor, StateWrites]:
    """The loss of a padded batch, and what it leaves in the state."""
    padding = batch.padding
    assert padding is not None
    batch = inert(batch)
    logit_BC, encoded = model(batch, *vectors)
    loss = link_loss(logit_BC, padding.event_count)
    return loss, model.state_writes(batch, encoded)


@dataclass(frozen=True, eq=False)
class TrainingStep:
    """What a captured step refers to; every tensor of it is changed in place.

    Attributes:
        model: in training mode.
        optimizer: capturable, see `Adam.make_capturable`.
        clip: largest gradient norm, None for no clipping.
    """

    model: TemporalModel
    optimizer: Adam
    clip: float | None

    def on_state(self, batch: PreparedBatch, state: ScratchRows) -> Tensor:
        """Read, forward, backward, clip, update, write; returns the loss.

        The version is the host's business: it is checked before and advanced after.
        """
        loss, changes = self.on_vectors(batch, *state.read(batch))
        state.write(batch, changes)
        return loss

    def on_vectors(self, batch: PreparedBatch, *vectors: Tensor) -> tuple[Tensor, StateWrites]:
        """The same from rows that somebody else reads and writes."""
        loss, changes = padded_loss(self.model, batch, *vectors)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.clip is not None:
            clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return loss.detach(), tuple(_detached(change) for change in changes)


def _detached(change: RowWrite | RingPush) -> RowWrite | RingPush:
    """A change that keeps no graph of the step alive."""
    if isinstance(change, RingPush):
        values = {name: value_W.detach() for name, value_W in change.values.items()}
        return replace(change, values=values)
    return replace(change, value_W=change.value_W.detach())
