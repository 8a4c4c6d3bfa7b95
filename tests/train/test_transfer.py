"""Caching changes where rows come from and nothing else: losses, weights, state, metrics, bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tidegraph as tg
from tidegraph.batches import History
from tidegraph.errors import SettingError, TidegraphError
from tidegraph.events import Events
from tidegraph.state import HostState, NodeState
from tidegraph.train import EagerExecutor, Stream
from tidegraph.train.placement import cache_settings, with_caches
from tidegraph.train.run import load_run
from tidegraph.train.settings import TrainSettings
from tidegraph.train.stream import Part
from training import (
    SIZES,
    Diary,
    Forgetful,
    StopAt,
    Stopped,
    chatter,
    fit,
    held_out,
    outcome,
    small_tgn,
)

POLICIES = ("next-use", "lru", "frequency")


def with_node_features(count: int = 120, nodes: int = 12) -> Events:
    plain = chatter(count, nodes)
    noise = np.random.default_rng(4).normal(size=(nodes, 3)).astype(np.float32)
    return Events.from_arrays(
        plain.source, plain.target, plain.time, features=plain.features, node_features=noise,
        num_nodes=nodes, bipartite=False,
    )  # fmt: skip


EVENTS = with_node_features()
TOUCHED = 3 * (len(EVENTS) + 2 * EVENTS.schema.num_nodes)  # more slots than anything needs


def trained(directory: Path | None = None, **settings: Any) -> tuple[list[float], dict[str, Any]]:
    diary = Diary()
    model = small_tgn(EVENTS, **settings.pop("model", {}))
    run = fit(EVENTS, directory, model=model, listener=diary, **settings)
    return diary.losses, outcome(run)


@pytest.mark.parametrize("model", [{}, {"layers": 2, "message": "mean", "strategy": "uniform"}])
def test_training_is_the_same_at_every_capacity(model: dict[str, Any]) -> None:
    """Capacities 0, 1 row, some and all; state on the host and on the device; each policy."""
    plain = trained(model=dict(model))
    for policy in POLICIES:
        for budget in (0.0, 1 / 12, 0.3, 1.0):
            cached = trained(
                model=dict(model), cache=policy, cache_budget=budget, cache_window=2, state="host"
            )
            assert cached == plain, (policy, budget)
    assert trained(model=dict(model), cache="lru", cache_budget=0.3) == plain
    assert trained(model=dict(model), state="host") == plain


@pytest.mark.parametrize("window", [0, 1, 3, 100])
def test_training_is_the_same_with_every_window(window: int) -> None:
    cached = trained(cache="next-use", cache_budget=0.2, cache_window=window, state="host")
    assert cached == trained()


def test_a_model_without_memory_has_no_state_to_place() -> None:
    plain = fit(EVENTS, model=Forgetful(EVENTS.schema))
    cached = fit(
        EVENTS, model=Forgetful(EVENTS.schema), state="host", cache="next-use", cache_window=2
    )
    assert not isinstance(cached.state, HostState)
    assert outcome(cached) == outcome(plain)


def test_traffic_of_an_epoch_is_recorded(tmp_path: Path) -> None:
    """Every epoch uses as many rows, but their numbers add up to what the batches name."""
    run = fit(EVENTS, tmp_path / "run", cache="lru", cache_budget=0.0, state="host")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    traffic = [line["traffic"] for line in lines if "traffic" in line]
    assert traffic == [record.traffic for record in run.records]
    width = EVENTS.schema.event_features
    for one in traffic:
        assert one["hits"] == 0
        assert one["misses"] > 0
        assert one["zeros"] > 0
        # two endpoints at most an event, memory and mail
        assert 0 < one["written"] <= 80 * 2 * 2 * SIZES["memory"] * 4
        assert one["moved"] >= one["misses"] * width * 4
    everything = fit(EVENTS, cache="lru", cache_budget=1.0, state="host").records
    for record, before in zip(everything, traffic, strict=True):
        now = record.traffic
        assert sum(now[name] for name in ("hits", "misses", "zeros")) == sum(
            before[name] for name in ("hits", "misses", "zeros")
        )
        assert now["moved"] + now["saved"] == before["moved"] + before["saved"]
        assert now["written"] == before["written"]
    # Features do not change: from the second epoch on nothing at all has to cross.
    assert everything[0].traffic["misses"] > 0
    assert everything[1].traffic["misses"] == everything[2].traffic["misses"] == 0


def test_without_a_cache_nothing_is_recorded() -> None:
    assert all(record.traffic == {} for record in fit(EVENTS).records)


def test_looking_ahead_saves_traffic() -> None:
    """A long stream, few slots: the more of it is announced, the less crosses."""
    events = chatter(900, 150)
    common: dict[str, Any] = {"epochs": 1, "cache_budget": 0.1, "state": "host", "candidates": 0}

    def moved(**settings: Any) -> int:
        model = small_tgn(events)
        return fit(events, model=model, **common, **settings).records[0].traffic["moved"]

    nothing = moved(cache="next-use", cache_window=0)
    assert nothing == moved(cache="lru")
    short, long = moved(cache="next-use", cache_window=2), moved(cache="next-use", cache_window=50)
    assert long <= short < nothing


def test_a_run_resumes_whatever_is_cached(tmp_path: Path) -> None:
    """Where rows are kept is no part of a run: it may change when the run goes on."""
    plain = trained()
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path, model=small_tgn(EVENTS), listener=StopAt(8), checkpoint_batches=1,
            cache="next-use", cache_window=3, state="host")  # fmt: skip
    resumed = trained(tmp_path, resume=True, checkpoint_batches=1, cache="frequency", state="host")
    assert resumed[1] == plain[1]


def test_a_cached_run_evaluates_predicts_and_loads(tmp_path: Path) -> None:
    plain = fit(EVENTS)
    cached = fit(
        EVENTS, tmp_path, cache="next-use", cache_budget=0.2, cache_window=2, state="host",
        history="streaming",
    )  # fmt: skip
    loaded = load_run(tmp_path, events=EVENTS)
    assert isinstance(loaded.state, HostState)
    new = Events.from_arrays(
        [0, 1], [5, 7], [10_000, 10_001], features=np.ones((2, 2)),
        node_features=EVENTS.node_features, num_nodes=12, bipartite=False,
    )  # fmt: skip
    found = [_used(run, new) for run in (plain, cached, loaded)]
    assert found[0] == found[1] == found[2]


def _used(run: tg.Run, new: Events) -> tuple[object, ...]:
    """All that a run is asked for, to compare bit for bit."""
    metrics = run.evaluate(held_out(EVENTS)).metrics
    run.advance()
    vectors = run.embed().embedding.tobytes()
    pairs = run.predict(([0, 1, 2], [3, 4, 5])).score.tobytes()
    return metrics, vectors, pairs, run.predict_events(new).score.tobytes()


@pytest.mark.parametrize("frozen", ["streaming", "frozen"])
def test_evaluation_is_the_same(frozen: str) -> None:
    plain = fit(EVENTS, history=frozen, metric="MRR")
    cached = fit(
        EVENTS, history=frozen, metric="MRR", cache="next-use", cache_budget=0.1, cache_window=3,
        state="host",
    )  # fmt: skip
    assert outcome(plain) == outcome(cached)


def test_a_deferred_batch_needs_its_transfer() -> None:
    stream = Stream.open(EVENTS, (Part("train", 0, 80, 20),), History())
    settings = TrainSettings(cache="lru")
    stream = with_caches(stream, cache_settings(settings, stream, 6), "cpu")
    batch = stream.preparer.prepare(0, np.zeros((20, 1), np.int32))
    model = small_tgn(EVENTS)
    executor = EagerExecutor(model, NodeState(12, model.memory_width))
    with pytest.raises(TidegraphError, match="without its features"):
        executor.score(batch)


def test_a_budget_in_bytes_is_shared_by_all_tables() -> None:
    """120 x 2 features, 12 x 3 node features, and 12 x 2 x 6 of state, in float32."""
    stream = Stream.open(EVENTS, (Part("train", 0, 80, 20),), History())
    everything = 4 * (120 * 2 + 12 * 3 + 12 * 12)
    for state, total in (("host", everything), ("device", everything - 4 * 12 * 12)):
        half = TrainSettings(cache="lru", cache_budget=total / 2, state=state)
        found = cache_settings(half, stream, 6)
        assert found is not None
        assert found.share == 0.5
    more = cache_settings(TrainSettings(cache="lru", cache_budget=1e12), stream, 6)
    assert more is not None
    assert more.share == 1.0


def test_the_default_caches_on_a_gpu_only() -> None:
    stream = Stream.open(EVENTS, (Part("train", 0, 80, 20),), History())
    assert cache_settings(TrainSettings(), stream, 6) is None
    found = cache_settings(TrainSettings(device="cuda"), stream, 6)
    assert found is not None
    assert (found.policy, found.share, found.ahead) == ("next-use", 0.1, 64)
    assert cache_settings(TrainSettings(device="cuda", cache="none"), stream, 6) is None


@pytest.mark.parametrize(
    "wrong", [{"cache": "fifo"}, {"cache_budget": -1.0}, {"cache_window": -1}, {"state": "disk"}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        TrainSettings.of(wrong)


def test_the_meta_device_stands_for_a_gpu() -> None:
    """Everything a step reads leaves the host; the numbers of a host state's nodes stay too."""
    stream = Stream.open(EVENTS, (Part("train", 0, 80, 20),), History())
    caches = cache_settings(TrainSettings(cache="lru", cache_budget=0.5), stream, 6)
    stream = with_caches(stream, caches, "meta")
    assert stream.transfer is not None
    batch = stream.preparer.prepare(1, np.zeros((20, 1), np.int32))
    moved = stream.transfer.move(batch)
    assert moved.features.shape == (len(batch.event_E), 2)  # type: ignore[arg-type]
    assert moved.node_features is not None
    assert moved.node_features.shape == (len(batch.node_U), 3)
    for tensor in (moved.features, moved.node_features, moved.node_U, moved.root_R):
        assert tensor.device == torch.device("meta")
