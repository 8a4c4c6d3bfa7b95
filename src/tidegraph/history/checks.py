"""Turning what callers pass into the exact types the kernels take, or into an error that helps.

The common case (already int32 nodes, times of the index's type, contiguous) passes through without
a copy. Nothing is rounded: a conversion either keeps every value or is refused.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from tidegraph.errors import InputError, SettingError, UnknownNodeError

INT32, INT64, FLOAT64 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.float64)
_KEY_MASK = (1 << 64) - 1
EXACT_FLOAT = 2**53
"""Below this magnitude every integer is a float64; above, a float may have been rounded."""


def as_vector(value: Any, name: str) -> np.ndarray:
    """`value` as a one-dimensional contiguous array."""
    array = np.ascontiguousarray(value)
    if np.ndim(value) != 1:
        raise InputError(
            f"{name} has shape {np.shape(value)}, expected one dimension: one value per row."
        )
    return array


def as_nodes(value: Any, name: str, num_nodes: int) -> np.ndarray:
    """Node ids as contiguous int32. Ids that fit are checked later, by the kernel."""
    if type(value) is np.ndarray and value.dtype == INT32 and value.ndim == 1:
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)
    array = as_vector(value, name)
    if array.size == 0:
        return array.astype(INT32)
    if array.dtype.kind not in "iu":
        raise InputError(f"{name} holds {array.dtype} values, expected integer node ids.")
    if array.min() < -1 or array.max() >= num_nodes:
        row = int(np.flatnonzero((array < -1) | (array >= num_nodes))[0])
        raise unknown_node(name, row, int(array[row]), num_nodes)
    return array.astype(INT32)


def unknown_node(name: str, row: int, node: int, num_nodes: int) -> UnknownNodeError:
    known = f"0 to {num_nodes - 1}" if num_nodes else "none (there are no nodes)"
    return UnknownNodeError(
        f"{name}[{row}] is node {node}, which the index does not know: its nodes are {known}. "
        "Build the index with a larger num_nodes, or leave this row out."
    )


def as_times(value: Any, name: str, time_type: np.dtype) -> np.ndarray:
    """Times as contiguous int64 or float64, whichever the index keeps; never rounded.

    Raises:
        InputError: a value that the index's type cannot hold exactly.
    """
    if type(value) is np.ndarray and value.dtype == time_type and value.ndim == 1:
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)
    array = as_vector(value, name)
    if array.size == 0:
        return array.astype(time_type)
    if array.dtype.kind not in "iuf":
        raise InputError(
            f"{name} holds {array.dtype} values, expected numbers in the unit of the events' times."
        )
    return _float_to_int(array, name) if time_type == INT64 else _to_float(array, name)


def _float_to_int(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise InputError(f"{name} holds {array.max()}, beyond the largest 64-bit integer time.")
    if array.dtype.kind != "f":
        return array.astype(INT64)
    inexact = ~((np.abs(array) < EXACT_FLOAT) & (np.floor(array) == array))
    if inexact.any():
        row = int(np.flatnonzero(inexact)[0])
        raise InputError(
            f"{name}[{row}] is the float {float(array[row])!r}, but the index keeps exact integer "
            "times. Pass whole numbers below 2**53 or int64 values, or build the index with "
            "float64 times."
        )
    return array.astype(INT64)


def _to_float(array: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        result = array.astype(FLOAT64)
    if array.dtype.kind in "iu":
        inexact = np.abs(result) >= EXACT_FLOAT
        if inexact.any():
            row = int(np.flatnonzero(inexact)[0])
            raise InputError(
                f"{name}[{row}] is the integer {array[row]}, which float64 may not hold exactly, "
                "and the index keeps float64 times. Build the index with int64 times."
            )
    elif array.dtype.itemsize > FLOAT64.itemsize:
        rounded = (result != array) & ~np.isnan(array)
        if rounded.any():
            row = int(np.flatnonzero(rounded)[0])
            raise InputError(
                f"{name}[{row}] is {array[row]!r}, which float64 does not hold exactly, and the "
                "index keeps float64 times."
            )
    return result


def as_fanout(k: Any) -> int:
    """`k` as an int: at least 1, or -1 for all."""
    try:
        value = -2 if isinstance(k, bool) else operator.index(k)
    except TypeError:
        value = -2
    if value == 0 or value < -1 or value >= 2**31:
        raise SettingError(
            f"k is {k!r}: expected how many neighbours to take, 1 to 2**31 - 1, or -1 for all of "
            "them."
        )
    return value


def as_key(key: Any) -> int:
    """`key` as a number of 64 bits."""
    try:
        return operator.index(key) & _KEY_MASK
    except TypeError:
        raise SettingError(
            f"key is {key!r}: expected an integer, as tidegraph.keys.make_key gives."
        ) from None


def as_count(count: Any, name: str) -> int:
    """A number of things as an int."""
    try:
        value = -1 if isinstance(count, bool) else operator.index(count)
    except TypeError:
        value = -1
    if not 0 <= value < 2**31:
        raise SettingError(f"{name} is {count!r}, expected 0 to 2**31 - 1.")
    return value


def as_window(window: Any, time_type: np.dtype) -> Any:
    """The window as the kernels take it: uint64 for int64 times, float64 for float64 times."""
    is_number = isinstance(window, int | float | np.integer | np.floating)
    if not is_number or isinstance(window, bool) or not 0 <= window < math.inf:
        raise SettingError(
            f"window is {window!r}: expected a number of time units, 0 or more, or None for no "
            "window."
        )
    if time_type == FLOAT64:
        return np.float64(window)
    # Ages are whole numbers here, so the whole part of the window decides the same.
    return np.uint64(min(int(window), 2**64 - 1))


def as_limits(before_event: Any, roots: int, no_limit: np.ndarray) -> np.ndarray:
    """`before_event` as int64 [1] (one limit for all) or [S]."""
    if before_event is None:
        return no_limit
    array = np.asarray(before_event)
    if array.dtype.kind not in "iu":
        raise InputError(f"before_event holds {array.dtype} values, expected event ids (integers).")
    if array.dtype.kind == "u":  # no event has such a number: nothing is left out
        array = np.minimum(array, np.iinfo(np.int64).max)
    if array.ndim == 0:
        return array.astype(INT64).reshape(1)
    if array.shape != (roots,):
        raise InputError(
            f"before_event has shape {array.shape}, expected one event id for all roots or "
            f"one for each of the {roots} roots."
        )
    return np.ascontiguousarray(array, INT64)


def as_slots(slot_S: Any, roots: int, default: np.ndarray) -> np.ndarray:
    """`slot_S` as uint64 [S], or `default` (empty: the root's position)."""
    if slot_S is None:
        return default
    array = np.asarray(slot_S)
    if array.dtype.kind not in "iu" or array.shape != (roots,):
        raise InputError(
            f"slot_S has shape {array.shape} and type {array.dtype}, expected {roots} integers: "
            "a number that identifies each root."
        )
    return np.ascontiguousarray(array).astype(np.uint64, copy=False)


def writable(array: np.ndarray) -> np.ndarray:
    """The array, or a copy if it is read-only: to compiled code that is a type of its own, which
    would be compiled first, for seconds."""
    return array if array.flags.writeable else array.copy()
