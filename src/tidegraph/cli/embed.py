"""`tidegraph embed RUN`: node embeddings as a file, under original ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tidegraph._jit import set_threads
from tidegraph.cli.data import open_run
from tidegraph.cli.output import check_output, write_columns
from tidegraph.cli.predict import query_time, say_if_behind
from tidegraph.errors import InputError, SettingError
from tidegraph.report.console import Printer
from tidegraph.report.plain import print_json
from tidegraph.report.usage import peak_resident_bytes, versions


def command() -> Callable[..., Any]:
    """The command."""
    return embed


def embed(
    run: Annotated[Path, typer.Argument(help="directory of a run, such as runs/<name>")],
    nodes: Annotated[
        list[str] | None,
        typer.Option(help="ids, or a file with one id a line (default: all nodes)"),
    ] = None,
    side: Annotated[
        Literal["source", "target"] | None,
        typer.Option(help="where the same id is both a source and a target"),
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="time of the embeddings (default: the latest time)")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="file.parquet, .npz, .csv or .jsonl (default: CSV on stdout)"),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all)")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="print only the result")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="print one JSON object as the last line of stdout")
    ] = False,
) -> None:
    """Embed nodes from everything the run has seen."""
    check_output(out)
    printer = Printer(quiet=quiet, results_only=True)
    if threads is not None:
        set_threads(threads)
    opened = open_run(run, at="stream")
    say_if_behind(opened, printer)
    if side is not None and (nodes is None or not opened.events.schema.bipartite):
        reason = "all nodes are embedded" if nodes is None else "sources and targets are one kind"
        raise SettingError(f"--side {side} has no effect: {reason}; leave it out")
    found = opened.embed(_ids(nodes), time=query_time(at, opened), side=side)
    write_columns(out, found.columns())
    width = found.embedding.shape[1]
    where = f" written to {out}" if out is not None else ""
    printer.say(f"{len(found.node):,} embeddings of width {width}{where}")
    if json:
        print_json(
            {
                "command": "embed",
                "rows": len(found.node),
                "width": width,
                "peak_resident_bytes": peak_resident_bytes(),
                "paths": {"run": str(run), "out": None if out is None else str(out)},
                "versions": versions(),
            }
        )


def _ids(nodes: list[str] | None) -> list[str] | None:
    if nodes is None or len(nodes) != 1 or not Path(nodes[0]).is_file():
        return nodes
    try:
        lines = Path(nodes[0]).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InputError(
            f"{nodes[0]}: is not UTF-8 text; expected a text file with one id a line"
        ) from None
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise InputError(f"{nodes[0]}: is empty; expected one id a line")
    return found
