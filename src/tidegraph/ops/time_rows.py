"""Time codes as a matrix, for models that need them as tokens; the fixed code's fast path on a CPU.

Shape legend: X differences, T time-code width.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.ops.row_kernels import padded
from tidegraph.ops.time_kernels import split_turns, time_code

_BLOCK = 256


@kernel(block=True)
def _block(first, last, delta_X, weight_T, bias_T, out_XT):  # type: ignore[no-untyped-def]
    T = weight_T.shape[0]
    turns_3P = np.empty((3, padded(T)), np.float32)
    limits = split_turns(weight_T, bias_T, turns_3P)
    row_1P = np.empty((1, padded(T)), out_XT.dtype)
    for x in range(first, last):
        time_code(row_1P, 0, 0, delta_X[x], turns_3P, limits, weight_T, bias_T)
        for j in range(T):
            out_XT[x, j] = row_1P[0, j]


@kernel()
def _rows(delta_X, weight_T, bias_T, out_XT):  # type: ignore[no-untyped-def]
    X = delta_X.shape[0]
    in_blocks(_block, X, _BLOCK, (delta_X, weight_T, bias_T, out_XT))


def time_rows(delta: Tensor, weight_T: Tensor, bias_T: Tensor) -> Tensor:
    """`ops.time_code` without gradients, by the kernels that attention uses."""
    out = weight_T.new_empty(*delta.shape, len(weight_T))
    _rows(
        delta.contiguous().view(-1).numpy(),
        weight_T.detach().numpy(),
        bias_T.detach().numpy(),
        out.view(-1, len(weight_T)).numpy(),
    )
    return out


def needs_gradient(weight_T: Tensor, bias_T: Tensor) -> bool:
    """Whether a time code's parameters are being learned."""
    return torch.is_grad_enabled() and (weight_T.requires_grad or bias_T.requires_grad)
