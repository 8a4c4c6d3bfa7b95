"""`tidegraph train`: from a table of events to a trained, evaluated, saved run."""

from __future__ import annotations

import datetime
import math
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from tidegraph._jit import set_threads
from tidegraph.cli.app import Interrupted
from tidegraph.cli.data import (
    OpenedData,
    keep_events,
    open_data,
    restore_store,
    split_events,
)
from tidegraph.cli.flags import flags_for, with_flags
from tidegraph.cli.seeds import SeedRuns, several_seeds
from tidegraph.cli.settings import (
    DataSettings,
    Settings,
    SplitSettings,
    check_effect,
    merge,
    model_values,
    settings_of,
)
from tidegraph.cli.task import check_target, check_task, label_as_target, task_values, train_task
from tidegraph.cli.warm_up import warm_up
from tidegraph.errors import CheckpointError, SettingError, shown
from tidegraph.events import Split
from tidegraph.models import MODELS, build_model
from tidegraph.models.own import short_name
from tidegraph.presets import PRESETS
from tidegraph.report.comparison import Scored, evaluate_baselines, scored
from tidegraph.report.console import ConsoleListener, Printer
from tidegraph.report.critical_path import critical_path_line
from tidegraph.report.page import write_page
from tidegraph.report.plain import add_seconds, metric_values, plain, print_json, scored_values
from tidegraph.report.tables import comparison_tables
from tidegraph.report.usage import peak_resident_bytes, process_started, versions
from tidegraph.train import Run, Trainer, TrainSettings
from tidegraph.train.checkpoint import load_checkpoint
from tidegraph.train.contents import FREE_SETTINGS
from tidegraph.train.pipeline import choose_pipeline
from tidegraph.train.planner import plan_staleness, staleness_note
from tidegraph.train.room import check_room
from tidegraph.train.run import open_data as open_saved
from tidegraph.train.run_config import checked
from tidegraph.train.run_files import RunFiles, new_directory
from tidegraph.train.tasks import PropertyRun, TaskRun, TaskSettings

_PRESET_HELP = "; ".join(f"{name}: {preset.about}" for name, preset in PRESETS.items())
SECTIONS_OF_FLAGS = ("data", "split", "training", "task", "model")
_OWN_FLAGS = ("model", "preset", "config", "name", "out", "resume", "seeds", "threads", "quiet",
              "json", "help")  # fmt: skip


def command() -> Callable[..., Any]:
    """The command with a flag for every setting."""
    settings = [setting for section in SECTIONS_OF_FLAGS
                for setting in settings_of(section)]  # fmt: skip
    return with_flags(train, flags_for(settings, taken=_OWN_FLAGS))


def train(
    data: Annotated[
        str | None,
        typer.Argument(
            help="a table (CSV, TSV, Parquet, JSON lines, DuckDB), stored events, or the name of a "
            "data set (see `tidegraph datasets`); default: flights"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help=f"which model: {', '.join(MODELS)}; or a class of your own, file.py:Class "
            "(default tgn)"
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option(help=_PRESET_HELP)] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file: sections data, split, model, training; flags override it"),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="the run's name (default: date, data and model)")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="directory of runs (default runs)")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="go on with this run's directory, bit for bit")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=2, help="as many runs, of seeds N, N + 1, ...: mean and deviation"),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all)")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="print errors and results only")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="print one JSON object as the last line of stdout")
    ] = False,
    given: Mapping[str, Mapping[str, Any]] = {},
) -> None:
    """The job from start to end."""
    seconds = {"start": time.time() - process_started()}
    printer = Printer(quiet=quiet, results_only=json)
    if threads is not None:
        set_threads(threads)
    if resume is not None:
        fixed = {"data": data, "model": model, "preset": preset, "config": config, "name": name,
                 "out": out, "seeds": seeds}  # fmt: skip
        more = _continued({**fixed, **given})
        if several_seeds(resume):
            _several(_SeveralJob.of_directory(resume, more, seconds), printer, json, seconds)
            return
        job = _resumed(resume, more, seconds)
    else:
        if preset is None and config is None and data in (None, "flights"):
            preset = "flights"
        settings = merge(given, model=model, preset=preset, config=config)
        check_task(settings)
        job = _new(data, settings, out or Path("runs"), name, seconds)
    if seeds is not None:
        _several(_SeveralJob.new(job, seeds), printer, json, seconds)
        return
    outcome, values = run_job(job, printer, seconds)
    _finish(job, outcome, values, printer, json)


