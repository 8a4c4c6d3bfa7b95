"""The way of a table through SQL into columns: stage, number, sort, check, stream out.

DuckDB parses, joins and sorts within a memory limit and spills to disk; the result is streamed in
batches into memory or files, so no step holds the whole table.

Shape legend: E events, F event-feature width.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegraph.errors import InputError, SettingError, shown
from tidegraph.events.clock import Clock, read_clock
from tidegraph.events.columns import Columns, id_of, is_list, may_be_integers, number_of, text_of
from tidegraph.events.core import Events, ReadReport, Schema
from tidegraph.events.formats import Table
from tidegraph.events.node_table import IDS, NodeTable, check_nodes, stage_nodes, write_nodes
from tidegraph.events.numbering import Numbering, number_nodes, write_ids
from tidegraph.events.sql import first_row, literal, one, quoted, rows, run, stream
from tidegraph.events.store import ColumnWriter, Sink

_MOST_CATEGORIES = 1000
_BATCH_BYTES = 1 << 25
_EXACT = ("source", "target", "time", "row")


@dataclass(frozen=True)
class Plan:
    """A staged and checked table, ready to be written.

    Attributes:
        count: E.
        features: SQL of each feature over the staged table, by name.
        nodes: node features, if any.
    """

    table: Table
    columns: Columns
    count: int
    clock: Clock
    numbering: Numbering
    features: dict[str, str]
    nodes: NodeTable | None
    notes: tuple[str, ...]


def plan_ingest(
    connection: Any,
    table: Table,
    columns: Columns,
    *,
    time_unit: str | None,
    bipartite: bool | None,
    node_features: Any,
    node_id: str | int | None,
) -> Plan:
    """Stage the table and decide ids, times and features from all of its rows.

    Raises:
        InputError: anything in the table that cannot be used.
    """
    id_type = _stage(connection, table, columns)
    whole = (may_be_integers(table, columns.source), may_be_integers(table, columns.target))
    count = int(one(connection, "SELECT count(*) FROM staged"))
    if count == 0:
        raise InputError(f"{table.name}: has columns and no rows; expected at least one event")
    _check_ids(connection, table, columns)
    clock = read_clock(connection, table, columns.time, time_unit)
    nodes = None
    if node_features is not None:
        nodes = stage_nodes(connection, node_features, node_id, id_type)
        check_nodes(connection, nodes, table)
    elif node_id is not None:
        raise SettingError("node_id= has no effect without node_features=")
    numbering = number_nodes(connection, table, bipartite, IDS if nodes else None, whole)
    features, notes = _feature_sql(connection, table, columns)
    notes += _namespace_note(numbering)
    return Plan(table, columns, count, clock, numbering, features, nodes, notes)


def write_events(connection: Any, plan: Plan, sink: Sink) -> Events:
    """Number, sort and write all events, and make `Events` of them."""
    moved = _count_moved(connection, plan.clock)
    _write_columns(connection, plan, sink)
    integers: frozenset[str] = frozenset()
    for column in (plan.columns.source, plan.columns.target):
        integers |= plan.table.integers.get(column, frozenset())
    blocks = write_ids(connection, plan.numbering, sink, integers)
    if plan.nodes is not None:
        write_nodes(connection, plan.nodes, plan.numbering, sink)
    numbering = plan.numbering
    schema = Schema(
        num_nodes=numbering.num_nodes,
        num_sources=numbering.blocks[0].count,
        bipartite=numbering.bipartite,
        event_features=len(plan.features),
        node_features=0 if plan.nodes is None else plan.nodes.width,
        time_unit=plan.clock.unit,
        feature_names=tuple(plan.features),
    )
    report = ReadReport(plan.table.name, plan.count, moved, plan.notes)
    return sink.finish(schema, blocks, report, numbering.separate)


def _stage(connection: Any, table: Table, columns: Columns) -> str:
    """Copy the columns that play a part, in row order (`rowid` is the row); returns the id type."""
    (source, source_type), (target, target_type) = (
        id_of(table, name) for name in (columns.source, columns.target)
    )
    id_type = "BIGINT" if source_type == target_type == "BIGINT" else "VARCHAR"
    is_text_time = table.text or table.types[columns.time].startswith(("VARCHAR", "ENUM"))
    time = text_of(table, columns.time) if is_text_time else quoted(columns.time)
    parts = [f"CAST({source} AS {id_type}) AS s", f"CAST({target} AS {id_type}) AS d"]
    parts.append(f"{time} AS t")
    for place, name in enumerate(columns.features):
        listed = is_list(table.types[name])
        value = f"CAST({quoted(name)} AS FLOAT[])" if listed else number_of(table, name)
        parts.append(f"{value} AS f{place}")
    parts += [f"{text_of(table, name)} AS g{i}" for i, name in enumerate(columns.categorical)]
    if columns.label is not None:
        parts.append(f"{number_of(table, columns.label)} AS label")
    if columns.weight is not None:
        parts.append(f"{number_of(table, columns.weight)} AS weight")
    run(connection, f"CREATE TABLE staged AS SELECT {', '.join(parts)} FROM {table.sql}")
    return id_type


def _check_ids(connection: Any, table: Table, columns: Columns) -> None:
    for column, name, part in (("s", columns.source, "source"), ("d", columns.target, "target")):
        row = first_row(connection, f"{column} IS NULL")
        if row is not None:
            value = _raw_value(connection, table, name, row)
            found = "is missing" if value is None else f"is {shown(value)}, not an integer or text"
            raise InputError(
                f"{table.name}, row {row + 1} (data rows counted from 1), column {shown(name)}: "
                f"the {part} id {found}; every event needs a source and a target. Drop such rows "
                "first"
            )


def _raw_value(connection: Any, table: Table, column: str, row: int) -> Any:
    return one(connection, f"SELECT {quoted(column)} FROM {table.sql} LIMIT 1 OFFSET {row}")


def _feature_sql(
    connection: Any, table: Table, columns: Columns
) -> tuple[dict[str, str], tuple[str, ...]]:
    features: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    for place, name in enumerate(columns.features):
        if is_list(table.types[name]):
            width = _list_width(connection, table, name, f"f{place}")
            features |= {f"{name}[{i}]": f"f{place}[{i + 1}]" for i in range(width)}
        else:
            features[name] = f"f{place}"
    for place, name in enumerate(columns.categorical):
        values = _categories(connection, table, name, f"g{place}")
        for value in values:
            equal = f"coalesce(g{place} = {literal(value)}, false)"
            features[f"{name}={value}"] = f"CAST({equal} AS FLOAT)"
        missing = one(connection, f"SELECT count(*) FROM staged WHERE g{place} IS NULL")
        if missing:
            notes += (f"{name} is missing in {missing:,} rows: all of its features are 0 there",)
    return features, notes


def _list_width(connection: Any, table: Table, name: str, column: str) -> int:
    width = one(connection, f"SELECT len({column}) FROM staged WHERE rowid = 0")
    row = first_row(connection, f"len({column}) IS DISTINCT FROM {width or -1}")
    if row is not None:
        found = one(connection, f"SELECT len({column}) FROM staged WHERE rowid = {row}")
        raise InputError(
            f"{table.name}, row {row + 1} (data rows counted from 1), column {shown(name)}: "
            f"{found or 'no'} features, expected {width or 'some'} as in the first row"
        )
    return int(width)


def _categories(connection: Any, table: Table, name: str, column: str) -> list[str]:
    found = rows(
        connection,
        f"SELECT DISTINCT {column} FROM staged WHERE {column} IS NOT NULL "
        f"LIMIT {_MOST_CATEGORIES + 1}",
    )
    values = [str(row[0]) for row in found]
    if len(values) > _MOST_CATEGORIES:
        raise InputError(
            f"{table.name}: column {shown(name)} has more than {_MOST_CATEGORIES:,} different "
            "values; as categorical each becomes a feature. Name it in features= if it is a "
            "number, or leave it out if it is an id"
        )
    try:
        return sorted(values, key=float)
    except ValueError:
        return sorted(values)


def _namespace_note(numbering: Numbering) -> tuple[str, ...]:
    if numbering.bipartite or numbering.overlap == 0 or numbering.blocks[0].text:
        return ()
    return (
        f"source and target ids are integers of one namespace ({numbering.overlap:,} appear on "
        "both sides); if user 5 and item 5 are different things, read with bipartite=True",
    )


def _count_moved(connection: Any, clock: Clock) -> int:
    """Rows that are earlier than the row before them."""
    moved, last = 0, None
    for batch in stream(connection, f"SELECT {clock.sql} FROM staged", 1 << 20):
        time = batch.column(0).to_numpy()
        if len(time):
            moved += int((time[1:] < time[:-1]).sum())
            moved += int(last is not None and time[0] < last)
            last = time[-1]
    return moved


def _write_columns(connection: Any, plan: Plan, sink: Sink) -> None:
    count, width = plan.count, len(plan.features)
    writers: dict[str, ColumnWriter] = {
        "source": sink.column("source", "<i4", (count,)),
        "target": sink.column("target", "<i4", (count,)),
        "time": sink.column("time", "<i8" if plan.clock.dtype == "int64" else "<f8", (count,)),
        "row": sink.column("row", "<i8", (count,)),
    }
    values = [f"{sql} AS v{place}" for place, sql in enumerate(plan.features.values())]
    for name in ("label", "weight"):
        if getattr(plan.columns, name) is not None:
            writers[name] = sink.column(name, "<f4", (count,))
            values.append(f"staged.{name} AS {name}")
    if width:
        writers["features"] = sink.column("features", "<f4", (count, width))
    batch_rows = max(2048, min(1 << 19, _BATCH_BYTES // (4 * width + 32)))
    written = 0
    with closing(stream(connection, _sorted_sql(plan, values), batch_rows)) as batches:
        finite = True
        for batch in batches:
            for name, writer in writers.items():
                piece = _features_of(batch, width) if name == "features" else _value(batch, name)
                finite = finite and (name in _EXACT or bool(np.isfinite(piece).all()))
                writer.append(piece)
            written += batch.num_rows
            if not finite:
                break
    if not finite:
        _raise_bad_number(connection, plan)
    if written != count:  # an id that joined to no number, or to two
        raise RuntimeError(f"{plan.table.name}: {written} of {count} events were numbered")


def _sorted_sql(plan: Plan, values: list[str]) -> str:
    first, second = plan.numbering.blocks[0], plan.numbering.blocks[-1]
    shift = first.count if plan.numbering.bipartite else 0
    listed = "".join(f", {value}" for value in values)
    return (
        "SELECT CAST(a.rowid AS INTEGER) AS source, "
        f"CAST(b.rowid + {shift} AS INTEGER) AS target, "
        f"{plan.clock.sql} AS time, staged.rowid AS row{listed} FROM staged "
        f"JOIN ids{first.number} a ON staged.s = a.id JOIN ids{second.number} b ON staged.d = b.id "
        "ORDER BY time, row"
    )


def _value(batch: Any, name: str) -> np.ndarray:
    # A null (a value that was no number) arrives as NaN.
    array: np.ndarray = batch.column(name).to_numpy(zero_copy_only=False)
    return array


def _features_of(batch: Any, width: int) -> np.ndarray:
    piece = np.empty((batch.num_rows, width), np.float32)
    for place in range(width):
        piece[:, place] = _value(batch, f"v{place}")
    return piece


def _raise_bad_number(connection: Any, plan: Plan) -> None:
    """Name the first row that holds a feature, label or weight that is no finite number."""
    table, columns = plan.table, plan.columns
    checked = {sql: name for name, sql in plan.features.items() if not sql.startswith("CAST")}
    checked |= {part: part for part in ("label", "weight") if getattr(columns, part) is not None}
    found: list[tuple[int, str]] = []
    for sql, name in checked.items():
        row = first_row(connection, f"{sql} IS NULL OR NOT isfinite({sql})")
        if row is not None:
            found.append((row, name))
    first, name = min(found, key=lambda pair: pair[0])
    part = name if name in ("label", "weight") and getattr(columns, name) else "feature"
    column = getattr(columns, part) if part in ("label", "weight") else name
    raw = column if column in table.columns else column.rsplit("[", 1)[0]
    value = _raw_value(connection, table, raw, first)
    raise InputError(
        f"{table.name}, row {first + 1} (data rows counted from 1), column {shown(column)}: the "
        f"{part} {_problem(value)}{_remedy(part, value)}"
    )


def _problem(value: Any) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        return "is missing; expected a finite number"
    return f"is {shown(value)}; expected a finite number in the range of 32-bit floats"


def _remedy(part: str, value: Any) -> str:
    try:
        float(value)
    except (TypeError, ValueError):
        if part == "feature" and isinstance(value, str) and value.strip():
            return ". If the column holds categories, name it in categorical= instead"
        if part == "label" and isinstance(value, str) and value.strip():
            return ", such as 0 or 1. Translate text labels to numbers first"
    return ". Fill or drop such rows first"
