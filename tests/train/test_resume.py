"""Killed anywhere and resumed, a run ends in the bits of the run that was left in peace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tidegraph as tg
from tidegraph.errors import CheckpointError, SettingError
from tidegraph.events import Events
from tidegraph.train import Run
from tidegraph.train import checkpoint as checkpoints
from tidegraph.train import trainer as trainers
from tidegraph.train.checkpoint import load_checkpoint
from tidegraph.train.run_files import RunFiles
from training import (
    BATCHES,
    TIMINGS,
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

EVENTS = chatter()
OPTIONS: dict[str, Any] = {"checkpoint_batches": 1}


def on_disk(directory: Path) -> dict[str, Any]:
    """Everything the run has written, to compare: checkpoints to the bit, timings left out."""
    found: dict[str, Any] = {}
    files = RunFiles(directory)
    for name, path in (("last", files.last), ("best", files.best)):
        checkpoint = load_checkpoint(path)
        for record in checkpoint.about["cursor"]["records"]:
            for timing in TIMINGS:
                del record[timing]
        found[name] = checkpoint.about
        for tensor in checkpoint.tensors:
            found[f"{name}.{tensor}"] = checkpoint.tensors[tensor].numpy().tobytes()
    lines = [json.loads(line) for line in files.metrics.read_text().splitlines()]
    found["metrics"] = [{k: v for k, v in line.items() if k not in TIMINGS} for line in lines]
    found["config"] = files.config.read_text().replace(str(directory), "<run>")
    found["files"] = sorted(
        str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()
    )
    return found


@pytest.fixture(scope="module")
def peace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    """The run that nothing happens to."""
    directory = tmp_path_factory.mktemp("peace") / "run"
    run = fit(EVENTS, directory, **OPTIONS)
    return run, on_disk(directory)


def test_the_best_epoch_is_neither_the_first_nor_the_last(peace):
    """Otherwise the tests below would not notice a best checkpoint that is lost or stale."""
    assert peace[0].best_epoch == 1


def check_equal(run: Run, directory: Path, peace: tuple[Run, dict[str, Any]]) -> None:
    assert outcome(run) == outcome(peace[0])
    assert on_disk(directory) == peace[1]
    part = held_out(EVENTS)
    assert run.evaluate(part).metrics == peace[0].evaluate(part).metrics


# ---------------------------------------------------------------- stopped at a batch


@pytest.mark.parametrize("batches", range(BATCHES))
def test_stopped_after_any_batch(tmp_path, peace, batches):
    """Training and validation batches of all epochs, in one run each."""
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path / "run", listener=StopAt(batches), **OPTIONS)
    run = fit(EVENTS, tmp_path / "run", resume=True, **OPTIONS)
    check_equal(run, tmp_path / "run", peace)


@pytest.mark.parametrize("options", [{"checkpoint_batches": 3}, {"checkpoint_seconds": 0.0}, {}])
def test_stopped_again_and_again(tmp_path, peace, options):
    """Whatever the rhythm of the checkpoints: each attempt gets a few batches further."""
    for attempt in range(40):
        try:
            run = fit(
                EVENTS, tmp_path / "run", resume=True, listener=StopAt(5 + attempt // 4), **options
            )
            break
        except Stopped:
            pass
    assert attempt > 1
    assert outcome(run) == outcome(peace[0])


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ({"layers": 2, "strategy": "uniform", "message": "mean", "time_code": "trainable"}, {}),
        ({"cell": "rnn", "visibility": "batch"}, {"clip": 0.5, "weight_decay": 0.1}),
        ({"inclusive": True}, {"history": "frozen", "metric": "MRR"}),
    ],
)
def test_every_kind_of_model_resumes(tmp_path, model, settings):
    options = {**OPTIONS, **settings}
    expected = fit(EVENTS, model=small_tgn(EVENTS, **model), hidden=0.1, **options)
    with pytest.raises(Stopped):
        fit(
            EVENTS, tmp_path, model=small_tgn(EVENTS, **model), hidden=0.1, listener=StopAt(9),
            **options,
        )  # fmt: skip
    run = fit(
        EVENTS, tmp_path, model=small_tgn(EVENTS, **model), hidden=0.1, resume=True, **options
    )
    assert outcome(run) == outcome(expected)


def test_a_model_that_draws_from_torch_resumes(tmp_path):
    """`nn.Dropout` uses PyTorch's generator, which no checkpoint holds."""

    def build() -> Forgetful:
        torch.manual_seed(1)
        return Forgetful(EVENTS.schema)

    expected = fit(EVENTS, model=build(), **OPTIONS)
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path, model=build(), listener=StopAt(9), **OPTIONS)
    torch.manual_seed(77)
    run = fit(EVENTS, tmp_path, model=build(), resume=True, **OPTIONS)
    assert outcome(run) == outcome(expected)


