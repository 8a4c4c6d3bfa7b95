"""The time code inside CPU kernels: cos(w d + b) and its slope -sin(w d + b).

Arguments are formed in turns (radians / 2 pi), where reducing them is a subtraction. A float32
product d w is split into its rounded value and its exact remainder (a fused multiply-add gives it),
and the weight itself into two float32 halves, so that eight codes at a time keep the accuracy of a
float64 argument. That holds up to `_MOST_TURNS`; longer differences take a float64 argument, and
those beyond `LARGEST_DELTA` the C library.

Shape legend: T time-code width, X padded width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tidegraph._jit import kernel
from tidegraph.ops.elementary import (
    TURNS,
    cosine_of_turns,
    cosine_of_turns32,
    cosine_within_half,
    fma,
    nearest,
)

LARGEST_DELTA = 1e9
"""Beyond it (30 years in seconds, 11 days in milliseconds) the C library's cosine is taken: the
vectorised one counts turns in a float64, whose last bit is then no longer small."""

_STEP = np.uintp(8)  # columns of one vector
_MOST_TURNS = 2.0**20  # the remainder of d w is then below 2**-4 turns, known to 2**-28


@kernel()
def split_turns(weight_T, bias_T, turns_4X):  # type: ignore[no-untyped-def]
    """Fill `turns_4X`: the weights' upper and lower halves and the biases, all in turns; and the
    largest weight from each column on.

    Returns the largest differences for which they may be used, with a bias or a shift and without
    either: 0 unless the weights are float32, the second also 0 where there is any bias.
    """
    turns_4X[:] = 0
    largest = 0.0
    for j in range(weight_T.shape[0]):
        weight = np.float64(weight_T[j]) * TURNS
        bias = np.float64(bias_T[j]) * TURNS
        turns_4X[0, j] = weight
        turns_4X[1, j] = weight - np.float64(turns_4X[0, j])
        turns_4X[2, j] = bias - np.rint(bias)
    for j in range(weight_T.shape[0] - 1, -1, -1):
        largest = max(largest, abs(np.float64(turns_4X[0, j])))
        turns_4X[3, j] = largest
    if weight_T.itemsize > 4:
        return 0.0, 0.0
    limit = _MOST_TURNS / max(largest, 1e-30)
    for j in range(bias_T.shape[0]):
        if bias_T[j] != 0:
            return limit, 0.0
    return limit, limit


@kernel()
def time_code(out_KX, i, start, delta, turns_4X, limits, weight_T, bias_T):  # type: ignore[no-untyped-def]
    """out[i, start + j] = cos(weight[j] * delta + bias[j]); from T on, anything finite."""
    _code(out_KX, i, start, delta, 0.0, turns_4X, limits, weight_T, bias_T)


@kernel()
def time_slope(out_KX, i, start, delta, turns_4X, limits, weight_T, bias_T):  # type: ignore[no-untyped-def]
    """out[i, start + j] = -sin(weight[j] * delta + bias[j]), the code's slope by its argument."""
    # -sin(x) = cos(x + a quarter turn).
    _code(out_KX, i, start, delta, 0.25, turns_4X, limits, weight_T, bias_T)


@kernel(inner=True)
def time_circle(  # type: ignore[no-untyped-def]
    out_KY, i, delta, turns_4X, limits, weight_T, bias_T, scratch_2X
):
    """Both at once, side by side: out[i, j] = cos(weight[j] * delta + bias[j]), and from X on
    -sin(...)."""
    X = turns_4X.shape[1]
    d, row = np.float64(delta), np.uintp(i)
    if abs(d) < limits[1]:
        _plain_circle(out_KY, row, np.float32(d), turns_4X)
        return
    time_code(scratch_2X, 0, 0, delta, turns_4X, limits, weight_T, bias_T)
    time_slope(scratch_2X, 1, 0, delta, turns_4X, limits, weight_T, bias_T)
    for j in range(X):
        out_KY[row, j] = scratch_2X[0, j]
        out_KY[row, X + j] = scratch_2X[1, j]


