"""The baselines by name: scorers without parameters, as tables and commands call them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegraph.errors import SettingError
from tidegraph.models.edgebank import EdgeBank
from tidegraph.models.popularity import Popularity
from tidegraph.models.recency import Recency


@dataclass(frozen=True)
class BaselineKind:
    """One baseline.

    Attributes:
        about: a line for lists.
        build: makes it, from the length of the evaluated part in the events' time unit.
    """

    about: str
    build: Callable[[float], Any]


BASELINES: dict[str, BaselineKind] = {
    "edgebank": BaselineKind("pairs seen before, at any time", lambda _: EdgeBank()),
    "edgebank-window": BaselineKind(
        "pairs seen within the last so much time as the evaluated part spans", EdgeBank
    ),
    "edgebank-share": BaselineKind(
        "pairs seen in the latest 15% of past time stamps", lambda _: EdgeBank("recent-share")
    ),
    "edgebank-repeat": BaselineKind(
        "pairs seen within the mean over pairs of their mean repeat interval",
        lambda _: EdgeBank("repeat-interval"),
    ),
    "edgebank-threshold": BaselineKind(
        "pairs seen at least as often as pairs are on average",
        lambda _: EdgeBank("repeat-threshold"),
    ),
    "popularity": BaselineKind(
        "destinations by number of events, 0.1% less for each event since", lambda _: Popularity()
    ),
    "recency": BaselineKind("pairs by how lately they met", lambda _: Recency()),
    "recency-destination": BaselineKind(
        "destinations by how lately anyone met them", lambda _: Recency("destination")
    ),
}
"""Baselines by the name that tables and the command line use."""


def build_baseline(name: str, duration: float) -> Any:
    """The baseline called `name`.

    Args:
        name: see `BASELINES`.
        duration: of the evaluated part, in the events' time unit.

    Raises:
        SettingError: no such baseline; the message lists those there are.

    >>> build_baseline("edgebank-window", 60.0).name
    'EdgeBank (window 60)'
    """
    if name not in BASELINES:
        close = difflib.get_close_matches(name, BASELINES, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise SettingError(
            f"unknown baseline {name!r}: expected one of {', '.join(BASELINES)}.{hint}"
        )
    return BASELINES[name].build(duration)
