"""Node properties: a table of its own, (node, time, item, weight), as one vector per node and time.

The layout is that of the Temporal Graph Benchmark's node property sets: at some times some nodes
have weights over items, for example what a user will listen to in the week that begins then.

Shape legend: Q queries (node at a time), L items.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidegraph.errors import InputError, UnknownNodeError, shown
from tidegraph.events.core import Events

_COLUMNS = ("node", "time", "item", "weight")
_MOST_NUMBERS = 1 << 27  # of the dense table of vectors


@dataclass(frozen=True, eq=False)
class Properties:
    """Vectors to predict.

    Attributes:
        node_Q: [Q] int32, ascending by (time, node).
        time_Q: [Q], in the stream's time type.
        weight_QL: [Q, L] float32, not negative, of a positive sum.
        items: L names, sorted.
    """

    node_Q: np.ndarray
    time_Q: np.ndarray
    weight_QL: np.ndarray
    items: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.node_Q)


def read_properties(path: str | Path, events: Events) -> Properties:
    """Read a table with the columns node, time, item, weight.

    Args:
        path: CSV, TSV, Parquet, JSON lines.
        events: whose nodes (in bipartite data: sources) and whose unit of time the table uses.

    Raises:
        InputError: a column is missing, or a value is not what it must be; names the row.
    """
    node, time, item, weight = _read(Path(path))
    name = Path(path).name
    weight_M = _numbers(weight, name, "weight")
    bad_M = weight_M < 0
    if bad_M.any():
        at = int(np.argmax(bad_M))
        raise InputError(
            f"{name}, row {at + 1} (data rows counted from 1), column weight: is "
            f"{weight_M[at]:g}; expected 0 or more"
        )
    time_M = _times(time, name, events)
    side = "source" if events.schema.bipartite else None
    try:
        node_M = events.ids.to_internal(np.asarray(node), side=side).astype(np.int64)
    except UnknownNodeError as error:
        raise InputError(f"{name}, column node: {error}") from None
    items, item_M = np.unique(np.asarray(item), return_inverse=True)
    pairs = np.stack([time_M.astype(events.time.dtype), node_M.astype(events.time.dtype)], axis=1)
    query_Q2, query_M = np.unique(pairs, axis=0, return_inverse=True)
    if len(query_Q2) * len(items) > _MOST_NUMBERS:
        raise InputError(
            f"{name}: {len(query_Q2):,} nodes and times with {len(items):,} items are more than "
            f"the {_MOST_NUMBERS:,} numbers that fit; keep the most common items"
        )
    weight_QL = np.zeros((len(query_Q2), len(items)), np.float32)
    np.add.at(weight_QL, (query_M.reshape(-1), item_M.reshape(-1)), weight_M)
    kept_Q = weight_QL.sum(axis=1) > 0  # a vector of zeros says nothing about what comes
    return Properties(
        query_Q2[kept_Q, 1].astype(np.int32),
        query_Q2[kept_Q, 0].astype(events.time.dtype),
        weight_QL[kept_Q],
        tuple(items.tolist()),
    )


def past_properties(table: Properties, train_stop: int) -> dict[str, np.ndarray]:
    """Predictions from earlier vectors of the same node alone, [Q, L] by name.

    Args:
        table: of all parts.
        train_stop: queries of the training part; their mean stands in where a node has no past.
    """
    share_QL = table.weight_QL / table.weight_QL.sum(axis=1, keepdims=True)
    prior_L = share_QL[:train_stop].mean(axis=0)
    last_QL, mean_QL = np.empty_like(share_QL), np.empty_like(share_QL)
    total: dict[int, tuple[np.ndarray, np.ndarray, int]] = {}
    for query, node in enumerate(table.node_Q.tolist()):
        # A node has one vector at a time, so whatever came before it is strictly earlier.
        last_L, sum_L, count = total.get(node, (prior_L, np.zeros_like(prior_L), 0))
        last_QL[query] = last_L
        mean_QL[query] = sum_L / count if count else prior_L
        total[node] = share_QL[query], sum_L + share_QL[query], count + 1
    return {
        "training mean": np.broadcast_to(prior_L, share_QL.shape),
        "last of the node": last_QL,
        "mean of the node": mean_QL,
    }


def _read(path: Path) -> tuple[list[Any], ...]:
    import duckdb

    from tidegraph.events.columns import find_column
    from tidegraph.events.formats import Options, open_table
    from tidegraph.events.sql import quoted

    with duckdb.connect() as connection:
        table = open_table(connection, path, Options(), _COLUMNS)
        names = [quoted(find_column(table, one, one)) for one in _COLUMNS]
        found = connection.execute(f"SELECT {', '.join(names)} FROM {table.sql}").fetchall()
    if not found:
        raise InputError(f"{path.name}: has no rows; expected node, time, item, weight")
    for number, row in enumerate(found, 1):
        for column, value in zip(_COLUMNS, row, strict=True):
            if value is None or value == "":
                raise InputError(
                    f"{path.name}, row {number} (data rows counted from 1), column {column}: is "
                    "missing"
                )
    return tuple(list(column) for column in zip(*found, strict=True))


def _numbers(values: list[Any], name: str, column: str) -> np.ndarray:
    found = np.empty(len(values), np.float64)
    for place, value in enumerate(values):
        try:
            found[place] = float(value)
        except (TypeError, ValueError):
            found[place] = np.nan
        if not np.isfinite(found[place]):
            raise InputError(
                f"{name}, row {place + 1} (data rows counted from 1), column {column}: is "
                f"{shown(value)}; expected a finite number"
            )
    return found


def _times(values: list[Any], name: str, events: Events) -> np.ndarray:
    """Bare numbers in the events' unit, with every digit."""
    time_M = np.empty(len(values), events.time.dtype)
    whole = events.time.dtype.kind == "i"
    for place, value in enumerate(values):
        try:
            number = int(value) if whole else float(value)
            exact = float(value) == number
        except (TypeError, ValueError, OverflowError):
            exact = False
        if not exact:
            kind = "a whole number" if whole else "a number"
            unit = events.schema.time_unit
            raise InputError(
                f"{name}, row {place + 1} (data rows counted from 1), column time: is "
                f"{shown(value)}; expected {kind} as the events' times are"
                + (f", in {unit}" if unit else "")
            )
        time_M[place] = number
    return time_M
