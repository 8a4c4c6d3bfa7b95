"""The task of `tidegraph train --task`: which column is the target, fitting, and its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegraph.cli.data import is_dataset
from tidegraph.cli.settings import DataSettings, Settings
from tidegraph.errors import SettingError
from tidegraph.events import EventRange, Events, Split
from tidegraph.models.own import short_name
from tidegraph.report.comparison import Scored
from tidegraph.report.plain import metric_values
from tidegraph.train import Listener, Run
from tidegraph.train.tasks import (
    PropertyRun,
    TaskEvaluation,
    TaskRun,
    TaskSettings,
    find_target,
    fit_task,
)
from tidegraph.train.tasks.properties import read_properties
from tidegraph.train.tasks.property_run import check_property_settings
from tidegraph.train.tasks.targets import check_part, known_columns

_CLASSES = ("node-classification", "event-classification")


def check_task(settings: Settings) -> None:
    """Refuse task settings that have no effect.

    Raises:
        SettingError: names the setting and what it would need.
    """
    task = settings.task
    given = [key.removeprefix("task.") for key in settings.given if key.startswith("task.")]
    for key in given:
        needs = _needs(key, task)
        if needs:
            raise SettingError(
                f"task setting {key} (--{key.replace('_', '-')}) has no effect with --task "
                f"{task.task}{needs}; leave it out"
            )


def _needs(key: str, task: TaskSettings) -> str:
    """What is wrong with a setting that was given, as the end of a sentence; empty if nothing."""
    if key == "task":
        return ""
    if task.task == "link":
        return ": choose another task"
    properties = task.task == "node-property"
    if key == "properties" and not properties:
        return ": it is for --task node-property"
    if key in ("target", "unlabelled", "known") and properties:
        return ": its labels are those of --properties"
    if key == "balance" and task.task not in _CLASSES:
        return ": there are no classes to balance"
    if key.startswith("tune_") and task.encoder == "frozen":
        return " and --encoder frozen"
    return ""


def check_target(events: Events, split: Split, settings: TaskSettings, history: str) -> None:
    """Find now what would otherwise end the task after link training.

    Raises:
        SettingError: a target that is not there, or that nothing can be learned of.
    """
    if settings.task == "link":
        return
    if settings.task == "node-property":
        check_property_settings(settings, history)
        read_properties(settings.properties or "", events)
        return
    target = find_target(events, settings)
    known_columns(events, settings, target.name)
    for part, name in ((split.train, "training"), (split.val, "validation")):
        event_M = part.kept()
        check_part(target, event_M[target.has_E[event_M]], name)


def label_as_target(data: str | None, settings: Settings) -> tuple[Settings, DataSettings]:
    """`--label NAME` on events whose columns are known already names one of their features.

    Returns:
        the settings, and how the data are to be read.
    """
    label, task = settings.data.label, settings.task
    if task.properties is not None:
        place = str(Path(task.properties).resolve())
        task = task.model_copy(update={"properties": place})
        return Settings(**{**vars(settings), "task": task}), settings.data
    columns_known = data is not None and (is_dataset(data) or Path(data).is_dir())
    if label is None or task.task == "link" or not columns_known:
        return settings, settings.data
    if task.target is not None:
        raise SettingError(
            f"--label {label} and --task-target {task.target} name the same thing; leave one out"
        )
    chosen = task.model_copy(update={"target": str(label)})
    found = Settings(**{**vars(settings), "task": chosen})
    return found, settings.data.model_copy(update={"label": None})


def train_task(
    run: Run,
    settings: TaskSettings,
    model: str,
    test: EventRange,
    listener: Listener,
    seconds: dict[str, float],
) -> tuple[TaskRun | PropertyRun, tuple[Scored, ...]]:
    """Fit the task on a trained run, keep it, and evaluate it; the run ends after `test`.

    Returns:
        the task, and its rows: the model, then what past labels alone say.
    """
    import time

    started = time.perf_counter()
    task = fit_task(run, settings, listener)
    task.save()
    seconds["task"] = time.perf_counter() - started
    if not len(test):
        return task, ()
    evaluation = task.evaluate(test, listener=listener, advance=True)
    seconds["test"] = evaluation.seconds
    return task, task_rows(model, evaluation)


def task_rows(model: str, evaluation: TaskEvaluation) -> tuple[Scored, ...]:
    """The model's figures and the baselines', as rows of a table."""
    return (
        Scored(short_name(model).upper(), evaluation.metrics),
        *(Scored(name, metrics) for name, metrics in evaluation.baselines),
    )


def task_values(task: TaskRun | PropertyRun) -> dict[str, Any]:
    """What docs/json.md calls `task`."""
    return {
        "name": task.settings.task,
        "target": task.target_name,
        "classes": task.classes,
        **task.about,
        "validation": metric_values(task.validation),
    }
