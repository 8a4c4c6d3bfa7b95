"""Flags that would have no effect are refused, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from command import COLUMNS, SMALL, Result, cli
from tidegraph.cli.settings import merge
from tidegraph.errors import SettingError

Trained = tuple[Path, dict[str, Any]]


def _refused(result: Result, message: str) -> None:
    assert result.code == 2, result.out + result.err
    assert message in result.err


TIMES = ("--val-time", "5000", "--test-time", "6000")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--val", "0.2", *TIMES), "val (--val) has no effect with val_time (--val-time)"),
        (("--test", "0.2", *TIMES), "test (--test) has no effect with val_time"),
        (("--ties", "row", *TIMES), "ties (--ties) has no effect with val_time"),
        (("--split-by", "time", *TIMES), "by (--by) has no effect with val_time"),
        (("--split-by", "time", "--ties", "row"), "ties='row' has no effect with by='time'"),
        (
            ("--checkpoint-seconds", "5", "--checkpoint-batches", "4"),
            "checkpoint_seconds (--checkpoint-seconds) has no effect with checkpoint_batches",
        ),
        (("--query", "SELECT * FROM data", "--table", "t"), "table (--table) has no effect with"),
    ],
)
def test_training(table: Path, here: Path, flags: tuple[str, ...], message: str) -> None:
    _refused(cli("train", table, *COLUMNS, *SMALL, *flags), message)
    assert not list(here.iterdir())


def test_a_later_origin_stands_over_an_earlier_one(here: Path) -> None:
    """Flags over the file over the preset; within one origin, and backwards, it is refused."""
    times = {"val_time": 5, "test_time": 6}
    assert merge({"split": times}, preset="published").split.val_time == 5
    config = Path("a.yaml")
    config.write_text("split: {val: 0.2}\n")
    assert merge({"split": times}, config=config).split.effective() == {
        "hidden_nodes": 0.0,
        **times,
    }
    config.write_text("split: {val_time: 5, test_time: 6}\n")
    with pytest.raises(SettingError, match="no effect with val_time"):
        merge({"split": {"val": 0.2}}, config=config)
    config.write_text("split: {val: 0.2, val_time: 5, test_time: 6}\n")
    with pytest.raises(SettingError, match="no effect with val_time"):
        merge({}, config=config)


@pytest.mark.parametrize("flag", ["--header", "--delimiter=;"])
@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl"])
def test_how_a_text_file_is_read_says_nothing_of_others(here: Path, name: str, flag: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    if name == "t.parquet":
        parquet.write_table(pa.table({"user": ["a"], "item": ["b"], "ts": [1]}), name)
    else:
        Path(name).write_text('{"user": "a", "item": "b", "ts": 1}\n')
    option = flag.strip("-").split("=")[0]
    _refused(cli("describe", name, *COLUMNS, flag), f"{option}= is for CSV and TSV files; {name}")


@pytest.mark.parametrize("flag", ["--time", "--features", "--label", "--weight", "--time-unit"])
def test_pairs_have_two_columns(trained: Trained, here: Path, flag: str) -> None:
    Path("pairs.csv").write_text("user,item\nu0,a\n")
    value = "s" if flag == "--time-unit" else "ts"
    result = cli("predict", trained[0], "--pairs", "pairs.csv", flag, value)
    _refused(result, f"{flag} is for --events; pairs have a source and a target alone")


def test_stored_events_know_their_columns(trained: Trained, table: Path, here: Path) -> None:
    assert cli("ingest", table, *COLUMNS, "--out", "store").code == 0
    result = cli("predict", trained[0], "--events", "store", "--label", "is_fraud")
    _refused(result, "--label: no effect on 'store', whose columns are already known")


def test_a_side_of_all_nodes(trained: Trained, here: Path) -> None:
    _refused(cli("embed", trained[0], "--side", "source"), "all nodes are embedded")


def test_resuming_goes_on_where_the_run_is(trained: Trained, here: Path) -> None:
    _refused(cli("train", "--resume", trained[0], "--out", "x"), "leave out out")
    flags = ("--checkpoint-seconds", "5", "--checkpoint-batches", "4")
    _refused(cli("train", "--resume", trained[0], *flags), "has no effect with checkpoint_batches")
