"""Progress on the console: a bar on a terminal, plain lines elsewhere, one line per epoch.

The bar appears only when a pass has been running for two seconds; without a terminal a line comes
about every ten. Text goes to stdout, or to stderr where stdout is reserved for results.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from tidegraph.train.stages import Listener

BAR_AFTER = 2.0
LINE_EVERY = 10.0
SHOWN = ("AP", "AUC", "MRR", "Hits@10")
FIGURES = (*SHOWN, "accuracy", "MAE", "RMSE", "R2", "NDCG@10")
"""Figures that tables show, in order."""
LOWER = ("MAE", "RMSE")
"""Of these, the ones that are better where they are lower."""
_PLAIN_WIDTH = 140  # without a terminal there is no width to keep to; tables need room


class Printer:
    """Where text goes.

    Args:
        quiet: print nothing but results.
        results_only: stdout is for results (JSON, CSV); text goes to stderr.

    Attributes:
        text: for what is said on the way.
        results: for final tables; the same stream.
    """

    def __init__(self, *, quiet: bool = False, results_only: bool = False) -> None:
        self.quiet = quiet
        self.results = make_console(stderr=results_only)
        self.text = self.results

    def say(self, line: str = "") -> None:
        """One line, unless quiet. No markup: what is printed may hold brackets."""
        if not self.quiet:
            self.text.print(line, markup=False, highlight=False, soft_wrap=True)
            self.flush()

    def result(self, part: RenderableType) -> None:
        """A table, or a line of text; a line is as long as it is where there is no terminal."""
        whole = isinstance(part, Text) and not self.results.is_terminal
        self.results.print(part, soft_wrap=whole)

    def warn(self, line: str) -> None:
        """One line on stderr, unless quiet."""
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def flush(self) -> None:
        """So that `tee` and logs see lines when they are written."""
        self.text.file.flush()


def make_console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr, wide where it is not a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PLAIN_WIDTH
    return Console(stderr=stderr, width=width)


class ConsoleListener(Listener):
    """Shows a pass as it goes.

    Args:
        printer: where to.
        epochs: passes at most, for "epoch 2/10".
        metric: chooses the best epoch, which is marked.
        clock: seconds; another one in tests.
        best: the best value of `metric` in epochs before these.

    Attributes:
        first_batch: `time.time()` when the first training batch was done, or None.
    """

    def __init__(
        self,
        printer: Printer,
        epochs: int | None = None,
        metric: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        best: float = -math.inf,
    ) -> None:
        self.printer, self.epochs, self.metric, self.clock = printer, epochs, metric, clock
        self.first_batch: float | None = None
        self._best = best
        self._bar, self._task = _make_bar(printer), TaskID(0)
        self._label, self._total, self._done = "", 0, 0
        self._begun = self._said = clock()
        self._epoch_seconds = 0.0

    def __enter__(self) -> ConsoleListener:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hide_bar()

    def started(self, phase: str, epoch: int | None, events: int) -> None:
        self._hide_bar()
        self._label = self._name(phase, epoch)
        self._total, self._done = events, 0
        self._begun = self._said = self.clock()

    def advanced(self, events: int, loss: float | None) -> None:
        if self.first_batch is None and loss is not None:
            self.first_batch = time.time()
        self._done += events
        if self.printer.quiet:
            return
        now = self.clock()
        seconds = now - self._begun
        rate = self._done / max(seconds, 1e-9)
        if self._bar is None:
            if now - self._said >= LINE_EVERY:
                self._said = now
                self.printer.say(f"{self._progress(rate)}{_loss(loss)}")
            return
        if not self._bar.live.is_started:
            if seconds < BAR_AFTER:
                return
            self._task = self._bar.add_task(self._label, total=self._total, speed="")
            self._bar.start()
        self._bar.update(
            self._task, completed=self._done, speed=f"{rate:,.0f} events/s{_loss(loss)}"
        )

    def finished(self, phase: str, epoch: int | None, figures: dict[str, float]) -> None:
        self._hide_bar()
        if phase == "train" and epoch is not None:
            self.printer.say(self._epoch_line(epoch, figures))

    def message(self, text: str) -> None:
        self.printer.say(text)

    def _name(self, phase: str, epoch: int | None) -> str:
        if phase == "train" and epoch is not None:
            return f"epoch {epoch + 1}" + (f"/{self.epochs}" if self.epochs else "")
        return {"val": "validation", "test": "test"}.get(phase, phase)

    def _progress(self, rate: float) -> str:
        left = (self._total - self._done) / max(rate, 1e-9)
        return (
            f"{self._label}: {self._done:,} of {self._total:,} events, {rate:,.0f} events/s, "
            f"{left:.0f} s left"
        )

    def _epoch_line(self, epoch: int, figures: dict[str, float]) -> str:
        shown = dict(figures)
        loss, rate = shown.pop("loss"), shown.pop("events/s")
        values = ", ".join(f"{n} {value:.4f}" for n, value in shown.items() if n in SHOWN)
        best = ""
        if self.metric is not None and shown.get(self.metric, self._best) > self._best:
            self._best, best = shown[self.metric], "  best so far"
        return (
            f"{self._name('train', epoch)}: loss {loss:.4f}, validation {values}, "
            f"{rate:,.0f} events/s{best}"
        )

    def _hide_bar(self) -> None:
        if self._bar is not None and self._bar.live.is_started:
            self._bar.stop()
            self._bar.remove_task(self._task)


def _loss(loss: float | None) -> str:
    return "" if loss is None else f", loss {loss:.4f}"


def _make_bar(printer: Printer) -> Progress | None:
    """On the console that text goes to, else on stderr; None where neither is a terminal."""
    if printer.quiet:
        return None
    console = printer.text if printer.text.is_terminal else Console(stderr=True)
    if not console.is_terminal:
        return None
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
    )
