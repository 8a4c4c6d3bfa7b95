"""Operators over segments, for models whose neighbourhoods have no fixed fan-out.

Edges are sorted by segment (a seed, say), and `indptr_S1` gives the borders: segment s holds edges
`indptr[s]` to `indptr[s + 1]`. Softmax, weighted sum and mean are the parts of any ragged model;
`segment_attention` is `temporal_attention` over ragged neighbourhoods, in one pass. The backend is
chosen as for the other operators, and a segment's result depends neither on the number of threads
nor on the other segments.

Shape legend: S segments, M edges, R table rows, H heads, d width per head, D table width, F
event-feature width, T time-code width, W = D + F + T, P pieces of split segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tidegraph.batches.prepared import Hop, Uses
from tidegraph.batches.rows import uses_of
from tidegraph.errors import InputError
from tidegraph.ops import reference, segment_kernels
from tidegraph.ops.arrays import array_of
from tidegraph.ops.feature_rows import feature_array
from tidegraph.ops.functions import _apply, _fast
from tidegraph.ops.segment_cuts import Cuts, cut

_NONE = np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class RaggedHop:
    """One layer's neighbourhoods of any size; seed s has edges `indptr[s]` to `indptr[s + 1]`.

    Attributes:
        indptr_S1: int32 or int64 [S + 1].
        neighbor_M: int32 [M], rows in the table below.
        event_M: int32 [M], rows in the event-feature table.
        delta_M: float32 [M], query time minus event time.
        neighbor_uses: transpose of `neighbor_M`; made when needed if None.
    """

    indptr_S1: Tensor
    neighbor_M: Tensor
    event_M: Tensor
    delta_M: Tensor
    neighbor_uses: Uses | None = None


def ragged(hop: Hop) -> RaggedHop:
    """The used slots of a dense hop, edge by edge, in the same order.

    Args:
        hop: S seeds of K slots.

    >>> import torch
    >>> from tidegraph.batches import Hop
    >>> from tidegraph.ops import ragged, transpose
    >>> index = torch.tensor([[4, 2], [3, 0]], dtype=torch.int32)
    >>> seeds = torch.tensor([0, 1], dtype=torch.int32)
    >>> used = torch.tensor([4, 2, 3, -1], dtype=torch.int32)
    >>> hop = Hop(seeds, index, index, index.float(), torch.tensor([2, 1], dtype=torch.int32),
    ...           transpose(seeds, 5), transpose(used, 5))
    >>> flat = ragged(hop)
    >>> flat.indptr_S1.tolist(), flat.neighbor_M.tolist(), flat.neighbor_uses.position_M.tolist()
    ([0, 2, 3], [4, 2, 3], [1, 2, 0])
    """
    S, K = hop.neighbor_SK.shape
    indptr_S1 = hop.count_S.new_zeros(S + 1)
    torch.cumsum(hop.count_S, 0, out=indptr_S1[1:])
    used_SK = torch.arange(K, device=hop.count_S.device) < hop.count_S.unsqueeze(1)
    slot_M = hop.neighbor_uses.position_M
    seed_M = slot_M // K
    return RaggedHop(
        indptr_S1=indptr_S1,
        neighbor_M=hop.neighbor_SK[used_SK],
        event_M=hop.event_SK[used_SK],
        delta_M=hop.delta_SK[used_SK],
        neighbor_uses=Uses(
            hop.neighbor_uses.indptr_R1, indptr_S1[seed_M.long()] + slot_M - seed_M * K
        ),
    )


def transpose(index_M: Tensor, rows: int) -> Uses:
    """For each of `rows` rows, the positions of `index_M` that name it, ascending.

    Args:
        index_M: integers below `rows`; negative ones are left out.
        rows: R.

    Raises:
        InputError: an index is `rows` or more.

    >>> import torch
    >>> from tidegraph.ops import transpose
    >>> uses = transpose(torch.tensor([2, 0, 2, -1]), rows=3)
    >>> uses.indptr_R1.tolist(), uses.position_M.tolist()
    ([0, 1, 1, 3], [1, 0, 2])
    """
    if len(index_M) and int(index_M.max()) >= rows:
        raise InputError(f"index {int(index_M.max())} in a table of {rows} rows")
    uses = uses_of(index_M.int().cpu().numpy(), rows)
    return Uses(uses.indptr_R1.to(index_M.device), uses.position_M.to(index_M.device))


def _fused(*tensors: Tensor) -> bool:
    """Kernels take float32 and float64, one of them in a call."""
    kinds = {tensor.dtype for tensor in tensors}
    return _fast(tensors[0]) and len(kinds) == 1 and kinds <= {torch.float32, torch.float64}


def _index(index_M: Tensor, edges: int, rows: int, name: str) -> np.ndarray:
    """Checked int32 indices: a kernel would read whatever lies outside the table."""
    if index_M.shape != (edges,):
        raise InputError(f"{name} of shape {list(index_M.shape)}: expected one per edge, [{edges}]")
    if edges:
        low, high = (int(bound) for bound in torch.aminmax(index_M))
        if low < 0 or high >= rows:
            wrong = low if low < 0 else high
            raise InputError(f"{name} names row {wrong} of a table of {rows} rows")
    index: np.ndarray = index_M.int().contiguous().numpy()
    return index


def _cut_uses(uses: Uses | None, index_M: np.ndarray, rows: int) -> tuple[Cuts, np.ndarray]:
    if uses is None:
        uses = transpose(torch.from_numpy(index_M), rows)
    position_M: np.ndarray = uses.position_M.numpy()
    if len(position_M) != len(index_M) or len(uses.indptr_R1) != rows + 1:
        raise InputError(
            f"uses of {len(position_M)} edges and {len(uses.indptr_R1) - 1} rows: expected the "
            f"transpose of {len(index_M)} edges over {rows} rows"
        )
    return cut(uses.indptr_R1.numpy(), len(index_M)), position_M


def _merge(cuts: Cuts, part_PZ: np.ndarray, out_SZ: np.ndarray, factor_P: np.ndarray) -> None:
    segment_kernels.merge_parts(cuts.split_X, cuts.part_X1, factor_P, part_PZ, out_SZ)


# ---------------------------------------------------------------- softmax


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, score_MH: Tensor, indptr_S1: Tensor) -> Tensor:
        cuts = cut(indptr_S1.numpy(), score_MH.shape[0])
        weight_MH = torch.empty_like(score_MH, memory_format=torch.contiguous_format)
        score, weight = array_of(score_MH), weight_MH.numpy()
        largest_HP, total_HP, factor_HP = np.empty((3, score.shape[1], cuts.parts), score.dtype)
        segment_kernels.softmax_forward(
            cuts.block_B1, cuts.first_U1, cuts.part_U, score, weight, largest_HP, total_HP
        )
        if cuts.parts:
            segment_kernels.merge_softmax(cuts.part_X1, largest_HP, total_HP, factor_HP)
            segment_kernels.rescale(cuts.block_B1, cuts.first_U1, cuts.part_U, factor_HP, weight)
        ctx.save_for_backward(weight_MH)
        ctx.cuts = cuts
        return weight_MH

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight_MH,) = ctx.saved_tensors
        cuts: Cuts = ctx.cuts
        weight = weight_MH.numpy()
        grad_score_MH = torch.empty_like(weight_MH)
        mean_HP = np.empty((weight.shape[1], cuts.parts), weight.dtype)
        arguments = (
            cuts.block_B1, cuts.first_U1, cuts.part_U, weight, grads[0].contiguous().numpy(),
            mean_HP, grad_score_MH.numpy(),
        )  # fmt: skip
        segment_kernels.softmax_backward(*arguments)
        if cuts.parts:
            segment_kernels.share_totals(cuts.part_X1, mean_HP)
            segment_kernels.softmax_backward_split(*arguments)
        return grad_score_MH, None


def edge_softmax(score_MH: Tensor, indptr_S1: Tensor) -> Tensor:
    """Softmax over the edges of each segment, head by head; a segment may be empty.

    Args:
        score_MH: [M, H], finite.
        indptr_S1: int32 or int64 [S + 1], borders of the segments.

    Returns:
        [M, H], weights that add up to 1 in every segment.

    Raises:
        InputError: scores of another shape; borders that do not start at 0, fall, or do not end
            at M.

    >>> import torch
    >>> from tidegraph.ops import edge_softmax
    >>> edge_softmax(torch.tensor([[0.0], [0.0], [5.0]]), torch.tensor([0, 2, 2, 3])).tolist()
    [[0.5], [0.5], [1.0]]
    """
    if score_MH.ndim != 2:
        raise InputError(f"scores of shape {list(score_MH.shape)}: expected [M, H]")
    if not _fused(score_MH):
        return reference.edge_softmax(score_MH, indptr_S1)
    return _apply(_EdgeSoftmax, score_MH, indptr_S1)


# ---------------------------------------------------------------- weighted sums


def _weighted_sum(
    cuts: Cuts,
    order_M: np.ndarray,
    column_M: np.ndarray,
    weight_MH: Tensor,
    table_RGd: Tensor,
    out_SGd: Tensor,
) -> Tensor:
    """Fill `out_SGd`; see the kernel."""
    S, G, d = out_SGd.shape
    part_PGd = np.empty((cuts.parts, G, d), out_SGd.numpy().dtype)
    segment_kernels.weighted_sum(
        cuts.block_B1, cuts.segment_U, cuts.first_U1, cuts.part_U, order_M, column_M,
        array_of(weight_MH), array_of(table_RGd), out_SGd.numpy(), part_PGd,
    )  # fmt: skip
    out_SZ = out_SGd.view(S, G * d).numpy()
    _merge(cuts, part_PGd.reshape(cuts.parts, G * d), out_SZ, out_SZ[:0, 0])
    return out_SGd


class _SegmentSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight_MH: Tensor,
        table_RGd: Tensor,
        column_M: Tensor,
        indptr_S1: Tensor,
        uses: Uses | None,
    ) -> Tensor:
        M, H = weight_MH.shape
        R, _, d = table_RGd.shape
        ctx.cuts = cut(indptr_S1.numpy(), M)
        ctx.column, ctx.uses = _index(column_M, M, R, "column"), uses
        ctx.save_for_backward(weight_MH, table_RGd)
        out_SHd = weight_MH.new_empty(len(indptr_S1) - 1, H, d)
        return _weighted_sum(ctx.cuts, _NONE, ctx.column, weight_MH, table_RGd, out_SHd)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight_MH, table_RGd = ctx.saved_tensors
        cuts: Cuts = ctx.cuts
        grad_SHd = grads[0].contiguous()
        grad_weight_MH: Tensor | None = None
        grad_table_RGd: Tensor | None = None
        if ctx.needs_input_grad[0]:
            grad_weight_MH = torch.empty_like(weight_MH, memory_format=torch.contiguous_format)
            segment_kernels.weighted_sum_weight_gradient(
                cuts.block_B1, cuts.segment_U, cuts.first_U1, ctx.column, array_of(table_RGd),
                grad_SHd.numpy(), grad_weight_MH.numpy(),
            )  # fmt: skip
        if ctx.needs_input_grad[1]:
            rows, position_M = _cut_uses(ctx.uses, ctx.column, table_RGd.shape[0])
            grad_table_RGd = _weighted_sum(
                rows, position_M, cuts.segment_of_edges(), weight_MH, grad_SHd,
                torch.empty_like(table_RGd, memory_format=torch.contiguous_format),
            )  # fmt: skip
        return grad_weight_MH, grad_table_RGd, None, None, None


def segment_sum(
    weight_MH: Tensor,
    table: Tensor,
    column_M: Tensor,
    indptr_S1: Tensor,
    uses: Uses | None = None,
) -> Tensor:
    """Weighted aggregation: out[s, h] = sum over edges m of s of weight[m, h] * table[column m, h].

    Nothing of size [M, d] exists, forward or backward; the gradient of the table is a gather
    through the transpose of `column_M`.

    Args:
        weight_MH: [M, H].
        table: [R, H, d], a row for each head; or [R, D], rows that all heads share.
        column_M: int32 [M], the table row of each edge.
        indptr_S1: int32 or int64 [S + 1], borders of the segments.
        uses: transpose of `column_M` over R rows (`transpose`); made when needed if None.

    Returns:
        [S, H, d] (or [S, H, D]); zeros for an empty segment.

    Raises:
        InputError: wrong borders, or a column outside the table.

    >>> import torch
    >>> from tidegraph.ops import segment_sum
    >>> table = torch.tensor([[1.0, 2.0], [10.0, 20.0]])
    >>> column, indptr = torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3])
    >>> segment_sum(torch.tensor([[1.0], [0.5], [2.0]]), table, column, indptr).tolist()
    [[[6.0, 12.0]], [[20.0, 40.0]]]
    """
    if weight_MH.ndim != 2:
        raise InputError(f"weights of shape {list(weight_MH.shape)}: expected [M, H]")
    table_RGd = table.unsqueeze(1) if table.ndim == 2 else table
    if table_RGd.ndim != 3 or table_RGd.shape[1] not in (1, weight_MH.shape[1]):
        raise InputError(
            f"table of shape {list(table.shape)} with weights of {weight_MH.shape[1]} heads: "
            f"expected [R, {weight_MH.shape[1]}, d] or [R, D]"
        )
    if not _fused(weight_MH, table):
        return reference.segment_sum(weight_MH, table, column_M, indptr_S1)
    return _apply(_SegmentSum, weight_MH, table_RGd, column_M, indptr_S1, uses)


def segment_mean(
    table_RD: Tensor, column_M: Tensor, indptr_S1: Tensor, uses: Uses | None = None
) -> Tensor:
    """Mean over each segment's edges of the table rows they name.

    Args:
        table_RD: [R, D].
        column_M, indptr_S1, uses: as for `segment_sum`.

    Returns:
        [S, D]; zeros for an empty segment.

    >>> import torch
    >>> from tidegraph.ops import segment_mean
    >>> table = torch.tensor([[1.0], [3.0]])
    >>> segment_mean(table, torch.tensor([0, 1, 1]), torch.tensor([0, 2, 2, 3])).tolist()
    [[2.0], [0.0], [3.0]]
    """
    count_S = torch.diff(indptr_S1).long()
    share_S = 1.0 / count_S.to(table_RD.dtype)
    weight_M1 = torch.repeat_interleave(share_S, count_S).unsqueeze(1)
    return segment_sum(weight_M1, table_RD, column_M, indptr_S1, uses).squeeze(1)


# ---------------------------------------------------------------- attention


class _SegmentAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query_HSW: Tensor,
        table_RD: Tensor,
        weight_T: Tensor,
        bias_T: Tensor,
        hop: RaggedHop,
        features_EF: Tensor,
        keep_MH: Tensor,
    ) -> Tensor:
        H, _, W = query_HSW.shape
        M = len(hop.delta_M)
        cuts = cut(hop.indptr_S1.numpy(), M)
        query_HSW, table_RD = query_HSW.contiguous(), table_RD.contiguous()
        ctx.arguments = (
            array_of(query_HSW),
            array_of(table_RD),
            _index(hop.neighbor_M, M, table_RD.shape[0], "neighbor"),
            _index(hop.event_M, M, features_EF.shape[0], "event")
            if features_EF.shape[1]
            else _NONE,
            array_of(hop.delta_M),
            feature_array(features_EF.detach().contiguous()),
            array_of(weight_T),
            array_of(bias_T),
            array_of(keep_MH),
        )
        kind = ctx.arguments[0].dtype
        attention_MH, sum_HSW = query_HSW.new_empty(M, H), torch.empty_like(query_HSW)
        largest_HP, total_HP, factor_HP = np.empty((3, H, cuts.parts), kind)
        part_HPW = np.empty((H, cuts.parts, W), kind)
        segment_kernels.attention_forward(
            cuts.block_B1, cuts.segment_U, cuts.first_U1, cuts.part_U, *ctx.arguments,
            attention_MH.numpy(), sum_HSW.numpy(), largest_HP, total_HP, part_HPW,
        )  # fmt: skip
        if cuts.parts:
            segment_kernels.merge_softmax(cuts.part_X1, largest_HP, total_HP, factor_HP)
            segment_kernels.rescale(
                cuts.block_B1, cuts.first_U1, cuts.part_U, factor_HP, attention_MH.numpy()
            )
            for h in range(H):
                _merge(cuts, part_HPW[h], sum_HSW[h].numpy(), factor_HP[h])
        # `sum_HSW` is an output: kept this way, it makes no reference cycle.
        ctx.save_for_backward(query_HSW, table_RD, weight_T, bias_T, attention_MH, sum_HSW)
        ctx.cuts, ctx.neighbor_uses = cuts, hop.neighbor_uses
        return sum_HSW

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query_HSW, table_RD, weight_T, _bias_T, attention_MH, sum_HSW = ctx.saved_tensors
        cuts: Cuts = ctx.cuts
        H, _, W = query_HSW.shape
        grad_sum_HSW = grads[0].contiguous()
        grad_query_HSW, grad_score_MH = torch.empty_like(query_HSW), torch.empty_like(attention_MH)
        time_width = len(weight_T) if ctx.needs_input_grad[2] else 0
        grad_weight_BT = np.empty((cuts.blocks, time_width))
        grad_bias_BT = np.empty((cuts.blocks, time_width))
        part_HPW = np.empty((H, cuts.parts, W), query_HSW.numpy().dtype)
        segment_kernels.attention_backward(
            cuts.block_B1, cuts.segment_U, cuts.first_U1, cuts.part_U, *ctx.arguments,
            attention_MH.numpy(), sum_HSW.numpy(), grad_sum_HSW.numpy(), grad_query_HSW.numpy(),
            grad_score_MH.numpy(), part_HPW, grad_weight_BT, grad_bias_BT,
        )  # fmt: skip
        if cuts.parts:
            for h in range(H):
                _merge(cuts, part_HPW[h], grad_query_HSW[h].numpy(), part_HPW[h, :0, 0])
        grad_table_RD: Tensor | None = None
        if ctx.needs_input_grad[1]:
            grad_table_RD = _table_gradient(
                ctx, query_HSW, grad_sum_HSW, attention_MH, grad_score_MH, table_RD
            )
        grad_time = [
            torch.from_numpy(grad_BT.sum(0)).to(weight_T.dtype) if time_width else None
            for grad_BT in (grad_weight_BT, grad_bias_BT)
        ]
        return grad_query_HSW, grad_table_RD, *grad_time, None, None, None


def _table_gradient(
    ctx: Any,
    query_HSW: Tensor,
    grad_sum_HSW: Tensor,
    attention_MH: Tensor,
    grad_score_MH: Tensor,
    table_RD: Tensor,
) -> Tensor:
    """Row by row of the table, over the edges that use the row."""
    R, D = table_RD.shape
    neighbor_M, keep_MH = ctx.arguments[2], ctx.arguments[-1]
    rows, edge_M = _cut_uses(ctx.neighbor_uses, neighbor_M, R)
    grad_table_RD = torch.empty_like(table_RD)
    part_PD = np.empty((rows.parts, D), table_RD.numpy().dtype)
    segment_kernels.attention_backward_table(
        rows.block_B1, rows.segment_U, rows.first_U1, rows.part_U, edge_M,
        ctx.cuts.segment_of_edges(), query_HSW.numpy(), grad_sum_HSW.numpy(),
        attention_MH.numpy(), keep_MH, grad_score_MH.numpy(), grad_table_RD.numpy(), part_PD,
    )  # fmt: skip
    _merge(rows, part_PD, grad_table_RD.numpy(), part_PD[:0, 0])
    return grad_table_RD


def segment_attention(
    query_HSW: Tensor,
    table_RD: Tensor,
    hop: RaggedHop,
    features_EF: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
    keep_MH: Tensor | None = None,
) -> Tensor:
    """`temporal_attention` over neighbourhoods of any size (TGAT eq. 5-7, TGN eq. 9-11).

    With x_m = [table[neighbor_m] ; features[event_m] ; cos(w delta_m + b)] it returns, per head and
    seed, sum_m a_m x_m with a = softmax of query . x_m over the seed's edges. Projections are
    folded, as there; nothing of size [M, W] exists. A seed without neighbours gets zeros.

    Args:
        query_HSW: [H, S, W] queries, already multiplied by the key projection and 1 / sqrt(d).
        table_RD: [R, D] rows of the layer below.
        hop: neighbourhoods of S seeds, M edges in all.
        features_EF: [E, F] event features, float32 or bfloat16 (F may be 0).
        weight_T, bias_T: time code parameters.
        keep_MH: optional [M, H] dropout multipliers, applied after the softmax.

    Returns:
        [H, S, W].

    Raises:
        InputError: wrong borders, shapes that do not fit, or a row outside its table.

    >>> import torch
    >>> from tidegraph.ops import RaggedHop, segment_attention
    >>> ids = torch.tensor([0, 1, 1], dtype=torch.int32)
    >>> hop = RaggedHop(torch.tensor([0, 2, 2, 3]), ids, ids, torch.zeros(3))
    >>> table, features = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [8.0]])
    >>> query = torch.zeros(1, 3, 3)  # equal scores: the mean of each seed's rows
    >>> out = segment_attention(query, table, hop, features, torch.ones(1), torch.zeros(1))
    >>> out.round(decimals=4).tolist()
    [[[2.0, 4.0, 1.0], [0.0, 0.0, 0.0], [3.0, 8.0, 1.0]]]
    """
    if not _fused(query_HSW, table_RD, weight_T, bias_T):
        return reference.segment_attention(
            query_HSW, table_RD, hop.neighbor_M, hop.event_M, hop.delta_M, hop.indptr_S1,
            features_EF, weight_T, bias_T, keep_MH,
        )  # fmt: skip
    H, S, W = query_HSW.shape
    M, widths = len(hop.delta_M), (table_RD.shape[1], features_EF.shape[1], len(weight_T))
    if sum(widths) != W or len(hop.indptr_S1) != S + 1:
        raise InputError(
            f"queries of {S} seeds and width {W}: expected {len(hop.indptr_S1) - 1} seeds and "
            f"width {sum(widths)} (table {widths[0]}, event features {widths[1]}, "
            f"time code {widths[2]})"
        )
    if keep_MH is None:
        keep_MH = query_HSW.new_empty(0, 0)
    elif keep_MH.shape != (M, H):
        raise InputError(f"keep of shape {list(keep_MH.shape)}: expected [{M}, {H}]")
    return _apply(
        _SegmentAttention, query_HSW, table_RD, weight_T, bias_T, hop, features_EF, keep_MH
    )
