"""Where training stands: the cursor that checkpoints carry, and one record per finished epoch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from tidegraph.train.evaluate import Evaluation


@dataclass(frozen=True)
class EpochCost:
    """What one epoch's training took; fields as in `EpochRecord`."""

    events_per_second: float
    seconds: float
    stages: dict[str, float]
    traffic: dict[str, int]
    exposed: dict[str, float]
    staleness: dict[str, int]


@dataclass(frozen=True)
class EpochRecord:
    """One finished epoch.

    Attributes:
        epoch: from 0.
        loss: mean training loss over events.
        metrics: validation figures, name -> value.
        protocols: name -> how it was taken.
        inductive: figures over events with an unseen node, or empty.
        events_per_second, seconds, stages: what it took (since the last resume).
        evaluation_seconds: of validation.
        traffic: rows and bytes between host and device while training, summed over the cached
            tables (since the last resume); empty without a cache.
        templates: what became of the batches since training began or was resumed, where steps run
            in fixed shapes (`TemplateUsage`); else empty.
        exposed: stage -> seconds of the training loop that went into it or into waiting for it
            (since the last resume); what other threads did meanwhile is in `stages` alone.
        staleness: versions behind the newest -> batches that read that version (since the last
            resume); empty where all read the newest.
    """

    epoch: int
    loss: float
    metrics: dict[str, float]
    protocols: dict[str, str]
    inductive: dict[str, float]
    events_per_second: float
    seconds: float
    stages: dict[str, float]
    evaluation_seconds: float
    traffic: dict[str, int] = field(default_factory=dict)
    templates: dict[str, float] = field(default_factory=dict)
    exposed: dict[str, float] = field(default_factory=dict)
    staleness: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        cursor: Cursor,
        evaluation: Evaluation,
        took: EpochCost,
    ) -> EpochRecord:
        """The record of the epoch the cursor is in."""
        return cls(
            epoch=cursor.epoch,
            loss=cursor.mean_loss,
            metrics=evaluation.metrics.values(),
            protocols={metric.name: metric.protocol for metric in evaluation.metrics},
            inductive=evaluation.inductive.values() if evaluation.inductive else {},
            evaluation_seconds=evaluation.seconds,
            **asdict(took),
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> EpochRecord:
        """From a checkpoint or a line of metrics.jsonl, where undefined figures are null."""
        named = dict(values)
        for group in ("metrics", "inductive"):
            named[group] = {
                name: math.nan if value is None else value for name, value in named[group].items()
            }
        return cls(**named)

    def figures(self) -> dict[str, float]:
        """What a progress line shows."""
        return {"loss": self.loss, "events/s": self.events_per_second, **self.metrics}


@dataclass
class Cursor:
    """Position in training; together with weights, optimiser and state it is all there is.

    Attributes:
        epoch: the current one, from 0.
        batch: batches of it that are done.
        loss_sum, loss_events: training loss so far in this epoch.
        best_value, best_epoch: best validation so far (-1: none yet).
        records: finished epochs.
    """

    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    loss_events: int = 0
    best_value: float = 0.0
    best_epoch: int = -1
    records: list[EpochRecord] = field(default_factory=list)

    @property
    def mean_loss(self) -> float:
        """Mean training loss over the events of this epoch so far."""
        return self.loss_sum / max(self.loss_events, 1)

    def add_loss(self, loss: float, events: int) -> None:
        """Count one executed batch."""
        self.loss_sum += loss * events
        self.loss_events += events
        self.batch += 1

    def next_epoch(self, record: EpochRecord) -> None:
        """Close the epoch."""
        self.records.append(record)
        self.epoch, self.batch, self.loss_sum, self.loss_events = self.epoch + 1, 0, 0.0, 0

    def to_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Cursor:
        """From a checkpoint."""
        records = [EpochRecord.from_dict(record) for record in values["records"]]
        return cls(**{**values, "records": records})
