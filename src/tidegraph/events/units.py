"""Units of time: their names, their sizes, and spans in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction

from tidegraph.errors import SettingError

NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
    "w": 7 * 86400 * 10**9,
}
"""Nanoseconds in each unit; "w" (week) for windows only."""

TIME_UNITS = ("ns", "us", "ms", "s", "min", "h", "d")
_DATES = tuple(datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (1980, 2100))


def check_unit(unit: str | None) -> str | None:
    """`unit` if it is the unit of a time column or None, else a `SettingError`."""
    if unit is not None and unit not in TIME_UNITS:
        raise SettingError(
            f"time_unit is {unit!r}; expected one of {', '.join(TIME_UNITS)}, or None if unknown"
        )
    return unit


def ratio(unit: str, base: str) -> Fraction:
    """How many `base` make one `unit`, exactly.

    >>> ratio("w", "d")
    Fraction(7, 1)
    """
    return Fraction(NANOSECONDS[unit], NANOSECONDS[base])


def date_of(time: float, unit: str | None) -> str | None:
    """The date and time of day (UTC) that a number stands for, or None where it is hardly one.

    Only seconds and finer, from 1980 to 2100: streams that count from 0 have no dates.

    >>> date_of(1709280240, "s"), date_of(7140, "s")
    ('2024-03-01 08:04:00', None)
    """
    if unit not in ("ns", "us", "ms", "s"):
        return None
    seconds, rest = divmod(time * NANOSECONDS[unit], 10**9)
    if not _DATES[0] <= seconds < _DATES[1]:
        return None
    since = timedelta(seconds=int(seconds), microseconds=int(rest) // 1000)
    return (datetime(1970, 1, 1) + since).isoformat(" ")


def shown_time(time: float, unit: str | None) -> str:
    """A time for messages: the number, and its date where it has one.

    >>> shown_time(1709280240, "s")
    '1709280240 = 2024-03-01 08:04:00 UTC'
    """
    date = date_of(time, unit)
    return str(time) if date is None else f"{time} = {date} UTC"


def span_in_words(span: float, unit: str) -> str:
    """A span of time in the largest unit that it fills.

    >>> span_in_words(90000, "s")
    '1.04 days'
    """
    seconds = float(span) * NANOSECONDS[unit] / 1e9
    for size, word in (
        (365.25 * 86400, "years"),
        (86400, "days"),
        (3600, "hours"),
        (60, "minutes"),
    ):
        if seconds >= size:
            return f"{seconds / size:.2f} {word}"
    return f"{seconds:g} seconds"
