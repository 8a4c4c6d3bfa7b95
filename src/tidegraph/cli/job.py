"""What `tidegraph train` is going to do: decided anew, or taken from a run that goes on."""

from __future__ import annotations

import datetime
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidegraph.cli.data import (
    OpenedData,
    keep_events,
    open_data,
    restore_store,
    split_events,
)
from tidegraph.cli.seeds import SeedRuns
from tidegraph.cli.settings import (
    DataSettings,
    Settings,
    SplitSettings,
    check_effect,
    merge,
    model_values,
)
from tidegraph.cli.task import check_target, label_as_target
from tidegraph.errors import CheckpointError, SettingError, shown
from tidegraph.events import Split
from tidegraph.models.own import short_name
from tidegraph.train import TrainSettings
from tidegraph.train.contents import FREE_SETTINGS
from tidegraph.train.run import open_data as open_saved
from tidegraph.train.run_config import checked
from tidegraph.train.run_files import RunFiles, new_directory
from tidegraph.train.tasks import TaskSettings


@dataclass(frozen=True)
class Job:
    """Everything decided before training starts.

    Attributes:
        settings: effective.
        opened: the events.
        split: of them.
        directory: of the run; None until it is claimed.
        out, name: where and as what it will be.
        resume: it goes on from a checkpoint.
    """

    settings: Settings
    opened: OpenedData
    split: Split
    out: Path = Path("runs")
    name: str | None = None
    directory: Path | None = None
    resume: bool = False

    @property
    def data(self) -> dict[str, Any]:
        """Saved with the run: how to find the events, and how they were divided."""
        test, task = self.split.test, self.settings.task
        tasks = {} if task.task == "link" else {"task": task.model_dump(mode="json")}
        return {
            **self.opened.spec,
            "split": self.settings.split.effective(),
            **tasks,
            "test": [test.start, test.stop],
        }


@dataclass(frozen=True)
class SeveralJob:
    """Several runs that differ in their seed.

    Attributes:
        runs: where they are, and what is finished.
        job: of any of them; its seed is replaced.
        more: settings that resumed ones are continued with.
    """

    runs: SeedRuns
    job: Job
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def new(cls, job: Job, count: int) -> SeveralJob:
        first = job.settings.training.seed
        directory = new_directory(job.out / run_name(job))
        job = replace(job, opened=keep_events(job.opened, directory))
        settings = _as_config(job)
        return cls(SeedRuns.new(directory, range(first, first + count), settings), job)

    @classmethod
    def of_directory(
        cls, directory: Path, more: Mapping[str, Any], seconds: dict[str, float]
    ) -> SeveralJob:
        runs = SeedRuns.open(directory)
        settings = merge({"training": more}, config=runs.settings)
        return cls(runs, new_job(None, settings, directory.parent, None, seconds), more)

    def of_seed(self, seed: int, seconds: dict[str, float]) -> Job:
        """Go on with the seed's run where it was stopped, or begin it."""
        directory = self.runs.directory_of(seed)
        if RunFiles(directory).last.exists():
            return resumed_job(directory, self.more, seconds)
        shutil.rmtree(directory, ignore_errors=True)  # stopped before its first checkpoint
        training = self.job.settings.training.model_copy(update={"seed": seed})
        settings = replace(self.job.settings, training=training)
        split = _checked_split(self.job.opened, settings)
        return Job(settings, self.job.opened, split, directory.parent, directory.name)


def new_job(
    data: str | None, settings: Settings, out: Path, name: str | None, seconds: dict[str, float]
) -> Job:
    _check_name(name)
    if name is not None and (out / name).exists():
        raise SettingError(
            f"{out / name} exists already: choose another --name, or go on with it by "
            f"`tidegraph train --resume {out / name}`"
        )
    data = data or settings.path
    if data is None and settings.data.query is None:
        data = "flights"
    started = time.perf_counter()
    settings, columns = label_as_target(data, settings)
    opened = open_data(data, columns)
    seconds["data"] = time.perf_counter() - started
    split = _checked_split(opened, settings)
    check_target(opened.events, split, settings.task, settings.training.history)
    return Job(settings, opened, split, out, name)


