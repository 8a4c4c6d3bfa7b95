"""Arithmetic on whole vector registers, for the inner loops that are written out.

Built while a kernel is compiled: each method adds instructions and returns the value they make.
"""

from __future__ import annotations

import struct
from typing import Any

from llvmlite import ir
from numba.core import cgutils as untyped

from tidegraph.ops.tiles import LANES, multiply_add, pointer, spread

cgutils: Any = untyped

_FLOAT = ir.FloatType()
_NUMBER = ir.IntType(32)
VECTOR = ir.VectorType(_FLOAT, LANES)
_NUMBERS = ir.VectorType(_NUMBER, LANES)
_MASK = ir.VectorType(ir.IntType(1), LANES)
_EXPONENTIAL = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip


def halves(builder: Any, vector: Any) -> tuple[Any, Any]:
    """The lower and the upper half of a vector."""
    lanes = vector.type.count // 2
    kind = ir.VectorType(_NUMBER, lanes)
    lower, upper = (
        builder.shuffle_vector(vector, vector, ir.Constant(kind, [*range(start, start + lanes)]))
        for start in (0, lanes)
    )
    return lower, upper


class Vectors:
    """Arithmetic on vectors of `LANES` float32, each operation rounded once."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def constant(self, number: float) -> Any:
        return ir.Constant(VECTOR, [_rounded(number)] * LANES)

    def spread(self, number: Any) -> Any:
        return spread(self.builder, VECTOR, number)

    def _declared(self, name: str, kind: ir.FunctionType) -> Any:
        return cgutils.get_or_insert_function(self.builder.module, kind, name)

    def _call(self, name: str, *values: Any) -> Any:
        kind = ir.FunctionType(VECTOR, [VECTOR] * len(values))
        return self.builder.call(self._declared(f"llvm.{name}.v{LANES}f32", kind), values)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return multiply_add(self.builder, VECTOR, a, b, c)

    def nearest(self, x: Any) -> Any:
        return self._call("rint", x)

    def absolute(self, x: Any) -> Any:
        return self._call("fabs", x)

    def add(self, a: Any, b: Any) -> Any:
        return self.builder.fadd(a, b)

    def sub(self, a: Any, b: Any) -> Any:
        return self.builder.fsub(a, b)

    def mul(self, a: Any, b: Any) -> Any:
        return self.builder.fmul(a, b)

    def load(self, address: Any, *offsets: Any) -> Any:
        return self.builder.load(pointer(self.builder, VECTOR, address, *offsets), align=4)

    def store(self, value: Any, address: Any, *offsets: Any) -> None:
        self.builder.store(value, pointer(self.builder, VECTOR, address, *offsets), align=4)

    def first(self, count: Any) -> Any:
        """A mask of the first `count` numbers; int64, of more than there are all."""
        counted = ir.Constant(_NUMBERS, list(range(LANES)))
        limit = spread(self.builder, _NUMBERS, self.builder.trunc(count, _NUMBER))
        return self.builder.icmp_signed("<", counted, limit)

    def load_where(self, mask: Any, other: Any, address: Any, *offsets: Any) -> Any:
        """Where the mask is not, `other`, and nothing is read."""
        start = pointer(self.builder, VECTOR, address, *offsets)
        kind = ir.FunctionType(VECTOR, [start.type, _NUMBER, _MASK, VECTOR])
        load = self._declared(f"llvm.masked.load.v{LANES}f32.p0", kind)
        return self.builder.call(load, [start, ir.Constant(_NUMBER, 4), mask, other])

    def store_where(self, mask: Any, value: Any, address: Any, *offsets: Any) -> None:
        to = pointer(self.builder, VECTOR, address, *offsets)
        kind = ir.FunctionType(ir.VoidType(), [VECTOR, to.type, _NUMBER, _MASK])
        store = self._declared(f"llvm.masked.store.v{LANES}f32.p0", kind)
        self.builder.call(store, [value, to, ir.Constant(_NUMBER, 4), mask])

    def larger(self, a: Any, b: Any) -> Any:
        """`a` where one of both is not a number."""
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), b, a)

    def largest(self, x: Any) -> Any:
        """Of its numbers, one. (LLVM's reduction compares them one after the other.)"""
        while x.type.count > 1:
            x = self.larger(*halves(self.builder, x))
        return self.builder.extract_element(x, ir.Constant(_NUMBER, 0))

    def total(self, x: Any) -> Any:
        """Of its numbers, one; halves are added to halves."""
        kind = ir.FunctionType(_FLOAT, [_FLOAT, VECTOR])
        reduce = self._declared(f"llvm.vector.reduce.fadd.v{LANES}f32", kind)
        zero = ir.Constant(_FLOAT, -0.0)
        return self.builder.call(reduce, [zero, x], fastmath=("reassoc",))

    def exponential(self, x: Any) -> Any:
        """exp(x) for x <= 0, as `elementary.exponential32`; what is not a number stays so."""
        x = self.larger(x, self.constant(-87.0))
        k = self.nearest(self.mul(x, self.constant(1.4426950408889634)))
        f = self.fma(k, self.constant(-0.693359375), x)
        f = self.fma(k, self.constant(2.12194440e-4), f)
        p = self.constant(_EXPONENTIAL[0])
        for number in _EXPONENTIAL[1:]:
            p = self.fma(p, f, self.constant(number))
        p = self.fma(p, self.mul(f, f), self.add(f, self.constant(1.0)))
        power = self.builder.add(
            self.builder.fptosi(k, _NUMBERS), ir.Constant(_NUMBERS, [127] * LANES)
        )
        power = self.builder.shl(power, ir.Constant(_NUMBERS, [23] * LANES))
        return self.mul(p, self.builder.bitcast(power, VECTOR))


def _rounded(number: float) -> float:
    """To a float32, as LLVM wants its constants."""
    (found,) = struct.unpack("f", struct.pack("f", number))
    return float(found)
