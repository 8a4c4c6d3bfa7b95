"""CPU kernels of the memory update: building the cell's inputs, and the fused cells.

Only nodes with pending mail are touched. The cells work in place on the gate buffers.

Shape legend: U unique nodes, M nodes with mail, L mails, D memory width, F event-feature width,
T time-code width, I = 2 D + F + T, G = 3 D gates, P packed.
"""

from __future__ import annotations

import numpy as np

from tidegraph._blocks import apart, in_blocks
from tidegraph._jit import kernel
from tidegraph.ops.attention_kernels import BLOCK
from tidegraph.ops.elementary import sigmoid, tanh
from tidegraph.ops.feature_rows import add_features, load_features
from tidegraph.ops.row_kernels import load_row, padded, sum_blocks
from tidegraph.ops.row_products import (
    SCRATCH,
    add_to_rows,
    multiply_rows,
    pack_panels,
    packed_size,
)
from tidegraph.ops.tiles import FLOAT, LANES, PANEL, address, keep, panels_of
from tidegraph.ops.time_kernels import split_turns, time_code, time_slope


@kernel(block=True, sums=True)
def inputs_block(  # type: ignore[no-untyped-def]
    first, last, memory_UD, partner_UD, row_M, indptr_M1, event_L, delta_L,
    features_EF, weight_T, bias_T, input_MI,
):  # fmt: skip
    D = memory_UD.shape[1]
    P = partner_UD.shape[1]
    F = features_EF.shape[1]
    T = weight_T.shape[0]
    one_1T = np.empty((1, T), input_MI.dtype)
    turns_3X = np.empty((3, padded(T)), np.float32)
    limits = split_turns(weight_T, bias_T, turns_3X)
    for m in range(first, last):
        row = row_M[m]
        load_row(input_MI, m, 0, memory_UD, row)
        load_row(input_MI, m, D, partner_UD, row)
        mails = indptr_M1[m + 1] - indptr_M1[m]
        if mails == 1:
            mail = indptr_M1[m]
            if F > 0:
                load_features(input_MI, m, D + P, features_EF, event_L[mail])
            time_code(input_MI, m, D + P + F, delta_L[mail], turns_3X, limits, weight_T, bias_T)
            continue
        feature_F, code_T = input_MI[m, D + P : D + P + F], input_MI[m, D + P + F :]
        feature_F[:] = 0
        code_T[:] = 0
        scale = input_MI.dtype.type(1.0 / mails)
        for mail in range(indptr_M1[m], indptr_M1[m + 1]):
            time_code(one_1T, 0, 0, delta_L[mail], turns_3X, limits, weight_T, bias_T)
            if F > 0:
                add_features(feature_F, scale, features_EF, event_L[mail])
            for j in range(T):
                code_T[j] += scale * one_1T[0, j]


@kernel()
def build_inputs(  # type: ignore[no-untyped-def]
    memory_UD, partner_UD, row_M, indptr_M1, event_L, delta_L,
    features_EF, weight_T, bias_T, input_MI,
):  # fmt: skip
    """input[m] = [own memory ; partner's memory ; mean event features ; mean time code]."""
    M = row_M.shape[0]
    in_blocks(
        inputs_block, M, BLOCK,
        (memory_UD, partner_UD, row_M, indptr_M1, event_L, delta_L, features_EF, weight_T, bias_T,
         input_MI),
    )  # fmt: skip


