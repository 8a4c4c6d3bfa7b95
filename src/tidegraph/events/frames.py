"""Frames and arrays in memory as one Arrow table, without loss: mixed ids, exact timestamps."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidegraph.errors import InputError

_PLAIN = {int, str, float, bool}
_VALUES = (int, str, float, bytes, datetime.date, datetime.timedelta, decimal.Decimal, uuid.UUID)


@dataclass(frozen=True)
class Frame:
    """An Arrow table and what Arrow cannot say of it.

    Attributes:
        name: kind of the data, for messages.
        table: the Arrow table.
        integers: columns of mixed types, now text -> the values that were integers.
        units: timestamp columns, now integers -> their unit.
        unreadable: columns of objects that are no values of a table -> what was found; empty here.
    """

    name: str
    table: Any
    integers: Mapping[str, frozenset[str]]
    units: Mapping[str, str]
    unreadable: Mapping[str, str] = field(default_factory=dict)


def as_arrow(data: Any) -> Frame:
    """Convert a pandas or polars frame, an Arrow table, or a mapping of arrays.

    Raises:
        InputError: none of these, or columns of different lengths.
    """
    import pyarrow as pa

    odd = _Odd()
    if isinstance(data, pa.RecordBatchReader):
        table, name = data.read_all(), "Arrow table"
    elif isinstance(data, pa.RecordBatch):
        table, name = pa.Table.from_batches([data]), "Arrow table"
    elif isinstance(data, pa.Table):
        table, name = data, "Arrow table"
    elif isinstance(data, Mapping):
        columns = {str(key): _array(value, str(key), odd) for key, value in data.items()}
        lengths = {key: len(value) for key, value in columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"columns differ in length: {lengths}; expected one value a row")
        table, name = pa.table(columns), "mapping of arrays"
    elif hasattr(data, "iloc"):
        columns = {str(key): _array(data[key], str(key), odd) for key in data.columns}
        table, name = pa.table(columns), "pandas frame"
    elif hasattr(data, "to_arrow"):
        table, name = data.to_arrow(), "polars frame"
    else:
        raise InputError(
            f"cannot read a {type(data).__name__}; expected a path, a pandas or polars frame, "
            "an Arrow table, or a mapping of column names to arrays"
        )
    if len(table.column_names) != len(set(table.column_names)):
        raise InputError(f"{name}: column names repeat: {', '.join(table.column_names)}")
    table, units = _exact_times(table)
    return Frame(name, table, odd.integers, units, odd.unreadable)


@dataclass
class _Odd:
    """What is found out of columns on the way: see `Frame`."""

    integers: dict[str, frozenset[str]] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


def _array(value: Any, column: str, odd: _Odd) -> Any:
    import pyarrow as pa

    if hasattr(value, "iloc"):  # a pandas series: its own missing values become nulls
        if value.dtype != object:
            try:
                return pa.Array.from_pandas(value)
            except pa.ArrowNotImplementedError:  # complex numbers
                return _objects(value.tolist(), column, odd)
        value = value.where(value.notna(), None).to_numpy()
    array = value if isinstance(value, np.ndarray) else None
    if array is None:
        items = list(value)
        kinds = {type(item) for item in items if item is not None}
        if len(kinds) <= 1 and kinds <= _PLAIN:
            try:
                return pa.array(items)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                pass  # integers beyond 64 bits
        array = np.empty(len(items), object)
        array[:] = items
    if array.ndim == 2:
        flat = pa.array(np.ascontiguousarray(array).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, int(array.shape[-1]))
    if array.dtype == object:
        return _object_array(array, column, odd)
    try:
        return pa.array(array)
    except pa.ArrowNotImplementedError:
        return _objects(array.tolist(), column, odd)


def _object_array(array: np.ndarray, column: str, odd: _Odd) -> Any:
    import pyarrow as pa

    items = [None if item is None or _is_nan(item) else item for item in array.tolist()]
    kinds = {type(item) for item in items if item is not None}
    if not all(issubclass(kind, (*_VALUES, np.generic)) for kind in kinds):
        return _objects(items, column, odd)
    if str not in kinds or len(kinds) == 1:
        try:
            return pa.array(items)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            pass
    given = {str(item) for item in items if isinstance(item, int) and not isinstance(item, bool)}
    if given:
        odd.integers[column] = frozenset(given)
    return pa.array([None if item is None else str(item) for item in items], pa.string())


def _objects(items: list[Any], column: str, odd: _Odd) -> Any:
    """Lists become lists of numbers where they are; other objects are no values of a table."""
    import pyarrow as pa

    try:
        found = pa.array(items)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        row = next(
            i for i, item in enumerate(items)
            if item is not None and not isinstance(item, (*_VALUES, np.generic))
        )  # fmt: skip
        odd.unreadable[column] = (
            f", row {row + 1} (counted from 1): holds a {type(items[row]).__name__}; expected "
            "integers, text, numbers or times. Make text of such values first"
        )
        return pa.nulls(len(items), pa.string())
    return found


def _is_nan(item: Any) -> bool:
    """Whether this is one of the many kinds of missing values (which are unlike themselves)."""
    try:
        return bool(item != item)
    except (TypeError, ValueError):  # pandas.NA, arrays
        return type(item).__name__ == "NAType"


def _exact_times(table: Any) -> tuple[Any, dict[str, str]]:
    """Timestamps as integers in their own unit (SQL would cut zoned nanoseconds)."""
    import pyarrow as pa

    units = {}
    for position, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            units[column.name] = column.type.unit
            exact = table.column(position).cast(pa.int64())
            table = table.set_column(position, column.name, exact)
    return table, units
