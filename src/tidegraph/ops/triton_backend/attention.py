"""`temporal_attention` on a GPU: which kernels run, with which tiles, and what backward needs.

Shape legend: as in `attention_kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tidegraph.batches.prepared import Hop
from tidegraph.ops.triton_backend import attention_kernels, attention_long_kernels
from tidegraph.ops.triton_backend.launch import (
    RESIDENT,
    apply,
    compute_type,
    launch,
    padded,
    warps_for,
)
from tidegraph.ops.triton_backend.time_code import blocks_of, partial_rows

_USES = 8  # slots whose vectors the by-row kernel has in flight
_SEEDS = 8  # seeds of one partial sum of the time code's gradients


@dataclass(frozen=True)
class _Tiles:
    """Sizes of a call and how its kernels are cut."""

    H: int
    K: int
    D: int
    F: int
    T: int
    dropout: bool

    @property
    def width(self) -> int:
        """W, of a row."""
        return self.D + self.F + self.T

    @property
    def row(self) -> int:
        """Elements of one padded row."""
        return padded(self.D) + padded(self.F) + padded(self.T)

    @property
    def resident(self) -> bool:
        """All neighbours of a seed fit in a program's registers."""
        return padded(self.K) * self.row <= RESIDENT

    @property
    def slots(self) -> int:
        """Slots of a tile: all, or as many as fit (a power of two) beside the running sums."""
        if self.resident:
            return padded(self.K)
        return max(1, padded(RESIDENT // 2 // self.row + 1) // 2)

    def by_seed(self) -> dict[str, int | bool]:
        """Compile-time arguments of the kernels that run by seed."""
        return {
            "H": self.H, "K": self.K, "D": self.D, "F": self.F, "T": self.T,
            "KP": self.slots, "DP": padded(self.D), "FP": padded(self.F), "TP": padded(self.T),
            "DROPOUT": self.dropout, "warps": warps_for(self.slots * self.row),
        }  # fmt: skip

    def by_row(self) -> dict[str, int | bool]:
        """Compile-time arguments of the kernel that runs by table row."""
        DP = padded(self.D)
        return {
            "H": self.H, "K": self.K, "D": self.D, "W": self.width, "DP": DP, "USES": _USES,
            "DROPOUT": self.dropout, "warps": warps_for(2 * _USES * DP),
        }  # fmt: skip

    def by_block(self) -> dict[str, int | bool]:
        """Compile-time arguments of the time code's gradient."""
        TP = padded(self.T)
        slots = min(padded(self.K), max(1, RESIDENT // 4 // TP))
        return {
            "H": self.H, "K": self.K, "W": self.width, "T": self.T, "SLOTS": slots, "TP": TP,
            "SEEDS": _SEEDS, "DROPOUT": self.dropout, "warps": warps_for(2 * slots * TP),
        }  # fmt: skip


class _TemporalAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query_HSW: Tensor,
        table_RD: Tensor,
        weight_T: Tensor,
        bias_T: Tensor,
        hop: Hop,
        features_EF: Tensor,
        keep_SKH: Tensor | None,
    ) -> Tensor:
        H, S, _ = query_HSW.shape
        K = hop.neighbor_SK.shape[1]
        tiles = _Tiles(
            H, K, table_RD.shape[1], features_EF.shape[1], len(weight_T), keep_SKH is not None
        )
        attention_SKH = query_HSW.new_empty(S, K, H, dtype=compute_type(query_HSW))
        sum_HSW = torch.empty_like(query_HSW)
        # A kernel without dropout never reads what stands in the mask's place.
        keep_SKH = attention_SKH if keep_SKH is None else keep_SKH
        grid: tuple[int, ...] = (S,)
        kernel = attention_kernels.attention_forward
        if not tiles.resident:
            kernel, grid = attention_long_kernels.attention_forward_long, (S, H)
        launch(
            kernel, grid, query_HSW, table_RD, hop.neighbor_SK, hop.event_SK, hop.delta_SK,
            hop.count_S, features_EF, weight_T, bias_T, keep_SKH, attention_SKH, sum_HSW, S,
            **tiles.by_seed(),
        )  # fmt: skip
        ctx.save_for_backward(query_HSW, table_RD, weight_T, bias_T, attention_SKH, keep_SKH)
        ctx.hop, ctx.features_EF, ctx.tiles = hop, features_EF, tiles
        return sum_HSW

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query_HSW, table_RD, weight_T, bias_T, attention_SKH, keep_SKH = ctx.saved_tensors
        hop: Hop = ctx.hop
        tiles: _Tiles = ctx.tiles
        S = query_HSW.shape[1]
        grad_sum_HSW = grads[0].contiguous()
        grad_query_HSW = torch.empty_like(query_HSW)
        grad_score_SKH = torch.empty_like(attention_SKH)
        grid: tuple[int, ...] = (S,)
        kernel = attention_kernels.attention_backward
        if not tiles.resident:
            kernel, grid = attention_long_kernels.attention_backward_long, (S, tiles.H)
        launch(
            kernel, grid, table_RD, hop.neighbor_SK, hop.event_SK, hop.delta_SK, hop.count_S,
            ctx.features_EF, weight_T, bias_T, keep_SKH, attention_SKH, grad_sum_HSW,
            grad_query_HSW, grad_score_SKH, S, **tiles.by_seed(),
        )  # fmt: skip
        grad_table_RD = grad_weight_T = grad_bias_T = None
        if ctx.needs_input_grad[1]:
            grad_table_RD = torch.empty_like(table_RD)
            launch(
                attention_kernels.attention_backward_table,
                (table_RD.shape[0] if tiles.D else 0,),
                query_HSW, grad_sum_HSW, attention_SKH, keep_SKH, grad_score_SKH,
                hop.neighbor_uses.indptr_R1, hop.neighbor_uses.position_M, grad_table_RD, S,
                **tiles.by_row(),
            )  # fmt: skip
        if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
            blocks = blocks_of(S, _SEEDS)
            grad_weight_BT = partial_rows(blocks, tiles.T, weight_T)
            grad_bias_BT = partial_rows(blocks, tiles.T, weight_T)
            launch(
                attention_kernels.attention_time_gradient,
                (blocks if tiles.T else 0,),
                query_HSW, grad_sum_HSW, hop.delta_SK, hop.count_S, weight_T, bias_T, keep_SKH,
                attention_SKH, grad_score_SKH, grad_weight_BT, grad_bias_BT, S,
                **tiles.by_block(),
            )  # fmt: skip
            grad_weight_T = grad_weight_BT.sum(0).to(weight_T.dtype)
            grad_bias_T = grad_bias_BT.sum(0).to(bias_T.dtype)
        return grad_query_HSW, grad_table_RD, grad_weight_T, grad_bias_T, None, None, None


def temporal_attention(
    query_HSW: Tensor,
    table_RD: Tensor,
    hop: Hop,
    features_EF: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
    keep_SKH: Tensor | None = None,
) -> Tensor:
    """See `tidegraph.ops.temporal_attention`."""
    return apply(
        _TemporalAttention,
        query_HSW.contiguous(),
        table_RD.contiguous(),
        weight_T.contiguous(),
        bias_T.contiguous(),
        hop,
        features_EF.contiguous(),
        None if keep_SKH is None else keep_SKH.contiguous(),
    )
