"""Files of other libraries, read by the name of their layout."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tidegraph as tg
from tidegraph.events import Events, read_node_labels, read_table

JODIE = """user_id,item_id,timestamp,state_label,comma_separated_list_of_features
0,0,0.0,0,0.5,-1.0
1,0,36.0,0,0.25,2.0
0,1,77.0,1,1.5,0.0
2,0,131.0,0,0.0,3.0
"""
DYGLIB = """,u,i,ts,label,idx
0,1,4,5.0,0.0,1
1,2,4,3.0,1.0,2
2,1,5,8.0,0.0,3
"""
TGL = """,src,dst,time,int_roll,ext_roll
0,0,3,10.0,0,0
1,1,3,20.0,0,0
2,0,4,30.0,0,1
3,2,4,40.0,0,2
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def ends(events: Events) -> list[tuple[Any, Any]]:
    original = events.ids.to_original
    return list(
        zip(original(events.source).tolist(), original(events.target).tolist(), strict=True)
    )


def features(events: Events) -> list[list[float]]:
    assert events.features is not None
    return [[float(value) for value in row] for row in events.features]


def refused(message: str, path: Any, layout: str, **more: Any) -> None:
    with pytest.raises(tg.TidegraphError) as found:
        read_table(path, layout=layout, **more)
    assert message in str(found.value)


class TestJodie:
    def test_users_and_items_have_numbers_of_their_own(self, tmp_path: Path) -> None:
        events = read_table(write(tmp_path / "w.csv", JODIE), layout="jodie", time_unit="s")
        assert ends(events) == [(0, 0), (1, 0), (0, 1), (2, 0)]
        assert events.source.tolist() == [0, 1, 0, 2]
        assert events.target.tolist() == [3, 3, 4, 3]  # items follow the users
        assert events.schema.bipartite
        assert (events.schema.num_nodes, events.schema.num_sources) == (5, 3)
        assert events.time.tolist() == [0, 36, 77, 131]
        assert events.time.dtype == np.int64
        assert features(events) == [[0.5, -1], [0.25, 2], [1.5, 0], [0, 3]]
        assert events.label is not None
        assert events.label.tolist() == [0, 0, 1, 0]
        assert events.schema.time_unit == "s"
        assert events.ids.to_internal(0, side="target").tolist() == [3]

    def test_fractions_of_time_stay(self, tmp_path: Path) -> None:
        text = JODIE.replace("36.0", "36.5")
        events = read_table(write(tmp_path / "w.csv", text), layout="jodie")
        assert events.time.tolist() == [0, 36.5, 77, 131]

    def test_big_integers_keep_every_digit(self, tmp_path: Path) -> None:
        first = 1_700_000_000_000_000_000
        text = f"user_id,item_id,timestamp,state_label,f\n0,5,{first},0,1\n9,5,{first + 1},0,2\n"
        events = read_table(write(tmp_path / "w.csv", text), layout="jodie")
        assert events.time.tolist() == [first, first + 1]
        assert ends(events) == [(0, 5), (9, 5)]  # numbers with gaps stay as they are
        assert events.schema.num_nodes == 3

    def test_without_features_and_packed(self, tmp_path: Path) -> None:
        path = tmp_path / "w.csv.gz"
        with gzip.open(path, "wt") as file:
            file.write("user_id,item_id,timestamp,state_label,features\n0,0,1,0\n1,0,2,1\n")
        events = read_table(path, layout="jodie")
        assert events.features is None
        assert ends(events) == [(0, 0), (1, 0)]

    def test_a_directory_with_one_table(self, tmp_path: Path) -> None:
        write(tmp_path / "wikipedia.csv", JODIE)
        assert len(read_table(tmp_path, layout="jodie")) == 4
        write(tmp_path / "mooc.csv", JODIE)
        refused("found mooc.csv, wikipedia.csv; name the file", tmp_path, "jodie")

    def test_the_same_as_the_catalog_reads(self, tmp_path: Path) -> None:
        by_name = read_table(write(tmp_path / "w.csv", JODIE), layout="jodie")
        by_hand = read_table(
            {"u": [0, 1, 0, 2], "i": [0, 0, 1, 0], "t": [0, 36, 77, 131]},
            source="u", target="i", time="t", bipartite=True,
        )  # fmt: skip
        assert by_name.source.tolist() == by_hand.source.tolist()
        assert by_name.target.tolist() == by_hand.target.tolist()
        assert ends(by_name) == ends(by_hand)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "has no rows"),
            ("user_id,item_id,timestamp,state_label,f\n", "has no rows"),
            (
                "u,i,t,l,f\n0,1,2,3,4\n",
                "has the columns u, i, t, l, f; layout jodie expects user_id",
            ),
            ("user_id,item_id,timestamp,state_label,f\n0,1,2\n", "row 1: has 3 fields"),
            (JODIE + "0,1,200.0,0,1.0\n", "Expected 6 columns, got 5"),
            (JODIE.replace("0.25", "x"), "'x'"),
            (JODIE.replace("0.25", "nan"), "features[0] in row 2 is nan"),
            (JODIE.replace("36.0", "inf"), "time in row 2 is inf"),
        ],
    )
    def test_what_cannot_be_read(self, tmp_path: Path, text: str, message: str) -> None:
        refused(message, write(tmp_path / "w.csv", text), "jodie")


