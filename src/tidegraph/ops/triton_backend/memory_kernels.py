"""Triton kernels of the memory update: the cell's inputs, and the element-wise halves of the cells.

The matrix products between them are PyTorch's. Every program serves a few nodes with mail, row by
row; a node has one place in the output, so stores need no atomics.

Shape legend: U unique nodes, M nodes with mail, L mails, D memory width, P partner width,
F event-feature width, T time-code width, I = D + P + F + T, G = 3 D gates, B blocks; DP and so on:
padded to powers of two.
"""

# No `from __future__ import annotations`: Triton reads the annotations themselves.

import triton
import triton.language as tl

from tidegraph.ops.triton_backend.time_kernels import (
    cosine_of_turns,
    load_parameters,
    slope_of_turns,
    turns_of,
)


@triton.jit
def _copy_rows(  # type: ignore[no-untyped-def]
    from_UX, row, inside, to_MI, X: tl.constexpr, XP: tl.constexpr
):
    """Rows of a table to where the tile of pointers `to_MI` (one a row) says."""
    x = tl.arange(0, XP)
    mask = inside[:, None] & (x < X)[None, :]
    value = tl.load(from_UX + row[:, None] * X + x[None, :], mask=mask, other=0.0)
    tl.store(to_MI[:, None] + x[None, :], value, mask=mask)


