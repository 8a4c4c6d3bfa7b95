"""Features of a scale that training cannot work with: found at its start, named when it fails.

Inputs of a network are best of the order of 1. A column in the thousands drowns the others, and one
of 1e30 overflows in the first product: the loss is no number, whatever the learning rate.

Shape legend: E events, N nodes, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegraph.errors import listed
from tidegraph.events.core import Events

_ROWS = 1 << 16  # of a large table, read to warn by
_PIECE = 1 << 19  # values looked at at once: 4 MB
_LARGE_TYPICAL = 100.0
_LARGE_VALUE = 1e6
_OVERFLOWS = 1e15  # a product of two such numbers, summed, is near the end of 32-bit floats
_REMEDY = (
    "scale such columns first: subtract the mean and divide by the standard deviation of the "
    "training part, or take logarithms"
)


@dataclass(frozen=True)
class ColumnScale:
    """How large a feature column is.

    Attributes:
        name: of the column, as messages call it.
        typical: root of the mean square.
        largest: largest absolute value.
    """

    name: str
    typical: float
    largest: float


def column_scales(events: Events, rows: int | None = None) -> list[ColumnScale]:
    """The scale of every event and node feature.

    Args:
        events: with or without features.
        rows: look at about that many rows, evenly spread; None looks at all.

    >>> events = Events.from_arrays([0, 0], [1, 1], [1, 2], features=[[3.0], [-4.0]])
    >>> [(c.name, c.largest) for c in column_scales(events)]
    [('f0', 4.0)]
    """
    names = list(events.schema.feature_names)
    found = _scales(events.features, names, rows)
    width = events.schema.node_features
    return found + _scales(events.node_features, [f"node feature {i}" for i in range(width)], rows)


def scale_warning(events: Events) -> str | None:
    """One line about feature columns of an extreme scale, or None where there are none."""
    large = [
        column
        for column in column_scales(events, _ROWS)
        if column.typical > _LARGE_TYPICAL or column.largest > _LARGE_VALUE
    ]
    if not large:
        return None
    named = listed((f"{c.name} (up to {c.largest:.3g})" for c in large), most=5)
    return f"note      features far from the order of 1 slow or stop training: {named}; {_REMEDY}"


def why_diverged(events: Events, learning_rate: float | None = None) -> str:
    """What to do about a loss or scores that are no finite numbers: what the data shows."""
    scales = column_scales(events)
    worst = max(scales, key=lambda column: column.largest, default=None)
    if worst is not None and worst.largest > _LARGE_VALUE:
        return (
            f"feature {worst.name} reaches {worst.largest:.3g}"
            + (", which overflows 32-bit floats" if worst.largest > _OVERFLOWS else "")
            + f": {_REMEDY}"
        )
    below = (
        "lower learning_rate" if learning_rate is None else f"learning_rate below {learning_rate}"
    )
    advice = f"try a {below}, or clip=1.0"
    if worst is not None and worst.typical > _LARGE_TYPICAL:
        advice += f". Feature {worst.name} reaches {worst.largest:.3g}: {_REMEDY}"
    return advice


def _scales(table: np.ndarray | None, names: list[str], rows: int | None) -> list[ColumnScale]:
    if table is None or 0 in table.shape:
        return []
    step = 1 if rows is None else max(1, len(table) // rows)
    squares, largest = np.zeros(table.shape[1]), np.zeros(table.shape[1])
    count = 0
    piece_rows = max(1, _PIECE // max(1, table.shape[1])) * step
    for start in range(0, len(table), piece_rows):
        piece = np.abs(np.asarray(table[start : start + piece_rows : step], np.float64))
        squares += (piece**2).sum(axis=0)
        largest = np.maximum(largest, piece.max(axis=0))
        count += len(piece)
    typical = np.sqrt(squares / count)
    return [
        ColumnScale(name, float(a), float(b))
        for name, a, b in zip(names, typical, largest, strict=True)
    ]