class TestDyGLib:
    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        write(tmp_path / "ml_x.csv", DYGLIB)
        np.save(tmp_path / "ml_x.npy", [[0, 0], [1, 10], [2, 20], [3, 30]])
        np.save(tmp_path / "ml_x_node.npy", [[0], [1], [2], [3], [4], [5]])
        return tmp_path

    @pytest.mark.parametrize("layout", ["dyglib", "dgb"])
    def test_ids_start_at_one_and_row_zero_is_padding(self, place: Path, layout: str) -> None:
        events = read_table(place, layout=layout)
        assert ends(events) == [(2, 4), (1, 4), (1, 5)]
        assert events.row.tolist() == [1, 0, 2]
        assert events.time.tolist() == [3, 5, 8]
        assert features(events) == [[2, 20], [1, 10], [3, 30]]
        assert events.label is not None
        assert events.label.tolist() == [1, 0, 0]
        assert events.node_features is not None
        for node, expected in zip(events.ids.to_original(np.arange(5)), range(1, 6), strict=True):
            assert node == expected
            internal = events.ids.to_internal(node)[0]
            assert events.node_features[internal].tolist() == [expected]
        assert (events.schema.num_nodes, events.schema.bipartite) == (5, True)

    def test_idx_says_which_row_a_feature_is(self, place: Path) -> None:
        write(place / "ml_x.csv", DYGLIB.replace("5.0,0.0,1", "5.0,0.0,3"))
        events = read_table(place / "ml_x.csv", layout="dyglib")
        assert features(events) == [[2, 20], [3, 30], [3, 30]]

    def test_tables_of_zeros_stand_for_none(self, place: Path) -> None:
        np.save(place / "ml_x_node.npy", np.zeros((6, 172)))
        (place / "ml_x.npy").unlink()
        events = read_table(place, layout="dyglib")
        assert events.features is None
        assert events.node_features is None
        assert events.report.notes == (
            "no ml_x.npy beside the table: no event features",
            "ml_x_node.npy holds nothing but zeros: no node features",
        )

    def test_a_published_table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import os

        path = Path(os.environ.get("TIDEGRAPH_DATA", "")) / "ml_enron.csv.gz"
        if not path.is_file():
            pytest.skip("TIDEGRAPH_DATA has no ml_enron.csv.gz")
        events = read_table(path, layout="dyglib", time_unit="s")
        other = tg.load_dataset("enron")
        assert ends(events)[:2000] == ends(other)[:2000]
        assert (events.time == other.time).all()
        assert events.schema.num_nodes == other.schema.num_nodes == 184

    def test_what_does_not_fit(self, place: Path) -> None:
        np.save(place / "ml_x.npy", [[0.0], [1.0], [2.0]])
        refused("ml_x.npy: has 3 rows, but ml_x.csv has idx 3", place, "dyglib")
        np.save(place / "ml_x.npy", [1.0, 2.0])
        refused("ml_x.npy: has shape (2,)", place, "dyglib")
        np.save(place / "ml_x.npy", np.array([print], object), allow_pickle=True)
        refused("ml_x.npy: not a readable npy file", place, "dyglib")
        (place / "ml_x.npy").unlink()
        np.save(place / "ml_x_node.npy", [[0.0], [1.0]])
        refused("ml_x_node.npy: has 2 rows, but ml_x.csv has id 5", place, "dyglib")
        write(place / "ml_x.csv", DYGLIB.replace("0,1,4", "0,0,4"))
        refused("has an id or idx 0; in layout dyglib they start at 1", place, "dyglib")
        write(place / "ml_x.csv", DYGLIB.replace("0,1,4", "0,1.5,4"))
        refused("row 1, column u: 1.5; expected whole numbers", place, "dyglib")
        write(place / "ml_x.csv", DYGLIB.replace("ts", "when"))
        refused("no column ts; there are (no name), u, i, when, label, idx", place, "dyglib")


