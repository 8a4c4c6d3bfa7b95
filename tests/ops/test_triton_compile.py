"""Every Triton kernel compiles for a Hopper GPU, without register spills, with 16-byte accesses.

No GPU is needed: Triton compiles ahead of time and its wheel brings the assembler. The kernels are
those that a training step at the published size starts (`compile_kernels.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

HERE = Path(__file__).parent
# Kernels whose time goes into rows of 100 or 172 numbers: multiples of 16 bytes in float32.
ROW_KERNELS = {
    "attention_forward", "attention_backward", "attention_backward_table", "build_inputs",
    "gru_forward", "gru_backward", "rnn_forward", "rnn_backward", "gather_sum",
}  # fmt: skip
ALL_KERNELS = ROW_KERNELS | {
    "attention_time_gradient", "time_gradient", "code_forward", "code_backward",
    "attention_forward_long", "attention_backward_long",
}  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One row a kernel and size: fan-out 10 and 20, and 64, which exceeds the registers."""
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
    }
    done = subprocess.run(
        [sys.executable, HERE / "compile_kernels.py", "--k", "10", "20", "64"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_every_kernel_is_compiled(compiled: list[dict[str, Any]]) -> None:
    """A kernel that is added must be added here, or to the steps that are compiled."""
    assert {row["kernel"] for row in compiled} == ALL_KERNELS
    sources = (Path(__file__).parents[2] / "src/tidegraph/ops/triton_backend").glob("*.py")
    functions = [part for path in sources for part in path.read_text().split("@triton.jit")[1:]]
    kernels = [part for part in functions if "tl.program_id(" in part]
    assert {part.split("def ")[1].split("(")[0] for part in kernels} == ALL_KERNELS


def test_no_kernel_spills_registers(compiled: list[dict[str, Any]]) -> None:
    spilling = [row for row in compiled if row["spill_bytes"] or row["stack_bytes"]]
    assert not spilling
    assert all(0 < row["registers"] <= 255 for row in compiled)


def test_rows_are_read_and_written_16_bytes_at_a_time(compiled: list[dict[str, Any]]) -> None:
    for row in compiled:
        if row["kernel"] in ROW_KERNELS and "bf16" not in row["size"]:
            assert row["widest_load"] == 16, row
