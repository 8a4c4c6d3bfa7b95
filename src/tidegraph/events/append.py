"""Later events appended to earlier ones: ids stay, new nodes get the next free numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tidegraph.errors import InputError, shown
from tidegraph.events.arrays import assemble
from tidegraph.events.core import Events, ReadReport
from tidegraph.events.ids import NodeIds
from tidegraph.events.units import shown_time


def concatenate(events: Events, later: Events) -> Events:
    """One stream of `events` and then `later`; what `read_table` of both tables would hold.

    Existing nodes keep their numbers (they are matched by original id) and event ids run on. New
    nodes are numbered after the existing ones. New targets keep bipartite data bipartite; a new
    source would have to stand among the targets, so the result is then marked as not bipartite.

    Raises:
        InputError: an event of `later` is earlier than the last of `events`, or the two differ in
            their columns or time unit; names the row (1-based) of `later`'s input.

    >>> first = Events.from_arrays([0], [1], [1])
    >>> concatenate(first, Events.from_arrays([1], [2], [5])).time.tolist()
    [1, 5]
    """
    name = later.report.source_name
    _check_columns(events, later, name)
    _check_order(events, later, name)
    numbering = _number(events, later)
    source_E = np.concatenate([events.source, numbering.of_source_M[later.source]])
    target_E = np.concatenate([events.target, numbering.of_target_M[later.target]])
    num_nodes = len(numbering.ids)
    first_target = events.schema.num_sources
    bipartite = events.schema.bipartite and not bool(
        (source_E[len(events) :] >= first_target).any()
        or (target_E[len(events) :] < first_target).any()
        or any(block.side == "source" for block in numbering.ids.blocks[1:])
    )
    notes = events.report.notes + later.report.notes
    if events.schema.bipartite and not bipartite:
        notes += (f"{name} brought new sources, so the data is no longer numbered as bipartite",)
    schema = replace(
        events.schema,
        num_nodes=num_nodes,
        num_sources=first_target if bipartite else num_nodes,
        bipartite=bipartite,
    )
    rows = max(events.report.rows, len(events))
    moved = events.report.rows_moved + later.report.rows_moved
    report = ReadReport(events.report.source_name, rows + later.report.rows, moved, notes)
    return assemble(
        source=source_E,
        target=target_E,
        time=np.concatenate([events.time, later.time.astype(events.time.dtype)]),
        row=np.concatenate([events.row, later.row + rows]),
        schema=schema,
        ids=numbering.ids,
        features=_joined(events.features, later.features),
        label=_joined(events.label, later.label),
        weight=_joined(events.weight, later.weight),
        node_features=_node_features(events, later, numbering, name),
        report=report,
        extra={
            key: np.concatenate([column, later.extra[key]]) for key, column in events.extra.items()
        },
    )


@dataclass(frozen=True, eq=False)
class _Numbering:
    """Where `later`'s M nodes stand in the joined table, by the side they appear on."""

    ids: NodeIds
    of_source_M: np.ndarray
    of_target_M: np.ndarray


