"""`tidegraph compare`: one table over models and seeds, every number with its protocol."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

import tidegraph as tg
from command import COLUMNS, FEATURES, Result, cli
from tidegraph.cli import compare as compare_module
from tidegraph.events import EventRange
from tidegraph.report.comparison import evaluate_baselines

TGN = "tgn:memory=8,time=8,embedding=8,neighbors=3"
JODIE = "jodie:memory=8,time=8"
TRAINING = ["--batch-size", "20", "--evaluation-batch-size", "10", "--candidates", "3",
            "--epochs", "1"]  # fmt: skip
MORE = ["--seeds", "2", "--test-negatives", "historical", "--json", "--hidden-nodes", "0.1"]


def compare(table: Path, *more: object) -> Result:
    return cli("compare", table, *COLUMNS, *FEATURES, *TRAINING, *more)


@pytest.fixture(scope="module")
def compared(table: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Two seeds of a model and a baseline, tested with two kinds of negatives."""
    out = tmp_path_factory.mktemp("compared") / "c"
    result = compare(table, "--models", TGN, "edgebank", "--out", out, *MORE)
    assert result.code == 0, result.err
    return out, result


def figures(row: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [one for one in row["figures"] if one["name"] == name]


def test_every_number_is_a_mean_over_seeds_and_carries_its_protocol(
    compared: tuple[Path, Result],
) -> None:
    out, result = compared
    found = result.last
    assert found == json.loads((out / "comparison.json").read_text())
    assert [row["model"] for row in found["rows"]] == [TGN, "edgebank"]
    for row in found["rows"]:
        protocols = [one["protocol"] for one in figures(row, "AP")]
        assert [text.split(",")[0] for text in protocols] == [
            "1 random destination per positive", "1 random destination per positive",
            "1 historical destination per positive", "1 historical destination per positive",
        ]  # fmt: skip
        assert ["inductive (" in text for text in protocols] == [False, True, False, True]
        assert len(figures(row, "MRR")) == 2
        for one in row["figures"]:
            values = [
                metric["value"]
                for run in row["runs"]
                for metric in run["metrics"]
                if (metric["name"], metric["protocol"]) == (one["name"], one["protocol"])
            ]
            assert one["seeds"] == 2
            assert one["mean"] == statistics.fmean(values)
            assert one["spread"] == statistics.stdev(values)
    model, bank = found["rows"]
    assert model["parameters"] == 2_000 or model["parameters"] > 100
    assert bank["parameters"] == 0
    assert model["training_events_per_second"] > 0
    assert bank["training_events_per_second"] is None
    assert min(row["peak_resident_bytes"] for row in found["rows"]) > 50 * 2**20


def test_figures_are_those_of_the_run_on_the_same_negatives_as_the_baseline(
    compared: tuple[Path, Result],
) -> None:
    _, result = compared
    model, bank = result.last["rows"]
    for place in (0, 1):
        run = tg.load_run(model["runs"][place]["run"])
        assert run.settings.seed == place
        part = EventRange(run.events, 102, 120, "test")
        again = run.evaluate(part)
        expected = [(m.name, m.value) for m in (*again.metrics, *again.inductive)]
        saved = [(m["name"], m["value"]) for m in model["runs"][place]["metrics"]]
        assert saved[: len(expected)] == expected
        edgebank = evaluate_baselines(run, part)[0]
        expected = [(m.name, m.value) for m in (*edgebank.metrics, *edgebank.inductive)]
        saved = [(m["name"], m["value"]) for m in bank["runs"][place]["metrics"]]
        assert saved[: len(expected)] == expected


def test_the_page_has_the_table_the_protocols_and_the_figure(
    compared: tuple[Path, Result],
) -> None:
    out, result = compared
    page = (out / "comparison.md").read_text()
    assert page.count("\n| ") == 4
    assert f"| {TGN} | " in page
    for row in result.last["rows"]:
        for one in row["figures"]:
            assert one["protocol"] in page
            if one["name"] in ("AP", "AUC", "MRR", "Hits@10"):
                assert f"{one['mean']:.4f} ± {one['spread']:.4f}" in page
    assert "comparison.svg" in page
    drawn = (out / "comparison.svg").read_text()
    assert "<svg" in drawn
    assert "edgebank" in drawn
    assert "1 historical destination" in drawn


def test_a_finished_run_is_reused_and_a_model_can_be_added(
    compared: tuple[Path, Result], table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, result = compared
    trained: list[str] = []
    original = compare_module.Trainer

    def counted(model: Any, *args: Any, **kwargs: Any) -> Any:
        trained.append(model.name)
        return original(model, *args, **kwargs)

    monkeypatch.setattr(compare_module, "Trainer", counted)
    again = compare(table, "--models", TGN, JODIE, "edgebank", "--out", out, *MORE)
    assert again.code == 0, again.err
    assert trained == ["jodie", "jodie"]
    rows = {row["model"]: row for row in again.last["rows"]}
    assert rows[TGN] == result.last["rows"][0]
    assert rows["edgebank"] == result.last["rows"][1]
    # Another setting is another run.
    trained.clear()
    compare(table, "--models", TGN, "--out", out, "--learning-rate", "0.01")
    assert trained == ["tgn"]


def test_a_run_that_was_stopped_goes_on_and_ends_alike(
    table: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("--models", TGN, "edgebank", "--epochs", "2", "--checkpoint-batches", "1", "--json")
    whole = compare(table, *more, "--out", "whole")
    original = compare_module.ConsoleListener.advanced
    calls = 0

    def stopping(self: Any, events: int, loss: float | None) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        original(self, events, loss)

    monkeypatch.setattr(compare_module.ConsoleListener, "advanced", stopping)
    stopped = compare(table, *more, "--out", "stopped")
    assert stopped.code == 130
    assert "go on with the same command" in stopped.err
    again = compare(table, *more, "--out", "stopped")
    assert again.code == 0, again.err
    metrics = [[run["metrics"] for row in one.last["rows"] for run in row["runs"]]
               for one in (whole, again)]  # fmt: skip
    assert metrics[0] == metrics[1]


def test_one_model_that_fails_costs_its_own_row_alone(
    table: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = compare_module.build_model

    def failing(name: str, *args: Any, seed: int = 0, **kwargs: Any) -> Any:
        if name == "tgn" and seed == 1:
            raise RuntimeError("no such | luck")
        return original(name, *args, seed=seed, **kwargs)

    monkeypatch.setattr(compare_module, "build_model", failing)
    result = compare(table, "--models", TGN, JODIE, "popularity", "--seeds", "2", "--json",
                     "--out", "c")  # fmt: skip
    assert result.code == 2
    assert "error: 1 of 3 models failed" in result.err
    assert f"{TGN}, seed 1: failed: RuntimeError: no such | luck" in result.err
    tgn, jodie, popularity = result.last["rows"]
    assert [run["failed"] for run in tgn["runs"]] == [None, "RuntimeError: no such | luck"]
    assert {one["seeds"] for one in tgn["figures"]} == {1}
    for row in (jodie, popularity):
        assert {one["seeds"] for one in row["figures"]} == {2}
    assert "failed: RuntimeError: no such \\| luck" in Path("c/comparison.md").read_text()
    # What failed is tried again, and only that.
    monkeypatch.setattr(compare_module, "build_model", original)
    again = compare(table, "--models", TGN, JODIE, "popularity", "--seeds", "2", "--json",
                    "--out", "c")  # fmt: skip
    assert again.code == 0, again.err
    assert {one["seeds"] for one in again.last["rows"][0]["figures"]} == {2}
    assert again.last["rows"][1] == jodie


def test_all_models_failing_leaves_a_page_without_a_figure(
    table: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(compare_module, "_test_baseline", failing)
    result = compare(table, "--models", "edgebank", "--out", "c")
    assert result.code == 2
    assert "1 of 1 models failed" in result.err
    assert not Path("c/comparison.svg").exists()


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (["tgm"], "there is no model 'tgm': expected one of tgn, jodie"),
        (["tgm"], "Did you mean 'tgn'?"),
        (["edgebnk"], "Did you mean 'edgebank'?"),
        (["tgn", "edgebank", "tgn"], "names 'tgn' twice"),
        (["tgn:layer=2"], "Did you mean 'layers'?"),
        (["tgn:layers=many"], "tgn setting layers='many'"),
        (["tgn:layers=7"], "layers=7: TGN has 1 or 2 attention layers"),
        (["tgn:layers=2,"], "expected settings as in tgn:layers=2,memory=50; found ''"),
        (["preset:tgatt"], "unknown preset 'tgatt'"),
        (["preset:tgat", "tgn"], "split the data differently"),
        (["nowhere.py:Model"], "nowhere.py"),
        (["edgebank", "--test-negatives", "recent"], "expected one or more of random"),
        (["edgebank", "--test", "0"], "a comparison needs a validation part"),
        (["edgebank", "--val", "0"], "a comparison needs a validation part"),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(
    table: Path, here: Path, models: list[str], message: str
) -> None:
    result = compare(table, "--models", *models)
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert message in result.err
    assert not Path("comparisons").exists()


def test_without_models(table: Path, here: Path) -> None:
    result = compare(table)
    assert result.code == 2
    assert "name what to compare, such as --models tgn tgat edgebank" in result.err
