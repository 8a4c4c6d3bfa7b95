"""Products of a few rows by a few rows, for kernels that keep both in scratch buffers.

They index whole matrices instead of taking slices (a slice counts references, atomically, and its
call costs more than the product), and take two rows and two heads at a time, so that each loaded
vector serves two multiply-adds. Buffers are padded to a multiple of the vector width: the
compiler's leftover loops, one element at a time, cost more than the padding.

Shape legend: H heads, K slots, X padded width.
"""

from __future__ import annotations

import numpy as np

from tidegraph._jit import kernel
from tidegraph.ops.tiles import address, copy_numbers, keep, place, sum_rows

_VECTOR = 32  # elements: four vectors of eight float32, what the compiler unrolls to


@kernel(inline=True)
def padded(width):  # type: ignore[no-untyped-def]
    """`width` rounded up to whole vectors."""
    return (width + _VECTOR - 1) // _VECTOR * _VECTOR


@kernel(inline=True)
def copy_row(out, row):  # type: ignore[no-untyped-def]
    """out = row, as a loop: a slice assignment compiles to ten times the code."""
    for j in range(row.shape[0]):
        out[j] = row[j]


@kernel(inline=True)
def load_row(out_KX, i, start, table_RD, r):  # type: ignore[no-untyped-def]
    """out[i, start : start + D] = table[r]."""
    if (out_KX.itemsize == 4) & (table_RD.itemsize == 4):
        copy_numbers(place(out_KX, i, start), place(table_RD, r, 0), np.int64(table_RD.shape[1]))
        keep(out_KX)
        keep(table_RD)
    else:
        _load_any(out_KX, i, start, table_RD, r)


@kernel(inner=True)
def _load_any(out_KX, i, start, table_RD, r):  # type: ignore[no-untyped-def]
    to, row, first = np.uintp(i), np.uintp(r), np.uintp(start)
    for k in range(table_RD.shape[1]):
        j = np.uintp(k)
        out_KX[to, first + j] = table_RD[row, j]


@kernel(inner=True)
def add_columns(rows_SE, first, last, total_BX, block, start):  # type: ignore[no-untyped-def]
    """total[block, start + j] = the sum of a block's rows in column j."""
    for j in range(rows_SE.shape[1]):
        total_BX[block, start + j] = 0
    for s in range(first, last):
        for j in range(rows_SE.shape[1]):
            total_BX[block, start + j] += rows_SE[s, j]


@kernel(inner=True)
def sum_blocks(total_BX, start, out_E):  # type: ignore[no-untyped-def]
    """out[j] = the sum over all blocks of what `add_columns` left from `start` on, in order."""
    for j in range(out_E.shape[0]):
        out_E[j] = 0
    for block in range(total_BX.shape[0]):
        for j in range(out_E.shape[0]):
            out_E[j] += total_BX[block, start + j]


@kernel(inner=True, sums=True)
def _dots_2_2(query_HX, h, row_KX, i):  # type: ignore[no-untyped-def]
    zero = query_HX.dtype.type(0)
    a, b, c, d = zero, zero, zero, zero
    for j in range(query_HX.shape[1]):
        p, q = query_HX[h, j], query_HX[h + 1, j]
        x, y = row_KX[i, j], row_KX[i + 1, j]
        a += p * x
        b += p * y
        c += q * x
        d += q * y
    return a, b, c, d


@kernel(inner=True, sums=True)
def _dots_2_1(query_HX, h, row_KX, i):  # type: ignore[no-untyped-def]
    zero = query_HX.dtype.type(0)
    a, b = zero, zero
    for j in range(query_HX.shape[1]):
        x = row_KX[i, j]
        a += query_HX[h, j] * x
        b += query_HX[h + 1, j] * x
    return a, b


@kernel(inner=True, sums=True)
def _dots_1_1(query_HX, h, row_KX, i):  # type: ignore[no-untyped-def]
    total = query_HX.dtype.type(0)
    for j in range(query_HX.shape[1]):
        total += query_HX[h, j] * row_KX[i, j]
    return total


@kernel()
def dots(query_HX, row_KX, count, out_HK):  # type: ignore[no-untyped-def]
    """out[h, i] = query[h] . row[i] for the first `count` rows."""
    H = query_HX.shape[0]
    even = count // 2 * 2
    for h in range(0, H // 2 * 2, 2):
        for i in range(0, even, 2):
            (out_HK[h, i], out_HK[h, i + 1], out_HK[h + 1, i], out_HK[h + 1, i + 1]) = _dots_2_2(
                query_HX, h, row_KX, i
            )
        if even < count:
            out_HK[h, even], out_HK[h + 1, even] = _dots_2_1(query_HX, h, row_KX, even)
    if H % 2:
        for i in range(count):
            out_HK[H - 1, i] = _dots_1_1(query_HX, H - 1, row_KX, i)


@kernel(inner=True, contract=True)
def _add_2_2(out_HX, h, weight_HK, row_KX, i):  # type: ignore[no-untyped-def]
    a, b = weight_HK[h, i], weight_HK[h, i + 1]
    c, d = weight_HK[h + 1, i], weight_HK[h + 1, i + 1]
    for j in range(out_HX.shape[1]):
        x, y = row_KX[i, j], row_KX[i + 1, j]
        out_HX[h, j] += a * x + b * y
        out_HX[h + 1, j] += c * x + d * y


@kernel(inner=True, contract=True)
def _add_1_1(out_HX, h, weight_HK, row_KX, i):  # type: ignore[no-untyped-def]
    a = weight_HK[h, i]
    for j in range(out_HX.shape[1]):
        out_HX[h, j] += a * row_KX[i, j]


@kernel(inline=True)
def weighted_sums(weight_HK, row_KX, count, out_HX):  # type: ignore[no-untyped-def]
    """out[h] = sum of weight[h, i] * row[i] over the first `count` rows."""
    if out_HX.itemsize == 4:
        row_bytes = np.int64(row_KX.shape[1]) * 4
        chunks = row_bytes // (4 * _VECTOR)
        H = out_HX.shape[0]
        for h in range(0, H - 1, 2):
            sum_rows(
                place(weight_HK, h, 0), place(weight_HK, h + 1, 0), address(row_KX), row_bytes,
                np.int64(count), place(out_HX, h, 0), row_bytes, chunks,
            )  # fmt: skip
        if H % 2:
            # Both sums are the same one, in the same place.
            weight, out = place(weight_HK, H - 1, 0), place(out_HX, H - 1, 0)
            sum_rows(
                weight, weight, address(row_KX), row_bytes, np.int64(count), out, np.int64(0),
                chunks,
            )  # fmt: skip
        keep(weight_HK)
        keep(row_KX)
        keep(out_HX)
    else:
        _sums_of_any(weight_HK, row_KX, count, out_HX)


@kernel(inner=True)
def _sums_of_any(weight_HK, row_KX, count, out_HX):  # type: ignore[no-untyped-def]
    H, X = out_HX.shape
    even = count // 2 * 2
    for h in range(H):
        for j in range(X):
            out_HX[h, j] = 0
    for h in range(0, H // 2 * 2, 2):
        for i in range(0, even, 2):
            _add_2_2(out_HX, h, weight_HK, row_KX, i)
        if even < count:
            _add_1_1(out_HX, h, weight_HK, row_KX, even)
            _add_1_1(out_HX, h + 1, weight_HK, row_KX, even)
    if H % 2:
        for i in range(count):
            _add_1_1(out_HX, H - 1, weight_HK, row_KX, i)
