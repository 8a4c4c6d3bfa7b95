"""Stage times and progress: what a run tells those who watch it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StageTimes:
    """Seconds spent per stage of a step.

    >>> times = StageTimes()
    >>> with times("prepare"):
    ...     pass
    >>> list(times.seconds)
    ['prepare']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - started
            self.seconds[stage] = self.seconds.get(stage, 0.0) + elapsed


class Listener:
    """Told what happens during training and evaluation; every method may be left as it is."""

    def started(self, phase: str, epoch: int | None, events: int) -> None:
        """A pass over `events` events begins; `epoch` is None outside training."""

    def advanced(self, events: int, loss: float | None) -> None:
        """`events` more events are done; `loss` is the mean of the pass so far."""

    def finished(self, phase: str, epoch: int | None, figures: dict[str, float]) -> None:
        """The pass is over, with its figures (loss, events/s, metrics)."""

    def message(self, text: str) -> None:
        """Something worth a line."""
