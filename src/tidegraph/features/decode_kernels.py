"""CPU kernels of feature stores: gather and decode in one pass, and the quantisation to int8.

Half-width numbers reach kernels as their bits (uint16), since Numba knows no such types; decoding
is integer arithmetic that LLVM vectorises on every processor, without conversion instructions.

Shape legend: E rows of a store, F width, n rows asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel

ROWS = 64
"""Rows per block of a parallel loop."""

_HALF_SCALE = np.float32(2.0**112)  # 127 - 15: the distance between the two exponents' biases


@intrinsic
def _float_from_bits(typing_context: Any, bits: Any) -> Any:
    """Reinterpret an uint32 as a float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.uint32), codegen


@kernel(inline=True)
def from_bfloat16(bits):  # type: ignore[no-untyped-def]
    """The float32 whose upper half is `bits` (uint16)."""
    return _float_from_bits(np.uint32(bits) << np.uint32(16))  # type: ignore[call-arg]


@kernel(inline=True)
def from_float16(bits):  # type: ignore[no-untyped-def]
    """The value of a finite float16 given by its bits (uint16), subnormal ones included."""
    wide = np.uint32(bits)
    size: Any = _float_from_bits(  # type: ignore[call-arg]
        (wide & np.uint32(0x7FFF)) << np.uint32(13)
    )
    sign: Any = _float_from_bits(
        ((wide & np.uint32(0x8000)) << np.uint32(16)) | np.uint32(0x3F800000)
    )
    return size * _HALF_SCALE * sign


@kernel(block=True)
def _bfloat16_block(first, last, table_EF, index_n, out_nF):  # type: ignore[no-untyped-def]
    for i in range(first, last):
        row_F, out_F = table_EF[index_n[i]], out_nF[i]
        for j in range(out_F.shape[0]):
            out_F[j] = from_bfloat16(row_F[j])


@kernel(block=True)
def _float16_block(first, last, table_EF, index_n, out_nF):  # type: ignore[no-untyped-def]
    for i in range(first, last):
        row_F, out_F = table_EF[index_n[i]], out_nF[i]
        for j in range(out_F.shape[0]):
            out_F[j] = from_float16(row_F[j])


@kernel(block=True, contract=True)
def _int8_block(first, last, table_EF, index_n, scale_F, offset_F, out_nF):  # type: ignore[no-untyped-def]
    for i in range(first, last):
        row_F, out_F = table_EF[index_n[i]], out_nF[i]
        for j in range(out_F.shape[0]):
            out_F[j] = offset_F[j] + scale_F[j] * np.float32(row_F[j])


@kernel()
def gather_bfloat16(table_EF, index_n, out_nF):  # type: ignore[no-untyped-def]
    """out[i] = the bfloat16 row index[i], decoded; `table_EF` holds bits."""
    n = index_n.shape[0]
    in_blocks(_bfloat16_block, n, ROWS, (table_EF, index_n, out_nF))


@kernel()
def gather_float16(table_EF, index_n, out_nF):  # type: ignore[no-untyped-def]
    """out[i] = the float16 row index[i], decoded; `table_EF` holds bits."""
    n = index_n.shape[0]
    in_blocks(_float16_block, n, ROWS, (table_EF, index_n, out_nF))


@kernel()
def gather_int8(table_EF, index_n, scale_F, offset_F, out_nF):  # type: ignore[no-untyped-def]
    """out[i] = offset + scale * the row index[i]."""
    n = index_n.shape[0]
    in_blocks(_int8_block, n, ROWS, (table_EF, index_n, scale_F, offset_F, out_nF))


@kernel(block=True)
def _quantize_block(  # type: ignore[no-untyped-def]
    first, last, value_nF, low_F, high_F, scale_F, offset_F, out_nF, clipped_B
):
    clipped = 0
    for i in range(first, last):
        for j in range(value_nF.shape[1]):
            x = value_nF[i, j]
            if x < low_F[j] or x > high_F[j]:
                clipped += 1
            code = 0.0
            if scale_F[j] > 0:
                code = np.rint((np.float64(x) - np.float64(offset_F[j])) / np.float64(scale_F[j]))
            out_nF[i, j] = np.int8(min(max(code, -128.0), 127.0))
    clipped_B[first // ROWS] = clipped


@kernel()
def quantize(value_nF, low_F, high_F, scale_F, offset_F, out_nF):  # type: ignore[no-untyped-def]
    """The nearest int8 code of every value; returns how many lie outside [low, high]."""
    n = value_nF.shape[0]
    clipped_B = np.empty((n + ROWS - 1) // ROWS, np.int64)
    in_blocks(
        _quantize_block, n, ROWS,
        (value_nF, low_F, high_F, scale_F, offset_F, out_nF, clipped_B),
    )  # fmt: skip
    return clipped_B.sum()
