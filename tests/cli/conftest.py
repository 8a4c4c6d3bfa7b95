"""Fixtures of the command line's tests: one small table, one small finished run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command import COLUMNS, FEATURES, SMALL, cli, write_table


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stored copies of tables go where the tests end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEGRAPH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "trips.csv")


@pytest.fixture(scope="session")
def trained(table: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of two features (never changed by a test), and the object that training printed."""
    out = tmp_path_factory.mktemp("runs")
    result = cli("train", table, *COLUMNS, *FEATURES, "--label", "is_fraud", "--time-unit", "s",
                 *SMALL, "--out", out, "--name", "base", "--json")  # fmt: skip
    assert result.code == 0, result.err
    return out / "base", result.last


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
