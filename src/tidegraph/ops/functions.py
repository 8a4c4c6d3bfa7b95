"""The operators as models call them: one name each, the backend chosen by where the tensors are.

On a CPU the fused kernels run, on a CUDA device the Triton kernels; elsewhere, or inside
`use_backend("reference")`, the plain version. All give equal results (tested), so the choice is
never visible in a model.

Shape legend: S seeds, K slots, R table rows, D table width, F event-feature width, T time-code
width, W = D + F + T, H heads, U unique nodes, M nodes with mail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tidegraph.batches.prepared import Hop, Mail, Uses
from tidegraph.errors import SettingError
from tidegraph.ops import attention_kernels, cells, memory_kernels, reference, triton_backend
from tidegraph.ops.arrays import array_of
from tidegraph.ops.feature_rows import feature_array
from tidegraph.ops.products import in_float32, product
from tidegraph.ops.time_rows import needs_gradient, time_rows

_BACKENDS = ("auto", "cpu", "triton", "reference")
_backend = "auto"


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Choose the operators' backend inside a `with` block: "auto", "cpu", "triton" or "reference".

    Raises:
        SettingError: the name is none of these.

    >>> with use_backend("reference"):
    ...     pass
    """
    global _backend
    if name not in _BACKENDS:
        raise SettingError(f"unknown operator backend {name!r}: expected one of {_BACKENDS}")
    previous, _backend = _backend, name
    try:
        yield
    finally:
        _backend = previous


def _fast(tensor: Tensor) -> bool:
    """The CPU kernels serve this tensor."""
    return _backend in ("auto", "cpu") and tensor.device.type == "cpu"


def _triton(tensor: Tensor) -> ModuleType | None:
    """The Triton operators where they are chosen: on CUDA, or by name; else None."""
    if _backend == "triton":
        return triton_backend.load(required=True)
    if _backend == "auto" and tensor.device.type == "cuda":
        return triton_backend.load()
    return None


