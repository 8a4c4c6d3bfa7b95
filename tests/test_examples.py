"""Every shipped example, and what the README shows, run as written on a small stream."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest

import tidegraph as tg
from command import cli

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The README's code in one language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


@pytest.fixture
def trips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tables that the README speaks of: 100 trips, tomorrow's 20, two pairs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEGRAPH_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(1)
    rows = [
        f"u{rng.integers(8)},i{rng.integers(5)},{second},{rng.random():.3f},{second % 7}"
        for second in range(120)
    ]
    for name, part in (("trips", rows[:100]), ("tomorrow", rows[100:])):
        Path(f"{name}.csv").write_text("\n".join(["user,item,ts,f0,f1", *part]) + "\n")
    Path("pairs.csv").write_text("user,item\nu1,i2\nu3,i2\n")
    return tmp_path


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                 capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if path.name in ("flights.py", "custom_model.py"):
        whole = tg.load_dataset("synthetic:wikipedia:0.01")
        small = tg.Events.from_arrays(
            whole.source[:100], whole.target[:100], whole.time[:100],
            num_nodes=whole.schema.num_nodes, num_sources=whole.schema.num_sources, bipartite=True,
        )  # fmt: skip
        monkeypatch.setattr(tg, "load_dataset", lambda name: small, raising=False)
    monkeypatch.setattr("sys.argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert "random destination" in capsys.readouterr().out


def test_the_readmes_commands_on_an_own_table(trips: Path) -> None:
    commands = [
        line
        for block in blocks("sh")
        for line in block.splitlines()
        if line.startswith("tidegraph")
    ]
    assert len(commands) >= 6
    for line in commands:
        result = cli(*shlex.split(line)[1:])
        assert result.code == 0, f"{line}\n{result.err}"
    assert (trips / "scores.csv").read_text().count("\n") == 21
    assert (trips / "nodes.parquet").exists()


def test_the_readmes_python(trips: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})
    assert "1 random destination per positive" in capsys.readouterr().out
    assert (trips / "runs" / "python" / "config.yaml").exists()


def test_the_set_up_commands_are_what_ci_runs() -> None:
    """Each is one line; CI installs the same way and ends with the same test command."""
    ci = (ROOT / ".ci" / "run").read_text()
    set_up = [line for block in blocks("sh") for line in block.splitlines() if "venv" in line]
    assert len(set_up) == 2
    assert set_up[0].endswith(".venv/bin/tidegraph train")
    assert set_up[1].endswith("&& .venv/bin/pytest")
    assert "pip install -c constraints.txt" in set_up[1]
    assert 'pip" install -q -c constraints.txt ".[dev]"' in ci
    assert ci.rstrip().endswith('"$venv/bin/pytest"')


def test_every_dependency_is_pinned() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[^A-Za-z0-9._-]", one)[0].lower() for one in asked}
    # Triton's version is PyTorch's choice on CUDA; an exact one here could contradict it.
    assert names - {"triton"} <= pinned
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().split()
