"""Events from arrays in memory, and events appended to events: checks, sorting, assembling.

Reading a file ends in the same checks, made in SQL (`table`); here they are made in NumPy, chunk
by chunk, so that ten million events take about a second.

Shape legend: E events, N nodes, F event-feature width, G node-feature width.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tidegraph.errors import InputError
from tidegraph.events.core import Events, ReadReport, Schema
from tidegraph.events.digest import array_digest, fingerprint_of
from tidegraph.events.ids import NodeIds
from tidegraph.events.units import check_unit

_LARGEST_NODE = np.iinfo(np.int32).max
_CHECK_ROWS = 1 << 20
EXTRA = "extra."
"""What an extra column's name has in front of it, among the names of all columns."""


def events_from_arrays(
    source: Any,
    target: Any,
    time: Any,
    *,
    features: Any = None,
    label: Any = None,
    weight: Any = None,
    node_features: Any = None,
    num_nodes: int | None = None,
    num_sources: int | None = None,
    bipartite: bool | None = None,
    time_unit: str | None = None,
    feature_names: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
    name: str = "memory",
    ids: NodeIds | None = None,
    notes: tuple[str, ...] = (),
) -> Events:
    """See `Events.from_arrays`; readers of layouts add original ids and notes for the report."""
    source_E = _node_column(source, "source", name)
    target_E = _node_column(target, "target", name)
    time_E, time_unit = _time_column(time, check_unit(time_unit), name)
    count = len(time_E)
    _check_length("source", len(source_E), count, name)
    _check_length("target", len(target_E), count, name)
    features_EF = matrix(features, "features", count, name)
    label_E = _vector(label, "label", count, name)
    weight_E = _vector(weight, "weight", count, name)
    node_features_NG = matrix(node_features, "node_features", None, name)
    extra_columns = _extra_columns(extra or {}, count, name)
    num_nodes, num_sources = _sides(
        source_E, target_E, num_nodes, num_sources, bipartite, node_features_NG, name
    )
    schema = Schema(
        num_nodes=num_nodes,
        num_sources=num_sources,
        bipartite=num_sources < num_nodes,
        event_features=0 if features_EF is None else features_EF.shape[1],
        node_features=0 if node_features_NG is None else node_features_NG.shape[1],
        time_unit=time_unit,
        feature_names=_feature_names(feature_names, features_EF, name),
    )
    row_E = np.arange(count, dtype=np.int64)
    moved = 0
    if count and not bool((time_E[1:] >= time_E[:-1]).all()):
        moved = int((time_E[1:] < time_E[:-1]).sum())
        row_E = np.argsort(time_E, kind="stable")
        source_E, target_E, time_E = source_E[row_E], target_E[row_E], time_E[row_E]
        features_EF, label_E, weight_E = (
            None if column is None else column[row_E] for column in (features_EF, label_E, weight_E)
        )
        extra_columns = {key: column[row_E] for key, column in extra_columns.items()}
    return assemble(
        source=source_E,
        target=target_E,
        time=time_E,
        row=row_E,
        schema=schema,
        ids=ids or NodeIds.identity(num_nodes),
        features=features_EF,
        label=label_E,
        weight=weight_E,
        node_features=node_features_NG,
        extra=extra_columns,
        report=ReadReport(name, count, moved, notes),
    )


def assemble(
    *,
    source: np.ndarray,
    target: np.ndarray,
    time: np.ndarray,
    row: np.ndarray,
    schema: Schema,
    ids: NodeIds,
    features: np.ndarray | None,
    label: np.ndarray | None,
    weight: np.ndarray | None,
    node_features: np.ndarray | None,
    report: ReadReport,
    extra: Mapping[str, np.ndarray] | None = None,
) -> Events:
    """An `Events` of checked and sorted columns, with its fingerprint."""
    columns = {
        "source": source,
        "target": target,
        "time": time,
        "features": features,
        "label": label,
        "weight": weight,
        "node_features": node_features,
        **{EXTRA + key: column for key, column in (extra or {}).items()},
    }
    digests = {name: array_digest(array) for name, array in columns.items() if array is not None}
    digests |= {name: array_digest(array) for name, array in ids.arrays().items()}
    return Events(
        source=source,
        target=target,
        time=time,
        row=row,
        schema=schema,
        ids=ids,
        features=features,
        label=label,
        weight=weight,
        node_features=node_features,
        extra=dict(extra or {}),
        report=report,
        fingerprint=fingerprint_of(asdict(schema), digests),
    )


