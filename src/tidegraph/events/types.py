"""Event types: streams of several kinds of event as one stream, and which events are of a kind.

A type is a feature that is 1 for its events and 0 for the others, which is what `categorical=`
columns become. So the first layer that reads the features learns a vector per type, and any 0/1
feature can say which events count as neighbours.

Shape legend: E events, F feature width.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tidegraph.errors import InputError, SettingError, listed, shown
from tidegraph.events.core import Events

_ROWS = 1 << 18


def events_of_types(events: Events, types: Sequence[str]) -> np.ndarray:
    """Which events have one of the named features.

    Args:
        events: with features; mapped ones are read in blocks.
        types: names of features that are 0 or 1, such as "kind=buy".

    Returns:
        [E] bool.

    Raises:
        SettingError: no such feature, or one that is not 0 or 1 everywhere.

    >>> events = Events.from_arrays([0, 1], [2, 2], [1, 2], features=[[1, 0], [0, 1]],
    ...                             feature_names=["kind=buy", "kind=view"])
    >>> events_of_types(events, ["kind=view"]).tolist()
    [False, True]
    """
    names = events.schema.feature_names
    for name in types:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f" Did you mean {shown(close[0])}?" if close else ""
            raise SettingError(
                f"neighbor_types: there is no event feature {shown(name)}: there are "
                f"{listed(names) or 'none'}.{hint} A column of types is read with categorical=, "
                "which makes a feature of every value"
            )
    columns = [names.index(name) for name in types]
    found_E = np.zeros(len(events), bool)
    assert events.features is not None
    for first in range(0, len(events), _ROWS):
        block_BT = np.asarray(events.features[first : first + _ROWS])[:, columns]
        odd_BT = (block_BT != 0) & (block_BT != 1)
        if odd_BT.any():
            row, place = (int(i) for i in np.argwhere(odd_BT)[0])
            raise SettingError(
                f"neighbor_types: the feature {shown(types[place])} is {block_BT[row, place]:g} in "
                f"row {int(events.row[first + row]) + 1}; a type is a feature that is 0 or 1"
            )
        found_E[first : first + _ROWS] = block_BT.any(axis=1)
    return found_E


def merge_types(streams: Mapping[str, Events], column: str = "type") -> Events:
    """Several kinds of event as one stream, ordered by time.

    Each kind keeps its own features, in columns that are 0 for the other kinds ("buy.f0"), and gets
    one that says which kind an event is ("type=buy"). At equal times the kinds follow each other in
    the order they are given.

    Args:
        streams: events by kind, with the same sort of ids, time type and unit.
        column: what the kinds are called.

    Returns:
        events whose nodes are matched by original id. Labels, weights and node features are left
        out.

    Raises:
        SettingError: fewer than two kinds.
        InputError: times of another type or unit.

    >>> view = Events.from_arrays([0, 0], [2, 3], [1, 4], features=[5, 6])
    >>> buy = Events.from_arrays([0], [3], [2], features=[[7, 8, 9]])
    >>> merged = merge_types({"view": view, "buy": buy})
    >>> merged.schema.feature_names
    ('type=view', 'type=buy', 'view.f0', 'buy.f0', 'buy.f1', 'buy.f2')
    >>> merged.features.astype(int).tolist()
    [[1, 0, 5, 0, 0, 0], [0, 1, 0, 7, 8, 9], [1, 0, 6, 0, 0, 0]]
    """
    from tidegraph.events.table import read_table

    if len(streams) < 2:
        raise SettingError(f"merge_types takes two or more kinds of event, found {len(streams)}")
    _check_alike(streams)
    count = sum(len(one) for one in streams.values())
    widths = [one.schema.event_features for one in streams.values()]
    features_EF = np.zeros((count, len(streams) + sum(widths)), np.float32)
    names = [f"{column}={kind}" for kind in streams]
    first, left = 0, len(streams)
    ends: dict[str, list[Any]] = {"source": [], "target": []}
    for place, (kind, events) in enumerate(streams.items()):
        block, width = slice(first, first + len(events)), widths[place]
        features_EF[block, place] = 1
        if events.features is not None:
            features_EF[block, left : left + width] = events.features
        names += [f"{kind}.{name}" for name in events.schema.feature_names]
        for side in ends:
            ends[side] += events.ids.to_original(getattr(events, side)).tolist()
        first, left = first + len(events), left + width
    some = next(iter(streams.values()))
    separate = any(one.ids.separate for one in streams.values())
    table: dict[str, Any] = {side: np.array(values, object) for side, values in ends.items()}
    table["time"] = np.concatenate([one.time for one in streams.values()])
    columns = {name: features_EF[:, place] for place, name in enumerate(names)}
    return read_table(
        {**table, **columns},
        source="source",
        target="target",
        time="time",
        features=names,
        time_unit=some.schema.time_unit,
        bipartite=True if separate else None,
    )


def _check_alike(streams: Mapping[str, Events]) -> None:
    (first, some), *others = streams.items()
    for kind, one in others:
        for what, ours, theirs in (
            ("times of type", some.time.dtype, one.time.dtype),
            ("the time unit", some.schema.time_unit, one.schema.time_unit),
        ):
            if ours != theirs:
                raise InputError(
                    f"merge_types: {first} has {what} {ours}, {kind} has {theirs}; read both alike"
                )
