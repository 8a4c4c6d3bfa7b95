"""CPU kernels of the memory update: building the cell's inputs, and the fused cells.

Only nodes with pending mail are touched. The cells work in place on the gate buffers, so a step
allocates what PyTorch's matrix products return and nothing else.

Shape legend: U unique nodes, M nodes with mail, L mails, D memory width, F event-feature width,
T time-code width.
"""

from __future__ import annotations

import numba
import numpy as np

from tidegraph._jit import kernel
from tidegraph.ops.attention_kernels import BLOCK
from tidegraph.ops.elementary import sigmoid, tanh
from tidegraph.ops.feature_rows import add_features, copy_features
from tidegraph.ops.row_kernels import copy_row
from tidegraph.ops.time_kernels import split_turns, time_code, time_slope


@kernel(sums=True)
def _inputs_block(  # type: ignore[no-untyped-def]
    first, last, memory_UD, partner_UD, row_M, indptr_M1, event_L, delta_L,
    features_EF, weight_T, bias_T, input_MI,
):  # fmt: skip
    D = memory_UD.shape[1]
    P = partner_UD.shape[1]
    F = features_EF.shape[1]
    T = weight_T.shape[0]
    one_T = np.empty(T, input_MI.dtype)
    turns_4T = np.empty((4, T), np.float32)
    limits = split_turns(weight_T, bias_T, turns_4T)
    for m in range(first, last):
        row = row_M[m]
        copy_row(input_MI[m, :D], memory_UD[row])
        copy_row(input_MI[m, D : D + P], partner_UD[row])
        feature_F, code_T = input_MI[m, D + P : D + P + F], input_MI[m, D + P + F :]
        mails = indptr_M1[m + 1] - indptr_M1[m]
        if mails == 1:
            mail = indptr_M1[m]
            if F > 0:
                copy_features(feature_F, features_EF, event_L[mail])
            time_code(code_T, delta_L[mail], turns_4T, limits, weight_T, bias_T)
            continue
        feature_F[:] = 0
        code_T[:] = 0
        scale = input_MI.dtype.type(1.0 / mails)
        for mail in range(indptr_M1[m], indptr_M1[m + 1]):
            time_code(one_T, delta_L[mail], turns_4T, limits, weight_T, bias_T)
            if F > 0:
                add_features(feature_F, scale, features_EF, event_L[mail])
            for j in range(T):
                code_T[j] += scale * one_T[j]


@kernel(parallel=True)
def build_inputs(  # type: ignore[no-untyped-def]
    memory_UD, partner_UD, row_M, indptr_M1, event_L, delta_L,
    features_EF, weight_T, bias_T, input_MI,
):  # fmt: skip
    """input[m] = [own memory ; partner's memory ; mean event features ; mean time code]."""
    M = row_M.shape[0]
    blocks = (M + BLOCK - 1) // BLOCK
    for block in numba.prange(blocks):
        _inputs_block(
            block * BLOCK, min(M, block * BLOCK + BLOCK), memory_UD, partner_UD, row_M,
            indptr_M1, event_L, delta_L, features_EF, weight_T, bias_T, input_MI,
        )  # fmt: skip


@kernel(sums=True)
def _time_gradient_block(  # type: ignore[no-untyped-def]
    first, last, grad_code_MT, indptr_M1, delta_L, weight_T, bias_T, grad_weight_T, grad_bias_T
):
    T = weight_T.shape[0]
    slope_T = np.empty(T, grad_code_MT.dtype)
    turns_4T = np.empty((4, T), np.float32)
    limits = split_turns(weight_T, bias_T, turns_4T)
    grad_weight_T[:] = 0
    grad_bias_T[:] = 0
    for m in range(first, last):
        scale = 1.0 / (indptr_M1[m + 1] - indptr_M1[m])
        for mail in range(indptr_M1[m], indptr_M1[m + 1]):
            time_slope(slope_T, delta_L[mail], turns_4T, limits, weight_T, bias_T)
            d = np.float64(delta_L[mail])
            for j in range(T):
                step = scale * np.float64(grad_code_MT[m, j] * slope_T[j])
                grad_bias_T[j] += step
                grad_weight_T[j] += step * d


