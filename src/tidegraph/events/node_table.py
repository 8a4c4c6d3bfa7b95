"""Node features given beside the events: a matrix by node number, or a table by node id."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidegraph.errors import InputError, SettingError, shown
from tidegraph.events.arrays import matrix
from tidegraph.events.columns import find_column, id_of, number_of, rest_of
from tidegraph.events.formats import Options, Table, open_table
from tidegraph.events.numbering import Numbering
from tidegraph.events.sql import first_row, rows, run, stream
from tidegraph.events.store import Sink

_BATCH = 1 << 16
IDS = "node_table"
"""The SQL table of node ids (column `id`) and features (`f0`, `f1`, ...)."""


@dataclass(frozen=True, eq=False)
class NodeTable:
    """Node features, staged in SQL as `node_table`.

    Attributes:
        name: for messages.
        width: G.
        matrix: [N, G] by integer id, or None where the features are in SQL.
    """

    name: str
    width: int
    matrix: np.ndarray | None = None


def stage_nodes(connection: Any, data: Any, node_id: str | int | None, id_type: str) -> NodeTable:
    """Check node features and make their ids known to SQL.

    Raises:
        InputError: a node twice, a value that is no finite number; names the rows.
    """
    is_table = isinstance(data, (str, Path, dict)) or (
        hasattr(data, "columns") or hasattr(data, "column_names")
    )
    if not is_table:
        if node_id is not None:
            raise SettingError("node_id= is for node features in a table; a matrix has none")
        features_NG = matrix(data, "node_features", None, "node_features")
        if features_NG is None:
            raise InputError("node_features: has no columns")
        numbers = f"SELECT CAST(range AS {id_type}) AS id FROM range({len(features_NG)})"
        run(connection, f"CREATE TABLE {IDS} AS {numbers}")
        return NodeTable("node_features", features_NG.shape[1], features_NG)
    if node_id is None:
        raise SettingError("node_features is a table: name its id column with node_id=")
    table = open_table(connection, data, Options(), [node_id], alias="node_frame")
    column = find_column(table, node_id, "node_id")
    features = rest_of(table, {column})
    if not features:
        raise InputError(f"{table.name}: no numeric column beside {shown(column)}")
    values = ", ".join(f"{number_of(table, name)} AS f{i}" for i, name in enumerate(features))
    key = f"CAST({id_of(table, column)[0]} AS {id_type}) AS id"
    run(connection, f"CREATE TABLE {IDS} AS SELECT {key}, {values} FROM {table.sql}")
    _check_rows(connection, table, column, features)
    return NodeTable(table.name, len(features))


def _check_rows(connection: Any, table: Table, column: str, features: tuple[str, ...]) -> None:
    row = first_row(connection, "id IS NULL", IDS)
    if row is not None:
        raise InputError(
            f"{table.name}, row {row + 1}, column {shown(column)}: the node id is missing"
        )
    twice = rows(
        connection,
        f"SELECT id, list(rowid + 1 ORDER BY rowid) FROM {IDS} GROUP BY id HAVING count(*) > 1 "
        "ORDER BY min(rowid) LIMIT 1",
    )
    if twice:
        listed = ", ".join(str(row) for row in twice[0][1][:5])
        raise InputError(
            f"{table.name}: node {shown(twice[0][0])} stands in rows {listed} (data rows counted "
            "from 1); expected one row a node"
        )
    for place, name in enumerate(features):
        row = first_row(connection, f"f{place} IS NULL OR NOT isfinite(f{place})", IDS)
        if row is not None:
            raise InputError(
                f"{table.name}, row {row + 1} (data rows counted from 1), column {shown(name)}: "
                "is missing, no number, NaN or infinite; expected a finite number"
            )


def check_nodes(connection: Any, nodes: NodeTable, table: Table) -> None:
    """Every node with an event must have features."""
    ends = "(SELECT s AS id FROM staged UNION ALL SELECT d FROM staged)"
    found = rows(connection, f"SELECT id FROM {ends} ANTI JOIN {IDS} USING (id) LIMIT 1")
    if not found:
        return
    missing = found[0]
    if nodes.matrix is not None:
        raise InputError(
            f"{table.name}: node {shown(missing[0])} has no row in node_features, which has "
            f"{len(nodes.matrix):,} rows for the integer ids 0 to {len(nodes.matrix) - 1}; "
            "give exactly one row a node (row i is id i), or a table with node_id="
        )
    raise InputError(
        f"{nodes.name}: node {shown(missing[0])} of {table.name} is not in it; "
        "expected one row for every node that has an event"
    )


def write_nodes(connection: Any, nodes: NodeTable, numbering: Numbering, sink: Sink) -> None:
    """Write node features in the order of internal numbers."""
    column = sink.column("node_features", "<f4", (numbering.num_nodes, nodes.width))
    for block in numbering.blocks:
        name = f"ids{block.number}"
        if nodes.matrix is not None:
            sql = f"SELECT CAST(id AS BIGINT) FROM {name} ORDER BY rowid"
            for batch in stream(connection, sql, _BATCH):
                column.append(nodes.matrix[batch.column(0).to_numpy()])
            continue
        values = ", ".join(f"f{place}" for place in range(nodes.width))
        sql = f"SELECT {values} FROM {name} JOIN {IDS} USING (id) ORDER BY {name}.rowid"
        for batch in stream(connection, sql, _BATCH):
            pieces = [batch.column(place).to_numpy() for place in range(nodes.width)]
            column.append(np.column_stack(pieces))
