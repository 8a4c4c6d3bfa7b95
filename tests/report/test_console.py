"""Progress: plain lines without a terminal, a bar after two seconds on one, nothing when quiet."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from tidegraph.report.console import ConsoleListener, Printer


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def listener_on(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[ConsoleListener, io.StringIO, Clock]:
    text, clock = io.StringIO(), Clock()
    printer = Printer(**options)
    printer.text = printer.results = Console(file=text, force_terminal=terminal, width=120)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    return ConsoleListener(printer, epochs=3, metric="AP", clock=clock), text, clock


def walk(listener: ConsoleListener, clock: Clock, batches: int, seconds: float) -> None:
    listener.started("train", 0, 100 * batches)
    for _ in range(batches):
        clock.now += seconds
        listener.advanced(100, 0.5)
    listener.finished("train", 0, {"loss": 0.5, "events/s": 40.0, "AP": 0.9, "AUC": 0.8})


def test_plain_lines_about_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, text, clock = listener_on(False, monkeypatch)
    walk(listener, clock, batches=10, seconds=2.5)
    lines = text.getvalue().splitlines()
    assert lines[0] == "epoch 1/3: 400 of 1,000 events, 40 events/s, 15 s left, loss 0.5000"
    assert lines[1].startswith("epoch 1/3: 800 of 1,000 events")
    assert lines[2].startswith(
        "epoch 1/3: loss 0.5000, validation AP 0.9000, AUC 0.8000, 40 events"
    )
    assert len(lines) == 3


def test_no_bar_for_less_than_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, text, clock = listener_on(True, monkeypatch)
    walk(listener, clock, batches=10, seconds=0.1)
    assert "━" not in text.getvalue()
    assert len(text.getvalue().splitlines()) == 1


def test_a_bar_after_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, text, clock = listener_on(True, monkeypatch)
    walk(listener, clock, batches=10, seconds=1.0)
    assert "━" in text.getvalue()
    assert "events/s, loss 0.5000" in text.getvalue()
    assert "epoch 1/3" in text.getvalue()


def test_quiet_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, text, clock = listener_on(True, monkeypatch, quiet=True)
    walk(listener, clock, batches=10, seconds=5.0)
    assert text.getvalue() == ""


def test_the_best_epoch_so_far_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, text, _ = listener_on(False, monkeypatch)
    for epoch, value in enumerate((0.7, 0.6, 0.8)):
        listener.started("train", epoch, 100)
        listener.finished("train", epoch, {"loss": 0.5, "events/s": 40.0, "AP": value})
    marked = [line.endswith("best so far") for line in text.getvalue().splitlines()]
    assert marked == [True, False, True]


def test_only_training_counts_as_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, _, _ = listener_on(False, monkeypatch)
    listener.advanced(10, None)
    assert listener.first_batch is None
    listener.advanced(10, 0.3)
    assert listener.first_batch is not None


def test_brackets_in_text_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    Printer().say("column [bold] and [/]")
    assert capsys.readouterr().out == "column [bold] and [/]\n"


def test_an_epoch_after_a_resume_is_measured_by_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for before, marked in ((0.95, False), (0.85, True)):
        listener, text, clock = listener_on(False, monkeypatch)
        walk(ConsoleListener(listener.printer, 3, "AP", clock, best=before), clock, 1, seconds=0.1)
        assert ("best so far" in text.getvalue()) == marked
