"""Matrix products whose rows do not know each other, on a CPU.

A library's product rounds a row by its place in the matrix and by how many rows there are: the
same pair then scores a last bit apart in another batch. Here every number of the result is one
chain of fused multiply-adds over the depth, in order, whatever else is multiplied beside it, so
scores can be computed one by one or thousands at a time with the same bits. Kernels of training
multiply a block's rows with the same functions, between their other steps, while the rows are in
the cache.

Inside kernels matrices are addresses and strides in bytes, as in `tiles`.

Shape legend: I rows, J depth, K columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tidegraph._blocks import apart, in_blocks
from tidegraph._jit import kernel
from tidegraph.ops.tiles import (
    FLOAT,
    LANES,
    PANEL,
    ROWS,
    address,
    copy_numbers,
    keep,
    load,
    narrow_tile,
    panels_of,
    store,
    transpose_eight,
    wide_tile,
)

_BLOCK = 8 * ROWS  # rows multiplied by one thread while a panel of columns stays in its cache
_DEPTH = np.int64(512)  # a panel of so many rows stays in the first-level cache
SCRATCH = ROWS * PANEL
"""Numbers of scratch memory that `multiply_rows` takes."""


def _packed_size(depth: int, columns: int) -> int:
    """Numbers that a packed matrix takes."""
    rest = columns % PANEL
    return depth * (columns - rest + (0 if rest == 0 else LANES if rest <= LANES else PANEL))


packed_size: Any = kernel(inline=True)(_packed_size)


@kernel(inner=True)
def pack_panels(b, b_row, b_column, depth, columns, first, last, to):  # type: ignore[no-untyped-def]
    """Lay out the panels [first, last) of a matrix as `multiply_rows` reads them, from `to` on.

    The last panel may be half as wide; it is padded with zeros.
    """
    for p in range(first, last):
        column = np.int64(p * PANEL)
        left = columns - column
        width = np.int64(LANES if left <= LANES else PANEL)
        start = b + column * b_column
        out = to + column * depth * FLOAT
        out_row = width * FLOAT
        j = np.int64(0)
        if (left >= width) & (b_column == FLOAT):
            while j < depth:
                copy_numbers(out + j * out_row, start + j * b_row, width)
                j += 1
        elif (left >= width) & (b_row == FLOAT):
            while j + 8 <= depth:
                for k in range(0, width, 8):
                    to_place = out + j * out_row + np.int64(k) * FLOAT
                    from_place = start + j * b_row + np.int64(k) * b_column
                    transpose_eight(to_place, out_row, from_place, b_column)
                j += 8
        while j < depth:
            for k in range(width):
                value = np.float32(0)
                if k < left:
                    value = load(start + j * b_row + np.int64(k) * b_column)
                store(out + j * out_row + np.int64(k) * FLOAT, value)
            j += 1


@kernel(inner=True)
def multiply_rows(a, a_row, rows, depth, packed, columns, out, out_row, fresh, scratch):  # type: ignore[no-untyped-def]
    """out = (0 if `fresh`, else out) + a @ b for so many rows of unit column stride.

    Args:
        packed: the address of all of b's panels.
        fresh: 1, or 0 to add to what is there.
        scratch: the address of `SCRATCH` numbers.
    """
    scratch_row = np.int64(PANEL * 4)
    for begin in range(0, max(depth, np.int64(1)), _DEPTH):
        steps = min(_DEPTH, depth - begin)
        start = fresh if begin == 0 else np.int64(0)
        for column in range(0, columns, PANEL):
            left = columns - column
            width = np.int64(LANES if left <= LANES else PANEL)
            panel = packed + (column * depth + begin * width) * FLOAT
            for i in range(0, rows, ROWS):
                count = min(np.int64(ROWS), rows - i)
                rows_at = a + i * a_row + begin * FLOAT
                place = out + i * out_row + column * FLOAT
                partial = (count < ROWS) | (left < width)
                to = scratch if partial else place
                to_row = scratch_row if partial else out_row
                if partial & (start == 0):
                    _copy_corner(to, to_row, place, out_row, count, min(width, left))
                if width == PANEL:
                    wide_tile(rows_at, a_row, FLOAT, count - 1, panel, steps, to, to_row, start)
                else:
                    narrow_tile(rows_at, a_row, FLOAT, count - 1, panel, steps, to, to_row, start)
                if partial:
                    _copy_corner(place, out_row, to, to_row, count, min(width, left))


@kernel(inner=True)
def _copy_corner(to, to_row, start, start_row, rows, columns):  # type: ignore[no-untyped-def]
    for r in range(rows):
        for k in range(columns):
            place = np.int64(k) * FLOAT
            store(to + np.int64(r) * to_row + place, load(start + np.int64(r) * start_row + place))


@kernel(inner=True)
def add_to_rows(out, out_row, rows, columns, bias):  # type: ignore[no-untyped-def]
    """out[i] += bias for so many rows."""
    for i in range(rows):
        row = out + np.int64(i) * out_row
        for k in range(columns):
            place = np.int64(k) * FLOAT
            store(row + place, load(row + place) + load(bias + place))


# Columns of a list of matrices to be packed: address, strides, depth, columns, where to, and the
# number of panels before it.
JOB = 7


@kernel(inner=True)
def add_job(jobs_N7, n, b, b_row, b_column, depth, columns, to):  # type: ignore[no-untyped-def]
    """Put a matrix on the list, as its n-th; returns the address behind its packed form."""
    before = np.int64(0)
    if n > 0:
        before = jobs_N7[n - 1, 6] + panels_of(jobs_N7[n - 1, 4])
    for i, value in enumerate((b, b_row, b_column, depth, columns, to, before)):
        jobs_N7[n, i] = value
    return to + packed_size(depth, columns) * FLOAT


@kernel(block=True)
def _pack_jobs_block(first, last, jobs_N7, one):  # type: ignore[no-untyped-def]
    n = np.int64(0)
    for p in range(first, last):
        while (n + one < jobs_N7.shape[0]) and (p >= jobs_N7[n + 1, 6]):
            n += one
        place = np.int64(p - jobs_N7[n, 6])
        apart(pack_panels, (
            jobs_N7[n, 0], jobs_N7[n, 1], jobs_N7[n, 2], jobs_N7[n, 3], jobs_N7[n, 4],
            place, place + one, jobs_N7[n, 5],
        ))  # fmt: skip


@kernel(inner=True)
def pack_jobs(jobs_N7):  # type: ignore[no-untyped-def]
    """Pack the listed matrices, panels dealt out to all threads."""
    last = jobs_N7.shape[0] - 1
    panels = jobs_N7[last, 6] + panels_of(jobs_N7[last, 4])
    in_blocks(_pack_jobs_block, panels, np.int64(2), (jobs_N7, np.int64(1)))


@kernel()
def _pack(b, b_row, b_column, depth, columns, packed):  # type: ignore[no-untyped-def]
    jobs_N7 = np.empty((1, JOB), np.int64)
    add_job(jobs_N7, np.int64(0), b, b_row, b_column, depth, columns, address(packed))
    pack_jobs(jobs_N7)


@kernel(block=True)
def _product_block(first, last, a, a_row, depth, packed, columns, bias, out, out_row):  # type: ignore[no-untyped-def]
    scratch = np.empty(SCRATCH, np.float32)
    place, rows = out + first * out_row, last - first
    apart(multiply_rows, (
        a + first * a_row, a_row, rows, depth, packed, columns, place, out_row, np.int64(1),
        address(scratch),
    ))  # fmt: skip
    keep(scratch)
    if bias != 0:
        add_to_rows(place, out_row, rows, columns, bias)


@kernel()
def _product(a, a_row, rows, depth, packed, columns, bias, out, out_row):  # type: ignore[no-untyped-def]
    in_blocks(
        _product_block, rows, np.int64(_BLOCK),
        (a, a_row, depth, address(packed), columns, bias, out, out_row),
    )  # fmt: skip


def packed_columns(b_JK: Tensor) -> np.ndarray:
    """A matrix as the kernels of this file take it; any strides, float32."""
    J, K = b_JK.shape
    packed = np.empty(_packed_size(J, K), np.float32)
    _pack(b_JK.data_ptr(), 4 * b_JK.stride(0), 4 * b_JK.stride(1), J, K, packed)
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
    I, J = a_IJ.shape  # noqa: E741
    K = b_JK.shape[1]
    if a_IJ.stride(1) != 1 and J > 1:
        a_IJ = a_IJ.contiguous()
    if out_IK is None:
        out_IK = torch.empty(I, K)
    bias_K = None if bias_K is None else bias_K.contiguous()
    _product(
        a_IJ.data_ptr(), 4 * a_IJ.stride(0), I, J, packed_columns(b_JK), K,
        0 if bias_K is None else bias_K.data_ptr(), out_IK.data_ptr(), 4 * out_IK.stride(0),
    )  # fmt: skip
    return out_IK
