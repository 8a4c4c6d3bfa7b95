"""`memory_update` on a GPU: Triton kernels before and after PyTorch's matrix products.

Shape legend: as in `memory_kernels`; G gates in a row (3 D for a GRU, D for an RNN).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tidegraph.batches.prepared import Mail
from tidegraph.ops import cells, reference
from tidegraph.ops.products import product
from tidegraph.ops.triton_backend import memory_kernels
from tidegraph.ops.triton_backend.launch import apply, launch, padded, warps_for
from tidegraph.ops.triton_backend.time_code import blocks_of, partial_rows

_ROWS = 4  # nodes of one program


def _by_row(D: int) -> dict[str, int]:
    DP = padded(D)
    return {"D": D, "DP": DP, "ROWS": _ROWS, "warps": warps_for(4 * _ROWS * DP)}


def _inputs(
    memory_UD: Tensor,
    partner_UP: Tensor,
    mail: Mail,
    features_EF: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
) -> Tensor:
    D, P, F, T = memory_UD.shape[1], partner_UP.shape[1], features_EF.shape[1], len(weight_T)
    M = len(mail.row_M)
    input_MI = memory_UD.new_empty(M, D + P + F + T)
    tile = padded(D) + padded(P) + padded(F) + padded(T)
    launch(
        memory_kernels.build_inputs,
        (blocks_of(M, _ROWS),),
        memory_UD, partner_UP, mail.row_M, mail.indptr_M1, mail.event_L, mail.delta_L,
        features_EF, weight_T, bias_T, input_MI, M,
        D=D, P=P, F=F, T=T, DP=padded(D), PP=padded(P), FP=padded(F), TP=padded(T), ROWS=_ROWS,
        warps=warps_for(2 * _ROWS * tile),
    )  # fmt: skip
    return input_MI


def _time_gradients(
    ctx: Any, grad_gate_MG: Tensor, weight_ih: Tensor, weight_T: Tensor, bias_T: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the time code's parameters from those of the gates; None for a fixed code."""
    if not (ctx.needs_input_grad[4] or ctx.needs_input_grad[5]):
        return None, None
    M, T = grad_gate_MG.shape[0], len(weight_T)
    grad_code_MT = product(grad_gate_MG, weight_ih[:, weight_ih.shape[1] - T :])
    blocks = blocks_of(M, 4 * _ROWS)
    grad_weight_BT = partial_rows(blocks, T, weight_T)
    grad_bias_BT = partial_rows(blocks, T, weight_T)
    launch(
        memory_kernels.time_gradient,
        (blocks if T else 0,),
        grad_code_MT, ctx.mail.indptr_M1, ctx.mail.delta_L, weight_T, bias_T,
        grad_weight_BT, grad_bias_BT, M,
        T=T, TP=padded(T), ROWS=4 * _ROWS, warps=warps_for(8 * _ROWS * padded(T)),
    )  # fmt: skip
    return grad_weight_BT.sum(0).to(weight_T.dtype), grad_bias_BT.sum(0).to(bias_T.dtype)