@kernel(parallel=True)
def time_gradient(  # type: ignore[no-untyped-def]
    grad_code_MT, indptr_M1, delta_L, weight_T, bias_T, grad_weight_BT, grad_bias_BT
):
    """Gradients of the time code's parameters, one float64 row a block."""
    M = grad_code_MT.shape[0]
    blocks = (M + BLOCK - 1) // BLOCK
    for block in numba.prange(blocks):
        _time_gradient_block(
            block * BLOCK, min(M, block * BLOCK + BLOCK), grad_code_MT, indptr_M1, delta_L,
            weight_T, bias_T, grad_weight_BT[block], grad_bias_BT[block],
        )  # fmt: skip


@kernel(contract=True)
def _gru_forward_block(first, last, gate_MG, hidden_MD, memory_UD, row_M, out_UD):  # type: ignore[no-untyped-def]
    D = memory_UD.shape[1]
    for m in range(first, last):
        row = row_M[m]
        r, z, n = gate_MG[m, :D], gate_MG[m, D : 2 * D], gate_MG[m, 2 * D :]
        for j in range(D):
            r[j] = sigmoid(r[j])
            z[j] = sigmoid(z[j])
            n[j] = tanh(n[j] + r[j] * hidden_MD[m, j])
            out_UD[row, j] = n[j] + z[j] * (memory_UD[row, j] - n[j])


@kernel(parallel=True)
def gru_forward(gate_MG, hidden_MD, memory_UD, row_M, out_UD):  # type: ignore[no-untyped-def]
    """GRU cell in place: `gate` holds [r | z | input part of n] before, the gates after."""
    M = row_M.shape[0]
    blocks = (M + BLOCK - 1) // BLOCK
    for block in numba.prange(blocks):
        _gru_forward_block(
            block * BLOCK, min(M, block * BLOCK + BLOCK), gate_MG, hidden_MD, memory_UD,
            row_M, out_UD,
        )  # fmt: skip


@kernel(contract=True)
def _gru_backward_block(  # type: ignore[no-untyped-def]
    first, last, gate_MG, hidden_MD, memory_UD, row_M, grad_UD, grad_gate_MG, grad_hidden_MD
):
    D = memory_UD.shape[1]
    one = memory_UD.dtype.type(1)
    for m in range(first, last):
        row = row_M[m]
        r, z, n = gate_MG[m, :D], gate_MG[m, D : 2 * D], gate_MG[m, 2 * D :]
        grad_r, grad_z = grad_gate_MG[m, :D], grad_gate_MG[m, D : 2 * D]
        grad_n = grad_gate_MG[m, 2 * D :]
        for j in range(D):
            grad = grad_UD[row, j]
            step = grad * (one - z[j]) * (one - n[j] * n[j])
            grad_n[j] = step
            grad_hidden_MD[m, j] = step * r[j]
            grad_r[j] = step * hidden_MD[m, j] * r[j] * (one - r[j])
            grad_z[j] = grad * (memory_UD[row, j] - n[j]) * z[j] * (one - z[j])


@kernel(parallel=True)
def gru_backward(  # type: ignore[no-untyped-def]
    gate_MG, hidden_MD, memory_UD, row_M, grad_UD, grad_gate_MG, grad_hidden_MD
):
    """Gradients before the gates' non-linearities, from the gradient of the new memory."""
    M = row_M.shape[0]
    blocks = (M + BLOCK - 1) // BLOCK
    for block in numba.prange(blocks):
        _gru_backward_block(
            block * BLOCK, min(M, block * BLOCK + BLOCK), gate_MG, hidden_MD, memory_UD,
            row_M, grad_UD, grad_gate_MG, grad_hidden_MD,
        )  # fmt: skip
