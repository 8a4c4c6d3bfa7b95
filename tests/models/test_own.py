"""A model in one's own file: trained, evaluated, resumed and used like those of the registry."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import training
from command import COLUMNS, cli
from tidegraph.errors import CheckpointError, SettingError
from tidegraph.models import build_model, model_class
from tidegraph.models.own import check_outside
from tidegraph.train import load_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_model.py"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEGRAPH_CACHE", str(tmp_path / "cache"))
    rows = [f"u{i % 6},i{i * i % 4},{i}" for i in range(120)]
    Path("t.csv").write_text("\n".join(["user,item,ts", *rows]) + "\n")
    shutil.copy(EXAMPLE, tmp_path / "mine.py")
    return tmp_path


def test_the_same_commands_train_evaluate_and_use_it(table: Path) -> None:
    config = "model: {name: 'mine.py:RecentMean', neighbors: 3, embedding: 8, time: 8}\n"
    Path("settings.yaml").write_text(config)
    small = ["--batch-size", 20, "--candidates", 3, "--epochs", 1]
    result = cli("train", "t.csv", *COLUMNS, "--config", "settings.yaml", *small)
    assert result.code == 0, result.err
    assert "RECENTMEAN" in result.out
    (run,) = Path("runs").iterdir()
    assert run.name.endswith("-t-recentmean")
    assert cli("evaluate", run).code == 0
    assert cli("train", "--resume", run, "--epochs", 2).code == 0
    Path("pairs.csv").write_text("user,item\nu1,i0\nu3,i1\n")
    assert len(cli("predict", run, "--pairs", "pairs.csv").rows) == 2
    # By the flag too, from anywhere: the name is the file's absolute path.
    result = cli("train", "t.csv", *COLUMNS, "--model", table / "mine.py:RecentMean", *small)
    assert result.code == 0, result.err


def test_a_run_in_python_finds_its_class_again(table: Path) -> None:
    events = training.chatter(90)
    model = build_model("mine.py:RecentMean", events.schema, embedding=6, time=4)
    run = training.fit(events, table / "run", model=model, epochs=1)
    loaded = load_run(table / "run")
    assert type(loaded.model) is type(model) is model_class(str(table / "mine.py:RecentMean"))
    assert loaded.embed([1]).embedding.tolist() == run.embed([1]).embedding.tolist()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("absent.py:RecentMean", "no file"),
        ("mine.py:Absent", "no class Absent"),
        ("mine.py:Tensor", "derived from"),
        ("mine.py:tg", "no class tg"),
    ],
)
def test_what_cannot_be_a_model_is_said(table: Path, name: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        model_class(name)
    result = cli("train", "t.csv", *COLUMNS, "--model", name)
    assert (result.code, words in result.err) == (2, True)


def test_code_that_came_with_a_run_is_not_executed(table: Path) -> None:
    place = table / "run" / "checkpoints" / "best.safetensors"
    check_outside(f"{table / 'mine.py'}:RecentMean", place)
    with pytest.raises(CheckpointError, match="not executed"):
        check_outside(f"{table / 'run' / 'mine.py'}:RecentMean", place)
