"""Short forms for running SQL: every result is fetched to its end, or streamed in batches."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

_NOT_CSV = "state machine reached an invalid state"


def what_it_said(error: Exception) -> str:
    """What the SQL engine said, in one line that is not too long."""
    text = str(error)
    if _NOT_CSV in text:
        return (
            "its rows are not those of a CSV table: a quote that is not closed, text after a "
            "closing quote, or a line end without quotes within a value"
        )
    lines = [line.strip() for line in text[:4000].splitlines() if line.strip()]
    return " ".join(line[:300] for line in lines[:4] if not line.startswith("Possible"))


def quoted(name: str) -> str:
    """A column or table name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text value in SQL."""
    return "'" + text.replace("'", "''") + "'"


def rows(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    """All rows of a result."""
    # A result that is left unread keeps the connection busy.
    return list(connection.execute(sql).fetchall())


def run(connection: Any, sql: str) -> None:
    """A statement whose result is of no interest."""
    rows(connection, sql)


def one(connection: Any, sql: str) -> Any:
    """The first value of the first row."""
    return rows(connection, sql)[0][0]


def first_row(connection: Any, condition: str, table: str = "staged") -> int | None:
    """The first row (0-based) of a staged table where `condition` holds."""
    row = one(connection, f"SELECT min(rowid) FROM {table} WHERE {condition}")
    return None if row is None else int(row)


def stream(connection: Any, sql: str, batch_rows: int) -> Generator[Any]:
    """Arrow batches of a query's result, without holding the result in memory.

    Until it is exhausted or closed, the connection answers nothing else.
    """
    relation = connection.sql(sql)
    if hasattr(relation, "to_arrow_reader"):
        reader = relation.to_arrow_reader(batch_rows)
    else:
        reader = relation.fetch_arrow_reader(batch_rows)
    try:
        yield from reader
    finally:
        reader.close()
