"""Compiling the operators' kernels of training in a process of their own, beside all others.

A training step needs a prepared batch, and preparing one needs other kernels first; a batch made by
hand needs none. So one process compiles what a step calls while the other compiles what preparation
and scoring call, on two cores. It is an optimisation only: what is not compiled here, the tiny run
that follows compiles.

Shape legend: B events, C negatives per event, R roots, S seeds, K slots per seed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tidegraph.batches import History, PreparedBatch
from tidegraph.batches.prepared import Hop, Mail, Uses, Writes
from tidegraph.events import Events
from tidegraph.events.store import open_events
from tidegraph.features import open_stores
from tidegraph.models import TemporalModel, build_model
from tidegraph.state import NodeState
from tidegraph.train.adam import Adam
from tidegraph.train.executor import EagerExecutor

_EVENTS = 2
_PATIENCE = 300.0  # seconds; then the waiting process compiles for itself


def start(
    directory: Path, model: str, values: Mapping[str, Any], feature_type: str
) -> subprocess.Popen[bytes]:
    """Compile what a training step on the events saved in `directory` calls, in a new process."""
    request = json.dumps([str(directory), model, dict(values), feature_type])
    return subprocess.Popen(
        [sys.executable, "-m", "tidegraph.cli.warm_operators", request],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait(process: subprocess.Popen[bytes]) -> None:
    """Until it has ended, well or not; a process that takes too long is stopped."""
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
    finally:
        process.kill()
        process.wait()


def batch_by_hand(history: History, events: Events, features: Tensor) -> PreparedBatch:
    """A batch of two events as preparation would hand it over, for any fixed fan-out.

    Args:
        history: what the model asks for.
        events: at least two, whose first two nodes are 0 and 1.
        features: the event-feature table.
    """
    B, C = _EVENTS, 1
    rows = B * (2 + C)
    hops = tuple(_hop(rows, fanout) for fanout in history.neighbors)
    mail = Mail(
        row_M=_int32(range(rows)),
        indptr_M1=_int32(range(rows + 1)),
        event_L=_int32([0] * rows),
        delta_L=torch.zeros(rows),
    )
    writes = Writes(
        node_W=_int32(range(2)),
        row_W=_int32(range(2)),
        indptr_W1=_int32(range(3)),
        partner_row_P=_int32([1, 0]),
    )
    node_features = events.node_features
    return PreparedBatch(
        number=0,
        version=0,
        key=1,
        event_B=torch.arange(B),
        root_R=_int32(range(rows)),
        root_uses=_each_once(rows),
        candidates=C,
        node_U=_int32([node % 2 for node in range(rows)]),
        hops=hops,
        mail=mail if history.memory else None,
        writes=writes if history.memory else None,
        features=features,
        node_features=None if node_features is None else torch.zeros(rows, node_features.shape[1]),
    )


def _hop(rows: int, fanout: int) -> Hop:
    """Each seed is its own neighbour, in the first of its slots."""
    neighbor_SK = torch.zeros(rows, fanout, dtype=torch.int32)
    neighbor_SK[:, 0] = _int32(range(rows))
    return Hop(
        self_S=_int32(range(rows)),
        neighbor_SK=neighbor_SK,
        event_SK=torch.zeros(rows, fanout, dtype=torch.int32),
        delta_SK=torch.zeros(rows, fanout),
        count_S=_int32([1] * rows),
        self_uses=_each_once(rows),
        neighbor_uses=Uses(_int32(range(rows + 1)), _int32(range(0, rows * fanout, fanout))),
    )


def _each_once(rows: int) -> Uses:
    return Uses(_int32(range(rows + 1)), _int32(range(rows)))


def _int32(values: range | list[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def _features(events: Events, feature_type: str) -> Tensor:
    """The table as a batch has it: the store itself, or rows decoded from it."""
    store, _ = open_stores(events, feature_type, fit=_EVENTS)
    return store.table if store.in_place else torch.zeros(1, store.width)


def main(request: str) -> None:
    """Train on one batch; see `start`."""
    directory, name, values, feature_type = json.loads(request)
    events = open_events(directory)
    model = build_model(name, events.schema, **values)
    executor, batch = _ready(model, events, feature_type)
    executor.train(batch)


def score_one(model: TemporalModel, events: Events, feature_type: str) -> None:
    """Score a batch made by hand, as evaluation does."""
    executor, batch = _ready(model.eval(), events, feature_type)
    executor.score(batch)


def _ready(
    model: TemporalModel, events: Events, feature_type: str
) -> tuple[EagerExecutor, PreparedBatch]:
    batch = batch_by_hand(model.history, events, _features(events, feature_type))
    state = NodeState(events.schema.num_nodes, model.columns)
    return EagerExecutor(model, state, Adam(model.named_parameters(), 1e-3), clip=1.0), batch


if __name__ == "__main__":
    main(sys.argv[1])
