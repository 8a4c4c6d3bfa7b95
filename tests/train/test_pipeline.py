"""Threads that prepare ahead change when things happen, not what: order, bits, errors, the end."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from delays import delayed, failing
from real import first_events
from tidegraph.batches import History, Preparer
from tidegraph.errors import SettingError, TidegraphError
from tidegraph.events import Events
from tidegraph.state import NodeState
from tidegraph.train import EagerExecutor, TrainSettings
from tidegraph.train.loaded import CopyStream
from tidegraph.train.pipeline import Ahead, Pipeline, PipelineSettings, choose_pipeline
from tidegraph.train.stages import StageTimes
from training import Diary, StopAt, Stopped, chatter, fit, outcome, small_tgn

EVENTS = chatter()


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """Whatever happens in a test, the threads of its pipelines are gone at its end."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


# ---------------------------------------------------------------- order


@given(
    count=st.integers(0, 30),
    threads=st.integers(1, 4),
    depth=st.integers(1, 8),
    slow=st.sets(st.integers(0, 30)),
)
@settings(max_examples=60, deadline=None)
def test_results_come_in_order_and_no_more_than_depth_are_ahead(
    count: int, threads: int, depth: int, slow: set[int]
) -> None:
    begun, delivered, most = itertools.count(1), 0, 0

    def make(item: int) -> int:
        nonlocal most
        most = max(most, next(begun) - delivered)
        if item in slow:
            time.sleep(0.001)
        return item * item

    with Ahead(range(count), make, name="test", threads=threads, depth=depth) as results:
        for place, result in enumerate(results):
            assert result == place * place
            delivered += 1
    assert delivered == count
    assert most <= depth + 1  # the one that is being delivered is counted twice at most


def test_threads_overtake_each_other() -> None:
    """Otherwise the delays in these tests would show nothing."""
    finished = []
    gate = threading.Event()

    def make(item: int) -> int:
        if item == 0:
            gate.wait()
        finished.append(item)
        if item == 2:
            gate.set()
        return item

    with Ahead(range(4), make, name="test", threads=2, depth=4) as results:
        assert list(results) == [0, 1, 2, 3]
    assert finished.index(0) > finished.index(2)


# ---------------------------------------------------------------- the same bits

QUICK = [(1, 1), (8, 1), (2, 2), (1, 4), (8, 4), (3, 3)]  # (queue depth, threads)


def trained(events: Events, **settings: Any) -> tuple[list[float], dict[str, Any]]:
    """Losses batch by batch, weights, state, metrics."""
    diary = Diary()
    run = fit(events, model=small_tgn(events), listener=diary, **settings)
    return diary.losses, outcome(run)


@pytest.mark.parametrize(("depth", "threads"), QUICK)
def test_training_is_that_of_the_loop(depth: int, threads: int) -> None:
    with delayed(0.005, seed=10 * depth + threads):
        found = trained(EVENTS, prepare_threads=threads, queue_depth=depth)
    assert found == trained(EVENTS, prepare_threads=0)


@pytest.mark.parametrize("name", ["wikipedia", "flights"])
def test_training_on_real_data_is_that_of_the_loop(name: str) -> None:
    check_grid(name, QUICK[::2], count=2400)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wikipedia", "flights"])
def test_training_on_real_data_at_every_depth_and_number_of_threads(name: str) -> None:
    check_grid(name, list(itertools.product(range(1, 9), range(1, 5))), count=4000)


def check_grid(name: str, grid: list[tuple[int, int]], count: int) -> None:
    events = first_events(name, count)
    common: dict[str, Any] = {"batch_size": 100, "epochs": 1, "candidates": 0}
    expected = trained(events, prepare_threads=0, **common)
    for depth, threads in grid:
        with delayed(0.02, seed=10 * depth + threads):
            found = trained(events, prepare_threads=threads, queue_depth=depth, **common)
        assert found == expected, (depth, threads)


