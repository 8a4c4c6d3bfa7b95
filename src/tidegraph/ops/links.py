"""Scoring pairs and the training loss: the end of a step, without temporaries.

A pair's score is o . relu(A z_u + B z_v + c); its hidden layer exists one element at a time.

Shape legend: B events, C negatives per event, R = B (2 + C) roots, S seeds, D width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from tidegraph._blocks import apart, in_blocks
from tidegraph._jit import kernel
from tidegraph.batches.prepared import Uses
from tidegraph.ops import attention_kernels, functions
from tidegraph.ops.arrays import array_of, weight_gradient
from tidegraph.ops.deferred import Deferred
from tidegraph.ops.products import in_float32, product
from tidegraph.ops.row_kernels import add_columns, load_row, sum_blocks
from tidegraph.ops.row_products import (
    JOB,
    SCRATCH,
    add_job,
    add_to_rows,
    multiply_rows,
    pack_jobs,
    packed_size,
)
from tidegraph.ops.tiles import FLOAT, address, keep

_BLOCK = 24  # events (or seeds) per block


@kernel(block=True, sums=True)
def _score_block(first, last, source_BD, target_XD, output_D, bias, logit_BX):  # type: ignore[no-untyped-def]
    B, D = source_BD.shape
    C = logit_BX.shape[1] - 1
    zero = output_D.dtype.type(0)
    for b in range(first, last):
        for c in range(C + 1):
            x = b if c == 0 else B + b * C + c - 1
            total = bias
            for j in range(D):
                total += output_D[j] * max(source_BD[b, j] + target_XD[x, j], zero)
            logit_BX[b, c] = total


@kernel(block=True, sums=True)
def _score_seeds_block(first, last, source_BD, seed_SD, seed_X, output_D, bias, logit_BX):  # type: ignore[no-untyped-def]
    B, D = source_BD.shape
    C = logit_BX.shape[1] - 1
    zero = output_D.dtype.type(0)
    for b in range(first, last):
        for c in range(C + 1):
            s = seed_X[b if c == 0 else B + b * C + c - 1]
            total = bias
            for j in range(D):
                total += output_D[j] * max(source_BD[b, j] + seed_SD[s, j], zero)
            logit_BX[b, c] = total


@kernel()
def score_seeds(source_BD, seed_SD, seed_X, output_D, bias, logit_BX):  # type: ignore[no-untyped-def]
    """logit[b, c] = output . relu(source[b] + the candidate's row of `seed_SD`) + bias.

    `seed_X` names the rows: of the B true targets, then of the negatives, event by event.
    """
    B = source_BD.shape[0]
    in_blocks(_score_seeds_block, B, _BLOCK, (source_BD, seed_SD, seed_X, output_D, bias, logit_BX))


@kernel(block=True, contract=True)
def _score_backward_block(  # type: ignore[no-untyped-def]
    first, last, source_BD, target_XD, output_D, grad_BX, grad_source_BD, grad_target_XD,
    grad_output_GD,
):  # fmt: skip
    grad_output_D = grad_output_GD[first // _BLOCK]
    B, D = source_BD.shape
    C = grad_BX.shape[1] - 1
    zero = output_D.dtype.type(0)
    for j in range(D):
        grad_output_D[j] = 0
    for b in range(first, last):
        for j in range(D):
            grad_source_BD[b, j] = 0
        for c in range(C + 1):
            x = b if c == 0 else B + b * C + c - 1
            grad = grad_BX[b, c]
            for j in range(D):
                hidden = source_BD[b, j] + target_XD[x, j]
                step = grad * output_D[j] if hidden > zero else zero
                grad_target_XD[x, j] = step
                grad_source_BD[b, j] += step
                grad_output_D[j] += grad * max(hidden, zero)


@kernel(inner=True)
def _load_roots(first, last, events, candidates, seed_SD, root_R, row_RD):  # type: ignore[no-untyped-def]
    """The rows of some events' roots: sources, true targets, negatives."""
    for b in range(first, last):
        load_row(row_RD, b, 0, seed_SD, root_R[b])
        load_row(row_RD, events + b, 0, seed_SD, root_R[events + b])
    for r in range(2 * events + first * candidates, 2 * events + last * candidates):
        load_row(row_RD, r, 0, seed_SD, root_R[r])


@kernel(inner=True)
def _multiply_targets(  # type: ignore[no-untyped-def]
    first, last, events, candidates, start, row, depth, packed, columns, out, out_row, scratch
):  # fmt: skip
    """The rows of some events' true targets and of their negatives, times a matrix."""
    new, rows = np.int64(1), last - first
    apart(multiply_rows, (
        start + first * row, row, rows, depth, packed, columns, out + first * out_row, out_row,
        new, scratch,
    ))  # fmt: skip
    skipped = np.int64(events + first * candidates)
    apart(multiply_rows, (
        start + skipped * row, row, np.int64(rows * candidates), depth, packed, columns,
        out + skipped * out_row, out_row, new, scratch,
    ))  # fmt: skip


@kernel(inner=True)
def _links_block(  # type: ignore[no-untyped-def]
    first, last, seed_SD, root_R, source_P, target_P, source_bias_E, output_E, bias, row_RD,
    source_BE, target_XE, logit_BX,
):  # fmt: skip
    B, E = source_BE.shape
    D, C = row_RD.shape[1], logit_BX.shape[1] - 1
    scratch_X = np.empty(SCRATCH, np.float32)
    scratch, rows, new = address(scratch_X), last - first, np.int64(1)
    row_D, row_E, start = D * FLOAT, E * FLOAT, address(row_RD)
    apart(_load_roots, (first, last, B, C, seed_SD, root_R, row_RD))
    source = address(source_BE) + first * row_E
    apart(
        multiply_rows,
        (start + first * row_D, row_D, rows, D, address(source_P), E, source, row_E, new, scratch),
    )
    add_to_rows(source, row_E, rows, E, address(source_bias_E))
    _multiply_targets(
        first, last, B, C, start + B * row_D, row_D, D, address(target_P), E, address(target_XE),
        row_E, scratch,
    )  # fmt: skip
    keep(scratch_X)
    apart(_score_block, (first, last, source_BE, target_XE, output_E, bias, logit_BX))


@kernel(inner=True)
def _packed_pair(source_JK, target_JK):  # type: ignore[no-untyped-def]
    """Both matrices as products read them; any strides."""
    J, K = source_JK.shape
    row, column = np.int64(source_JK.strides[0]), np.int64(source_JK.strides[1])
    source_P = np.empty(packed_size(J, K), np.float32)
    target_P = np.empty(packed_size(J, K), np.float32)
    jobs_N7 = np.empty((2, JOB), np.int64)
    add_job(jobs_N7, np.int64(0), address(source_JK), row, column, J, K, address(source_P))
    add_job(jobs_N7, np.int64(1), address(target_JK), row, column, J, K, address(target_P))
    pack_jobs(jobs_N7)
    return source_P, target_P


@kernel()
def links_forward(  # type: ignore[no-untyped-def]
    seed_SD, root_R, source_ED, target_ED, source_bias_E, output_E, bias, row_RD, source_BE,
    target_XE, logit_BX,
):  # fmt: skip
    """From seeds to logits, block by block; the arrays from `row_RD` on are written."""
    source_P, target_P = _packed_pair(source_ED.T, target_ED.T)
    in_blocks(
        _links_block, source_BE.shape[0], _BLOCK,
        (seed_SD, root_R, source_P, target_P, source_bias_E, output_E, bias, row_RD, source_BE,
         target_XE, logit_BX),
    )  # fmt: skip


@kernel(inner=True)
def _links_backward_block(  # type: ignore[no-untyped-def]
    first, last, source_BE, target_XE, output_E, grad_BX, source_P, target_P, grad_source_BE,
    grad_target_XE, grad_output_GE, grad_bias_GE, grad_row_RD,
):  # fmt: skip
    B, E = source_BE.shape
    D, C = grad_row_RD.shape[1], grad_BX.shape[1] - 1
    scratch_X = np.empty(SCRATCH, np.float32)
    scratch, rows, new = address(scratch_X), last - first, np.int64(1)
    row_D, row_E, start = D * FLOAT, E * FLOAT, address(grad_row_RD)
    apart(_score_backward_block, (
        first, last, source_BE, target_XE, output_E, grad_BX, grad_source_BE, grad_target_XE,
        grad_output_GE,
    ))  # fmt: skip
    add_columns(grad_source_BE, first, last, grad_bias_GE, first // _BLOCK, 0)
    source = address(grad_source_BE) + first * row_E
    apart(
        multiply_rows,
        (source, row_E, rows, E, address(source_P), D, start + first * row_D, row_D, new, scratch),
    )
    _multiply_targets(
        first, last, B, C, address(grad_target_XE), row_E, E, address(target_P), D,
        start + B * row_D, row_D, scratch,
    )  # fmt: skip
    keep(scratch_X)


@kernel()
def links_backward(  # type: ignore[no-untyped-def]
    source_BE, target_XE, source_ED, target_ED, output_E, grad_BX, indptr_S1, position_M,
    grad_source_BE, grad_target_XE, grad_source_bias_E, grad_output_E, grad_bias_1, grad_row_RD,
    grad_seed_SD,
):  # fmt: skip
    """From the gradient of the logits to those of the seeds; the arrays from `grad_source_BE` on
    are written."""
    source_P, target_P = _packed_pair(source_ED, target_ED)
    B, E = source_BE.shape
    blocks = -(-B // _BLOCK)
    grad_output_GE = np.empty((blocks, E), np.float32)
    grad_bias_GE = np.empty((blocks, E), np.float32)
    in_blocks(
        _links_backward_block, B, _BLOCK,
        (source_BE, target_XE, output_E, grad_BX, source_P, target_P, grad_source_BE,
         grad_target_XE, grad_output_GE, grad_bias_GE, grad_row_RD),
    )  # fmt: skip
    sum_blocks(grad_bias_GE, 0, grad_source_bias_E)
    sum_blocks(grad_output_GE, 0, grad_output_E)
    total = 0.0
    for b in range(B):
        for x in range(grad_BX.shape[1]):
            total += np.float64(grad_BX[b, x])
    grad_bias_1[0] = total
    in_blocks(
        attention_kernels.gather_sum_block, grad_seed_SD.shape[0], _BLOCK,
        (grad_row_RD, indptr_S1, position_M, False, grad_seed_SD),
    )  # fmt: skip


class _LinkScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, root_R, uses, events = arguments
        seed_SD, source_ED, source_bias_E, target_ED, output_1E, output_bias_1 = map(
            array_of, tensors
        )
        B, R, E, D = events, len(root_R), *source_ED.shape
        row_RD = np.empty((R, D), np.float32)
        source_BE, target_XE = np.empty((B, E), np.float32), np.empty((R - B, E), np.float32)
        logit_BX = np.empty((B, R // max(B, 1) - 1), np.float32)
        links_forward(
            seed_SD, root_R.numpy(), source_ED, target_ED, source_bias_E, output_1E[0],
            output_bias_1[0], row_RD, source_BE, target_XE, logit_BX,
        )  # fmt: skip
        ctx.save_for_backward(*tensors)  # to notice if one is changed before the way back
        ctx.uses, ctx.seeds = uses, len(seed_SD)
        ctx.read = source_BE, target_XE, source_ED, target_ED, output_1E[0]
        ctx.row_RD = row_RD
        return torch.from_numpy(logit_BX)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # an error if one was changed
        (source_BE, target_XE, *_), row_RD = ctx.read, ctx.row_RD
        B, E = source_BE.shape
        grad_source_BE, grad_target_XE = np.empty_like(source_BE), np.empty_like(target_XE)
        grad_source_bias_E, grad_output_1E = np.empty(E, np.float32), np.empty((1, E), np.float32)
        grad_bias_1, grad_row_RD = np.empty(1, np.float32), np.empty_like(row_RD)
        grad_seed_SD = np.empty((ctx.seeds, row_RD.shape[1]), np.float32)
        links_backward(
            *ctx.read, array_of(grads[0]), ctx.uses.indptr_R1.numpy(),
            ctx.uses.position_M.numpy(), grad_source_BE, grad_target_XE, grad_source_bias_E,
            grad_output_1E[0], grad_bias_1, grad_row_RD, grad_seed_SD,
        )  # fmt: skip
        return (
            torch.from_numpy(grad_seed_SD),
            weight_gradient(grad_source_BE, row_RD[:B]), torch.from_numpy(grad_source_bias_E),
            weight_gradient(grad_target_XE, row_RD[B:]), torch.from_numpy(grad_output_1E),
            torch.from_numpy(grad_bias_1), None, None, None,
        )  # fmt: skip


def link_scores(
    seeds: Tensor | Deferred,
    source: Tensor,
    source_bias: Tensor,
    target: Tensor,
    output: Tensor,
    output_bias: Tensor,
    root_R: Tensor,
    uses: Uses,
    events: int,
) -> Tensor:
    """Logits of each event's source with its true target and its negatives.

    Args:
        seeds: [S, D] embeddings of the seeds; deferred ones are never made (without gradients).
        source, source_bias: A [D, D] and c [D].
        target: B [D, D].
        output, output_bias: o [1, D] and its bias [1].
        root_R: int32 [R], the seed of each root: sources, true targets, negatives event by event.
        uses: the transpose of `root_R`.
        events: B.

    Returns:
        [B, 1 + C], the true target first.
    """
    if isinstance(seeds, Deferred):
        # o . relu(A z_u + B z_v + c) with z = W x + b: only products with x are left.
        source, more = seeds.folded(source)
        target, more_target = seeds.folded(target)
        source_bias = source_bias + more + more_target
    seed_SD = seeds.row_SJ if isinstance(seeds, Deferred) else seeds
    arguments = seed_SD, source, source_bias, target, output, output_bias, root_R, uses, events
    if functions._fast(seed_SD) and not torch.is_grad_enabled():
        return _scores_by_seed(*arguments)
    if not (functions._fast(seed_SD) and in_float32(seed_SD)):
        return composed_scores(*arguments)
    logit_BX: Tensor = _LinkScores.apply(*arguments)  # type: ignore[no-untyped-call]
    return logit_BX


def _scores_by_seed(
    seed_SD: Tensor,
    source: Tensor,
    source_bias: Tensor,
    target: Tensor,
    output: Tensor,
    output_bias: Tensor,
    root_R: Tensor,
    uses: Uses,
    events: int,
) -> Tensor:
    """`link_scores` without gradients, each seed projected once.

    What a product makes of a row depends on the row's place, in the last bit. Projected once, the
    same pair at the same time has the same score wherever it stands, and ties stay ties.
    """
    B = events
    seed_U, row_B = torch.unique(root_R[:B], return_inverse=True)
    source_BD = product(seed_SD[seed_U.long()], source.t(), source_bias)[row_B]
    projected_SD = product(seed_SD, target.t())
    logit_BX = source_BD.new_empty(B, len(root_R) // max(B, 1) - 1)
    output_D = output.detach().view(-1).numpy()
    bias = output_D.dtype.type(float(output_bias.detach()))
    score_seeds(
        source_BD.numpy(), projected_SD.numpy(), root_R[B:].numpy(), output_D, bias,
        logit_BX.numpy(),
    )  # fmt: skip
    return logit_BX


def composed_scores(
    seed_SD: Tensor,
    source: Tensor,
    source_bias: Tensor,
    target: Tensor,
    output: Tensor,
    output_bias: Tensor,
    root_R: Tensor,
    uses: Uses,
    events: int,
) -> Tensor:
    """`link_scores` from single operators, differentiated by autograd."""
    B = events
    row_RD = functions.gather_rows(seed_SD, root_R, uses)
    source_BD = product(row_RD[:B], source.t(), source_bias)
    target_XD = product(row_RD[B:], target.t())
    target_BXD = torch.cat(
        [target_XD[:B].unsqueeze(1), target_XD[B:].view(B, -1, target_XD.shape[1])], dim=1
    )
    return torch.relu(source_BD.unsqueeze(1) + target_BXD) @ output[0] + output_bias


@kernel()
def _loss(logit_BX, slope_BX):  # type: ignore[no-untyped-def]
    """The summed loss, and its slope by each logit."""
    B, X = logit_BX.shape
    total = 0.0
    for b in range(B):
        for x in range(X):
            value = np.float64(logit_BX[b, x])
            small = math.exp(-abs(value))
            label = 1.0 if x == 0 else 0.0
            total += max(value, 0.0) + math.log1p(small) - label * value
            slope_BX[b, x] = (1.0 if value >= 0 else small) / (1.0 + small) - label
    return total


class _LinkLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logit_BX: Tensor) -> Tensor:
        logit = array_of(logit_BX)
        slope = np.empty_like(logit)
        total = _loss(logit, slope)
        ctx.save_for_backward(torch.from_numpy(slope))
        return torch.tensor(total / max(logit.size, 1), dtype=logit_BX.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slope = ctx.saved_tensors[0].numpy()
        share = grads[0].numpy() / slope.dtype.type(max(slope.size, 1))
        return (torch.from_numpy(slope * share),)


def link_loss(logit_BX: Tensor, event_count: Tensor | None = None) -> Tensor:
    """Mean binary cross-entropy of logits [B, 1 + C]: column 0 true, the others negatives.

    Args:
        logit_BX: logits.
        event_count: int32 [], the first so many events are real; None for all. The others may hold
            anything and have gradient zero.

    >>> float(link_loss(torch.zeros(2, 2)))  # log 2
    0.6931471824645996
    """
    if event_count is not None:
        return _padded_loss(logit_BX, event_count)
    if not functions._fast(logit_BX):
        return (softplus(logit_BX).sum() - logit_BX[:, 0].sum()) / logit_BX.numel()
    loss: Tensor = _LinkLoss.apply(logit_BX)  # type: ignore[no-untyped-call]
    return loss


def _padded_loss(logit_BX: Tensor, event_count: Tensor) -> Tensor:
    place_B = torch.arange(len(logit_BX), dtype=torch.int32, device=logit_BX.device)
    real_B1 = (place_B < event_count).unsqueeze(1)
    # Replaced before anything is computed from it, or its gradient would be zero times NaN.
    logit_BX = torch.where(real_B1, logit_BX, 0.0)
    total = torch.where(real_B1, softplus(logit_BX), 0.0).sum() - logit_BX[:, 0].sum()
    return total / (event_count * logit_BX.shape[1])