def run_job(
    job: Job, printer: Printer, seconds: dict[str, float]
) -> tuple[Outcome, dict[str, Any]]:
    """Train, test and keep one run; returns it with its JSON object."""
    check_room(
        job.settings.model, job.opened.events.schema, job.settings.model_values,
        job.settings.training, max(len(part) for part in job.split),
    )  # fmt: skip
    seconds["compile"] = warm_up(
        job.opened.events, job.settings.model, job.settings.model_values, job.settings.training,
        job.settings.split.hidden_nodes > 0, printer,
    )  # fmt: skip
    _print_job(job, printer)
    outcome = _run(job, printer, seconds)
    return outcome, _kept(job, outcome, printer)


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
class _SeveralJob:
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
    def new(cls, job: Job, count: int) -> _SeveralJob:
        first = job.settings.training.seed
        directory = new_directory(job.out / _run_name(job))
        job = replace(job, opened=keep_events(job.opened, directory))
        settings = _as_config(job)
        return cls(SeedRuns.new(directory, range(first, first + count), settings), job)

    @classmethod
    def of_directory(
        cls, directory: Path, more: Mapping[str, Any], seconds: dict[str, float]
    ) -> _SeveralJob:
        runs = SeedRuns.open(directory)
        settings = merge({"training": more}, config=runs.settings)
        return cls(runs, _new(None, settings, directory.parent, None, seconds), more)

    def of_seed(self, seed: int, seconds: dict[str, float]) -> Job:
        """Go on with the seed's run where it was stopped, or begin it."""
        directory = self.runs.directory_of(seed)
        if RunFiles(directory).last.exists():
            return _resumed(directory, self.more, seconds)
        shutil.rmtree(directory, ignore_errors=True)  # stopped before its first checkpoint
        training = self.job.settings.training.model_copy(update={"seed": seed})
        settings = replace(self.job.settings, training=training)
        split = _checked_split(self.job.opened, settings)
        return Job(settings, self.job.opened, split, directory.parent, directory.name)


def _several(
    several: _SeveralJob, printer: Printer, as_json: bool, before: dict[str, float]
) -> None:
    def run_one(seed: int) -> dict[str, Any]:
        seconds = dict(before)
        return run_job(several.of_seed(seed, seconds), printer, seconds)[1]

    several.runs.run(run_one, printer, as_json)


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


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        run: at the end of the test split.
        directory: of the run.
        rows: model and baselines; empty without a test split.
        seconds: by stage.
        task: what was learned beside link prediction, or None.
    """

    run: Run
    directory: Path
    rows: tuple[Scored, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    task: TaskRun | PropertyRun | None = None


def _new(
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


def _resumed(directory: Path, more: Mapping[str, Any], seconds: dict[str, float]) -> Job:
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


def _continued(given: Mapping[str, Any]) -> dict[str, Any]:
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


def _print_job(job: Job, printer: Printer) -> None:
    events, settings, split = job.opened.events, job.settings, job.split
    printer.say(str(events.describe()))
    if job.opened.reused and "file" in job.opened.spec:
        printer.say(
            f"note      opened the copy stored when {job.opened.spec['file']} was first read"
        )
    sizes = ", ".join(f"{len(part):,} {part.name}" for part in split)
    hidden = ""
    if split.hidden_nodes is not None:
        hidden = f"; {int(split.hidden_nodes.sum()):,} nodes hidden from training"
    printer.say(f"split     {sizes} ({split.tie_rule}){hidden}")
    preset = f" (preset {settings.preset})" if settings.preset else ""
    built = build_model(settings.model, events.schema, **settings.model_values)
    weights = sum(parameter.numel() for parameter in built.parameters())
    printer.say(f"model     {settings.model}, {weights:,} weights: {_listed(built.settings)}")
    printer.say(f"training  {_listed(settings.training.model_dump())}{preset}")


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _run(job: Job, printer: Printer, seconds: dict[str, float]) -> Outcome:
    directory = job.directory
    if directory is None:
        directory = new_directory(job.out / _run_name(job))
        job = replace(job, opened=keep_events(job.opened, directory))
    try:
        return _train_and_test(job, directory, printer, seconds)
    except BaseException as error:
        kept = RunFiles(directory).last.exists()
        if not kept:
            shutil.rmtree(directory, ignore_errors=True)  # there is nothing to go on from
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(_how_to_go_on(directory, kept)) from None
        raise


def _run_name(job: Job) -> str:
    today = datetime.date.today().isoformat()
    return job.name or f"{today}-{job.opened.name}-{short_name(job.settings.model)}"


def _how_to_go_on(directory: Path, kept: bool) -> str:
    if kept:
        return f"go on with: tidegraph train --resume {shlex.quote(str(directory))}"
    return "there was no checkpoint yet, so nothing is kept: start again"


def _best_so_far(directory: Path) -> float:
    """The validation figure to beat when a run goes on."""
    cursor = load_checkpoint(RunFiles(directory).last, "last").about["cursor"]
    return float(cursor["best_value"]) if cursor["best_epoch"] >= 0 else -math.inf


def _train_and_test(
    job: Job, directory: Path, printer: Printer, seconds: dict[str, float]
) -> Outcome:
    settings, test = job.settings, job.split.test
    training = settings.training
    model = build_model(
        settings.model, job.opened.events.schema, seed=training.seed, **settings.model_values
    )
    started = process_started()
    best = _best_so_far(directory) if job.resume else -math.inf
    with ConsoleListener(printer, training.epochs, training.metric, best=best) as listener:
        trainer = Trainer(model, training, directory=directory, listener=listener, data=job.data)
        run = trainer.fit(job.split.train, job.split.val, resume=job.resume)
        if listener.first_batch is not None:
            seconds["to_first_batch"] = listener.first_batch - started
        seconds.update(add_seconds(record.stages for record in run.records))
        seconds["validation"] = sum(record.evaluation_seconds for record in run.records)
        rows: tuple[Scored, ...] = ()
        task: TaskRun | PropertyRun | None = None
        if settings.task.task != "link":
            task, rows = train_task(run, settings.task, settings.model, test, listener, seconds)
            run = task.run
        elif len(test):
            evaluation = run.evaluate(test, listener=listener, advance=True)
            seconds["test"] = evaluation.seconds
            before = time.perf_counter()
            baselines = evaluate_baselines(run, test)
            seconds["baselines"] = time.perf_counter() - before
            rows = (scored(short_name(settings.model).upper(), evaluation), *baselines)
    run.save()
    seconds["total"] = time.time() - started
    return Outcome(run, directory, rows, seconds, task)


def _kept(job: Job, outcome: Outcome, printer: Printer) -> dict[str, Any]:
    """The run's JSON object, once figures and page are on disk."""
    files = RunFiles(outcome.directory)
    if outcome.rows:
        first = outcome.rows[0]
        files.append_evaluation(
            "test", {"metrics": metric_values(first.metrics),
                     "inductive": metric_values(first.inductive)}
        )  # fmt: skip
    values = _json_object(job, outcome)
    try:
        values["paths"]["report"] = str(write_page(files.directory, values))
    except Exception as error:  # a page that cannot be drawn must not cost the run
        printer.warn(f"report.html could not be written: {error!r}")
    return values