class TestTGL:
    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        write(tmp_path / "edges.csv", TGL)
        torch.save(torch.arange(8.0).reshape(4, 2), tmp_path / "edge_features.pt")
        torch.save(torch.eye(5), tmp_path / "node_features.pt")
        write(tmp_path / "labels.csv", ",node,time,label,ext_roll\n0,2,35.0,1,0\n1,7,15,0,1\n")
        return tmp_path

    def test_edges_features_and_rolls(self, place: Path) -> None:
        events = read_table(place, layout="tgl")
        assert ends(events) == [(0, 3), (1, 3), (0, 4), (2, 4)]
        assert features(events) == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert events.node_features is not None
        assert events.node_features.tolist() == np.eye(5).tolist()
        assert events.extra["ext_roll"].tolist() == [0, 0, 1, 2]
        assert events.report.notes == (
            "ext_roll ends training at 20 and validation at 30 (val_time, test_time)",
        )
        split = events.split(val_time=20, test_time=30)
        assert [len(part) for part in split] == [2, 1, 1]

    def test_labels_of_nodes_from_their_own_table(self, place: Path) -> None:
        events = read_table(place, layout="tgl")
        labels = read_node_labels(place / "labels.csv", events)
        assert labels.node_M.tolist() == [-1, 2]  # node 7 has no event
        assert labels.time_M.tolist() == [15, 35]
        assert labels.time_M.dtype == events.time.dtype
        assert labels.label_M.tolist() == [0, 1]
        assert labels.row_M.tolist() == [1, 0]

    def test_tables_beside_it_may_be_missing(self, place: Path) -> None:
        for name in ("edge_features.pt", "node_features.pt"):
            (place / name).unlink()
        write(place / "edges.csv", TGL.replace(",int_roll,ext_roll", "").replace(",0,0\n", "\n")
              .replace(",0,1\n", "\n").replace(",0,2\n", "\n"))  # fmt: skip
        events = read_table(place, layout="tgl")
        assert (events.features, events.node_features, dict(events.extra)) == (None, None, {})

    def test_what_does_not_fit(self, place: Path) -> None:
        torch.save(torch.ones(3, 2), place / "edge_features.pt")
        refused("edge_features.pt: has 3 rows for 4 edges", place, "tgl")
        torch.save([1, 2], place / "edge_features.pt")
        refused("edge_features.pt: holds list; expected a tensor", place, "tgl")
        (place / "edge_features.pt").write_bytes(b"no tensor")
        refused("edge_features.pt: not a readable file of one tensor", place, "tgl")
        (place / "edge_features.pt").unlink()
        torch.save(torch.ones(3, 2), place / "node_features.pt")
        refused("there are 3 nodes", place, "tgl")

    def test_a_file_of_tensors_that_would_run_code_is_not_run(self, place: Path) -> None:
        target = place / "touched"
        (place / "edge_features.pt").write_bytes(pickle.dumps(Touch(target)))
        refused("not a readable file of one tensor", place, "tgl")
        assert not target.exists()