@kernel(inner=True)  # without flags, as below
def _plain_circle(out_KY, row, d, turns_4X):  # type: ignore[no-untyped-def]
    X = np.uintp(turns_4X.shape[1])
    for k in range(X):
        j = np.uintp(k)
        whole = d * turns_4X[0, j]
        rest: Any = fma(d, turns_4X[1, j], fma(d, turns_4X[0, j], -whole))
        part = (whole - nearest(whole)) + rest
        out_KY[row, j] = cosine_of_turns32(part)
        out_KY[row, X + j] = cosine_of_turns32(part + np.float32(0.25))


@kernel(inner=True)
def _code(out_KX, i, start, delta, shift, turns_4X, limits, weight_T, bias_T):  # type: ignore[no-untyped-def]
    # Whole matrices and unsigned places: a slice counts references, atomically, and a signed place
    # might be counted from the end, which keeps loops from becoming vectors.
    d, row, first = np.float64(delta), np.uintp(i), np.uintp(start)
    if shift == 0 and abs(d) < limits[1]:
        _plain_code(out_KX, row, first, np.float32(d), turns_4X)
        return
    if abs(d) < limits[0]:
        _split_code(out_KX, row, first, np.float32(d), np.float32(shift), turns_4X)
        return
    for j in range(start + weight_T.shape[0], out_KX.shape[1]):
        out_KX[row, j] = 0
    if abs(d) <= LARGEST_DELTA:
        _wide_code(out_KX, row, first, d, shift, weight_T, bias_T)
        return
    for j in range(weight_T.shape[0]):
        argument = d * np.float64(weight_T[j]) + np.float64(bias_T[j])
        out_KX[row, start + j] = math.cos(argument) if shift == 0 else -math.sin(argument)


@kernel(inner=True)  # as below, without bias and shift
def _plain_code(out_KX, row, first, d, turns_4X):  # type: ignore[no-untyped-def]
    # Weights fall from left to right, if they are the usual ones. From some column on, no argument
    # reaches half a turn: nothing is to be reduced there, and what rounding takes is small.
    width = np.uintp(out_KX.shape[1]) - first
    fast = width
    bound = np.float32(0.5) / max(abs(d), np.float32(1e-30))
    while fast > 0:
        begin = (fast - np.uintp(1)) // _STEP * _STEP
        if turns_4X[3, begin] >= bound:
            break
        fast = begin
    for k in range(fast):
        j = np.uintp(k)
        whole = d * turns_4X[0, j]
        rest: Any = fma(d, turns_4X[1, j], fma(d, turns_4X[0, j], -whole))
        out_KX[row, first + j] = cosine_of_turns32((whole - nearest(whole)) + rest)
    for k in range(fast, width):
        j = np.uintp(k)
        out_KX[row, first + j] = cosine_within_half(d * turns_4X[0, j])


@kernel(inner=True)  # without flags: the compiler must keep the products and differences as written
def _split_code(out_KX, row, first, d, shift, turns_4X):  # type: ignore[no-untyped-def]
    for k in range(np.uintp(out_KX.shape[1]) - first):
        j = np.uintp(k)
        upper = turns_4X[0, j]
        whole = d * upper
        rest: Any = fma(d, turns_4X[1, j], fma(d, upper, -whole))
        a = whole - nearest(whole)
        b = turns_4X[2, j] + shift
        total = a + b
        # What rounding took from the sum (Knuth's two-sum) joins the remainder.
        part = total - a
        rest += (a - (total - part)) + (b - part)
        out_KX[row, first + j] = cosine_of_turns32((total - nearest(total)) + rest)


@kernel(inner=True, contract=True)
def _wide_code(out_KX, row, first, delta, shift, weight_T, bias_T):  # type: ignore[no-untyped-def]
    like = out_KX.dtype.type(0)
    for k in range(weight_T.shape[0]):
        j = np.uintp(k)
        turns = delta * (np.float64(weight_T[j]) * TURNS) + (np.float64(bias_T[j]) * TURNS + shift)
        out_KX[row, first + j] = cosine_of_turns(turns, like)
