"""Training with stored types: near float32, equal where decoding is equal, kept with the run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tidegraph as tg
import tiny
from tidegraph.batches import History
from tidegraph.errors import CheckpointError, InputError, SettingError
from tidegraph.events import Events
from tidegraph.features import FEATURE_TYPES, FeatureStore
from tidegraph.train import TrainSettings
from tidegraph.train.stream import Part, Stream
from training import Diary, StopAt, Stopped, chatter, fit, held_out, outcome

EVENTS = chatter()
ENCODED = [name for name in FEATURE_TYPES if name != "float32"]


def with_features(events: Events, table: np.ndarray) -> Events:
    """The same events with other features."""
    return Events.from_arrays(
        events.source, events.target, events.time, features=table,
        num_nodes=events.schema.num_nodes, bipartite=False,
    )  # fmt: skip


def decoded(events: Events, dtype: str, fit_rows: int | None = None) -> Events:
    """The events with the features that a store of this type gives back."""
    store = FeatureStore.of(events.features, dtype, fit=fit_rows)
    return with_features(events, store.rows(np.arange(len(events))).numpy())


# ---------------------------------------------------------------- preparation


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("dtype", FEATURE_TYPES)
def test_a_batch_names_the_decoded_rows_of_its_events(dtype: str, compact: bool) -> None:
    stream = tiny.random_stream(0, 60, node_feature_width=3)
    history = History(neighbors=(3, 2), message="mean")
    plain = tiny.preparer(stream, history, 15)
    features = FeatureStore.of(stream.features, dtype)
    nodes = FeatureStore.of(stream.node_features, dtype)
    prep = dataclasses.replace(plain, features=features, node_features=nodes, compact=compact)
    every = features.rows(np.arange(60))
    for number in range(4):
        negative_BC = tiny.negatives(prep, number)
        batch = prep.prepare(number, negative_BC)
        expected = plain.prepare(number, negative_BC)
        assert batch.features.dtype in (torch.float32, torch.bfloat16)
        for hop, other in zip(batch.hops, expected.hops, strict=True):
            used = torch.arange(hop.event_SK.shape[1]) < hop.count_S[:, None]
            rows = batch.features[hop.event_SK.long()].float()
            assert torch.equal(rows[used], every[other.event_SK.long()][used])
        assert batch.mail is not None
        assert expected.mail is not None
        rows = batch.features[batch.mail.event_L.long()].float()
        assert torch.equal(rows, every[expected.mail.event_L.long()])
        assert torch.equal(batch.node_features, nodes.rows(batch.node_U.numpy()))
        in_place = dtype in ("float32", "bfloat16") and not compact
        assert (batch.features is features.table) == in_place


# ---------------------------------------------------------------- training


@pytest.mark.parametrize("dtype", ENCODED)
def test_a_run_equals_the_one_on_decoded_features(dtype: str) -> None:
    """Bit for bit: where a row is decoded is of no consequence."""
    train, _, _ = EVENTS.split(val=0.2, test=0.13, ties="row")
    plain = fit(decoded(EVENTS, dtype, train.stop))
    stored = fit(EVENTS, feature_type=dtype)
    assert outcome(stored) == outcome(plain)
    assert outcome(stored) != outcome(fit(EVENTS))  # the type has an effect
    before, after = (run.evaluate(held_out(run.events)) for run in (plain, stored))
    assert before.metrics == after.metrics


def test_losses_on_synthetic_wikipedia_stay_close() -> None:
    """172 features; a few batches. int8 is the coarsest: a 510th of a column's range."""
    events = tg.load_dataset("synthetic:wikipedia:0.02")
    assert events.schema.event_features == 172
    losses = {}
    for dtype in FEATURE_TYPES:
        model = tg.models.TGN(events.schema, memory=16, time=8, embedding=16, neighbors=5)
        train, val, _ = events.split()
        trainer = tg.Trainer(model, epochs=1, candidates=0, batch_size=200, feature_type=dtype)
        losses[dtype] = trainer.fit(train, val).records[0].loss
    for dtype in ENCODED:
        assert losses[dtype] != losses["float32"]
        assert losses[dtype] == pytest.approx(losses["float32"], rel=2e-3)