def test_what_the_model_has_become_in_memory_does_not_matter(tmp_path, peace):
    """The same process goes on after an error: the half-trained model is put back."""
    model = small_tgn(EVENTS)
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path / "run", model=model, listener=StopAt(8), checkpoint_batches=3)
    run = fit(EVENTS, tmp_path / "run", model=model, resume=True, **OPTIONS)
    check_equal(run, tmp_path / "run", peace)


# ---------------------------------------------------------------- stopped at a file


class Replace:
    """`os.replace` that dies, before or after it did its work, at the given call."""

    def __init__(self, call: int, after: bool) -> None:
        self.left, self.after, self.real = call, after, os.replace

    def __call__(self, source: Any, target: Any) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Stopped
        self.real(source, target)
        if self.left == 0:
            raise Stopped


@pytest.mark.parametrize("after", [False, True])
def test_stopped_at_any_file(tmp_path, peace, monkeypatch, after):
    """Before and after each file is put in place: between best and last, among others."""
    call, stopped = 0, True
    while stopped:
        call, directory = call + 1, tmp_path / f"run-{call}"
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", Replace(call, after))
            try:
                fit(EVENTS, directory, checkpoint_batches=2)
                stopped = False
            except Stopped:
                pass
        run = fit(EVENTS, directory, resume=True, **OPTIONS)
        assert outcome(run) == outcome(peace[0])
        assert not list(directory.rglob(".*.tmp"))
    assert call > 10


def test_stopped_between_best_and_last(tmp_path, peace, monkeypatch):
    """The best checkpoint is an epoch ahead of the last: the epoch is repeated, to the bit."""
    real = trainers.save_checkpoint

    def save(path: Path, checkpoint: Any) -> None:
        real(path, checkpoint)
        if path.name == "best.safetensors" and checkpoint.about["cursor"]["epoch"] == 1:
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(trainers, "save_checkpoint", save)
        with pytest.raises(Stopped):
            fit(EVENTS, tmp_path / "run", **OPTIONS)
    between = tg.load_run(tmp_path / "run")
    assert between.best_epoch == 1
    run = fit(EVENTS, tmp_path / "run", resume=True, **OPTIONS)
    check_equal(run, tmp_path / "run", peace)

    # With fewer epochs it would not be repeated, and the best one is gone.
    with monkeypatch.context() as patch:
        patch.setattr(trainers, "save_checkpoint", save)
        with pytest.raises(Stopped):
            fit(EVENTS, tmp_path / "other", **OPTIONS)
    with pytest.raises(CheckpointError, match=r"is of epoch 2, but .* resume with epochs at least"):
        fit(EVENTS, tmp_path / "other", resume=True, epochs=1, **OPTIONS)


def test_stopped_while_a_checkpoint_is_half_written(tmp_path, peace, monkeypatch):
    real, count = checkpoints.save_file, [0]

    def half(tensors: Any, path: Path, metadata: Any) -> None:
        real(tensors, path, metadata)
        count[0] += 1
        if count[0] == 7:
            os.truncate(path, os.path.getsize(path) // 2)
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_file", half)
        with pytest.raises(Stopped):
            fit(EVENTS, tmp_path / "run", **OPTIONS)
    assert len(list((tmp_path / "run").rglob(".*.tmp"))) == 1
    run = fit(EVENTS, tmp_path / "run", resume=True, **OPTIONS)
    check_equal(run, tmp_path / "run", peace)


def test_stopped_within_a_line_of_metrics(tmp_path, peace):
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path / "run", listener=StopAt(8), **OPTIONS)
    metrics = RunFiles(tmp_path / "run").metrics
    metrics.write_text(metrics.read_text()[:-20])
    run = fit(EVENTS, tmp_path / "run", resume=True, **OPTIONS)
    check_equal(run, tmp_path / "run", peace)


def test_a_full_disk_stops_the_run_and_it_resumes(tmp_path, peace, monkeypatch):
    """At each checkpoint in turn; there is never a temporary file left."""
    real = checkpoints.save_file
    for failing in (1, 4, 5, 6, 11):
        directory, count = tmp_path / f"run-{failing}", [0]

        def full(*arguments: Any, limit: int = failing, count: list[int] = count) -> None:
            count[0] += 1
            if count[0] == limit:
                raise OSError(28, "No space left on device")
            real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "save_file", full)
            with pytest.raises(CheckpointError, match="No space left on device"):
                fit(EVENTS, directory, **OPTIONS)
        assert not list(directory.rglob(".*.tmp"))
        assert outcome(fit(EVENTS, directory, resume=True, **OPTIONS)) == outcome(peace[0])


