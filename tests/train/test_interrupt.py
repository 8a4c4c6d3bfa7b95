"""Ctrl-C: the batch is finished and saved, and the run goes on in the same bits."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tidegraph.train.interrupt import Interrupt
from tidegraph.train.run_files import RunFiles
from training import StopAt, chatter, fit, outcome

EVENTS = chatter()
FIRST_VALIDATION = 4 + 1  # batches of training before it, and one of it


class Pressed(StopAt):
    """Presses Ctrl-C when the given number of batches are done; `times` that often."""

    def __init__(self, batches: int, times: int = 1) -> None:
        super().__init__(batches)
        self.times = times

    def advanced(self, events: int, loss: float | None) -> None:
        if self.left == 0:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)
        self.left -= 1


@pytest.mark.parametrize("batches", [0, 1, 3, FIRST_VALIDATION, 7, 9])
def test_nothing_that_was_trained_is_lost(tmp_path: Path, batches: int) -> None:
    """Long before the first checkpoint is due."""
    with pytest.raises(KeyboardInterrupt):
        fit(EVENTS, tmp_path / "run", listener=Pressed(batches))
    assert RunFiles(tmp_path / "run").last.exists()
    run = fit(EVENTS, tmp_path / "run", resume=True)
    assert outcome(run) == outcome(fit(EVENTS, tmp_path / "whole"))


def test_a_second_one_does_not_wait(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(EVENTS, tmp_path / "run", listener=Pressed(1, times=2))
    assert not RunFiles(tmp_path / "run").last.exists()


def test_without_a_directory_it_stops(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(EVENTS, listener=Pressed(1))


def test_handlers_are_as_they_were() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt().held():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    mine = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupt().held():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, mine)
