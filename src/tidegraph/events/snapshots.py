"""Events by time window: what snapshot models and window iteration walk over, without copying."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from tidegraph.errors import InputError, SettingError
from tidegraph.events.core import EventRange, Events
from tidegraph.events.units import NANOSECONDS, ratio

_INT64_MAX = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, eq=False)
class Snapshot(EventRange):
    """The events of one time window.

    Attributes:
        index: number of the window, counted from the one that holds the first event; windows
            without events count, also where they are skipped.
        start_time, stop_time: the window, `start_time <= t < stop_time`, in the events' unit.
    """

    index: int = 0
    start_time: int | float = 0
    stop_time: int | float = 0


def iterate_snapshots(
    events: Events,
    every: int | float,
    *,
    unit: str | None = None,
    empty: Literal["skip", "yield", "raise"] = "skip",
) -> Iterator[Snapshot]:
    """Walk over the time windows of `events` in order.

    Windows are aligned to multiples of their length, so that weekly windows over day numbers are
    `day // 7`.

    Args:
        every: length of a window.
        unit: unit of `every` ("s", "min", "h", "d", "w", ...); None means the events' own.
        empty: what to do with windows that hold no event: leave them out, give them, or stop.

    Raises:
        InputError: a unit is asked for and the events' unit is not known; a window is empty and
            `empty="raise"`.
        SettingError: the length is not positive or not a whole number of the events' integer units.

    >>> events = Events.from_arrays([0, 0], [1, 1], [0, 10])
    >>> [snapshot.index for snapshot in iterate_snapshots(events, 1)]
    [0, 10]
    """
    if empty not in ("skip", "yield", "raise"):
        raise SettingError(f"empty is {empty!r}; expected 'skip', 'yield' or 'raise'")
    return _walk(events, _window_length(events, every, unit), empty)


def _window_length(events: Events, every: int | float, unit: str | None) -> Fraction:
    length = Fraction(every)
    if length <= 0:
        raise SettingError(f"every is {every}; expected a length of time above 0")
    if unit is not None:
        if unit not in NANOSECONDS:
            raise SettingError(f"unit is {unit!r}; expected one of {', '.join(NANOSECONDS)}")
        base = events.schema.time_unit
        if base is None:
            raise InputError(
                f"{events.report.source_name}: windows of {every} {unit} were asked for, but the "
                "unit of the time column is not known; read the events with time_unit=, or leave "
                "the unit out and give the length in the column's own units"
            )
        length *= ratio(unit, base)
    if events.time.dtype.kind == "i" and length.denominator != 1:
        base = events.schema.time_unit or "time unit"
        raise SettingError(
            f"windows of {every} {unit or ''} are {float(length):g} {base}; times are integers, "
            "so a window must be a whole number of them"
        )
    return length


def _walk(events: Events, length: Fraction, empty: str) -> Iterator[Snapshot]:
    if len(events) == 0:
        return
    whole = events.time.dtype.kind == "i"
    step = int(length) if whole else float(length)
    first = _window_of(events.time[0], step)
    position, expected = 0, first
    while position < len(events):
        window = _window_of(events.time[position], step)
        if window > expected and empty == "raise":
            raise InputError(
                f"{events.report.source_name}: no event in the window from {expected * step} to "
                f"{(expected + 1) * step}; use empty='skip' or 'yield', or longer windows"
            )
        while empty == "yield" and expected < window:
            yield _snapshot(events, position, position, expected, first, step)
            expected += 1
        end = (window + 1) * step
        if whole:  # the last window may end beyond 64-bit integers
            stop = int(np.searchsorted(events.time, min(end - 1, _INT64_MAX), side="right"))
        else:
            stop = int(np.searchsorted(events.time, end, side="left"))
        stop = max(stop, position + 1)  # a float window too short for its time still moves on
        yield _snapshot(events, position, stop, window, first, step)
        position, expected = stop, window + 1


def _window_of(time: np.generic, step: int | float) -> int:
    return int(time.item() // step)


def _snapshot(
    events: Events, start: int, stop: int, window: int, first: int, step: int | float
) -> Snapshot:
    name = f"snapshot {window - first}"
    return Snapshot(
        events,
        start,
        stop,
        name,
        None,
        index=window - first,
        start_time=window * step,
        stop_time=(window + 1) * step,
    )
