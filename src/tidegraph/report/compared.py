"""Several models over several seeds as one table: means, spreads, the protocol of every number.

A column is a metric under one protocol: figures that cannot be compared never share one. The same
columns become a table on the console, Markdown, JSON and a figure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

_SHOWN = ("AP", "AUC", "MRR", "Hits@10")


@dataclass(frozen=True)
class Figure:
    """One metric of one run, as saved.

    Attributes:
        name, protocol: what was measured, and how.
        value: None where it is undefined.
        count: events it was taken over.
        undefined: why there is no value.
    """

    name: str
    protocol: str
    value: float | None
    count: int
    undefined: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came of one model with one seed.

    Attributes:
        seed: of the run.
        figures: of the test split.
        parameters: trained numbers; 0 for a baseline.
        train_rate: training events a second, None for a baseline.
        test_rate: evaluated events a second.
        peak_bytes: most memory of the process while it ran.
        directory: of the run, "" for a baseline.
        failed: why there are no figures.
    """

    seed: int
    figures: tuple[Figure, ...] = ()
    parameters: int = 0
    train_rate: float | None = None
    test_rate: float | None = None
    peak_bytes: int = 0
    directory: str = ""
    failed: str = ""


@dataclass(frozen=True)
class Row:
    """One model of the comparison.

    Attributes:
        name: as it was asked for.
        settings: of the model; empty for a baseline.
        outcomes: one a seed.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()

    def done(self) -> tuple[Outcome, ...]:
        """Those with figures."""
        return tuple(one for one in self.outcomes if not one.failed)


@dataclass(frozen=True)
class Column:
    """A metric under a protocol; `note` is the number of the protocol's footnote."""

    name: str
    protocol: str
    note: int


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation over seeds.

    >>> Summary.of([0.25, 0.75])
    Summary(mean=0.5, spread=0.3535533905932738, seeds=2)
    >>> print(Summary.of([0.25]))
    0.2500
    """

    mean: float
    spread: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Of at least one value."""
        spread = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), spread, len(values))

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + ("" if self.spread is None else f" ± {self.spread:.4f}")


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """Metrics and protocols in the order they are shown; protocols are numbered as they come."""
    found: dict[tuple[str, str], None] = {}
    for row in rows:
        for outcome in row.done():
            found |= dict.fromkeys((one.name, one.protocol) for one in outcome.figures)
    shown = [pair for pair in found if pair[0] in _SHOWN]
    protocols = list(dict.fromkeys(protocol for _, protocol in shown))
    return [Column(name, protocol, protocols.index(protocol) + 1) for name, protocol in shown]


def summary(row: Row, column: Column) -> Summary | None:
    """The row's figure in a column, or None where no seed has one."""
    values = [
        one.value
        for outcome in row.done()
        for one in outcome.figures
        if (one.name, one.protocol) == (column.name, column.protocol) and one.value is not None
    ]
    return Summary.of(values) if values else None


def table_cells(rows: Sequence[Row], columns: Sequence[Column]) -> list[list[str]]:
    """Head and body of the table, as text."""
    head = ["model", *(f"{one.name} [{one.note}]" for one in columns),
            "training events/s", "test events/s", "parameters", "peak memory"]  # fmt: skip
    best = [_best(rows, column) for column in columns]
    body = []
    for row in rows:
        cells = [row.name]
        for column, leading in zip(columns, best, strict=True):
            found = summary(row, column)
            mark = " *" if found is not None and found.mean == leading else ""
            cells.append("-" if found is None else f"{found}{mark}")
        body.append(cells + _resources(row))
    return [head, *body]