def _as_array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):  # a torch tensor, on any device
        value = value.detach().cpu()
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    return np.asarray(value)


def _check_length(column: str, found: int, expected: int, name: str) -> None:
    if found != expected:
        raise InputError(
            f"{name}: {column} has {found:,} rows and time has {expected:,}; "
            "every event needs one value in each column"
        )


def _node_column(value: Any, column: str, name: str) -> np.ndarray:
    node_E = _as_array(value)
    if node_E.size == 0:
        node_E = node_E.astype(np.int32)
    if node_E.ndim != 1 or node_E.dtype.kind not in "iu":
        raise InputError(
            f"{name}: {column} has shape {node_E.shape} and type {node_E.dtype}; expected a "
            "one-dimensional array of integers 0..N-1. For text or other ids use read_table"
        )
    if node_E.size and (int(node_E.min()) < 0 or int(node_E.max()) >= _LARGEST_NODE):
        bad = int(np.argmax((node_E < 0) | (node_E >= _LARGEST_NODE)))
        raise InputError(
            f"{name}: {column} in row {bad + 1} is {node_E[bad]}; expected a node number from 0 to "
            f"{_LARGEST_NODE - 1}. For ids of any size use read_table"
        )
    return np.ascontiguousarray(node_E, dtype=np.int32)


def _time_column(value: Any, time_unit: str | None, name: str) -> tuple[np.ndarray, str | None]:
    time_E = _as_array(value)
    if time_E.size == 0:
        return time_E.reshape(-1).astype(np.int64), time_unit
    if time_E.ndim != 1 or time_E.dtype.kind not in "iufM":
        raise InputError(
            f"{name}: time has shape {time_E.shape} and type {time_E.dtype}; expected a "
            "one-dimensional array of integers, floats or datetime64"
        )
    if time_E.dtype.kind == "M":
        bad_E = np.isnat(time_E)
        if bad_E.any():
            raise InputError(f"{name}: time in row {int(np.argmax(bad_E)) + 1} is missing (NaT)")
        return _datetime_column(time_E, time_unit)
    if time_E.dtype.kind == "f":
        bad_E = ~np.isfinite(time_E)
        if bad_E.any():
            bad = int(np.argmax(bad_E))
            raise InputError(
                f"{name}: time in row {bad + 1} is {time_E[bad]}; expected a finite number"
            )
        return np.ascontiguousarray(time_E, dtype=np.float64), time_unit
    if time_E.dtype == np.uint64 and int(time_E.max()) > np.iinfo(np.int64).max:
        bad = int(np.argmax(time_E))
        raise InputError(f"{name}: time in row {bad + 1} is {time_E[bad]}, beyond 64-bit integers")
    return np.ascontiguousarray(time_E, dtype=np.int64), time_unit


def _datetime_column(time_E: np.ndarray, time_unit: str | None) -> tuple[np.ndarray, str | None]:
    units = {"D": "d", "h": "h", "m": "min", "s": "s", "ms": "ms", "us": "us", "ns": "ns"}
    own = units.get(np.datetime_data(time_E.dtype)[0])
    if own is None or np.datetime_data(time_E.dtype)[1] != 1:
        time_E, own = time_E.astype("datetime64[s]"), "s"
    if time_unit is not None and time_unit != own:
        numpy_unit = {ours: theirs for theirs, ours in units.items()}[time_unit]
        converted_E = time_E.astype(f"datetime64[{numpy_unit}]")
        if not (converted_E == time_E).all():
            raise InputError(f"times do not fit time_unit={time_unit!r} exactly; use {own!r}")
        time_E, own = converted_E, time_unit
    return time_E.astype(np.int64), own


