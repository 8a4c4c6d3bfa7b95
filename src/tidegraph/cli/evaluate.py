"""`tidegraph evaluate RUN`: the figures of a finished run, as `train` printed them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegraph._jit import set_threads
from tidegraph.cli.data import open_run
from tidegraph.cli.seeds import several_seeds
from tidegraph.cli.task import task_rows
from tidegraph.errors import CheckpointError, InputError, SettingError
from tidegraph.events import EventRange
from tidegraph.report.comparison import Scored, evaluate_baselines, scored
from tidegraph.report.console import ConsoleListener, Printer
from tidegraph.report.plain import print_json, scored_values
from tidegraph.report.tables import comparison_tables
from tidegraph.report.usage import peak_resident_bytes, process_started, versions
from tidegraph.train import Run
from tidegraph.train.run_files import RunFiles
from tidegraph.train.tasks import load_task
from tidegraph.train.tasks.task_run import task_path


def command() -> Callable[..., Any]:
    """The command."""
    return evaluate


def evaluate(
    run: Annotated[Path, typer.Argument(help="directory of a run, such as runs/<name>")],
    candidates: Annotated[
        int | None,
        typer.Option(min=0, help="negatives per event of MRR and Hits@k (default: the run's)"),
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines/--no-baselines", help="EdgeBank and popularity beside it")
    ] = True,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all)")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="print only the result")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="print one JSON object as the last line of stdout")
    ] = False,
) -> None:
    """Measure on the test split, from the end of validation."""
    printer = Printer(quiet=quiet, results_only=json)
    if threads is not None:
        set_threads(threads)
    if several_seeds(run):
        raise SettingError(
            f"{run} holds runs of several seeds: name one of them, such as "
            f"{next(iter(sorted(run.glob('seed-*'))), run / 'seed-0')}. Their figures are in "
            f"{run / 'seeds.json'}"
        )
    opened = open_run(run)
    part = test_part(opened, run)
    printer.say(f"{run}: {len(part):,} test events, model {opened.model.name}")
    rows, stages, spent = _rows(opened, run, part, candidates, baselines, printer)
    if not (quiet and json):
        for line in comparison_tables(rows, "test"):
            printer.result(line)
    if json:
        print_json(
            {
                "command": "evaluate",
                "test": scored_values(rows[0]),
                "baselines": [scored_values(row) for row in rows[1:]],
                "events_per_second": len(part) / max(stages["test"], 1e-9),
                "seconds": {
                    **stages,
                    "baselines": spent,
                    "total": time.time() - process_started(),
                },
                "peak_resident_bytes": peak_resident_bytes(),
                "paths": {"run": str(run)},
                "versions": versions(),
            }
        )


def _rows(
    opened: Run,
    directory: Path,
    part: EventRange,
    candidates: int | None,
    baselines: bool,
    printer: Printer,
) -> tuple[list[Scored], dict[str, float], float]:
    """Figures of the model and of baselines, seconds by stage, and those of the baselines."""
    if task_path(directory).exists():
        if candidates is not None:
            raise SettingError(
                "--candidates has no effect: the run was trained for a task without ranking"
            )
        task = load_task(directory, opened)
        with ConsoleListener(printer) as listener:
            found = task.evaluate(part, listener=listener)
        rows = list(task_rows(opened.model.name, found))
        return rows if baselines else rows[:1], {"test": found.seconds}, 0.0
    with ConsoleListener(printer) as listener:
        evaluation = opened.evaluate(part, candidates=candidates, listener=listener)
    rows = [scored(opened.model.name.upper(), evaluation)]
    started = time.perf_counter()
    if baselines:
        rows += evaluate_baselines(opened, part, candidates)
    stages = {**evaluation.stages, "test": evaluation.seconds}
    return rows, stages, time.perf_counter() - started


def test_part(run: Run, directory: Path) -> EventRange:
    """The test split that was saved with the run; everything after validation otherwise.

    Raises:
        InputError: the run has none.
        CheckpointError: it was changed to what it cannot be.
    """
    files = RunFiles(directory)
    first, end = run.stream.stop, len(run.events)
    start, stop = files.read_config()["data"].get("test") or (first, end)
    if not first <= start <= stop <= end:
        raise CheckpointError(
            f"{files.config}: data.test=[{start}, {stop}]: expected positions from {first}, the "
            f"end of validation, to {end}; put back what `tidegraph train` wrote"
        )
    if start >= stop:
        raise InputError(
            f"{directory}: the run was trained without a test split (--test 0), so there is "
            "nothing to evaluate; score new events with `tidegraph predict`"
        )
    return EventRange(run.events, start, stop, "test")
