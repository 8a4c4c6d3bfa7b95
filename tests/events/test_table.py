"""Reading tables: every format, exact ids and times, order and ties, features by every route."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegraph.events import Events, NodeIds, open_events, read_table

UIT: dict[str, Any] = {"source": "u", "target": "i", "time": "t"}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def read(columns: dict[str, Any], **options: Any) -> Events:
    return read_table(columns, **UIT, **options)


def pairs(events: Events) -> list[tuple[Any, Any]]:
    """Original ids of each event, in the order of the events."""
    source, target = (events.ids.to_original(x).tolist() for x in (events.source, events.target))
    return list(zip(source, target, strict=True))


def times(values: list[Any], **options: Any) -> Events:
    """Events 0 -> 1 with the given times."""
    return read({"u": [0] * len(values), "i": [1] * len(values), "t": values}, **options)


# --- formats -----------------------------------------------------------------------------------

ROWS = [("ann", "x", 5, 0.5), ("bob", "y", 3, 1.5), ("ann", "y", 4, -2.0), ("cid", "x", 4, 0.25)]
COLUMNS = ("u", "i", "t", "f")


def as_table() -> pa.Table:
    return pa.table(dict(zip(COLUMNS, map(list, zip(*ROWS, strict=True)), strict=True)))


def make_file(directory: Path, kind: str) -> tuple[Any, dict[str, Any]]:
    """The four rows as `kind`, and the options to read them with."""
    lines = [",".join(map(str, row)) for row in ROWS]
    text = "\n".join([",".join(COLUMNS), *lines]) + "\n"
    if kind == "csv":
        return write(directory / "a.csv", text), {}
    if kind == "crlf and byte order mark":
        return write(directory / "a.csv", "\ufeff" + text.replace("\n", "\r\n")), {}
    if kind == "semicolons and blanks":
        return write(directory / "a.csv", text.replace(",", " ; ")), {}
    if kind == "tsv":
        return write(directory / "a.tsv", text.replace(",", "\t")), {}
    if kind == "no header":
        path = write(directory / "a.txt", "\n".join(lines).replace(",", " "))
        return path, {"source": 0, "target": 1, "time": 2, "features": [3]}
    if kind == "no header, names":
        path = write(directory / "a.csv", "\n".join(lines))
        return path, {"source": "c0", "target": "c1", "time": "c2", "features": ["c3"]}
    if kind == "comment lines":
        return write(directory / "a.csv", "# from somewhere\n% 4 rows\n" + text), {}
    if kind == "gzip":
        (directory / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
        return directory / "a.csv.gz", {}
    if kind == "parquet":
        pq.write_table(as_table(), directory / "a.parquet")
        return directory / "a.parquet", {}
    if kind == "jsonl":
        rows = (json.dumps(dict(zip(COLUMNS, row, strict=True))) for row in ROWS)
        return write(directory / "a.jsonl", "\n".join(rows)), {}
    if kind in ("database", "database query"):
        return make_database(directory, kind)
    if kind == "query":
        pq.write_table(as_table(), directory / "a.parquet")
        return None, {"query": f"SELECT * FROM read_parquet('{directory}/a.parquet');"}
    if kind == "query of a file":
        return write(directory / "a.csv", text), {"query": "SELECT u, i, t, f FROM data"}
    frames = {
        "arrow": as_table(),
        "pandas": as_table().to_pandas(),
        "polars": pl.from_arrow(as_table()),
    }
    if kind in frames:
        return frames[kind], {}
    return {name: np.array(as_table()[name].to_pylist()) for name in COLUMNS}, {}


def make_database(directory: Path, kind: str) -> tuple[Any, dict[str, Any]]:
    import duckdb

    with duckdb.connect(str(directory / "a.duckdb")) as connection:
        connection.register("rows", as_table())
        connection.execute("CREATE TABLE visits AS SELECT * FROM rows").fetchall()
        connection.execute("CREATE TABLE other AS SELECT 1 AS one").fetchall()
    if kind == "database":
        return directory / "a.duckdb", {"table": "visits"}
    return directory / "a.duckdb", {"query": "SELECT u, i, t, f FROM visits"}


@pytest.mark.parametrize(
    "kind",
    [
        "csv",
        "crlf and byte order mark",
        "semicolons and blanks",
        "tsv",
        "no header",
        "no header, names",
        "comment lines",
        "gzip",
        "parquet",
        "jsonl",
        "database",
        "database query",
        "query",
        "query of a file",
        "arrow",
        "pandas",
        "polars",
        "arrays",
    ],
)
def test_every_format_reads_the_same(tmp_path: Path, kind: str) -> None:
    data, options = make_file(tmp_path, kind)
    events = read_table(data, **{**UIT, "features": "f", **options})
    assert pairs(events) == [("bob", "y"), ("ann", "y"), ("cid", "x"), ("ann", "x")]
    assert events.time.tolist() == [3, 4, 4, 5]
    assert events.time.dtype == np.int64
    assert events.row.tolist() == [1, 2, 3, 0]
    assert events.features is not None
    assert events.features[:, 0].tolist() == [1.5, -2.0, 0.25, 0.5]
    assert events.schema.bipartite
    assert events.report.rows_moved == 1


def test_the_format_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "events.log", "u,i,t\n1,2,3\n")
    assert len(read_table(path, **UIT, format="csv")) == 1


def test_i50_one_call_with_column_names(tmp_path: Path) -> None:
    path = write(
        tmp_path / "sales.csv",
        "buyer,shop,when,amount\n"
        "ann,north,2024-01-01,5\nbob,north,2024-01-02,7.5\nann,south,2024-01-02,1\n"
        "cid,east,2024-01-04,2\nbob,east,2024-01-05,3\nann,north,2024-01-06,4\n",
    )
    events = read_table(path, source="buyer", target="shop", time="when", features=["amount"])
    assert events.schema.time_unit == "s"
    assert (events.time[1] - events.time[0]) == 86400
    assert pairs(events)[:2] == [("ann", "north"), ("bob", "north")]
    stored = open_events(events.save(tmp_path / "sales").path or "")
    assert pairs(stored) == pairs(events)


# --- ids ---------------------------------------------------------------------------------------


def test_i25_text_and_integers_in_one_column(tmp_path: Path) -> None:
    rows = {"u": ["u7", "u7", 10**12], "i": ["A9", "B2", "B2"], "t": [1, 2, 3]}
    for data in (rows, pd.DataFrame(rows)):
        events = read_table(data, **UIT)
        assert events.schema.num_nodes == 4
        assert pairs(events) == [("u7", "A9"), ("u7", "B2"), (10**12, "B2")]
    text = read_table(
        write(tmp_path / "a.csv", "u,i,t\nu7,A9,1\nu7,B2,2\n1000000000000,B2,3\n"), **UIT
    )
    assert text.schema.num_nodes == 4
    assert pairs(text)[2] == ("1000000000000", "B2")
    assert text.ids.to_internal([10**12, "u7"]).tolist() == [0, 1]


def test_integers_are_read_as_integers_and_leading_zeros_kept(tmp_path: Path) -> None:
    numbers = read_table(write(tmp_path / "a.csv", "u,i,t\n10,7,1\n9,8,2\n"), **UIT)
    assert pairs(numbers) == [(10, 7), (9, 8)]
    assert numbers.source.tolist() == [1, 0]
    codes = read_table(write(tmp_path / "b.csv", "u,i,t\n007,7,1\n9,8,2\n"), **UIT)
    assert pairs(codes) == [("007", 7), ("9", 8)]
    mixed = read_table(tmp_path / "b.csv", **UIT, bipartite=False)
    assert pairs(mixed) == [("007", "7"), ("9", "8")]


def test_text_columns_of_frames_stay_text() -> None:
    assert pairs(read({"u": ["1", "2"], "i": ["3", "4"], "t": [1, 2]})) == [("1", "3"), ("2", "4")]


def test_i63_ids_and_times_beyond_32_bits() -> None:
    big = [2**62, 3_000_000, -(2**63)]
    events = read({"u": big, "i": [2**63 - 1] * 3, "t": [2 * 10**9, 2**62, 2**62 + 1]})
    assert pairs(events) == [(value, 2**63 - 1) for value in big]
    assert events.time.tolist() == [2 * 10**9, 2**62, 2**62 + 1]
    assert events.source.tolist() == [2, 1, 0]
    unsigned = read({"u": np.array([2**64 - 1, 5], np.uint64), "i": [1, 1], "t": [1, 2]})
    assert pairs(unsigned) == [("18446744073709551615", 1), ("5", 1)]
    small = read({"u": np.array([7, 5], np.uint64), "i": [1, 1], "t": [1, 2]})
    assert pairs(small) == [(7, 1), (5, 1)]


def test_text_is_numbered_by_code_point_also_outside_ascii() -> None:
    names = ["é", "z", "Z", "中", "e", "\U0001f600", "\uffff"]
    events = read({"u": names, "i": ["t"] * 7, "t": range(7)})
    assert events.ids.to_original(range(7)).tolist() == sorted(names)


def test_bipartite_is_found_and_can_be_said() -> None:
    apart = read({"u": [5, 1], "i": [2, 9], "t": [1, 2]})
    assert (apart.schema.bipartite, apart.schema.num_sources) == (True, 2)
    assert apart.ids.to_original(range(4)).tolist() == [1, 5, 2, 9]
    one = read({"u": [5, 1], "i": [2, 9], "t": [1, 2]}, bipartite=False)
    assert (one.schema.bipartite, one.schema.num_sources) == (False, 4)
    assert one.ids.to_original(range(4)).tolist() == [1, 2, 5, 9]
    shared = {"u": [1, 2], "i": [2, 3], "t": [1, 2]}
    assert read(shared).schema.num_nodes == 3
    separate = read(shared, bipartite=True)
    assert (separate.schema.num_nodes, separate.schema.num_sources) == (4, 2)
    assert separate.ids.to_internal([2], side="source").tolist() == [1]
    assert separate.ids.to_internal([2], side="target").tolist() == [2]


# --- time and order ----------------------------------------------------------------------------


def test_i13_shuffled_rows_read_as_sorted_rows() -> None:
    order = np.random.default_rng(0).permutation(8)
    u, i, t = np.arange(8) % 3, 10 + np.arange(8) % 4, np.arange(8) * 10
    plain = read({"u": u, "i": i, "t": t, "f": t / 2}, features="f")
    mixed = read({"u": u[order], "i": i[order], "t": t[order], "f": t[order] / 2}, features="f")
    assert mixed.fingerprint == plain.fingerprint
    assert mixed.row.tolist() == np.argsort(order).tolist()
    assert mixed.report.rows_moved > 0
    assert plain.report.rows_moved == 0


def test_i14_i15_every_event_keeps_its_own_feature_when_sorted() -> None:
    t = [5, 3, 9, 1, 3]
    events = read({"u": [0] * 5, "i": [1] * 5, "t": t, "f": range(5)}, features="f", label="f")
    assert events.features is not None
    assert events.label is not None
    assert events.features[:, 0].tolist() == events.row.tolist() == [3, 1, 4, 0, 2]
    assert events.label.tolist() == events.row.tolist()
    assert [t[row] for row in events.row] == events.time.tolist()


def test_i16_i17_row_order_decides_ties() -> None:
    rows = [("u1", "i1"), ("u1", "i2"), ("u2", "i2")]
    for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        given_rows = [rows[place] for place in order]
        u, i = zip(*given_rows, strict=True)
        assert pairs(read({"u": list(u), "i": list(i), "t": [5, 5, 5]})) == given_rows


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(-3, 3)), min_size=1))
def test_order_equals_a_stable_sort(rows: list[tuple[int, int, int]]) -> None:
    u, i, t = (list(column) for column in zip(*rows, strict=True))
    events = read({"u": u, "i": i, "t": t}, bipartite=False)
    order = np.argsort(t, kind="stable")
    assert events.row.tolist() == order.tolist()
    assert pairs(events) == [(u[row], i[row]) for row in order]
    nodes = sorted({*u, *i})
    assert events.source.tolist() == [nodes.index(u[row]) for row in order]


def test_i16_ties_keep_row_order_when_read_in_parallel(tmp_path: Path) -> None:
    count = 300_000
    generator = np.random.default_rng(0)
    t = generator.integers(0, 50, count)
    table = pa.table({"u": generator.integers(0, 99, count), "i": np.arange(count) + 99, "t": t})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20_000)
    events = read_table(tmp_path / "a.parquet", **UIT, threads=4)
    assert np.array_equal(events.row, np.argsort(t, kind="stable"))
    assert events.report.rows_moved == int((t[1:] < t[:-1]).sum())


@pytest.mark.slow
def test_i16_ties_keep_row_order_in_a_csv_of_many_blocks(tmp_path: Path) -> None:
    count = 5_000_000
    t = np.random.default_rng(0).integers(0, 50, count)
    table = pa.table({"u": np.arange(count), "i": np.arange(count) + count, "t": t})
    import pyarrow.csv

    pyarrow.csv.write_csv(table, tmp_path / "a.csv")
    events = read_table(tmp_path / "a.csv", **UIT, threads=4)
    assert np.array_equal(events.row, np.argsort(t, kind="stable"))


def test_i18_bare_numbers_have_no_unit(tmp_path: Path) -> None:
    for values in ([2004, 2005], ["2004", "2005"], [1655474167000, 1655474168000]):
        events = times(values)
        assert events.time.tolist() == [int(value) for value in values]
        assert events.schema.time_unit is None
    assert times([2004, 2005], time_unit="d").schema.time_unit == "d"
    path = write(tmp_path / "a.csv", "u,i,t\n0,1,2004\n0,1,2005\n")
    assert read_table(path, **UIT).time.tolist() == [2004, 2005]


@pytest.mark.parametrize(
    ("texts", "expected", "unit"),
    [
        (["2022-06-17T13:56:07"], [1655474167], "s"),
        (["2022-06-17 13:56:07"], [1655474167], "s"),
        (["2022-06-17"], [1655424000], "s"),
        (["2022-06-17T13:56:07Z"], [1655474167], "s"),
        (["2022-06-17T15:56:07+02:00"], [1655474167], "s"),
        (["2022-06-17T15:56:07.5+0200"], [1655474167500], "ms"),
        (["2022-06-17 13:56:07.250"], [1655474167250], "ms"),
        (["2022-06-17 13:56:07.000001"], [1655474167000001], "us"),
        (["2022-06-17T13:56:07.123456789"], [1655474167123456789], "ns"),
        (["2022-06-17T13:56:07.1234567Z"], [1655474167123456700], "ns"),
        (["1969-12-31T23:59:59.5", "1970-01-01"], [-500, 0], "ms"),
        (["1969-12-31T23:59:59.999999999", "1970-01-01"], [-1, 0], "ns"),
    ],
)
def test_i18_iso_text(texts: list[str], expected: list[int], unit: str) -> None:
    events = times(texts)
    assert events.time.tolist() == expected
    assert events.time.dtype == np.int64
    assert events.schema.time_unit == unit


def test_iso_text_in_a_unit_asked_for() -> None:
    events = times(["2022-06-17T13:00", "2022-06-17T15:00"], time_unit="h")
    assert (events.time.tolist(), events.schema.time_unit) == ([459853, 459855], "h")
    assert times(["1970-01-02"], time_unit="ms").time.tolist() == [86_400_000]


def test_timestamp_columns(tmp_path: Path) -> None:
    stamp = np.array(["2022-06-17T13:56:07.5", "2022-06-17T13:56:08"], "datetime64[ns]")
    frame = pd.DataFrame({"u": [0, 0], "i": [1, 1], "t": stamp})
    zoned = frame.assign(t=frame.t.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"))
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "naive.parquet")
    pq.write_table(pa.Table.from_pandas(zoned), tmp_path / "zoned.parquet")
    for data in (
        frame,
        zoned,
        pl.from_pandas(frame),
        pa.Table.from_pandas(zoned),
        tmp_path / "naive.parquet",
        tmp_path / "zoned.parquet",
    ):
        events = read_table(data, **UIT)
        assert events.time.tolist() == [1655474167500, 1655474168000]
        assert events.schema.time_unit == "ms"


def test_timestamps_keep_nanoseconds(tmp_path: Path) -> None:
    value = 1_655_474_167_000_000_001
    for kind in (pa.timestamp("ns"), pa.timestamp("ns", "Europe/Paris")):
        table = pa.table({"u": [0], "i": [1], "t": pa.array([value], kind)})
        pq.write_table(table, tmp_path / "a.parquet")
        for data in (table, tmp_path / "a.parquet"):
            events = read_table(data, **UIT)
            assert (events.time.tolist(), events.schema.time_unit) == ([value], "ns")


def test_dates() -> None:
    days = pl.DataFrame({"u": [0, 0], "i": [1, 1], "t": ["2022-06-17", "2022-06-18"]})
    events = read_table(days.with_columns(pl.col("t").str.to_date()), **UIT)
    assert (events.time.tolist(), events.schema.time_unit) == ([1655424000, 1655510400], "s")


def test_i19_times_before_1970() -> None:
    events = times([5, -1, 0, -86400])
    assert events.time.tolist() == [-86400, -1, 0, 5]


def test_i20_times_that_floats_cannot_hold(tmp_path: Path) -> None:
    nano = 1_700_000_000_000_000_000
    events = times([nano + 1, nano])
    assert events.time.tolist() == [nano, nano + 1]
    assert int(events.time[1] - events.time[0]) == 1
    path = write(tmp_path / "a.csv", f"u,i,t\n0,1,{nano + 1}\n0,1,{nano}\n")
    assert read_table(path, **UIT).time.tolist() == [nano, nano + 1]
    line = json.dumps({"u": 0, "i": 1, "t": nano + 1})
    assert read_table(write(tmp_path / "a.jsonl", line), **UIT).time.tolist() == [nano + 1]
    gap = times([1_700_000_000, 1_700_000_060])
    assert int(gap.time[1] - gap.time[0]) == 60


def test_fractional_times_are_floats(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "u,i,t\n0,1,1.5\n0,1,1\n0,1,1e3\n")
    events = read_table(path, **UIT)
    assert events.time.tolist() == [1.0, 1.5, 1000.0]
    assert events.time.dtype == np.float64


# --- features, labels, weights -----------------------------------------------------------------


def test_i24_i26_features_are_bit_equal_by_every_route(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((40, 3)) * 10.0 ** generator.integers(-9, 9, (40, 3))
    matrix_EF = matrix.astype(np.float32)
    u, i, t = np.zeros(40, int), np.ones(40, int), np.arange(40)
    columns = {f"f{k}": matrix_EF[:, k] for k in range(3)}
    frame = pd.DataFrame({"u": u, "i": i, "t": t, **columns})
    frame.to_csv(tmp_path / "a.csv", index=False)
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "a.parquet")
    lists = {"u": u, "i": i, "t": t, "f": matrix_EF}
    pq.write_table(pa.table({**lists, "f": list(matrix_EF)}), tmp_path / "lists.parquet")
    several: dict[str, Any] = {"features": ["f0", "f1", "f2"]}
    routes = [
        read_table(frame, **UIT, **several),
        read_table(tmp_path / "a.csv", **UIT, **several),
        read_table(tmp_path / "a.parquet", **UIT, features="rest"),
        read_table(lists, **UIT, features="f"),
        read_table(tmp_path / "lists.parquet", **UIT, features=["f"]),
        read_table(frame, **UIT, **several, store=tmp_path / "s"),
        Events.from_arrays(u, i, t, features=matrix_EF),
        Events.from_arrays(u, i, t, features=matrix_EF).save(tmp_path / "s2"),
    ]
    for events in routes:
        assert events.features is not None
        assert events.features.dtype == np.float32
        assert np.array_equal(events.features, matrix_EF)
        assert np.array_equal(events.range(39, 40).events.features[39], matrix_EF[39])  # type: ignore[index]
    assert routes[3].schema.feature_names == ("f[0]", "f[1]", "f[2]")


def test_rest_takes_the_numeric_columns_without_another_part(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "u,name,i,t,y,a,b\n1,x,2,3,0,5,6.5\n1,y,2,4,1,7,8\n")
    events = read_table(path, **UIT, features="rest", label="y")
    assert events.schema.feature_names == ("a", "b")


def test_categorical_columns_become_one_feature_a_value(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "u,i,t,c,h\n1,2,1,UA,10\n1,2,2,AA,9\n1,2,3,,9\n1,2,4,O'H,10\n")
    events = read_table(path, **UIT, features=["h"], categorical=["c", "h"][:1])
    assert events.schema.feature_names == ("h", "c=AA", "c=O'H", "c=UA")
    assert events.features is not None
    assert events.features[:, 1:].tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert "c is missing in 1 rows" in events.report.notes[0]
    numbers = read_table(path, **UIT, categorical="h")
    assert numbers.schema.feature_names == ("h=9", "h=10")


def test_i27_weights_as_given_or_none() -> None:
    rows = {"u": [1, 2, 3], "i": [4, 4, 4], "t": [1, 2, 3], "w": [0.5, 2, -1]}
    weighted = read(rows, weight="w")
    assert weighted.weight is not None
    assert weighted.weight.tolist() == [0.5, 2, -1]
    assert read(rows).weight is None
    direct = Events.from_arrays([1, 2, 3], [4, 4, 4], [1, 2, 3], weight=[0.5, 2, -1])
    assert direct.weight is not None
    assert direct.weight.tolist() == [0.5, 2, -1]


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("edge", [False, True])
@pytest.mark.parametrize("node", [False, True])
def test_i51_any_mix_of_features(width: int, edge: bool, node: bool) -> None:
    rows: dict[str, Any] = {"u": [0, 1], "i": [1, 2], "t": [1, 2]}
    rows["f"] = np.arange(2.0 * width).reshape(2, width)[:, 0 if width == 1 else slice(None)]
    matrix_NG = np.arange(3.0 * width).reshape(3, width)[:, 0 if width == 1 else slice(None)]
    given_features: dict[str, Any] = {"features": "f"} if edge else {}
    if node:
        given_features["node_features"] = matrix_NG
    read_events = read(rows, **given_features)
    if edge:
        given_features["features"] = rows["f"]
    for events in (read_events, Events.from_arrays([0, 1], [1, 2], [1, 2], **given_features)):
        assert events.schema.event_features == (width if edge else 0)
        assert events.schema.node_features == (width if node else 0)
        assert (events.features is None) is not edge
        assert (events.node_features is None) is not node


def test_i53_large_finite_values_are_legal() -> None:
    events = read({"u": [0], "i": [1], "t": [1], "w": [1e6], "f": [3e38]}, weight="w", features="f")
    assert events.weight is not None
    assert events.weight.tolist() == [1e6]


# --- node features -----------------------------------------------------------------------------


def test_i23_node_0_is_an_ordinary_node() -> None:
    #   0 -> 1   2 -> 0      node 3 has no event
    matrix_NG = np.array([[9, 9], [1, 1], [2, 2], [3, 3]])
    events = read({"u": [0, 2], "i": [1, 0], "t": [1, 2]}, node_features=matrix_NG)
    assert events.schema.num_nodes == 4
    assert events.ids.to_original(range(4)).tolist() == [0, 1, 2, 3]
    assert events.node_features is not None
    assert np.array_equal(events.node_features, matrix_NG)
    direct = Events.from_arrays([0, 2], [1, 0], [1, 2], node_features=matrix_NG)
    assert direct.schema.num_nodes == 4


def test_i23_matrix_rows_follow_ids_in_bipartite_data() -> None:
    events = read(
        {"u": [2, 0], "i": [1, 3], "t": [1, 2]}, node_features=[[0], [10], [20], [30], [40]]
    )
    assert events.schema.num_sources == 3
    original = events.ids.to_original(range(5)).tolist()
    assert original == [0, 2, 4, 1, 3]
    assert events.node_features is not None
    assert events.node_features[:, 0].tolist() == [10 * value for value in original]


def test_node_table_by_id(tmp_path: Path) -> None:
    path = write(
        tmp_path / "nodes.csv", "name,kind,age,size\nx,item,1,2\nlone,user,7,8\nann,user,3,4\n"
    )
    events = read({"u": ["ann"], "i": ["x"], "t": [1]}, node_features=path, node_id="name")
    assert events.ids.to_original(range(3)).tolist() == ["ann", "lone", "x"]
    assert events.node_features is not None
    assert events.node_features.tolist() == [[3, 4], [7, 8], [1, 2]]
    frame = pd.DataFrame({"name": [5, 6, 9], "size": [0.5, 0.6, 0.9]})
    numbers = read({"u": [9], "i": [5], "t": [1]}, node_features=frame, node_id="name")
    assert numbers.node_features is not None
    assert numbers.node_features[:, 0].tolist() == pytest.approx([0.6, 0.9, 0.5])


def test_node_table_of_two_columns_with_tabs(tmp_path: Path) -> None:
    path = write(tmp_path / "nodes.txt", "n\tg\na b\t1\nx\t2\n")
    events = read({"u": ["a b"], "i": ["x"], "t": [1]}, node_features=path, node_id="n")
    assert events.node_features is not None
    assert events.node_features.tolist() == [[1], [2]]


def test_reading_libraries_are_imported_on_use_only() -> None:
    program = (
        "import sys, tidegraph.events as e; e.Events.from_arrays([0], [1], [2]).split; "
        "sys.exit(', '.join({'duckdb', 'pyarrow', 'pandas', 'polars'} & set(sys.modules)) or None)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


# --- larger than memory, and the published files ------------------------------------------------


def test_a_small_memory_limit_gives_the_same_events(tmp_path: Path) -> None:
    count = 400_000
    generator = np.random.default_rng(1)
    table = pa.table(
        {
            "u": [f"user-with-a-long-name-{n}" for n in generator.integers(0, 50_000, count)],
            "i": generator.integers(0, 1000, count),
            "t": generator.integers(0, 10_000, count),
            "f": generator.standard_normal(count).astype("f4"),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    options: dict[str, Any] = {**UIT, "features": "f"}
    small = read_table(
        tmp_path / "a.parquet", **options, memory_limit="96MB", threads=2, store=tmp_path / "s"
    )
    assert small.fingerprint == read_table(table, **options).fingerprint


def test_text_ids_of_a_store_are_mapped(tmp_path: Path) -> None:
    events = read({"u": ["a", "b"], "i": ["x", "y"], "t": [1, 2]}, store=tmp_path / "s")
    assert isinstance(events.ids, NodeIds)
    for array in events.ids.arrays().values():
        assert isinstance(array.base, np.memmap)


def real(name: str) -> Path:
    directory = os.environ.get("TIDEGRAPH_DATA")
    if not directory:
        pytest.skip("TIDEGRAPH_DATA is not set")
    path = Path(directory) / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


def test_published_messages() -> None:
    told = read_table(real("CollegeMsg.txt.gz"), source=0, target=1, time=2).describe()
    assert (told.events, told.nodes, told.exact_repeats, told.largest_tie) == (
        59_835,
        1_899,
        37,
        38,
    )
    assert not told.bipartite


def test_published_answers_out_of_order() -> None:
    told = read_table(real("sx-mathoverflow.txt.gz"), source=0, target=1, time=2).describe()
    assert (told.events, told.nodes, told.self_loops) == (506_550, 24_818, 116_109)
    assert told.rows_moved == 629


def test_published_mail() -> None:
    events = read_table(real("ml_enron.csv.gz"), source="u", target="i", time="ts", label="label")
    told = events.describe()
    assert (told.events, told.nodes, told.self_loops) == (125_235, 184, 16_410)
    assert told.largest_tie == 1_705


def test_published_edits() -> None:
    events = read_table(real("wikipedia.csv"), source="u", target="i", time="ts", label="label")
    assert (len(events), events.schema.num_nodes) == (157_474, 9_227)
    assert (events.schema.bipartite, events.schema.num_sources) == (True, 8_227)
    assert events.label is not None
    assert events.label.sum() == 217
