"""What `tidegraph train` says and keeps: of the job before it starts, and of what came of it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tidegraph.cli.job import Job
from tidegraph.cli.task import task_values
from tidegraph.models import build_model
from tidegraph.report.comparison import Scored
from tidegraph.report.console import Printer
from tidegraph.report.critical_path import critical_path_line
from tidegraph.report.page import write_page
from tidegraph.report.plain import add_seconds, metric_values, plain, print_json, scored_values
from tidegraph.report.tables import comparison_tables
from tidegraph.report.usage import peak_resident_bytes, versions
from tidegraph.train import Run
from tidegraph.train.pipeline import choose_pipeline
from tidegraph.train.planner import plan_staleness, staleness_note
from tidegraph.train.run_files import RunFiles
from tidegraph.train.tasks import PropertyRun, TaskRun


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


def print_job(job: Job, printer: Printer) -> None:
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


def kept_outcome(job: Job, outcome: Outcome, printer: Printer) -> dict[str, Any]:
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


def finish(
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