def matrix(value: Any, column: str, rows: int | None, name: str) -> np.ndarray | None:
    """Check a [rows, width] block of finite numbers (1-D is one column) and make it float32."""
    if value is None:
        return None
    array = _as_array(value)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or (array.dtype.kind not in "iufb" and array.size):
        raise InputError(
            f"{name}: {column} has shape {array.shape} and type {array.dtype}; expected numbers, "
            "one row each, in one or more columns"
        )
    if rows is not None and array.shape[0] != rows:
        raise InputError(
            f"{name}: {column} has {array.shape[0]:,} rows for {rows:,} events; "
            "expected exactly one row an event (no padding row)"
        )
    if array.shape[1] == 0:
        return None
    with np.errstate(over="ignore"):  # found below, with its row
        result = np.ascontiguousarray(array if array.size else array.astype("f4"), np.float32)
    for start in range(0, len(result), _CHECK_ROWS):
        finite = np.isfinite(result[start : start + _CHECK_ROWS])
        if not finite.all():
            row, place = (int(i) for i in np.argwhere(~finite)[0])
            value = array[start + row, place]
            where = f"{column}[{place}]" if array.shape[1] > 1 else column
            raise InputError(
                f"{name}: {where} in row {start + row + 1} is {value}; expected a finite number "
                "in the range of 32-bit floats. Fill or drop such rows first"
            )
    return result


def _extra_columns(extra: Mapping[str, Any], rows: int, name: str) -> dict[str, np.ndarray]:
    """Columns kept as they are: checked for their number of rows, and for a name files can have."""
    found = {}
    for key, value in extra.items():
        column = np.ascontiguousarray(_as_array(value))
        if not re.fullmatch(r"[A-Za-z0-9_]+", key):
            raise InputError(
                f"{name}: extra column {key!r}: expected a name of letters, digits and underscores"
            )
        if column.dtype.kind not in "biufc":
            raise InputError(
                f"{name}: extra column {key} has type {column.dtype}; expected numbers"
            )
        if column.ndim == 0 or len(column) != rows:
            raise InputError(
                f"{name}: extra column {key} has shape {column.shape}; expected one row for each "
                f"of the {rows:,} events"
            )
        found[key] = column
    return found


def _vector(value: Any, column: str, rows: int, name: str) -> np.ndarray | None:
    result = matrix(value, column, rows, name)
    if result is None:
        return None
    if result.shape[1] != 1:
        raise InputError(
            f"{name}: {column} has {result.shape[1]} columns; expected one number an event"
        )
    return result[:, 0]


def _sides(
    source_E: np.ndarray,
    target_E: np.ndarray,
    num_nodes: int | None,
    num_sources: int | None,
    bipartite: bool | None,
    node_features_NG: np.ndarray | None,
    name: str,
) -> tuple[int, int]:
    """Sizes N and, for bipartite data, the number of sources (else N again)."""
    size = len(source_E)
    largest = max(int(source_E.max()), int(target_E.max())) if size else -1
    rows = None if node_features_NG is None else len(node_features_NG)
    if num_nodes is None:
        num_nodes = max(largest + 1, num_sources or 0) if rows is None else rows
    if rows is not None and rows != num_nodes:
        raise InputError(
            f"{name}: node_features has {rows:,} rows for {num_nodes:,} nodes; "
            "expected exactly one row a node (row i is node i, no padding row)"
        )
    if largest >= num_nodes:
        row = int(np.argmax((source_E >= num_nodes) | (target_E >= num_nodes)))
        node = max(int(source_E[row]), int(target_E[row]))
        raise InputError(
            f"{name}: row {row + 1} has node {node}, but there are {num_nodes:,} nodes "
            f"(0 to {num_nodes - 1})"
            + ("; node_features needs one row a node" if rows is not None else "")
        )
    if bipartite is None:
        apart = size > 0 and int(source_E.max()) < int(target_E.min())
        bipartite = num_sources is not None or apart
    if not bipartite:
        return num_nodes, num_nodes
    if num_sources is None:
        num_sources = int(target_E.min()) if size else num_nodes
    bad_E = (source_E >= num_sources) | (target_E < num_sources)
    if bad_E.any():
        row = int(np.argmax(bad_E))
        raise InputError(
            f"{name}: row {row + 1} is {source_E[row]} -> {target_E[row]}, but in bipartite data "
            f"with {num_sources:,} sources, sources are 0 to {num_sources - 1} and targets follow"
        )
    return num_nodes, num_sources


def _feature_names(
    names: Sequence[str], features_EF: np.ndarray | None, name: str
) -> tuple[str, ...]:
    width = 0 if features_EF is None else features_EF.shape[1]
    if not names:
        return tuple(f"f{i}" for i in range(width))
    if len(names) != width:
        raise InputError(f"{name}: {len(names)} feature names for {width} features")
    return tuple(names)
