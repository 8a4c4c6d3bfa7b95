"""The GPU script says plainly that there is nothing to check where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "gpu_check.py"


def test_without_cuda_it_says_so_and_exits_with_2() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert done.stdout == ""
