"""Compiling once, said once, whatever the place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegraph as tg
from tidegraph.cli import warm_up as module
from tidegraph.cli.warm_up import warm_up
from tidegraph.report.console import Printer
from tidegraph.train import TrainSettings


def events(width: int = 2) -> tg.Events:
    place = np.arange(30)
    return tg.Events.from_arrays(place % 3, 3 + place % 2, place, features=np.ones((30, width)))


def settings() -> TrainSettings:
    return TrainSettings.of({"candidates": 2})


SMALL = {"memory": 4, "time": 4, "embedding": 4, "neighbors": 2}


@pytest.fixture(autouse=True)
def _markers_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels stay where they are, so that nothing is compiled; only markers are new."""
    monkeypatch.setattr(module, "CACHE_DIRECTORY", tmp_path)


class AtOnce:
    """A timer that does not wait."""

    def __init__(self, seconds: float, call: Any, arguments: list[Any]) -> None:
        self.call, self.arguments = call, arguments

    def start(self) -> None:
        self.call(*self.arguments)

    def cancel(self) -> None:
        pass

    join = cancel


def test_it_is_said_once_where_it_takes_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.threading, "Timer", AtOnce)
    assert warm_up(events(), "tgn", SMALL, settings(), False, Printer()) > 0
    said = capsys.readouterr()
    assert said.err.startswith("Compiling kernels for this machine (once, about")
    assert said.out == ""
    assert warm_up(events(), "tgn", SMALL, settings(), False, Printer()) == 0
    assert capsys.readouterr().err == ""


def test_another_kind_of_data_is_compiled_for(capsys: pytest.CaptureFixture[str]) -> None:
    warm_up(events(), "tgn", SMALL, settings(), False, Printer())
    assert warm_up(events(width=5), "tgn", SMALL, settings(), False, Printer()) == 0
    assert warm_up(events(), "tgn", SMALL, settings(), True, Printer()) > 0


def test_sources_that_were_installed_anew_are_compiled_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    warm_up(events(), "tgn", SMALL, settings(), False, Printer(quiet=True))
    monkeypatch.setattr(module, "_sources", lambda: [("elsewhere", 1)])
    assert warm_up(events(), "tgn", SMALL, settings(), False, Printer(quiet=True)) > 0
    assert capsys.readouterr().err == ""


def test_markers_that_cannot_be_written_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CACHE_DIRECTORY", tmp_path / "not there")
    assert warm_up(events(), "tgn", SMALL, settings(), False, Printer(quiet=True)) > 0


def test_nothing_is_written_into_the_package(tmp_path: Path) -> None:
    """A copy of the package in a directory that must not change: kernels go to the cache."""
    package = tmp_path / "site" / "tidegraph"
    shutil.copytree(Path(tg.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    before = sorted(path.relative_to(package) for path in package.rglob("*"))
    for path in [package, *package.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    code = (
        "import tidegraph, numpy as np; from tidegraph.models.popularity import Popularity;"
        "assert 'site' in tidegraph.__file__;"
        "Popularity().update(np.int32([0]), np.int32([1]), np.int64([5]))"
    )
    environment = {
        **os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": str(tmp_path / "kernels"),
    }  # fmt: skip
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert sorted(path.relative_to(package) for path in package.rglob("*")) == before
    assert list((tmp_path / "kernels").rglob("*.nbi"))
