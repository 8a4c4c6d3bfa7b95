"""How the Triton kernels are started: padded widths, warps per program, device, empty grids.

Every launch of the backend goes through `launch`, so the tests can record what the operators start
and compile exactly that for a GPU that is not there.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from tidegraph.errors import SettingError

RESIDENT = 16384
"""Elements of neighbour rows that one program keeps in registers: 32 registers a thread at 16
warps, which leaves room for everything else and for a second program beside it."""

_PER_WARP = 1024  # elements: 32 registers a thread, so that several programs fit on a processor

OPTIONS = {"enable_fp_fusion": True}
"""Compiler options of every kernel. A product and a sum may become one fused multiply-add (the time
code's reduction asks for its own by name); said aloud, because Triton's default changes."""


def padded(width: int) -> int:
    """The power of two that holds `width` (Triton's tiles are powers of two); at least 1."""
    return 1 << max(width - 1, 0).bit_length()


def warps_for(elements: int) -> int:
    """Warps of a program that keeps `elements` numbers: a power of two from 1 to 16."""
    return min(16, padded(-(-elements // _PER_WARP)))


def compute_type(tensor: Tensor) -> torch.dtype:
    """What is computed and accumulated: float64 for float64 tensors, else float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Any, warps: int, **constants: Any
) -> None:
    """Run `kernel` on the device of its first argument; an empty grid runs nothing.

    Args:
        kernel: a `triton.jit` function.
        grid: number of programs per axis.
        arguments: tensors and integers, in the kernel's order.
        warps: warps per program.
        constants: the kernel's compile-time arguments.

    Raises:
        SettingError: CPU tensors, and the kernels were not built for Triton's interpreter.
    """
    if not all(grid):
        return
    device = arguments[0].device
    if device.type != "cuda":
        if isinstance(kernel, triton.JITFunction):
            raise SettingError(
                "the 'triton' operator backend was chosen for tensors on a CPU: Triton needs a "
                "CUDA device, or TRITON_INTERPRET=1 in the environment (slow, for tests)"
            )
        kernel[grid](*arguments, num_warps=warps, **constants, **OPTIONS)
        return
    with torch.cuda.device(device):
        kernel[grid](*arguments, num_warps=warps, **constants, **OPTIONS)


def apply(function: Any, *arguments: Any) -> Tensor:
    """`function.apply`, typed: PyTorch's is not."""
    result: Tensor = function.apply(*arguments)
    return result
