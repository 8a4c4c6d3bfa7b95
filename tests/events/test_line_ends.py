"""Line ends of several kinds in one file, and lines that are too long to be a table's."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegraph.errors import InputError
from tidegraph.events import Events, read_table

ROWS = [("source", "target", "time"), *((f"u{i % 4}", f"i{i % 3}", str(i)) for i in range(12))]
ENDS = ("\n", "\r\n", "\r")


def read(path: Path) -> Events:
    return read_table(path, source=0, target=1, time=2)


def facts(events: Events) -> tuple[list[object], ...]:
    ids = events.ids
    return (ids.to_original(events.source).tolist(), ids.to_original(events.target).tolist(),
            events.time.tolist())  # fmt: skip


def written(path: Path, ends: list[str], rows: list[tuple[str, ...]] = ROWS) -> Path:
    content = "".join(",".join(row) + end for row, end in zip(rows, ends, strict=True)).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ends")


@settings(max_examples=25, deadline=None)
@given(ends=st.lists(st.sampled_from(ENDS), min_size=len(ROWS), max_size=len(ROWS)))
def test_any_mixture_of_line_ends_reads_as_one_kind(folder: Path, ends: list[str]) -> None:
    expected = facts(read(written(folder / "plain.csv", ["\n"] * len(ROWS))))
    assert facts(read(written(folder / "mixed.csv", ends))) == expected


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("late", [False, True])
def test_one_line_with_another_end_loses_nothing(tmp_path: Path, name: str, late: bool) -> None:
    rows = [ROWS[0], *((f"u{i}", "i", str(i)) for i in range(200_000))]
    ends = ["\r\n"] + ["\n"] * (len(rows) - 1)
    if late:
        ends = ["\n"] * len(rows)
        ends[150_000] = "\r\n"
    events = read(written(tmp_path / name, ends, rows))
    assert len(events) == 200_000
    assert events.time.tolist() == list(range(200_000))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("inner", ["\n", "\r\n", "\r"])
def test_line_ends_within_quotes_belong_to_the_value(tmp_path: Path, end: str, inner: str) -> None:
    rows = [('"a' + inner + 'b"', "target", "time"), ('"x' + inner + 'y"', "i", "1"),
            ('"z""' + inner + '"', "j", "2")]  # fmt: skip
    events = read(
        written(tmp_path / "t.csv", [end, end, ("\n" if end == "\r\n" else "\r\n")], rows)
    )
    assert facts(events) == ([f"x{inner}y", f'z"{inner}'.strip(" ")], ["i", "j"], [1, 2])


def test_a_long_header_is_a_header(tmp_path: Path) -> None:
    names = ["source", "target", "time", *(f"column{i}" for i in range(9_000))]
    path = tmp_path / "wide.csv"
    path.write_text(",".join(names) + "\n" + "1,2,3" + ",0" * 9_000 + "\n")
    assert len(read(path)) == 1
    with pytest.raises(InputError, match=r"no column 'cost'.*\.\.\. \(9,003 in all\)") as caught:
        read_table(path, source="source", target="cost", time="time")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "content",
    ["a" * 5_000_000 + "\n1,2,3\n", "source,target,time\n" + "a" * 5_000_000 + ",2,3\n1,2,3\n"],
)
def test_a_line_without_end_is_not_quoted_in_full(tmp_path: Path, content: str) -> None:
    path = tmp_path / "long.csv"
    path.write_text(content)
    with pytest.raises(InputError, match="has a line of more than 2,000,000 characters") as caught:
        read(path)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("part", ["time", "f", "source"])
def test_a_long_value_is_cut_in_the_message(tmp_path: Path, part: str) -> None:
    values = {"source": "u", "target": "i", "time": "1", "f": "1"} | {part: "z" * 100_000}
    path = tmp_path / "t.csv"
    path.write_text("source,target,time,f\n1,2,3,4\n" + ",".join(values.values()) + "\n")
    if part == "source":
        events = read_table(path, source="source", target="target", time="time")
        with pytest.raises(KeyError, match=r"characters\)") as caught:
            events.ids.to_internal(["z" * 99_999])
    else:
        with pytest.raises(InputError, match=r"row 2 .*'z+'\.\.\. \(100,000 char") as caught:
            read_table(path, source="source", target="target", time="time", features=["f"])
    assert len(str(caught.value)) < 600
