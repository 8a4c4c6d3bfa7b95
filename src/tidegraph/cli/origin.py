"""Which table a stored copy in the cache is of: a note beside its columns.

A run finds its events in the copy, and in the table where the copy is gone; only where the table
is still what it was may the copy go.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

_NOTE = "origin.json"


def note_origin(store: Path, table: Path) -> None:
    """Write down which table `store` was read from; without effect where that cannot be."""
    stat = table.stat()
    origin = {"table": str(table.resolve()), "bytes": stat.st_size, "changed_ns": stat.st_mtime_ns}
    with suppress(OSError):
        (store / _NOTE).write_text(json.dumps(origin), encoding="utf-8")


def origin_of(store: Path) -> Path | None:
    """The table that `store` is a copy of, if it is still there and unchanged."""
    try:
        origin = json.loads((store / _NOTE).read_text(encoding="utf-8"))
        table = Path(origin["table"])
        stat = table.stat()
        same = (stat.st_size, stat.st_mtime_ns) == (origin["bytes"], origin["changed_ns"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return table if same else None
