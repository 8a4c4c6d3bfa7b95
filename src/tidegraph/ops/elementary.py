"""Vectorisable elementary functions for CPU kernels: cosine, sine, exponential, sigmoid, tanh.

Numba calls the C library for these, one scalar at a time. The forms here are branch-free
polynomials that LLVM turns into SIMD code. `sigmoid` and `tanh` of a float64 take the C library
(float64 is for gradient checks, where exactness matters more than speed).

Cosine and sine reduce their argument by multiples of pi in float64, so that time differences of
years in seconds (arguments near 1e9) keep an absolute error below 1e-7.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from tidegraph._jit import kernel

_INVERSE_PI = 1.0 / math.pi
_PI_HIGH = math.pi
_PI_LOW = 1.2246467991473532e-16
_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)


@intrinsic  # type: ignore[untyped-decorator]
def _round(typing_context, x):  # type: ignore[no-untyped-def]
    """`llvm.rint`: round half to even, one SIMD instruction."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.rint", [args[0].type])
        return builder.call(function, args)

    return x(x), codegen


@intrinsic  # type: ignore[untyped-decorator]
def _float_from_bits(typing_context, bits):  # type: ignore[no-untyped-def]
    """Reinterpret an int32 as a float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.int32), codegen


@kernel(contract=True, inline=True)
def cosine(x):  # type: ignore[no-untyped-def]
    """cos(x) for a float64 `x` with |x| < 1e9; absolute error below 1e-7."""
    n: Any = _round(x * _INVERSE_PI)
    r = (x - n * _PI_HIGH) - n * _PI_LOW
    half = n * 0.5
    sign = 1.0 - 4.0 * abs(half - _round(half))
    y = r * r
    p = 4.779477332387385e-14
    p = p * y - 1.1470745597729725e-11
    p = p * y + 2.08767569878681e-09
    p = p * y - 2.755731922398589e-07
    p = p * y + 2.48015873015873e-05
    p = p * y - 0.001388888888888889
    p = p * y + 0.041666666666666664
    p = p * y - 0.5
    return sign * (p * y + 1.0)


@kernel(contract=True, inline=True)
def sine(x):  # type: ignore[no-untyped-def]
    """sin(x) for a float64 `x` with |x| < 1e9; absolute error below 1e-7."""
    n: Any = _round(x * _INVERSE_PI)
    r = (x - n * _PI_HIGH) - n * _PI_LOW
    half = n * 0.5
    sign = 1.0 - 4.0 * abs(half - _round(half))
    y = r * r
    p = 2.8114572543455206e-15
    p = p * y - 7.647163731819816e-13
    p = p * y + 1.6059043836821613e-10
    p = p * y - 2.505210838544172e-08
    p = p * y + 2.7557319223985893e-06
    p = p * y - 0.0001984126984126984
    p = p * y + 0.008333333333333333
    p = p * y - 0.16666666666666666
    return sign * (r + r * (p * y))


@kernel(contract=True, inline=True)
def exponential32(x):  # type: ignore[no-untyped-def]
    """exp(x) for a float32 `x`, clamped to [-87, 88]; relative error below 2e-7."""
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    k: Any = _round(x * _LOG2_E)
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


def sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + exp(-x)); for use inside kernels, chosen by the type of `x`."""
    raise NotImplementedError("call this from a kernel")


def tanh(x):  # type: ignore[no-untyped-def]
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
