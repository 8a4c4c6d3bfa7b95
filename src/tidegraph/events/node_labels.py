"""Node labels from a table of their own: which node had which label at which time.

Labels come at times of their own, of nodes that may never have an event. They are kept apart from
the events, sorted by time, in the events' own type of time.

Shape legend: M labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegraph.errors import InputError, SettingError, shown
from tidegraph.events.clock import read_clock
from tidegraph.events.columns import find_column, id_of, number_of, text_of
from tidegraph.events.core import EventRange, Events
from tidegraph.events.formats import Options, open_table
from tidegraph.events.sql import first_row, quoted, rows, run


@dataclass(frozen=True, eq=False)
class NodeLabels:
    """Labels of nodes over time.

    Attributes:
        node_M: int32 internal nodes; -1 for a node that no event has.
        time_M: in the events' type, ascending; ties in the order of the rows.
        label_M: float32.
        row_M: int64, the label's row in its table, from 0.
        original_M: ids as they stand in the table.
    """

    node_M: np.ndarray
    time_M: np.ndarray
    label_M: np.ndarray
    row_M: np.ndarray
    original_M: np.ndarray

    def __len__(self) -> int:
        return len(self.node_M)

    def within(self, part: EventRange) -> NodeLabels:
        """The labels in the time of a part: after the event before it, up to its last one."""
        time_E, first, last = part.events.time, 0, len(self)
        if part.start > 0:
            first = int(np.searchsorted(self.time_M, time_E[part.start - 1], side="right"))
        if part.stop < len(time_E):
            last = int(np.searchsorted(self.time_M, time_E[part.stop - 1], side="right"))
        chosen = slice(first, max(first, last))
        return NodeLabels(
            self.node_M[chosen], self.time_M[chosen], self.label_M[chosen], self.row_M[chosen],
            self.original_M[chosen],
        )  # fmt: skip

    def seen_before(self, events: Events) -> np.ndarray:
        """[M] int64, how many events a label may know: those up to its time, at it included.

        >>> events = Events.from_arrays([0, 1, 0], [1, 2, 2], [1, 2, 9])
        >>> labels = read_node_labels({"n": [0], "t": [5], "y": [1]}, events, node="n", time="t",
        ...                           label="y")
        >>> labels.seen_before(events).tolist()
        [2]
        """
        return np.searchsorted(events.time, self.time_M, side="right").astype(np.int64)


def read_node_labels(
    data: Any,
    events: Events,
    *,
    node: str | int = "node",
    time: str | int = "time",
    label: str | int = "label",
    side: str | None = None,
    **options: Any,
) -> NodeLabels:
    """Read a table of node, time and label.

    Args:
        data: as in `read_table`; TGL's `labels.csv` needs no more.
        events: whose ids and time the labels refer to.
        node, time, label: columns, by name or by position.
        side: "source" or "target", where the same id means two nodes.
        **options: how the file is read, as in `read_table` (`header`, `delimiter`, `query`, ...).

    Returns:
        Labels sorted by time; nodes without events have number -1.

    Raises:
        InputError: a column or value is missing or no number; names the row.
        SettingError: an option that labels do not have.

    >>> events = Events.from_arrays([0, 1], [2, 2], [1, 9])
    >>> found = read_node_labels({"node": [0, 7], "time": [5, 3], "label": [1, 0]}, events)
    >>> found.node_M.tolist(), found.time_M.tolist(), found.label_M.tolist()
    ([-1, 0], [3, 5], [0.0, 1.0])
    """
    known = {"format", "header", "delimiter", "table", "query"}
    if wrong := sorted(options.keys() - known):
        raise SettingError(f"read_node_labels has no option {wrong[0]}=; it has {sorted(known)}")
    name, original_M, time_M, label_M = _columns(data, events, (node, time, label), options)
    time_M = _as_events(time_M, events, name)
    node_M = events.ids.to_internal(original_M, side=side, missing=-1)
    order_M = np.argsort(time_M, kind="stable")
    return NodeLabels(
        node_M[order_M], time_M[order_M], label_M[order_M], order_M, original_M[order_M]
    )


def _columns(
    data: Any, events: Events, wanted: tuple[str | int, ...], options: dict[str, Any]
) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
    """The table's name, and its nodes, times and labels in the order of the rows."""
    from tidegraph.events.table import scratch_database

    with scratch_database(data) as connection:
        table = open_table(connection, data, Options(**options), wanted)
        parts = zip(("node", "time", "label"), wanted, strict=True)
        node, time, label = (find_column(table, name, part) for part, name in parts)
        is_text = table.text or table.types[time].startswith(("VARCHAR", "ENUM"))
        moment = text_of(table, time) if is_text else quoted(time)
        run(
            connection,
            f"CREATE TABLE staged AS SELECT {id_of(table, node)[0]} AS s, {moment} AS t, "
            f"{number_of(table, label)} AS label FROM {table.sql}",
        )
        for column, named, expected in (
            ("s IS NULL", node, "the node's id"),
            ("label IS NULL OR NOT isfinite(label)", label, "a finite number"),
        ):
            row = first_row(connection, column)
            if row is not None:
                raise InputError(
                    f"{table.name}, row {row + 1} (data rows counted from 1), column "
                    f"{shown(named)}: is missing or wrong; expected {expected}"
                )
        clock = read_clock(connection, table, time, events.schema.time_unit)
        sql = f"SELECT s, {clock.sql} AS t, label FROM staged ORDER BY rowid"
        found = list(zip(*rows(connection, sql), strict=True))
    if not found:
        raise InputError(f"{table.name}: has no labels; expected at least one row")
    original = np.array(found[0], object if isinstance(found[0][0], str) else np.int64)
    kind = np.int64 if clock.dtype == "int64" else np.float64
    return table.name, original, np.array(found[1], kind), np.array(found[2], np.float32)


def _as_events(time_M: np.ndarray, events: Events, name: str) -> np.ndarray:
    """Times in the type of the events' times."""
    wanted = events.time.dtype
    if time_M.dtype == wanted:
        return time_M
    changed_M = time_M.astype(wanted)
    if not (changed_M == time_M).all():
        raise InputError(
            f"{name}: label times are {time_M.dtype}, the events' {wanted}, and not all of them "
            "fit exactly; give them in the same unit"
        )
    return changed_M
