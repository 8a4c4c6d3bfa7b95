"""Tiny training runs for tests: a stream, a small TGN, and everything of a run that must be equal.

Runs here take a fraction of a second: 120 events, 4 batches an epoch, 2 of validation.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tidegraph.batches import History, PreparedBatch
from tidegraph.events import EventRange, Events
from tidegraph.events.core import Schema
from tidegraph.models import TemporalModel, build_model
from tidegraph.models.base import Encoded
from tidegraph.train import Listener, Run, Trainer

SIZES: dict[str, Any] = {"memory": 6, "time": 4, "embedding": 6, "neighbors": 3}
SETTINGS: dict[str, Any] = {
    "epochs": 3, "batch_size": 20, "learning_rate": 0.012, "evaluation_batch_size": 12,
    "candidates": 5, "patience": 0,
}  # fmt: skip
TIMINGS = (
    "events_per_second", "seconds", "stages", "evaluation_seconds", "traffic", "exposed",
    "staleness",
)  # fmt: skip
BATCHES = 3 * (4 + 2)  # of SETTINGS on `chatter()`: training and validation, all epochs


def chatter(count: int = 120, nodes: int = 12, features: int = 2) -> Events:
    """Habits to learn (four of five events go to the source's favourite), ties and self-loops."""
    draw = np.random.default_rng(0)
    source = draw.integers(0, nodes, count)
    favourite = (source * 5 + 1) % nodes
    target = np.where(draw.random(count) < 0.8, favourite, draw.integers(0, nodes, count))
    noise = draw.normal(size=(count, features))
    time = np.sort(draw.integers(0, 2 * count, count))
    return Events.from_arrays(
        source, target, time, features=noise, num_nodes=nodes, bipartite=False
    )


def small_tgn(events: Events, seed: int = 0, **settings: Any) -> TemporalModel:
    """A TGN with dropout and a few hundred weights."""
    return build_model("tgn", events.schema, seed=seed, **{**SIZES, **settings})


def fit(
    events: Events,
    directory: Path | None = None,
    *,
    model: TemporalModel | None = None,
    listener: Listener | None = None,
    resume: bool = False,
    hidden: float = 0.0,
    split: dict[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Train on a 67/20/13 split of the events; `model` None takes a new small TGN."""
    shares = {"val": 0.2, "test": 0.13, "ties": "row", "hidden_nodes": hidden, **(split or {})}
    train, val, _ = events.split(**shares)
    trainer = Trainer(
        model or small_tgn(events),
        directory=directory,
        listener=listener,
        **{**SETTINGS, **settings},
    )
    return trainer.fit(train, val, resume=resume)


def held_out(events: Events, hidden: float = 0.0) -> EventRange:
    """The test part of the split that `fit` trains on."""
    return events.split(val=0.2, test=0.13, ties="row", hidden_nodes=hidden).test


def weights(model: TemporalModel) -> bytes:
    """All weights, to compare bit for bit."""
    return b"".join(t.contiguous().numpy().tobytes() for t in model.state_dict().values())


def outcome(run: Run) -> dict[str, Any]:
    """Everything of a run that does not depend on the clock."""
    records = [
        {name: value for name, value in asdict(record).items() if name not in TIMINGS}
        for record in run.records
    ]
    return {
        "weights": weights(run.model),
        "state": run.state.checksum(),
        "records": repr(records),  # as text, NaN equals NaN
        "best": run.best_epoch,
        "parts": run.stream.parts,
    }


class Stopped(BaseException):
    """A process that dies: not an `Exception`, so nothing cleans up on its way out."""


class StopAt(Listener):
    """Dies when the given number of batches (of any phase) are done."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def advanced(self, events: int, loss: float | None) -> None:
        if self.left == 0:
            raise Stopped
        self.left -= 1


class Diary(Listener):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.starts: list[tuple[str, int | None, int]] = []
        self.losses: list[float] = []
        self.ends: list[tuple[str, int | None, dict[str, float]]] = []

    def started(self, phase: str, epoch: int | None, events: int) -> None:
        self.starts.append((phase, epoch, events))

    def advanced(self, events: int, loss: float | None) -> None:
        if loss is not None:
            self.losses.append(loss)

    def finished(self, phase: str, epoch: int | None, figures: dict[str, float]) -> None:
        self.ends.append((phase, epoch, figures))

    def message(self, text: str) -> None:
        self.said.append(text)


class Forgetful(TemporalModel):
    """A model without memory and without neighbours: how often two nodes' ids point alike.

    This is all that a model must be: what history it needs, and how to embed.
    """

    def __init__(self, schema: Schema, width: int = 4, unused: tuple[int, ...] = (3,)) -> None:
        super().__init__(schema, width)
        self.history = History(neighbors=(), memory=False)
        drawn = torch.Generator().manual_seed(3)
        self.node = torch.nn.Parameter(torch.randn(schema.num_nodes, width, generator=drawn))
        self.tied = torch.nn.Linear(width, width)
        self.again = self.tied  # weights under two names
        self.dropout = torch.nn.Dropout(0.5)  # PyTorch's own generator

    def encode(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Encoded:
        own_UD = self.node.index_select(0, batch.node_U)
        return Encoded(self.dropout(self.again(torch.tanh(self.tied(own_UD)))))