@triton.jit(do_not_specialize=["M"])
def build_inputs(  # type: ignore[no-untyped-def]
    memory_UD, partner_UP, row_M, indptr_M1, event_L, delta_L, features_EF, weight_T, bias_T,
    input_MI, M,
    D: tl.constexpr, P: tl.constexpr, F: tl.constexpr, T: tl.constexpr,
    DP: tl.constexpr, PP: tl.constexpr, FP: tl.constexpr, TP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """input[m] = [own memory ; partner's memory ; mean event features ; mean time code]."""
    KIND: tl.constexpr = input_MI.dtype.element_ty
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = m < M
    row = tl.load(row_M + m, mask=inside, other=0).to(tl.int64)
    out = input_MI + m * (D + P + F + T)
    _copy_rows(memory_UD, row, inside, out, D, DP)
    _copy_rows(partner_UP, row, inside, out + D, P, PP)
    f, t = tl.arange(0, FP), tl.arange(0, TP)
    weight, bias = load_parameters(weight_T, bias_T, t, T)
    start = tl.load(indptr_M1 + m, mask=inside, other=0)
    mails = tl.load(indptr_M1 + m + 1, mask=inside, other=0) - start
    feature, code = tl.zeros((ROWS, FP), KIND), tl.zeros((ROWS, TP), KIND)
    for i in range(tl.max(mails, axis=0)):
        pending = i < mails
        event = tl.load(event_L + start + i, mask=pending, other=0).to(tl.int64)
        delta = tl.load(delta_L + start + i, mask=pending, other=0.0).to(tl.float64)
        mask = pending[:, None] & (f < F)[None, :]
        at = event[:, None] * F + f[None, :]
        feature += tl.load(features_EF + at, mask=mask, other=0.0).to(KIND)
        turns = turns_of(delta[:, None], weight[None, :], bias[None, :])
        code += tl.where(pending[:, None], cosine_of_turns(turns, KIND), 0.0)
    share = tl.maximum(mails, 1).to(KIND)[:, None]
    here = inside[:, None]
    tl.store((out + D + P)[:, None] + f[None, :], feature / share, mask=here & (f < F)[None, :])
    tl.store((out + D + P + F)[:, None] + t[None, :], code / share, mask=here & (t < T)[None, :])


@triton.jit(do_not_specialize=["M"])
def time_gradient(  # type: ignore[no-untyped-def]
    grad_code_MT, indptr_M1, delta_L, weight_T, bias_T, grad_weight_BT, grad_bias_BT, M,
    T: tl.constexpr, TP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The time code's gradients from those of the mean codes, one float64 row for ROWS nodes."""
    KIND: tl.constexpr = grad_code_MT.dtype.element_ty
    block = tl.program_id(0).to(tl.int64)
    m = block * ROWS + tl.arange(0, ROWS)
    inside = m < M
    t = tl.arange(0, TP)
    weight, bias = load_parameters(weight_T, bias_T, t, T)
    start = tl.load(indptr_M1 + m, mask=inside, other=0)
    mails = tl.load(indptr_M1 + m + 1, mask=inside, other=0) - start
    mask = inside[:, None] & (t < T)[None, :]
    grad = tl.load(grad_code_MT + m[:, None] * T + t[None, :], mask=mask, other=0.0)
    grad = grad / tl.maximum(mails, 1).to(KIND)[:, None]
    by_weight, by_bias = tl.zeros((ROWS, TP), tl.float64), tl.zeros((ROWS, TP), tl.float64)
    for i in range(tl.max(mails, axis=0)):
        pending = i < mails
        delta = tl.load(delta_L + start + i, mask=pending, other=0.0).to(tl.float64)
        turns = turns_of(delta[:, None], weight[None, :], bias[None, :])
        step = (grad * slope_of_turns(turns, KIND)).to(tl.float64)
        step = tl.where(pending[:, None], step, 0.0)
        by_bias += step
        by_weight += step * delta[:, None]
    tl.store(grad_weight_BT + block * T + t, tl.sum(by_weight, axis=0), mask=t < T)
    tl.store(grad_bias_BT + block * T + t, tl.sum(by_bias, axis=0), mask=t < T)


@triton.jit
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return 1.0 - 2.0 / (1.0 + tl.exp(x + x))


@triton.jit(do_not_specialize=["M"])
def gru_forward(  # type: ignore[no-untyped-def]
    gate_MG, hidden_MD, memory_UD, row_M, out_UD, M,
    D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """GRU cell in place: `gate` holds [r | z | input part of n] before, the gates after."""
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, DP)
    mask = (m < M)[:, None] & (d < D)[None, :]
    row = tl.load(row_M + m, mask=m < M, other=0).to(tl.int64)
    gate = gate_MG + m[:, None] * (3 * D) + d[None, :]
    at = row[:, None] * D + d[None, :]
    hidden = tl.load(hidden_MD + m[:, None] * D + d[None, :], mask=mask, other=0.0)
    memory = tl.load(memory_UD + at, mask=mask, other=0.0)
    r = _sigmoid(tl.load(gate, mask=mask, other=0.0))
    z = _sigmoid(tl.load(gate + D, mask=mask, other=0.0))
    n = _tanh(tl.load(gate + 2 * D, mask=mask, other=0.0) + r * hidden)
    tl.store(gate, r, mask=mask)
    tl.store(gate + D, z, mask=mask)
    tl.store(gate + 2 * D, n, mask=mask)
    tl.store(out_UD + at, n + z * (memory - n), mask=mask)


@triton.jit(do_not_specialize=["M"])
def gru_backward(  # type: ignore[no-untyped-def]
    gate_MG, hidden_MD, memory_UD, row_M, grad_UD, grad_gate_MG, grad_hidden_MD, M,
    D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Gradients before the gates' non-linearities, from the gradient of the new memory."""
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, DP)
    mask = (m < M)[:, None] & (d < D)[None, :]
    row = tl.load(row_M + m, mask=m < M, other=0).to(tl.int64)
    in_gate = m[:, None] * (3 * D) + d[None, :]
    in_hidden = m[:, None] * D + d[None, :]
    at = row[:, None] * D + d[None, :]
    grad = tl.load(grad_UD + at, mask=mask, other=0.0)
    memory = tl.load(memory_UD + at, mask=mask, other=0.0)
    hidden = tl.load(hidden_MD + in_hidden, mask=mask, other=0.0)
    r = tl.load(gate_MG + in_gate, mask=mask, other=0.0)
    z = tl.load(gate_MG + in_gate + D, mask=mask, other=0.0)
    n = tl.load(gate_MG + in_gate + 2 * D, mask=mask, other=0.0)
    step = grad * (1.0 - z) * (1.0 - n * n)
    tl.store(grad_gate_MG + in_gate + 2 * D, step, mask=mask)
    tl.store(grad_hidden_MD + in_hidden, step * r, mask=mask)
    tl.store(grad_gate_MG + in_gate, step * hidden * r * (1.0 - r), mask=mask)
    tl.store(grad_gate_MG + in_gate + D, grad * (memory - n) * z * (1.0 - z), mask=mask)


@triton.jit(do_not_specialize=["M"])
def rnn_forward(  # type: ignore[no-untyped-def]
    gate_MD, row_M, out_UD, M, D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr
):
    """RNN cell in place: `gate` holds the argument before, tanh of it after."""
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, DP)
    mask = (m < M)[:, None] & (d < D)[None, :]
    row = tl.load(row_M + m, mask=m < M, other=0).to(tl.int64)
    gate = gate_MD + m[:, None] * D + d[None, :]
    value = _tanh(tl.load(gate, mask=mask, other=0.0))
    tl.store(gate, value, mask=mask)
    tl.store(out_UD + row[:, None] * D + d[None, :], value, mask=mask)


@triton.jit(do_not_specialize=["M"])
def rnn_backward(  # type: ignore[no-untyped-def]
    gate_MD, row_M, grad_UD, grad_gate_MD, M, D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr
):
    """Gradient before the tanh, from the gradient of the new memory."""
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, DP)
    mask = (m < M)[:, None] & (d < D)[None, :]
    row = tl.load(row_M + m, mask=m < M, other=0).to(tl.int64)
    in_gate = m[:, None] * D + d[None, :]
    value = tl.load(gate_MD + in_gate, mask=mask, other=0.0)
    grad = tl.load(grad_UD + row[:, None] * D + d[None, :], mask=mask, other=0.0)
    tl.store(grad_gate_MD + in_gate, grad * (1.0 - value * value), mask=mask)