def _apply(function: Any, *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


def partial_rows(count: int, width: int) -> Tensor:
    """Room for one float64 row a block of the attention's kernels."""
    blocks = -(-count // attention_kernels.BLOCK)
    return torch.empty(blocks, width, dtype=torch.float64)


def time_code(delta: Tensor, weight_T: Tensor, bias_T: Tensor) -> Tensor:
    """Phi(d) = cos(w d + b), argument formed in float64 (TGAT eq. 6): [..., T] from [...].

    Args:
        delta: time differences, any shape.
        weight_T, bias_T: parameters; their dtype is the result's.
    """
    if (device_ops := _triton(weight_T)) is not None:
        return device_ops.time_code(delta, weight_T, bias_T)  # type: ignore[no-any-return]
    if _fast(weight_T) and not needs_gradient(weight_T, bias_T):
        return time_rows(delta, weight_T, bias_T)
    return reference.time_code(delta, weight_T, bias_T)


def sum_of_uses(grad_SD: Tensor, uses: Uses, rows: int, onto_RD: Tensor | None = None) -> Tensor:
    """[R, D]: for each row, the sum of `grad` over the places that use it, on top of `onto_RD`.

    `onto_RD` is changed in place where it is given.
    """
    out_RD = grad_SD.new_empty(rows, grad_SD.shape[1]) if onto_RD is None else onto_RD
    attention_kernels.gather_sum(
        grad_SD.numpy(),
        uses.indptr_R1.numpy(),
        uses.position_M.numpy(),
        onto_RD is not None,
        out_RD.numpy(),
    )
    return out_RD


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table_RD: Tensor, index: Tensor, uses: Uses) -> Tensor:
        ctx.uses, ctx.rows = uses, table_RD.shape[0]
        return table_RD.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return sum_of_uses(grads[0].contiguous(), ctx.uses, ctx.rows), None, None


def gather_rows(table_RD: Tensor, index_S: Tensor, uses: Uses) -> Tensor:
    """Rows of a table: [S, D] = table[index]; the backward pass sums in a fixed order.

    Args:
        table_RD: [R, D].
        index_S: int32 [S], rows of the table.
        uses: the transpose of `index_S`.
    """
    if (device_ops := _triton(table_RD)) is not None:
        return device_ops.gather_rows(table_RD, index_S, uses)  # type: ignore[no-any-return]
    if not _fast(table_RD):
        return reference.gather_rows(table_RD, index_S, uses)
    return _apply(_GatherRows, table_RD, index_S, uses)


def _arrays(
    query_HSW: Tensor,
    table_RD: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
    hop: Hop,
    features_EF: Tensor,
    keep_SKH: Tensor,
) -> tuple[np.ndarray, ...]:
    """What the attention kernels that run by seed read, in their order."""
    return (
        query_HSW.numpy(),
        table_RD.numpy(),
        hop.neighbor_SK.numpy(),
        hop.event_SK.numpy(),
        hop.delta_SK.numpy(),
        hop.count_S.numpy(),
        feature_array(features_EF),
        weight_T.numpy(),
        bias_T.numpy(),
        keep_SKH.numpy(),
    )


def attend(
    query_HSW: Tensor,
    table_RD: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
    hop: Hop,
    features_EF: Tensor,
    keep_SKH: Tensor,
) -> tuple[Tensor, Tensor]:
    """The forward kernel: weighted sums [H, S, W] and softmax weights [S, K, H]."""
    H, S, _ = query_HSW.shape
    attention_SKH = query_HSW.new_empty(S, hop.neighbor_SK.shape[1], H)
    sum_HSW = torch.empty_like(query_HSW)
    attention_kernels.attention_forward(
        *_arrays(query_HSW, table_RD, weight_T, bias_T, hop, features_EF, keep_SKH),
        attention_SKH.numpy(),
        sum_HSW.numpy(),
    )
    return sum_HSW, attention_SKH


@dataclass(frozen=True)
class AttendGradients:
    """What the backward kernels of `attend` give.

    Attributes:
        query_HSW: gradient of the queries.
        table_RD: gradient of the table, None where it was not asked for.
        weight_T, bias_T: gradients of the time code, None for a fixed one.
    """

    query_HSW: Tensor
    table_RD: Tensor | None
    weight_T: Tensor | None
    bias_T: Tensor | None


def attend_backward(
    query_HSW: Tensor,
    table_RD: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
    hop: Hop,
    features_EF: Tensor,
    keep_SKH: Tensor,
    attention_SKH: Tensor,
    grad_sum_HSW: Tensor,
    *,
    train_table: bool,
    train_time: bool,
) -> AttendGradients:
    """The backward kernels of `attend`: by seed, then by table row."""
    S = query_HSW.shape[1]
    grad_query_HSW = torch.empty_like(query_HSW)
    grad_score_SKH = torch.empty_like(attention_SKH)
    time_width = len(weight_T) if train_time else 0
    grad_weight_BT = partial_rows(S, time_width)
    grad_bias_BT = partial_rows(S, time_width)
    attention_kernels.attention_backward(
        *_arrays(query_HSW, table_RD, weight_T, bias_T, hop, features_EF, keep_SKH),
        attention_SKH.numpy(),
        grad_sum_HSW.numpy(),
        grad_query_HSW.numpy(),
        grad_score_SKH.numpy(),
        grad_weight_BT.numpy(),
        grad_bias_BT.numpy(),
    )
    grad_table_RD: Tensor | None = None
    if train_table:
        grad_table_RD = torch.empty_like(table_RD)
        attention_kernels.attention_backward_table(
            query_HSW.numpy(),
            grad_sum_HSW.numpy(),
            attention_SKH.numpy(),
            keep_SKH.numpy(),
            grad_score_SKH.numpy(),
            hop.neighbor_uses.indptr_R1.numpy(),
            hop.neighbor_uses.position_M.numpy(),
            grad_table_RD.numpy(),
        )
    return AttendGradients(
        grad_query_HSW,
        grad_table_RD,
        grad_weight_BT.sum(0).to(weight_T.dtype) if time_width else None,
        grad_bias_BT.sum(0).to(bias_T.dtype) if time_width else None,
    )


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
        keep_SKH: Tensor,
    ) -> Tensor:
        query_HSW, table_RD = query_HSW.detach().contiguous(), table_RD.detach().contiguous()
        weight_T, bias_T = weight_T.detach(), bias_T.detach()
        sum_HSW, attention_SKH = attend(
            query_HSW, table_RD, weight_T, bias_T, hop, features_EF, keep_SKH
        )
        ctx.save_for_backward(query_HSW, table_RD, weight_T, bias_T, attention_SKH)
        ctx.hop, ctx.features_EF, ctx.keep_SKH = hop, features_EF, keep_SKH
        return sum_HSW

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query_HSW, table_RD, weight_T, bias_T, attention_SKH = ctx.saved_tensors
        grad = attend_backward(
            query_HSW,
            table_RD,
            weight_T,
            bias_T,
            ctx.hop,
            ctx.features_EF,
            ctx.keep_SKH,
            attention_SKH,
            grads[0].contiguous(),
            train_table=ctx.needs_input_grad[1],
            train_time=ctx.needs_input_grad[2],
        )
        return grad.query_HSW, grad.table_RD, grad.weight_T, grad.bias_T, None, None, None


