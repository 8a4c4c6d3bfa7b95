"""What unusable input is told: file, row, column, value, what was expected, what to do."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tidegraph.errors import InputError, SettingError, TidegraphError
from tidegraph.events import Events, read_table

UIT: dict[str, Any] = {"source": "u", "target": "i", "time": "t"}
GOOD = "u,i,t,f,y\n1,7,10,0.5,0\n2,8,11,1.5,1\n3,9,12,2.5,0\n"


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def message(data: Any, error: type[TidegraphError] = InputError, **options: Any) -> str:
    """What reading `data` says; exit code 2 is part of every error."""
    with pytest.raises(error) as raised:
        read_table(data, **{**UIT, **options})
    assert raised.value.exit_code == 2
    return str(raised.value)


def csv(tmp_path: Path, text: str, **options: Any) -> str:
    return message(write(tmp_path / "a.csv", text), **options)


def has(text: str, *parts: str) -> None:
    for part in parts:
        assert part in text, text


# --- columns -----------------------------------------------------------------------------------


def test_i50_missing_column_lists_those_there(tmp_path: Path) -> None:
    text = "buyer,shop,when,amount\nann,x,1,2\n"
    told = csv(tmp_path, text, source="buyer", target="shops", time="when")
    has(
        told, "a.csv", "no column 'shops' (for target)", "buyer, shop, when, amount", "mean 'shop'?"
    )


def test_missing_column_position(tmp_path: Path) -> None:
    has(csv(tmp_path, GOOD, time=9), "no column 9 (for time)", "there are 5, numbered from 0")


def test_names_for_a_file_without_header(tmp_path: Path) -> None:
    told = csv(tmp_path, "1,7,10\n2,8,11\n", source="user")
    has(
        told, "no column 'user'", "c0, c1, c2", "without a header is addressed by position: 0, 1, 2"
    )


def test_columns_with_two_parts(tmp_path: Path) -> None:
    has(
        csv(tmp_path, GOOD, error=SettingError, target="u"), "source and target are both column 'u'"
    )
    told = csv(tmp_path, GOOD, error=SettingError, features=["f"], categorical=["f"])
    has(told, "'f' is in both features and categorical")


# --- time --------------------------------------------------------------------------------------


def test_time_that_is_no_number(tmp_path: Path) -> None:
    told = csv(tmp_path, GOOD.replace("11", "noon"))
    has(
        told,
        "a.csv, row 2 (data rows counted from 1), column 't' is 'noon'",
        "must be a finite number",
    )


def test_i18_text_that_is_no_time(tmp_path: Path) -> None:
    rows = "u,i,t\n1,2,2013-01-01\n1,2,2013-01-02\n1,2,yesterday\n"
    told = csv(tmp_path, rows)
    has(told, "row 3", "column 't' is 'yesterday'", "cannot be read", "ISO text such as 2013-06-30")


def test_missing_time(tmp_path: Path) -> None:
    told = csv(tmp_path, GOOD.replace("12,", ","))
    has(told, "row 3", "column 't' time is missing")
    frame = pd.DataFrame({"u": [1, 2], "i": [3, 4], "t": [pd.Timestamp("2020-01-01"), pd.NaT]})
    has(message(frame), "row 2", "column 't' time is missing")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_time_that_is_not_finite(tmp_path: Path, value: str) -> None:
    has(csv(tmp_path, GOOD.replace("11", value)), "row 2", f"'{value}'", "finite number")
    has(message({"u": [1, 2], "i": [3, 4], "t": [1.0, float(value)]}), "row 2", "column 't'")


def test_time_beyond_64_bits(tmp_path: Path) -> None:
    told = csv(tmp_path, GOOD.replace("12,", "9223372036854775808,"))
    has(told, "row 3", "9223372036854775808", "does not fit in 64-bit integers")


def test_time_that_does_not_fit_the_unit(tmp_path: Path) -> None:
    told = csv(tmp_path, "u,i,t\n1,2,2013-01-01T10:00\n1,2,2013-01-01T10:30\n", time_unit="h")
    has(told, "row 2", "is not a whole number of 'h'", "use a finer time_unit")
    has(csv(tmp_path, GOOD, error=SettingError, time_unit="weeks"), "time_unit is 'weeks'")


def test_a_time_column_of_another_kind() -> None:
    has(message({"u": [1], "i": [2], "t": [True]}), "column 't' is BOOLEAN; expected times")


# --- features, labels, weights -----------------------------------------------------------------


@pytest.mark.parametrize("value", ["nan", "inf", "-Infinity", "1e39"])
def test_i53_features_must_be_finite(tmp_path: Path, value: str) -> None:
    told = csv(tmp_path, GOOD.replace("1.5", value), features=["f"])
    has(told, "a.csv, row 2 (data rows counted from 1), column 'f': the feature", repr(value))
    has(told, "expected a finite number", "Fill or drop such rows first")


def test_i53_first_bad_row_of_the_input_is_named() -> None:
    rows = {"u": [1] * 4, "i": [2] * 4, "t": [9, 8, 7, 6], "f": [1, np.nan, 1, np.inf]}
    has(message(rows, features="f"), "row 2", "column 'f'", "feature is")


def test_missing_feature(tmp_path: Path) -> None:
    told = csv(tmp_path, GOOD.replace("1.5", ""), features="rest")
    has(told, "row 2", "column 'f': the feature is missing; expected a finite number")


def test_text_feature_suggests_categorical(tmp_path: Path) -> None:
    told = csv(tmp_path, GOOD.replace("1.5", "red"), features=["f"])
    has(told, "row 2", "column 'f'", "'red'", "name it in categorical= instead")


def test_feature_of_a_type_that_is_no_number() -> None:
    frame = pd.DataFrame({"u": [1], "i": [2], "t": [3], "d": pd.to_datetime(["2020-01-01"]).date})
    has(message(frame, features="d"), "column 'd' is DATE, expected numbers")


def test_wrong_feature_width() -> None:
    table = pa.table({"u": [1, 2], "i": [3, 4], "t": [1, 2], "f": [[1.0, 2.0], [3.0]]})
    told = message(table, features="f")
    has(told, "row 2", "column 'f': 1 features, expected 2 as in the first row")
    with pytest.raises(InputError, match=r"features has 3 rows for 2 events.*no padding row"):
        Events.from_arrays([0, 1], [1, 0], [1, 2], features=np.zeros((3, 4)))


def test_too_many_categories() -> None:
    rows = {"u": [1] * 1001, "i": [2] * 1001, "t": range(1001), "c": [f"v{n}" for n in range(1001)]}
    has(message(rows, categorical="c"), "column 'c' has more than 1,000 different values")


def test_label_of_the_wrong_type(tmp_path: Path) -> None:
    told = csv(tmp_path, GOOD.replace("11,1.5,1", "11,1.5,fraud"), label="y")
    has(told, "row 2", "column 'y': the label is 'fraud'", "such as 0 or 1")
    told = csv(tmp_path, GOOD.replace("11,1.5,1", "11,1.5,"), label="y")
    has(told, "row 2", "column 'y': the label is missing")


def test_weight_that_is_no_number(tmp_path: Path) -> None:
    has(csv(tmp_path, GOOD.replace("0.5", "much"), weight="f"), "row 1", "the weight is 'much'")


# --- ids ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "column"), [("source", "u"), ("target", "i")])
def test_missing_ids(tmp_path: Path, part: str, column: str) -> None:
    text = GOOD.replace("\n2,8", "\n,8" if part == "source" else "\n2,")
    has(csv(tmp_path, text), "a.csv, row 2", f"column {column!r}: the {part} id is missing")
    rows: dict[str, Any] = {"u": [1, 2], "i": [3, 4], "t": [1, 2]}
    rows[column] = ["a", None]
    has(message(rows), "row 2", f"column {column!r}: the {part} id is missing")


def test_fractional_ids() -> None:
    told = message({"u": [1.0, 2.5], "i": [3, 4], "t": [1, 2]})
    has(told, "row 2", "column 'u': the source id is 2.5, not an integer or text")
    assert len(read_table({"u": [1.0, 2.0], "i": [3, 4], "t": [1, 2]}, **UIT)) == 2


# --- files -------------------------------------------------------------------------------------


def test_file_not_found(tmp_path: Path) -> None:
    write(tmp_path / "events.csv", GOOD)
    told = message(tmp_path / "event.csv")
    has(told, "event.csv: no such file", f"Did you mean {tmp_path / 'events.csv'}?")


def test_directory_instead_of_a_file(tmp_path: Path) -> None:
    has(message(tmp_path), "is a directory; expected a file", "open_events")


def test_unknown_format(tmp_path: Path) -> None:
    told = message(write(tmp_path / "a.xlsx", GOOD))
    has(told, "unknown file format '.xlsx'", ".csv", ".parquet", "format=")
    has(
        message(tmp_path / "a.xlsx", SettingError, format="excel"),
        "format is 'excel'; expected one of",
    )


def test_empty_file_and_header_only(tmp_path: Path) -> None:
    has(csv(tmp_path, ""), "a.csv: is empty; expected a table of events")
    has(csv(tmp_path, "u,i,t\n"), "has a header and no rows; expected at least one event")
    has(message(pd.DataFrame({"u": [], "i": [], "t": []})), "has columns and no rows")


def test_text_that_is_not_utf8_and_binary_files(tmp_path: Path) -> None:
    has(csv(tmp_path, GOOD.encode("utf-16")), "a.csv: is UTF-16 text; save it as UTF-8")
    has(csv(tmp_path, bytes(5000)), "a.csv: holds binary data (a zero byte)")


def test_blank_lines_before_the_header_are_skipped(tmp_path: Path) -> None:
    for start in ("\n\n", "# made by hand\n\n"):
        assert len(read_table(write(tmp_path / "a.csv", start + GOOD), **UIT)) == 3


def test_a_name_that_two_columns_have_is_ambiguous(tmp_path: Path) -> None:
    text = "u,i,t,t\n1,7,10,13\n2,8,11,12\n"
    told = csv(tmp_path, text)
    has(told, "more than one column is called 't' (for time)", "position from 0: u, i, t, t_")
    assert read_table(tmp_path / "a.csv", **{**UIT, "time": 3}).time.tolist() == [12, 13]


def test_a_delimiter_is_one_character(tmp_path: Path) -> None:
    for delimiter in ("ab", ""):
        told = csv(tmp_path, GOOD, error=SettingError, delimiter=delimiter)
        has(told, f"delimiter is {delimiter!r}; expected one character")


def test_a_link_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to("b.csv")
    has(message(tmp_path / "a.csv"), "a.csv: is a link to b.csv, which is not there")


def test_a_query_may_end_in_a_comment() -> None:
    query = "SELECT 1 AS u, 2 AS i, 3 AS t -- one event"
    assert len(read_table(None, **UIT, query=query)) == 1


def test_rows_of_different_width(tmp_path: Path) -> None:
    has(
        csv(tmp_path, GOOD + "4,5\n"),
        "a.csv: cannot be read",
        "Line: 5",
        "Expected Number of Columns: 5",
    )


def test_damaged_gzip(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n + 9},{n}\n" for n in range(200_000))
    packed = gzip.compress(("u,i,t\n" + rows).encode())
    has(
        message(write(tmp_path / "a.csv.gz", packed[: len(packed) // 2])),
        "a.csv.gz",
        "cannot be unpacked",
    )
    has(
        message(write(tmp_path / "b.csv.gz", packed[:100])),
        "b.csv.gz: cannot be unpacked",
        "truncated",
    )
    has(message(write(tmp_path / "c.csv.gz", GOOD)), "c.csv.gz: is named .gz but is not compressed")
    has(message(write(tmp_path / "d.csv.gz", "")), "d.csv.gz: is empty")


def test_damaged_parquet(tmp_path: Path) -> None:
    has(message(write(tmp_path / "a.parquet", "no parquet")), "a.parquet: cannot be read")


def test_damaged_json(tmp_path: Path) -> None:
    has(message(write(tmp_path / "a.jsonl", '{"u": 1\n')), "a.jsonl: cannot be read")
    has(message(write(tmp_path / "b.jsonl", "")), "b.jsonl: no JSON objects found")


def test_sql_errors_keep_their_message() -> None:
    told = message(None, query="SELEC * FROM nowhere")
    has(told, "query: cannot be read", "syntax error", "SELEC")
    has(message(None, query="SELECT * FROM nowhere"), "nowhere does not exist")
    has(message(None, SettingError), "nothing to read")


def test_tables_of_a_database(tmp_path: Path) -> None:
    import duckdb

    with duckdb.connect(str(tmp_path / "a.db")) as connection:
        connection.execute("CREATE TABLE one AS SELECT 1 AS u, 2 AS i, 3 AS t").fetchall()
        connection.execute("CREATE TABLE two AS SELECT 1 AS u").fetchall()
    has(message(tmp_path / "a.db"), "say which table with table=", "one, two")
    has(message(tmp_path / "a.db", table="three"), "no table 'three'", "one, two")
    assert len(read_table(tmp_path / "a.db", **UIT, table="one")) == 1
    has(message(write(tmp_path / "b.db", b"SQLite format 3\0 etc")), "is an SQLite database")
    has(csv(tmp_path, GOOD, error=SettingError, table="one"), "table= is for database files")


def test_settings_of_the_engine(tmp_path: Path) -> None:
    told = csv(tmp_path, GOOD, error=SettingError, memory_limit="lots")
    has(told, "memory_limit is 'lots'; expected bytes or a size such as '2GB'")
    told = csv(tmp_path, GOOD, store=tmp_path / "a.csv" / "store")
    has(told, "store: cannot be written")


def test_things_that_are_no_table() -> None:
    has(message(42), "cannot read a int; expected a path")
    has(message({"u": [1], "i": [2, 3], "t": [1]}), "columns differ in length", "'i': 2")


# --- node features -----------------------------------------------------------------------------

ROWS = {"u": ["a", "b"], "i": ["x", "x"], "t": [1, 2]}


def test_duplicate_in_the_node_table() -> None:
    nodes = {"n": ["a", "b", "x", "b"], "g": [1, 2, 3, 4]}
    told = message(ROWS, node_features=nodes, node_id="n")
    has(told, "node 'b' stands in rows 2, 4", "expected one row a node")


def test_node_missing_in_the_node_table(tmp_path: Path) -> None:
    nodes = write(tmp_path / "nodes.csv", "n,g\na,1\nx,2\n")
    told = message(ROWS, node_features=nodes, node_id="n")
    has(told, "nodes.csv: node 'b'", "expected one row for every node that has an event")


def test_bad_value_in_the_node_table() -> None:
    nodes = {"n": ["a", "b", "x"], "g": [1, np.nan, 3]}
    told = message(ROWS, node_features=nodes, node_id="n")
    has(told, "row 2", "column 'g'", "expected a finite number")
    has(
        message(ROWS, node_features={"n": ["a", None], "g": [1, 2]}, node_id="n"),
        "row 2",
        "missing",
    )


def test_node_features_and_node_id_belong_together() -> None:
    has(message(ROWS, SettingError, node_features={"n": ["a"], "g": [1]}), "name its id column")
    has(message(ROWS, SettingError, node_id="n"), "node_id= has no effect")
    numbers = {"u": [0], "i": [1], "t": [1]}
    has(message(numbers, SettingError, node_features=[[1], [2]], node_id="n"), "a matrix has none")


def test_i23_matrix_needs_exactly_one_row_a_node() -> None:
    numbers = {"u": [0, 1], "i": [1, 3], "t": [1, 2]}
    told = message(numbers, node_features=np.zeros((3, 2)))
    has(told, "node 3 has no row in node_features", "3 rows for the integer ids 0 to 2")
    with pytest.raises(InputError, match=r"node 3, but there are 3 nodes"):
        Events.from_arrays([0, 1], [1, 3], [1, 2], node_features=np.zeros((3, 2)))
    with pytest.raises(InputError, match=r"node_features has 5 rows for 4 nodes.*no padding row"):
        Events.from_arrays([0, 1], [1, 3], [1, 2], node_features=np.zeros((5, 2)), num_nodes=4)


def test_matrix_over_separate_namespaces_is_ambiguous() -> None:
    numbers = {"u": [0, 1], "i": [1, 2], "t": [1, 2]}
    told = message(numbers, node_features=np.zeros((3, 2)), bipartite=True)
    has(told, "1 ids are both source and target", "ambiguous")


# --- arrays ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"source": [0]}, "source has 1 rows and time has 2"),
        ({"source": [0, -1]}, "source in row 2 is -1; expected a node number"),
        ({"target": [0, 2**31]}, "target in row 2 is 2147483648"),
        ({"source": ["a", "b"]}, "For text or other ids use read_table"),
        ({"source": [0.5, 1.0]}, "expected a one-dimensional array of integers"),
        ({"time": [1, np.nan]}, "time in row 2 is nan; expected a finite number"),
        (
            {"time": ["a", "b"]},
            "expected a one-dimensional array of integers, floats or datetime64",
        ),
        ({"time": np.array([1, 2**63], np.uint64)}, "time in row 2 is 9223372036854775808"),
        ({"time": np.array(["2020", "NaT"], "datetime64[s]")}, "time in row 2 is missing (NaT)"),
        ({"features": [1.0, np.nan]}, "features in row 2 is nan; expected a finite number"),
        ({"features": [[1, 2], [3, np.inf]]}, "features[1] in row 2 is inf"),
        ({"features": [1.0, 1e39]}, "features in row 2 is 1e+39"),
        ({"features": ["a", "b"]}, "expected numbers"),
        ({"features": [[1, 2], [3, 4]], "feature_names": ["a"]}, "1 feature names for 2 features"),
        ({"label": [1.0]}, "label has 1 rows for 2 events"),
        ({"label": [[1, 2], [3, 4]]}, "label has 2 columns; expected one number an event"),
        ({"weight": [1.0, np.inf]}, "weight in row 2 is inf"),
        ({"num_nodes": 1}, "row 1 has node 1, but there are 1 nodes"),
        ({"num_sources": 1}, "row 2 is 1 -> 0, but in bipartite data with 1 sources"),
    ],
)
def test_arrays_that_cannot_be_used(options: dict[str, Any], told: str) -> None:
    columns: dict[str, Any] = {"source": [0, 1], "target": [1, 0], "time": [1, 2], **options}
    with pytest.raises(InputError, match=re.escape(told)):
        Events.from_arrays(**columns, name="arrays")


# --- splits ------------------------------------------------------------------------------------


def test_one_event_is_read_but_not_split(tmp_path: Path) -> None:
    events = read_table(write(tmp_path / "a.csv", "u,i,t\n1,2,3\n"), **UIT)
    assert len(events) == 1
    with pytest.raises(InputError, match=r"a\.csv: one event only; a split needs at least two"):
        events.split()


def test_single_node_is_read_but_not_split() -> None:
    events = read_table({"u": [5, 5], "i": [5, 5], "t": [1, 2]}, **UIT)
    assert events.schema.num_nodes == 1
    with pytest.raises(InputError, match="a single node; predicting links needs at least two"):
        events.split()


def test_empty_parts_are_refused() -> None:
    events = Events.from_arrays([0, 1, 0], [1, 0, 1], [5, 5, 5], name="ties.csv")
    with pytest.raises(
        InputError, match=r"ties\.csv: the val part would be empty.*1 distinct times"
    ):
        events.split()
    with pytest.raises(InputError, match="every training event touches a hidden node"):
        Events.from_arrays([0, 0, 0], [1, 1, 1], [1, 2, 3]).split(0.3, 0.3, hidden_nodes=0.5)
