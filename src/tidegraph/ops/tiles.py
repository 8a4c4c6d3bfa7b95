"""The innermost loops of matrix products on a CPU, written out for the vector registers.

They take addresses (int64) instead of arrays: an array argument costs reference counts, and one
compiled form serves all shapes and strides. Strides are in bytes. Nothing here checks bounds.

A tile of `ROWS` rows by `PANEL` columns of the result stays in registers while it is summed. The
other matrix is read from packed panels: `PANEL` columns wide, row after row, without gaps.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped
from numba.extending import intrinsic

from tidegraph._jit import kernel

cgutils: Any = untyped
_config: Any = numba.config  # its attributes are made at run time


def _has_wide_registers() -> bool:
    """Of 512 bits: this processor, or what NUMBA_CPU_FEATURES has kernels compiled for."""
    asked: str | None = _config.CPU_FEATURES
    if asked is not None:
        return "+avx512f" in asked.split(",")
    return bool(llvm.get_host_cpu_features().get("avx512f"))


# 12 of 16 registers hold sums, or 24 of 32.
ROWS, LANES = (12, 16) if _has_wide_registers() else (6, 8)
"""Rows of a tile, and numbers of a vector register."""

PANEL = 2 * LANES
"""Columns of a tile."""

_LINE = 64  # bytes that come into the cache together
_AHEAD = 1024  # bytes between what a tile reads of its panel and what it sends for: 8 or 16 steps

FLOAT = np.int64(4)
"""Bytes of a float32, for addresses in kernels."""

_WORD = ir.IntType(64)
_INDEX = ir.IntType(32)
_FLOAT = ir.FloatType()
_EIGHT = 8


def word(number: int) -> Any:
    """An int64 constant."""
    return ir.Constant(_WORD, number)


def pointer(builder: Any, kind: Any, address: Any, *offsets: Any) -> Any:
    """To a value of a type, so many bytes behind an address."""
    for offset in offsets:
        address = builder.add(address, offset)
    return builder.inttoptr(address, kind.as_pointer())


def multiply_add(builder: Any, lanes: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once, lane by lane."""
    name = f"llvm.fma.v{lanes.count}f32"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(lanes, [lanes] * 3), name)
    return builder.call(function, [a, b, c])


