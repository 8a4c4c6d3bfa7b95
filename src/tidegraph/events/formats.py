"""Every kind of table as one thing that SQL can read: files, databases, queries, frames, arrays.

Text formats (CSV, JSON lines) are read as text, so that ids keep their leading zeros and big
integers every digit; types are decided later, from all the values. Rows keep the order of the
input.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tidegraph.errors import InputError, SettingError, listed, shown
from tidegraph.events.frames import as_arrow
from tidegraph.events.sql import literal, quoted, rows, run

FORMATS = ("csv", "tsv", "parquet", "jsonl", "duckdb")
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "csv",
    ".data": "csv",
    ".edges": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".duckdb": "duckdb",
    ".db": "duckdb",
}
_DELIMITERS = (",", "\t", ";", "|", " ")
_SAMPLE_LINES = 50
_SAMPLE_BYTES = 1 << 16
_PIECE_BYTES = 1 << 24
_LONGEST_LINE = 4_000_000  # bytes read in search of the first lines; the reader takes half as much
_POSITION_NAME = re.compile(r"c(\d+)$")


@dataclass(frozen=True)
class Table:
    """A table that DuckDB can scan.

    Attributes:
        name: file or kind, for messages.
        sql: what stands after FROM.
        columns: names in order.
        types: the DuckDB type that each column has, or seems to have where `text` is true.
        text: all columns arrive as text.
        trim: blanks around values are not part of them.
        integers: columns of mixed types -> the values that were integers there.
        units: time columns that arrive as integers -> their unit.
        repeated: names that more than one column of the file has.
        unreadable: columns of values that are no ids, numbers or times -> what was found.
    """

    name: str
    sql: str
    columns: tuple[str, ...]
    types: Mapping[str, str]
    text: bool = False
    trim: bool = False
    integers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    repeated: frozenset[str] = frozenset()
    unreadable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """How the user said that the table is to be read; None is to be found out."""

    format: str | None = None
    header: bool | None = None
    delimiter: str | None = None
    table: str | None = None
    query: str | None = None


def open_table(
    connection: Any,
    data: Any,
    options: Options,
    wanted: Sequence[str | int],
    alias: str = "frame",
) -> Table:
    """Make `data` readable through `connection`.

    Args:
        connection: a DuckDB connection.
        data: path, frame, mapping of arrays, or None with a query.
        options: how to read.
        wanted: columns that the user named; they tell whether a file has a header.
        alias: name under which a frame is registered.

    Raises:
        InputError: not found, not a known format, unreadable.
    """
    if data is None:
        if options.query is None:
            raise SettingError("nothing to read: give a file, a frame, or query= with SQL")
        _refuse_text_options("a query", "read as it says", options)
        if options.format is not None or options.table is not None:
            raise SettingError("format= and table= are for files; a query alone says how it reads")
        return _from_query(connection, "query", options.query)
    if not isinstance(data, (str, Path)):
        if options.format is not None or options.table is not None:
            raise SettingError("format= and table= are for files; this is a frame")
        _refuse_text_options("the data", "a frame", options)
        table = _from_frame(connection, data, alias)
    else:
        path = Path(data)
        kind = _format_of(path, options)
        if kind == "duckdb":
            _refuse_text_options(path.name, kind, options)
            if options.table is not None and options.query is not None:
                raise SettingError("table= has no effect with query=, which says what is read")
            return _from_database(connection, path, options)
        if options.table is not None:
            raise SettingError(f"{path.name}: table= is for database files; this is {kind}")
        _refuse_text_options(path.name, kind, options)
        if kind == "parquet":
            table = _scanned(connection, path.name, f"read_parquet({literal(str(path))})")
        elif kind == "jsonl":
            table = _from_json(connection, path)
        else:
            table = _from_csv(connection, path, kind, options, wanted)
    if options.query is None:
        return table
    run(connection, f"CREATE VIEW data AS SELECT * FROM {table.sql}")
    return _from_query(connection, table.name, options.query)


def _refuse_text_options(name: str, kind: str, options: Options) -> None:
    """Only CSV and TSV files have headers and delimiters.

    Raises:
        SettingError: one was given for something else.
    """
    if kind in ("csv", "tsv"):
        return
    for option in ("header", "delimiter"):
        if getattr(options, option) is not None:
            raise SettingError(f"{option}= is for CSV and TSV files; {name} is {kind}")


def _format_of(path: Path, options: Options) -> str:
    if not path.exists():
        near = ""
        if path.is_symlink():
            raise InputError(f"{path}: is a link to {os.readlink(path)}, which is not there")
        if path.parent.is_dir():
            import difflib

            names = [entry.name for entry in path.parent.iterdir()]
            close = difflib.get_close_matches(path.name, names, n=1)
            near = f" Did you mean {path.parent / close[0]}?" if close else ""
        raise InputError(f"{path}: no such file.{near}")
    if path.is_dir():
        raise InputError(
            f"{path}: is a directory; expected a file. Stored events are opened with open_events"
        )
    if options.format is not None:
        if options.format not in FORMATS:
            raise SettingError(
                f"format is {options.format!r}; expected one of {', '.join(FORMATS)}"
            )
        return options.format
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".zst"):
        suffixes.pop()
    kind = _SUFFIXES.get(suffixes[-1]) if suffixes else None
    if kind is None:
        raise InputError(
            f"{path}: unknown file format {path.suffix!r}; expected one of "
            f"{', '.join(sorted(_SUFFIXES))} (or .gz of these), or say which with "
            f"format= ({', '.join(FORMATS)})"
        )
    return kind


def _describe(connection: Any, sql: str) -> dict[str, str]:
    return {row[0]: row[1] for row in rows(connection, f"DESCRIBE SELECT * FROM {sql}")}


def _scanned(connection: Any, name: str, sql: str) -> Table:
    types = _describe(connection, sql)
    return Table(name, sql, tuple(types), types)


def _from_query(connection: Any, name: str, query: str) -> Table:
    return _scanned(connection, name, _subquery(query))


def _subquery(query: str) -> str:
    """SQL in parentheses, the closing one on its own line: the query may end in a comment."""
    return f"({query.strip().rstrip(';')}\n)"


def _from_frame(connection: Any, data: Any, alias: str) -> Table:
    frame = as_arrow(data)
    connection.register(alias, frame.table)
    types = _describe(connection, alias)
    return Table(
        frame.name, alias, tuple(types), types, integers=frame.integers, units=frame.units,
        unreadable=frame.unreadable,
    )  # fmt: skip


def _from_database(connection: Any, path: Path, options: Options) -> Table:
    with open(path, "rb") as file:
        if file.read(16).startswith(b"SQLite format 3"):
            raise InputError(
                f"{path}: is an SQLite database; expected a DuckDB database. "
                "Export the table to CSV or Parquet"
            )
    run(connection, f"ATTACH {literal(str(path))} AS given (READ_ONLY)")
    if options.query is not None:
        run(connection, "SET search_path = 'work.main,given.main'")
        name = f"{path.name} (query)"
        return _scanned(connection, name, _subquery(options.query))
    found = rows(
        connection,
        "SELECT schema_name || '.' || table_name, table_name FROM duckdb_tables() "
        "WHERE database_name = 'given' UNION ALL SELECT schema_name || '.' || view_name, view_name "
        "FROM duckdb_views() WHERE database_name = 'given' AND NOT internal ORDER BY 1",
    )
    names = [name for pair in found for name in pair]
    there = listed(pair[1] for pair in found) or "none"
    table = options.table
    if table is None:
        if len(found) != 1:
            raise InputError(f"{path}: say which table with table=; tables there: {there}")
        table = found[0][0]
    elif table not in names:
        raise InputError(f"{path}: no table {shown(table)}; tables there: {there}")
    dotted = ".".join(quoted(part) for part in table.split("."))
    return _scanned(connection, f"{path.name}:{table}", f"given.{dotted}")


def _from_json(connection: Any, path: Path) -> Table:
    source = literal(str(path))
    types = _describe(connection, f"read_json({source}, format='newline_delimited')")
    if not types or list(types) == ["json"]:
        raise InputError(f"{path}: no JSON objects found; expected one object a line")
    # Read as text: inferred types would round big integers and cut nanoseconds.
    columns = ", ".join(
        f"{literal(name)}: {literal(kind if kind.endswith(']') else 'VARCHAR')}"
        for name, kind in types.items()
    )
    sql = f"read_json({source}, format='newline_delimited', columns={{{columns}}})"
    return Table(path.name, sql, tuple(types), types, text=True)


def _from_csv(
    connection: Any, path: Path, kind: str, options: Options, wanted: Sequence[str | int]
) -> Table:
    if options.delimiter is not None and len(options.delimiter) != 1:
        raise SettingError(f"delimiter is {options.delimiter!r}; expected one character")
    lines = _first_lines(path)
    source = _one_line_end(connection, path)
    skipped = 0
    while skipped < len(lines) and (lines[skipped].strip() or "#")[0] in "#%":
        skipped += 1
    lines = [line for line in lines[skipped:] if line.strip()]
    if not lines:
        raise InputError(f"{path}: is empty; expected a table of events")
    delimiter = options.delimiter or ("\t" if kind == "tsv" else _delimiter_of(lines))
    try:
        records = list(csv.reader(lines, delimiter=delimiter))
    except csv.Error as error:
        raise InputError(f"{path}: the first lines are not those of a CSV table: {error}") from None
    has_header = options.header
    if has_header is None:
        has_header = _has_header(records, wanted)
    names = _unique_names(records[0]) if has_header else [f"c{i}" for i in range(len(records[0]))]
    if has_header and len(lines) < 2:
        raise InputError(f"{path}: has a header and no rows; expected at least one event")
    columns = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in names)
    sql = (
        f"read_csv({literal(str(source))}, auto_detect=false, header={str(has_header).lower()}, "
        f"delim={literal(delimiter)}, quote='\"', escape='\"', skip={skipped}, "
        f"columns={{{columns}}}{_line_end(source, skipped)}{_compression(source)})"
    )
    types = _seeming_types(names, records[1:] if has_header else records)
    given = [value.strip() for value in records[0]] if has_header else []
    repeated = frozenset(name for name in given if given.count(name) > 1)
    return Table(path.name, sql, tuple(names), types, text=True, trim=True, repeated=repeated)


def _compression(path: Path) -> str:
    with open(path, "rb") as file:
        magic = file.read(4)
    if magic[:2] == b"\x1f\x8b":
        return ", compression='gzip'"
    return ", compression='zstd'" if magic == b"\x28\xb5\x2f\xfd" else ""


def _first_lines(path: Path) -> list[str]:
    packed = _compression(path)
    if not packed and path.suffix in (".gz", ".zst"):
        if path.stat().st_size == 0:
            raise InputError(f"{path}: is empty; expected a table of events")
        raise InputError(f"{path}: is named {path.suffix} but is not compressed so; rename it")
    with _unpacked(path) as file:
        content, whole = file.read(_SAMPLE_BYTES), False
        while len(content.splitlines()) < 3 and len(content) < _LONGEST_LINE and not whole:
            more = file.read(_SAMPLE_BYTES)
            content, whole = content + more, not more
        whole = whole or not file.read(1)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InputError(f"{path}: is UTF-16 text; save it as UTF-8")
    if b"\0" in content:
        raise InputError(f"{path}: holds binary data (a zero byte); expected a text file in UTF-8")
    text = content.decode("utf-8-sig", "replace")
    lines = [line.rstrip("\r") for line in io.StringIO(text, newline=None)]
    lines = [line.rstrip("\n") for line in lines]
    if not whole and len(lines) < 3:
        long = max(lines, key=len)
        raise InputError(
            f"{path}: has a line of more than {_LONGEST_LINE // 2:,} characters, {shown(long)}; "
            "expected a table with one event a line"
        )
    return (lines if whole else lines[:-1])[:_SAMPLE_LINES]  # the last one may be cut


@contextmanager
def _unpacked(path: Path) -> Iterator[BinaryIO]:
    """A file's content, unpacked on the way where it is packed.

    Raises:
        InputError: it cannot be unpacked to its end.
    """
    packed = _compression(path)
    if not packed:
        with open(path, "rb") as plain:
            yield plain
        return
    try:
        if "zstd" in packed:
            import pyarrow as pa

            with pa.OSFile(str(path)) as raw, pa.CompressedInputStream(raw, "zstd") as stream:
                yield stream
        else:
            with gzip.open(path) as file:
                yield file  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path}: cannot be unpacked ({error}); it is damaged or truncated, fetch it again"
        ) from None


def _one_line_end(connection: Any, path: Path) -> Path:
    """The file, or where its line ends are of several kinds, a copy with one kind.

    A table pasted together on several systems has them; the CSV reader takes one kind only.
    Line ends within quotes belong to the value and stay.
    """
    ends = {b"\n": 0, b"\r": 0, b"\r\n": 0}
    last = b""
    with _unpacked(path) as file:
        while piece := file.read(_PIECE_BYTES):
            if b"\r" in piece or last == b"\r":
                ends[b"\r\n"] += piece.count(b"\r\n") + (last + piece[:1] == b"\r\n")
            ends[b"\r"] += piece.count(b"\r")
            ends[b"\n"] += piece.count(b"\n")
            last = piece[-1:]
    both = ends.pop(b"\r\n")
    kinds = (both > 0) + sum(count > both for count in ends.values())
    if kinds < 2:
        return path
    scratch = Path(rows(connection, "SELECT current_setting('temp_directory')")[0][0])
    copy = scratch / f"{len(list(scratch.iterdir())) if scratch.is_dir() else 0}-{path.name}.csv"
    scratch.mkdir(parents=True, exist_ok=True)
    inside, held = False, b""
    with _unpacked(path) as file, open(copy, "wb") as out:
        while piece := file.read(_PIECE_BYTES):
            piece, held = held + piece, b""
            if piece.endswith(b"\r"):  # may be half of one line end
                piece, held = piece[:-1], b"\r"
            texts = piece.split(b'"')
            for place in range(int(inside), len(texts), 2):
                texts[place] = texts[place].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            inside ^= len(texts) % 2 == 0
            out.write(b'"'.join(texts))
        out.write(b"\n" if held and not inside else held)
    return copy


def _line_end(path: Path, skipped: int) -> str:
    """How lines end, where the reader would take a line end within a quoted name for it."""
    with _unpacked(path) as file:
        text = file.read(_SAMPLE_BYTES)
    for _ in range(skipped):
        text = re.split(rb"\r\n|\r|\n", text, maxsplit=1)[-1]
    texts = text.split(b'"')
    outside = next((t for t in texts[::2] if b"\n" in t or b"\r" in t), b"")
    if outside is texts[0]:
        return ""
    names = {b"\r\n": r"\r\n", b"\r": r"\r", b"\n": r"\n"}
    found = re.search(rb"\r\n|\r|\n", outside)
    return "" if found is None else f", new_line={literal(names[found[0]])}"


def _delimiter_of(lines: list[str]) -> str:
    for delimiter in _DELIMITERS:
        try:
            widths = {len(row) for row in csv.reader(lines, delimiter=delimiter)}
        except csv.Error:  # a value that is too long
            continue
        if len(widths) == 1 and min(widths) > 2:
            return delimiter
    widths_of = {d: lines[0].count(d) for d in _DELIMITERS}
    return max(widths_of, key=lambda delimiter: widths_of[delimiter])


def _has_header(records: list[list[str]], wanted: Sequence[str | int]) -> bool:
    """Whether the first row names the columns: it holds a wanted name, or no number at all."""
    names = {name for name in wanted if isinstance(name, str)}
    first = {value.strip() for value in records[0]}
    if names & first:
        return True
    if names and all(_POSITION_NAME.match(name) for name in names):
        return False
    return not any(_is_number(value) for value in records[0])


def _unique_names(fields: list[str]) -> list[str]:
    names: list[str] = []
    for position, value in enumerate(fields):
        name = value.strip() or f"c{position}"
        while name.lower() in (other.lower() for other in names):
            name += "_"
        names.append(name)
    return names


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _seeming_types(names: list[str], records: list[list[str]]) -> dict[str, str]:
    types = {}
    for position, name in enumerate(names):
        values = [row[position].strip() for row in records if position < len(row)]
        filled = [value for value in values if value]
        numeric = bool(filled) and all(_is_number(value) for value in filled)
        types[name] = "DOUBLE" if numeric else "VARCHAR"
    return types
