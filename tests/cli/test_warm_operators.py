"""Operators compile beside preparation, for exactly the types that a run will call them with."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch

import tidegraph as tg
from tidegraph.batches import PreparedBatch
from tidegraph.batches.prepared import _collect
from tidegraph.cli import warm_operators
from tidegraph.features import open_stores
from tidegraph.models import build_model
from tidegraph.ops import shared_embedding, shared_kernels
from tidegraph.train.stream import Part, Stream


def saved(directory: Path) -> tg.Events:
    place = np.arange(30)
    return tg.Events.from_arrays(
        place % 3, 3 + place % 2, place, features=np.ones((30, 2), np.float32)
    ).save(directory)


def kinds(batch: PreparedBatch) -> list[object]:
    """The types by which kernels are compiled: number, dimensions, layout, read-only or not."""
    tensors: list[torch.Tensor] = []
    _collect(batch, tensors)
    return [numba.typeof(tensor.numpy()) for tensor in tensors]


@pytest.mark.parametrize("layers", [1, 2])
def test_a_batch_by_hand_has_the_types_of_a_prepared_one(tmp_path: Path, layers: int) -> None:
    events = saved(tmp_path / "events")
    history = build_model("tgn", events.schema, layers=layers, neighbors=3).history
    stream = Stream.open(events, (Part("train", 0, 30, 10),), history)
    prepared = stream.preparer.prepare(1, np.full((10, 1), 3, np.int32))
    features, _ = open_stores(events)
    by_hand = warm_operators.batch_by_hand(history, events, features.table)
    assert kinds(by_hand) == kinds(prepared)


@pytest.mark.parametrize("feature_type", ["float32", "int8"])
def test_a_step_on_it_runs(tmp_path: Path, feature_type: str) -> None:
    saved(tmp_path / "events")
    values = '{"memory": 4, "time": 4, "embedding": 4, "neighbors": 2}'
    warm_operators.main(f'["{tmp_path / "events"}", "tgn", {values}, "{feature_type}"]')


def test_scoring_it_calls_the_kernels_of_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model in training mode would score by the operators of training."""
    called: list[str] = []
    for room, name in (
        (shared_kernels, "group_seeds"),
        (shared_kernels, "static_scores"),
        (shared_embedding, "embed_seeds"),
    ):
        kernel = getattr(room, name)

        def noted(*arguments: object, kernel: Any = kernel, name: str = name) -> Any:
            called.append(name)
            return kernel(*arguments)

        monkeypatch.setattr(room, name, noted)
    events = saved(tmp_path / "events")
    model = build_model("tgn", events.schema, memory=4, time=4, embedding=4, neighbors=2)
    warm_operators.score_one(model, events, "float32")
    assert called == ["group_seeds", "static_scores", "embed_seeds"]


def test_a_process_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_operators, "_PATIENCE", 0.1)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started = time.perf_counter()
    warm_operators.wait(process)
    assert process.returncode is not None
    assert time.perf_counter() - started < 30
