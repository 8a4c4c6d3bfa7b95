"""Figures as a table in which every number carries its protocol.

Protocols are footnotes: a column whose figures were all taken alike is marked at its head, a
figure taken otherwise is marked itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tidegraph.report.comparison import Scored
from tidegraph.report.console import FIGURES, LOWER
from tidegraph.train.metrics import Metric, Metrics


def comparison_tables(rows: Sequence[Scored], part: str) -> list[Any]:
    """Tables and footnotes to print, transductive first, then (where there are any) inductive.

    Args:
        rows: the model first, then baselines.
        part: what was evaluated, for the title.
    """
    printed: list[Any] = comparison_table(
        [(row.name, row.metrics) for row in rows], f"{part}, all events"
    )
    unseen = [(row.name, row.inductive) for row in rows if row.inductive is not None]
    if unseen:
        printed += [Text(""), *comparison_table(unseen, f"{part}, events with an unseen node")]
    return printed


def comparison_table(rows: Sequence[tuple[str, Metrics]], title: str) -> list[Any]:
    """One table, and a line for every protocol and every undefined figure in it."""
    names = [name for name in FIGURES if any(name in metrics for _, metrics in rows)]
    columns = {name: [_find(metrics, name) for _, metrics in rows] for name in names}
    notes: list[str] = []
    table = Table()
    table.add_column("")
    marks: dict[str, list[str]] = {}
    for name, metrics in columns.items():
        shared, marks[name] = _marks(metrics, notes)
        table.add_column(f"{name} {shared}".strip(), justify="right")
    for place, (label, _) in enumerate(rows):
        cells = []
        for name in names:
            best = _best(columns[name], lower=name in LOWER)
            cells.append(_cell(columns[name][place], marks[name][place], best))
        table.add_row(label, *cells)
    lines = [f"[{number}] {text}" for number, text in enumerate(notes, 1)]
    lines += _undefined(rows, names)
    events = {metric.count for metrics in columns.values() for metric in metrics if metric}
    best_marked = "; * best of the column" if len(rows) > 1 else ""
    lines.append(f"over {max(events, default=0):,} events{best_marked}")
    return [Text(title, style="bold"), table, *(Text(line, style="dim") for line in lines)]


def _find(metrics: Metrics, name: str) -> Metric | None:
    return next((metric for metric in metrics if metric.name == name), None)


def _marks(metrics: Sequence[Metric | None], notes: list[str]) -> tuple[str, list[str]]:
    """The mark of a column's head and of each figure; adds new protocols to `notes`."""
    protocols = {metric.protocol for metric in metrics if metric is not None}
    for metric in metrics:
        if metric is not None and metric.protocol not in notes:
            notes.append(metric.protocol)
    marks = ["" if m is None else f"[{notes.index(m.protocol) + 1}]" for m in metrics]
    if len(protocols) == 1:
        return next(mark for mark in marks if mark), [""] * len(metrics)
    return "", marks


def _best(metrics: Sequence[Metric | None], lower: bool) -> float:
    values = [m.value for m in metrics if m is not None and not math.isnan(m.value)]
    if len(values) < 2:
        return math.nan
    return min(values) if lower else max(values)


def _cell(metric: Metric | None, mark: str, best: float) -> Text:
    if metric is None:
        return Text("-")
    if math.isnan(metric.value):
        return Text("undefined")
    leads = metric.value == best
    shown = f"{metric.value:.4f}{' ' + mark if mark else ''}{' *' if leads else '  '}"
    return Text(shown, style="bold green" if leads else "")


def _undefined(rows: Sequence[tuple[str, Metrics]], names: Sequence[str]) -> list[str]:
    return [
        f"{label}: {metric.name} undefined: {metric.undefined}"
        for label, metrics in rows
        for metric in metrics
        if metric.undefined and metric.name in names
    ]
