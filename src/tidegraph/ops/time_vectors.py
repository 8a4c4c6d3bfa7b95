"""Time codes, a vector at a time: the inner loops of `time_kernels`, written out for the registers.

A loop that the compiler turns into vectors itself takes four of them at a time and the rest one
number after the other: of a hundred codes a dozen, which took as long as all others. Here every
step is one vector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils as untyped
from numba.extending import intrinsic

from tidegraph.ops.tiles import LANES, word
from tidegraph.ops.vectors import Vectors

cgutils: Any = untyped

_BYTES = 4 * LANES
_SINE = (-2.3889859e-08, 2.7525562e-06, -0.00019840874, 0.0083333310, -0.16666667)


class _Codes(Vectors):
    """Cosines of arguments in turns."""

    def cosine_within_half(self, turns: Any) -> Any:
        """cos(2 pi turns) for `turns` in [-1/2, 1/2]: sine of the distance to a quarter."""
        g = self.sub(self.constant(0.25), self.absolute(turns))
        z = self.mul(self.constant(6.2831855), g)
        y = self.mul(z, z)
        p = self.constant(_SINE[0])
        for number in _SINE[1:]:
            p = self.fma(y, p, self.constant(number))
        return self.fma(z, self.mul(y, p), z)

    def cosine_of_turns(self, turns: Any) -> Any:
        return self.cosine_within_half(self.sub(turns, self.nearest(turns)))

    def turns(self, delta: Any, upper: Any, lower: Any) -> tuple[Any, Any]:
        """delta times a weight in two halves: the product without whole turns, and the rest."""
        whole = self.mul(delta, upper)
        lost = self.fma(delta, upper, self.builder.fneg(whole))
        return self.sub(whole, self.nearest(whole)), self.fma(delta, lower, lost)


def _over(builder: Any, width: Any, compute: Callable[[Any], list[tuple[Any, Any]]]) -> None:
    """Vectors `compute(place)` of (value, address), for each `LANES` of `width` columns; of the
    last ones only as many numbers are stored as there are columns."""
    v = _Codes(builder)
    vectors = builder.sdiv(width, word(LANES))
    with cgutils.for_range(builder, vectors) as loop:
        place = builder.mul(loop.index, word(_BYTES))
        for value, out in compute(place):
            v.store(value, out, place)
    rest = builder.srem(width, word(LANES))
    with builder.if_then(builder.icmp_signed(">", rest, word(0))):
        place = builder.mul(vectors, word(_BYTES))
        for value, out in compute(place):
            v.store_where(v.first(rest), value, out, place)


@intrinsic
def _plain_codes(
    typing_context: Any, out: Any, delta: Any, turns: Any, turns_row: Any, width: Any
) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out, delta, turns, turns_row, width = args
        v = _Codes(builder)
        delta = v.spread(delta)

        def compute(place: Any) -> list[tuple[Any, Any]]:
            part, rest = v.turns(delta, v.load(turns, place), v.load(turns, turns_row, place))
            return [(v.cosine_of_turns(v.add(part, rest)), out)]

        _over(builder, width, compute)
        return context.get_dummy_value()

    number = types.int64
    return types.void(number, types.float32, number, number, number), codegen


@intrinsic
def _plain_circles(
    typing_context: Any, out: Any, slope: Any, delta: Any, turns: Any, turns_row: Any, width: Any
) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out, slope, delta, turns, turns_row, width = args
        v = _Codes(builder)
        delta = v.spread(delta)

        def compute(place: Any) -> list[tuple[Any, Any]]:
            part, rest = v.turns(delta, v.load(turns, place), v.load(turns, turns_row, place))
            part = v.add(part, rest)
            turned = v.cosine_of_turns(v.add(part, v.constant(0.25)))
            return [(v.cosine_of_turns(part), out), (turned, slope)]

        _over(builder, width, compute)
        return context.get_dummy_value()

    number = types.int64
    return types.void(number, number, types.float32, number, number, number), codegen


@intrinsic
def _split_codes(
    typing_context: Any, out: Any, delta: Any, shift: Any, turns: Any, turns_row: Any, width: Any
) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out, delta, shift, turns, turns_row, width = args
        v = _Codes(builder)
        delta, shift = v.spread(delta), v.spread(shift)
        bias_row = builder.mul(turns_row, word(2))

        def compute(place: Any) -> list[tuple[Any, Any]]:
            a, rest = v.turns(delta, v.load(turns, place), v.load(turns, turns_row, place))
            b = v.add(v.load(turns, bias_row, place), shift)
            total = v.add(a, b)
            # What rounding took from the sum (Knuth's two-sum) joins the remainder.
            part = v.sub(total, a)
            lost = v.add(v.sub(a, v.sub(total, part)), v.sub(b, part))
            left = v.sub(total, v.nearest(total))
            return [(v.cosine_of_turns(v.add(left, v.add(rest, lost))), out)]

        _over(builder, width, compute)
        return context.get_dummy_value()

    number = types.int64
    return types.void(number, types.float32, types.float32, number, number, number), codegen


plain_codes: Any = _plain_codes
"""plain_codes(out, delta, turns, turns_row, width): cos(weight * delta), without bias.

Addresses; `turns` is that of the weights' upper halves, `turns_row` bytes before the lower ones.
Rows of it are whole vectors; of the result, `width` columns are written."""

plain_circles: Any = _plain_circles
"""plain_circles(out, slope, delta, turns, turns_row, width): cos(weight * delta), and from the
address `slope` on -sin(weight * delta)."""

split_codes: Any = _split_codes
"""split_codes(out, delta, shift, turns, turns_row, width): cos(weight * delta + bias + shift).

All in turns; the biases lie two rows below the weights' upper halves."""
