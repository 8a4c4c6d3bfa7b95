"""`gather_rows` on a GPU: rows of a table; backward, a gather over the transposed index.

Shape legend: R table rows, S positions of the index, D width.
"""

# No `from __future__ import annotations`: Triton reads the kernels' annotations themselves.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tidegraph.batches.prepared import Uses
from tidegraph.ops.triton_backend.launch import apply, launch, padded, warps_for

_USES = 8  # positions whose rows are in flight at once


@triton.jit
def gather_sum(  # type: ignore[no-untyped-def]
    grad_SD, indptr_R1, position_M, out_RD,
    D: tl.constexpr, DP: tl.constexpr, USES: tl.constexpr,
):  # fmt: skip
    """out[r] = sum of grad[s] over the positions s that use row r, in a fixed order."""
    r = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DP)
    first, last = tl.load(indptr_R1 + r), tl.load(indptr_R1 + r + 1)
    total = tl.zeros(
        (USES, DP), tl.float64 if grad_SD.dtype.element_ty == tl.float64 else tl.float32
    )
    for m in range(first, last, USES):
        use = m + tl.arange(0, USES)
        s = tl.load(position_M + use, mask=use < last, other=0).to(tl.int64)
        inside = (use < last)[:, None] & (d < D)[None, :]
        total += tl.load(grad_SD + s[:, None] * D + d[None, :], mask=inside, other=0.0).to(
            total.dtype
        )
    tl.store(out_RD + r * D + d, tl.sum(total, axis=0), mask=d < D)


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table_RD: Tensor, index_S: Tensor, uses: Uses) -> Tensor:
        ctx.uses, ctx.rows = uses, table_RD.shape[0]
        return table_RD.index_select(0, index_S)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_SD = grads[0].contiguous()
        D = grad_SD.shape[1]
        out_RD = grad_SD.new_empty(ctx.rows, D)
        launch(
            gather_sum,
            (ctx.rows if D else 0,),
            grad_SD, ctx.uses.indptr_R1, ctx.uses.position_M, out_RD,
            D=D, DP=padded(D), USES=_USES, warps=warps_for(2 * _USES * padded(D)),
        )  # fmt: skip
        return out_RD, None, None


def gather_rows(table_RD: Tensor, index_S: Tensor, uses: Uses) -> Tensor:
    """See `tidegraph.ops.gather_rows`."""
    return apply(_GatherRows, table_RD, index_S, uses)