def footnotes(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """The protocols, how figures were put together, and what is missing."""
    lines = list(dict.fromkeys(f"[{one.note}] {one.protocol}" for one in columns))
    seeds = sorted({outcome.seed for row in rows for outcome in row.outcomes})
    spread = "mean ± sample standard deviation over seeds" if len(seeds) > 1 else "seed"
    counts = sorted({one.count for row in rows for out in row.done() for one in out.figures})
    events = ", ".join(f"{count:,}" for count in counts)
    lines.append(f"{spread} {', '.join(map(str, seeds))}; over {events} test events; * best")
    lines.append(
        "events/s: of training, and of the test with its first negatives and candidates; peak "
        "memory: of the whole process while the model was trained and tested"
    )
    for row in rows:
        lines += [f"{row.name}, seed {one.seed}: failed: {one.failed}"
                  for one in row.outcomes if one.failed]  # fmt: skip
        missing = {f"{row.name}: {one.name} undefined: {one.undefined}"
                   for out in row.done() for one in out.figures if one.undefined}  # fmt: skip
        lines += sorted(missing)
    return lines


def console_parts(title: str, rows: Sequence[Row], width: int = 140) -> list[Any]:
    """What to print; where the table is wider than the console, its columns go below each other.

    Args:
        title: above it.
        rows: models.
        width: of the console, in characters.
    """
    columns = columns_of(rows)
    cells = table_cells(rows, columns)
    parts: list[Any] = [Text(title, style="bold")]
    for chosen in _fitting(cells, width):
        table = Table()
        for place in chosen:
            justify: Any = "left" if place == 0 else "right"
            table.add_column(cells[0][place], justify=justify, no_wrap=True)
        for line in cells[1:]:
            styles = ("bold green" if line[place].endswith("*") else "" for place in chosen)
            table.add_row(*(Text(line[p], style=s) for p, s in zip(chosen, styles, strict=True)))
        parts.append(table)
    return [*parts, *(Text(line, style="dim") for line in footnotes(rows, columns))]


def _fitting(cells: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Columns of tables that fit the width; each begins with the names."""
    widths = [max(len(line[place]) for line in cells) + 3 for place in range(len(cells[0]))]
    groups: list[list[int]] = [[0]]
    for place in range(1, len(widths)):
        taken = 1 + sum(widths[other] for other in groups[-1])
        if taken + widths[place] > width and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(place)
    return groups


def markdown(title: str, rows: Sequence[Row], about: Sequence[str], figure: str | None) -> str:
    """The comparison as a Markdown page.

    Args:
        title: heading.
        rows: models.
        about: lines on data, split, settings and the command.
        figure: file name of the figure, beside the page.
    """
    columns = columns_of(rows)
    head, *body = table_cells(rows, columns)
    lines = [f"# {title}", ""]
    lines += [f"| {' | '.join(map(_escaped, head))} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    lines += [f"| {' | '.join(map(_escaped, cells))} |" for cells in body]
    lines += ["", *(f"- {_escaped(line)}" for line in footnotes(rows, columns)), ""]
    if figure is not None:
        lines += [f"![{title}]({figure})", ""]
    lines += [f"- {_escaped(line)}" for line in about]
    return "\n".join(lines) + "\n"


def json_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows of the documented JSON object."""
    columns = columns_of(rows)
    return [_json_row(row, columns) for row in rows]


def _json_row(row: Row, columns: Sequence[Column]) -> dict[str, Any]:
    figures = []
    for column in columns:
        found = summary(row, column)
        if found is not None:
            figures.append({"name": column.name, "protocol": column.protocol, "mean": found.mean,
                            "spread": found.spread, "seeds": found.seeds})  # fmt: skip
    runs = [
        {
            "seed": one.seed,
            "failed": one.failed or None,
            "metrics": [vars(figure) for figure in one.figures],
            "training_events_per_second": one.train_rate,
            "test_events_per_second": one.test_rate,
            "peak_resident_bytes": one.peak_bytes,
            "run": one.directory or None,
        }
        for one in row.outcomes
    ]
    done = row.done()
    return {
        "model": row.name,
        "settings": dict(row.settings),
        "figures": figures,
        "parameters": done[0].parameters if done else None,
        "training_events_per_second": _mean(one.train_rate for one in done),
        "test_events_per_second": _mean(one.test_rate for one in done),
        "peak_resident_bytes": max((one.peak_bytes for one in done), default=None),
        "runs": runs,
    }


def _resources(row: Row) -> list[str]:
    done = row.done()
    if not done:
        return ["-"] * 4
    train, test = _mean(one.train_rate for one in done), _mean(one.test_rate for one in done)
    return [
        "-" if train is None else f"{train:,.0f}",
        "-" if test is None else f"{test:,.0f}",
        f"{done[0].parameters:,}",
        f"{max(one.peak_bytes for one in done) / 2**20:,.0f} MiB",
    ]


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _best(rows: Sequence[Row], column: Column) -> float:
    means = [found.mean for row in rows if (found := summary(row, column)) is not None]
    return max(means) if len(means) > 1 else math.nan


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
