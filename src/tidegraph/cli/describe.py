"""`tidegraph describe DATA`: what was understood, in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from tidegraph.cli.flags import flags_for, with_flags
from tidegraph.cli.settings import DataSettings, settings_of
from tidegraph.report.console import Printer
from tidegraph.report.plain import print_json


def command() -> Callable[..., Any]:
    """The command with the flags that say how a table is read."""
    return with_flags(describe, flags_for(settings_of("data"), taken=("json", "help")))


def describe(
    data: Annotated[
        str | None, typer.Argument(help="table, stored events, or name of a data set")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="print one JSON object as the last line of stdout")
    ] = False,
    given: Mapping[str, Mapping[str, Any]] = {},
) -> None:
    """Read (a table once) and describe."""
    from tidegraph.cli.data import open_data

    settings = DataSettings(**given.get("data", {}))
    if data is None and settings.query is None:
        data = "flights"
    opened = open_data(data, settings)
    description = opened.events.describe()
    Printer(results_only=json).say(str(description))
    if json:
        print_json({"command": "describe", "data": opened.spec, **description.to_dict()})
