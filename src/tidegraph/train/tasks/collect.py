"""Embeddings at each event's time, strictly before it, collected in one pass over a stream.

Every batch is embedded from the state before it and then written, as in evaluation, so a row knows
nothing of its own event. Fixed weights make the rows a pure function of events and weights: a
decoder trains on them as on any table.

Shape legend: B events of a batch, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tidegraph.models.base import TemporalModel
from tidegraph.state import NodeState
from tidegraph.train.evaluate import advance
from tidegraph.train.executor import EagerExecutor
from tidegraph.train.stages import Listener
from tidegraph.train.stream import Stream


@dataclass(frozen=True, eq=False)
class Collected:
    """Embeddings of the events of a part.

    Attributes:
        event_M: [M] int64, positions in the events, ascending.
        both_M2D: [M, 2, D] float32, source and target before each event.
    """

    event_M: np.ndarray
    both_M2D: np.ndarray


def exact(stream: Stream) -> Stream:
    """The stream without staleness: with fixed weights there is nothing to run ahead of."""
    if not any(part.staleness for part in stream.parts):
        return stream
    found = replace(stream, parts=())
    for part in stream.parts:
        found = found.with_part(replace(part, staleness=0))
    return found


def collect(
    model: TemporalModel,
    state: NodeState,
    stream: Stream,
    part: str,
    listener: Listener | None = None,
    *,
    frozen: bool = False,
) -> Collected:
    """Embed both ends of every event of a part; `state` moves to the part's end.

    Args:
        model: in evaluation mode for the duration.
        state: at the version of the part's first batch.
        stream: its plan contains the part.
        part: name of the phase.
        listener: told about progress.
        frozen: history ends where the part begins, as in evaluation with `history="frozen"`.
    """
    listener = listener or Listener()
    executor = EagerExecutor(model, state, transfer=stream.transfer)
    numbers = stream.phase(part).batches
    event_M = np.concatenate([stream.plan.events(number) for number in numbers], dtype=np.int64)
    both_M2D = np.empty((len(event_M), 2, model.embedding_width), np.float32)
    listener.started(f"embed {part}", None, len(event_M))
    was_training, done = model.training, 0
    model.eval()
    try:
        for number in numbers:
            B = len(stream.plan.events(number))
            batch = stream.preparer.prepare(
                number, np.empty((B, 0), np.int32), as_of=numbers[0] if frozen else None
            )
            root_RD = executor.embed(batch) if frozen else executor.observe(batch)
            both_M2D[done : done + B] = root_RD.reshape(2, B, -1).swapaxes(0, 1)
            done += B
            listener.advanced(B, None)
        if frozen:
            advance(model, state, stream, part)
    finally:
        model.train(was_training)
    listener.finished(f"embed {part}", None, {})
    return Collected(event_M, both_M2D)
