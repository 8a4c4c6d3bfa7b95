"""Products of a few rows by a few rows, for kernels that keep both in scratch buffers.

They index whole matrices instead of taking slices (a slice counts references, atomically, and its
call costs more than the product), and take two heads at a time, so that each loaded vector serves
two multiply-adds. Buffers are padded to a multiple of the vector width: the
compiler's leftover loops, one element at a time, cost more than the padding.

Shape legend: H heads, K slots, X padded width.
"""

from __future__ import annotations

import numpy as np

from tidegraph._jit import kernel
from tidegraph.ops.row_vectors import WIDTH, dot_rows, sum_rows
from tidegraph.ops.tiles import FLOAT, address, copy_numbers, keep, place, prefetch_bytes


@kernel(inline=True)
def padded(width):  # type: ignore[no-untyped-def]
    """`width` rounded up to whole vectors."""
    return (width + WIDTH - 1) // WIDTH * WIDTH


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


@kernel(inline=True)
def expect_row(table_RD, r):  # type: ignore[no-untyped-def]
    """A row of any type will be read soon."""
    row = address(table_RD) + np.int64(r) * np.int64(table_RD.strides[0])
    prefetch_bytes(row, np.int64(table_RD.shape[1]) * np.int64(table_RD.itemsize))


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
def _dot(query_HX, h, row_KX, i):  # type: ignore[no-untyped-def]
    total = query_HX.dtype.type(0)
    for j in range(query_HX.shape[1]):
        total += query_HX[h, j] * row_KX[i, j]
    return total


@kernel(inline=True)
def dots(query_HX, row_KX, count, out_HK):  # type: ignore[no-untyped-def]
    """out[h, i] = query[h] . row[i] for the first `count` rows."""
    if (query_HX.itemsize == 4) & (row_KX.itemsize == 4):
        width = np.int64(row_KX.shape[1])
        out_row = np.int64(out_HK.strides[0])
        H = query_HX.shape[0]
        for h in range(0, H, 2):
            other = min(h + 1, H - 1)  # a last head alone is both, and so is its place
            dot_rows(
                place(query_HX, h, 0), place(query_HX, other, 0), address(row_KX), width * FLOAT,
                np.int64(count), place(out_HK, h, 0), np.int64(other - h) * out_row, width,
            )  # fmt: skip
        keep(query_HX)
        keep(row_KX)
        keep(out_HK)
    else:
        _dots_of_any(query_HX, row_KX, count, out_HK)


@kernel(inner=True)
def _dots_of_any(query_HX, row_KX, count, out_HK):  # type: ignore[no-untyped-def]
    for h in range(query_HX.shape[0]):
        for i in range(count):
            out_HK[h, i] = _dot(query_HX, h, row_KX, i)


@kernel(inner=True, contract=True)
def _add_row(out_HX, h, weight_HK, row_KX, i):  # type: ignore[no-untyped-def]
    a = weight_HK[h, i]
    for j in range(out_HX.shape[1]):
        out_HX[h, j] += a * row_KX[i, j]


@kernel(inline=True)
def weighted_sums(weight_HK, row_KX, count, out_HX):  # type: ignore[no-untyped-def]
    """out[h] = sum of weight[h, i] * row[i] over the first `count` rows."""
    if out_HX.itemsize == 4:
        width = np.int64(row_KX.shape[1])
        row_bytes = width * FLOAT
        H = out_HX.shape[0]
        for h in range(0, H, 2):
            other = min(h + 1, H - 1)
            sum_rows(
                place(weight_HK, h, 0), place(weight_HK, other, 0), address(row_KX), row_bytes,
                np.int64(count), place(out_HX, h, 0), np.int64(other - h) * row_bytes, width,
            )  # fmt: skip
        keep(weight_HK)
        keep(row_KX)
        keep(out_HX)
    else:
        _sums_of_any(weight_HK, row_KX, count, out_HX)


@kernel(inner=True)
def _sums_of_any(weight_HK, row_KX, count, out_HX):  # type: ignore[no-untyped-def]
    for h in range(out_HX.shape[0]):
        for j in range(out_HX.shape[1]):
            out_HX[h, j] = 0
        for i in range(count):
            _add_row(out_HX, h, weight_HK, row_KX, i)
