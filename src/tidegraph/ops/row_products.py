"""Matrix products whose rows do not know each other, for scoring on a CPU.

A library's product rounds a row by its place in the matrix and by how many rows there are: the
same pair then scores a last bit apart in another batch. Here every number of the result is one
chain of fused multiply-adds over the depth, in order, whatever else is multiplied beside it, so
scores can be computed one by one or thousands at a time with the same bits.

Shape legend: I rows, J depth, K columns; tiles of 6 rows by 16 columns stay in registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel

_ROWS = 6
_LANES = 8
_PANEL = 2 * _LANES
_BLOCK = 8 * _ROWS  # rows multiplied by one thread while a panel of columns stays in its cache


def _multiply_add(builder: Any, lanes: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once, lane by lane."""
    name = f"llvm.fma.v{_LANES}f32"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(lanes, [lanes] * 3), name)
    return builder.call(function, [a, b, c])


def _tile(vectors: int) -> Any:
    """A tile of 6 rows by `vectors` times 8 columns, accumulated in registers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, *starts, b, panel, depth, out = args
        array = {
            position: context.make_array(signature.args[position])(context, builder, value).data
            for position, value in ((0, a), (1 + _ROWS, b), (4 + _ROWS, out))
        }
        a_data, b_data, out_data = array[0], array[1 + _ROWS], array[4 + _ROWS]
        number = ir.FloatType()
        lanes = ir.VectorType(number, _LANES)
        step = ir.Constant(panel.type, vectors * _LANES)
        zero = ir.Constant(lanes, [0.0] * _LANES)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES)
        new_variable: Any = cgutils.alloca_once_value
        sums = [[new_variable(builder, zero) for _ in range(vectors)] for _ in starts]

        def lanes_at(data: Any, place: Any, vector: int) -> Any:
            place = builder.add(place, ir.Constant(panel.type, vector * _LANES))
            return builder.bitcast(builder.gep(data, [place]), lanes.as_pointer())

        with cgutils.for_range(builder, depth) as loop:
            place = builder.add(panel, builder.mul(loop.index, step))
            columns = [builder.load(lanes_at(b_data, place, v), align=4) for v in range(vectors)]
            for start, row in zip(starts, sums, strict=True):
                one = builder.load(builder.gep(a_data, [builder.add(start, loop.index)]))
                first = ir.Constant(ir.IntType(32), 0)
                factor = builder.insert_element(ir.Constant(lanes, ir.Undefined), one, first)
                factor = builder.shuffle_vector(factor, factor, everywhere)
                for total, column in zip(row, columns, strict=True):
                    builder.store(
                        _multiply_add(builder, lanes, factor, column, builder.load(total)), total
                    )
        for r, row in enumerate(sums):
            place = ir.Constant(panel.type, r * _PANEL)
            for v, total in enumerate(row):
                builder.store(builder.load(total), lanes_at(out_data, place, v), align=4)
        return context.get_dummy_value()

    @intrinsic
    def tile(
        typing_context: Any, a: Any, s0: Any, s1: Any, s2: Any, s3: Any, s4: Any, s5: Any,
        b: Any, panel: Any, depth: Any, out: Any,
    ) -> Any:  # fmt: skip
        places = [types.int64] * _ROWS
        return types.void(a, *places, b, types.int64, types.int64, out), codegen

    return tile


_tile_1: Any = _tile(1)
_tile_2: Any = _tile(2)


def _row_sum(vectors: int) -> Any:
    """Add weighted rows to `vectors` times 8 columns, accumulated in registers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        weight, weight_start, row, row_start, stride, count, out, out_start = args
        weight_data, row_data, out_data = (
            context.make_array(signature.args[position])(context, builder, value).data
            for position, value in ((0, weight), (2, row), (6, out))
        )
        lanes = ir.VectorType(ir.FloatType(), _LANES)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES)
        new_variable: Any = cgutils.alloca_once_value

        def lanes_at(data: Any, place: Any, vector: int) -> Any:
            place = builder.add(place, ir.Constant(count.type, vector * _LANES))
            return builder.bitcast(builder.gep(data, [place]), lanes.as_pointer())

        sums = [
            new_variable(builder, builder.load(lanes_at(out_data, out_start, v), align=4))
            for v in range(vectors)
        ]
        with cgutils.for_range(builder, count) as loop:
            place = builder.add(row_start, builder.mul(loop.index, stride))
            one = builder.load(builder.gep(weight_data, [builder.add(weight_start, loop.index)]))
            first = ir.Constant(ir.IntType(32), 0)
            factor = builder.insert_element(ir.Constant(lanes, ir.Undefined), one, first)
            factor = builder.shuffle_vector(factor, factor, everywhere)
            for v, total in enumerate(sums):
                column = builder.load(lanes_at(row_data, place, v), align=4)
                builder.store(
                    _multiply_add(builder, lanes, factor, column, builder.load(total)), total
                )
        for v, total in enumerate(sums):
            builder.store(builder.load(total), lanes_at(out_data, out_start, v), align=4)
        return context.get_dummy_value()

    @intrinsic
    def row_sum(
        typing_context: Any, weight: Any, weight_start: Any, row: Any, row_start: Any, stride: Any,
        count: Any, out: Any, out_start: Any,
    ) -> Any:  # fmt: skip
        place = types.int64
        return types.void(weight, place, row, place, place, place, out, place), codegen

    return row_sum


