"""What the parts of `gpu.py` find, the clock they share, and the tables at the end."""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Check:
    """One comparison: the largest error, relative to the largest expected entry (at least 1)."""

    name: str
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Within what is allowed (a NaN is not)."""
        return self.error <= self.allowed


@dataclass(frozen=True)
class Timing:
    """Median milliseconds of one call, by where it ran."""

    name: str
    milliseconds: dict[str, float]


@dataclass(frozen=True)
class Speed:
    """Training steps of one model on prepared batches, by one executor.

    Attributes:
        data, model, batch, executor: what ran.
        events_per_second: steps alone, the batch's way to the device included.
        milliseconds: of a step.
        launches: calls that start work on the device, per step; None without CUDA.
        idle: share of the step's time in which the device had nothing to do; None without CUDA.
        in_template: share of the steps that ran in a template.
        templates, waste: how many, and padding rows per real row.
        first_seconds: until the last template was ready.
    """

    data: str
    model: str
    batch: int
    executor: str
    events_per_second: float
    milliseconds: float
    launches: float | None
    idle: float | None
    in_template: float
    templates: int
    waste: float
    first_seconds: float


class OutOfTimeError(Exception):
    """The script's time is used up."""


@dataclass
class Report:
    """Everything found so far.

    Attributes:
        limit: seconds that the script may take.
        problems: section -> why it failed or was left out.
    """

    limit: float
    started: float = field(default_factory=time.perf_counter)
    checks: list[Check] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    failed: bool = False

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.started

    def check_time(self, needed: float = 0.0) -> None:
        """Raise `OutOfTimeError` unless `needed` seconds are left."""
        if self.seconds + needed > self.limit:
            raise OutOfTimeError

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """What fails inside is written down, and the rest goes on."""
        began = self.seconds
        try:
            yield
        except OutOfTimeError:
            self.problems[name] = f"left out: {self.limit:.0f} s are used up"
        except Exception as error:
            self.failed = True
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
            self.problems[name] = f"{type(error).__name__} at {where}: {str(error)[:500]}"
        print(f"{name}: {self.seconds - began:.1f} s", flush=True)

    def as_json(self) -> dict[str, Any]:
        """For the file beside the tables."""
        return {
            "seconds": self.seconds,
            "passed": self.passed,
            "checks": [{**asdict(check), "passed": check.passed} for check in self.checks],
            "timings": [asdict(timing) for timing in self.timings],
            "speeds": [asdict(speed) for speed in self.speeds],
            "problems": self.problems,
        }

    @property
    def passed(self) -> bool:
        """No check and no section failed."""
        return not self.failed and all(check.passed for check in self.checks)

    def show(self) -> None:
        """Tables for a person."""
        from rich.console import Console
        from rich.table import Table

        console = Console()
        if not console.is_terminal:
            console = Console(width=150)
        table = Table("check", "error", "allowed", "", title="Against the CPU reference")
        for check in self.checks:
            verdict = "ok" if check.passed else "FAILED"
            table.add_row(check.name, f"{check.error:.2e}", f"{check.allowed:.0e}", verdict)
        console.print(table)
        if self.timings:
            labels = list(self.timings[0].milliseconds)
            table = Table("ms", *labels, title="Median of one call")
            for timing in self.timings:
                table.add_row(timing.name, *(f"{ms:.3f}" for ms in timing.milliseconds.values()))
            console.print(table)
        table = Table(
            "data", "model", "batch", "executor", "events/s", "ms", "launches", "idle",
            "templates", "padding", "ready after",
            title="Training steps",
        )  # fmt: skip
        for speed in self.speeds:
            table.add_row(
                speed.data, speed.model, str(speed.batch), speed.executor,
                f"{speed.events_per_second:,.0f}", f"{speed.milliseconds:.3f}",
                "-" if speed.launches is None else f"{speed.launches:.1f}",
                "-" if speed.idle is None else f"{100 * speed.idle:.0f}%",
                f"{speed.templates} ({100 * speed.in_template:.0f}% of batches)",
                f"{100 * speed.waste:.1f}%", f"{speed.first_seconds:.1f} s",
            )  # fmt: skip
        console.print(table)
        for name, text in self.problems.items():
            console.print(f"[bold]{name}[/bold]: {text}")


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_ms(call: Callable[[], object], device: torch.device, most_seconds: float = 2.0) -> float:
    """Median of repeats after two warm calls, the device idle before and after each."""

    def timed() -> float:
        synchronize(device)
        started = time.perf_counter()
        call()
        synchronize(device)
        return 1e3 * (time.perf_counter() - started)

    timed(), timed()
    found: list[float] = []
    begun = time.perf_counter()
    while len(found) < 50 and time.perf_counter() - begun < most_seconds:
        found.append(timed())
    return statistics.median(found)
