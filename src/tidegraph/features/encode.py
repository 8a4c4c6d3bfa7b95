"""How features are stored in fewer bytes, and how far the stored values may be off.

A table is read twice, block by block, whatever its size: once for the columns' ranges, which give
the codes and the stated errors, and once to encode it.

Shape legend: E rows, F width, n rows of one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from tidegraph.errors import InputError, SettingError
from tidegraph.features import decode_kernels

FeatureType = Literal["float32", "float16", "bfloat16", "int8"]
FEATURE_TYPES: tuple[FeatureType, ...] = ("float32", "float16", "bfloat16", "int8")

# Beyond these a value has no finite code. The last keeps scale * code finite in float32.
_LARGEST = {"float16": 65504.0, "bfloat16": (2 - 2.0**-7) * 2.0**127, "int8": 2.0**126}
# Significant bits after the first, and the smallest step there is.
_BITS = {"float16": (10, 2.0**-24), "bfloat16": (7, 2.0**-133)}
RELATIVE_ERROR = {"float16": 1 / (1 + 2.0**11), "bfloat16": 1 / (1 + 2.0**8)}
"""Largest |stored - given| / |given| of rounding to nearest, away from underflow. It is reached by
a value halfway between 1 and the next number: u / (1 + u) with u half the spacing at 1."""
_SMALLEST_SCALE = 2.0**-126
BLOCK_BYTES = 1 << 23


def check_type(dtype: str) -> FeatureType:
    """The feature type called `dtype`.

    Raises:
        SettingError: there is none.
    """
    for known in FEATURE_TYPES:
        if dtype == known:
            return known
    raise SettingError(f"feature type {dtype!r}: expected one of {', '.join(FEATURE_TYPES)}")


@dataclass(frozen=True, eq=False)
class Encoding:
    """How one table's columns are stored.

    Attributes:
        dtype: the stored type.
        error_F: float64 [F], the most that any value of a column is off.
        scale_F, offset_F: float32 [F], value = offset + scale * code (int8 alone; else empty).
        low_F, high_F: float32 [F], the range that the codes cover (int8 alone; else empty).
    """

    dtype: FeatureType
    error_F: np.ndarray
    scale_F: np.ndarray
    offset_F: np.ndarray
    low_F: np.ndarray
    high_F: np.ndarray

    def encode(self, value_nF: np.ndarray) -> tuple[np.ndarray, int]:
        """A block as stored (half-width numbers as their bits), and how many values were clipped.

        Floats are rounded to nearest, ties to even; int8 codes to the nearest step.
        """
        if self.dtype == "int8":
            code_nF = np.empty(value_nF.shape, np.int8)
            clipped = decode_kernels.quantize(
                value_nF, self.low_F, self.high_F, self.scale_F, self.offset_F, code_nF
            )
            return code_nF, int(clipped)
        kind = torch.float16 if self.dtype == "float16" else torch.bfloat16
        stored = torch.from_numpy(value_nF).to(kind)
        return stored.view(torch.int16).numpy().view(np.uint16), 0


def encoding_of(
    table_EF: np.ndarray,
    dtype: FeatureType,
    *,
    fit: int | np.ndarray | None = None,
    names: Sequence[str] = (),
    what: str = "feature",
) -> Encoding:
    """Find how to store a table.

    Args:
        table_EF: float32 [E, F].
        dtype: "float16", "bfloat16" or "int8".
        fit: rows whose range the int8 codes cover: the first so many, a mask bool [E], or all.
            Other rows' values outside it are clipped, and `error_F` accounts for them.
        names: of the columns, for messages.
        what: the table holds, for messages.

    Raises:
        InputError: a value that is not finite or that the type cannot hold; names column and row.
    """
    limit = _LARGEST[dtype]
    whole, fitted = _Range(table_EF.shape[1]), _Range(table_EF.shape[1])
    for start, value_nF in blocks(table_EF):
        low_F, high_F = value_nF.min(axis=0), value_nF.max(axis=0)
        # Written so that NaN, which every comparison denies, is found as well.
        if not (np.all(low_F >= -limit) and np.all(high_F <= limit)):
            raise _not_storable(value_nF, start, dtype, names, what)
        whole.add(low_F, high_F)
        if dtype == "int8":
            chosen_nF = value_nF[_fit_rows(fit, start, len(value_nF))]
            if len(chosen_nF):
                fitted.add(chosen_nF.min(axis=0), chosen_nF.max(axis=0))
    if dtype == "int8":
        return _int8(whole, fitted if fitted.known else whole)
    none = np.empty(0, np.float32)
    return Encoding(dtype, _rounding_error(dtype, whole.largest()), none, none, none, none)


def blocks(table_EF: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, float32 [n, F]) over a table; each a few megabytes, read into memory."""
    rows = max(1, BLOCK_BYTES // max(1, table_EF[:1].nbytes))
    for start in range(0, len(table_EF), rows):
        yield start, np.array(table_EF[start : start + rows], dtype=np.float32, order="C")


class _Range:
    """The columns' smallest and largest values, found block by block."""

    def __init__(self, width: int) -> None:
        self.low_F = np.full(width, np.inf, np.float32)
        self.high_F = np.full(width, -np.inf, np.float32)
        self.known = False

    def add(self, low_F: np.ndarray, high_F: np.ndarray) -> None:
        np.minimum(self.low_F, low_F, out=self.low_F)
        np.maximum(self.high_F, high_F, out=self.high_F)
        self.known = True

    def largest(self) -> np.ndarray:
        """float64 [F], the largest absolute value."""
        if not self.known:
            return np.zeros(len(self.low_F))
        return np.maximum(np.abs(self.low_F), np.abs(self.high_F)).astype(np.float64)


def _fit_rows(fit: int | np.ndarray | None, start: int, count: int) -> slice | np.ndarray:
    if fit is None:
        return slice(None)
    if isinstance(fit, np.ndarray):
        mask_n: np.ndarray = fit[start : start + count]
        return mask_n
    return slice(0, max(0, int(fit) - start))


def _rounding_error(dtype: str, largest_F: np.ndarray) -> np.ndarray:
    """Half the spacing of the type's numbers at the largest value."""
    bits, smallest_step = _BITS[dtype]
    exponent_F = np.frexp(largest_F)[1] - 1
    step_F = np.maximum(np.ldexp(1.0, exponent_F - bits), smallest_step)
    error_F: np.ndarray = np.where(largest_F > 0, step_F / 2, 0.0)
    return error_F


def _int8(whole: _Range, fitted: _Range) -> Encoding:
    """256 codes over the fitted range.

    Code -128 is the lowest value and 127 the highest, so the step is a 255th of the range and no
    value of the range is off by more than half a step, but for the float32 rounding of scale,
    offset, their product and sum: 4 * 2^-24 of the largest value in all.
    """
    if not whole.known:  # a table without rows
        zero_F = np.zeros(len(whole.low_F), np.float32)
        return Encoding("int8", zero_F.astype(np.float64), zero_F, zero_F, zero_F, zero_F)
    low_F, high_F = fitted.low_F.astype(np.float64), fitted.high_F.astype(np.float64)
    spread_F = high_F - low_F
    # A subnormal scale would lose its own bits: a coarser one still has steps far below any use.
    scale_F = np.where(spread_F > 0, np.maximum(spread_F / 255, _SMALLEST_SCALE), 0.0)
    scale_F = scale_F.astype(np.float32)
    offset_F = (low_F + 128 * scale_F.astype(np.float64)).astype(np.float32)
    half_step_F = scale_F.astype(np.float64) / 2
    error_F = half_step_F + np.where(scale_F > 0, fitted.largest() * 2.0**-22, 0.0)
    error_F += np.maximum(whole.high_F - high_F, 0) + np.maximum(low_F - whole.low_F, 0)
    return Encoding("int8", error_F, scale_F, offset_F, fitted.low_F, fitted.high_F)


def _not_storable(
    value_nF: np.ndarray, start: int, dtype: str, names: Sequence[str], what: str
) -> InputError:
    row, column = np.argwhere(~(np.abs(value_nF) <= _LARGEST[dtype]))[0].tolist()
    value = float(value_nF[row, column])
    named = repr(names[column]) if column < len(names) else f"column {column}"
    place = f"{what} {named} is {value:g} in row {start + row} (from 0)"
    if not np.isfinite(value):
        return InputError(f"{place}: features must be finite numbers; remove or replace the row")
    return InputError(
        f"{place}: {dtype} holds values up to {_LARGEST[dtype]:g}. Store features as "
        f"{'bfloat16 or ' if dtype == 'float16' else ''}float32, or scale the column"
    )