@pytest.mark.parametrize(
    "settings",
    [
        {"state": "host", "cache": "next-use", "cache_budget": 0.3, "cache_window": 3},
        {"cache": "lru", "cache_budget": 0.5},
        {"cache": "frequency", "cache_budget": 0.5, "state": "host"},
        {"feature_type": "int8"},
    ],
)
def test_caches_and_types_are_the_same_behind_threads(settings: dict[str, Any]) -> None:
    with delayed(0.003):
        assert trained(EVENTS, prepare_threads=2, **settings) == trained(EVENTS, **settings)


@pytest.mark.parametrize("kernel_threads", [1, 2])
def test_kernels_of_several_threads_at_once_give_the_same_batches(kernel_threads: int) -> None:
    """Large batches, so that every parallel loop is divided; four preparations at a time, while
    this thread runs parallel kernels of its own."""
    stream = tiny.random_stream(0, 6000, nodes=900)
    prep = tiny.preparer(stream, History(neighbors=(6, 4), strategy="uniform"), 600)
    numbers = list(range(len(prep.plan))) * 3

    def prepare(number: int) -> Any:
        return prep.prepare(number, tiny.negatives(prep, number))

    expected = [prepare(number) for number in range(len(prep.plan))]
    found = PipelineSettings(threads=4, depth=5, kernel_threads=kernel_threads)
    with Pipeline(numbers, prepare, found) as batches:
        for number, batch in zip(numbers, batches, strict=True):
            tiny.assert_equal_batches(batch, expected[number])
            tiny.assert_equal_batches(prepare(number), expected[number])


def test_each_thread_prepares_with_one_kernel_thread_of_its_own() -> None:
    """And this one's number stays."""
    before, seen = numba.get_num_threads(), []
    with Pipeline(
        range(6), lambda n: seen.append(numba.get_num_threads()), PipelineSettings(2)
    ) as p:
        list(p)
    assert seen == [1] * 6
    assert numba.get_num_threads() == before


# ---------------------------------------------------------------- errors


def prepare_number(number: int) -> int:
    return number


def drained(pipeline: Pipeline[int, int]) -> tuple[list[int], Exception | None]:
    """What came out of it, and the error that ended it."""
    delivered = []
    try:
        with pipeline as batches:
            for batch in batches:
                delivered.append(batch)  # noqa: PERF402  (kept also where the next one raises)
    except Exception as error:
        return delivered, error
    return delivered, None


@pytest.mark.parametrize("threads", [0, 1, 4])
@pytest.mark.parametrize("at", [0, 3, 9])
def test_an_error_of_preparation_comes_in_its_place(threads: int, at: int) -> None:
    """With its batch, after all batches before it, and nothing after it."""
    broken = failing(prepare_number, at, SettingError("no luck"))
    delivered, error = drained(Pipeline(range(10), broken, PipelineSettings(threads, 3)))
    assert delivered == list(range(at))
    assert isinstance(error, SettingError)
    assert str(error) == "no luck"
    assert error.__notes__ == [f"while preparing batch {at}"]


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("where", ["ahead", "load"])
def test_an_error_of_a_later_stage_comes_in_its_place(threads: int, where: str) -> None:
    def ahead(numbers: Iterator[int]) -> Iterator[int]:
        for number in numbers:
            if where == "ahead" and number == 4:
                raise ValueError("stop at 4")
            yield number

    def load(number: int) -> int:
        if where == "load" and number == 4:
            raise ValueError("stop at 4")
        return number

    delivered, error = drained(
        Pipeline(range(10), prepare_number, PipelineSettings(threads, 3), ahead=ahead, load=load)
    )
    assert delivered == [0, 1, 2, 3]
    assert str(error) == "stop at 4"


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("staleness", [0, 2])
def test_an_error_of_a_step_names_its_batch(
    monkeypatch: pytest.MonkeyPatch, threads: int, staleness: int
) -> None:
    """In the middle of training, with batches prepared and read ahead."""
    real = NodeState.write

    def write(state: NodeState, batch: Any, updated_UD: Any) -> None:
        if batch.number == 5:
            raise TidegraphError("cannot write")
        real(state, batch, updated_UD)

    monkeypatch.setattr(NodeState, "write", write)
    with pytest.raises(TidegraphError, match="cannot write") as found:
        fit(EVENTS, batch_size=8, prepare_threads=threads, staleness=staleness)
    assert found.value.__notes__ == ["while training on batch 5"]