def _joined(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    return None if first is None or second is None else np.concatenate([first, second])


def _check_columns(events: Events, later: Events, name: str) -> None:
    for column in ("features", "label", "weight"):
        here, there = getattr(events, column), getattr(later, column)
        if (here is None) != (there is None) or (
            here is not None and here.shape[1:] != there.shape[1:]
        ):
            shapes = [f"{x.shape[1:]} an event" if x is not None else "none" for x in (here, there)]
            raise InputError(
                f"{name}: {column} differ: {shapes[0]} in the earlier events, {shapes[1]} in the "
                "later ones; both need the same columns"
            )
    for key in sorted({*events.extra, *later.extra}):
        extra = [one.extra.get(key) for one in (events, later)]
        kinds = [None if x is None else (x.dtype, x.shape[1:]) for x in extra]
        if kinds[0] != kinds[1]:
            raise InputError(
                f"{name}: extra column {key} differs: {kinds[0]} in the earlier events, {kinds[1]} "
                "in the later ones; both need the same columns"
            )
    units = events.schema.time_unit, later.schema.time_unit
    if None not in units and units[0] != units[1]:
        raise InputError(
            f"{name}: time is in {units[1]!r}, the earlier events' in {units[0]!r}; "
            f"read with time_unit={units[0]!r}"
        )
    if len(later) and len(events) and events.time.dtype != later.time.dtype:
        raise InputError(
            f"{name}: time is {later.time.dtype}, the earlier events' {events.time.dtype}; "
            "both must be integers or both floats, since mixing them would lose exactness"
        )


def _check_order(events: Events, later: Events, name: str) -> None:
    if len(events) and len(later) and later.time[0] < events.time[-1]:
        unit = events.schema.time_unit
        first = shown_time(later.time[0].item(), unit)
        last = shown_time(events.time[-1].item(), unit)
        raise InputError(
            f"{name}: row {int(later.row[0]) + 1} has time {first}, earlier than the last event so "
            f"far ({last}); append events in order of time, or read all of them in one call"
        )


def _number(events: Events, later: Events) -> _Numbering:
    count = later.schema.num_nodes
    original = later.ids.to_original(np.arange(count))
    is_source_M, is_target_M = np.zeros(count, bool), np.zeros(count, bool)
    is_source_M[later.source] = True
    is_target_M[later.target] = True
    if not is_source_M.all() or not is_target_M.all():
        first = later.schema.first_target
        idle_M = ~(is_source_M | is_target_M)
        is_source_M |= idle_M & (np.arange(count) < first)
        is_target_M |= idle_M & (np.arange(count) >= first)
    if not events.ids.separate:
        one_M, ids = _place(events.ids, original, np.ones(count, bool), None, is_source_M, events)
        return _Numbering(ids, one_M, one_M)
    source_M, ids = _place(events.ids, original, is_source_M, "source", is_source_M, events)
    target_M, ids = _place(ids, original, is_target_M, "target", is_source_M, events)
    return _Numbering(ids, source_M, target_M)


def _place(
    ids: NodeIds,
    original_M: np.ndarray,
    chosen_M: np.ndarray,
    side: str | None,
    is_source_M: np.ndarray,
    events: Events,
) -> tuple[np.ndarray, NodeIds]:
    """Internal numbers of the chosen originals, and the ids grown by those that are new."""
    node_M = np.full(len(original_M), -1, np.int32)
    node_M[chosen_M] = ids.to_internal(original_M[chosen_M], side=side, missing=-1)
    new_M = chosen_M & (node_M < 0)
    sides = [side] if side else ["source", "target"] if events.schema.bipartite else ["both"]
    for one in sides:
        here_M = new_M if len(sides) == 1 else new_M & (is_source_M == (one == "source"))
        if here_M.any():
            ids = ids.extended(original_M[here_M], side=one)
    node_M[new_M] = ids.to_internal(original_M[new_M], side=side)
    return node_M, ids


def _node_features(
    events: Events, later: Events, numbering: _Numbering, name: str
) -> np.ndarray | None:
    """Existing nodes keep their features; new nodes bring theirs."""
    if events.node_features is None:
        return None
    size, grown = events.schema.num_nodes, len(numbering.ids)
    if grown == size:
        return events.node_features
    if later.node_features is None or later.schema.node_features != events.schema.node_features:
        new = numbering.ids.to_original([size])[0]
        raise InputError(
            f"{name}: {grown - size} new nodes (such as {shown(new)}) come without the "
            f"{events.schema.node_features} node features that the others have; read the later "
            "events with node_features= for them"
        )
    result_NG = np.zeros((grown, events.schema.node_features), np.float32)
    result_NG[:size] = events.node_features
    for place_M in (numbering.of_source_M, numbering.of_target_M):
        new_M = place_M >= size
        result_NG[place_M[new_M]] = later.node_features[new_M]
    return result_NG
