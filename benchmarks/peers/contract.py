"""What every library's adapter offers to the measurement, and the settings all of them share.

Shape legend: E events, N nodes, F event-feature width, B events of one batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

STAGES = ("prepare", "forward", "backward", "state")
"""Sampling and gathering; memory, embedding and loss; gradients and optimiser; writing state."""


@dataclass(frozen=True)
class Settings:
    """The model and optimiser that every library is asked for.

    Attributes:
        batch_size: events of one batch.
        memory, time, embedding: widths of the node memory, the time code and the embedding.
        neighbors: most recent neighbours of a node.
        heads: attention heads.
        dropout: share of attention weights dropped in training.
        learning_rate: of Adam.
        threads: CPU threads of the library and of PyTorch.
        seed: of the initial weights and of dropout.
    """

    batch_size: int = 200
    memory: int = 100
    time: int = 100
    embedding: int = 100
    neighbors: int = 10
    heads: int = 2
    dropout: float = 0.1
    learning_rate: float = 1e-4
    threads: int = 2
    seed: int = 0


@dataclass
class StageClock:
    """Seconds spent in each stage of the training loop; adapters mark the stages themselves."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the `with` block to stage `name` (one of `STAGES`)."""
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start


class Adapter(Protocol):
    """One library's TGN on one stream. The class takes `(stream, settings)`."""

    @staticmethod
    def versions() -> dict[str, str]:
        """Names and versions of the packages that do the work."""

    def parameter_count(self) -> int:
        """How many numbers the optimiser learns."""

    def train_epoch(self, negative_E: np.ndarray, clock: StageClock) -> Iterator[float]:
        """Train on the training events from fresh state; yields each batch's loss.

        Args:
            negative_E: [E] int64, the negative destination of each event of the stream.
            clock: receives the seconds of each stage.
        """

    def validate(self, negative_E: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Score the validation events, state continuing from the end of the training part.

        Yields, for each batch, the scores of its positives and of its negatives, [B] each.
        """