class Touch:
    """Unpickled, it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (Path.touch, (self.path,))


class TestTGB:
    def test_the_wikipedia_form_offsets_items(self, tmp_path: Path) -> None:
        write(tmp_path / "tgbl-wiki_edgelist_v2.csv", JODIE)
        events = read_table(tmp_path, layout="tgb")
        assert ends(events) == [(0, 3), (1, 3), (0, 4), (2, 3)]
        assert features(events) == [[0.5, -1], [0.25, 2], [1.5, 0], [0, 3]]

    def test_other_nodes_are_numbered_as_they_come(self, tmp_path: Path) -> None:
        path = tmp_path / "tgbl-coin_edgelist.csv"
        write(path, "time,src,dst,weight\n5,0xb,0xa,8\n6,0xa,007,2\n6,0xb,007,1\n")
        events = read_table(path, layout="tgb")
        assert ends(events) == [(0, 1), (1, 2), (0, 2)]
        assert events.schema.feature_names == ("weight",)
        assert features(events) == [[8], [2], [1]]

    def test_what_cannot_be_read(self, tmp_path: Path) -> None:
        refused("layout tgb expects time", write(tmp_path / "a.csv", "t,u\n1,2\n"), "tgb")
        refused("found none", tmp_path, "tgb")


class TestAnyLayout:
    def test_an_unknown_name(self, tmp_path: Path) -> None:
        refused("layout is 'jodi'; expected one of jodie", tmp_path, "jodi")

    def test_nothing_there(self, tmp_path: Path) -> None:
        refused("no.csv: no such file or directory", tmp_path / "no.csv", "jodie")
        refused("found none", tmp_path, "dyglib")

    def test_a_frame(self) -> None:
        refused("is for files; found a dict", {"u": [1]}, "jodie")

    def test_arguments_without_effect(self, tmp_path: Path) -> None:
        path = write(tmp_path / "w.csv", JODIE)
        refused("source=, label= has no effect", path, "jodie", source="user_id", label=3)
        refused("bipartite=False does not go with it", path, "jodie", bipartite=False)

    def test_without_layout_columns_are_needed(self, tmp_path: Path) -> None:
        path = write(tmp_path / "w.csv", JODIE)
        with pytest.raises(tg.TidegraphError, match="needs target=, time=: which column is which"):
            read_table(path, source="user_id")

    def test_a_store(self, tmp_path: Path) -> None:
        path = write(tmp_path / "w.csv", JODIE)
        stored = read_table(path, layout="jodie", store=tmp_path / "stored")
        assert stored.path == tmp_path / "stored"
        assert stored.fingerprint == read_table(path, layout="jodie").fingerprint


class TestNodeLabels:
    EVENTS = Events.from_arrays([0, 1, 0], [1, 2, 2], [1, 2, 9])

    def test_within_the_parts_of_a_split(self) -> None:
        labels = read_node_labels(
            {"node": [0, 1, 2, 0, 1], "time": [1, 2, 3, 9, 50], "label": [1, 2, 3, 4, 5]},
            self.EVENTS,
        )
        parts = [self.EVENTS.range(0, 1), self.EVENTS.range(1, 2), self.EVENTS.range(2, 3)]
        found = [labels.within(part).label_M.tolist() for part in parts]
        assert found == [[1], [2], [3, 4, 5]]

    def test_text_ids_and_iso_times(self) -> None:
        events = read_table(
            {"u": ["ann", "bob"], "i": ["x", "x"], "t": ["2020-01-01", "2020-01-03"]},
            source="u", target="i", time="t",
        )  # fmt: skip
        labels = read_node_labels(
            {"who": ["bob", "x", "eve"], "when": ["2020-01-02"] * 3, "y": ["1", "0", "1"]},
            events, node="who", time="when", label="y",
        )  # fmt: skip
        assert labels.node_M.tolist() == [1, 2, -1]
        assert labels.seen_before(events).tolist() == [1, 1, 1]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"label": [1, float("nan")]}, "row 2 (data rows counted from 1), column 'label'"),
            ({"node": [0, None]}, "row 2 (data rows counted from 1), column 'node'"),
            ({"time": [0, None]}, "row 2"),
            ({"time": [0, 1.5]}, "the events' int64, and not all of them fit exactly"),
        ],
    )
    def test_what_cannot_be_used(self, change: dict[str, Any], message: str) -> None:
        table = {"node": [0, 1], "time": [1, 2], "label": [1, 0]} | change
        with pytest.raises(tg.TidegraphError) as found:
            read_node_labels(table, self.EVENTS)
        assert message in str(found.value)

    def test_a_column_that_is_not_there_and_an_option_that_is_none(self) -> None:
        with pytest.raises(tg.InputError, match="no column 'node' \\(for node\\)"):
            read_node_labels({"nod": [0], "time": [1], "label": [1]}, self.EVENTS)
        with pytest.raises(tg.TidegraphError, match="no option features="):
            read_node_labels({"node": [0]}, self.EVENTS, features="x")