def temporal_attention(
    query_HSW: Tensor,
    table_RD: Tensor,
    hop: Hop,
    features_EF: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
    keep_SKH: Tensor | None = None,
) -> Tensor:
    """Attention over temporal neighbours with folded projections (TGAT eq. 5-7, TGN eq. 9-11).

    With x_i = [table[neighbor_i] ; features[event_i] ; cos(w delta_i + b)] it returns, per head
    and seed, sum_i a_i x_i with a = softmax_i(query . x_i). The key projection is folded into the
    query (q . W_k x = W_k^T q . x) and the value projection applied to the sum
    (sum a_i W_v x_i = W_v sum a_i x_i), so a neighbour costs O(H W) and nothing of size
    [S, K, W] exists. A seed without neighbours gets zeros.

    Args:
        query_HSW: [H, S, W] queries, already multiplied by the key projection and 1 / sqrt(d).
        table_RD: [R, D] rows of the layer below.
        hop: neighbourhoods, S seeds of K slots.
        features_EF: [E, F] event features, float32 or bfloat16 (F may be 0).
        weight_T, bias_T: time code parameters.
        keep_SKH: optional [S, K, H] dropout multipliers, applied after the softmax.

    Returns:
        [H, S, W].
    """
    if (device_ops := _triton(query_HSW)) is not None:
        return device_ops.temporal_attention(  # type: ignore[no-any-return]
            query_HSW, table_RD, hop, features_EF, weight_T, bias_T, keep_SKH
        )
    if not _fast(query_HSW):
        return reference.temporal_attention(
            query_HSW, table_RD, hop, features_EF, weight_T, bias_T, keep_SKH
        )
    if keep_SKH is None:
        keep_SKH = query_HSW.new_empty(0, 0, 0)
    return _apply(
        _TemporalAttention, query_HSW, table_RD, weight_T, bias_T, hop, features_EF, keep_SKH
    )


def _inputs(
    memory_UD: Tensor,
    partner_UD: Tensor,
    mail: Mail,
    features_EF: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
) -> Tensor:
    width = memory_UD.shape[1] + partner_UD.shape[1] + features_EF.shape[1] + len(weight_T)
    input_MI = memory_UD.new_empty(len(mail.row_M), width)
    memory_kernels.build_inputs(
        *_input_arrays(memory_UD, partner_UD, mail, features_EF, weight_T, bias_T),
        input_MI.numpy(),
    )
    return input_MI


def _input_arrays(
    memory_UD: Tensor,
    partner_UD: Tensor,
    mail: Mail,
    features_EF: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
) -> tuple[np.ndarray, ...]:
    return (
        memory_UD.numpy(),
        partner_UD.numpy(),
        mail.row_M.numpy(),
        mail.indptr_M1.numpy(),
        mail.event_L.numpy(),
        mail.delta_L.numpy(),
        feature_array(features_EF),
        weight_T.detach().numpy(),
        bias_T.detach().numpy(),
    )


