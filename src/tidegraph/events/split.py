"""Chronological splits: by share of events or of time, at given times, with hidden nodes.

The default is the field's quantile split: the border is the time at the quantile, and every event
at that time stays with the earlier part, so that no two parts share a time.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

import numpy as np

from tidegraph.errors import InputError, SettingError, shown
from tidegraph.events.core import EventRange, Events, Split
from tidegraph.keys import Purpose, make_key, permutation

_TOGETHER = "events at a border's time stay with the earlier part"
_BY_ROW = "events at a border's time are divided in row order"


def split_events(
    events: Events,
    *,
    val: float = 0.15,
    test: float = 0.15,
    by: Literal["events", "time"] = "events",
    ties: Literal["together", "row"] = "together",
    hidden_nodes: float = 0.0,
    seed: int = 0,
    val_time: Any = None,
    test_time: Any = None,
) -> Split:
    """Divide events into training, validation and test parts that follow each other in time.

    Args:
        val, test: shares of validation and test; training gets the rest. A share of 0 asks for no
            such part.
        by: "events": shares of the number of events. "time": shares of the time span.
        ties: "together": events at a border's time all stay with the earlier part. "row": exact
            counts; a tie may be divided, in row order (`by="events"` only).
        hidden_nodes: share of the nodes that appear in validation or test; that many of them are
            chosen by `seed` and training leaves out every event that touches one.
        seed: chooses the hidden nodes, and nothing else.
        val_time, test_time: borders instead of shares: training is every event up to and including
            `val_time`, validation from there up to and including `test_time`, test the rest.
            Numbers in the events' own unit, or ISO text where the unit is known.

    Raises:
        InputError: a part that was asked for would be empty, there is only one event or one node.
        SettingError: shares or options that cannot be.

    >>> events = Events.from_arrays([0] * 5, [1] * 5, [0, 0, 0, 0, 1])
    >>> train, val, test = split_events(events, val=0.25, test=0.0)
    >>> len(train), len(val), len(test)
    (4, 1, 0)
    """
    _check_splittable(events)
    if (val_time is None) != (test_time is None):
        raise SettingError("give both val_time and test_time, or neither")
    wanted = (True, True, True)
    if val_time is not None:
        borders = _borders_at(events, val_time, test_time)
    else:
        _check_shares(val, test, by, ties)
        wanted = (True, val > 0, test > 0)
        borders = _borders_by_share(events, val, test, by, ties)
    return _make_split(events, borders, wanted, ties, hidden_nodes, seed)


def _check_splittable(events: Events) -> None:
    name = events.report.source_name
    if len(events) < 2:
        found = "one event only" if len(events) == 1 else "no events"
        raise InputError(f"{name}: {found}; a split needs at least two")
    if events.schema.num_nodes < 2:
        raise InputError(f"{name}: a single node; predicting links needs at least two nodes")


def _check_shares(val: float, test: float, by: str, ties: str) -> None:
    if by not in ("events", "time"):
        raise SettingError(f"by is {by!r}; expected 'events' or 'time'")
    if ties not in ("together", "row"):
        raise SettingError(f"ties is {ties!r}; expected 'together' or 'row'")
    if by == "time" and ties == "row":
        raise SettingError("ties='row' has no effect with by='time': a border in time divides none")
    if not (0 <= val < 1 and 0 <= test < 1 and val + test < 1):
        raise SettingError(
            f"val={val} and test={test} leave no training part; "
            "expected shares from 0 to 1 that sum to less than 1"
        )


def _exact(share: float) -> Fraction:
    return Fraction(str(round(share, 12)))  # 0.15 as the user wrote it, not as the float holds it


def _borders_by_share(
    events: Events, val: float, test: float, by: str, ties: str
) -> tuple[int, int]:
    shares = (1 - _exact(val) - _exact(test), 1 - _exact(test))
    if by == "events":
        last = [int(share * (len(events) - 1)) for share in shares]  # the quantile's lower event
        if ties == "row":
            first, second = (position + 1 for position in last)
        else:
            first, second = (_after(events, events.time[position]) for position in last)
    else:
        start = _exact_number(events.time[0])
        span = _exact_number(events.time[-1]) - start
        first, second = (_after_exact(events, start + share * span) for share in shares)
    if val == 0:
        second = first if test > 0 else len(events)
    if test == 0:
        second = len(events)
    return first, second


def _exact_number(value: Any) -> Fraction:
    whole = isinstance(value, (int, np.integer))
    return Fraction(int(value)) if whole else Fraction(float(value))


def _after(events: Events, time: Any) -> int:
    """Position after the last event at or before `time`."""
    return int(np.searchsorted(events.time, time, side="right"))


def _after_exact(events: Events, border: Fraction) -> int:
    if events.time.dtype.kind == "i":
        return _after(events, np.int64(border.__floor__()))
    return _after(events, np.float64(border))


def _borders_at(events: Events, val_time: Any, test_time: Any) -> tuple[int, int]:
    first, second = (
        _after_exact(events, _as_time(events, value, name))
        for value, name in ((val_time, "val_time"), (test_time, "test_time"))
    )
    if _as_time(events, val_time, "val_time") > _as_time(events, test_time, "test_time"):
        raise SettingError(f"val_time={val_time} is later than test_time={test_time}")
    return first, second


def _as_time(events: Events, value: Any, name: str) -> Fraction:
    unit = events.schema.time_unit
    if isinstance(value, (int, float, np.integer, np.floating)):
        if not np.isfinite(value):
            raise SettingError(f"{name} is {value}; expected a finite number")
        return _exact_number(value)
    if unit is None:
        raise SettingError(
            f"{name} is {shown(value)}, but the events' time has no known unit; "
            "give a number, or read the events with time_unit="
        )
    from tidegraph.events.times import nanoseconds_of
    from tidegraph.events.units import NANOSECONDS

    return Fraction(nanoseconds_of(value, name), NANOSECONDS[unit])


def _make_split(
    events: Events,
    borders: tuple[int, int],
    wanted: tuple[bool, bool, bool],
    ties: str,
    hidden_share: float,
    seed: int,
) -> Split:
    first, second = borders
    limits = {"train": (0, first), "val": (first, second), "test": (second, len(events))}
    for (part, (start, stop)), asked in zip(limits.items(), wanted, strict=True):
        if asked and start >= stop:
            raise InputError(_empty_message(events, part, limits))
    hidden_N = _choose_hidden(events, first, hidden_share, seed)
    train = EventRange(events, 0, first, "train", hidden_N)
    if hidden_N is not None and len(train.kept()) == 0:
        raise InputError(
            f"{events.report.source_name}: with hidden_nodes={hidden_share} every training event "
            "touches a hidden node; hide a smaller share"
        )
    rule = _BY_ROW if ties == "row" else _TOGETHER
    val = EventRange(events, first, second, "val")
    return Split(train, val, EventRange(events, second, len(events), "test"), rule, hidden_N)


def _empty_message(events: Events, part: str, limits: dict[str, tuple[int, int]]) -> str:
    sizes = ", ".join(f"{name} {stop - start:,}" for name, (start, stop) in limits.items())
    times = len(np.unique(events.time)) if len(events) < 10**7 else None
    tied = f" at {times:,} distinct times" if times is not None else ""
    return (
        f"{events.report.source_name}: the {part} part would be empty ({sizes}; "
        f"{len(events):,} events{tied}, from {events.time[0]} to {events.time[-1]}). "
        "Give it a larger share, another border time, a share of 0 if it is not needed, "
        "or ties='row' if equal times may be divided"
    )


def _choose_hidden(events: Events, first: int, share: float, seed: int) -> np.ndarray | None:
    if not 0 <= share < 1:
        raise SettingError(f"hidden_nodes is {share}; expected a share from 0 to below 1")
    if share == 0:
        return None
    later = np.zeros(events.schema.num_nodes, bool)
    later[events.source[first:]] = True
    later[events.target[first:]] = True
    candidates = np.flatnonzero(later)
    count = int(_exact(share) * len(candidates) + Fraction(1, 2))
    if count == 0:
        raise SettingError(
            f"hidden_nodes={share} of {len(candidates)} nodes in validation and test is none; "
            "hide a larger share"
        )
    order = permutation(make_key(seed, Purpose.SPLIT), len(candidates))
    hidden_N = np.zeros(events.schema.num_nodes, bool)
    hidden_N[candidates[order[:count]]] = True
    return hidden_N
