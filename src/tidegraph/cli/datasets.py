"""`tidegraph datasets`: the catalog as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import typer


def command() -> Callable[..., Any]:
    """The command."""
    return datasets


def datasets(
    json: Annotated[
        bool, typer.Option("--json", help="print one JSON object as the last line of stdout")
    ] = False,
) -> None:
    """List what `train`, `describe` and `load_dataset` take by name."""
    from rich.table import Table

    from tidegraph.events import list_datasets
    from tidegraph.report.console import Printer
    from tidegraph.report.plain import print_json

    found = list_datasets()
    table = Table(title="data sets", title_justify="left")
    for name in ("name", "events", "nodes", "features", "an event is", "from", "terms"):
        table.add_column(
            name, justify="right" if name in ("events", "nodes", "features") else "left"
        )
    for info in found:
        counts = (f"{info.events:,}", f"{info.nodes:,}", str(info.features))
        table.add_row(info.name, *counts, info.description, info.obtained, info.terms)
    Printer(results_only=json).results.print(table)
    if json:
        print_json({"command": "datasets", "datasets": [asdict(info) for info in found]})
