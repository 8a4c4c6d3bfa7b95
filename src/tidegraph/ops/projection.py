"""JODIE's projection: memories as they will have drifted by the time of the query.

z_s = (1 + w d_s) o m_row(s). As one operator, since its plain form is ten small operations whose
dispatch costs more than the numbers.

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
def _project_block(first, last, memory_UD, row_S, time_S, weight_D, out_SD):  # type: ignore[no-untyped-def]
    one = weight_D.dtype.type(1)
    for s in range(first, last):
        row, time = row_S[s], time_S[s]
        for j in range(out_SD.shape[1]):
            out_SD[s, j] = memory_UD[row, j] * (one + time * weight_D[j])


@kernel()
def project(memory_UD, row_S, time_S, weight_D, out_SD):  # type: ignore[no-untyped-def]
    """out[s] = (1 + weight time[s]) o memory[row[s]]."""
    in_blocks(_project_block, out_SD.shape[0], _BLOCK, (memory_UD, row_S, time_S, weight_D, out_SD))


@kernel(block=True, contract=True)
def _project_backward_block(  # type: ignore[no-untyped-def]
    first, last, memory_UD, time_S, weight_D, indptr_U1, seed_X, grad_SD, grad_memory_UD,
    grad_weight_BD,
):  # fmt: skip
    grad_weight_D = grad_weight_BD[first // _BLOCK]
    D = weight_D.shape[0]
    one = weight_D.dtype.type(1)
    for j in range(D):
        grad_weight_D[j] = 0.0
    for u in range(first, last):
        for j in range(D):
            grad_memory_UD[u, j] = 0
        for x in range(indptr_U1[u], indptr_U1[u + 1]):
            s = seed_X[x]
            time = time_S[s]
            for j in range(D):
                grad_memory_UD[u, j] += grad_SD[s, j] * (one + time * weight_D[j])
                grad_weight_D[j] += np.float64(grad_SD[s, j] * time * memory_UD[u, j])


@kernel()
def project_backward(  # type: ignore[no-untyped-def]
    memory_UD, time_S, weight_D, indptr_U1, seed_X, grad_SD, grad_memory_UD, grad_weight_BD
):
    """Gradient by memory row, a gather over its seeds; and of the weight, one row a block."""
    U = memory_UD.shape[0]
    in_blocks(
        _project_backward_block, U, _BLOCK,
        (memory_UD, time_S, weight_D, indptr_U1, seed_X, grad_SD, grad_memory_UD, grad_weight_BD),
    )  # fmt: skip


class _TimeProjection(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, memory_UD: Tensor, weight_D: Tensor, time_S: Tensor, seeds: Seeds
    ) -> Tensor:
        memory_UD, weight_D = memory_UD.detach().contiguous(), weight_D.detach()
        out_SD = memory_UD.new_empty(len(time_S), memory_UD.shape[1])
        project(
            memory_UD.numpy(), seeds.row_S.numpy(), time_S.numpy(), weight_D.numpy(),
            out_SD.numpy(),
        )  # fmt: skip
        ctx.save_for_backward(memory_UD, weight_D, time_S)
        ctx.uses = seeds.row_uses
        return out_SD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        memory_UD, weight_D, time_S = ctx.saved_tensors
        U, D = memory_UD.shape
        grad_memory_UD = torch.empty_like(memory_UD)
        grad_weight_BD = torch.empty(-(-U // _BLOCK), D, dtype=torch.float64)
        project_backward(
            memory_UD.numpy(), time_S.numpy(), weight_D.numpy(), ctx.uses.indptr_R1.numpy(),
            ctx.uses.position_M.numpy(), grads[0].contiguous().numpy(), grad_memory_UD.numpy(),
            grad_weight_BD.numpy(),
        )  # fmt: skip
        return grad_memory_UD, grad_weight_BD.sum(0).to(weight_D.dtype), None, None


def time_projection(memory_UD: Tensor, seeds: Seeds, time_S: Tensor, weight_D: Tensor) -> Tensor:
    """Memories projected to their query times (JODIE eq. 3).

    Args:
        memory_UD: [U, D].
        seeds: which memory is whose, and its transpose.
        time_S: [S], normalised time since the last update, in the memories' dtype.
        weight_D: w.

    Returns:
        [S, D]: (1 + w time) o memory.
    """
    if functions._fast(memory_UD):
        return functions._apply(_TimeProjection, memory_UD, weight_D, time_S, seeds)
    return composed_projection(memory_UD, seeds, time_S, weight_D)


def composed_projection(
    memory_UD: Tensor, seeds: Seeds, time_S: Tensor, weight_D: Tensor
) -> Tensor:
    """`time_projection` from single operators, differentiated by autograd."""
    own_SD = functions.gather_rows(memory_UD, seeds.row_S, seeds.row_uses)
    return own_SD * (1 + time_S.unsqueeze(1) * weight_D)
