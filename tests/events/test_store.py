"""Events on disk: written whole or not at all, opened instantly, damage named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tidegraph.errors import InputError
from tidegraph.events import Events, concatenate, open_events, read_table, store
from tidegraph.events.files import FileColumn
from tidegraph.events.store import DirectorySink, describe_blocks, directory_sink


def sample() -> Events:
    """Six events with every kind of column and text ids."""
    return read_table(
        {
            "u": ["b", "a", "b", "c", "a", "b"],
            "i": ["x", "y", "x", "z", "x", "y"],
            "t": [5, 1, 2, 9, 3, 3],
            "f": np.arange(12.0).reshape(6, 2),
            "y": [0, 1, 0, 1, 0, 1],
            "w": [0.5, -1, 2, 1e6, 0, 3],
        },
        source="u",
        target="i",
        time="t",
        features="f",
        label="y",
        weight="w",
        node_features={"id": list("abcxyz"), "g": [1.0, 2, 3, 4, 5, 6]},
        node_id="id",
    )


def assert_equal(first: Events, second: Events) -> None:
    for name in (*store._COLUMNS,):
        here, there = getattr(first, name), getattr(second, name)
        assert here.dtype == there.dtype
        np.testing.assert_array_equal(here, there)
    assert first.schema == second.schema
    assert first.report == second.report
    assert first.fingerprint == second.fingerprint
    nodes = np.arange(first.schema.num_nodes)
    assert first.ids.to_original(nodes).tolist() == second.ids.to_original(nodes).tolist()


def test_round_trip(tmp_path: Path) -> None:
    events = sample()
    stored = events.save(tmp_path / "deep" / "events")
    assert stored.path == tmp_path / "deep" / "events"
    assert_equal(events, stored)
    assert_equal(events, open_events(tmp_path / "deep" / "events", verify=True))
    assert isinstance(stored.source.base, np.memmap)


def test_reading_into_a_store_equals_reading_into_memory(tmp_path: Path) -> None:
    table = {"u": [3, 1, 2], "i": [7, 8, 7], "t": [2, 1, 2], "f": [0.5, 1.5, 2.5]}
    columns = {"source": "u", "target": "i", "time": "t"}
    memory = read_table(table, **columns, features="f")  # type: ignore[arg-type]
    stored = read_table(table, **columns, features="f", store=tmp_path / "s")  # type: ignore[arg-type]
    assert stored.fingerprint == memory.fingerprint
    assert stored.features is not None
    assert memory.features is not None
    np.testing.assert_array_equal(stored.features, memory.features)


def test_fingerprint_follows_content() -> None:
    base = Events.from_arrays([0, 1], [2, 3], [1, 2], features=[1.0, 2.0])
    assert (
        base.fingerprint
        == Events.from_arrays(
            [1, 0], [3, 2], [2, 1], features=[2.0, 1.0], name="another"
        ).fingerprint
    )
    others = [
        Events.from_arrays([0, 1], [2, 3], [1, 2], features=[1.0, 2.5]),
        Events.from_arrays([0, 1], [2, 3], [1, 3], features=[1.0, 2.0]),
        Events.from_arrays([0, 1], [2, 3], [1, 2], label=[1.0, 2.0]),
        Events.from_arrays([0, 1], [2, 3], [1, 2], features=[1.0, 2.0], num_nodes=5),
    ]
    assert len({base.fingerprint, *(other.fingerprint for other in others)}) == 5


@pytest.mark.parametrize("name", ["source", "time", "features", "ids0_offsets", "ids1_data"])
def test_truncated_and_missing_files_are_named(tmp_path: Path, name: str) -> None:
    sample().save(tmp_path / "s")
    path = tmp_path / "s" / f"{name}.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(InputError, match=rf"{name}\.npy: has .* bytes, expected"):
        open_events(tmp_path / "s")
    path.unlink()
    with pytest.raises(InputError, match=rf"{name}\.npy: missing"):
        open_events(tmp_path / "s")


@pytest.mark.parametrize("name", [*store._COLUMNS, "ids0_data", "ids1_offsets"])
def test_one_flipped_bit_is_found(tmp_path: Path, name: str) -> None:
    sample().save(tmp_path / "s")
    path = tmp_path / "s" / f"{name}.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}\.npy: its content does not match its checksum"):
        open_events(tmp_path / "s", verify=True)


def test_damaged_header_is_found_on_open(tmp_path: Path) -> None:
    sample().save(tmp_path / "s")
    path = tmp_path / "s" / "time.npy"
    path.write_bytes(path.read_bytes().replace(b"<i8", b"<f8"))
    with pytest.raises(InputError, match=r"time\.npy: holds .*float64, expected"):
        open_events(tmp_path / "s")


def test_damaged_manifests_are_named(tmp_path: Path) -> None:
    sample().save(tmp_path / "s")
    path = tmp_path / "s" / "manifest.json"
    manifest = json.loads(path.read_text())
    for change, message in (
        ({"version": 99}, "format version 99"),
        ({"format": "other"}, "is not the manifest"),
        ({"fingerprint": "0"}, "fingerprint does not belong"),
    ):
        path.write_text(json.dumps(manifest | change))
        with pytest.raises(InputError, match=message):
            open_events(tmp_path / "s")
    path.write_text("{")
    with pytest.raises(InputError, match=r"manifest\.json: damaged"):
        open_events(tmp_path / "s")
    path.unlink()
    with pytest.raises(InputError, match=r"manifest\.json: missing"):
        open_events(tmp_path / "s")
    with pytest.raises(InputError, match="does not exist; expected a directory"):
        open_events(tmp_path / "nowhere")


def test_nothing_stays_after_a_failed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = sample()
    before = events.save(tmp_path / "s").fingerprint

    def full(self: object, piece: np.ndarray) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FileColumn, "append", full)
    for target in ("s", "new"):
        with pytest.raises(InputError, match="No space left on device"):
            events.save(tmp_path / target)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert open_events(tmp_path / "s", verify=True).fingerprint == before


def test_bad_rows_leave_no_store(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 2"):
        read_table(
            {"u": [1, 2], "i": [3, 4], "t": [1, 2], "f": [0.5, np.nan]},
            source="u",
            target="i",
            time="t",
            features="f",
            store=tmp_path / "s",
        )
    assert list(tmp_path.iterdir()) == []


def test_other_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="holds something other than stored events"):
        sample().save(tmp_path / "s")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        sample().save(tmp_path / "file")
    assert (tmp_path / "s" / "thesis.txt").exists()


def test_stored_events_can_be_replaced_while_open(tmp_path: Path) -> None:
    first = Events.from_arrays([0], [1], [5]).save(tmp_path / "s")
    Events.from_arrays([0, 1], [1, 0], [6, 7]).save(tmp_path / "s")
    assert first.time.tolist() == [5]
    assert open_events(tmp_path / "s").time.tolist() == [6, 7]
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_no_events_can_be_stored(tmp_path: Path) -> None:
    stored = Events.from_arrays([], [], [], num_nodes=3).save(tmp_path / "s")
    assert len(stored) == 0
    assert stored.schema.num_nodes == 3


def numbered(first: int, count: int) -> Events:
    """`count` events in a row of nodes, each with its own number as feature and time."""
    numbers = np.arange(first, first + count)
    return Events.from_arrays(numbers, numbers + 1, numbers, features=numbers.astype(float))


def test_i28_event_ids_run_on_over_several_calls() -> None:
    joined = concatenate(concatenate(numbered(0, 3), numbered(3, 2)), numbered(5, 4))
    whole = numbered(0, 9)
    assert joined.row.tolist() == list(range(9))
    assert joined.features is not None
    assert joined.features[:, 0].tolist() == list(range(9))
    assert joined.schema == whole.schema
    assert joined.fingerprint == whole.fingerprint
    assert joined.report.rows == 9


def text_events(rows: list[tuple[str, str, int]], **options: object) -> Events:
    u, i, t = zip(*rows, strict=True)
    table = {"u": list(u), "i": list(i), "t": list(t)}
    return read_table(table, source="u", target="i", time="t", **options)  # type: ignore[arg-type]


def pairs(events: Events) -> list[tuple[str, str]]:
    source, target = (events.ids.to_original(x).tolist() for x in (events.source, events.target))
    return list(zip(source, target, strict=True))


def test_i28_existing_nodes_keep_their_numbers() -> None:
    first = text_events([("m", "c", 1), ("c", "z", 2)])
    joined = concatenate(first, text_events([("a", "m", 3), ("z", "b", 4)]))
    assert joined.ids.to_original(range(5)).tolist() == ["c", "m", "z", "a", "b"]
    assert pairs(joined) == [("m", "c"), ("c", "z"), ("a", "m"), ("z", "b")]
    assert not joined.schema.bipartite


def test_new_targets_keep_bipartite_data_bipartite(tmp_path: Path) -> None:
    first = text_events([("u1", "x", 1), ("u2", "y", 2)])
    joined = concatenate(first, text_events([("u2", "a", 3)]))
    assert (joined.schema.bipartite, joined.schema.num_sources) == (True, 2)
    assert joined.target.tolist() == [2, 3, 4]
    grown = concatenate(joined, text_events([("u0", "a", 4)]))
    assert not grown.schema.bipartite
    assert grown.source.tolist() == [0, 1, 1, 5]
    assert "new sources" in grown.report.notes[-1]
    assert pairs(grown.save(tmp_path / "s"))[-1] == ("u0", "a")


def test_separate_namespaces_stay_separate_when_appending() -> None:
    options = {"bipartite": True}
    first = text_events([("1", "1", 1), ("2", "3", 2)], **options)
    joined = concatenate(first, text_events([("3", "1", 3), ("1", "2", 4)], **options))
    assert pairs(joined) == [("1", "1"), ("2", "3"), ("3", "1"), ("1", "2")]
    assert joined.source.tolist() == [0, 1, 4, 0]
    assert joined.target.tolist() == [2, 3, 2, 5]


def test_appending_checks_time_and_columns() -> None:
    first = Events.from_arrays([0], [1], [10])
    late = Events.from_arrays([0, 0], [1, 1], [12, 9], name="later.csv")
    with pytest.raises(InputError, match=r"later\.csv: row 2 has time 9, earlier than .*10"):
        concatenate(first, late)
    assert concatenate(first, Events.from_arrays([0], [1], [10])).time.tolist() == [10, 10]
    with pytest.raises(InputError, match="features differ"):
        concatenate(first, Events.from_arrays([0], [1], [11], features=[1.0]))
    with pytest.raises(InputError, match="int64"):
        concatenate(first, Events.from_arrays([0], [1], [11.5]))


def test_new_nodes_bring_their_features() -> None:
    first = Events.from_arrays([0], [1], [1], node_features=[1.0, 2.0])
    grown = Events.from_arrays([2], [1], [2], node_features=[9.0, 9.0, 3.0])
    joined = concatenate(first, grown)
    assert joined.node_features is not None
    assert joined.node_features[:, 0].tolist() == [1, 2, 3]
    with pytest.raises(InputError, match=r"new nodes .* come without"):
        concatenate(first, Events.from_arrays([2], [1], [2]))


def test_two_writers_of_the_same_events_end_with_one_store(tmp_path: Path) -> None:
    """Both begin before either ends: the second finds the first's and uses it."""
    place = tmp_path / "events"
    with directory_sink(place) as first, directory_sink(place) as second:
        for sink in (first, second):
            _fill(sink, sample())
        one = first.finish(sample().schema, describe_blocks(sample().ids), sample().report)
        inode = (place / "manifest.json").stat().st_ino
        two = second.finish(sample().schema, describe_blocks(sample().ids), sample().report)
    assert (place / "manifest.json").stat().st_ino == inode
    assert_equal(one, two)
    assert [path.name for path in tmp_path.iterdir()] == ["events"]


def test_the_last_writer_of_other_events_is_found(tmp_path: Path) -> None:
    place = tmp_path / "events"
    with directory_sink(place) as first, directory_sink(place) as second:
        other = numbered(0, 5)
        for sink, events in ((first, sample()), (second, other)):
            _fill(sink, events)
            stored = sink.finish(events.schema, describe_blocks(events.ids), events.report)
    assert open_events(place).fingerprint == stored.fingerprint
    assert len(stored) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["events"]


def test_a_damaged_store_of_the_same_events_is_replaced(tmp_path: Path) -> None:
    place = tmp_path / "events"
    sample().save(place)
    (place / "source.npy").write_bytes(b"")
    assert_equal(sample().save(place), sample())


def _fill(sink: DirectorySink, events: Events) -> None:
    names = ("source", "target", "time", "row", "features", "label", "weight", "node_features")
    columns = {name: getattr(events, name) for name in names} | events.ids.arrays()
    for name, array in columns.items():
        if array is not None:
            sink.column(name, array.dtype.str, array.shape).append(array)