def test_what_is_stored_is_said_once() -> None:
    diary = Diary()
    fit(EVENTS, listener=diary, feature_type="int8")
    said = [line for line in diary.said if line.startswith("stored ")]
    assert len(said) == 1
    assert said[0].startswith("stored    event features as int8, each value within half a 255th")
    diary = Diary()
    fit(EVENTS, listener=diary)
    assert not any(line.startswith("stored ") for line in diary.said)


def test_a_value_that_does_not_fit_ends_training_before_it_starts(tmp_path: Path) -> None:
    features = np.array(EVENTS.features)
    features[100, 1] = 1e5
    with pytest.raises(InputError, match=r"is 100000 in row 100 .from 0.: float16 holds"):
        fit(with_features(EVENTS, features), tmp_path / "run", feature_type="float16")
    assert not (tmp_path / "run").exists()


def test_an_unknown_type_is_a_setting_error() -> None:
    with pytest.raises(SettingError, match="setting feature_type='float8'"):
        TrainSettings.of({"feature_type": "float8"})


# ---------------------------------------------------------------- a run keeps its type


@pytest.mark.parametrize("dtype", ENCODED)
def test_stopped_and_resumed(tmp_path: Path, dtype: str) -> None:
    options: dict[str, Any] = {"feature_type": dtype, "checkpoint_batches": 1}
    expected = fit(EVENTS, **options)
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path / "run", listener=StopAt(8), **options)
    with pytest.raises(CheckpointError, match="'feature_type': 'float32'"):
        fit(EVENTS, tmp_path / "run", resume=True, checkpoint_batches=1)
    run = fit(EVENTS, tmp_path / "run", resume=True, **options)
    assert outcome(run) == outcome(expected)
    assert f"feature_type: {dtype}" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.parametrize("dtype", ENCODED)
def test_a_loaded_run_evaluates_and_predicts_as_before(tmp_path: Path, dtype: str) -> None:
    known, later = chatter(), chatter(count=140)
    run = fit(known, tmp_path / "run", feature_type=dtype)
    loaded = tg.load_run(tmp_path / "run")
    assert loaded.stream.preparer.features.dtype == dtype
    part = held_out(known)
    assert loaded.evaluate(held_out(loaded.events)).metrics == run.evaluate(part).metrics
    new = Events.from_arrays(
        later.source[:20], later.target[:20], later.time[:20] + known.time[-1],
        features=later.features[:20] * 50, num_nodes=12, bipartite=False,
    )  # fmt: skip
    assert new.features is not None
    before = run.stream.preparer.features.rows(np.arange(120))
    scores = [one.predict_events(new).score for one in (run, loaded)]
    assert np.array_equal(*scores)
    # Values far beyond the range seen in training leave every earlier row as it was.
    assert torch.equal(run.stream.preparer.features.rows(np.arange(120)), before)
    assert run.stream.preparer.features.dtype == dtype


def test_int8_ranges_are_those_of_the_first_part() -> None:
    """No look-ahead through a range: later features may grow as they like."""
    history = History(neighbors=(3,))
    parts = (Part("train", 0, 80, 20), Part("val", 80, 120, 20))
    features = np.array(EVENTS.features)
    features[80:] *= 100
    grown = with_features(EVENTS, features)
    stores = [
        Stream.open(events, parts, history, feature_type="int8").preparer.features
        for events in (EVENTS, grown)
    ]
    assert torch.equal(stores[0].table[:80], stores[1].table[:80])
    assert np.array_equal(stores[0].scale_F, stores[1].scale_F)
    assert stores[1].clipped > stores[0].clipped
