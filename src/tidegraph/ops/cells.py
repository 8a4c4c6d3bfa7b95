"""What the memory cells of every backend have in common: their matrices and their gradients.

A cell's own memory enters through W_ih and W_hh alike, so the two are summed into one matrix before
the product. For a GRU that holds for the reset and update gates; its candidate keeps them apart.

Shape legend: M nodes with mail, D memory width, I input width, G gates in a row (3 D or D).
"""

from __future__ import annotations

import torch
from torch import Tensor

from tidegraph.ops.products import product


def gru_gates(
    input_MI: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> tuple[Tensor, Tensor]:
    """[r | z | input part of n] before their non-linearities [M, 3 D]; hidden part of n [M, D]."""
    D = weight_hh.shape[1]
    merged_GI = weight_ih.clone(memory_format=torch.contiguous_format)
    merged_GI[: 2 * D, :D] += weight_hh[: 2 * D]
    bias_G = bias_ih.clone()
    bias_G[: 2 * D] += bias_hh[: 2 * D]
    gate_MG = product(input_MI, merged_GI.t(), bias_G)
    return gate_MG, product(input_MI[:, :D], weight_hh[2 * D :].t(), bias_hh[2 * D :])


def gru_gradients(
    grad_gate_MG: Tensor, grad_hidden_MD: Tensor, grad_bias_A: Tensor, input_MI: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of W_ih, W_hh, b_ih and b_hh from those of both results of `gru_gates`.

    `grad_bias_A` [4 D] holds the sums of their columns, one after the other.
    """
    D = grad_hidden_MD.shape[1]
    grad_ih = product(grad_gate_MG.t(), input_MI)
    grad_hh = torch.cat([grad_ih[: 2 * D, :D], product(grad_hidden_MD.t(), input_MI[:, :D])])
    grad_bias_hh = torch.cat([grad_bias_A[: 2 * D], grad_bias_A[3 * D :]])
    return grad_ih, grad_hh, grad_bias_A[: 3 * D], grad_bias_hh


def rnn_gate(
    input_MI: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    """[M, D] before tanh."""
    merged_DI = weight_ih.clone(memory_format=torch.contiguous_format)
    merged_DI[:, : weight_hh.shape[1]] += weight_hh
    return product(input_MI, merged_DI.t(), bias_ih + bias_hh)


def rnn_gradients(grad_gate_MD: Tensor, input_MI: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of W_ih, W_hh, b_ih and b_hh from that of `rnn_gate`.

    Each has memory of its own: gradients that share it would be scaled twice by clipping.
    """
    grad_ih = product(grad_gate_MD.t(), input_MI)
    grad_bias = grad_gate_MD.sum(0)
    return grad_ih, grad_ih[:, : grad_gate_MD.shape[1]].clone(), grad_bias, grad_bias.clone()