# ---------------------------------------------------------------- complete, and longer


def test_a_complete_run_returns_at_once(tmp_path, peace):
    fit(EVENTS, tmp_path / "run", **OPTIONS)
    files = RunFiles(tmp_path / "run")
    files.append_evaluation("test", {"AP": 0.5})
    before, diary = files.metrics.read_text(), Diary()
    run = fit(EVENTS, tmp_path / "run", resume=True, listener=diary, **OPTIONS)
    assert outcome(run) == outcome(peace[0])
    assert diary.starts == []
    assert diary.said == ["training is complete already"]
    assert files.metrics.read_text() == before


@pytest.mark.parametrize("short", [1, 2])
def test_more_epochs_continue_the_run(tmp_path, peace, short):
    """Trained for less and then longer equals trained for long at once."""
    first = fit(EVENTS, tmp_path / "run", epochs=short, **OPTIONS)
    assert len(first.records) == short
    run = fit(EVENTS, tmp_path / "run", resume=True, epochs=3, **OPTIONS)
    check_equal(run, tmp_path / "run", peace)
    assert tg.load_run(tmp_path / "run").settings.epochs == 3


def test_fewer_epochs_than_done_return_the_best(tmp_path, peace):
    fit(EVENTS, tmp_path / "run", **OPTIONS)
    run = fit(EVENTS, tmp_path / "run", resume=True, epochs=1, **OPTIONS)
    assert outcome(run) == outcome(peace[0])


def test_patience_may_be_raised_after_an_early_stop(tmp_path):
    """AP does not grow for ever: with patience 1 training stops, with 3 it goes on."""
    settings = {"epochs": 8, "learning_rate": 0.014, **OPTIONS}
    long = fit(EVENTS, tmp_path / "long", patience=3, **settings)
    short = fit(EVENTS, tmp_path / "run", patience=1, **settings)
    assert len(short.records) < len(long.records)
    run = fit(EVENTS, tmp_path / "run", patience=3, resume=True, **settings)
    assert outcome(run) == outcome(long)


def test_early_stopping_survives_a_stop(tmp_path):
    settings = {"epochs": 8, "learning_rate": 0.014, "patience": 2, **OPTIONS}
    expected = fit(EVENTS, **settings)
    assert len(expected.records) < 8
    for batches in (7, 14, 19):
        assert batches < 6 * len(expected.records)
        directory = tmp_path / str(batches)
        with pytest.raises(Stopped):
            fit(EVENTS, directory, listener=StopAt(batches), **settings)
        assert outcome(fit(EVENTS, directory, resume=True, **settings)) == outcome(expected)


def test_training_longer_forgets_where_the_shorter_run_was_left(tmp_path):
    """What `Run.save` kept belongs to other weights; a resume that trains nothing keeps it."""
    run = fit(EVENTS, tmp_path, epochs=1, **OPTIONS)
    run.evaluate(held_out(EVENTS), advance=True)
    run.save()
    fit(EVENTS, tmp_path, epochs=1, resume=True, **OPTIONS)
    assert tg.load_run(tmp_path, at="stream").stream.stop == len(EVENTS)
    longer = fit(EVENTS, tmp_path, epochs=3, resume=True, **OPTIONS)
    assert outcome(tg.load_run(tmp_path, at="stream")) == outcome(longer)


def test_resume_without_anything_to_resume_starts(tmp_path, peace):
    run = fit(EVENTS, tmp_path / "run", resume=True, **OPTIONS)
    check_equal(run, tmp_path / "run", peace)


