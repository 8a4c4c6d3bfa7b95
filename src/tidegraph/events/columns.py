"""Which columns of a table play which part, and the SQL that reads each as what it must be."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tidegraph.errors import InputError, SettingError, listed, shown
from tidegraph.events.formats import Table
from tidegraph.events.sql import quoted

_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
_WIDE_INTEGERS = ("UBIGINT", "HUGEINT", "UHUGEINT", "BIGNUM")
_FLOATS = ("FLOAT", "DOUBLE", "DECIMAL")


@dataclass(frozen=True)
class Columns:
    """Column names by part; see `read_table`."""

    source: str
    target: str
    time: str
    features: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    label: str | None = None
    weight: str | None = None


def resolve_columns(
    table: Table,
    *,
    source: str | int,
    target: str | int,
    time: str | int,
    features: Sequence[str | int] | Literal["rest"] | str,
    categorical: Sequence[str | int] | str,
    label: str | int | None,
    weight: str | int | None,
) -> Columns:
    """Find every named column.

    Raises:
        InputError: a column that is not there; lists those that are and the closest.
    """
    found = {
        part: find_column(table, name, part)
        for part, name in (("source", source), ("target", target), ("time", time))
    }
    if found["source"] == found["target"]:
        raise SettingError(f"source and target are both column {shown(found['source'])}")
    label_name = None if label is None else find_column(table, label, "label")
    weight_name = None if weight is None else find_column(table, weight, "weight")
    names = (categorical,) if isinstance(categorical, (str, int)) else tuple(categorical)
    categorical_names = tuple(find_column(table, name, "categorical") for name in names)
    if isinstance(features, str) and features == "rest":
        taken = {*found.values(), label_name, weight_name, *categorical_names}
        feature_names = rest_of(table, taken)
    else:
        names = (features,) if isinstance(features, (str, int)) else tuple(features)
        feature_names = tuple(find_column(table, name, "features") for name in names)
    both = set(feature_names) & set(categorical_names)
    if both:
        raise SettingError(f"column {shown(both.pop())} is in both features and categorical")
    return Columns(**found, features=feature_names, categorical=categorical_names,
                   label=label_name, weight=weight_name)  # fmt: skip


def rest_of(table: Table, taken: set[str | None]) -> tuple[str, ...]:
    """The numeric columns that play no other part."""
    return tuple(
        name for name in table.columns if name not in taken and is_numeric(table.types[name])
    )


def find_column(table: Table, name: str | int, part: str) -> str:
    """The column called `name`, or at position `name`."""
    if name in table.unreadable:
        raise InputError(f"{table.name}, column {shown(name)}{table.unreadable[str(name)]}")
    columns = listed(table.columns)
    if isinstance(name, int):
        if 0 <= name < len(table.columns):
            return find_column(table, table.columns[name], part)
        raise InputError(
            f"{table.name}: no column {name} (for {part}); there are {len(table.columns)}, "
            f"numbered from 0: {columns}"
        )
    if name in table.repeated:
        raise InputError(
            f"{table.name}: more than one column is called {shown(name)} (for {part}); say which "
            f"by its position from 0: {columns}"
        )
    if name in table.columns:
        return name
    close = difflib.get_close_matches(name[:80], table.columns, n=1, cutoff=0.4)
    hint = f". Did you mean {shown(close[0])}?" if close else ""
    raise InputError(
        f"{table.name}: no column {shown(name)} (for {part}); columns: {columns}{hint}"
        ". A file without a header is addressed by position: 0, 1, 2"
        if table.trim and not hint
        else f"{table.name}: no column {shown(name)} (for {part}); columns: {columns}{hint}"
    )


def is_numeric(kind: str) -> bool:
    """Whether values of this DuckDB type are numbers, booleans or lists of numbers."""
    base = kind.split("[")[0].split("(")[0]
    return base in (*_INTEGERS, *_WIDE_INTEGERS, *_FLOATS, "BOOLEAN")


def is_list(kind: str) -> bool:
    """Whether this DuckDB type is a list or an array."""
    return kind.endswith("]")


def text_of(table: Table, column: str) -> str:
    """SQL of a column as text; empty text in files means missing."""
    value = f"CAST({quoted(column)} AS VARCHAR)"
    return f"nullif(trim({value}), '')" if table.trim else value


def id_of(table: Table, column: str) -> tuple[str, str]:
    """SQL of an id column and its type there, BIGINT or VARCHAR."""
    kind = table.types[column]
    name = quoted(column)
    if is_list(kind) or kind.startswith(("STRUCT", "MAP", "UNION")):
        raise InputError(
            f"{table.name}: column {shown(column)} is {kind[:80]}; expected ids, "
            "integers or text. Make one text of each value first"
        )
    if table.text:
        return text_of(table, column), "VARCHAR"
    if kind in _INTEGERS:
        return f"CAST({name} AS BIGINT)", "BIGINT"
    if kind.split("(")[0] in _FLOATS:
        # Integers that had to share a column with missing values; a fraction becomes NULL.
        whole = f"{name} = floor({name}) AND abs({name}) < 9007199254740992"
        return f"CASE WHEN {whole} THEN CAST({name} AS BIGINT) END", "BIGINT"
    return text_of(table, column), "VARCHAR"


def may_be_integers(table: Table, column: str) -> bool:
    """Whether ids that look like integers are integers: not where the table says they are text.

    CSV says nothing of types; JSON quotes text; frames and Parquet have typed columns.
    """
    return table.trim or (is_numeric(table.types[column]) and table.types[column] != "BOOLEAN")


def number_of(table: Table, column: str) -> str:
    """SQL of a column as a 32-bit float, NULL where it is none."""
    kind = table.types[column]
    if not table.text and not is_numeric(kind) and kind != "VARCHAR" and "ENUM" not in kind:
        raise InputError(
            f"{table.name}: column {shown(column)} is {kind}, expected numbers; "
            "convert it, or name it in categorical="
        )
    if table.text or not is_numeric(kind):
        return f"TRY_CAST({text_of(table, column)} AS FLOAT)"
    return f"TRY_CAST({quoted(column)} AS FLOAT)"
