"""Vectorisable elementary functions for CPU kernels: cosine, sine, exponential, sigmoid, tanh.

Numba calls the C library for these, one scalar at a time. The forms here are branch-free
polynomials that LLVM turns into SIMD code. `sigmoid` and `tanh` of a float64 take the C library
(float64 is for gradient checks, where exactness matters more than speed).

Cosines take their argument in turns (radians / 2 pi) as a float64 and reduce it there, so that time
differences of years in seconds (arguments near 1e9) keep an absolute error below 2e-7; the
polynomial itself runs in the precision of the result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from tidegraph._jit import kernel

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)


@intrinsic
def _nearest(typing_context: Any, x: Any) -> Any:
    """`llvm.rint`: round half to even, one SIMD instruction."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.rint", [args[0].type])
        return builder.call(function, args)

    return x(x), codegen


@intrinsic
def _bitcast(typing_context: Any, bits: Any) -> Any:
    """Reinterpret an int32 as a float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.int32), codegen


# Intrinsics take a typing context that no caller passes.
nearest: Any = _nearest
_float_from_bits: Any = _bitcast

TURNS = 1.0 / (2.0 * math.pi)
"""Radians times this are turns: the argument of `cosine_of_turns`."""


@kernel(contract=True, inline=True)
def _distance_to_quarter(turns):  # type: ignore[no-untyped-def]
    """g in [-1/4, 1/4] with cos(2 pi turns) = sin(2 pi g); reduced in float64."""
    return 0.25 - abs(turns - nearest(turns))


@kernel(contract=True, inline=True)
def _sine_turn32(g):  # type: ignore[no-untyped-def]
    z = np.float32(6.2831855) * g
    y = z * z
    p = np.float32(-2.3889859e-08)
    p = p * y + np.float32(2.7525562e-06)
    p = p * y + np.float32(-0.00019840874)
    p = p * y + np.float32(0.0083333310)
    p = p * y + np.float32(-0.16666667)
    return z + z * (y * p)


@kernel(contract=True, inline=True)
def _sine_turn64(g):  # type: ignore[no-untyped-def]
    z = 6.283185307179586 * g
    y = z * z
    p = 1.9572941063391263e-20
    p = p * y - 8.22063524662433e-18
    p = p * y + 2.8114572543455206e-15
    p = p * y - 7.647163731819816e-13
    p = p * y + 1.6059043836821613e-10
    p = p * y - 2.505210838544172e-08
    p = p * y + 2.7557319223985893e-06
    p = p * y - 0.0001984126984126984
    p = p * y + 0.008333333333333333
    p = p * y - 0.16666666666666666
    return z + z * (y * p)


@kernel(contract=True, inline=True)
def exponential32(x):  # type: ignore[no-untyped-def]
    """exp(x) for a float32 `x`, clamped to [-87, 88]; relative error below 2e-7."""
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    k: Any = nearest(x * _LOG2_E)
    f = (x - k * _LN2_HIGH) - k * _LN2_LOW
    p = np.float32(1.9875691500e-4)
    p = p * f + np.float32(1.3981999507e-3)
    p = p * f + np.float32(8.3334519073e-3)
    p = p * f + np.float32(4.1665795894e-2)
    p = p * f + np.float32(1.6666665459e-1)
    p = p * f + np.float32(5.0000001201e-1)
    p = p * f * f + f + np.float32(1.0)
    return p * _float_from_bits((np.int32(k) + np.int32(127)) << np.int32(23))


@kernel(contract=True, inline=True)
def sigmoid32(x):  # type: ignore[no-untyped-def]
    """1 / (1 + exp(-x)) for a float32 `x`."""
    return np.float32(1.0) / (np.float32(1.0) + exponential32(-x))


@kernel(contract=True, inline=True)
def tanh32(x):  # type: ignore[no-untyped-def]
    """tanh(x) for a float32 `x`; absolute error below 2e-7."""
    return np.float32(1.0) - np.float32(2.0) / (np.float32(1.0) + exponential32(x + x))


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)); for use inside kernels, chosen by the type of `x`."""
    raise NotImplementedError("call this from a kernel")


def tanh(x: Any) -> Any:
    """tanh(x); for use inside kernels, chosen by the type of `x`."""
    raise NotImplementedError("call this from a kernel")


@overload(sigmoid, inline="always")
def _sigmoid_overload(x):  # type: ignore[no-untyped-def]
    if x is types.float32:
        return lambda x: sigmoid32(x)
    return lambda x: 1.0 / (1.0 + math.exp(-x))


@overload(tanh, inline="always")
def _tanh_overload(x):  # type: ignore[no-untyped-def]
    if x is types.float32:
        return lambda x: tanh32(x)
    return lambda x: math.tanh(x)


def exponential(x: Any) -> Any:
    """exp(x) for x <= 0 (a softmax's terms); for use inside kernels."""
    raise NotImplementedError("call this from a kernel")


@overload(exponential, inline="always")
def _exponential_overload(x):  # type: ignore[no-untyped-def]
    if x is types.float32:
        return lambda x: exponential32(x)
    return lambda x: math.exp(x)


def cosine_of_turns(turns: Any, like: Any) -> Any:
    """cos(2 pi turns) for a float64 `turns` below 2**50, in the type of `like`; for kernels."""
    raise NotImplementedError("call this from a kernel")


@overload(cosine_of_turns, inline="always")
def _cosine_overload(turns, like):  # type: ignore[no-untyped-def]
    if like is types.float32:
        return lambda turns, like: _sine_turn32(np.float32(_distance_to_quarter(turns)))
    return lambda turns, like: _sine_turn64(_distance_to_quarter(turns))