class _GruUpdate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        memory_UD: Tensor,
        partner_UP: Tensor,
        mail: Mail,
        features_EF: Tensor,
        weight_T: Tensor,
        bias_T: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias_ih: Tensor,
        bias_hh: Tensor,
    ) -> Tensor:
        D, M = memory_UD.shape[1], len(mail.row_M)
        input_MI = _inputs(memory_UD, partner_UP, mail, features_EF, weight_T, bias_T)
        gate_MG, hidden_MD = cells.gru_gates(input_MI, weight_ih, weight_hh, bias_ih, bias_hh)
        out_UD = memory_UD.clone()
        launch(
            memory_kernels.gru_forward,
            (blocks_of(M, _ROWS),),
            gate_MG, hidden_MD, memory_UD, mail.row_M, out_UD, M,
            **_by_row(D),
        )  # fmt: skip
        ctx.save_for_backward(memory_UD, weight_T, bias_T, weight_ih, input_MI, gate_MG, hidden_MD)
        ctx.mail = mail
        return out_UD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        memory_UD, weight_T, bias_T, weight_ih, input_MI, gate_MG, hidden_MD = ctx.saved_tensors
        D, M = memory_UD.shape[1], gate_MG.shape[0]
        grad_gate_MG = torch.empty_like(gate_MG)
        grad_hidden_MD = torch.empty_like(hidden_MD)
        launch(
            memory_kernels.gru_backward,
            (blocks_of(M, _ROWS),),
            gate_MG, hidden_MD, memory_UD, ctx.mail.row_M, grads[0].contiguous(),
            grad_gate_MG, grad_hidden_MD, M,
            **_by_row(D),
        )  # fmt: skip
        grad_weight_T, grad_bias_T = _time_gradients(ctx, grad_gate_MG, weight_ih, weight_T, bias_T)
        grad_bias_A = torch.cat([grad_gate_MG.sum(0), grad_hidden_MD.sum(0)])
        return (
            None, None, None, None, grad_weight_T, grad_bias_T,
            *cells.gru_gradients(grad_gate_MG, grad_hidden_MD, grad_bias_A, input_MI),
        )  # fmt: skip


class _RnnUpdate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        memory_UD: Tensor,
        partner_UP: Tensor,
        mail: Mail,
        features_EF: Tensor,
        weight_T: Tensor,
        bias_T: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias_ih: Tensor,
        bias_hh: Tensor,
    ) -> Tensor:
        D, M = memory_UD.shape[1], len(mail.row_M)
        input_MI = _inputs(memory_UD, partner_UP, mail, features_EF, weight_T, bias_T)
        gate_MD = cells.rnn_gate(input_MI, weight_ih, weight_hh, bias_ih, bias_hh)
        out_UD = memory_UD.clone()
        launch(
            memory_kernels.rnn_forward,
            (blocks_of(M, _ROWS),),
            gate_MD, mail.row_M, out_UD, M,
            **_by_row(D),
        )  # fmt: skip
        ctx.save_for_backward(weight_T, bias_T, weight_ih, input_MI, gate_MD)
        ctx.mail = mail
        return out_UD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight_T, bias_T, weight_ih, input_MI, gate_MD = ctx.saved_tensors
        M, D = gate_MD.shape
        grad_gate_MD = torch.empty_like(gate_MD)
        launch(
            memory_kernels.rnn_backward,
            (blocks_of(M, _ROWS),),
            gate_MD, ctx.mail.row_M, grads[0].contiguous(), grad_gate_MD, M,
            **_by_row(D),
        )  # fmt: skip
        grad_weight_T, grad_bias_T = _time_gradients(ctx, grad_gate_MD, weight_ih, weight_T, bias_T)
        return (
            None, None, None, None, grad_weight_T, grad_bias_T,
            *cells.rnn_gradients(grad_gate_MD, input_MI),
        )  # fmt: skip


def memory_update(
    cell: str,
    memory_UD: Tensor,
    partner_UD: Tensor,
    mail: Mail,
    features_EF: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor,
    bias_hh: Tensor,
) -> Tensor:
    """See `tidegraph.ops.memory_update`."""
    arguments = (
        memory_UD, partner_UD, mail, features_EF, weight_T, bias_T,
        weight_ih, weight_hh, bias_ih, bias_hh,
    )  # fmt: skip
    if memory_UD.requires_grad or partner_UD.requires_grad:
        return reference.memory_update(cell, *arguments)
    return apply(
        _GruUpdate if cell == "gru" else _RnnUpdate,
        memory_UD.contiguous(),
        partner_UD.contiguous(),
        mail,
        features_EF.contiguous(),
        weight_T.contiguous(),
        bias_T.contiguous(),
        weight_ih,
        weight_hh,
        bias_ih,
        bias_hh,
    )
