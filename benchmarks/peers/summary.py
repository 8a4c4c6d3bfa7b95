"""From all runs to the table: medians over repeats, and ratios pair by pair.

A ratio compares two libraries within the same round, then the median over rounds is taken, with
the smallest and the largest beside it: what the machine did in between cancels.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from peers.contract import STAGES

Run = dict[str, Any]
"""A `RunResult` as a dictionary, with `round` added."""


@dataclass(frozen=True)
class Ratio:
    """Median, smallest and largest of one library's speed over the reference's."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One library at one batch size, medians over repeats; speed and stages of the last epoch.

    Attributes:
        ratio: speed against the reference library, None where the reference was not measured.
        stage_ms: milliseconds per batch, by stage; what is left of `batch_ms` is the loop itself.
        peak_training_mib, peak_total_mib: peak resident memory, without and with validation.
        ap_batches, ap_all: one value per epoch.
    """

    library: str
    batch_size: int
    repeats: int
    events_per_second: float
    ratio: Ratio | None
    batch_ms: float
    stage_ms: dict[str, float]
    peak_training_mib: float
    peak_total_mib: float
    ap_batches: tuple[float, ...]
    ap_all: tuple[float, ...]
    loss_first: float
    loss_last: float
    parameters: int


def speed(run: Run) -> float:
    """Training events per second of a run: the median over its epochs."""
    return median(epoch["events_per_second"] for epoch in run["epochs"])


def ratio_to(runs: list[Run], reference: list[Run]) -> Ratio | None:
    """Speed ratios of the rounds in which both were measured."""
    by_round = {run["round"]: speed(run) for run in reference}
    ratios = [speed(run) / by_round[run["round"]] for run in runs if run["round"] in by_round]
    return Ratio(median(ratios), min(ratios), max(ratios)) if ratios else None


def summarise(runs: list[Run], reference: str) -> list[Row]:
    """One row for each (batch size, library), in the order in which they were first run."""
    groups: dict[tuple[int, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run["batch_size"], run["library"]), []).append(run)
    return [
        _row(group, groups.get((batch_size, reference), []))
        for (batch_size, _library), group in groups.items()
    ]


def _row(group: list[Run], reference: list[Run]) -> Row:
    first = group[0]
    epochs = [epoch for run in group for epoch in run["epochs"]]

    def per_epoch(name: str) -> tuple[float, ...]:
        columns = zip(*(run["epochs"] for run in group), strict=True)
        return tuple(median(epoch[name] for epoch in column) for column in columns)

    return Row(
        library=first["library"],
        batch_size=first["batch_size"],
        repeats=len(group),
        events_per_second=median(speed(run) for run in group),
        ratio=ratio_to(group, reference),
        batch_ms=median(1e3 * epoch["seconds"] / epoch["batches"] for epoch in epochs),
        stage_ms={
            stage: median(1e3 * epoch["stage_seconds"][stage] for epoch in epochs)
            for stage in STAGES
        },
        peak_training_mib=median(run["peak_training"] for run in group) / 2**20,
        peak_total_mib=median(run["peak_total"] for run in group) / 2**20,
        ap_batches=per_epoch("ap_batches"),
        ap_all=per_epoch("ap_all"),
        loss_first=per_epoch("loss_first")[0],
        loss_last=per_epoch("loss_last")[-1],
        parameters=first["parameters"],
    )


def machine_facts(threads: int) -> dict[str, str | int | float]:
    """What the figures depend on besides the code."""
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": _processor(),
        "cores": usable or 0,
        "threads": threads,
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def print_table(rows: list[Row], reference: str, console: Console) -> None:
    """The rows as a table, one section for each batch size."""
    table = Table(title="TGN, one training epoch: medians over repeats")
    for name in ("batch", "library"):
        table.add_column(name)
    numbers = ["events/s", f"x {reference}", "ms/batch", *STAGES]
    for name in [*numbers, "peak MiB train", "with val", "AP batches", "AP all", "parameters"]:
        table.add_column(name, justify="right")
    previous = None
    for row in rows:
        if previous not in (None, row.batch_size):
            table.add_section()
        previous = row.batch_size
        table.add_row(*_cells(row))
    console.print(table)
    console.print(
        "prepare, forward, backward, state: ms per batch. AP: validation, after each epoch."
    )


def _cells(row: Row) -> list[str]:
    ratio = row.ratio
    return [
        str(row.batch_size),
        row.library,
        f"{row.events_per_second:,.0f}",
        f"{ratio.median:.2f} ({ratio.low:.2f}..{ratio.high:.2f})" if ratio else "-",
        f"{row.batch_ms:.1f}",
        *(f"{row.stage_ms[stage]:.1f}" for stage in STAGES),
        f"{row.peak_training_mib:,.0f}",
        f"{row.peak_total_mib:,.0f}",
        " ".join(f"{value:.4f}" for value in row.ap_batches),
        " ".join(f"{value:.4f}" for value in row.ap_all),
        f"{row.parameters:,}",
    ]
