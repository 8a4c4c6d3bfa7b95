"""The GPU script runs whole on a CPU, isolates what fails, and says where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPT = BENCHMARKS / "gpu.py"


def test_without_cuda_it_says_so_and_exits_with_2() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert done.stdout == ""


def test_on_a_cpu_every_section_runs_and_stands_alone(tmp_path: Path) -> None:
    """Everything but the compiler's section passes; from source, without the package's path."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    path = tmp_path / "gpu.json"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--device", "cpu", "--quick", "--json", path],
        env={**environment, "PATH": "", "CXX": ""},  # no compiler: that section fails alone
        capture_output=True,
        text=True,
    )
    found = json.loads(path.read_text())
    assert done.returncode == 1, done.stderr
    assert list(found["problems"]) == ["compile"]
    assert "C++ compiler" in found["problems"]["compile"]
    assert not [check for check in found["checks"] if not check["passed"]]
    names = " ".join(check["name"] for check in found["checks"])
    for part in ("attention", "memory gru", "gather_rows", "time_code", "masks", "cudagraph"):
        assert part in names
    assert {speed["executor"] for speed in found["speeds"]} == {"eager", "cudagraph"}
    assert all(speed["events_per_second"] > 0 for speed in found["speeds"])
    assert "Training steps" in done.stdout


def test_the_script_and_its_parts_import_nothing_that_needs_a_gpu() -> None:
    text = "".join(path.read_text() for path in BENCHMARKS.glob("gpu_parts/*.py"))
    assert "import triton" not in text


@pytest.mark.parametrize(
    ("spans", "length"), [([], 0.0), ([(0, 2), (1, 3), (5, 6)], 4.0), ([(0, 9), (2, 3)], 9.0)]
)
def test_busy_time_counts_what_overlaps_once(
    spans: list[tuple[float, float]], length: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from gpu_parts.steps import _covered

    assert _covered(spans) == length
