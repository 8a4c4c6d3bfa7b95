"""`tidegraph train --task` and `--seeds`: commands, figures, resuming, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from command import COLUMNS, FEATURES, SMALL, Result, cli, write_table
from tidegraph.cli import train as train_module

TASK = ["--label", "is_fraud", "--task-epochs", "3"]


@pytest.fixture(scope="module")
def often(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose label is common enough for every part of the split to have both classes."""
    path = tmp_path_factory.mktemp("often") / "trips.csv"
    return write_table(path, rows=240, is_fraud=lambda i: int(i % 3 == 0), hour=lambda i: i % 24)


def train(table: Path, *more: object) -> Result:
    return cli("train", table, *COLUMNS, *FEATURES, *SMALL, *more)


def test_a_node_label_is_trained_printed_kept_and_evaluated_again(often: Path, here: Path) -> None:
    result = train(often, *TASK, "--task", "node-classification", "--name", "node", "--json")
    assert result.code == 0, result.err
    found = result.last
    assert found["task"]["name"] == "node-classification"
    assert found["task"]["classes"] == [0.0, 1.0]
    figures = {one["name"]: one for one in found["test"]["metrics"]}
    assert set(figures) == {"AUC", "AP", "accuracy"}
    for text in ("label of each event's source", "strictly before", "frozen encoder"):
        assert text in figures["AUC"]["protocol"]
    names = [row["name"] for row in found["baselines"]]
    assert names == ["training shares", "last of the source", "mean of the source"]
    again = cli("evaluate", "runs/node", "--json", "--quiet")
    assert again.code == 0, again.err
    assert again.last["test"] == found["test"]
    assert again.last["baselines"] == found["baselines"]
    later = write_table(here / "later.csv", first=240, rows=12)
    predicted = cli("predict", "runs/node", "--events", later, "--label", "is_fraud", "--quiet")
    assert predicted.code == 0, predicted.err
    assert set(predicted.rows[0]) == {
        "row", "source", "target", "time", "score", "label_predicted", "label_probability",
    }  # fmt: skip
    assert all(0 < float(row["label_probability"]) < 1 for row in predicted.rows)
    config = yaml.safe_load(Path("runs/node/config.yaml").read_text())
    assert config["data"]["task"]["task"] == "node-classification"


def test_a_feature_of_known_columns_is_a_target_by_label(often: Path, here: Path) -> None:
    stored = cli("ingest", often, *COLUMNS, *FEATURES, "--out", "store")
    assert stored.code == 0, stored.err
    result = cli("train", "store", *SMALL, "--task", "event-regression", "--label", "amount",
                 "--known", "hour", "--task-epochs", "3")  # fmt: skip
    assert result.code == 0, result.err
    head = next(line for line in result.out.splitlines() if line.startswith("┃"))
    assert [word for word in head.replace("┃", " ").split() if word.isalnum()] == [
        "MAE", "RMSE", "R2",
    ]  # fmt: skip
    assert "amount of each event, from both of its nodes" in result.out
    assert "knowing hour" in result.out


def test_a_tuned_encoder_by_command(often: Path, here: Path) -> None:
    result = train(often, *TASK, "--task", "event-classification", "--encoder", "tuned",
                   "--tune-epochs", "1", "--balance", "weight", "--json")  # fmt: skip
    assert result.code == 0, result.err
    assert "tuned     pass 1: validation" in result.err
    assert result.last["task"]["balance"] == "weight"
    assert result.last["task"]["tuned_epoch"] in (-1, 0)


