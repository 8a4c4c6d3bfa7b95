"""What stale training means, in plain code that keeps a whole copy of every version.

Batch b reads version max(0, b - k) and nothing newer; what it writes goes into the newest version,
in the order of the batches. Nothing here undoes, waits, shares or is fast.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import numpy as np
import torch

from ledger import MailLedger
from plain_tgn import PlainTGN
from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
from tidegraph.events import EventRange
from tidegraph.models import TemporalModel
from tidegraph.ops import link_loss
from tidegraph.train import Stream
from tidegraph.train.adam import Adam
from tidegraph.train.stream import part_of

_Book = TypeVar("_Book", MailLedger, PlainTGN)


class Versions(list[_Book]):
    """Versions of an oracle that can only execute a batch on the newest state."""

    def __init__(self, first: _Book, staleness: int) -> None:
        super().__init__([first])
        self.staleness = staleness

    def read(self) -> _Book:
        """What the next batch reads."""
        return self[max(0, len(self) - 1 - self.staleness)]

    def execute(self, batch: list[int]) -> None:
        """The next batch changes its endpoints, as it would have changed the version it reads."""
        stream = self[0].stream
        changed, newest = _copied(self.read()), _copied(self[-1])
        changed.execute(batch)
        for node in {n for event in batch for n in (stream.source[event], stream.target[event])}:
            for name in _dictionaries(newest):
                values = getattr(changed, name)
                getattr(newest, name).pop(node, None)
                if node in values:
                    getattr(newest, name)[node] = values[node]
        self.append(newest)


def _dictionaries(book: MailLedger | PlainTGN) -> list[str]:
    kept = ("memory", "pending", "updated")
    return [field.name for field in fields(book) if field.name in kept]


def _copied(book: _Book) -> _Book:
    return replace(book, **{name: dict(getattr(book, name)) for name in _dictionaries(book)})


def train(
    model: TemporalModel,
    train: EventRange,
    *,
    staleness: int,
    batch_size: int,
    learning_rate: float,
    epochs: int = 1,
) -> tuple[list[float], torch.Tensor, torch.Tensor]:
    """Losses of all batches; memory and mail [N, D] after the last epoch's training."""
    events, N = train.events, train.events.schema.num_nodes
    part = part_of(EventRange(events, train.start, train.stop, "train"), batch_size)
    stream = Stream.open(events, (replace(part, staleness=staleness),), model.history)
    met = np.unique(events.target[train.start : train.stop])
    negatives = NegativeSampler(events, NegativeSettings(), nodes=met)
    optimizer = Adam(model.named_parameters(), learning_rate=learning_rate)
    losses = []
    model.train()
    for epoch in range(epochs):
        zeros = torch.zeros(N, model.memory_width)
        versions = [(zeros, zeros)]
        for b in stream.phase("train").batches:
            negative_BC = negatives.draw_at(stream.plan.events(b), epoch=epoch)
            batch = stream.preparer.prepare(b, negative_BC, epoch=epoch)
            memory_ND, mail_ND = versions[max(0, b - staleness)]
            torch.default_generator.manual_seed(batch.key >> 1)
            node_U = batch.node_U.long()
            logit_BC, encoded = model(batch, memory_ND[node_U], mail_ND[node_U])
            loss = link_loss(logit_BC)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            versions.append(_written(batch, versions[-1], encoded.memory_UD))
    return losses, *versions[-1]


def _written(batch, newest, updated_UD):  # type: ignore[no-untyped-def]
    """The newest version with the endpoints' rows replaced, one node at a time ("last" mail)."""
    memory_ND, mail_ND = newest[0].clone(), newest[1].clone()
    updated_UD = updated_UD.detach()
    for w, node in enumerate(batch.writes.node_W.tolist()):
        memory_ND[node] = updated_UD[int(batch.writes.row_W[w])]
        (partner,) = batch.writes.partner_row_P[
            int(batch.writes.indptr_W1[w]) : int(batch.writes.indptr_W1[w + 1])
        ].tolist()
        mail_ND[node] = updated_UD[partner]
    return memory_ND, mail_ND
