"""Targets: what a task is to predict for each event, taken from a column and checked.

The target is read here and handed to losses and figures alone; no embedding is made from it. Where
it is an event feature too, models see it as they see every feature: of earlier events only.

Shape legend: E events, L classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tidegraph.errors import InputError, SettingError, listed, shown
from tidegraph.events.core import Events
from tidegraph.train.tasks.settings import TaskSettings

MOST_CLASSES = 200


@dataclass(frozen=True, eq=False)
class Target:
    """A column to predict.

    Attributes:
        name: of the column.
        kind: "classes" or "number".
        value_E: [E] int64 positions in `classes`, or float64 numbers.
        has_E: [E] bool, False where an event has no label.
        classes: the distinct values, ascending; empty for a number.
    """

    name: str
    kind: Literal["classes", "number"]
    value_E: np.ndarray
    has_E: np.ndarray
    classes: tuple[float, ...] = ()

    @property
    def binary(self) -> bool:
        """Two classes, the larger value being the positive one."""
        return self.kind == "classes" and len(self.classes) == 2


def find_target(events: Events, settings: TaskSettings) -> Target:
    """The target that the settings name.

    Args:
        events: with a label column, or with the feature `settings.target`.
        settings: of the task.

    Raises:
        SettingError: there is no such column, or it does not suit the task.
        InputError: a value that is no finite number; names the row.

    >>> from tidegraph.events.core import Events
    >>> events = Events.from_arrays([0, 1, 0], [2, 2, 2], [1, 2, 3], label=[0, 1, 0])
    >>> find_target(events, TaskSettings(task="event-classification")).value_E.tolist()
    [0, 1, 0]
    """
    name, raw_E = _column(events, settings)
    has_E = np.ones(len(raw_E), bool)
    if settings.unlabelled is not None:
        has_E = raw_E != settings.unlabelled
        if has_E.all():
            raise SettingError(
                f"unlabelled={settings.unlabelled:g}: no event has this value in {name}, so it "
                "has no effect; leave it out"
            )
    _check_finite(name, raw_E, has_E, events)
    if settings.task == "event-regression":
        return Target(name, "number", raw_E, has_E)
    classes = np.unique(raw_E[has_E])
    if len(classes) > MOST_CLASSES:
        raise SettingError(
            f"{name} has {len(classes):,} different values, from {classes[0]:g} to "
            f"{classes[-1]:g}: a class is expected to be one of at most {MOST_CLASSES}. To predict "
            "a number choose --task event-regression"
        )
    code_E = np.searchsorted(classes, np.where(has_E, raw_E, classes[0] if len(classes) else 0))
    return Target(name, "classes", code_E, has_E, tuple(classes.tolist()))


def check_part(target: Target, event_M: np.ndarray, part: str) -> None:
    """Refuse a part of the split that nothing can be learned from, or chosen by.

    Args:
        target: of the task.
        event_M: the part's events that have a label.
        part: "training" or "validation".

    Raises:
        SettingError: no labels, or a single value.
    """
    value_M = target.value_E[event_M]
    advice = "give this part more events (--val, --test, --val-time) or choose another column"
    if len(value_M) == 0:
        raise SettingError(f"no event of the {part} part has a label {target.name}: {advice}")
    if target.kind == "number" and part == "validation":
        return
    if (value_M == value_M[0]).all():
        value = target.classes[value_M[0]] if target.classes else value_M[0]
        raise SettingError(
            f"all {len(value_M):,} labels {target.name} of the {part} part are {value:g}: there "
            f"is nothing to tell apart; {advice}"
        )


def known_columns(events: Events, settings: TaskSettings, target: str) -> list[int]:
    """Positions of the features that the settings call known before the event.

    Raises:
        SettingError: no such feature, or the target itself.
    """
    names = events.schema.feature_names
    found: list[int] = []
    for wanted in settings.known:
        chosen = [
            place
            for place, name in enumerate(names)
            if name == wanted or name.startswith(f"{wanted}=")
        ]
        if not chosen:
            raise SettingError(
                f"known={wanted!r}: there is no such event feature; there are {_names(names)}"
            )
        if target in [names[place] for place in chosen]:
            raise SettingError(
                f"known={wanted!r}: that is the target, which nothing may see before the event; "
                "leave it out"
            )
        found += [place for place in chosen if place not in found]
    return found


def _column(events: Events, settings: TaskSettings) -> tuple[str, np.ndarray]:
    names = events.schema.feature_names
    if settings.target is not None:
        if settings.target in names:
            assert events.features is not None
            column = events.features[:, names.index(settings.target)]
            return settings.target, column.astype(np.float64)
        if settings.target == "label" and events.label is not None:
            return "label", events.label.astype(np.float64)
        also = ", and the label column" if events.label is not None else ""
        raise SettingError(
            f"there is no event feature {shown(settings.target)} to predict; there are "
            f"{_names(names)}{also}. Name one of them, or the label column of a table, by --label"
        )
    if events.label is None:
        raise SettingError(
            f"--task {settings.task} needs a label for each event, and these events have none: "
            f"name a numeric column with --label. Event features are {_names(names)}"
        )
    return "label", events.label.astype(np.float64)


def _check_finite(name: str, raw_E: np.ndarray, has_E: np.ndarray, events: Events) -> None:
    bad_E = has_E & ~np.isfinite(raw_E)
    if bad_E.any():
        at = int(np.argmax(bad_E))
        raise InputError(
            f"{events.report.source_name}, row {int(events.row[at]) + 1} (data rows counted from "
            f"1), column {name}: the label is {raw_E[at]}; expected a finite number. For events "
            "without a label write one value of your choice and name it with --unlabelled"
        )


def _names(names: Sequence[str]) -> str:
    return listed(names, most=12) or "none"
