"""`tidegraph train`: from a table of events to a trained, evaluated, saved run."""

from __future__ import annotations

import math
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegraph._jit import set_threads
from tidegraph.cli.app import Interrupted
from tidegraph.cli.data import keep_events
from tidegraph.cli.flags import flags_for, with_flags
from tidegraph.cli.job import Job, SeveralJob, continued, new_job, resumed_job, run_name
from tidegraph.cli.outcome import Outcome, finish, kept_outcome, print_job
from tidegraph.cli.seeds import several_seeds
from tidegraph.cli.settings import merge, settings_of
from tidegraph.cli.task import check_task, train_task
from tidegraph.cli.warm_up import warm_up
from tidegraph.models import MODELS, build_model
from tidegraph.models.own import short_name
from tidegraph.presets import PRESETS
from tidegraph.report.comparison import Scored, evaluate_baselines, scored
from tidegraph.report.console import ConsoleListener, Printer
from tidegraph.report.plain import add_seconds
from tidegraph.report.usage import process_started
from tidegraph.train import Trainer
from tidegraph.train.checkpoint import load_checkpoint
from tidegraph.train.room import check_room
from tidegraph.train.run_files import RunFiles, new_directory
from tidegraph.train.tasks import PropertyRun, TaskRun

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
        more = continued({**fixed, **given})
        if several_seeds(resume):
            _several(SeveralJob.of_directory(resume, more, seconds), printer, json, seconds)
            return
        job = resumed_job(resume, more, seconds)
    else:
        if preset is None and config is None and data in (None, "flights"):
            preset = "flights"
        settings = merge(given, model=model, preset=preset, config=config)
        check_task(settings)
        job = new_job(data, settings, out or Path("runs"), name, seconds)
    if seeds is not None:
        _several(SeveralJob.new(job, seeds), printer, json, seconds)
        return
    outcome, values = run_job(job, printer, seconds)
    finish(job, outcome, values, printer, json)


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
    print_job(job, printer)
    outcome = _run(job, printer, seconds)
    return outcome, kept_outcome(job, outcome, printer)


def _several(
    several: SeveralJob, printer: Printer, as_json: bool, before: dict[str, float]
) -> None:
    def run_one(seed: int) -> dict[str, Any]:
        seconds = dict(before)
        return run_job(several.of_seed(seed, seconds), printer, seconds)[1]

    several.runs.run(run_one, printer, as_json)


def _run(job: Job, printer: Printer, seconds: dict[str, float]) -> Outcome:
    directory = job.directory
    if directory is None:
        directory = new_directory(job.out / run_name(job))
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