def _check_name(name: str | None) -> None:
    """Refuse a name that is no name of one directory within --out."""
    if name is None:
        return
    letters = "".join(letter for letter in name if letter in "/\\:" or not letter.isprintable())
    if letters or name.strip() != name or name in ("", ".", "..") or name.startswith("-"):
        raise SettingError(
            f"--name {shown(name)}: expected the name of one new directory, such as trips-1, "
            "without slashes, colons, or blanks at its ends. --out DIR says where it goes"
        )


def resumed_job(directory: Path, more: Mapping[str, Any], seconds: dict[str, float]) -> Job:
    files = RunFiles(directory)
    config = files.read_config()
    if not files.last.exists():
        raise CheckpointError(
            f"{directory} has no checkpoint to go on from: it was stopped before the first one. "
            "Start it again."
        )
    started = time.perf_counter()
    spec = {key: value for key, value in config["data"].items() if key != "fingerprint"}
    restore_store(spec)
    events = open_saved(spec, directory)
    seconds["data"] = time.perf_counter() - started
    settings = Settings(
        data=checked(DataSettings, spec.get("columns", {}), files.config, "data.columns"),
        split=checked(SplitSettings, spec.get("split", {}), files.config, "data.split"),
        training=TrainSettings.of({**config["training"], **more}),
        task=checked(TaskSettings, _as_tuples(spec.get("task", {})), files.config, "data.task"),
        model=config["model"]["name"],
        model_values=model_values(
            config["model"]["name"], config["model"]["settings"], lambda *_: f"{files.config}: "
        ),
    )
    for saved in ("split", "test", "task"):
        spec.pop(saved, None)
    opened = OpenedData(events, directory.name, spec, reused=True)
    split = _checked_split(opened, settings)
    return Job(settings, opened, split, directory.parent, directory.name, directory, resume=True)


def _as_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}


def continued(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a run may be continued with; nothing computed so far depends on them."""
    training = dict(given.get("training", {}))
    allowed = {name: training.pop(name) for name in FREE_SETTINGS if name in training}
    if "checkpoint_seconds" in allowed and "checkpoint_batches" not in allowed:
        allowed["checkpoint_batches"] = None  # of the two, the one that is asked for now
    check_effect("training", allowed, allowed)
    others = [*training]
    for name, value in given.items():
        if value and name != "training":
            others += list(value) if isinstance(value, Mapping) else [name]
    if others:
        raise SettingError(
            f"--resume keeps the run's own settings: leave out {others[0]}, or start a new run. "
            f"Only {', '.join(FREE_SETTINGS)} may change"
        )
    return allowed


def _checked_split(opened: OpenedData, settings: Settings) -> Split:
    split = split_events(opened.events, settings.split, settings.training.seed)
    if len(split.val) == 0:
        raise SettingError("--val 0: the best epoch is chosen on the validation part; give a share")
    return split


def _as_config(job: Job) -> dict[str, Any]:
    """The job's settings as a file for --config."""
    settings, spec = job.settings, job.opened.spec
    path = spec.get("dataset") or spec.get("file") or spec.get("store")
    task = settings.task.model_dump(mode="json", exclude_unset=True)
    columns = {} if path != spec.get("file") else settings.data.changed()
    return {
        "data": {**columns, "path": path},
        "split": settings.split.effective(),
        "model": {"name": settings.model, **settings.model_values},
        "training": settings.training.model_dump(),
        **({"task": task} if task else {}),
    }


def run_name(job: Job) -> str:
    today = datetime.date.today().isoformat()
    return job.name or f"{today}-{job.opened.name}-{short_name(job.settings.model)}"
