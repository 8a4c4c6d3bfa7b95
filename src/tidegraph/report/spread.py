"""Figures of several seeds: mean and sample deviation, each with its protocol."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from tidegraph.report.console import FIGURES


@dataclass(frozen=True)
class Spread:
    """One figure over several runs.

    Attributes:
        name: of the figure.
        mean, deviation: over the runs that have a value (sample deviation, n - 1; None of one).
        values: by run, None where undefined.
        protocol: of each.
    """

    name: str
    mean: float | None
    deviation: float | None
    values: tuple[float | None, ...]
    protocol: str

    @classmethod
    def of(cls, name: str, values: Sequence[float | None], protocol: str) -> Spread:
        """Mean and deviation of some values.

        >>> Spread.of("AP", [0.5, 0.7, None], "").mean
        0.6
        """
        defined = [value for value in values if value is not None]
        mean = math.fsum(defined) / len(defined) if defined else None
        deviation = None
        if mean is not None and len(defined) > 1:
            squares = math.fsum((value - mean) ** 2 for value in defined)
            deviation = math.sqrt(squares / (len(defined) - 1))
        return cls(name, mean, deviation, tuple(values), protocol)


@dataclass(frozen=True)
class SpreadRow:
    """One scorer's figures over several runs.

    Attributes:
        name: of the model or baseline.
        metrics: over all events; inductive: over those with an unseen node, or None.
    """

    name: str
    metrics: tuple[Spread, ...]
    inductive: tuple[Spread, ...] | None


def spread_rows(runs: Sequence[Mapping[str, Any]]) -> list[SpreadRow]:
    """Model and baselines over runs, from their JSON objects; empty without a test split."""
    tables = [[run["test"], *run["baselines"]] for run in runs if run["test"] is not None]
    if not tables:
        return []
    rows = []
    for place, first in enumerate(tables[0]):
        alike = [table[place] for table in tables]
        inductive = None
        if first["inductive"] is not None:
            inductive = _spreads([row["inductive"] for row in alike])
        rows.append(
            SpreadRow(first["name"], _spreads([row["metrics"] for row in alike]), inductive)
        )
    return rows


def spread_values(rows: Sequence[SpreadRow]) -> list[dict[str, Any]]:
    """The rows as plain values."""
    return [asdict(row) for row in rows]


def spread_tables(rows: Sequence[Mapping[str, Any]], seeds: Sequence[int], part: str) -> list[Any]:
    """Tables and footnotes to print.

    Args:
        rows: as `spread_values` gives them.
        seeds: of the runs.
        part: what was evaluated, for the title.
    """
    printed: list[Any] = []
    for key, events in (("metrics", "all events"), ("inductive", "events with an unseen node")):
        chosen = [(row["name"], row[key]) for row in rows if row[key] is not None]
        if chosen:
            printed += _table(chosen, f"{part}, {events}, seeds {', '.join(map(str, seeds))}")
    return printed


def _spreads(metrics: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[Spread, ...]:
    return tuple(
        Spread.of(first["name"], [one[place]["value"] for one in metrics], first["protocol"])
        for place, first in enumerate(metrics[0])
    )


def _table(rows: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], title: str) -> list[Any]:
    found = [(label, {one["name"]: one for one in figures}) for label, figures in rows]
    names = [name for name in FIGURES if any(name in figures for _, figures in found)]
    notes: list[str] = []
    table = Table()
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for label, figures in found:
        table.add_row(label, *(_cell(figures.get(name), notes) for name in names))
    lines = [Text(f"[{n}] {text}", style="dim") for n, text in enumerate(notes, 1)]
    lines.append(Text("mean ± sample deviation over the seeds", style="dim"))
    return [Text(title, style="bold"), table, *lines]


def _cell(spread: Mapping[str, Any] | None, notes: list[str]) -> Text:
    if spread is None:
        return Text("-")
    if spread["protocol"] not in notes:
        notes.append(spread["protocol"])
    mark = f"[{notes.index(spread['protocol']) + 1}]"
    if spread["mean"] is None:
        return Text(f"undefined {mark}")
    deviation = "" if spread["deviation"] is None else f" ± {spread['deviation']:.4f}"
    return Text(f"{spread['mean']:.4f}{deviation} {mark}")
