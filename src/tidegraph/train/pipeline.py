"""`Ahead`: work done ahead by threads, delivered in order; `Pipeline`: batches made that way.

A pipeline turns batch numbers into prepared batches, and with a loader into batches whose data is
on the device: any number of threads prepare (a batch can be prepared alone), one thread moves what
they deliver. What comes out is the same as without threads, and so is what goes wrong: an error is
raised where its batch was due.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, TypeVar

import numba
import torch

from tidegraph.train.stages import StageTimes

_END: Any = object()
_S = TypeVar("_S")
_T = TypeVar("_T")


@dataclass
class _Result(Generic[_T]):
    """What a thread made of one item, or why not; `pulled` is when it waited for the item."""

    value: _T | None = None
    error: BaseException | None = None
    pulled: tuple[float, float] = (0.0, 0.0)


class Ahead(Generic[_S, _T]):
    """Results of `make(item)` in the order of the items, made by threads before they are asked for.

    At most `depth` results are made or in the making beyond the one that was delivered last, so a
    slow consumer holds the threads up. An error, of `make` or of the items' iterator, is raised in
    its place in the order; nothing comes after it.

    Args:
        items: asked for one at a time, by whichever thread is free.
        make: called by the threads.
        name: of the threads.
        threads: how many.
        depth: results ahead.
        within: made by each thread, and held while it works.

    >>> with Ahead(range(5), lambda x: x * x, name="square", threads=2, depth=3) as squares:
    ...     list(squares)
    [0, 1, 4, 9, 16]
    """

    def __init__(
        self,
        items: Iterable[_S],
        make: Callable[[_S], _T],
        *,
        name: str,
        threads: int,
        depth: int,
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._items, self._make, self._depth, self._within = iter(items), make, depth, within
        self._changed = threading.Condition()
        self._next_item = threading.Lock()
        self._made: dict[int, _Result[_T]] = {}
        self._taken = self._delivered = 0
        self._end: int | None = None  # how many results there will be, once that is known
        self._stopped = False
        self.pulled = (0.0, 0.0)
        self._threads = [
            threading.Thread(target=self._run, name=f"{name} {n}", daemon=True)
            for n in range(1, threads + 1)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Ahead[_S, _T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Ahead[_S, _T]:
        return self

    def __next__(self) -> _T:
        with self._changed:
            place = self._delivered
            self._changed.wait_for(
                lambda: self._stopped or place in self._made or place == self._end
            )
            if self._stopped or place not in self._made:
                raise StopIteration
            result = self._made.pop(place)
            self._delivered += 1
            self._changed.notify_all()
        self.pulled = result.pulled
        if result.error is not None:
            self.stop()
            raise result.error
        return result.value  # type: ignore[return-value]

    def stop(self) -> None:
        """Begin nothing new; whoever waits for a result is told that there are no more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop, and wait for what was begun. Twice is fine."""
        self.stop()
        for thread in self._threads:
            thread.join()
        self._made.clear()

    # -- in the threads

    def _run(self) -> None:
        with self._within():
            while self._work():
                pass

    def _work(self) -> bool:
        """Make one result; false when there is nothing left to do."""
        with self._next_item:  # one at a time, so that places follow the order of the items
            place = self._taken
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        self._stopped
                        or self._end is not None
                        or place < self._delivered + self._depth
                    )
                )
                if self._stopped or self._end is not None:
                    return False
            result: _Result[_T] = _Result()
            started = time.perf_counter()
            try:
                item = next(self._items)
            except StopIteration:
                return self._finish(place)
            except BaseException as error:
                result.error = error
            self._taken += 1
            result.pulled = started, time.perf_counter()
        if result.error is None:
            try:
                result.value = self._make(item)
            except BaseException as error:
                result.error = error
        return self._deliver(place, result)

    def _finish(self, place: int) -> bool:
        with self._changed:
            self._end = place if self._end is None else min(self._end, place)
            self._changed.notify_all()
        return False

    def _deliver(self, place: int, result: _Result[_T]) -> bool:
        with self._changed:
            self._made[place] = result
            if result.error is not None:
                self._end = place + 1 if self._end is None else min(self._end, place + 1)
            self._changed.notify_all()
        return result.error is None


@dataclass(frozen=True)
class PipelineSettings:
    """How far and by whom batches are made ahead.

    Attributes:
        threads: that prepare; 0: whoever asks for a batch prepares it.
        depth: prepared batches that may wait.
        kernel_threads: CPU threads of one preparation.
    """

    threads: int = 0
    depth: int = 2
    kernel_threads: int = 1


def choose_pipeline(
    device: torch.device, threads: int | None = None, depth: int | None = None
) -> PipelineSettings:
    """The pipeline that suits a device on this machine.

    On a GPU the processors have little else to do, so they prepare. On a CPU a thread ahead only
    helps where a processor would be idle otherwise: with two processors, both busy with the step,
    one that prepares took as long as preparing in turn.

    Args:
        device: where steps run.
        threads, depth: as the settings have them; None leaves the choice.
    """
    if threads is None:
        free = _processors() - (torch.get_num_threads() if device.type == "cpu" else 1)
        threads = max(0, min(4 if device.type != "cpu" else 1, free))
        if device.type != "cpu":
            threads = max(1, threads)
    return PipelineSettings(threads, depth if depth is not None else threads + 1)


def _processors() -> int:
    """Those this process may use."""
    with suppress(AttributeError):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass
class Pipeline(Generic[_S, _T]):
    """Batches by number, prepared ahead and delivered in order; closed when its `with` ends.

    Args:
        numbers: of the batches.
        prepare: makes a prepared batch; called by several threads at once.
        settings: how many.
        times: told how long everything took, and how much of it was waited for.
        ahead: turns the sequence of prepared batches into another one, such as `look_ahead`.
        load: takes a prepared batch further, in a thread of its own and in order; None: nothing.
        load_within: held by that thread.
        wake: called after the pipeline was stopped, so that a waiting `load` notices.
        stopped: whether it was.

    Raises:
        Whatever `prepare`, `ahead` or `load` raise, in the place of the batch.

    >>> with Pipeline(range(3), str, PipelineSettings(threads=2)) as batches:
    ...     list(batches)
    ['0', '1', '2']
    """

    numbers: Iterable[int]
    prepare: Callable[[int], _S]
    settings: PipelineSettings = PipelineSettings()
    times: StageTimes = field(default_factory=StageTimes)
    ahead: Callable[[Iterator[_S]], Iterator[_S]] = iter
    load: Callable[[_S], _T] | None = None
    load_within: Callable[[], AbstractContextManager[Any]] = nullcontext
    wake: Callable[[], None] = lambda: None
    stopped: bool = False

    def __post_init__(self) -> None:
        self._stages: list[Ahead[Any, Any]] = []
        self._sources: list[str] = []

    def __enter__(self) -> Iterator[Any]:
        settings = self.settings
        batches: Iterator[Any]
        if settings.threads == 0:
            batches = self.ahead(map(self._prepare, self.numbers))
            return batches if self.load is None else map(self.load, batches)
        batches = self._begin(
            "prepare", self.numbers, self._prepare, settings.threads, self._preparing
        )
        if self.load is None:
            return self.ahead(self._waited_for(batches, ("prepare",)))
        batches = self._begin("load", self.ahead(batches), self.load, 1, self.load_within)
        return self._waited_for(batches, ("prepare", "copy"))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stopped = True
        for stage in self._stages:
            stage.stop()
        self.wake()
        for stage in self._stages:
            stage.close()

    def _begin(
        self,
        name: str,
        items: Iterable[Any],
        make: Callable[[Any], Any],
        threads: int,
        within: Callable[[], AbstractContextManager[Any]],
    ) -> Iterator[Any]:
        stage = Ahead(
            items, make, name=name, threads=threads, depth=self.settings.depth, within=within
        )
        self._stages.append(stage)
        return stage

    def _preparing(self) -> AbstractContextManager[Any]:
        # Set per thread. The step's own threads wait for each other at the end of every parallel
        # loop: a preparation that took them all would make each of those waits longer.
        numba.set_num_threads(min(self.settings.kernel_threads, numba.get_num_threads()))
        return nullcontext()

    def _prepare(self, number: int) -> _S:
        with about_batch("preparing", number), self.times("prepare", number):
            return self.prepare(number)

    def _waited_for(self, batches: Iterator[Any], stages: tuple[str, ...]) -> Iterator[Any]:
        """The same, with the time that is waited for each put down to the stages behind it."""
        last = self._stages[-1]
        while True:
            started = time.perf_counter()
            batch = next(batches, _END)
            stopped = time.perf_counter()
            self.times.waited(started, stopped, getattr(batch, "number", None))
            first = stopped - started
            if len(stages) > 1:  # of it, the last stage waited for the one before it this long
                begun, ended = last.pulled
                first = max(0.0, min(stopped, ended) - max(started, begun))
                self.times.expose(stages[1], stopped - started - first)
            self.times.expose(stages[0], first)
            if batch is _END:
                return
            yield batch


class about_batch(AbstractContextManager[None]):  # noqa: N801  (used like a function)
    """Errors within say which batch, and what was being done with it.

    >>> try:
    ...     with about_batch("executing", 7):
    ...         raise ValueError("no")
    ... except ValueError as error:
    ...     error.__notes__
    ['while executing batch 7']
    """

    def __init__(self, doing: str, number: int) -> None:
        self.doing, self.number = doing, number

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            error.add_note(f"while {self.doing} batch {self.number}")
