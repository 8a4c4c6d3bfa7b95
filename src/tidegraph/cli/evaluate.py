"""`tidegraph evaluate RUN`: the figures of a finished run, as `train` printed them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegraph._jit import set_threads
from tidegraph.cli.data import open_run
from tidegraph.errors import CheckpointError, InputError
from tidegraph.events import EventRange
from tidegraph.report.comparison import evaluate_baselines, scored
from tidegraph.report.console import ConsoleListener, Printer
from tidegraph.report.plain import print_json, scored_values
from tidegraph.report.tables import comparison_tables
from tidegraph.report.usage import peak_resident_bytes, process_started, versions
from tidegraph.train import Run
from tidegraph.train.run_files import RunFiles


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
    opened = open_run(run)
    part = test_part(opened, run)
    printer.say(f"{run}: {len(part):,} test events, model {opened.model.name}")
    with ConsoleListener(printer) as listener:
        evaluation = opened.evaluate(part, candidates=candidates, listener=listener)
    rows = [scored(opened.model.name.upper(), evaluation)]
    started = time.perf_counter()
    if baselines:
        rows += evaluate_baselines(opened, part, candidates)
    if not (quiet and json):
        for line in comparison_tables(rows, "test"):
            printer.result(line)
    if json:
        print_json(
            {
                "command": "evaluate",
                "test": scored_values(rows[0]),
                "baselines": [scored_values(row) for row in rows[1:]],
                "events_per_second": evaluation.events / max(evaluation.seconds, 1e-9),
                "seconds": {
                    **evaluation.stages,
                    "test": evaluation.seconds,
                    "baselines": time.perf_counter() - started,
                    "total": time.time() - process_started(),
                },
                "peak_resident_bytes": peak_resident_bytes(),
                "paths": {"run": str(run)},
                "versions": versions(),
            }
        )


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
