"""`tidegraph train`: from a table to a run with its figures."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors import safe_open

import tidegraph as tg
from command import COLUMNS, FEATURES, SMALL, Result, cli
from tidegraph.cli import train as train_module
from tidegraph.report import page
from tidegraph.report.console import ConsoleListener
from tidegraph.train.run_files import new_directory

Trained = tuple[Path, dict[str, Any]]


def train(table: Path, *more: object) -> Result:
    return cli("train", table, *COLUMNS, *FEATURES, *SMALL, *more)


def weights(run: Path) -> dict[str, bytes]:
    with safe_open(run / "checkpoints" / "best.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name).numpy().tobytes() for name in file.keys()}  # noqa: SIM118


def test_prints_what_was_understood_settings_epochs_and_a_table_with_protocols(
    table: Path, here: Path
) -> None:
    result = train(table)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("trips.csv: 120 events, 15 nodes (bipartite: 10 sources, 5 targets)")
    assert any(line.startswith("split     84 train, 18 val, 18 test") for line in lines)
    assert any(line.startswith("training  batch_size 20, epochs 2,") for line in lines)
    assert sum(line.startswith("epoch ") for line in lines) == 2
    table_lines = [line for line in lines if line.startswith("│")]
    assert [line.split("│")[1].split()[0] for line in table_lines] == [
        "TGN", "EdgeBank", "Popularity",
    ]  # fmt: skip
    assert any(
        line.startswith("[1] 1 random destination per positive, averaged over batches of 10")
        for line in lines
    )
    assert any(line.startswith("[2] 3 random destinations per positive") for line in lines)
    assert lines[-1].startswith("use it    tidegraph predict runs/")


def test_features_are_stored_as_asked_and_stay_so(table: Path, here: Path) -> None:
    result = train(table, "--feature-type", "int8", "--name", "coded", "--json")
    assert result.code == 0, result.err
    said = [line for line in result.err.splitlines() if line.startswith("stored ")]
    assert len(said) == 1
    assert "event features as int8, each value within half a 255th of its column" in said[0]
    config = yaml.safe_load((here / "runs" / "coded" / "config.yaml").read_text())
    assert config["training"]["feature_type"] == "int8"
    again = cli("evaluate", "runs/coded", "--json", "--quiet")
    assert again.last["test"] == result.last["test"]
    refused = cli("train", "--resume", "runs/coded", "--feature-type", "float32")
    assert refused.code == 2
    assert "leave out feature_type" in refused.err
    plain = train(table, "--json")
    assert not any(line.startswith("stored ") for line in plain.err.splitlines())
    assert weights(Path(plain.last["paths"]["run"])) != weights(Path("runs/coded"))


def test_a_pipeline_changes_no_figure_and_says_where_the_time_went(table: Path, here: Path) -> None:
    plain = train(table, "--name", "plain", "--json")
    result = train(
        table, "--name", "ahead", "--prepare-threads", "2", "--queue-depth", "4", "--trace"
    )
    assert result.code == 0, result.err
    assert weights(here / "runs" / "ahead") == weights(Path(plain.last["paths"]["run"]))
    lines = result.out.splitlines()
    (spent,) = [line for line in lines if line.startswith("spent     ")]
    assert "forward" in spent
    assert any(line.startswith("trace     runs/ahead/trace.json (open it") for line in lines)
    assert json.loads((here / "runs" / "ahead" / "trace.json").read_text())["traceEvents"]
    assert "On the critical path: prepare" in (here / "runs/ahead/report.html").read_text()
    assert "trace" not in plain.last["paths"]
    more = cli("train", "--resume", "runs/ahead", "--epochs", "3", "--no-trace",
               "--prepare-threads", "0")  # fmt: skip
    assert more.code == 0, more.err


def test_staleness_is_said_to_gain_nothing_where_it_does(table: Path, here: Path) -> None:
    result = train(table, "--staleness", "2", "--batch-size", "10")
    assert result.code == 0, result.err
    assert "note      staleness 2 gains nothing over 0 here" in result.out
    assert "older than the newest" in next(here.glob("runs/*/report.html")).read_text()
    refused = cli("train", "--resume", next(here.glob("runs/*")), "--staleness", "0")
    assert refused.code == 2
    assert "leave out staleness" in refused.err


def test_json_is_one_object_on_the_last_line_and_the_only_thing_on_stdout(trained: Trained) -> None:
    directory, found = trained
    assert set(found) == {
        "command", "data", "settings", "epochs", "best_epoch", "test", "baselines",
        "events_per_second", "seconds", "peak_resident_bytes", "paths", "task", "versions",
    }  # fmt: skip
    names = [metric["name"] for metric in found["test"]["metrics"]]
    assert {"AP", "AUC", "MRR", "Hits@10"} <= set(names)
    assert all(metric["protocol"] for metric in found["test"]["metrics"])
    assert [row["name"].split()[0] for row in found["baselines"]] == ["EdgeBank", "Popularity"]
    assert found["data"]["parts"] == {"train": 84, "val": 18, "test": 18}
    assert {"prepare", "forward", "backward", "validation", "test", "total"} <= set(
        found["seconds"]
    )
    assert 0 < found["seconds"]["to_first_batch"] < found["seconds"]["total"]
    assert found["peak_resident_bytes"] > 50 * 2**20
    for path in found["paths"].values():
        assert Path(path).exists()
    assert directory == Path(found["paths"]["run"])


def test_model_and_baselines_are_measured_on_the_same_events_and_negatives(
    trained: Trained,
) -> None:
    _, found = trained
    rows = [found["test"], *found["baselines"]]
    for name in ("AP", "AUC", "MRR", "Hits@10"):
        taken = {
            (metric["protocol"], metric["count"])
            for row in rows
            for metric in row["metrics"]
            if metric["name"] == name
        }
        assert len(taken) == 1


def test_the_figures_are_those_of_the_python_interface(trained: Trained, table: Path) -> None:
    directory, found = trained
    run = tg.load_run(directory)
    evaluation = run.evaluate(run.events.range(102, 120, "test"))
    assert {m["name"]: m["value"] for m in found["test"]["metrics"]} == evaluation.metrics.values()


def test_the_run_is_left_at_the_end_of_the_test_split(trained: Trained) -> None:
    directory, _ = trained
    assert tg.load_run(directory, at="stream").stream.stop == 120
    assert tg.load_run(directory).stream.stop == 102


def test_config_metrics_and_report_are_written(trained: Trained) -> None:
    directory, found = trained
    config = yaml.safe_load((directory / "config.yaml").read_text())
    assert config["model"]["settings"]["memory"] == 8
    assert config["training"]["batch_size"] == 20
    assert config["data"]["columns"]["features"] == ["amount", "hour"]
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("epoch") for line in lines] == [0, 1, None]
    assert lines[-1]["evaluation"] == "test"
    assert lines[-1]["metrics"] == found["test"]["metrics"]
    assert "<svg" in (directory / "report.html").read_text()


def test_quiet_prints_the_table_alone(table: Path, here: Path) -> None:
    result = train(table, "--quiet")
    assert result.out.startswith("test, all events")
    assert "epoch" not in result.out
    assert result.err == ""


def test_quiet_json_prints_the_object_alone(table: Path, here: Path) -> None:
    result = train(table, "--quiet", "--json")
    assert len(result.out.splitlines()) == 1
    assert result.last["command"] == "train"
    assert result.err == ""


def test_the_same_settings_give_the_same_bits(table: Path, here: Path) -> None:
    runs = [Path(train(table, "--quiet", "--json").last["paths"]["run"]) for _ in range(2)]
    assert weights(runs[0]) == weights(runs[1])
    assert [run.name for run in runs] == [f"{runs[0].name}", f"{runs[0].name}-2"]


def test_hidden_nodes_give_an_inductive_table(table: Path, here: Path) -> None:
    result = train(table, "--hidden-nodes", "0.2", "--json")
    assert result.code == 0, result.err
    assert "events with an unseen node" in result.err
    for row in [result.last["test"], *result.last["baselines"]]:
        assert all("inductive" in metric["protocol"] for metric in row["inductive"])
    counts = {row["inductive"][0]["count"]
              for row in [result.last["test"], *result.last["baselines"]]}  # fmt: skip
    assert len(counts) == 1
    assert 0 < counts.pop() < 18
    # Predicting goes on from the stream, where hidden training events must stay hidden.
    run = tg.load_run(result.last["paths"]["run"], at="stream")
    assert run.stream.hidden_nodes is not None


def test_without_a_test_split_there_is_no_table(table: Path, here: Path) -> None:
    result = train(table, "--test", "0", "--json")
    assert result.code == 0, result.err
    assert result.last["test"] is None
    evaluated = cli("evaluate", result.last["paths"]["run"])
    assert evaluated.code == 2
    assert "without a test split (--test 0)" in evaluated.err


def test_stored_events_and_generated_data_are_data_too(table: Path, here: Path) -> None:
    assert cli("ingest", table, *COLUMNS, "--out", "store").code == 0
    stored = cli("train", "store", *SMALL, "--quiet", "--json", "--epochs", "1")
    assert stored.last["data"]["events"] == 120
    generated = cli("train", "synthetic:wikipedia:0.002", *SMALL, "--quiet", "--json",
                    "--epochs", "1")  # fmt: skip
    assert generated.last["data"]["dataset"] == "synthetic:wikipedia:0.002"


def test_a_query_is_data_too(table: Path, here: Path) -> None:
    query = f"SELECT * FROM '{table}' WHERE ts >= 60 * 20"
    result = cli("train", "--query", query, *COLUMNS, *SMALL, "--quiet", "--json")
    assert result.code == 0, result.err
    assert result.last["data"]["events"] == 100
    assert cli("evaluate", result.last["paths"]["run"]).code == 0


def test_settings_come_from_defaults_preset_file_and_flags_in_this_order(
    table: Path, here: Path
) -> None:
    Path("mine.yaml").write_text(
        yaml.safe_dump(
            {
                "data": {"path": str(table), "source": "user", "target": "item", "time": "ts"},
                "model": {"name": "tgn", "memory": 12, "time": 8, "embedding": 8},
                "training": {"batch_size": 30, "learning_rate": 0.01, "candidates": 2},
            }
        )
    )
    result = cli("train", "--preset", "published", "--config", "mine.yaml", "--batch-size", "25",
                 "--epochs", "1", "--quiet", "--json")  # fmt: skip
    assert result.code == 0, result.err
    settings = result.last["settings"]
    assert settings["training"]["batch_size"] == 25  # flag over file over preset
    assert settings["training"]["learning_rate"] == 0.01  # file over preset
    assert settings["training"]["patience"] == 5  # preset
    assert settings["training"]["weight_decay"] == 0.0  # default
    assert settings["model"]["memory"] == 12


def test_a_runs_config_trains_it_again(trained: Trained, here: Path) -> None:
    directory, found = trained
    again = cli("train", "--config", directory / "config.yaml", "--quiet", "--json")
    assert again.code == 0, again.err
    assert again.last["settings"]["training"] == found["settings"]["training"]
    assert again.last["settings"]["model"] == found["settings"]["model"]
    assert again.last["test"] == found["test"]
    assert weights(Path(again.last["paths"]["run"])) == weights(directory)


def test_the_flights_preset_is_for_the_bundled_data_when_nothing_else_is_said(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = train_module.merge

    def merge(*positional: Any, **named: Any) -> Any:
        seen.append(named["preset"])
        return real(*positional, **named)

    def stop(*_: object) -> None:
        raise tg.TidegraphError("far enough")

    monkeypatch.setattr(train_module, "merge", merge)
    monkeypatch.setattr(train_module, "new_job", stop)
    for arguments in ([], ["flights"], ["flights", "--preset", "published"], ["uci"]):
        assert cli("train", *arguments).code == 2
    assert seen == ["flights", "flights", "published", None]


class TestStopping:
    def test_interrupted_run_says_how_to_go_on_and_ends_in_the_same_bits(
        self, table: Path, trained: Trained, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ConsoleListener, "advanced", _interrupt_at(150))
            stopped = train(table, "--label", "is_fraud", "--time-unit", "s", "--name", "cut",
                            "--checkpoint-batches", "1")  # fmt: skip
        assert stopped.code == 130
        assert "go on with: tidegraph train --resume runs/cut" in stopped.err
        resumed = cli("train", "--resume", "runs/cut", "--json")
        assert resumed.code == 0, resumed.err
        assert "resuming at epoch 2" in resumed.err
        assert weights(Path("runs/cut")) == weights(trained[0])
        assert resumed.last["test"] == trained[1]["test"]

    def test_interrupted_before_the_first_checkpoint_leaves_nothing(
        self, table: Path, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ConsoleListener, "advanced", _interrupt_at(20))
        stopped = train(table, "--name", "cut")
        assert stopped.code == 130
        assert "start again" in stopped.err
        assert list(Path("runs").iterdir()) == []

    def test_resuming_a_finished_run_evaluates_it_again(self, table: Path, here: Path) -> None:
        first = train(table, "--name", "done", "--json").last
        again = cli("train", "--resume", "runs/done", "--json").last
        assert again["test"] == first["test"]

    def test_resume_refuses_other_settings(self, trained: Trained) -> None:
        for flags in (["--learning-rate", "3"], ["--memory", "3"], ["--preset", "published"]):
            result = cli("train", "--resume", trained[0], *flags)
            assert result.code == 2
            assert "--resume keeps the run's own settings: leave out" in result.err

    def test_a_run_may_go_on_for_more_epochs(self, table: Path, here: Path) -> None:
        train(table, "--name", "long", "--epochs", "3", "--patience", "0")
        train(table, "--name", "short", "--epochs", "1", "--patience", "0")
        more = cli("train", "--resume", "runs/short", "--epochs", "3", "--json")
        assert more.code == 0, more.err
        assert len(more.last["epochs"]) == 3
        assert weights(Path("runs/short")) == weights(Path("runs/long"))

    def test_resume_of_no_run(self, here: Path) -> None:
        result = cli("train", "--resume", "nowhere")
        assert result.code == 2
        assert "nowhere is not the directory of a run: it has no config.yaml" in result.err

    def test_a_full_disk_keeps_the_previous_checkpoint_and_the_run_resumes(
        self, table: Path, trained: Trained, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tidegraph.train import checkpoint

        real, saved = checkpoint.save_file, []

        def full(*positional: Any, **named: Any) -> None:
            saved.append(1)
            if len(saved) == 7:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(*positional, **named)

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save_file", full)
            result = train(table, "--label", "is_fraud", "--time-unit", "s", "--name", "full",
                           "--checkpoint-batches", "1")  # fmt: skip
        assert result.code == 2
        assert "could not write checkpoint" in result.err
        assert "No space left on device" in result.err
        assert "the previous checkpoint is unchanged" in result.err
        assert not list(Path("runs/full").rglob("*.tmp"))
        assert cli("train", "--resume", "runs/full").code == 0
        assert weights(Path("runs/full")) == weights(trained[0])

    def test_a_page_that_cannot_be_drawn_does_not_cost_the_run(
        self, table: Path, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> str:
            raise RuntimeError("no fonts")

        monkeypatch.setattr(page, "curves_svg", fail)
        result = train(table, "--json")
        assert result.code == 0
        assert "report.html could not be written: RuntimeError('no fonts')" in result.err
        assert cli("evaluate", result.last["paths"]["run"]).code == 0


class TestDirectories:
    def test_a_taken_name_gets_a_number(self, here: Path) -> None:
        made = [new_directory(Path("runs/x")).name for _ in range(3)]
        assert made == ["x", "x-2", "x-3"]

    def test_a_name_that_was_asked_for_is_never_overwritten(
        self, table: Path, trained: Trained
    ) -> None:
        result = train(table, "--out", trained[0].parent, "--name", trained[0].name)
        assert result.code == 2
        assert f"--resume {trained[0]}" in result.err

    def test_a_place_that_cannot_be_written(self, table: Path, here: Path) -> None:
        Path("runs").write_text("a file")
        result = train(table)
        assert result.code == 2
        assert "choose another place with --out" in result.err


def test_a_reader_that_goes_away_is_no_error(table: Path, here: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", "from tidegraph.cli import main; main()", "describe",
               str(table), *COLUMNS]  # fmt: skip
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert done.stderr == b""


def _interrupt_at(events: int) -> Any:
    real, seen = ConsoleListener.advanced, [0]

    def advanced(self: ConsoleListener, count: int, loss: float | None) -> None:
        seen[0] += count
        if seen[0] >= events:
            raise KeyboardInterrupt
        real(self, count, loss)

    return advanced
