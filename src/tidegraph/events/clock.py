"""A time column of any kind as exact integers, or floats, and the unit where it is known.

Integers stay as they are and floats stay floats. ISO text and timestamps become integers of the
coarsest unit that holds every value exactly. Nothing is guessed for bare numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegraph.errors import InputError, shown
from tidegraph.events.columns import is_numeric
from tidegraph.events.formats import Table
from tidegraph.events.sql import first_row, one
from tidegraph.events.units import NANOSECONDS

_INTEGER = "CASE WHEN regexp_full_match(t, '\\s*[+-]?[0-9]+\\s*') THEN TRY_CAST(t AS BIGINT) END"
_LOOKS_INTEGER = "regexp_full_match(t, '\\s*[+-]?[0-9]+\\s*')"
_FLOAT = "CASE WHEN isfinite(TRY_CAST(t AS DOUBLE)) THEN TRY_CAST(t AS DOUBLE) END"
# An offset may be written +0200; SQL wants +02:00.
_ISO_TEXT = "regexp_replace(trim(t), ' ?([+-][0-9]{2})([0-9]{2})$', '\\1:\\2')"
_MICROSECONDS = f"epoch_us(TRY_CAST({_ISO_TEXT} AS TIMESTAMPTZ))"
_BEYOND = "TRY_CAST(rpad(regexp_extract(t, '\\.[0-9]{6}([0-9]{1,3})', 1), 3, '0') AS BIGINT)"


@dataclass(frozen=True)
class Clock:
    """How to read column `t` of the staged table.

    Attributes:
        sql: expression of a BIGINT or a DOUBLE.
        dtype: "int64" or "float64".
        unit: unit, or None where it is not known.
    """

    sql: str
    dtype: str
    unit: str | None


def read_clock(connection: Any, table: Table, column: str, time_unit: str | None) -> Clock:
    """Decide how to read the staged times, from all of them.

    Raises:
        InputError: a time that is missing or cannot be read; names row, column and value.
    """
    reader = _Reader(connection, table, column)
    reader.require("t IS NOT NULL", "is missing; every event needs a time")
    kind = table.types[column]
    if column in table.units:
        return _coarsest(reader, "t", table.units[column], time_unit)
    if not table.text and is_numeric(kind):
        return _numeric(reader, kind, time_unit)
    if not table.text and (kind == "DATE" or kind.startswith("TIMESTAMP")):
        if kind.endswith("_NS"):
            return _coarsest(reader, "epoch_ns(t)", "ns", time_unit)
        zone = "TIMESTAMPTZ" if "TIME ZONE" in kind or "TZ" in kind else "TIMESTAMP"
        return _coarsest(reader, f"epoch_us(CAST(t AS {zone}))", "us", time_unit)
    return _text(reader, time_unit)


@dataclass(frozen=True)
class _Reader:
    connection: Any
    table: Table
    column: str

    def count(self, condition: str) -> int:
        sql = f"SELECT count(*) FROM staged WHERE {condition}"
        return int(one(self.connection, sql))

    def all(self, condition: str) -> bool:
        """Whether no row fails (NULL is a failure)."""
        return self._first_failing(condition) is None

    def require(self, condition: str, problem: str) -> None:
        row = self._first_failing(condition)
        if row is not None:
            sql = f"SELECT CAST(t AS VARCHAR) FROM staged WHERE rowid = {row}"
            value = one(self.connection, sql)
            found = "" if value is None else f" is {shown(value)}:"
            raise InputError(
                f"{self.table.name}, row {row + 1} (data rows counted from 1), "
                f"column {shown(self.column)}{found} time {problem}"
            )

    def _first_failing(self, condition: str) -> int | None:
        return first_row(self.connection, f"({condition}) IS NOT TRUE")


def _numeric(reader: _Reader, kind: str, time_unit: str | None) -> Clock:
    if kind == "BOOLEAN" or kind.endswith("]"):
        raise InputError(
            f"{reader.table.name}: column {shown(reader.column)} is {kind}; expected times"
        )
    if kind.split("(")[0] in ("FLOAT", "DOUBLE", "DECIMAL"):
        reader.require("isfinite(CAST(t AS DOUBLE))", "must be a finite number")
        return Clock("CAST(t AS DOUBLE)", "float64", time_unit)
    reader.require("TRY_CAST(t AS BIGINT) IS NOT NULL", "does not fit in 64-bit integers")
    return Clock("CAST(t AS BIGINT)", "int64", time_unit)


def _text(reader: _Reader, time_unit: str | None) -> Clock:
    if reader.all(f"({_INTEGER}) IS NOT NULL"):
        return Clock("CAST(trim(t) AS BIGINT)", "int64", time_unit)
    reader.require(
        f"NOT {_LOOKS_INTEGER} OR TRY_CAST(t AS BIGINT) IS NOT NULL",
        "does not fit in 64-bit integers",
    )
    if reader.all(f"({_FLOAT}) IS NOT NULL"):
        return Clock("CAST(t AS DOUBLE)", "float64", time_unit)
    iso = f"{_MICROSECONDS} IS NOT NULL AND NOT regexp_matches(t, '\\.[0-9]{{10}}')"
    numbers, moments = reader.count(f"({_FLOAT}) IS NOT NULL"), reader.count(iso)
    if numbers > moments:
        reader.require(f"({_FLOAT}) IS NOT NULL", "must be a finite number, like the other rows")
    reader.require(
        iso,
        "cannot be read; expected a number, or ISO text such as 2013-06-30 12:00:00 "
        "or 2013-06-30T12:00:00.5+02:00, the same kind in every row",
    )
    if reader.count(f"coalesce({_BEYOND}, 0) <> 0"):
        exact = f"(CAST({_MICROSECONDS} AS HUGEINT) * 1000 + coalesce({_BEYOND}, 0))"
        return _coarsest(reader, f"TRY_CAST({exact} AS BIGINT)", "ns", time_unit)
    return _coarsest(reader, _MICROSECONDS, "us", time_unit)


def _coarsest(reader: _Reader, sql: str, unit: str, time_unit: str | None) -> Clock:
    """Integers `sql` of `unit` as `time_unit`, else as the coarsest unit that is exact."""
    reader.require(f"({sql}) IS NOT NULL", "is outside the range of 64-bit nanoseconds")
    target = time_unit or _exact_unit(reader, sql, unit)
    wide, narrow = NANOSECONDS[target], NANOSECONDS[unit]
    if wide >= narrow:
        factor = wide // narrow
        reader.require(
            f"({sql}) % {factor} = 0", f"is not a whole number of {target!r}; use a finer time_unit"
        )
        return Clock(f"({sql}) // {factor}", "int64", target)
    factor = narrow // wide
    scaled = f"TRY_CAST(CAST({sql} AS HUGEINT) * {factor} AS BIGINT)"
    reader.require(f"{scaled} IS NOT NULL", f"does not fit in 64-bit integers of {target!r}")
    return Clock(scaled, "int64", target)


def _exact_unit(reader: _Reader, sql: str, unit: str) -> str:
    for coarser in ("s", "ms", "us"):
        factor = NANOSECONDS[coarser] // NANOSECONDS[unit]
        if factor > 1 and reader.all(f"({sql}) % {factor} = 0"):
            return coarser
    return unit
