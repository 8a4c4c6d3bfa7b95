"""`--layout`, `--node-features`, `--neighbor-types`: other libraries' files by command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from command import COLUMNS, cli

DYGLIB = ",u,i,ts,label,idx\n" + "".join(
    f"{row},{row % 4 + 1},{row % 3 + 5},{row * 2}.0,0.0,{row + 1}\n" for row in range(30)
)


@pytest.fixture
def place(here: Path) -> Path:
    directory = here / "data"
    directory.mkdir()
    (directory / "ml_x.csv").write_text(DYGLIB)
    np.save(directory / "ml_x.npy", np.arange(62.0).reshape(31, 2))
    return directory


def described(*arguments: object) -> dict[str, object]:
    result = cli("describe", *arguments, "--json")
    assert result.code == 0, result.err
    found: dict[str, object] = result.last
    return found


def test_a_directory_is_described_and_stored(place: Path) -> None:
    found = described(place, "--layout", "dyglib")
    assert (found["events"], found["nodes"], found["event_features"]) == (30, 7, 2)
    result = cli("ingest", place / "ml_x.csv", "--layout", "dgb", "--out", "stored")
    assert result.code == 0, result.err
    again = described("stored")
    assert {k: v for k, v in again.items() if k not in ("data", "seconds")} == {
        k: v for k, v in found.items() if k not in ("data", "seconds")
    }


def test_a_changed_file_beside_the_table_is_read_anew(place: Path) -> None:
    assert described(place, "--layout", "dyglib")["event_features"] == 2
    np.save(place / "ml_x.npy", np.arange(93.0).reshape(31, 3))
    assert described(place, "--layout", "dyglib")["event_features"] == 3


def test_node_features_of_their_own_table(table: Path, here: Path) -> None:
    names = [f"u{i}" for i in range(10)] + list("abcde")
    rows = "".join(f"{name},{place},{place / 2}\n" for place, name in enumerate(names))
    (here / "nodes.csv").write_text("name,x,y\n" + rows)
    more = (*COLUMNS, "--node-features", "nodes.csv", "--node-id", "name")
    assert described(table, *more)["node_features"] == 2
    (here / "nodes.csv").write_text("name,x\n" + rows.replace(",0.5", "").split("\n")[0] + "\n")
    result = cli("describe", table, *more)
    assert result.code == 2
    missing = cli("describe", table, *COLUMNS, "--node-features", "no.csv", "--node-id", "name")
    assert missing.code == 2
    assert "--node-features no.csv: no such file" in missing.err or "no.csv" in missing.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--layout", "dyglib", "--source", "u"], "--source: no effect with --layout dyglib"),
        (["--layout", "tgl"], "expected one table named edges.csv"),
        (["--layout", "jodie"], "layout jodie expects user_id, item_id"),
        (["--layout", "dyglibs"], "dyglibs"),
        (["--layout", "dyglib", "--no-such"], "No such option"),
    ],
)
def test_mistakes(place: Path, more: list[str], message: str) -> None:
    result = cli("describe", place, *more)
    assert result.code == 2
    assert message in " ".join(result.err.split())


def test_training_remembers_layout_and_types(place: Path) -> None:
    small = ["--model", "tgat", "--layers", "1", "--model-time", "4", "--embedding", "4",
             "--neighbors", "2", "--batch-size", "7", "--evaluation-batch-size", "5",
             "--candidates", "0", "--epochs", "1"]  # fmt: skip
    kinds = np.eye(2)[np.arange(31) % 2]
    np.save(place / "ml_x.npy", np.concatenate([np.zeros((1, 2)), kinds[1:]]))
    result = cli("train", place, "--layout", "dyglib", *small, "--neighbor-types", "f0",
                 "--name", "typed", "--json")  # fmt: skip
    assert result.code == 0, result.err
    assert result.last["settings"]["training"]["neighbor_types"] == ["f0"]
    again = cli("evaluate", "runs/typed", "--json")
    assert again.code == 0, again.err
    assert again.last["test"] == result.last["test"]
    plain = cli("train", place, "--layout", "dyglib", *small, "--json")
    assert json.dumps(plain.last["epochs"][0]["loss"]) != json.dumps(
        result.last["epochs"][0]["loss"]
    )
    wrong = cli("train", place, "--layout", "dyglib", *small, "--neighbor-types", "f9")
    assert wrong.code == 2
    assert "there is no event feature 'f9'" in wrong.err