def _time_gradients(ctx: Any, grad_gate_MG: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the time code's parameters from those of the gates; None for a fixed code."""
    weight_T, bias_T, weight_ih, *_ = ctx.saved_tensors
    if not ctx.needs_input_grad[4]:
        return None, None
    grad_code_MT = product(grad_gate_MG, weight_ih[:, -len(weight_T) :])
    grad_weight_BT = partial_rows(grad_code_MT.shape[0], len(weight_T))
    grad_bias_BT = partial_rows(grad_code_MT.shape[0], len(weight_T))
    memory_kernels.time_gradient(
        grad_code_MT.numpy(),
        ctx.mail.indptr_M1.numpy(),
        ctx.mail.delta_L.numpy(),
        weight_T.numpy(),
        bias_T.numpy(),
        grad_weight_BT.numpy(),
        grad_bias_BT.numpy(),
    )
    return grad_weight_BT.sum(0).to(weight_T.dtype), grad_bias_BT.sum(0).to(weight_T.dtype)


class _GruUpdate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        memory_UD: Tensor,
        partner_UD: Tensor,
        mail: Mail,
        features_EF: Tensor,
        weight_T: Tensor,
        bias_T: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        weight_ih, weight_hh, _, _ = weights
        memory, row_M = memory_UD.numpy(), mail.row_M.numpy()
        out_UD = memory.copy()
        if in_float32(memory_UD):
            M, (G, width) = len(row_M), weight_ih.shape
            input_MI, gate_MG = np.empty((M, width), np.float32), np.empty((M, G), np.float32)
            hidden_MD = np.empty((M, weight_hh.shape[1]), np.float32)
            memory_kernels.gru_update(
                *_input_arrays(memory_UD, partner_UD, mail, features_EF, weight_T, bias_T),
                *map(array_of, weights), input_MI, gate_MG, hidden_MD, out_UD,
            )  # fmt: skip
        else:
            inputs = _inputs(memory_UD, partner_UD, mail, features_EF, weight_T, bias_T)
            gates, hidden = cells.gru_gates(inputs, *weights)
            input_MI, gate_MG, hidden_MD = inputs.numpy(), gates.numpy(), hidden.numpy()
            memory_kernels.gru_forward(gate_MG, hidden_MD, memory, row_M, out_UD)
        ctx.save_for_backward(weight_T, bias_T, weight_ih, memory_UD)
        ctx.mail, ctx.read = mail, (gate_MG, hidden_MD, memory, row_M)
        ctx.inputs = torch.from_numpy(input_MI)
        return torch.from_numpy(out_UD)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gate_MG, hidden_MD, _, _ = ctx.read
        grad_gate, grad_hidden = np.empty_like(gate_MG), np.empty_like(hidden_MD)
        grad_bias_A = np.empty(4 * hidden_MD.shape[1], hidden_MD.dtype)
        memory_kernels.gru_backward(
            *ctx.read, array_of(grads[0]), grad_gate, grad_hidden, grad_bias_A
        )
        grad_gate_MG, grad_hidden_MD = torch.from_numpy(grad_gate), torch.from_numpy(grad_hidden)
        return (
            None, None, None, None, *_time_gradients(ctx, grad_gate_MG),
            *cells.gru_gradients(
                grad_gate_MG, grad_hidden_MD, torch.from_numpy(grad_bias_A), ctx.inputs
            ),
        )  # fmt: skip


class _RnnUpdate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        memory_UD: Tensor,
        partner_UD: Tensor,
        mail: Mail,
        features_EF: Tensor,
        weight_T: Tensor,
        bias_T: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        weight_ih = weights[0]
        out_UD = memory_UD.clone()
        if in_float32(memory_UD):
            D, width = weight_ih.shape
            input_MI = memory_UD.new_empty(len(mail.row_M), width)
            updated_MD = memory_UD.new_empty(len(mail.row_M), D)
            memory_kernels.rnn_update(
                *_input_arrays(memory_UD, partner_UD, mail, features_EF, weight_T, bias_T),
                *map(array_of, weights), input_MI.numpy(), updated_MD.numpy(), out_UD.numpy(),
            )  # fmt: skip
        else:
            input_MI = _inputs(memory_UD, partner_UD, mail, features_EF, weight_T, bias_T)
            updated_MD = cells.rnn_gate(input_MI, *weights).tanh_()
            out_UD.index_copy_(0, mail.row_M.long(), updated_MD)
        ctx.save_for_backward(weight_T, bias_T, weight_ih)
        ctx.mail, ctx.inputs, ctx.updated = mail, input_MI, updated_MD
        return out_UD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_MD = torch.empty_like(ctx.updated)
        memory_kernels.rnn_backward(
            ctx.updated.numpy(), ctx.mail.row_M.numpy(), array_of(grads[0]), grad_MD.numpy()
        )
        return (
            None, None, None, None, *_time_gradients(ctx, grad_MD),
            *cells.rnn_gradients(grad_MD, ctx.inputs),
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
    """Apply pending messages to memory (TGN eq. 1-4); nodes without mail keep their memory.

    The message is [own memory ; partner's memory ; event features ; Phi(mail time - last update)],
    averaged over the node's mails. Gradients reach the parameters, never the stored memory
    (truncated backpropagation, as in TGN).

    Args:
        cell: "gru" or "rnn".
        memory_UD: [U, D] stored memories, no gradient.
        partner_UD: [U, D] memory of the partner at mail time (averaged over mails), no gradient.
        mail: which rows have mail.
        features_EF: [E, F] event features, float32 or bfloat16.
        weight_T, bias_T: time code parameters.
        weight_ih: [G, 2 D + F + T], weight_hh: [G, D], bias_ih, bias_hh: [G]; G = 3 D (gru: reset,
            update, candidate) or D (rnn).

    Returns:
        [U, D] updated memories.
    """
    arguments = (
        memory_UD, partner_UD, mail, features_EF, weight_T, bias_T,
        weight_ih, weight_hh, bias_ih, bias_hh,
    )  # fmt: skip
    if (device_ops := _triton(memory_UD)) is not None:
        return device_ops.memory_update(cell, *arguments)  # type: ignore[no-any-return]
    if not _fast(memory_UD) or memory_UD.requires_grad or partner_UD.requires_grad:
        return reference.memory_update(cell, *arguments)
    function = _GruUpdate if cell == "gru" else _RnnUpdate
    return _apply(function, *arguments)