@pytest.mark.parametrize("staleness", [0, 2])
def test_an_error_of_preparation_ends_training(
    monkeypatch: pytest.MonkeyPatch, staleness: int
) -> None:
    real = Preparer.prepare

    def prepare(self: Preparer, number: int, *args: Any, **kwargs: Any) -> Any:
        if number == 6:
            raise MemoryError
        return real(self, number, *args, **kwargs)

    monkeypatch.setattr(Preparer, "prepare", prepare)
    with pytest.raises(MemoryError) as found:
        fit(EVENTS, batch_size=8, prepare_threads=3, staleness=staleness)
    assert found.value.__notes__ == ["while preparing batch 6"]


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("batches", [0, 2, 5])
def test_a_run_that_is_stopped_leaves_no_threads_and_resumes(
    tmp_path: Path, batches: int, staleness: int
) -> None:
    options: dict[str, Any] = {
        "prepare_threads": 3, "queue_depth": 8, "checkpoint_batches": 1, "staleness": staleness,
    }  # fmt: skip
    before = threading.active_count()
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path, listener=StopAt(batches), **options)
    assert threading.active_count() == before
    assert outcome(fit(EVENTS, tmp_path, resume=True, **options)) == outcome(
        fit(EVENTS, staleness=staleness)
    )


@pytest.mark.parametrize("staleness", [0, 2])
def test_control_c_while_training_finishes_the_batch_and_saves(
    tmp_path: Path, staleness: int
) -> None:
    class Pressed(StopAt):
        def advanced(self, events: int, loss: float | None) -> None:
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGINT)
            self.left -= 1

    options: dict[str, Any] = {"prepare_threads": 2, "queue_depth": 4, "staleness": staleness}
    with pytest.raises(KeyboardInterrupt):
        fit(EVENTS, tmp_path, listener=Pressed(1), **options)
    assert outcome(fit(EVENTS, tmp_path, resume=True, **options)) == outcome(
        fit(EVENTS, staleness=staleness)
    )


def test_threads_may_change_when_a_run_goes_on(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path, listener=StopAt(8), prepare_threads=4, checkpoint_batches=1)
    run = fit(EVENTS, tmp_path, resume=True, prepare_threads=0, checkpoint_batches=1)
    assert outcome(run) == outcome(fit(EVENTS))


def test_leaving_early_leaves_no_threads() -> None:
    with Pipeline(range(1000), prepare_number, PipelineSettings(4, 8)) as batches:
        assert next(batches) == 0
    assert list(batches) == []


def test_control_c_while_waiting_leaves_no_threads() -> None:
    """The main thread waits for a batch that takes for ever (until the pipeline is stopped)."""
    waiting, over = threading.Event(), threading.Event()

    def prepare(number: int) -> int:
        waiting.set()
        assert over.wait(30)
        return number

    def press() -> None:
        waiting.wait()
        os.kill(os.getpid(), signal.SIGINT)

    pipeline: Pipeline[int, int] = Pipeline(
        range(5), prepare, PipelineSettings(2), wake=over.set, load=prepare_number
    )
    presser = threading.Thread(target=press)
    with pytest.raises(KeyboardInterrupt), pipeline as batches:  # noqa: PT012
        presser.start()
        list(batches)
    presser.join()


# ---------------------------------------------------------------- times and choices


