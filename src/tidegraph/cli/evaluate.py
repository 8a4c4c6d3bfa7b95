"""`tidegraph evaluate RUN`: the figures of a finished run, as `train` printed them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegraph._jit import set_threads
from tidegraph.batches.fixed_negatives import FixedNegatives, write_negatives
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
from tidegraph.train.evaluate import ranking_negatives
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
    negatives_file: Annotated[
        Path | None,
        typer.Option(help="rank against what this file lists per event (.npz or .parquet)"),
    ] = None,
    save_negatives: Annotated[
        Path | None,
        typer.Option(help="write what is ranked against to this file.npz, for --negatives-file"),
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
    if negatives_file is not None and candidates is not None:
        raise SettingError("--candidates has no effect with --negatives-file; leave one out")
    ranking = None
    if negatives_file is not None:
        ranking = FixedNegatives.read(negatives_file, opened.events)
    if save_negatives is not None:
        _save_negatives(save_negatives, opened, part, candidates, ranking)
    rows, stages, spent = _rows(opened, run, part, candidates, ranking, baselines, printer)
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
    ranking: FixedNegatives | None,
    baselines: bool,
    printer: Printer,
) -> tuple[list[Scored], dict[str, float], float]:
    """Figures of the model and of baselines, seconds by stage, and those of the baselines."""
    if task_path(directory).exists():
        if candidates is not None or ranking is not None:
            raise SettingError(
                "--candidates and --negatives-file have no effect: the run was trained for a task "
                "without ranking; leave them out"
            )
        task = load_task(directory, opened)
        with ConsoleListener(printer) as listener:
            found = task.evaluate(part, listener=listener)
        rows = list(task_rows(opened.model.name, found))
        return rows if baselines else rows[:1], {"test": found.seconds}, 0.0
    with ConsoleListener(printer) as listener:
        evaluation = opened.evaluate(
            part, candidates=candidates, ranking=ranking, listener=listener
        )
    rows = [scored(opened.model.name.upper(), evaluation)]
    started = time.perf_counter()
    if baselines:
        rows += evaluate_baselines(opened, part, candidates, ranking)
    stages = {**evaluation.stages, "test": evaluation.seconds}
    return rows, stages, time.perf_counter() - started


def _save_negatives(
    path: Path,
    run: Run,
    part: EventRange,
    candidates: int | None,
    ranking: FixedNegatives | None,
) -> None:
    """Write the ranking's negatives of the evaluated part.

    Raises:
        SettingError: nothing is ranked, or another kind of file.
    """
    count = run.settings.candidates if candidates is None else candidates
    if count == 0 and ranking is None:
        raise SettingError("--save-negatives: with 0 candidates nothing is ranked")
    source = ranking or ranking_negatives(run.events, run.settings)
    write_negatives(path, run.events, source.candidates(part.start, part.stop, count=count), part)


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
