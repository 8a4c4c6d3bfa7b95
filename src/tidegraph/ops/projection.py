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
from tidegraph.ops.arrays import array_of
from tidegraph.ops.row_kernels import copy_row, sum_blocks

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
    memory_UD, time_S, weight_D, start_D, indptr_U1, seed_X, grad_SD, grad_memory_UD, grad_2D
):
    """Gradient by memory row, a gather over its seeds; and of weight and start."""
    U, D = memory_UD.shape
    grad_B2D = np.empty((-(-U // _BLOCK), 2, D), np.float64)
    in_blocks(
        _project_backward_block, U, _BLOCK,
        (memory_UD, time_S, weight_D, start_D, indptr_U1, seed_X, grad_SD, grad_memory_UD,
         grad_B2D),
    )  # fmt: skip
    total_D = np.empty(D, np.float64)
    for n in range(2):
        sum_blocks(grad_B2D[:, n], 0, total_D)
        copy_row(grad_2D[n], total_D)


@kernel()
def _gaps(elapsed_S, row_S, node_U, first_target, mean_2, scale_2, most, out_S):  # type: ignore[no-untyped-def]
    for s in range(out_S.shape[0]):
        side = 1 if node_U[row_S[s]] >= first_target else 0
        gap = (out_S.dtype.type(elapsed_S[s]) - mean_2[side]) / scale_2[side]
        out_S[s] = min(max(gap, -most), most)


def normalized_gaps(
    seeds: Seeds, node_U: Tensor, first_target: int | None, mean_2: Tensor, scale_2: Tensor,
    most: float,
) -> Tensor:  # fmt: skip
    """[S], the seeds' times since their nodes' last events, in deviations from the mean.

    Args:
        seeds: with `elapsed_S`.
        node_U: the batch's unique nodes.
        first_target: nodes from it on are of the second side; None where there is one side.
        mean_2, scale_2: by side; their dtype is the result's.
        most: the result lies in [-most, most].
    """
    assert seeds.elapsed_S is not None
    if functions._fast(mean_2):
        out_S = np.empty(len(seeds.row_S), mean_2.numpy().dtype)
        last = np.iinfo(np.int64).max if first_target is None else first_target
        _gaps(
            seeds.elapsed_S.numpy(), seeds.row_S.numpy(), node_U.numpy(), last, mean_2.numpy(),
            scale_2.numpy(), out_S.dtype.type(most), out_S,
        )  # fmt: skip
        return torch.from_numpy(out_S)
    mean, scale = mean_2[:1], scale_2[:1]
    if first_target is not None:
        side_S = (node_U.index_select(0, seeds.row_S) >= first_target).long()
        mean, scale = mean_2[side_S], scale_2[side_S]
    return ((seeds.elapsed_S.to(mean_2.dtype) - mean) / scale).clamp_(-most, most)


class _TimeProjection(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        memory_UD: Tensor,
        weight_D: Tensor,
        offset_D: Tensor | None,
        time_S: Tensor,
        seeds: Seeds,
    ) -> Tensor:
        memory, weight = array_of(memory_UD), array_of(weight_D)
        start = np.ones_like(weight) if offset_D is None else 1 + array_of(offset_D)
        out_SD = np.empty((len(time_S), memory.shape[1]), memory.dtype)
        project(memory, seeds.row_S.numpy(), time_S.numpy(), weight, start, out_SD)
        ctx.save_for_backward(memory_UD, weight_D)
        ctx.read, ctx.uses = (memory, time_S.numpy(), weight, start), seeds.row_uses
        return torch.from_numpy(out_SD)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # an error if one was changed
        memory = ctx.read[0]
        grad_memory_UD, grad_2D = (
            np.empty_like(memory),
            np.empty((2, memory.shape[1]), memory.dtype),
        )
        project_backward(
            *ctx.read, ctx.uses.indptr_R1.numpy(), ctx.uses.position_M.numpy(), array_of(grads[0]),
            grad_memory_UD, grad_2D,
        )  # fmt: skip
        grad_weight_D, grad_offset_D = torch.from_numpy(grad_2D).unbind()
        offset = grad_offset_D if ctx.needs_input_grad[2] else None
        return torch.from_numpy(grad_memory_UD), grad_weight_D, offset, None, None


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
    if functions._fast(memory_UD):
        return functions._apply(_TimeProjection, memory_UD, weight_D, offset_D, time_S, seeds)
    start_D = torch.ones_like(weight_D) if offset_D is None else 1 + offset_D
    return composed_projection(memory_UD, seeds, time_S, weight_D, start_D)


def composed_projection(
    memory_UD: Tensor, seeds: Seeds, time_S: Tensor, weight_D: Tensor, start_D: Tensor
) -> Tensor:
    """`time_projection` from single operators, differentiated by autograd."""
    own_SD = functions.gather_rows(memory_UD, seeds.row_S, seeds.row_uses)
    return own_SD * (start_D + time_S.unsqueeze(1) * weight_D)
