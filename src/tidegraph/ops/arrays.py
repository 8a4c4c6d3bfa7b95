"""Tensors as NumPy arrays, for kernels: what lies between PyTorch and the compiled code.

An operator's intermediate results are arrays from the start: to make a tensor and take its array
costs five times as much, and a step makes a hundred of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def array_of(tensor: Tensor) -> np.ndarray:
    """A tensor's numbers, contiguous: its own memory, or a copy where that has gaps.

    >>> array_of(torch.ones(2, 2, requires_grad=True)[:, :1]).tolist()
    [[1.0], [1.0]]
    """
    array: np.ndarray = tensor.detach().numpy()
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def weight_gradient(grad_NE: np.ndarray, row_NJ: np.ndarray) -> Tensor:
    """[E, J] or [H, E, J] of out = row @ weight.T: gradients of the results, transposed, times the
    rows; any strides."""
    grad, row = torch.from_numpy(grad_NE), torch.from_numpy(row_NJ)
    multiply: Any = torch.mm if grad.dim() == 2 else torch.bmm
    found: Tensor = multiply(grad.transpose(-1, -2), row)
    return found
