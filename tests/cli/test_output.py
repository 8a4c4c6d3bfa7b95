"""Where columns are written: links lead somewhere, and what is no file stays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from command import cli

Trained = tuple[Path, dict[str, Any]]


def test_a_link_stays_and_what_it_leads_to_is_written(trained: Trained, here: Path) -> None:
    Path("far").mkdir()
    Path("far/nodes.csv").write_text("old")
    Path("link.csv").symlink_to("far/nodes.csv")
    assert cli("embed", trained[0], "--out", "link.csv").code == 0
    assert Path("link.csv").is_symlink()
    assert len(Path("far/nodes.csv").read_text().splitlines()) == 16
    assert sorted(os.listdir("far")) == ["nodes.csv"]


def test_a_link_to_nothing_makes_the_file(trained: Trained, here: Path) -> None:
    Path("link.csv").symlink_to("new.csv")
    assert cli("embed", trained[0], "--out", "link.csv").code == 0
    assert Path("link.csv").is_symlink()
    assert len(Path("new.csv").read_text().splitlines()) == 16


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_what_is_no_file_stays(trained: Trained, here: Path, kind: str) -> None:
    if kind == "directory":
        Path("x.csv").mkdir()
    else:
        os.mkfifo("x.csv")
    result = cli("embed", trained[0], "--out", "x.csv")
    assert result.code == 2
    assert "x.csv: it is no ordinary file. Nothing was written" in result.err
    assert os.listdir(here) == ["x.csv"]
