"""Threads sleep instead of spinning while other programs take this process's cores."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
import torch

from tidegraph import _waiting
from tidegraph._waiting import Waiting

GNU = _waiting._gnu_runtime() is not None
needs_gnu = pytest.mark.skipif(not GNU, reason="PyTorch's OpenMP runtime here is not GNU's")


class Machine:
    """A clock and a count of switches, both set by hand; idle teams are only counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.switches = 1000.0, 0
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        monkeypatch.setattr(_waiting.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(_waiting, "_involuntary_switches", lambda: self.switches)
        monkeypatch.setattr(_waiting, "_gnu_runtime", lambda: object())
        monkeypatch.setattr(_waiting, "_IdleTeam", lambda library: self)
        monkeypatch.setattr(_waiting.torch, "get_num_threads", lambda: 2)
        self.dissolved = 0

    def dissolve(self) -> None:
        self.dissolved += 1

    def run(self, waiting: Waiting, *, seconds: float, rate: float, step: float = 0.05) -> None:
        for _ in range(round(seconds / step)):
            self.now += step
            self.switches += round(rate * step)
            waiting.watch()


def test_two_windows_decide_and_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, waiting = Machine(monkeypatch), Waiting()
    machine.run(waiting, seconds=2, rate=30)
    assert not waiting.asleep
    machine.run(waiting, seconds=0.1, rate=400)
    machine.run(waiting, seconds=1, rate=30)
    assert not waiting.asleep, "a moment's work of another program"
    machine.run(waiting, seconds=1, rate=400)
    assert waiting.asleep
    machine.run(waiting, seconds=5, rate=5000)
    assert waiting.asleep
    assert machine.dissolved == 0
    machine.run(waiting, seconds=1, rate=10)
    assert not waiting.asleep
    assert machine.dissolved == 1


def test_steps_longer_than_a_window_are_judged_too(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, waiting = Machine(monkeypatch), Waiting()
    machine.run(waiting, seconds=20, rate=250, step=5.0)
    assert waiting.asleep


def test_one_thread_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, waiting = Machine(monkeypatch), Waiting()
    monkeypatch.setattr(_waiting.torch, "get_num_threads", lambda: 1)
    machine.run(waiting, seconds=5, rate=5000)
    assert not waiting.asleep


def test_another_runtime_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, waiting = Machine(monkeypatch), Waiting()
    monkeypatch.setattr(_waiting, "_gnu_runtime", lambda: None)
    machine.run(waiting, seconds=5, rate=5000)
    assert not waiting.asleep


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_what_the_user_chose_holds(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    machine, waiting = Machine(monkeypatch), Waiting()
    monkeypatch.setenv(name, "3")
    machine.run(waiting, seconds=5, rate=5000)
    assert not waiting.asleep


@needs_gnu
def test_the_idle_team_comes_and_goes_and_changes_no_bit() -> None:
    a = torch.randn(200, 300)
    waiting = Waiting()
    waiting._library = _waiting._gnu_runtime()
    spinning = a @ a.t()
    before = threading.active_count()
    for _ in range(3):
        waiting.sleep()
        assert waiting.asleep
        assert threading.active_count() == before + 1
        assert torch.equal(a @ a.t(), spinning)
        waiting.wake()
        assert not waiting.asleep
        assert threading.active_count() == before


BESIDE = """
    import time, torch
    from tidegraph import _waiting
    torch.set_num_threads(2)
    waiting = _waiting.Waiting()
    waiting._library = _waiting._gnu_runtime()
    a = torch.randn(64, 64)
    def milliseconds():
        started = time.perf_counter()
        for _ in range(400):
            torch.relu_(a.repeat(32, 32))
        return (time.perf_counter() - started) / 400 * 1e3
    waiting.sleep()
    asleep = milliseconds()
    waiting.wake()
    spinning = milliseconds()
    print(asleep, spinning)
"""


@needs_gnu
@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_beside_a_busy_program_sleeping_is_faster() -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    busy = subprocess.Popen(
        [sys.executable, "-c", "while True: pass"],
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores[1:]),
    )
    spinning_threads = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    try:
        found: Any = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(BESIDE)],
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            env=spinning_threads,
            capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip
    finally:
        busy.kill()
        busy.wait()
    asleep, spinning = map(float, found.stdout.split())
    assert spinning > 2 * asleep, (asleep, spinning)
