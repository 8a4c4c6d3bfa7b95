"""`tidegraph ingest FILE --out STORE`: a table read once, checked, and opened instantly after."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegraph.cli.flags import flags_for, with_flags
from tidegraph.cli.settings import DataSettings, settings_of
from tidegraph.errors import SettingError
from tidegraph.report.console import Printer
from tidegraph.report.plain import print_json
from tidegraph.report.usage import peak_resident_bytes, versions

_OWN_FLAGS = ("out", "memory", "threads", "quiet", "json", "help")


def command() -> Callable[..., Any]:
    """The command with the flags that say how a table is read."""
    return with_flags(ingest, flags_for(settings_of("data"), taken=_OWN_FLAGS))


def ingest(
    file: Annotated[
        Path | None, typer.Argument(help="table: CSV, TSV, Parquet, JSON lines or DuckDB")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="directory to write; required")] = None,
    memory: Annotated[
        str | None, typer.Option(help="limit for sorting, such as 2GB; beyond it, disk is used")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all)")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="print only errors")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="print one JSON object as the last line of stdout")
    ] = False,
    given: Mapping[str, Mapping[str, Any]] = {},
) -> None:
    """Read, check and store."""
    from tidegraph.cli.data import read

    if out is None:
        raise SettingError("say where the events are written: --out DIRECTORY")
    printer = Printer(quiet=quiet, results_only=json)
    started = time.perf_counter()
    settings = DataSettings(**given.get("data", {}))
    events = read(file, settings, out, memory_limit=memory, threads=threads)
    seconds = time.perf_counter() - started
    description = events.describe()
    printer.say(str(description))
    printer.say(f"stored    {out} in {seconds:.1f} s; use it: tidegraph train {out}")
    if json:
        print_json(
            {
                "command": "ingest",
                "description": description.to_dict(),
                "fingerprint": events.fingerprint,
                "events_per_second": len(events) / max(seconds, 1e-9),
                "seconds": {"ingest": seconds},
                "peak_resident_bytes": peak_resident_bytes(),
                "paths": {"store": str(out)},
                "versions": versions(),
            }
        )