def spread(builder: Any, lanes: Any, number: Any) -> Any:
    """A vector of one number."""
    first = builder.insert_element(ir.Constant(lanes, ir.Undefined), number, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(
        first, first, ir.Constant(ir.VectorType(_INDEX, lanes.count), [0] * lanes.count)
    )


def prefetch(builder: Any, place: Any) -> None:
    """Begin to load the line at an address, a pointer to bytes, into the cache."""
    number = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
    begin = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    read, keep, data = (ir.Constant(number, value) for value in (0, 3, 1))
    builder.call(begin, [place, read, keep, data])


def make_tile(rows: int, width: int, vectors: int) -> Any:
    """tile(a, a_row, a_step, last, panel, depth, out, out_row, fresh) of rows x vectors * width.

    out[r] = (0 if `fresh`, else out[r]) + sum over j < depth of a[min(r, last), j] * panel[j], each
    number one chain of fused multiply-adds in the order of j. `a` is the address of its first
    row, `a_row` and `a_step` the strides between its rows and columns.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, a_row, a_step, last, panel, depth, out, out_row, fresh = args
        lanes = ir.VectorType(_FLOAT, width)
        byte = ir.IntType(8)
        starts = []
        for r in range(rows):
            row = word(r)
            row = builder.select(builder.icmp_signed("<", row, last), row, last)
            starts.append(pointer(builder, byte, a, builder.mul(row, a_row)))

        def out_at(r: int, v: int) -> Any:
            row = builder.mul(out_row, word(r))
            return pointer(builder, lanes, out, row, word(4 * width * v))

        zero = ir.Constant(lanes, [0.0] * width)
        sums = [
            [cgutils.alloca_once_value(builder, zero) for _ in range(vectors)] for _ in range(rows)
        ]
        with builder.if_then(builder.icmp_signed("==", fresh, word(0))):
            for r, row in enumerate(sums):
                for v, total in enumerate(row):
                    builder.store(builder.load(out_at(r, v), align=4), total)
        step = cgutils.alloca_once_value(builder, word(0))
        with cgutils.for_range(builder, depth) as loop:
            offset = builder.load(step)
            place = builder.mul(loop.index, word(4 * width * vectors))
            columns = [
                builder.load(pointer(builder, lanes, panel, place, word(4 * width * v)), align=4)
                for v in range(vectors)
            ]
            if vectors > 1:
                ahead = pointer(builder, byte, panel, place, word(_AHEAD))
                for line in range(0, 4 * width * vectors, _LINE):
                    prefetch(builder, builder.gep(ahead, [word(line)]))
            for start, row in zip(starts, sums, strict=True):
                number = builder.bitcast(builder.gep(start, [offset]), _FLOAT.as_pointer())
                factor = spread(builder, lanes, builder.load(number))
                for total, column in zip(row, columns, strict=True):
                    added = multiply_add(builder, lanes, factor, column, builder.load(total))
                    builder.store(added, total)
            builder.store(builder.add(offset, a_step), step)
        for r, row in enumerate(sums):
            for v, total in enumerate(row):
                builder.store(builder.load(total), out_at(r, v), align=4)
        return context.get_dummy_value()

    @intrinsic
    def tile(
        typing_context: Any, a: Any, a_row: Any, a_step: Any, last: Any, panel: Any, depth: Any,
        out: Any, out_row: Any, fresh: Any,
    ) -> Any:  # fmt: skip
        return types.void(*[types.int64] * 9), codegen

    return tile


narrow_tile: Any = make_tile(ROWS, LANES, 1)
wide_tile: Any = make_tile(ROWS, LANES, 2)


@intrinsic
def _load(typing_context: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(pointer(builder, _FLOAT, args[0]))

    return types.float32(types.int64), codegen


@intrinsic
def _store(typing_context: Any, address: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], pointer(builder, _FLOAT, args[0]))
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), codegen


@intrinsic
def _copy_numbers(typing_context: Any, to: Any, start: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, start, count = args
        lanes = ir.VectorType(_FLOAT, _EIGHT)

        def copy(kind: Any, place: Any) -> None:
            value = builder.load(pointer(builder, kind, start, place), align=4)
            builder.store(value, pointer(builder, kind, to, place), align=4)

        with builder.if_else(builder.icmp_signed(">=", count, word(_EIGHT))) as (many, few):
            with many:
                whole = builder.sdiv(builder.sub(count, word(1)), word(_EIGHT))
                with cgutils.for_range(builder, whole) as loop:
                    copy(lanes, builder.mul(loop.index, word(4 * _EIGHT)))
                copy(lanes, builder.mul(builder.sub(count, word(_EIGHT)), word(4)))
            with few, cgutils.for_range(builder, count) as loop:
                copy(_FLOAT, builder.mul(loop.index, word(4)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def _prefetch_bytes(typing_context: Any, start: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start, count = args
        lines = builder.sdiv(builder.add(count, word(_LINE - 1)), word(_LINE))
        with cgutils.for_range(builder, lines) as loop:
            place = builder.mul(loop.index, word(_LINE))
            prefetch(builder, pointer(builder, ir.IntType(8), start, place))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


# Which of two vectors' numbers (0 to 7, 8 to 15) each step of the 8 by 8 transpose takes.
_PAIRS = ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15])
_FOURS = ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])
_HALVES = ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])


@intrinsic
def _transpose_eight(typing_context: Any, to: Any, to_row: Any, start: Any, start_row: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, to_row, start, start_row = args
        lanes = ir.VectorType(_FLOAT, _EIGHT)

        def at(address: Any, row: Any, r: int) -> Any:
            return pointer(builder, lanes, address, builder.mul(row, word(r)))

        def mixed(a: Any, b: Any, picks: list[int]) -> Any:
            mask = ir.Constant(ir.VectorType(_INDEX, _EIGHT), picks)
            return builder.shuffle_vector(a, b, mask)

        rows = [builder.load(at(start, start_row, r), align=4) for r in range(_EIGHT)]
        pairs = [
            mixed(rows[r], rows[r + 1], picks) for r in range(0, _EIGHT, 2) for picks in _PAIRS
        ]
        fours = [
            mixed(pairs[q + p], pairs[q + p + 2], picks)
            for q in (0, 4)
            for p in (0, 1)
            for picks in _FOURS
        ]
        turned = [mixed(fours[r], fours[4 + r], picks) for picks in _HALVES for r in range(4)]
        for r, row in enumerate(turned):
            builder.store(row, at(to, to_row, r), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def _keep(typing_context: Any, array: Any) -> Any:
    return types.void(array), lambda context, *_: context.get_dummy_value()


keep: Any = _keep
"""keep(array): does nothing, after the last use of an address taken from the array. Without it the
compiler frees an array of the kernel's own as soon as nobody names it any more."""


@kernel(inline=True)
def panels_of(columns):  # type: ignore[no-untyped-def]
    """How many panels a matrix of so many columns has."""
    return (columns + PANEL - 1) // PANEL


@kernel(inline=True)
def address(array):  # type: ignore[no-untyped-def]
    """Of an array's first number, as int64; `keep` an array made in a kernel until it is used."""
    return np.int64(array.ctypes.data)


@kernel(inline=True)
def place(array, row, column):  # type: ignore[no-untyped-def]
    """`address` of a number in a float32 matrix whose columns have unit stride."""
    start = np.int64(row) * np.int64(array.strides[0]) + np.int64(column) * FLOAT
    return address(array) + start


load: Any = _load
"""load(address): the float32 there."""

store: Any = _store
"""store(address, value)."""

copy_numbers: Any = _copy_numbers
"""copy_numbers(to, start, count): `count` float32, by vectors of which the last two may overlap."""

prefetch_bytes: Any = _prefetch_bytes
"""prefetch_bytes(start, count): begin to load so many bytes into the cache; any address will do."""

transpose_eight: Any = _transpose_eight
"""transpose_eight(to, to_row, start, start_row): eight rows of eight float32, transposed."""