def _finish(
    job: Job, outcome: Outcome, values: dict[str, Any], printer: Printer, as_json: bool
) -> None:
    run = outcome.run
    if as_json:
        for line in comparison_tables(outcome.rows, "test") if outcome.rows else ():
            if not printer.quiet:
                printer.result(line)
        print_json(values)
        return
    path = critical_path_line(values["epochs"])
    if path is not None:
        printer.say(f"spent     {path}")
    note = _staleness_note(run)
    if note is not None:
        printer.say(f"note      {note}")
    printer.say(
        f"best epoch {run.best_epoch + 1} of {len(run.records)}; "
        f"{outcome.seconds['total']:.0f} s in all"
    )
    for line in comparison_tables(outcome.rows, "test") if outcome.rows else ():
        printer.result(line)
    place = shlex.quote(str(outcome.directory))
    printer.say()
    printer.say(f"run       {outcome.directory} (open {outcome.directory / 'report.html'})")
    trace = RunFiles(outcome.directory).trace
    if trace.exists():
        printer.say(f"trace     {trace} (open it at https://ui.perfetto.dev)")
    printer.say(f"again     tidegraph evaluate {place}")
    printer.say(f"use it    tidegraph predict {place} --events new.csv")


def _staleness_note(run: Run) -> str | None:
    """What the measured stage times say about the staleness that was asked for."""
    settings = run.settings
    pipeline = choose_pipeline(
        torch.device(settings.device), settings.prepare_threads, settings.queue_depth
    )
    stages = add_seconds(record.stages for record in run.records)
    batches = len(run.stream.phase("train")) * len(run.records)
    plan = plan_staleness(stages, batches, pipeline.threads)
    return staleness_note(plan, settings.staleness, free=pipeline.threads > 0)


def _json_object(job: Job, outcome: Outcome) -> dict[str, Any]:
    """The object that docs/json.md documents."""
    run, files, events = outcome.run, RunFiles(outcome.directory), job.opened.events
    settings, rows = job.settings, outcome.rows
    trained = sum(record.events_per_second * record.seconds for record in run.records)
    spent = sum(record.seconds for record in run.records)
    return {
        "command": "train",
        "data": {
            **job.opened.spec,
            "name": job.opened.name,
            "events": len(events),
            "nodes": events.schema.num_nodes,
            "event_features": events.schema.event_features,
            "fingerprint": events.fingerprint,
            "parts": {part.name: len(part) for part in job.split},
        },
        "settings": {
            "preset": settings.preset or None,
            "split": settings.split.model_dump(),
            "model": {"name": settings.model, **run.model.settings},
            "training": settings.training.model_dump(),
            "task": settings.task.model_dump(mode="json"),
        },
        "task": None if outcome.task is None else task_values(outcome.task),
        "epochs": [plain(asdict(record)) for record in run.records],
        "best_epoch": run.best_epoch,
        "test": scored_values(rows[0]) if rows else None,
        "baselines": [scored_values(row) for row in rows[1:]],
        "events_per_second": trained / spent if spent else None,
        "seconds": {name: round(value, 4) for name, value in outcome.seconds.items()},
        "peak_resident_bytes": peak_resident_bytes(),
        "paths": {
            "run": str(files.directory),
            "config": str(files.config),
            "metrics": str(files.metrics),
            "best": str(files.best),
            "last": str(files.last),
            "stream": str(files.stream),
            **({"trace": str(files.trace)} if files.trace.exists() else {}),
        },
        "versions": versions(),
    }
