"""What prediction returns: plain columns under original ids, ready for a table.

Shape legend: B events or pairs, D embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegraph.events.core import Events
from tidegraph.train.metrics import lead, rank


def sigmoid(logit: np.ndarray) -> np.ndarray:
    """Probabilities from logits, without overflow."""
    result: np.ndarray = 0.5 * (1.0 + np.tanh(0.5 * logit.astype(np.float64)))
    return result.astype(np.float32)


@dataclass(frozen=True, eq=False)
class PairPredictions:
    """Scores of candidate pairs.

    Attributes:
        source, target: [B] original ids, as given.
        time: [B] query times.
        score: [B] float32 probabilities.
    """

    source: np.ndarray
    target: np.ndarray
    time: np.ndarray
    score: np.ndarray

    def __len__(self) -> int:
        return len(self.score)

    def columns(self) -> dict[str, np.ndarray]:
        """Name -> column, for a table."""
        return {
            "source": self.source,
            "target": self.target,
            "time": self.time,
            "score": self.score,
        }


@dataclass(frozen=True, eq=False)
class EventPredictions:
    """Scores of new events, each from the state before its batch.

    Attributes:
        row: [B] the event's row in its input, from 0.
        source, target: [B] original ids.
        time: [B].
        score: [B] float32 probability of the true target.
        rank: [B] mean rank of the true target among the candidates, None without candidates.
        source_embedding, target_embedding: [B, D] before the event, None if not asked for.
    """

    row: np.ndarray
    source: np.ndarray
    target: np.ndarray
    time: np.ndarray
    score: np.ndarray
    rank: np.ndarray | None = None
    source_embedding: np.ndarray | None = None
    target_embedding: np.ndarray | None = None

    @classmethod
    def of(
        cls, events: Events, start: int, logit_BC: np.ndarray, embedding_2BD: np.ndarray | None
    ) -> EventPredictions:
        """Predictions of the events from position `start` on."""
        part = slice(start, len(events))
        ids = events.ids
        ranked = logit_BC.shape[1] > 1
        return cls(
            row=events.row[part],
            source=ids.to_original(events.source[part]),
            target=ids.to_original(events.target[part]),
            time=events.time[part],
            score=sigmoid(logit_BC[:, 0]),
            rank=rank(np.zeros(len(logit_BC)), lead(logit_BC)) if ranked else None,
            source_embedding=None if embedding_2BD is None else embedding_2BD[0],
            target_embedding=None if embedding_2BD is None else embedding_2BD[1],
        )

    def __len__(self) -> int:
        return len(self.score)

    def columns(self) -> dict[str, np.ndarray]:
        """Name -> column, for a table; embeddings as lists per row."""
        found: dict[str, Any] = {
            "row": self.row,
            "source": self.source,
            "target": self.target,
            "time": self.time,
            "score": self.score,
        }
        for name in ("rank", "source_embedding", "target_embedding"):
            value = getattr(self, name)
            if value is not None:
                found[name] = value
        return found


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Embeddings of nodes at a time.

    Attributes:
        node: [B] original ids.
        time: [B].
        embedding: [B, D] float32.
    """

    node: np.ndarray
    time: np.ndarray
    embedding: np.ndarray

    def columns(self) -> dict[str, np.ndarray]:
        """Name -> column, for a table."""
        return {"node": self.node, "time": self.time, "embedding": self.embedding}
