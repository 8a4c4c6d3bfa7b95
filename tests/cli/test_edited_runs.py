"""A run's files changed by hand: one message that names the file, the key and the value."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

from command import Result, cli
from tidegraph.train.checkpoint import Checkpoint, save_checkpoint

Trained = tuple[Path, dict[str, Any]]


@pytest.fixture
def run(trained: Trained, here: Path) -> Path:
    return Path(shutil.copytree(trained[0], here / "run"))


def _every_command(run: Path) -> dict[str, Result]:
    Path("pairs.csv").write_text("user,item\nu0,a\n")
    return {
        "evaluate": cli("evaluate", run),
        "predict": cli("predict", run, "--pairs", "pairs.csv"),
        "embed": cli("embed", run),
        "resume": cli("train", "--resume", run),
        "config": cli("train", "--config", run / "config.yaml", "--out", "again"),
    }


def _refused(result: Result, *messages: str) -> None:
    assert result.code == 2, result.out + result.err
    assert result.err.startswith("error: "), result.err
    assert result.err.count("\n") == 1, result.err
    for message in messages:
        assert message in result.err


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("data.split", 5, "data.split=5: expected keys and values"),
        ("data.columns", ["a"], "data.columns=['a']: expected keys and values"),
        ("data.store", 5, "data.store=5: expected a valid string"),
        ("data.store", None, "data needs 'store' (a directory of events) or 'dataset' (a name)"),
        ("data.file", 5, "data.file=5: expected a valid string"),
        ("data.test", "x", "data.test='x': expected a valid list"),
        ("data.test", [1, 2, 3], "data.test=[1, 2, 3]"),
        ("data.test", [1.5, 3], "data.test.0=1.5: expected a valid integer"),
        ("data.test", [120, 102], "test=[120, 102]: expected a start and a stop"),
        ("data.tset", 5, "unknown key 'data.tset' (did you mean 'test'?)"),
        ("data.fingerprint", 5, "data.fingerprint=5: expected a valid string"),
        ("model.name", 5, "model.name=5: expected a valid string"),
        ("model.settings", 5, "model.settings=5: expected keys and values"),
        ("model.settings.memory", "x", "memory"),
        ("training.epochs", "x", "training.epochs='x': expected a valid integer"),
        ("training.epoch", 5, "unknown key 'training.epoch' (did you mean 'epochs'?)"),
        ("parts", 5, "parts=5: expected a valid list"),
        ("trainning", {}, "unknown key 'trainning' (did you mean 'training'?)"),
        ("training.device", "x" * 100_000, "... (100,000 characters)"),
    ],
)
def test_a_value_that_cannot_be_is_named_by_every_command(
    run: Path, place: str, value: Any, message: str
) -> None:
    _edit(run, place, value)
    for command, result in _every_command(run).items():
        _refused(result, f"{run / 'config.yaml'}: ", message)
        assert "xxxx" * 100 not in result.err, command


@pytest.mark.parametrize("place", ["model.name", "model.settings", "training", "data"])
def test_a_missing_key_is_named_by_every_command(run: Path, place: str) -> None:
    config = _read(run)
    *above, last = place.split(".")
    inner = config
    for key in above:
        inner = inner[key]
    del inner[last]
    _write(run, config)
    for result in _every_command(run).values():
        _refused(result, f"config.yaml: key {place!r} is missing")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("data.split.val", "x", "data.split.val='x'"),
        ("data.split.vall", 0.1, "unknown key 'data.split.vall' (did you mean 'val'?)"),
        ("data.columns.features", 5, "data.columns.features=5"),
        ("data.columns.sauce", "x", "unknown key 'data.columns.sauce' (did you mean 'source'?)"),
    ],
)
def test_columns_and_the_split_are_checked_like_flags(
    run: Path, place: str, value: Any, message: str
) -> None:
    _edit(run, place, value)
    results = _every_command(run)
    _refused(results.pop("config"), f"{run / 'config.yaml'}: ")
    for result in results.values():
        _refused(result, f"{run / 'config.yaml'}: {message}")


def test_settings_that_the_weights_were_not_trained_with(run: Path) -> None:
    _edit(run, "model.settings.neighbors", 4)
    message = "config.yaml: model.settings.neighbors is 4, but the checkpoint was trained with 3"
    _refused(cli("evaluate", run), message)
    _refused(cli("train", "--resume", run), "belongs to another model", "'neighbors': 4")


@pytest.mark.parametrize("test", [[3, 9], [102, 121], [90, 120]])
def test_a_test_part_outside_of_what_follows_validation(run: Path, test: list[int]) -> None:
    _edit(run, "data.test", test)
    message = f"data.test={test}: expected positions from 102, the end of validation, to 120"
    _refused(cli("evaluate", run), message)


class TestMetrics:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda line: line.pop("metrics"), "line 1: key 'metrics' is missing"),
            (lambda line: line.update(metrics=5), "line 1: a value of the wrong kind"),
            (lambda line: line.update(more=5), "line 1: unknown key 'more'"),
        ],
    )
    def test_a_line_that_is_no_epoch(
        self, run: Path, change: Callable[[Any], Any], message: str
    ) -> None:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        line = json.loads(lines[0])
        change(line)
        (run / "metrics.jsonl").write_text("\n".join([json.dumps(line), *lines[1:]]) + "\n")
        _refused(cli("evaluate", run), f"{run / 'metrics.jsonl'}, {message}")
        _refused(cli("embed", run), f"{run / 'metrics.jsonl'}, {message}")
        _is_mended_by_resuming(run, lines)

    def test_a_line_cut_short_in_the_middle(self, run: Path) -> None:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        (run / "metrics.jsonl").write_text("\n".join([lines[0][:80], *lines[1:]]) + "\n")
        _refused(cli("evaluate", run), 'metrics.jsonl, line 1: is \'{"epoch": 0', "expected a JSON")
        _is_mended_by_resuming(run, lines)

    def test_a_last_line_cut_short_by_a_kill_is_left_out(self, run: Path) -> None:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], lines[-1][:50]]))
        assert cli("evaluate", run).code == 0
        _is_mended_by_resuming(run, lines[:-1])


def _is_mended_by_resuming(run: Path, lines: list[str]) -> None:
    """Every line that was there is there again, and one of the test that follows."""
    assert cli("train", "--resume", run).code == 0
    found = (run / "metrics.jsonl").read_text().splitlines()
    assert found[: len(lines)] == lines
    assert [json.loads(line).get("evaluation") for line in found[len(lines) :]] == ["test"]


class TestCheckpoints:
    @pytest.mark.parametrize("put", ["last", "best", "stream", "foreign", "empty"])
    @pytest.mark.parametrize("over", ["last", "best", "stream"])
    def test_another_file_in_its_place_is_named(self, run: Path, put: str, over: str) -> None:
        place = run / "checkpoints" / f"{over}.safetensors"
        if put == "foreign":
            save_file({"a": torch.zeros(3)}, place)
        elif put == "empty":
            save_checkpoint(place, Checkpoint({"a": torch.zeros(3)}, {"x": 1}))
        elif put == over:
            return
        else:
            shutil.copy(run / "checkpoints" / f"{put}.safetensors", place)
        command = {"last": ("train", "--resume"), "best": ("evaluate",), "stream": ("embed",)}[over]
        message = {
            "foreign": "is not a checkpoint this version reads: format 'none'",
            "empty": f"is no checkpoint of a run, expected a {over!r} one",
        }.get(put, f"is a {put!r} checkpoint, expected a {over!r} one")
        _refused(cli(*command, run), f"{place} {message}")


def _read(run: Path) -> Any:
    return yaml.safe_load((run / "config.yaml").read_text())


def _write(run: Path, config: Any) -> None:
    (run / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def _edit(run: Path, place: str, value: Any) -> None:
    config = _read(run)
    *above, last = place.split(".")
    inner = config
    for key in above:
        inner = inner[key]
    inner[last] = value
    _write(run, config)
