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

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.batches.prepared import Uses
from tidegraph.ops import attention_kernels, functions
from tidegraph.ops.deferred import Deferred
from tidegraph.ops.products import product

_BLOCK = 16  # events per block


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


@kernel()
def score(source_BD, target_XD, output_D, bias, logit_BX):  # type: ignore[no-untyped-def]
    """logit[b, c] = output . relu(source[b] + target[row of candidate c]) + bias.

    Rows of `target`: the B true targets, then the negatives, event by event.
    """
    B = source_BD.shape[0]
    in_blocks(_score_block, B, _BLOCK, (source_BD, target_XD, output_D, bias, logit_BX))


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
    """As `score`, each candidate's row of `seed_SD` named by `seed_X`."""
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


@kernel()
def score_backward(  # type: ignore[no-untyped-def]
    source_BD, target_XD, output_D, grad_BX, grad_source_BD, grad_target_XD, grad_output_GD
):
    """Gradients of both rows of each pair, and of `output`, one row a block."""
    B = source_BD.shape[0]
    in_blocks(
        _score_backward_block, B, _BLOCK,
        (source_BD, target_XD, output_D, grad_BX, grad_source_BD, grad_target_XD, grad_output_GD),
    )  # fmt: skip


class _LinkScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
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
        seed_SD, B = seed_SD.detach().contiguous(), events
        row_RD = seed_SD.new_empty(len(root_R), seed_SD.shape[1])
        attention_kernels.gather_into(seed_SD.numpy(), root_R.numpy(), row_RD.numpy())
        source_BD = product(row_RD[:B], source.detach().t(), source_bias.detach())
        target_XD = product(row_RD[B:], target.detach().t())
        logit_BX = _score(source_BD, target_XD, output, output_bias)
        ctx.save_for_backward(source, target, output, row_RD, source_BD, target_XD)
        ctx.uses, ctx.seeds = uses, len(seed_SD)
        return logit_BX

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        source, target, output, row_RD, source_BD, target_XD = ctx.saved_tensors
        grad_BX, B = grads[0].contiguous(), len(source_BD)
        grad_source_BD, grad_target_XD = torch.empty_like(source_BD), torch.empty_like(target_XD)
        grad_output_GD = output.new_empty(-(-B // _BLOCK), output.shape[1])
        score_backward(
            source_BD.numpy(), target_XD.numpy(), output.view(-1).numpy(), grad_BX.numpy(),
            grad_source_BD.numpy(), grad_target_XD.numpy(), grad_output_GD.numpy(),
        )  # fmt: skip
        grad_row_RD = torch.empty_like(row_RD)
        product(grad_source_BD, source, out=grad_row_RD[:B])
        product(grad_target_XD, target, out=grad_row_RD[B:])
        return (
            functions.sum_of_uses(grad_row_RD, ctx.uses, ctx.seeds),
            product(grad_source_BD.t(), row_RD[:B]), grad_source_BD.sum(0),
            product(grad_target_XD.t(), row_RD[B:]), grad_output_GD.sum(0, keepdim=True),
            grad_BX.sum().view(1), None, None, None,
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
    if not functions._fast(seed_SD):
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


def _score(source_BD: Tensor, target_XD: Tensor, output: Tensor, output_bias: Tensor) -> Tensor:
    B, output_D = len(source_BD), output.detach().view(-1).numpy()
    logit_BX = source_BD.new_empty(B, len(target_XD) // max(B, 1))
    bias = output_D.dtype.type(float(output_bias.detach()))
    score(source_BD.numpy(), target_XD.numpy(), output_D, bias, logit_BX.numpy())
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
        slope_BX = torch.empty_like(logit_BX, memory_format=torch.contiguous_format)
        total = _loss(logit_BX.detach().contiguous().numpy(), slope_BX.numpy())
        ctx.save_for_backward(slope_BX)
        return logit_BX.new_tensor(total / max(logit_BX.numel(), 1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slope_BX,) = ctx.saved_tensors
        return (slope_BX * (grads[0] / max(slope_BX.numel(), 1)),)


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
