"""Rows of a feature table, read in place by kernels whatever float type it is stored in.

A bfloat16 table reaches kernels as its bits (uint16): a shift makes a float32 of them, so a row is
decoded while it is copied into the kernel's scratch buffer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor

from tidegraph._jit import kernel
from tidegraph.features.decode_kernels import from_bfloat16
from tidegraph.ops.row_kernels import load_row


def feature_array(features_EF: Tensor) -> np.ndarray:
    """A feature table as kernels take it: floats as they are, bfloat16 as uint16 bits.

    >>> feature_array(torch.ones(1, 2, dtype=torch.bfloat16)).dtype
    dtype('uint16')
    """
    if features_EF.dtype == torch.bfloat16:
        return features_EF.view(torch.int16).numpy().view(np.uint16)
    array: np.ndarray = features_EF.numpy()
    return array


@kernel()
def _copy_bits(out_KX, i, start, features_EF, r):  # type: ignore[no-untyped-def]
    to, row, first = np.uintp(i), np.uintp(r), np.uintp(start)
    for k in range(features_EF.shape[1]):
        j = np.uintp(k)
        out_KX[to, first + j] = from_bfloat16(features_EF[row, j])


@kernel(contract=True, inline=True)
def _add_floats(out_F, scale, row_F):  # type: ignore[no-untyped-def]
    for j in range(row_F.shape[0]):
        out_F[j] += scale * row_F[j]


@kernel(contract=True, inline=True)
def _add_bits(out_F, scale, row_F):  # type: ignore[no-untyped-def]
    for j in range(row_F.shape[0]):
        out_F[j] += scale * from_bfloat16(row_F[j])


def load_features(out_KX: Any, i: Any, start: Any, features_EF: Any, row: Any) -> None:
    """out[i, start : start + F] = the features in `row` of a table from `feature_array`; for use
    inside kernels."""
    raise NotImplementedError("call this from a kernel")


def add_features(out_F: Any, scale: Any, features_EF: Any, row: Any) -> None:
    """out += scale * the features in `row`; for use inside kernels."""
    raise NotImplementedError("call this from a kernel")


@overload(load_features, inline="always")
def _load_overload(out_KX, i, start, features_EF, row):  # type: ignore[no-untyped-def]
    if features_EF.dtype is types.uint16:
        return lambda out_KX, i, start, features_EF, row: _copy_bits(
            out_KX, i, start, features_EF, row
        )
    return lambda out_KX, i, start, features_EF, row: load_row(out_KX, i, start, features_EF, row)


@overload(add_features, inline="always")
def _add_overload(out_F, scale, features_EF, row):  # type: ignore[no-untyped-def]
    if features_EF.dtype is types.uint16:
        return lambda out_F, scale, features_EF, row: _add_bits(out_F, scale, features_EF[row])
    return lambda out_F, scale, features_EF, row: _add_floats(out_F, scale, features_EF[row])
