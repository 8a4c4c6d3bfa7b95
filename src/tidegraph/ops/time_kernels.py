"""The time code inside CPU kernels: cos(w d + b), its slope, and its parameters' gradients.

Kernels keep the parameters in turns and in float64, padded: a product of two float32 numbers is
exact there, so fast and plain versions form the same argument.

Shape legend: T time-code width, X padded width.
"""

from __future__ import annotations

import math

import numpy as np

from tidegraph._jit import kernel
from tidegraph.ops.elementary import TURNS, cosine_of_turns

LARGEST_DELTA = 1e9
"""Beyond it (30 years in seconds, 11 days in milliseconds) the C library's cosine is taken: the
vectorised one counts turns in a float64, whose last bit is then no longer small."""


@kernel()
def in_turns(weight_T, bias_T, weight_X, bias_X):  # type: ignore[no-untyped-def]
    """Copy the parameters in turns; the padding becomes zero."""
    T = weight_T.shape[0]
    weight_X[T:] = 0
    bias_X[T:] = 0
    for j in range(T):
        weight_X[j] = np.float64(weight_T[j]) * TURNS
        bias_X[j] = np.float64(bias_T[j]) * TURNS


@kernel()
def time_code(code, delta, weight_X, bias_X, weight_T, bias_T):  # type: ignore[no-untyped-def]
    """code = cos(weight * delta + bias); elements beyond T hold anything finite."""
    d = np.float64(delta)
    if abs(d) > LARGEST_DELTA:
        code[:] = 0
        for j in range(weight_T.shape[0]):
            code[j] = math.cos(d * np.float64(weight_T[j]) + np.float64(bias_T[j]))
        return
    _fast_code(code, d, 0.0, weight_X, bias_X)


@kernel()
def time_slope(slope, delta, weight_X, bias_X, weight_T, bias_T):  # type: ignore[no-untyped-def]
    """slope = -sin(weight * delta + bias), the derivative of the code by its argument."""
    d = np.float64(delta)
    if abs(d) > LARGEST_DELTA:
        slope[:] = 0
        for j in range(weight_T.shape[0]):
            slope[j] = -math.sin(d * np.float64(weight_T[j]) + np.float64(bias_T[j]))
        return
    # -sin(x) = cos(x + a quarter turn).
    _fast_code(slope, d, 0.25, weight_X, bias_X)


@kernel(contract=True)
def _fast_code(code, delta, shift, weight_X, bias_X):  # type: ignore[no-untyped-def]
    like = code.dtype.type(0)
    for j in range(code.shape[0]):
        code[j] = cosine_of_turns(delta * weight_X[j] + (bias_X[j] + shift), like)
