"""The time code inside CPU kernels: cos(w d + b) and its slope -sin(w d + b).

Arguments are formed in turns (radians / 2 pi), where reducing them is a subtraction. A float32
product d w is split into its rounded value and its exact remainder (a fused multiply-add gives it),
and the weight itself into two float32 halves, so that a vector of codes keeps the accuracy of a
float64 argument. That holds up to `_MOST_TURNS`; longer differences take a float64 argument, and
those beyond `LARGEST_DELTA` the C library.

Shape legend: T time-code width, X padded width.
"""

from __future__ import annotations

import math

import numpy as np

from tidegraph._jit import kernel
from tidegraph.ops.elementary import TURNS, cosine_of_turns
from tidegraph.ops.tiles import FLOAT, address, keep, place
from tidegraph.ops.time_vectors import plain_circles, plain_codes, split_codes

LARGEST_DELTA = 1e9
"""Beyond it (30 years in seconds, 11 days in milliseconds) the C library's cosine is taken: the
vectorised one counts turns in a float64, whose last bit is then no longer small."""
_MOST_TURNS = 2.0**20  # the remainder of d w is then below 2**-4 turns, known to 2**-28


@kernel()
def split_turns(weight_T, bias_T, turns_3X):  # type: ignore[no-untyped-def]
    """Fill `turns_3X`: the weights' upper and lower halves and the biases, all in turns.

    X is a multiple of `LANES`.

    Returns the largest differences for which they may be used, with a bias or a shift and without
    either: 0 unless the weights are float32, the second also 0 where there is any bias.
    """
    turns_3X[:] = 0
    largest = 0.0
    for j in range(weight_T.shape[0]):
        weight = np.float64(weight_T[j]) * TURNS
        bias = np.float64(bias_T[j]) * TURNS
        turns_3X[0, j] = weight
        turns_3X[1, j] = weight - np.float64(turns_3X[0, j])
        turns_3X[2, j] = bias - np.rint(bias)
        largest = max(largest, abs(weight))
    if weight_T.itemsize > 4:
        return 0.0, 0.0
    limit = _MOST_TURNS / max(largest, 1e-30)
    for j in range(bias_T.shape[0]):
        if bias_T[j] != 0:
            return limit, 0.0
    return limit, limit


@kernel(inline=True)
def time_code(out_KX, i, start, delta, turns_3X, limits, weight_T, bias_T):  # type: ignore[no-untyped-def]
    """out[i, start + j] = cos(weight[j] * delta + bias[j])."""
    # Into the caller, as addresses: a call with arrays counts references, which took twice as long
    # as the codes themselves.
    if abs(np.float64(delta)) < limits[1]:
        plain_codes(
            place(out_KX, i, start), np.float32(delta), address(turns_3X), _row_bytes(turns_3X),
            np.int64(weight_T.shape[0]),
        )  # fmt: skip
        keep(out_KX)
        keep(turns_3X)
    else:
        _code(out_KX, i, start, delta, 0.0, turns_3X, limits, weight_T, bias_T)


@kernel(inline=True)
def time_slope(out_KX, i, start, delta, turns_3X, limits, weight_T, bias_T):  # type: ignore[no-untyped-def]
    """out[i, start + j] = -sin(weight[j] * delta + bias[j]), the code's slope by its argument."""
    # -sin(x) = cos(x + a quarter turn).
    _code(out_KX, i, start, delta, 0.25, turns_3X, limits, weight_T, bias_T)


@kernel(inline=True)
def time_circle(  # type: ignore[no-untyped-def]
    out_KY, i, delta, turns_3X, limits, weight_T, bias_T, scratch_2X
):
    """Both at once, side by side: out[i, j] = cos(weight[j] * delta + bias[j]), and from X on
    -sin(...)."""
    if abs(np.float64(delta)) < limits[1]:
        width = np.int64(turns_3X.shape[1])
        out = place(out_KY, i, 0)
        plain_circles(
            out, out + width * FLOAT, np.float32(delta), address(turns_3X), width * FLOAT, width
        )
        keep(out_KY)
        keep(turns_3X)
    else:
        _circle(out_KY, i, delta, turns_3X, limits, weight_T, bias_T, scratch_2X)


@kernel(inner=True)
def _circle(out_KY, i, delta, turns_3X, limits, weight_T, bias_T, scratch_2X):  # type: ignore[no-untyped-def]
    row, X = np.uintp(i), turns_3X.shape[1]
    _code(scratch_2X, 0, 0, delta, 0.0, turns_3X, limits, weight_T, bias_T)
    _code(scratch_2X, 1, 0, delta, 0.25, turns_3X, limits, weight_T, bias_T)
    for j in range(X):
        out_KY[row, j] = scratch_2X[0, j]
        out_KY[row, X + j] = scratch_2X[1, j]


@kernel(inner=True)
def _code(out_KX, i, start, delta, shift, turns_3X, limits, weight_T, bias_T):  # type: ignore[no-untyped-def]
    """Any code: cos(weight[j] * delta + bias[j] + `shift` turns)."""
    d, row, first = np.float64(delta), np.uintp(i), np.uintp(start)
    if abs(d) < limits[0]:
        split_codes(
            place(out_KX, i, start), np.float32(d), np.float32(shift), address(turns_3X),
            _row_bytes(turns_3X), np.int64(weight_T.shape[0]),
        )  # fmt: skip
        keep(turns_3X)
        return
    if abs(d) <= LARGEST_DELTA:
        _wide_code(out_KX, row, first, d, shift, weight_T, bias_T)
        return
    for j in range(weight_T.shape[0]):
        argument = d * np.float64(weight_T[j]) + np.float64(bias_T[j])
        out_KX[row, start + j] = math.cos(argument) if shift == 0 else -math.sin(argument)


@kernel(inline=True)
def _row_bytes(turns_3X):  # type: ignore[no-untyped-def]
    return np.int64(turns_3X.shape[1]) * FLOAT


@kernel(inner=True, contract=True)
def _wide_code(out_KX, row, first, delta, shift, weight_T, bias_T):  # type: ignore[no-untyped-def]
    # Whole matrices and unsigned places: a slice counts references, and a signed place might be
    # counted from the end, which keeps loops from becoming vectors.
    like = out_KX.dtype.type(0)
    for k in range(weight_T.shape[0]):
        j = np.uintp(k)
        turns = delta * (np.float64(weight_T[j]) * TURNS) + (np.float64(bias_T[j]) * TURNS + shift)
        out_KX[row, first + j] = cosine_of_turns(turns, like)
