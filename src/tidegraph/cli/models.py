"""`tidegraph models`: what can be trained, and what it is compared with, a line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer


def command() -> Callable[..., Any]:
    """The command."""
    return models


def models(
    json: Annotated[
        bool, typer.Option("--json", help="print one JSON object as the last line of stdout")
    ] = False,
) -> None:
    """List the models that `train --model` takes, and the baselines."""
    from rich.table import Table

    from tidegraph.models import BASELINES, MODELS, about_model
    from tidegraph.report.console import Printer
    from tidegraph.report.plain import print_json

    found = [("model", name, about_model(cls)) for name, cls in MODELS.items()]
    found += [("baseline", name, kind.about) for name, kind in BASELINES.items()]
    table = Table(title="models and baselines", title_justify="left")
    for title in ("name", "kind", "what it does"):
        table.add_column(title)
    for kind, name, about in found:
        table.add_row(name, kind, about)
    Printer(results_only=json).results.print(table)
    if json:
        listed = [{"kind": kind, "name": name, "about": about} for kind, name, about in found]
        print_json({"command": "models", "models": listed})
