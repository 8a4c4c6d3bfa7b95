"""What bad input gets from the command line: a message that names it, exit code 2, no traceback."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command import COLUMNS, FEATURES, SMALL, Result, cli, write_table

Trained = tuple[Path, dict[str, Any]]


def train(path: Path, *more: object) -> Result:
    return cli("train", path, *COLUMNS, *FEATURES, *SMALL, *more)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("ts", "soon", "bad.csv, row 4 (data rows counted from 1), column 'ts' is 'soon'"),
        ("ts", "", "row 4 (data rows counted from 1), column 'ts' time is missing"),
        ("amount", "nan", "row 4 (data rows counted from 1), column 'amount'"),
        ("amount", "inf", "row 4 (data rows counted from 1), column 'amount'"),
        ("amount", "much", "row 4 (data rows counted from 1), column 'amount'"),
        ("user", "", "row 4 (data rows counted from 1), column 'user'"),
        ("is_fraud", "maybe", "row 4 (data rows counted from 1), column 'is_fraud'"),
    ],
)
def test_a_bad_value_is_named_with_its_row_and_column(
    here: Path, column: str, value: str, message: str
) -> None:
    good = _makers()[column]
    table = write_table(here / "bad.csv", **{column: lambda i: value if i == 3 else good(i)})
    result = train(table, "--label", "is_fraud")
    _refused(result, message)
    assert not (here / "runs").exists()


def _makers() -> dict[str, Callable[[int], Any]]:
    return {"ts": lambda i: i, "amount": lambda i: i, "user": lambda i: f"u{i}",
            "is_fraud": lambda i: 0}  # fmt: skip


def _refused(result: Result, message: str) -> None:
    assert result.code == 2, result.out + result.err
    assert message in result.err
    assert "Traceback" not in result.err
    assert result.err.count("error: ") == 1


def test_a_missing_column_lists_those_there_are_and_names_the_flag(table: Path, here: Path) -> None:
    result = cli("train", table, "--source", "usr", "--target", "item", "--time", "ts")
    _refused(result, "trips.csv: no column 'usr' (for source); columns: user, item, ts, amount")
    assert "Did you mean 'user'?" in result.err
    assert "--source NAME" in result.err


def test_columns_must_be_named_unless_they_are_called_source_target_time(table: Path) -> None:
    _refused(cli("train", table), "no column 'source' (for source); columns: user, item, ts")


def test_an_empty_file(here: Path) -> None:
    Path("empty.csv").write_text("")
    _refused(train(here / "empty.csv"), "empty.csv: is empty; expected a table of events")


def test_a_header_without_rows(here: Path) -> None:
    table = write_table(here / "none.csv", rows=0)
    _refused(train(table), "none.csv: has a header and no rows")


def test_one_event_only(here: Path) -> None:
    table = write_table(here / "one.csv", rows=1)
    _refused(train(table), "one event only; a split needs at least two")


def test_a_single_node(here: Path) -> None:
    table = write_table(here / "one.csv", user=lambda i: "x", item=lambda i: "x")
    _refused(train(table), "a single node; predicting links needs at least two nodes")


def test_a_part_that_would_be_empty(here: Path) -> None:
    table = write_table(here / "tied.csv", ts=lambda i: 5)
    _refused(train(table), "would be empty")


def test_a_file_that_is_not_there_suggests_the_closest(here: Path) -> None:
    write_table(here / "trips.csv")
    _refused(train(Path("trip.csv")), "trip.csv: no such file. Did you mean trips.csv?")


def test_a_data_set_that_is_not_there_suggests_the_closest(here: Path) -> None:
    _refused(cli("train", "wikipeda"), "there is no data set 'wikipeda'. Did you mean 'wikipedia'?")


def test_an_unknown_format(here: Path) -> None:
    Path("trips.xlsx").write_text("x")
    _refused(train(Path("trips.xlsx")), "unknown file format '.xlsx'")


def test_columns_of_a_data_set_are_known(here: Path) -> None:
    result = cli("train", "synthetic:wikipedia:0.01", "--source", "user")
    _refused(result, "--source: no effect on 'synthetic:wikipedia:0.01'")


class TestSettings:
    def test_a_value_out_of_range(self, table: Path) -> None:
        _refused(train(table, "--learning-rate", "-1"), "setting learning_rate=-1.0")

    def test_a_model_value_that_does_not_fit(self, table: Path) -> None:
        _refused(train(table, "--heads", "3"), "embedding=8 is not divisible by heads=3")

    @pytest.mark.parametrize(
        ("flag", "value", "message"),
        [
            ("heads", "0", "heads=0: expected 1 or more"),
            ("memory", "0", "memory=0: expected 1 or more"),
            ("model-time", "-1", "time=-1: expected 1 or more"),
            ("embedding", "0", "embedding=0: expected 1 or more"),
            ("dropout", "1", "dropout=1.0: expected a probability from 0 to below 1"),
            ("dropout", "nan", "dropout=nan: expected a probability"),
            ("memory", "1000000000000", "memory=1000000000000: expected less than 2,147,483,648"),
            ("memory", str(2**70), "expected less than 2,147,483,648"),
            ("memory", "2000000000", "memory=2000000000"),
            ("memory", "1000000", "the weights and their optimiser would need"),
            ("model-time", "2000000000", "the weights and their optimiser would need"),
            ("embedding", "2000000000", "the weights of tgn alone are more than 2^63 bytes"),
            ("neighbors", "2000000000", "the neighbours of a batch would need"),
            ("candidates", "2000000000", "the candidates of a batch would need"),
        ],
    )
    def test_a_model_that_cannot_be(
        self, table: Path, here: Path, flag: str, value: str, message: str
    ) -> None:
        _refused(train(table, f"--{flag}", value), message)
        assert not list(here.glob("runs/*"))

    @pytest.mark.parametrize(
        "name", ["../x", "a/b", "/tmp/x", "..", ".", "", " ", "x ", "-x", "a\nb", "a\0b", "c:d"]
    )
    def test_a_name_that_is_not_one_directory(self, table: Path, here: Path, name: str) -> None:
        _refused(train(table, f"--name={name}"), "expected the name of one new directory")
        assert not list(here.iterdir())

    def test_a_name_that_the_file_system_refuses(self, table: Path, here: Path) -> None:
        _refused(train(table, "--name", "a" * 300), "aaa: File name too long")

    def test_an_unknown_model(self, table: Path) -> None:
        result = train(table, "--model", "tng")
        _refused(result, "unknown model 'tng': expected one of tgn")
        assert "Did you mean 'tgn'?" in result.err

    def test_an_unknown_preset(self, table: Path) -> None:
        _refused(train(table, "--preset", "publish"), "Did you mean 'published'?")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("training: {batchsize: 3}", "unknown training setting 'batchsize'"),
            ("training: {batchsize: 3}", "Did you mean 'batch_size'?"),
            ("modell: {memory: 3}", "section 'modell': expected one of data, split, model"),
            ("training: {memory: 3}", "'memory' is not in section 'training' but in 'model'"),
            ("model: {neighbours: 3}", "Did you mean 'neighbors'?"),
            ("model: {memory: many}", "tgn setting memory='many'"),
            ("split: {val: all}", "setting val='all'"),
            ("training: 3", "section 'training' is 3; expected keys and values"),
            ("[1, 2", "is not YAML"),
        ],
    )
    def test_a_file_of_settings(self, table: Path, here: Path, text: str, message: str) -> None:
        Path("mine.yaml").write_text(text)
        _refused(cli("train", table, *COLUMNS, "--config", "mine.yaml"), message)

    def test_a_file_of_settings_that_is_not_there(self, table: Path, here: Path) -> None:
        _refused(train(table, "--config", "no.yaml"), "--config no.yaml: No such file or directory")

    def test_validation_chooses_the_best_epoch(self, table: Path, here: Path) -> None:
        _refused(train(table, "--val", "0"), "the best epoch is chosen on the validation part")


class TestRuns:
    @pytest.fixture
    def run(self, trained: Trained, here: Path) -> Path:
        return Path(shutil.copytree(trained[0], here / "run"))

    def test_not_a_run(self, here: Path) -> None:
        Path("else").mkdir()
        for command in ("evaluate", "embed"):
            _refused(cli(command, "else"), "else is not the directory of a run")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"\xff\xfe", "config.yaml cannot be read as YAML"),
            (b"model: tgn\n", "config.yaml: model='tgn': expected keys and values"),
            (b"model: {}\ntraining: {}\n", "config.yaml: key 'model.name' is missing"),
        ],
    )
    def test_settings_of_a_run_changed_by_hand(
        self, run: Path, content: bytes, message: str
    ) -> None:
        (run / "config.yaml").write_bytes(content)
        _refused(cli("evaluate", run), message)
        _refused(cli("train", "--resume", run), message)

    def test_dates_for_a_run_without_a_time_unit(self, table: Path, here: Path) -> None:
        assert train(table, "--name", "bare", "--epochs", "1").code == 0
        later = write_table(here / "later.csv", rows=2, ts=lambda i: f"2020-01-0{i + 1}")
        result = cli("predict", "runs/bare", "--events", later)
        _refused(result, "column 'ts' holds dates, but the run's time is bare numbers")

    def test_pairs_that_cannot_be_read(self, run: Path, here: Path) -> None:
        Path("pairs.csv").write_text("user,item\nu1,a\nu2\n")
        _refused(cli("predict", run, "--pairs", "pairs.csv"), "pairs.csv: cannot be read")

    def test_nodes_that_cannot_be_read(self, run: Path, here: Path) -> None:
        Path("nodes.txt").write_bytes("u1\n".encode("utf-16"))
        _refused(cli("embed", run, "--nodes", "nodes.txt"), "nodes.txt: is not UTF-8 text")
        Path("nodes.txt").write_bytes("u1\n".encode("utf-8-sig"))
        assert len(cli("embed", run, "--nodes", "nodes.txt").rows) == 1

    def test_a_checkpoint_of_another_kind(self, run: Path) -> None:
        checkpoints = run / "checkpoints"
        shutil.copy(checkpoints / "best.safetensors", checkpoints / "last.safetensors")
        _refused(
            cli("train", "--resume", run),
            "last.safetensors is a 'best' checkpoint, expected a 'last' one to resume",
        )

    def test_a_truncated_checkpoint(self, run: Path) -> None:
        best = run / "checkpoints" / "best.safetensors"
        best.write_bytes(best.read_bytes()[:-100])
        _refused(cli("evaluate", run), f"checkpoint {best} is truncated or damaged")

    def test_a_corrupted_checkpoint(self, run: Path) -> None:
        best = run / "checkpoints" / "best.safetensors"
        content = bytearray(best.read_bytes())
        content[-50] ^= 1
        best.write_bytes(content)
        _refused(cli("evaluate", run), "its checksum does not match its content")

    def test_a_checkpoint_of_another_model(self, run: Path, table: Path) -> None:
        done = train(table, "--name", "wide", "--memory", "12", "--epochs", "1")
        assert done.code == 0, done.err
        shutil.copy("runs/wide/checkpoints/last.safetensors", run / "checkpoints")
        _refused(cli("train", "--resume", run), "belongs to another model")

    def test_data_that_changed_since(self, table: Path, here: Path) -> None:
        mine = Path(shutil.copy(table, here / "mine.csv"))
        assert train(mine, "--name", "mine", "--epochs", "1").code == 0
        _forget_stored_copies()
        write_table(mine, rows=110)
        _refused(cli("evaluate", "runs/mine"), "has changed since the run was made")

    def test_data_that_is_gone(self, table: Path, here: Path) -> None:
        mine = Path(shutil.copy(table, here / "mine.csv"))
        assert train(mine, "--name", "mine", "--epochs", "1").code == 0
        _forget_stored_copies()
        mine.unlink()
        _refused(cli("evaluate", "runs/mine"), "the events of this run are gone")

    def test_a_table_whose_stored_copy_is_gone_is_read_again(self, table: Path, here: Path) -> None:
        mine = Path(shutil.copy(table, here / "mine.csv"))
        done = train(mine, "--name", "mine", "--epochs", "1", "--json")
        _forget_stored_copies()
        again = cli("evaluate", "runs/mine", "--json")
        assert again.code == 0, again.err
        assert again.last["test"] == done.last["test"]


def _forget_stored_copies() -> None:
    from tidegraph.events.published import default_cache_directory

    for store in (default_cache_directory() / "tables").glob("mine-csv-*"):
        shutil.rmtree(store)


def test_a_bug_shows_its_traceback(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegraph.events import core

    def fail(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(core.Events, "describe", fail)
    with pytest.raises(ZeroDivisionError):
        cli("describe", table, *COLUMNS)
