"""Units of time: their names, their sizes, and spans in words."""

from __future__ import annotations

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
