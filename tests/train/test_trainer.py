"""The loop: the same bits twice, the best epoch kept, and clear words where it cannot go on."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import pytest
import torch

import tidegraph as tg
from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
from tidegraph.errors import SettingError
from tidegraph.events import Events
from tidegraph.models.base import TemporalModel
from tidegraph.ops import link_loss
from tidegraph.state import NodeState
from tidegraph.train import EagerExecutor, Listener, Trainer, TrainSettings
from tidegraph.train import trainer as trainers
from tidegraph.train.adam import Adam
from tidegraph.train.run_files import RunFiles
from tidegraph.train.stream import Stream, part_of
from training import SETTINGS, Diary, Forgetful, chatter, fit, held_out, outcome, small_tgn, weights

EVENTS = chatter()


# ---------------------------------------------------------------- determinism


def test_two_runs_are_equal_bit_for_bit(tmp_path):
    """Losses, weights, state and metrics; on disk or in memory, watched or not."""
    diaries = Diary(), Diary()
    one = fit(EVENTS, listener=diaries[0])
    other = fit(EVENTS, tmp_path, listener=diaries[1], checkpoint_seconds=0.0)
    assert diaries[0].losses == diaries[1].losses
    assert outcome(one) == outcome(other)
    assert one.evaluate(held_out(EVENTS)).metrics == other.evaluate(held_out(EVENTS)).metrics


def test_another_seed_differs():
    """Of the training (negatives, dropout), and of the initial weights."""
    one = fit(EVENTS)
    assert outcome(fit(EVENTS, seed=1))["weights"] != outcome(one)["weights"]
    assert outcome(fit(EVENTS, model=small_tgn(EVENTS, seed=1)))["weights"] != weights(one.model)


def test_the_state_of_torchs_generator_is_neither_used_nor_changed():
    torch.manual_seed(5)
    one = fit(EVENTS, model=Forgetful(EVENTS.schema))
    after = torch.rand(1)
    torch.manual_seed(5)
    model = Forgetful(EVENTS.schema)
    before = torch.rand(1)
    torch.manual_seed(6)
    assert outcome(fit(EVENTS, model=model)) == outcome(one)
    assert torch.equal(before, after)


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="kernels have one thread here")
@pytest.mark.parametrize("settings", [{}, {"layers": 2, "strategy": "uniform", "message": "mean"}])
def test_the_number_of_kernel_threads_changes_nothing(settings):
    """In batches large enough for every kernel to be divided among threads."""
    events, found = chatter(1500, 60), []
    for threads in (1, numba.config.NUMBA_NUM_THREADS):
        before = numba.get_num_threads()
        numba.set_num_threads(threads)
        try:
            model = small_tgn(events, **settings)
            found.append(outcome(fit(events, model=model, batch_size=400, epochs=1)))
        finally:
            numba.set_num_threads(before)
    assert found[0] == found[1]


# ---------------------------------------------------------------- what an epoch is


def by_hand(model: TemporalModel, epochs: int) -> tuple[NodeState, list[float]]:
    """Training written out: reset, then batch after batch; returns end-of-training state."""
    train, val, _ = EVENTS.split(val=0.2, test=0.13, ties="row")
    parts = (part_of(train, 20), part_of(val, 12))
    stream = Stream.open(EVENTS, parts, model.history)
    met = np.unique(train.target)
    negatives = NegativeSampler(EVENTS, NegativeSettings(), nodes=met)
    optimizer = Adam(model.named_parameters(), learning_rate=SETTINGS["learning_rate"])
    state, losses = NodeState(12, model.memory_width), []
    for epoch in range(epochs):
        state = NodeState(12, model.memory_width)
        total = 0.0
        for number in stream.phase("train").batches:
            event_B = stream.plan.events(number)
            batch = stream.preparer.prepare(
                number, negatives.draw_at(event_B, epoch=epoch), epoch=epoch
            )
            logit_BC, encoded = model(batch, *state.read(batch))
            optimizer.zero_grad()
            loss = link_loss(logit_BC)
            loss.backward()
            optimizer.step()
            state.write(batch, encoded.memory_UD)
            total += float(loss.detach()) * len(event_B)
        losses.append(total / len(train))
    return state, losses


def test_training_is_the_loop_written_out():
    """Each epoch starts from an empty state (pitfall 15) and sees every event once."""
    epochs = 3
    run = fit(EVENTS, epochs=epochs)
    model = small_tgn(EVENTS)
    state, losses = by_hand(model, epochs)
    assert [record.loss for record in run.records] == losses
    best = small_tgn(EVENTS)
    by_hand(best, run.best_epoch + 1)
    assert weights(run.model) == weights(best)
    assert state.version == 4


def test_each_training_event_is_told_once_and_the_last_one_too():
    """Case I58: 80 training events in batches of 33 are 33, 33 and 14."""
    told: list[tuple[str, int]] = []

    class Count(Listener):
        phase = ""

        def started(self, phase: str, epoch: int | None, events: int) -> None:
            self.phase = phase

        def advanced(self, events: int, loss: float | None) -> None:
            told.append((self.phase, events))

    fit(EVENTS, epochs=1, batch_size=33, evaluation_batch_size=20, listener=Count())
    assert told == [("train", 33), ("train", 33), ("train", 14), ("val", 20), ("val", 4)]


def test_a_resumed_epoch_announces_what_is_left(tmp_path):
    from training import StopAt, Stopped

    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path, listener=StopAt(3), checkpoint_batches=1)
    diary = Diary()
    fit(EVENTS, tmp_path, resume=True, listener=diary, checkpoint_batches=1)
    assert diary.said == ["resuming at epoch 1, batch 4"]
    assert diary.starts[:3] == [("train", 0, 20), ("val", None, 24), ("train", 1, 80)]


# ---------------------------------------------------------------- the best epoch


@pytest.mark.parametrize("metric", ["AP", "AUC", "MRR"])
def test_the_best_epoch_is_kept_and_training_stops(metric):
    run = fit(EVENTS, metric=metric, epochs=12, patience=2, learning_rate=0.03)
    values = [record.metrics[metric] for record in run.records]
    assert run.best_epoch == int(np.argmax(values))
    assert len(values) == run.best_epoch + 3 < 12
    again = fit(EVENTS, metric=metric, epochs=run.best_epoch + 1, patience=0, learning_rate=0.03)
    assert weights(again.model) == weights(run.model)
    assert again.state.checksum() == run.state.checksum()


def test_patience_zero_never_stops():
    run = fit(EVENTS, epochs=7, patience=0, learning_rate=0.015)
    assert len(run.records) == 7
    assert run.best_epoch < 5  # patience 1 would have stopped it


def test_equal_epochs_keep_the_first(monkeypatch):
    """No progress is no improvement."""
    real = trainers.evaluate

    def constant(*arguments: Any, **named: Any) -> Any:
        from dataclasses import replace

        found = real(*arguments, **named)
        same = tuple(replace(metric, value=0.5) for metric in found.metrics)
        return replace(found, metrics=tg.train.metrics.Metrics(same))

    monkeypatch.setattr(trainers, "evaluate", constant)
    run = fit(EVENTS, epochs=9, patience=3)
    assert (run.best_epoch, len(run.records)) == (0, 4)


def test_records_tell_loss_metrics_and_protocol(tmp_path):
    run = fit(EVENTS, tmp_path, hidden=0.2)
    record = run.records[1]
    assert record.epoch == 1
    assert 0 < record.loss < 2
    assert set(record.metrics) == {"AP", "AUC", "AP (all events)", "AUC (all events)"}
    assert "1 random destination per positive" in record.protocols["AP"]
    assert "averaged over batches of 12, transductive, streaming history" in record.protocols["AP"]
    assert record.events_per_second > 0
    assert {"prepare", "forward", "backward", "optimizer", "write"} <= set(record.stages)
    assert RunFiles(tmp_path).read_records() == run.records


def test_undefined_figures_are_null_on_disk_and_nan_in_python(tmp_path):
    """No validation event touches the hidden node: the inductive figures do not exist."""
    source, target = EVENTS.source.copy(), EVENTS.target.copy()
    source[:110], target[:110] = source[:110] % 11, target[:110] % 11
    source[110:], target[110:] = 11, 11
    events = Events.from_arrays(source, target, EVENTS.time, num_nodes=12, bipartite=False)
    train, val, _ = events.split(val=0.2, test=0.13, ties="row")
    hidden = np.arange(12) == 11
    train = type(train)(events, train.start, train.stop, "train", hidden)
    trainer = Trainer(small_tgn(events), directory=tmp_path, **{**SETTINGS, "epochs": 1})
    run = trainer.fit(train, val)
    assert math.isnan(run.records[0].inductive["AP"])
    assert "NaN" not in RunFiles(tmp_path).metrics.read_text()
    assert math.isnan(tg.load_run(tmp_path).records[0].inductive["AP"])


# ---------------------------------------------------------------- training that breaks down


def test_a_loss_that_is_no_number_stops_with_advice(tmp_path):
    with pytest.raises(SettingError) as error:
        fit(EVENTS, tmp_path, learning_rate=1e30)
    assert "the loss became nan at epoch 1, batch" in str(error.value)
    assert "try a learning_rate below 1e+30, or clip=1.0" in str(error.value)
    assert not RunFiles(tmp_path).last.exists()


def test_scores_that_are_no_numbers_stop_with_advice():
    """The last step of an epoch may break the weights: validation is the first to see it."""

    class Breaking(Forgetful):
        def encode(self, batch: Any, *vectors: Any) -> Any:
            encoded = super().encode(batch, *vectors)
            if not self.training:
                encoded.seed_SD.fill_(math.nan)
            return encoded

    with pytest.raises(
        SettingError, match=r"scores of events 80 to 91 are not all finite"
    ) as error:
        fit(EVENTS, model=Breaking(EVENTS.schema))
    assert "lower learning_rate" in str(error.value)


def test_a_metric_without_a_value_stops(monkeypatch):
    real = trainers.evaluate

    def undefined(*arguments: Any, **named: Any) -> Any:
        from dataclasses import replace

        found = real(*arguments, **named)
        bad = tuple(
            replace(metric, value=math.nan, undefined="all 24 labels are positive")
            for metric in found.metrics
        )
        return replace(found, metrics=tg.train.metrics.Metrics(bad))

    monkeypatch.setattr(trainers, "evaluate", undefined)
    with pytest.raises(SettingError, match=r"validation has no AP .*: all 24 labels are positive"):
        fit(EVENTS)


# ---------------------------------------------------------------- refused before it starts


def test_ranges_must_follow_each_other():
    train, val, test = EVENTS.split(val=0.2, test=0.13, ties="row")
    other = chatter(60).split(val=0.2, test=0.13).val
    trainer = Trainer(small_tgn(EVENTS), **SETTINGS)
    for ranges, named in (
        ((train, test), "train ends at event 80, val starts at 104"),
        ((train, other), "ranges of the same events"),
        ((EVENTS.range(0, 0), EVENTS.range(0, 9)), "the training range has no events"),
        ((train, EVENTS.range(80, 80)), "the validation range has no events"),
    ):
        with pytest.raises(SettingError, match=named):
            trainer.fit(*ranges)
    assert len(trainer.fit(train, val).records) == 3


def test_a_model_built_for_other_features_is_refused():
    with pytest.raises(SettingError, match="built for 3 event features, the data has 2"):
        fit(EVENTS, model=small_tgn(chatter(features=3)))


def test_there_is_no_shuffle():
    """Case I61: events are streamed in the order of time; nothing may ask for another."""
    with pytest.raises(SettingError, match="unknown training setting 'shuffle'"):
        Trainer(small_tgn(EVENTS), shuffle=True)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"epochs": 0}, "epochs=0"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
        ({"metric": "accuracy"}, "metric='accuracy'.*'AP', 'AUC' or 'MRR'"),
        ({"metric": "MRR", "candidates": 0}, "candidates=0.*MRR"),
        ({"device": "gpu"}, "device='gpu'.*expected cpu, cuda"),
        ({"device": "meta"}, "device='meta'.*expected cpu, cuda"),
        ({"learning_rate": float("inf")}, "learning_rate=inf"),
        ({"batch_size": 2**70}, "batch_size=1180591620717411303424"),
        ({"candidates": 2**40}, "candidates=1099511627776"),
        ({"seed": 2**64}, "seed=18446744073709551616"),  # would be seed 0 again
        ({"learning_rates": 1}, "unknown training setting 'learning_rates'"),
    ],
)
def test_bad_settings_are_named(settings, named):
    with pytest.raises(SettingError, match=named):
        Trainer(small_tgn(EVENTS), **settings)


def test_a_device_that_is_not_there_is_named():
    absent = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(SettingError, match=f"device='{absent}': PyTorch sees"):
        fit(EVENTS, device=absent)


def test_a_model_that_could_not_be_built_again_is_refused_on_disk(tmp_path):
    class Odd(Forgetful):
        def __init__(self, schema: Any, table: Any) -> None:
            super().__init__(schema)

    model = Odd(EVENTS.schema, np.ones(3))
    with pytest.raises(SettingError, match=r"Odd was built with table=array.*plain value"):
        fit(EVENTS, tmp_path, model=model)
    assert len(fit(EVENTS, model=model).records) == 3


def test_a_directory_that_holds_a_run_is_not_written_over(tmp_path):
    fit(EVENTS, tmp_path)
    before = RunFiles(tmp_path).last.read_bytes()
    with pytest.raises(SettingError, match=r"already holds a run: go on with it by .*resume=True"):
        fit(EVENTS, tmp_path)
    assert RunFiles(tmp_path).last.read_bytes() == before


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        tg.errors.CheckpointError, match=r"cannot create .*choose another directory"
    ):
        fit(EVENTS, tmp_path / "file" / "run")


# ---------------------------------------------------------------- settings


def test_settings_come_as_an_object_or_by_name():
    base = TrainSettings(batch_size=50)
    assert Trainer(small_tgn(EVENTS), base, epochs=2).settings.batch_size == 50
    assert Trainer(small_tgn(EVENTS), base, batch_size=7).settings.batch_size == 7


def test_clipping_and_weight_decay_have_an_effect():
    plain = outcome(fit(EVENTS, epochs=1))["weights"]
    assert outcome(fit(EVENTS, epochs=1, clip=0.01))["weights"] != plain
    assert outcome(fit(EVENTS, epochs=1, weight_decay=0.5))["weights"] != plain


def test_training_negatives_are_destinations_that_training_knows(monkeypatch):
    """A destination that only comes later would be a negative by its newness alone."""
    drawn: list[np.ndarray] = []
    real = EagerExecutor.train

    def watch(self: EagerExecutor, batch: Any) -> float:
        B = batch.size
        root_R = batch.root_R.numpy()[2 * B :]
        hop = batch.hops[-1]
        drawn.append(batch.node_U.numpy()[hop.self_S.numpy()[root_R]])
        return real(self, batch)

    monkeypatch.setattr(EagerExecutor, "train", watch)
    source = np.arange(100) % 5
    target = 5 + np.where(np.arange(100) < 67, np.arange(100) % 3, np.arange(100) % 6)
    events = Events.from_arrays(source, target, np.arange(100), num_nodes=11, num_sources=5)
    fit(events, epochs=2)
    assert set(np.concatenate(drawn).tolist()) == {5, 6, 7}
