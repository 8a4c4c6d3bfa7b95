"""`tidegraph evaluate`, `predict` and `embed`: what a finished run is for."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

import tidegraph as tg
from command import COLUMNS, SMALL, cli, write_table

Trained = tuple[Path, dict[str, Any]]


@pytest.fixture
def run(trained: Trained, here: Path) -> Path:
    """A copy of the finished run, to be changed."""
    return Path(shutil.copytree(trained[0], here / "run"))


@pytest.fixture
def tomorrow(here: Path) -> Path:
    return write_table(here / "tomorrow.csv", 120, 30)


class TestEvaluate:
    def test_the_same_figures_as_training_printed(self, trained: Trained) -> None:
        directory, found = trained
        result = cli("evaluate", directory, "--json")
        assert result.code == 0, result.err
        assert result.last["test"] == found["test"]
        assert result.last["baselines"] == found["baselines"]

    def test_prints_the_same_table(self, trained: Trained) -> None:
        result = cli("evaluate", trained[0])
        assert "test, all events" in result.out
        value = next(m["value"] for m in trained[1]["test"]["metrics"] if m["name"] == "MRR")
        assert f"{value:.4f}" in result.out

    def test_candidates_change_the_protocol(self, trained: Trained) -> None:
        result = cli("evaluate", trained[0], "--candidates", "2", "--no-baselines", "--json")
        metrics = {m["name"]: m for m in result.last["test"]["metrics"]}
        assert metrics["MRR"]["protocol"].startswith("2 random destinations per positive")
        assert result.last["baselines"] == []


class TestPredictEvents:
    def test_scores_are_those_of_the_python_interface_under_original_ids(
        self, run: Path, tomorrow: Path
    ) -> None:
        result = cli("predict", run, "--events", tomorrow)
        assert result.code == 0, result.err
        assert list(result.rows[0]) == ["row", "source", "target", "time", "score"]
        later = tg.read_table(
            tomorrow, source="user", target="item", time="ts", features=("amount", "hour"),
            label="is_fraud", time_unit="s",
        )  # fmt: skip
        expected = tg.load_run(run, at="stream").predict_events(later)
        assert [row["source"] for row in result.rows] == expected.source.tolist()
        assert [row["target"] for row in result.rows] == expected.target.tolist()
        found = np.array([row["score"] for row in result.rows], np.float32)
        np.testing.assert_array_equal(found, expected.score)

    def test_nothing_moves_without_keep(self, run: Path, tomorrow: Path) -> None:
        first, second = (cli("predict", run, "--events", tomorrow) for _ in range(2))
        assert first.out == second.out

    def test_keep_moves_the_run_forward(self, run: Path, here: Path) -> None:
        both = write_table(here / "both.csv", 120, 40)
        first = write_table(here / "first.csv", 120, 20)
        second = write_table(here / "second.csv", 140, 20)
        at_once = cli("predict", run, "--events", both).rows
        assert cli("predict", run, "--events", first, "--keep").code == 0
        after = cli("predict", run, "--events", second)
        assert after.code == 0, after.err
        scores = [row["score"] for row in at_once[20:]]
        assert [row["score"] for row in after.rows] == scores
        # The figures of the run itself stay what they were.
        assert cli("evaluate", run).code == 0

    def test_labels_of_new_events_may_be_unknown(self, run: Path, here: Path) -> None:
        new = here / "new.csv"
        with open(write_table(here / "all.csv", 120, 5)) as file:
            rows = [row[:6] for row in csv.reader(file)]
        new.write_text("\n".join(",".join(row) for row in rows))
        result = cli("predict", run, "--events", new)
        assert result.code == 0, result.err
        assert len(result.rows) == 5

    def test_other_column_names_by_flags(self, run: Path, here: Path, tomorrow: Path) -> None:
        text = tomorrow.read_text().replace("user,item,ts", "buyer,shop,when")
        (here / "other.csv").write_text(text)
        result = cli("predict", run, "--events", "other.csv", "--source", "buyer",
                     "--target", "shop", "--time", "when")  # fmt: skip
        assert result.out == cli("predict", run, "--events", tomorrow).out

    def test_new_nodes_are_scored(self, run: Path, here: Path) -> None:
        new = write_table(here / "new.csv", 120, 3, item=lambda i: "brand new")
        result = cli("predict", run, "--events", new)
        assert result.code == 0, result.err
        assert {row["target"] for row in result.rows} == {"brand new"}

    def test_candidates_give_ranks(self, run: Path, tomorrow: Path) -> None:
        result = cli("predict", run, "--events", tomorrow, "--candidates", "4", "--json",
                     "--out", "scores.csv")  # fmt: skip
        rows = list(csv.DictReader(Path("scores.csv").read_text().splitlines()))
        ranks = np.array([row["rank"] for row in rows], float)
        assert ((ranks >= 1) & (ranks <= 5)).all()
        assert result.last["mean_reciprocal_rank"] == pytest.approx(np.mean(1 / ranks))
        assert result.last["rows"] == 30

    def test_embeddings_in_every_format(self, run: Path, tomorrow: Path) -> None:
        for suffix in ("csv", "parquet", "jsonl", "npz"):
            result = cli("predict", run, "--events", tomorrow, "--embeddings",
                         "--out", f"scores.{suffix}")  # fmt: skip
            assert result.code == 0, result.err
            assert result.out == ""
        table = parquet.read_table("scores.parquet")
        expected = np.array(table["target_embedding"].to_pylist(), np.float32)
        assert expected.shape == (30, 8)
        flat = list(csv.DictReader(Path("scores.csv").read_text().splitlines()))
        found = [[row[f"target_embedding_{d}"] for d in range(8)] for row in flat]
        np.testing.assert_array_equal(np.array(found, np.float32), expected)
        lines = [json.loads(line) for line in Path("scores.jsonl").read_text().splitlines()]
        np.testing.assert_array_equal(
            np.array([line["target_embedding"] for line in lines], np.float32), expected
        )
        with np.load("scores.npz", allow_pickle=False) as arrays:
            np.testing.assert_array_equal(arrays["target_embedding"], expected)
            assert arrays["source"].tolist() == table["source"].to_pylist()

    def test_categories_are_matched_by_value(self, table: Path, here: Path) -> None:
        trained = cli("train", table, *COLUMNS, "--features", "amount", "--categorical", "kind",
                      *SMALL, "--name", "kinds")  # fmt: skip
        assert trained.code == 0, trained.err
        # Tomorrow has no "x", and a "w" that was never seen: it has no feature of its own.
        write_table(here / "new.csv", 120, 8, kind=lambda i: "zyw"[i % 3])
        result = cli("predict", "runs/kinds", "--events", "new.csv")
        assert result.code == 0, result.err
        run = tg.load_run("runs/kinds", at="stream")
        assert run.events.schema.feature_names == ("amount", "kind=x", "kind=y", "kind=z")
        later = tg.read_table("new.csv", source="user", target="item", time="ts",
                              features=("amount",))  # fmt: skip
        kinds = ["zyw"[i % 3] for i in range(120, 128)]
        one_hot = np.array([[kind == k for k in "xyz"] for kind in kinds], np.float32)
        features = np.concatenate([np.asarray(later.features), one_hot], axis=1)
        expected = run.predict_events(
            tg.read_table(
                {"u": later.ids.to_original(later.source), "v": later.ids.to_original(later.target),
                 "t": later.time, **{f"f{i}": features[:, i] for i in range(4)}},
                source="u", target="v", time="t", features=[f"f{i}" for i in range(4)],
            )
        )  # fmt: skip
        found = np.array([row["score"] for row in result.rows], np.float32)
        np.testing.assert_array_equal(found, expected.score)

    def test_another_number_of_features(self, run: Path, tomorrow: Path) -> None:
        result = cli("predict", run, "--events", tomorrow, "--features", "amount")
        assert result.code == 2
        assert "trained with 2 event features (amount, hour); these events have 1 (amount)" in (
            result.err
        )

    def test_a_missing_feature_column(self, run: Path, here: Path, tomorrow: Path) -> None:
        (here / "less.csv").write_text(tomorrow.read_text().replace("amount", "sum"))
        result = cli("predict", run, "--events", "less.csv")
        assert result.code == 2
        assert "less.csv: no column 'amount' (for features); columns: user, item, ts, sum" in (
            result.err
        )

    def test_events_of_yesterday(self, run: Path, here: Path) -> None:
        write_table(here / "old.csv", 50, 5)
        result = cli("predict", run, "--events", "old.csv")
        assert result.code == 2
        assert "old.csv: row 1 has time 3000, earlier than the last event so far (7140)" in (
            result.err
        )

    def test_events_and_pairs_exclude_each_other(self, run: Path, tomorrow: Path) -> None:
        for flags in ([], ["--events", tomorrow, "--pairs", tomorrow]):
            result = cli("predict", run, *flags)
            assert result.code == 2
            assert "either --events FILE or --pairs FILE" in result.err


class TestPredictPairs:
    @pytest.fixture
    def pairs(self, here: Path) -> Path:
        path = here / "pairs.csv"
        path.write_text("user,item\nu1,a\nu2,e\nu1,e\n")
        return path

    def test_scores_are_those_of_the_python_interface(self, run: Path, pairs: Path) -> None:
        result = cli("predict", run, "--pairs", pairs, "--at", "8000")
        assert result.code == 0, result.err
        expected = tg.load_run(run, at="stream").predict(
            [("u1", "a"), ("u2", "e"), ("u1", "e")], time=8000
        )
        assert [(r["source"], r["target"], r["time"]) for r in result.rows] == [
            ("u1", "a", "8000"), ("u2", "e", "8000"), ("u1", "e", "8000"),
        ]  # fmt: skip
        found = np.array([row["score"] for row in result.rows], np.float32)
        np.testing.assert_array_equal(found, expected.score)

    def test_iso_time_where_the_unit_is_known(self, run: Path, pairs: Path) -> None:
        iso = cli("predict", run, "--pairs", pairs, "--at", "1970-01-01T02:13:20")
        assert iso.out == cli("predict", run, "--pairs", pairs, "--at", "8000").out

    def test_a_node_that_the_model_does_not_know(self, run: Path, pairs: Path) -> None:
        pairs.write_text("user,item\nu1,a\nnobody,e\n")
        result = cli("predict", run, "--pairs", pairs)
        assert result.code == 2
        assert "'nobody'" in result.err

    def test_a_query_older_than_the_history(self, run: Path, pairs: Path) -> None:
        result = cli("predict", run, "--pairs", pairs, "--at", "100")
        assert result.code == 2
        assert "query time 100 is before the last streamed event at 7140" in result.err

    def test_a_missing_id(self, run: Path, pairs: Path) -> None:
        pairs.write_text("user,item\nu1,a\n,e\n")
        result = cli("predict", run, "--pairs", pairs)
        assert result.code == 2
        assert "pairs.csv, row 2 (data rows counted from 1), column 'user'" in result.err

    def test_flags_without_effect_are_refused(self, run: Path, pairs: Path) -> None:
        for flags in (["--keep"], ["--candidates", "3"], ["--embeddings"]):
            result = cli("predict", run, "--pairs", pairs, *flags)
            assert result.code == 2
            assert "no effect on --pairs" in result.err


class TestOutput:
    def test_a_format_that_is_not_known_is_refused_before_any_work(
        self, run: Path, tomorrow: Path
    ) -> None:
        result = cli("predict", run, "--events", tomorrow, "--out", "scores.xlsx")
        assert result.code == 2
        assert "ends in .csv, .parquet, .jsonl, .npz" in result.err

    def test_a_directory_that_is_not_there(self, run: Path, tomorrow: Path) -> None:
        result = cli("predict", run, "--events", tomorrow, "--out", "no/where.csv")
        assert result.code == 2
        assert "there is no directory no" in result.err

    def test_a_failed_write_leaves_the_old_file(
        self, run: Path, tomorrow: Path, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tidegraph.cli import output

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        (here / "scores.parquet").write_text("old")
        monkeypatch.setattr(output, "_write_parquet", full)
        result = cli("predict", run, "--events", tomorrow, "--out", "scores.parquet")
        assert result.code == 2
        assert "cannot write scores.parquet: No space left on device" in result.err
        assert (here / "scores.parquet").read_text() == "old"
        assert not list(here.glob(".scores*"))


class TestEmbed:
    def test_all_nodes_under_original_ids(self, run: Path) -> None:
        result = cli("embed", run, "--out", "nodes.parquet", "--json")
        assert result.code == 0, result.err
        table = parquet.read_table("nodes.parquet")
        expected = tg.load_run(run, at="stream").embed()
        assert table["node"].to_pylist() == expected.node.tolist()
        found = np.array(table["embedding"].to_pylist(), np.float32)
        np.testing.assert_array_equal(found, expected.embedding)
        assert (result.last["rows"], result.last["width"]) == (15, 8)

    def test_some_nodes_by_id_or_from_a_file(self, run: Path, here: Path) -> None:
        (here / "ids.txt").write_text("u3\nb\n")
        by_id = cli("embed", run, "--nodes", "u3", "b", "--at", "9000")
        from_file = cli("embed", run, "--nodes", "ids.txt", "--at", "9000")
        assert by_id.code == 0, by_id.err
        assert [row["node"] for row in by_id.rows] == ["u3", "b"]
        assert by_id.out == from_file.out

    def test_an_unknown_node(self, run: Path) -> None:
        result = cli("embed", run, "--nodes", "u3", "zzz")
        assert result.code == 2
        assert "'zzz'" in result.err

    def test_equal_ids_on_both_sides_need_a_side(self, here: Path) -> None:
        path = here / "numbers.csv"
        rows = [f"{i % 4},{(i * 3) % 5},{i}" for i in range(60)]
        path.write_text("\n".join(["source,target,time", *rows]))
        done = cli("train", path, "--bipartite", *SMALL, "--name", "two", "--epochs", "1")
        assert done.code == 0, done.err
        assert "say which" in cli("embed", "runs/two", "--nodes", "3").err
        source, target = (cli("embed", "runs/two", "--nodes", "3", "--side", side)
                          for side in ("source", "target"))  # fmt: skip
        assert source.code == target.code == 0
        assert source.out != target.out
