"""The time code inside Triton kernels: cos(w d + b) and its slope, exact for any difference.

The argument is formed in float64, as in the plain version (the product of two float32 numbers is
exact there), and reduced to turns with a two-part 2 pi and fused multiply-adds. A GPU's own
float64 cosine would do the same for large arguments through a table in local memory.

Shape legend: L differences, T time-code width, B blocks; a T or L at the end of a pointer's name is
its shape, in a tile's name its padded axis.
"""

# No `from __future__ import annotations`: Triton reads the annotations themselves.

import triton
import triton.language as tl

_TURNS = tl.constexpr(0.15915494309189535)  # 1 / (2 pi)
_TWO_PI = tl.constexpr(6.283185307179586)
_TWO_PI_REST = tl.constexpr(2.4492935982947064e-16)  # 2 pi minus the number above


@triton.jit
def turns_of(delta, weight, bias):  # type: ignore[no-untyped-def]
    """The turns of weight * delta + bias without whole ones, in [-1/2, 1/2]; all float64."""
    per_radian = tl.full((), _TURNS, tl.float64)
    argument = delta * weight + bias
    # The number of turns may itself be wrong in its last bits where it exceeds 2**52; any integer
    # near it will do, because what remains is reduced once more.
    whole = tl.floor(argument * per_radian)
    rest = tl.fma(-whole, tl.full((), _TWO_PI, tl.float64), argument)
    rest = tl.fma(-whole, tl.full((), _TWO_PI_REST, tl.float64), rest)
    turns = rest * per_radian
    return turns - tl.floor(turns + 0.5)


@triton.jit
def cosine_of_turns(turns, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """cos(2 pi turns) in type KIND for float64 turns in [-1/2, 1/2]."""
    quarter = 0.25 - tl.abs(turns)  # cos(2 pi t) = sin(2 pi (1/4 - |t|))
    if tl.float64 == KIND:
        return tl.sin(quarter * tl.full((), _TWO_PI, tl.float64))
    else:
        # tl.sin of a float32 is either approximate or carries a slow path with local memory; the
        # polynomial is odd, of degree 11, for [-pi/2, pi/2].
        z = quarter.to(tl.float32) * 6.2831855
        y = z * z
        p = y * -2.3889859e-08 + 2.7525562e-06
        p = p * y - 0.00019840874
        p = p * y + 0.0083333310
        p = p * y - 0.16666667
        return z + z * (y * p)


@triton.jit
def slope_of_turns(turns, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """-sin(2 pi turns), the derivative of the cosine by its argument in radians."""
    ahead = turns + 0.25  # -sin(x) = cos(x + a quarter turn)
    return cosine_of_turns(tl.where(ahead > 0.5, ahead - 1.0, ahead), KIND)


@triton.jit
def load_parameters(weight_T, bias_T, t, T: tl.constexpr):  # type: ignore[no-untyped-def]
    """The code's parameters in float64; zeros beyond T."""
    weight = tl.load(weight_T + t, mask=t < T, other=0.0).to(tl.float64)
    bias = tl.load(bias_T + t, mask=t < T, other=0.0).to(tl.float64)
    return weight, bias


@triton.jit(do_not_specialize=["L"])
def code_forward(  # type: ignore[no-untyped-def]
    delta_L, weight_T, bias_T, code_LT, L, T: tl.constexpr, TP: tl.constexpr, ROWS: tl.constexpr
):
    """code = cos(weight * delta + bias), ROWS differences a program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    t = tl.arange(0, TP)
    weight, bias = load_parameters(weight_T, bias_T, t, T)
    delta = tl.load(delta_L + row, mask=row < L, other=0.0).to(tl.float64)
    turns = turns_of(delta[:, None], weight[None, :], bias[None, :])
    code = cosine_of_turns(turns, code_LT.dtype.element_ty)
    inside = (row < L)[:, None] & (t < T)[None, :]
    tl.store(code_LT + row[:, None] * T + t[None, :], code, mask=inside)


@triton.jit(do_not_specialize=["L"])
def code_backward(  # type: ignore[no-untyped-def]
    grad_LT, delta_L, weight_T, bias_T, grad_weight_BT, grad_bias_BT, L,
    T: tl.constexpr, TP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Each program's part of the parameters' gradients, one float64 row a program."""
    block = tl.program_id(0).to(tl.int64)
    row = block * ROWS + tl.arange(0, ROWS)
    t = tl.arange(0, TP)
    weight, bias = load_parameters(weight_T, bias_T, t, T)
    delta = tl.load(delta_L + row, mask=row < L, other=0.0).to(tl.float64)
    turns = turns_of(delta[:, None], weight[None, :], bias[None, :])
    inside = (row < L)[:, None] & (t < T)[None, :]
    grad = tl.load(grad_LT + row[:, None] * T + t[None, :], mask=inside, other=0.0)
    step = (grad * slope_of_turns(turns, grad_LT.dtype.element_ty)).to(tl.float64)
    tl.store(grad_bias_BT + block * T + t, tl.sum(step, axis=0), mask=t < T)
    tl.store(grad_weight_BT + block * T + t, tl.sum(step * delta[:, None], axis=0), mask=t < T)
