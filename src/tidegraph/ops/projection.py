"""JODIE's projection: memories as they will have drifted by the time of the query.

z_s = (1 + b + w d_s) o m_row(s). As one operator, since its plain form is ten small operations
whose dispatch costs more than the numbers.

Shape legend: S seeds, U unique nodes, D memory width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.batches.prepared import Seeds
from tidegraph.ops import functions

_BLOCK = 64


@kernel(block=True)
def _project_block(first, last, memory_UD, row_S, time_S, weight_D, start_D, out_SD):  # type: ignore[no-untyped-def]
    for s in range(first, last):
        row, time = row_S[s], time_S[s]
        for j in range(out_SD.shape[1]):
            out_SD[s, j] = memory_UD[row, j] * (start_D[j] + time * weight_D[j])


@kernel()
def project(memory_UD, row_S, time_S, weight_D, start_D, out_SD):  # type: ignore[no-untyped-def]
    """out[s] = (start + weight time[s]) o memory[row[s]]."""
    in_blocks(
        _project_block, out_SD.shape[0], _BLOCK,
        (memory_UD, row_S, time_S, weight_D, start_D, out_SD),
    )  # fmt: skip


@kernel(block=True, contract=True)
def _project_backward_block(  # type: ignore[no-untyped-def]
    first, last, memory_UD, time_S, weight_D, start_D, indptr_U1, seed_X, grad_SD, grad_memory_UD,
    grad_B2D,
):  # fmt: skip
    grad_2D = grad_B2D[first // _BLOCK]
    D = weight_D.shape[0]
    grad_2D[:] = 0.0
    for u in range(first, last):
        for j in range(D):
            grad_memory_UD[u, j] = 0
        for x in range(indptr_U1[u], indptr_U1[u + 1]):
            s = seed_X[x]
            time = time_S[s]
            for j in range(D):
                grad_memory_UD[u, j] += grad_SD[s, j] * (start_D[j] + time * weight_D[j])
                grad_2D[0, j] += np.float64(grad_SD[s, j] * time * memory_UD[u, j])
                grad_2D[1, j] += np.float64(grad_SD[s, j] * memory_UD[u, j])


@kernel()
def project_backward(  # type: ignore[no-untyped-def]
    memory_UD, time_S, weight_D, start_D, indptr_U1, seed_X, grad_SD, grad_memory_UD, grad_B2D
):
    """Gradient by memory row, a gather over its seeds; and of weight and start, by block."""
    in_blocks(
        _project_backward_block, memory_UD.shape[0], _BLOCK,
        (memory_UD, time_S, weight_D, start_D, indptr_U1, seed_X, grad_SD, grad_memory_UD,
         grad_B2D),
    )  # fmt: skip


class _TimeProjection(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, memory_UD: Tensor, weight_D: Tensor, start_D: Tensor, time_S: Tensor, seeds: Seeds
    ) -> Tensor:
        memory_UD = memory_UD.detach().contiguous()
        weight_D, start_D = weight_D.detach(), start_D.detach()
        out_SD = memory_UD.new_empty(len(time_S), memory_UD.shape[1])
        project(
            memory_UD.numpy(), seeds.row_S.numpy(), time_S.numpy(), weight_D.numpy(),
            start_D.numpy(), out_SD.numpy(),
        )  # fmt: skip
        ctx.save_for_backward(memory_UD, weight_D, start_D, time_S)
        ctx.uses = seeds.row_uses
        return out_SD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        memory_UD, weight_D, start_D, time_S = ctx.saved_tensors
        U, D = memory_UD.shape
        grad_memory_UD = torch.empty_like(memory_UD)
        grad_B2D = torch.empty(-(-U // _BLOCK), 2, D, dtype=torch.float64)
        project_backward(
            memory_UD.numpy(), time_S.numpy(), weight_D.numpy(), start_D.numpy(),
            ctx.uses.indptr_R1.numpy(), ctx.uses.position_M.numpy(), grads[0].contiguous().numpy(),
            grad_memory_UD.numpy(), grad_B2D.numpy(),
        )  # fmt: skip
        grad_weight_D, grad_start_D = grad_B2D.sum(0).to(weight_D.dtype)
        return grad_memory_UD, grad_weight_D, grad_start_D, None, None


def time_projection(
    memory_UD: Tensor,
    seeds: Seeds,
    time_S: Tensor,
    weight_D: Tensor,
    offset_D: Tensor | None = None,
) -> Tensor:
    """Memories projected to their query times (JODIE eq. 3).

    Args:
        memory_UD: [U, D].
        seeds: which memory is whose, and its transpose.
        time_S: [S], normalised time since the last update, in the memories' dtype.
        weight_D: w.
        offset_D: b; 0 where it is None.

    Returns:
        [S, D]: (1 + b + w time) o memory.
    """
    start_D = torch.ones_like(weight_D) if offset_D is None else 1 + offset_D
    if functions._fast(memory_UD):
        return functions._apply(_TimeProjection, memory_UD, weight_D, start_D, time_S, seeds)
    return composed_projection(memory_UD, seeds, time_S, weight_D, start_D)


def composed_projection(
    memory_UD: Tensor, seeds: Seeds, time_S: Tensor, weight_D: Tensor, start_D: Tensor
) -> Tensor:
    """`time_projection` from single operators, differentiated by autograd."""
    own_SD = functions.gather_rows(memory_UD, seeds.row_S, seeds.row_uses)
    return own_SD * (start_D + time_S.unsqueeze(1) * weight_D)