def test_only_what_is_waited_for_is_exposed() -> None:
    """Two batches: the first is waited for, the second is ready when it is asked for."""
    times, made = StageTimes(), [threading.Event(), threading.Event()]

    def prepare(number: int) -> int:
        time.sleep(0.02)
        made[number].set()
        return number

    with Pipeline(range(2), prepare, PipelineSettings(1, 2), times) as batches:
        assert next(batches) == 0
        first = times.exposed["prepare"]
        made[1].wait()
        time.sleep(0.005)
        assert next(batches) == 1
    assert 0.01 < first <= times.seconds["wait"]
    assert times.exposed["prepare"] - first < 0.01
    assert times.seconds["prepare"] >= 0.04


def test_waiting_is_put_down_to_the_stage_that_took_long() -> None:
    """Preparation is quick, moving slow: it is moving that is exposed."""
    times = StageTimes()

    def load(number: int) -> int:
        time.sleep(0.01)
        return number

    with Pipeline(range(8), prepare_number, PipelineSettings(1, 2), times, load=load) as batches:
        assert list(batches) == list(range(8))
    assert times.exposed["copy"] > 0.05
    assert times.exposed["prepare"] < 0.02


def test_the_critical_path_of_a_run_adds_up(tmp_path: Path) -> None:
    """With and without threads: exposed stages are the loop's time, but for its own overhead."""
    events = first_events("flights", 4000)
    for threads in (0, 2):
        run = fit(
            events, model=small_tgn(events), batch_size=100, epochs=1, candidates=0,
            prepare_threads=threads,
        )  # fmt: skip
        record = run.records[0]
        assert set(record.exposed) >= {"prepare", "read", "forward", "backward", "write"}
        assert sum(record.exposed.values()) <= record.seconds
        assert ("wait" in record.stages) == (threads > 0)
        assert "wait" not in record.exposed


@pytest.mark.parametrize(
    ("processors", "step", "expected"), [(2, 2, 0), (2, 1, 1), (8, 4, 1), (4, 8, 0), (1, 1, 0)]
)
def test_a_cpu_prepares_ahead_where_a_processor_would_be_idle(
    monkeypatch: pytest.MonkeyPatch, processors: int, step: int, expected: int
) -> None:
    monkeypatch.setattr("tidegraph.train.pipeline._processors", lambda: processors)
    monkeypatch.setattr(torch, "get_num_threads", lambda: step)
    found = choose_pipeline(torch.device("cpu"))
    assert (found.threads, found.depth) == (expected, expected + 1)
    for number, threads in ((1, 1), (2, 1), (4, 3), (64, 4)):
        monkeypatch.setattr("tidegraph.train.pipeline._processors", lambda n=number: n)
        assert choose_pipeline(torch.device("cuda")).threads == threads


def test_what_is_asked_for_is_what_there_is() -> None:
    assert choose_pipeline(torch.device("cpu"), 3, 7) == PipelineSettings(3, 7)
    assert choose_pipeline(torch.device("cuda"), 0).threads == 0
    for wrong in ({"prepare_threads": -1}, {"queue_depth": 0}, {"staleness": -1}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            TrainSettings.of(wrong)


def test_a_batch_that_was_loaded_ahead_trains_as_it_is() -> None:
    """The executor takes either; the meta device stands for a GPU."""
    stream = tiny.random_stream(0, 24, nodes=7)
    prep = tiny.preparer(stream, History(neighbors=(3,)), 6)
    model = small_tgn(stream.events())
    batch = prep.prepare(0, tiny.negatives(prep, 0))
    for device in ("cpu", "meta"):
        state = NodeState(7, model.memory_width).to(device)
        executor = EagerExecutor(model, state)
        loaded = executor.load(batch, stream=CopyStream(torch.device("cpu")), read=True)
        assert loaded.vectors is not None
        assert (loaded.number, loaded.version, loaded.size) == (0, 0, 6)
        assert loaded.batch.root_R.device.type == loaded.vectors[0].device.type == device
        assert loaded.host is batch
    assert np.array_equal(loaded.host.node_U.numpy(), batch.node_U.numpy())
