"""`tidegraph predict RUN`: scores of new events or of pairs, under their original ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tidegraph._jit import set_threads
from tidegraph.cli.data import open_run, read_new_events, read_pairs
from tidegraph.cli.flags import flags_for, number_or_text, with_flags
from tidegraph.cli.output import check_output, write_columns
from tidegraph.cli.settings import settings_of
from tidegraph.errors import SettingError, shown
from tidegraph.events.times import nanoseconds_of
from tidegraph.events.units import NANOSECONDS
from tidegraph.report.console import ConsoleListener, Printer
from tidegraph.report.plain import finite, print_json
from tidegraph.report.usage import peak_resident_bytes, process_started, versions
from tidegraph.train import Run
from tidegraph.train.predictions import EventPredictions, PairPredictions
from tidegraph.train.tasks import TaskDecoder

_OWN_FLAGS = ("events", "pairs", "at", "candidates", "embeddings", "out", "keep", "threads",
              "quiet", "json", "help")  # fmt: skip
# The model fixes these.
_FIXED = ("bipartite", "query")
_AS_IN_TRAINING = ("source", "target", "time", "features", "categorical", "label", "weight",
                   "time_unit")  # fmt: skip

_OF_PAIRS = ("source", "target", "header", "delimiter", "table", "format")


def command() -> Callable[..., Any]:
    """The command with the flags that say how a table is read."""
    settings = [
        replace(setting, default=None, help=f"{setting.help} (default: as in training)")
        if setting.key in _AS_IN_TRAINING
        else setting
        for setting in settings_of("data")
        if setting.key not in _FIXED
    ]
    return with_flags(predict, flags_for(settings, taken=_OWN_FLAGS))


def predict(
    run: Annotated[Path, typer.Argument(help="directory of a run, such as runs/<name>")],
    events: Annotated[
        Path | None, typer.Option(help="table of new events, later than all the run has seen")
    ] = None,
    pairs: Annotated[Path | None, typer.Option(help="table of pairs that may happen")] = None,
    at: Annotated[
        str | None, typer.Option(help="when the pairs are asked about (default: the latest time)")
    ] = None,
    candidates: Annotated[
        int, typer.Option(min=0, help="also rank each true target among this many random ones")
    ] = 0,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="also both ends' embeddings before each event")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="file.csv, .parquet, .jsonl or .npz (default: CSV on stdout)"),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="the run goes on from the end of these events")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all)")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="print only the result")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="print one JSON object as the last line of stdout")
    ] = False,
    given: Mapping[str, Mapping[str, Any]] = {},
) -> None:
    """Score, write, and (with --keep) move the run forward."""
    if (events is None) == (pairs is None):
        raise SettingError("give either --events FILE or --pairs FILE")
    _check_flags(events, at, candidates, embeddings, keep, given.get("data", {}))
    check_output(out)
    printer = Printer(quiet=quiet, results_only=True)
    if threads is not None:
        set_threads(threads)
    opened = open_run(run, at="stream")
    columns = given.get("data", {})
    started = time.perf_counter()
    found: EventPredictions | PairPredictions
    labels: dict[str, np.ndarray] = {}
    if events is not None:
        decoder = TaskDecoder.load(run)
        later = read_new_events(events, opened, columns)
        printer.say(f"{events}: {len(later):,} events after {len(opened.events):,} known ones")
        with ConsoleListener(printer) as listener:
            found = opened.predict_events(
                later, candidates=candidates,
                embeddings=embeddings or decoder is not None, listener=listener
            )  # fmt: skip
        if decoder is not None:
            labels = decoder.columns(found, later)
            if not embeddings:
                found = replace(found, source_embedding=None, target_embedding=None)
    else:
        assert pairs is not None
        say_if_behind(opened, printer)
        found = opened.predict(read_pairs(pairs, opened, columns), time=query_time(at, opened))
    seconds = time.perf_counter() - started
    write_columns(out, {**found.columns(), **labels})
    if keep:
        opened.save()
    _say(found, out, keep, printer)
    if json:
        print_json(_json_object(found, opened, seconds, out, candidates))


def say_if_behind(run: Run, printer: Printer) -> None:
    """Told where a run was stopped before its end: its latest time is not that of its table."""
    left = len(run.events) - run.stream.stop
    if left > 0:
        printer.say(f"note: this run did not reach the last {left:,} events of its table yet")


def query_time(text: str | None, run: Run) -> Any:
    """`--at` in the events' unit: a number, or ISO text where the unit is known.

    Raises:
        SettingError: text of another kind, or ISO text without a known unit.
    """
    if text is None:
        return None
    value = number_or_text(text)
    if not isinstance(value, str):
        return value
    unit = run.events.schema.time_unit
    if unit is None:
        raise SettingError(
            f"--at {shown(text)}: the run's time has no known unit; give a number, as in the table"
        )
    nanoseconds, size = nanoseconds_of(value, "--at"), NANOSECONDS[unit]
    if run.events.time.dtype.kind == "f":
        return nanoseconds / size
    if nanoseconds % size:
        raise SettingError(f"--at {shown(text)} is not a whole number of {unit!r}, the run's unit")
    return nanoseconds // size


def _check_flags(
    events: Path | None,
    at: str | None,
    candidates: int,
    embeddings: bool,
    keep: bool,
    columns: Mapping[str, Any],
) -> None:
    """A flag without effect is refused."""
    if events is not None and at is not None:
        raise SettingError("--at is for --pairs; events have their own times")
    unused = {"--candidates": candidates, "--embeddings": embeddings, "--keep": keep}
    if events is None:
        for flag, value in unused.items():
            if value:
                raise SettingError(f"{flag} is for --events; it has no effect on --pairs")
        for key in columns:
            if key not in _OF_PAIRS:
                flag = f"--{key.replace('_', '-')}"
                raise SettingError(
                    f"{flag} is for --events; pairs have a source and a target alone"
                )


def _say(
    found: EventPredictions | PairPredictions, out: Path | None, keep: bool, printer: Printer
) -> None:
    ranked = getattr(found, "rank", None)
    rank = "" if ranked is None else f", mean reciprocal rank {np.mean(1 / ranked):.4f}"
    where = f" written to {out}" if out is not None else ""
    printer.say(f"{len(found):,} scores{where}, mean {found.score.mean():.4f}{rank}")
    if keep:
        printer.say("the run now goes on from the end of these events")


def _json_object(
    found: EventPredictions | PairPredictions,
    run: Run,
    seconds: float,
    out: Path | None,
    candidates: int,
) -> dict[str, Any]:
    ranked = getattr(found, "rank", None)
    return {
        "command": "predict",
        "rows": len(found),
        "mean_score": finite(float(found.score.mean())),
        "mean_reciprocal_rank": None if ranked is None else finite(float(np.mean(1 / ranked))),
        "candidates": candidates if ranked is not None else None,
        "events_per_second": len(found) / max(seconds, 1e-9),
        "seconds": {"predict": seconds, "total": time.time() - process_started()},
        "peak_resident_bytes": peak_resident_bytes(),
        "paths": {"run": str(run.directory), "out": None if out is None else str(out)},
        "versions": versions(),
    }
