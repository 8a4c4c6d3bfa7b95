"""Runs of models with other states than TGN's: determinism, resuming, checkpoints, statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import training
from tidegraph.errors import CheckpointError, SettingError
from tidegraph.events import Events
from tidegraph.events.core import Schema
from tidegraph.models import JODIE, TGN, TemporalModel, build_model
from tidegraph.train import load_run
from tidegraph.train.checkpoint import load_checkpoint
from tidegraph.train.contents import state_from

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "jodie": ("jodie", {"memory": 6, "time": 4}),
    "dyrep": ("dyrep", {"memory": 6, "time": 4, "neighbors": 3}),
    "apan": ("apan", {"memory": 6, "time": 4, "neighbors": 2, "mails": 3}),
    "static": ("tgn", {**training.SIZES, "static": 4}),
    "query": ("tgn", {**training.SIZES, "memory_time": "query"}),
    "time": ("tgn", {**training.SIZES, "embedding_module": "time"}),
}
each = pytest.mark.parametrize("name", MODELS)
EPOCHS = {"epochs": 2}


def model(name: str, events: Events) -> TemporalModel:
    kind, settings = MODELS[name]
    return build_model(kind, events.schema, **settings)


@pytest.fixture(scope="module")
def events() -> Events:
    return training.chatter()


@pytest.fixture(scope="module")
def uninterrupted(events: Events) -> dict[str, dict[str, Any]]:
    return {
        name: training.outcome(training.fit(events, model=model(name, events), **EPOCHS))
        for name in MODELS
    }


@each
def test_two_runs_are_the_same_bits(
    name: str, events: Events, uninterrupted: dict[str, Any]
) -> None:
    again = training.outcome(training.fit(events, model=model(name, events), **EPOCHS))
    assert again == uninterrupted[name]


@each
@pytest.mark.parametrize("batches", [0, 3, 4, 7])
def test_killed_and_resumed_it_ends_in_the_same_bits(
    name: str, batches: int, events: Events, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    every: dict[str, Any] = {**EPOCHS, "checkpoint_batches": 1}
    with pytest.raises(training.Stopped):
        training.fit(
            events,
            tmp_path / "run",
            model=model(name, events),
            listener=training.StopAt(batches),
            **every,
        )
    resumed = training.fit(
        events, tmp_path / "run", model=model(name, events), resume=True, **every
    )
    assert training.outcome(resumed) == uninterrupted[name]


@each
def test_a_loaded_run_goes_on_like_the_one_in_memory(
    name: str, events: Events, tmp_path: Path
) -> None:
    run = training.fit(events, tmp_path / "run", model=model(name, events), epochs=1)
    loaded = load_run(tmp_path / "run")
    assert loaded.state.checksum() == run.state.checksum()
    test = training.held_out(events)
    first, second = (one.evaluate(test).metrics.values() for one in (run, loaded))
    assert first == second
    assert run.evaluate(test).metrics.values() == first, "an evaluation leaves the run in place"
    run.advance()
    run.save()
    assert load_run(tmp_path / "run", at="stream").state.checksum() == run.state.checksum()


@each
def test_new_nodes_start_empty(name: str, events: Events) -> None:
    run = training.fit(events, model=model(name, events), epochs=1)
    later = Events.from_arrays(
        [0, 40, 41], [41, 1, 40], [1000, 1001, 1002], features=np.ones((3, 2)), bipartite=False
    )
    scores = run.predict_events(later)
    assert np.isfinite(scores.score).all()
    assert run.state.num_nodes > 12


@each
def test_without_event_features(name: str) -> None:
    events = training.chatter(90, features=0)
    run = training.fit(events, model=model(name, events), epochs=1)
    assert np.isfinite(run.evaluate(training.held_out(events)).metrics["AP"].value)


def test_statistics_are_those_of_the_training_part(events: Events) -> None:
    """Gaps of one node's consecutive events, hidden nodes left out; nothing later counts."""
    jodie = model("jodie", events)
    assert isinstance(jodie, JODIE)
    run = training.fit(events, model=jodie, epochs=1)
    last: dict[int, int] = {}
    gaps = []
    for event in range(run.stream.parts[0].stop):
        for node in (int(events.source[event]), int(events.target[event])):
            if node in last:
                gaps.append(int(events.time[event]) - last[node])
            last[node] = int(events.time[event])
    assert float(jodie.projection.gap_mean[0]) == pytest.approx(np.mean(gaps))
    assert float(jodie.projection.gap_scale[0]) == pytest.approx(np.std(gaps))


def test_static_memory_knows_who_meets_whom(events: Events) -> None:
    """Four of five events go to the source's favourite: its vector points there."""
    found = model("static", events)
    assert isinstance(found, TGN)
    assert not found.static_NQ.any()
    training.fit(events, model=found, epochs=1)
    assert found.static_NQ.square().mean() == pytest.approx(1.0, abs=1e-5)
    assert "static_NQ" in found.state_dict()
    assert "static_NQ" not in dict(found.named_parameters())


def test_a_checkpoint_of_other_columns_is_refused(events: Events, tmp_path: Path) -> None:
    training.fit(events, tmp_path / "run", model=model("apan", events), epochs=1)
    best = load_checkpoint(tmp_path / "run" / "checkpoints" / "best.safetensors")
    with pytest.raises(CheckpointError, match="it is of another model"):
        state_from(best, model("jodie", events).columns)


def test_a_mailbox_stays_on_the_device(events: Events) -> None:
    with pytest.raises(SettingError, match="use state='device'"):
        training.fit(events, model=model("apan", events), epochs=1, state="host")


@pytest.mark.parametrize("name", ["jodie", "dyrep"])
def test_memory_and_mail_may_live_on_the_host(
    name: str, events: Events, uninterrupted: dict[str, Any]
) -> None:
    run = training.fit(
        events, model=model(name, events), **EPOCHS, state="host", cache="lru", cache_budget=0.3
    )
    found, expected = training.outcome(run), uninterrupted[name]
    assert (found["weights"], found["state"]) == (expected["weights"], expected["state"])


def test_gaps_of_each_side_are_normalised_by_themselves() -> None:
    """Sources come back every 2, targets every 4."""
    jodie = JODIE(Schema(num_nodes=4, num_sources=2, bipartite=True), memory=2)
    layer = jodie.projection
    layer.fit(np.array([0, 0, 0, 2, 2, 2]), np.array([0, 2, 4, 0, 4, 8]))
    assert layer.gap_mean.tolist() == [2.0, 4.0]
    assert layer.gap_scale.tolist() == [2.0, 4.0], "gaps all alike: their size is the scale"
    assert torch.equal(layer.weight, torch.zeros(2))
