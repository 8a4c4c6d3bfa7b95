"""`time_code` on a GPU: cos(w d + b) of any tensor of differences, with gradients for w and b.

Shape legend: L differences, T time-code width, B blocks of differences.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tidegraph.ops import reference
from tidegraph.ops.triton_backend import time_kernels
from tidegraph.ops.triton_backend.launch import apply, launch, padded, warps_for

_ROWS = 16


def partial_rows(blocks: int, width: int, like: Tensor) -> Tensor:
    """Where programs leave their parts of a sum: one float64 row each, added up in row order."""
    return torch.empty(blocks, width, dtype=torch.float64, device=like.device)


def blocks_of(count: int, size: int) -> int:
    """Blocks of `size` that cover `count`."""
    return -(-count // size)


def _shape(T: int) -> dict[str, int]:
    TP = padded(T)
    return {"T": T, "TP": TP, "ROWS": _ROWS, "warps": warps_for(_ROWS * TP)}


class _TimeCode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, delta_L: Tensor, weight_T: Tensor, bias_T: Tensor) -> Tensor:
        L, T = delta_L.numel(), weight_T.numel()
        code_LT = weight_T.new_empty(L, T)
        launch(
            time_kernels.code_forward,
            (blocks_of(L, _ROWS) if T else 0,),
            delta_L, weight_T, bias_T, code_LT, L,
            **_shape(T),
        )  # fmt: skip
        ctx.save_for_backward(delta_L, weight_T, bias_T)
        return code_LT

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        delta_L, weight_T, bias_T = ctx.saved_tensors
        L, T = delta_L.numel(), weight_T.numel()
        blocks = blocks_of(L, _ROWS)
        grad_weight_BT = partial_rows(blocks, T, weight_T)
        grad_bias_BT = partial_rows(blocks, T, weight_T)
        launch(
            time_kernels.code_backward,
            (blocks if T else 0,),
            grads[0].contiguous(), delta_L, weight_T, bias_T, grad_weight_BT, grad_bias_BT, L,
            **_shape(T),
        )  # fmt: skip
        return None, grad_weight_BT.sum(0).to(weight_T.dtype), grad_bias_BT.sum(0).to(bias_T.dtype)


def time_code(delta: Tensor, weight_T: Tensor, bias_T: Tensor) -> Tensor:
    """See `tidegraph.ops.time_code`."""
    if (
        delta.requires_grad
    ):  # differences are data; whoever differentiates by them is served plainly
        return reference.time_code(delta, weight_T, bias_T)
    flat_L = delta.contiguous().view(-1)
    code_LT = apply(_TimeCode, flat_L, weight_T.contiguous(), bias_T.contiguous())
    return code_LT.view(*delta.shape, weight_T.numel())
