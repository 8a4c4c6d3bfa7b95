"""ISO text to exact integers, for single values given by hand (columns are parsed in SQL)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from tidegraph.errors import SettingError, shown

_FRACTION = re.compile(r"\.(\d{1,9})")


def nanoseconds_of(value: Any, name: str) -> int:
    """Nanoseconds since 1970 of ISO text or a datetime; UTC unless it carries an offset.

    >>> nanoseconds_of("1970-01-01T00:00:01.5", "time")
    1500000000
    """
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    fraction = _FRACTION.search(text)
    try:
        moment = datetime.fromisoformat(_FRACTION.sub("", text, count=1))
    except ValueError:
        raise SettingError(
            f"{name} is {shown(value)}; expected a number or ISO text such as 2013-06-30 "
            "or 2013-06-30T12:00:00+02:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    whole = (since.days * 86400 + since.seconds) * 10**9
    return whole + (int(fraction.group(1).ljust(9, "0")) if fraction else 0)
