"""Stage times and progress: what a run tells those who watch it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tidegraph.train.trace import Trace


class StageTimes:
    """Seconds spent per stage of a step, by any thread.

    Args:
        trace: also told about every stage of every batch.

    Attributes:
        seconds: stage -> seconds, added up over threads.
        exposed: stage -> seconds of the critical path: of the thread that made this object. What
            other threads do is hidden, but for the time that this one waits for it.

    >>> times = StageTimes()
    >>> with times("prepare"):
    ...     pass
    >>> list(times.seconds), list(times.exposed)
    (['prepare'], ['prepare'])
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace
        self.seconds: dict[str, float] = {}
        self.exposed: dict[str, float] = {}
        self._lock = threading.Lock()
        self._owner = threading.get_ident()

    @contextmanager
    def __call__(
        self, stage: str, batch: int | None = None, version: int | None = None
    ) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            stopped = time.perf_counter()
            self.add(stage, stopped - started)
            if self.trace is not None:
                self.trace.add(stage, started, stopped, batch=batch, version=version)

    def add(self, stage: str, seconds: float) -> None:
        """Count time that the current thread has spent on a stage."""
        with self._lock:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        if threading.get_ident() == self._owner:
            self.expose(stage, seconds)

    def waited(self, started: float, stopped: float, batch: int | None = None) -> None:
        """Count time, by `time.perf_counter`, that the current thread had nothing to do.

        It is nobody's work: `expose` says whose result was waited for.
        """
        with self._lock:
            self.seconds["wait"] = self.seconds.get("wait", 0.0) + stopped - started
        if self.trace is not None:
            self.trace.add("wait", started, stopped, batch=batch, version=None)

    def expose(self, stage: str, seconds: float) -> None:
        """Count time of the critical path."""
        self.exposed[stage] = self.exposed.get(stage, 0.0) + seconds


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