# ---------------------------------------------------------------- refused


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in the middle of its second epoch, its best checkpoint written."""
    directory = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stopped):
        fit(EVENTS, directory, listener=StopAt(8), **OPTIONS)
    return directory


def resume(directory: Path, events: Events = EVENTS, **options: Any) -> Run:
    return fit(events, directory, resume=True, **{**OPTIONS, **options})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"learning_rate": 0.5}, r"other training settings: .*\{'learning_rate': 0.012\}.*0.5"),
        ({"seed": 3}, r"other training settings: .*\{'seed': 0\}.*\{'seed': 3\}"),
        ({"batch_size": 10}, "other training settings.*batch_size"),
        ({"metric": "AUC"}, "other training settings.*'AP'.*'AUC'"),
        ({"candidates": 9}, "other training settings.*candidates"),
        ({"split": {"val": 0.3}}, "another split: .*parts"),
        ({"hidden": 0.2}, "another split: .*parts"),
    ],
)
def test_other_settings_and_splits_are_refused(stopped, settings, named):
    with pytest.raises(CheckpointError, match=named):
        resume(stopped, **settings)


def test_another_model_is_refused(stopped):
    with pytest.raises(CheckpointError, match=r"another model.*'memory': 6.*'memory': 8"):
        resume(stopped, model=small_tgn(EVENTS, memory=8))
    with pytest.raises(CheckpointError, match=r"another model.*'tgn'.*'Forgetful'"):
        resume(stopped, model=Forgetful(EVENTS.schema))


def test_other_data_is_refused(stopped):
    time = EVENTS.time.copy()
    time[-1] += 1
    other = Events.from_arrays(
        EVENTS.source, EVENTS.target, time, features=EVENTS.features, num_nodes=12, bipartite=False
    )
    with pytest.raises(CheckpointError, match="other data"):
        resume(stopped, other)
    with pytest.raises(CheckpointError, match=r"data of another shape.*'event_features': 2"):
        resume(stopped, chatter(features=3))


def test_other_hidden_nodes_are_refused(tmp_path):
    """The same share drawn with another seed: equal borders, another split."""
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path, hidden=0.2, listener=StopAt(2), **OPTIONS)
    with pytest.raises(CheckpointError, match="another split"):
        resume(tmp_path, hidden=0.2, split={"seed": 5})
    assert len(resume(tmp_path, hidden=0.2).records) == 3


@pytest.mark.parametrize("which", ["last", "best"])
@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_checkpoint_is_named_before_training_goes_on(tmp_path, stopped, which, damage):
    shutil.copytree(stopped, tmp_path / "run")
    path = getattr(RunFiles(tmp_path / "run"), which)
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        del content[len(content) // 2 :]
    else:
        content[-3] ^= 1
    path.write_bytes(content)
    diary = Diary()
    with pytest.raises(CheckpointError, match=rf"{which}\.safetensors is .*damaged"):
        resume(tmp_path / "run", listener=diary)
    assert diary.starts == []


def test_a_missing_best_checkpoint_is_missed_at_once(tmp_path, stopped):
    shutil.copytree(stopped, tmp_path / "run")
    RunFiles(tmp_path / "run").best.unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*best"):
        resume(tmp_path / "run")


def test_a_refused_resume_changes_nothing(stopped):
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError):
        resume(stopped, seed=9)
    with pytest.raises(SettingError, match="already holds a run"):
        fit(EVENTS, stopped, **OPTIONS)
    assert before == {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}


def test_resume_needs_a_directory():
    with pytest.raises(SettingError, match=r"resume=True needs the directory"):
        fit(EVENTS, resume=True)


# ---------------------------------------------------------------- SIGKILL


def kill_and_resume(*options: str) -> str:
    script = Path(__file__).parents[2] / "scripts" / "kill_and_resume.py"
    done = subprocess.run(
        [sys.executable, str(script), *options], capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("training", [{}, {"prepare_threads": 2, "staleness": 2}])
def test_sigkill_at_random_moments(training):
    """Processes of their own, no test double anywhere: the command that measures real data."""
    said = kill_and_resume(
        "--data", "synthetic:wikipedia", "--scale", "0.01", "--kills", "4", "--epochs", "2",
        "--batch-size", "50", "--checkpoint-batches", "3", "--threads", "1",
        "--model", json.dumps({"memory": 16, "time": 8, "embedding": 16, "neighbors": 5}),
        "--training", json.dumps(training),
    )  # fmt: skip
    assert said.count("killed") == 4
    assert "4 kills" in said
    assert "equal bit for bit" in said


@pytest.mark.slow
@pytest.mark.skipif("TIDEGRAPH_DATA" not in os.environ, reason="needs TIDEGRAPH_DATA (CollegeMsg)")
def test_sigkill_at_twenty_random_moments_on_real_data():
    said = kill_and_resume("--data", "uci", "--kills", "20", "--epochs", "3")
    assert "20 kills" in said
    assert "equal bit for bit" in said


def test_the_comparison_can_fail(tmp_path):
    """A single other bit in a checkpoint is seen by `on_disk`, which the tests above rely on."""
    fit(EVENTS, tmp_path / "run", epochs=1, **OPTIONS)
    before = on_disk(tmp_path / "run")
    path = RunFiles(tmp_path / "run").best
    checkpoint = load_checkpoint(path)
    memory = checkpoint.tensors["state.memory"].numpy().view(np.int32)
    memory[-1, -1] ^= 1
    checkpoints.save_checkpoint(path, checkpoint)
    after = on_disk(tmp_path / "run")
    assert [name for name in before if before[name] != after[name]] == ["best.state.memory"]