@kernel(block=True, sums=True)
def _time_gradient_block(  # type: ignore[no-untyped-def]
    first, last, grad_code_MT, indptr_M1, delta_L, weight_T, bias_T, grad_weight_BT, grad_bias_BT
):
    grad_weight_T, grad_bias_T = grad_weight_BT[first // BLOCK], grad_bias_BT[first // BLOCK]
    T = weight_T.shape[0]
    slope_1T = np.empty((1, T), grad_code_MT.dtype)
    turns_3X = np.empty((3, padded(T)), np.float32)
    limits = split_turns(weight_T, bias_T, turns_3X)
    grad_weight_T[:] = 0
    grad_bias_T[:] = 0
    for m in range(first, last):
        scale = 1.0 / (indptr_M1[m + 1] - indptr_M1[m])
        for mail in range(indptr_M1[m], indptr_M1[m + 1]):
            time_slope(slope_1T, 0, 0, delta_L[mail], turns_3X, limits, weight_T, bias_T)
            d = np.float64(delta_L[mail])
            for j in range(T):
                step = scale * np.float64(grad_code_MT[m, j] * slope_1T[0, j])
                grad_bias_T[j] += step
                grad_weight_T[j] += step * d


@kernel()
def time_gradient(  # type: ignore[no-untyped-def]
    grad_code_MT, indptr_M1, delta_L, weight_T, bias_T, grad_weight_BT, grad_bias_BT
):
    """Gradients of the time code's parameters, one float64 row a block."""
    M = grad_code_MT.shape[0]
    in_blocks(
        _time_gradient_block, M, BLOCK,
        (grad_code_MT, indptr_M1, delta_L, weight_T, bias_T, grad_weight_BT, grad_bias_BT),
    )  # fmt: skip


@kernel(block=True, contract=True)
def gru_forward_block(first, last, gate_MG, hidden_MD, memory_UD, row_M, out_UD):  # type: ignore[no-untyped-def]
    D = np.uintp(memory_UD.shape[1])
    for m in range(first, last):
        row = np.uintp(row_M[m])
        for k in range(D):
            j = np.uintp(k)
            r = sigmoid(gate_MG[m, j])
            z = sigmoid(gate_MG[m, D + j])
            n = tanh(gate_MG[m, D + D + j] + r * hidden_MD[m, j])
            gate_MG[m, j], gate_MG[m, D + j], gate_MG[m, D + D + j] = r, z, n
            out_UD[row, j] = n + z * (memory_UD[row, j] - n)


@kernel()
def gru_forward(gate_MG, hidden_MD, memory_UD, row_M, out_UD):  # type: ignore[no-untyped-def]
    """GRU cell in place: `gate` holds [r | z | input part of n] before, the gates after."""
    M = row_M.shape[0]
    in_blocks(gru_forward_block, M, BLOCK, (gate_MG, hidden_MD, memory_UD, row_M, out_UD))


@kernel(inner=True)
def _pack_merged(p, weight_ih_GI, weight_hh_GD, merged, packed_P):  # type: ignore[no-untyped-def]
    """Panel p of the cell's matrix; own memory enters the first `merged` gates once."""
    G, I = weight_ih_GI.shape  # noqa: E741
    apart(pack_panels, (
        address(weight_ih_GI), FLOAT, I * FLOAT, I, G, np.int64(p), np.int64(p + 1),
        address(packed_P),
    ))  # fmt: skip
    column = p * PANEL
    width = LANES if G - column <= LANES else PANEL
    for k in range(min(width, merged - column)):
        for j in range(weight_hh_GD.shape[1]):
            packed_P[column * I + j * width + k] += weight_hh_GD[column + k, j]


@kernel(inner=True)
def _pack_gru_block(first, last, weight_ih_GI, weight_hh_GD, gates_P, hidden_P):  # type: ignore[no-untyped-def]
    """Panels of the gates' matrix, then those of the candidate's hidden part."""
    D = weight_hh_GD.shape[1]
    panels = panels_of(weight_ih_GI.shape[0])
    for p in range(first, min(last, panels)):
        _pack_merged(p, weight_ih_GI, weight_hh_GD, 2 * D, gates_P)
    for p in range(max(first, panels), last):
        apart(pack_panels, (
            address(weight_hh_GD) + 2 * D * D * FLOAT, FLOAT, D * FLOAT, D, D,
            np.int64(p - panels), np.int64(p - panels + 1), address(hidden_P),
        ))  # fmt: skip


@kernel(inner=True)
def _gru_block(  # type: ignore[no-untyped-def]
    first, last, memory_UD, partner_UD, row_M, indptr_M1, event_L, delta_L, features_EF, weight_T,
    bias_T, gates_P, hidden_P, bias_G, bias_hh_G, input_MI, gate_MG, hidden_MD, out_UD,
):  # fmt: skip
    D, I, G = memory_UD.shape[1], input_MI.shape[1], gate_MG.shape[1]  # noqa: E741
    scratch_X = np.empty(SCRATCH, np.float32)
    scratch, new, rows = address(scratch_X), np.int64(1), last - first
    row_I, row_G, row_D = I * FLOAT, G * FLOAT, D * FLOAT
    apart(inputs_block, (
        first, last, memory_UD, partner_UD, row_M, indptr_M1, event_L, delta_L, features_EF,
        weight_T, bias_T, input_MI,
    ))  # fmt: skip
    inputs = address(input_MI) + first * row_I
    gates = address(gate_MG) + first * row_G
    hidden = address(hidden_MD) + first * row_D
    apart(multiply_rows, (inputs, row_I, rows, I, address(gates_P), G, gates, row_G, new, scratch))
    add_to_rows(gates, row_G, rows, G, address(bias_G))
    apart(
        multiply_rows, (inputs, row_I, rows, D, address(hidden_P), D, hidden, row_D, new, scratch)
    )
    add_to_rows(hidden, row_D, rows, D, address(bias_hh_G) + 2 * D * FLOAT)
    keep(scratch_X)
    apart(gru_forward_block, (first, last, gate_MG, hidden_MD, memory_UD, row_M, out_UD))


@kernel()
def gru_update(  # type: ignore[no-untyped-def]
    memory_UD, partner_UD, row_M, indptr_M1, event_L, delta_L, features_EF, weight_T, bias_T,
    weight_ih_GI, weight_hh_GD, bias_ih_G, bias_hh_G, input_MI, gate_MG, hidden_MD, out_UD,
):  # fmt: skip
    """The whole memory update of a GRU, a block of nodes with mail after the other.

    `out_UD` holds the memories on entry. `input_MI`, `gate_MG` and `hidden_MD` are kept for the way
    back: the cell's inputs, the gates, and the hidden part of the candidate.
    """
    G, I = weight_ih_GI.shape  # noqa: E741
    D = weight_hh_GD.shape[1]
    gates_P = np.empty(packed_size(I, G), np.float32)
    hidden_P = np.empty(packed_size(D, D), np.float32)
    panels = panels_of(G) + panels_of(D)
    in_blocks(_pack_gru_block, panels, np.int64(1), (weight_ih_GI, weight_hh_GD, gates_P, hidden_P))
    bias_G = bias_ih_G.copy()
    for g in range(2 * D):
        bias_G[g] += bias_hh_G[g]
    in_blocks(
        _gru_block, row_M.shape[0], BLOCK,
        (memory_UD, partner_UD, row_M, indptr_M1, event_L, delta_L, features_EF, weight_T, bias_T,
         gates_P, hidden_P, bias_G, bias_hh_G, input_MI, gate_MG, hidden_MD, out_UD),
    )  # fmt: skip


@kernel(inner=True)
def _pack_rnn_block(first, last, weight_ih_DI, weight_hh_DD, packed_P):  # type: ignore[no-untyped-def]
    for p in range(first, last):
        _pack_merged(p, weight_ih_DI, weight_hh_DD, weight_ih_DI.shape[0], packed_P)


@kernel(inner=True, contract=True)
def _rnn_block(  # type: ignore[no-untyped-def]
    first, last, memory_UD, partner_UD, row_M, indptr_M1, event_L, delta_L, features_EF, weight_T,
    bias_T, packed_P, bias_ih_D, bias_hh_D, input_MI, updated_MD, out_UD,
):  # fmt: skip
    D, I = memory_UD.shape[1], input_MI.shape[1]  # noqa: E741
    scratch_X = np.empty(SCRATCH, np.float32)
    rows, row_I, row_D = last - first, I * FLOAT, D * FLOAT
    apart(inputs_block, (
        first, last, memory_UD, partner_UD, row_M, indptr_M1, event_L, delta_L, features_EF,
        weight_T, bias_T, input_MI,
    ))  # fmt: skip
    inputs = address(input_MI) + first * row_I
    updated = address(updated_MD) + first * row_D
    apart(multiply_rows, (
        inputs, row_I, rows, I, address(packed_P), D, updated, row_D, np.int64(1),
        address(scratch_X),
    ))  # fmt: skip
    keep(scratch_X)
    for m in range(first, last):
        row = np.uintp(row_M[m])
        for k in range(D):
            j = np.uintp(k)
            value = tanh(updated_MD[m, j] + (bias_ih_D[j] + bias_hh_D[j]))
            updated_MD[m, j] = value
            out_UD[row, j] = value


@kernel()
def rnn_update(  # type: ignore[no-untyped-def]
    memory_UD, partner_UD, row_M, indptr_M1, event_L, delta_L, features_EF, weight_T, bias_T,
    weight_ih_DI, weight_hh_DD, bias_ih_D, bias_hh_D, input_MI, updated_MD, out_UD,
):  # fmt: skip
    """The whole memory update of an RNN, as `gru_update`; `updated_MD` gets the new memories."""
    D, I = weight_ih_DI.shape  # noqa: E741
    packed_P = np.empty(packed_size(I, D), np.float32)
    in_blocks(_pack_rnn_block, panels_of(D), np.int64(1), (weight_ih_DI, weight_hh_DD, packed_P))
    in_blocks(
        _rnn_block, row_M.shape[0], BLOCK,
        (memory_UD, partner_UD, row_M, indptr_M1, event_L, delta_L, features_EF, weight_T, bias_T,
         packed_P, bias_ih_D, bias_hh_D, input_MI, updated_MD, out_UD),
    )  # fmt: skip


@kernel(block=True, contract=True)
def _rnn_backward_block(first, last, updated_MD, row_M, grad_UD, grad_MD):  # type: ignore[no-untyped-def]
    one = updated_MD.dtype.type(1)
    for m in range(first, last):
        row = np.uintp(row_M[m])
        for k in range(updated_MD.shape[1]):
            j = np.uintp(k)
            grad_MD[m, j] = grad_UD[row, j] * (one - updated_MD[m, j] * updated_MD[m, j])


@kernel()
def rnn_backward(updated_MD, row_M, grad_UD, grad_MD):  # type: ignore[no-untyped-def]
    """Gradient before tanh, from that of the new memory."""
    in_blocks(_rnn_backward_block, row_M.shape[0], BLOCK, (updated_MD, row_M, grad_UD, grad_MD))


@kernel(block=True, contract=True)
def _gru_backward_block(  # type: ignore[no-untyped-def]
    first, last, gate_MG, hidden_MD, memory_UD, row_M, grad_UD, grad_gate_MG, grad_hidden_MD,
    grad_bias_BA,
):  # fmt: skip
    block = first // BLOCK
    D = np.uintp(memory_UD.shape[1])
    one = memory_UD.dtype.type(1)
    for a in range(grad_bias_BA.shape[1]):
        grad_bias_BA[block, a] = 0
    for m in range(first, last):
        row = np.uintp(row_M[m])
        for k in range(D):
            j = np.uintp(k)
            r, z, n = gate_MG[m, j], gate_MG[m, D + j], gate_MG[m, D + D + j]
            grad = grad_UD[row, j]
            grad_n = grad * (one - z) * (one - n * n)
            grad_hidden = grad_n * r
            grad_r = grad_n * hidden_MD[m, j] * r * (one - r)
            grad_z = grad * (memory_UD[row, j] - n) * z * (one - z)
            grad_hidden_MD[m, j] = grad_hidden
            grad_gate_MG[m, j] = grad_r
            grad_gate_MG[m, D + j] = grad_z
            grad_gate_MG[m, D + D + j] = grad_n
            grad_bias_BA[block, j] += grad_r
            grad_bias_BA[block, D + j] += grad_z
            grad_bias_BA[block, D + D + j] += grad_n
            grad_bias_BA[block, D + D + D + j] += grad_hidden


@kernel()
def gru_backward(  # type: ignore[no-untyped-def]
    gate_MG, hidden_MD, memory_UD, row_M, grad_UD, grad_gate_MG, grad_hidden_MD, grad_bias_A
):
    """Gradients before the gates' non-linearities, from the gradient of the new memory.

    `grad_bias_A` gets the columns' sums: [reset, update, candidate, hidden].
    """
    M = row_M.shape[0]
    grad_bias_BA = np.empty((-(-M // BLOCK), grad_bias_A.shape[0]), grad_bias_A.dtype)
    in_blocks(
        _gru_backward_block, M, BLOCK,
        (gate_MG, hidden_MD, memory_UD, row_M, grad_UD, grad_gate_MG, grad_hidden_MD, grad_bias_BA),
    )  # fmt: skip
    sum_blocks(grad_bias_BA, 0, grad_bias_A)