_row_sum_1: Any = _row_sum(1)
_row_sum_4: Any = _row_sum(4)


@intrinsic
def _turned(
    typing_context: Any, a: Any, a_start: Any, b: Any, b_start: Any, circle: Any, sine_start: Any,
    out: Any, out_start: Any, vectors: Any,
) -> Any:  # fmt: skip
    """out = a * circle[: ...] - b * circle[sine_start : ...], eight columns at a time."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = {
            position: context.make_array(signature.args[position])(
                context, builder, args[position]
            ).data
            for position in (0, 2, 4, 6)
        }
        lanes = ir.VectorType(ir.FloatType(), _LANES)
        vectors = args[8]

        def lanes_at(position: int, place: Any) -> Any:
            return builder.bitcast(builder.gep(data[position], [place]), lanes.as_pointer())

        with cgutils.for_range(builder, vectors) as loop:
            j = builder.mul(loop.index, ir.Constant(vectors.type, _LANES))
            start = ir.Constant(vectors.type, 0)
            a_j, b_j, cosine_j, slope_j = (
                builder.load(lanes_at(position, builder.add(first, j)), align=4)
                for position, first in ((0, args[1]), (2, args[3]), (4, start), (4, args[5]))
            )
            lost = builder.fneg(builder.fmul(b_j, slope_j))
            kept = _multiply_add(builder, lanes, a_j, cosine_j, lost)
            builder.store(kept, lanes_at(6, builder.add(args[7], j)), align=4)
        return context.get_dummy_value()

    place = types.int64
    return types.void(a, place, b, place, circle, place, out, place, place), codegen


turned: Any = _turned
"""out[out_start + j] = a[a_start + j] * circle[j] - b[b_start + j] * circle[sine_start + j] over
`vectors` times eight columns; all contiguous."""


@kernel(inner=True)
def add_weighted_rows(weight_HK, h, count, row_KX, start, width, out_BX, b, first):  # type: ignore[no-untyped-def]
    """out[b, first + j] += sum over the first `count` slots of weight[h, i] * row[i, start + j].

    All three matrices are contiguous, and `width` columns, rounded up to eight, lie in each.
    """
    stride = np.int64(row_KX.shape[1])
    weight_start = np.int64(h * weight_HK.shape[1])
    out_start = np.int64(b * out_BX.shape[1] + first)
    j = np.int64(0)
    while j < width:
        if width - j > 3 * _LANES:
            _row_sum_4(
                weight_HK, weight_start, row_KX, np.int64(start + j), stride, np.int64(count),
                out_BX, out_start + j,
            )  # fmt: skip
            j += 4 * _LANES
        else:
            _row_sum_1(
                weight_HK, weight_start, row_KX, np.int64(start + j), stride, np.int64(count),
                out_BX, out_start + j,
            )  # fmt: skip
            j += _LANES


@kernel()
def pack_columns(b_JK, packed):  # type: ignore[no-untyped-def]
    """Lay out a matrix as `multiply_rows` reads it; the last panel is padded with zeros."""
    J, K = b_JK.shape
    at = 0
    for first in range(0, K, _PANEL):
        width = _LANES if K - first <= _LANES else _PANEL
        for j in range(J):
            for k in range(width):
                packed[at] = b_JK[j, first + k] if first + k < K else np.float32(0)
                at += 1


@kernel(inner=True)
def multiply_rows(a_IJ, first, last, packed, out_IK, out_first, tile):  # type: ignore[no-untyped-def]
    """out[out_first + i - first] = a[i] @ b for the rows [first, last) of `a`.

    Args:
        a_IJ: float32, of any row stride and unit column stride.
        packed: b, by `pack_columns`.
        out_IK: float32; overwritten.
        tile: float32 [96], scratch.
    """
    J, K = a_IJ.shape[1], out_IK.shape[1]
    stride = np.int64(a_IJ.strides[0] // 4)
    end = last - 1
    for column in range(0, K, _PANEL):
        width = min(_PANEL, K - column)
        panel = np.int64(column * J)
        for row in range(first, last, _ROWS):
            count = min(_ROWS, last - row)
            s0, s1, s2 = row * stride, min(row + 1, end) * stride, min(row + 2, end) * stride
            s3, s4 = min(row + 3, end) * stride, min(row + 4, end) * stride
            s5 = min(row + 5, end) * stride
            if width <= _LANES:
                _tile_1(a_IJ, s0, s1, s2, s3, s4, s5, packed, panel, np.int64(J), tile)
            else:
                _tile_2(a_IJ, s0, s1, s2, s3, s4, s5, packed, panel, np.int64(J), tile)
            for r in range(count):
                out = out_first + row - first + r
                if width == _PANEL:
                    for k in range(_PANEL):
                        out_IK[out, column + k] = tile[r * _PANEL + k]
                else:
                    for k in range(width):
                        out_IK[out, column + k] = tile[r * _PANEL + k]


@kernel(block=True)
def _product_block(first, last, a_IJ, packed, bias_K, out_IK):  # type: ignore[no-untyped-def]
    tile = np.empty(_ROWS * _PANEL, np.float32)
    multiply_rows(a_IJ, first, last, packed, out_IK, first, tile)
    if bias_K.shape[0] > 0:
        for i in range(first, last):
            for k in range(out_IK.shape[1]):
                out_IK[i, k] += bias_K[k]


@kernel()
def _product(a_IJ, packed, bias_K, out_IK):  # type: ignore[no-untyped-def]
    in_blocks(_product_block, a_IJ.shape[0], _BLOCK, (a_IJ, packed, bias_K, out_IK))


_NO_BIAS = np.empty(0, np.float32)


def packed_columns(b_JK: Tensor) -> np.ndarray:
    """A matrix as the kernels of this file take it; any strides."""
    J, K = b_JK.shape
    last = K % _PANEL
    width = K - last + (0 if last == 0 else _LANES if last <= _LANES else _PANEL)
    packed = np.empty(J * width, np.float32)
    pack_columns(b_JK.detach().numpy(), packed)
    return packed


def row_product(
    a_IJ: Tensor, b_JK: Tensor, bias_K: Tensor | None = None, out_IK: Tensor | None = None
) -> Tensor:
    """a @ b (+ bias per column); a row of the result depends on that row of `a` alone, to the bit.

    Args:
        a_IJ: float32, on the CPU; copied unless its columns have unit stride.
        b_JK: float32, any strides.
        bias_K: added after the sums.
        out_IK: written to; rows of unit stride.

    >>> import torch
    >>> a, b = torch.randn(300, 7), torch.randn(7, 5)
    >>> bool((row_product(a, b)[130:131] == row_product(a[130:131], b)).all())
    True
    """
    a_IJ = a_IJ.detach()
    if a_IJ.stride(1) != 1 and a_IJ.shape[1] > 1:
        a_IJ = a_IJ.contiguous()
    if out_IK is None:
        out_IK = a_IJ.new_empty(a_IJ.shape[0], b_JK.shape[1])
    bias = _NO_BIAS if bias_K is None else bias_K.detach().contiguous().numpy()
    _product(a_IJ.numpy(), packed_columns(b_JK), bias, out_IK.numpy())
    return out_IK