def test_a_task_run_is_resumed_to_the_same_figures(
    often: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while its task is fitted: link training is not repeated, the figures are the same."""
    node = (*TASK, "--task", "node-classification", "--json")
    expected = train(often, *node, "--name", "whole").last

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "train_task", stop)
        stopped = train(often, *node, "--name", "cut")
    assert stopped.code == 130
    assert "tidegraph train --resume runs/cut" in stopped.err
    found = cli("train", "--resume", "runs/cut", "--json")
    assert found.code == 0, found.err
    assert found.last["test"] == expected["test"]
    assert found.last["task"] == expected["task"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--task-epochs", "3"), "task_epochs (--task-epochs) has no effect with --task link"),
        (("--task", "event-regression", "--balance", "weight"), "no classes to balance"),
        (("--task", "event-regression", "--tune-epochs", "2"), "--encoder frozen"),
        (("--task", "node-classification"), "needs a label for each event"),
        (("--task", "node-property"), "--properties"),
        (("--task", "node-classification", "--label", "kind"), "Translate text labels"),
        (("--task", "event-regression", "--label", "nothing"), "nothing"),
    ],
)
def test_what_cannot_be_is_refused(
    often: Path, here: Path, more: tuple[str, ...], message: str
) -> None:
    result = train(often, *more)
    assert result.code == 2, result.out
    assert message in result.err
    assert not list(Path("runs").glob("*")) if Path("runs").exists() else True


def test_labels_are_checked_before_link_training(often: Path, here: Path) -> None:
    result = train(often, "--task", "node-classification", "--task-target", "speed")
    assert result.code == 2
    assert "there is no event feature 'speed'" in result.err
    assert "epoch 1" not in result.out


def test_node_properties_have_a_table_of_their_own(often: Path, here: Path) -> None:
    lines = ["node,time,item,weight"]
    for hour in range(1, 60):
        lines += [f"u{i},{240 * hour},{'abc'[i % 3]},2" for i in range(10)]
        lines += [f"u{i},{240 * hour},{'abc'[(i + hour) % 3]},1" for i in range(10)]
    Path("properties.csv").write_text("\n".join(lines) + "\n")
    result = train(often, "--task", "node-property", "--properties", "properties.csv",
                   "--task-epochs", "3", "--name", "taste", "--json")  # fmt: skip
    assert result.code == 0, result.err
    found = result.last
    assert found["task"]["classes"] == ["a", "b", "c"]
    assert [one["name"] for one in found["test"]["metrics"]] == ["NDCG@10"]
    assert "strictly before" in found["test"]["metrics"][0]["protocol"]
    assert [row["name"] for row in found["baselines"]] == [
        "training mean", "last of the node", "mean of the node",
    ]  # fmt: skip
    again = cli("evaluate", "runs/taste", "--json", "--quiet")
    assert again.code == 0, again.err
    assert again.last["test"] == found["test"]
    assert again.last["baselines"] == found["baselines"]


# ---------------------------------------------------------------- several seeds


def test_seeds_give_mean_and_sample_deviation(table: Path, here: Path) -> None:
    result = train(table, "--seeds", "2", "--name", "both", "--json")
    assert result.code == 0, result.err
    found = result.last
    assert found["seeds"] == [0, 1]
    summary = {
        row["name"]: {one["name"]: one for one in row["metrics"]} for row in found["summary"]
    }
    single = [
        next(m["value"] for m in found["runs"][seed]["test"]["metrics"] if m["name"] == "AP")
        for seed in ("0", "1")
    ]
    spread = summary["TGN"]["AP"]
    assert spread["values"] == single
    assert spread["mean"] == pytest.approx(sum(single) / 2)
    assert spread["deviation"] == pytest.approx(abs(single[0] - single[1]) / 2**0.5)
    assert summary["TGN"]["AP (all events)"]["protocol"] != spread["protocol"]
    assert json.loads(Path("runs/both/seeds.json").read_text())["summary"] == found["summary"]
    alone = train(table, "--seed", "1", "--json").last
    assert alone["test"] == found["runs"]["1"]["test"]
    again = cli("evaluate", "runs/both/seed-1", "--json", "--quiet")
    assert again.last["test"] == found["runs"]["1"]["test"]


def test_seeds_are_printed_as_a_table(table: Path, here: Path) -> None:
    result = train(table, "--seeds", "2", "--seed", "5")
    assert result.code == 0, result.err
    assert "test, all events, seeds 5, 6" in result.out
    row = next(line for line in reversed(result.out.splitlines()) if "TGN" in line)
    assert "±" in row
    assert "mean ± sample deviation over the seeds" in result.out


def test_an_interrupted_series_goes_on_with_the_seed_it_was_stopped_in(
    table: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train(table, "--seeds", "2", "--name", "whole", "--json").last
    ran = []
    original = train_module.run_job

    def once(*arguments: Any) -> Any:
        if ran:
            raise KeyboardInterrupt
        ran.append(arguments)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "run_job", once)
        stopped = train(table, "--seeds", "2", "--name", "cut")
    assert stopped.code == 130
    assert "go on with: tidegraph train --resume runs/cut" in stopped.err
    found = cli("train", "--resume", "runs/cut", "--json")
    assert found.code == 0, found.err
    assert found.last["summary"] == expected["summary"]
    refused = cli("evaluate", "runs/cut")
    assert refused.code == 2
    assert "holds runs of several seeds: name one of them, such as runs/cut/seed-0" in refused.err
    Path("runs/cut/seeds.json").write_text("{")
    damaged = cli("train", "--resume", "runs/cut")
    assert damaged.code == 2
    assert "seeds.json is damaged" in damaged.err


# ---------------------------------------------------------------- fixed negatives


def test_saved_negatives_rank_another_run_against_the_same(trained: Any, here: Path) -> None:
    directory, found = trained
    saved = cli("evaluate", directory, "--save-negatives", "test.npz", "--json", "--quiet")
    assert saved.code == 0, saved.err
    again = cli("evaluate", directory, "--negatives-file", "test.npz", "--json", "--quiet")
    assert again.code == 0, again.err
    for row, same in zip([found["test"], *found["baselines"]],
                         [again.last["test"], *again.last["baselines"]], strict=True):  # fmt: skip
        for one, other in zip(row["metrics"], same["metrics"], strict=True):
            assert (one["name"], one["value"]) == (other["name"], other["value"])
    protocols = {m["name"]: m["protocol"] for m in again.last["test"]["metrics"]}
    assert "3 prepared destinations per positive (test.npz)" in protocols["MRR"]
    both = cli("evaluate", directory, "--negatives-file", "test.npz", "--candidates", "2")
    assert both.code == 2
    assert "--candidates has no effect" in both.err
    wrong = cli("evaluate", directory, "--save-negatives", "test.csv")
    assert wrong.code == 2
    assert "written as .npz" in wrong.err
