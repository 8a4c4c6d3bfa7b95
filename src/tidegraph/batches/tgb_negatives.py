"""Negatives in the Temporal Graph Benchmark's files: `NAME_val_ns.pkl` and `NAME_test_ns.pkl`.

Such a file is a pickled dictionary from (source, destination, time) to the negative destinations.
Pickle can run any code, so the file is read by an unpickler that knows NumPy's arrays and numbers
and refuses everything else.

Shape legend: E events, R events with negatives, C candidates per event.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tidegraph.errors import InputError, shown
from tidegraph.events.core import Events

_CORES = ("numpy.core", "numpy._core")  # before and after NumPy 2
_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),  # how the oldest protocols write bytes
    *((f"{core}.multiarray", name) for core in _CORES for name in ("_reconstruct", "scalar")),
    *((f"{core}.numeric", "_frombuffer") for core in _CORES),
}
_SAFE_CODES = ("latin1", "latin-1")


class _Restricted(pickle.Unpickler):
    """Builds dictionaries, tuples, lists, numbers, text and NumPy arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        if module == "_codecs":
            return _encode
        return super().find_class(module, name)


def _encode(text: str, code: str = "latin1") -> bytes:
    """Bytes that an old protocol wrote as text; other codecs could do more than that."""
    if code not in _SAFE_CODES:
        raise pickle.UnpicklingError(f"it asks for the codec {shown(code)}")
    return text.encode("latin1")


def read_pickle(path: Path) -> Any:
    """Content of a pickle of plain values and arrays.

    Raises:
        InputError: not a pickle, cut short, or one that names anything else.
    """
    try:
        with path.open("rb") as file:
            return _Restricted(file).load()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path}: is not a pickle of plain numbers and arrays ({error}); nothing else is "
            "loaded, since a pickle can run any code. Save such negatives as .npz or .parquet"
        ) from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise InputError(f"{path}: not a readable pickle ({error}); fetch it again") from None


def read_tgb_negatives(path: Path, events: Events) -> tuple[np.ndarray, list[np.ndarray]]:
    """Events' rows of the input and their lists of candidates.

    Every event of the stream whose source, destination and time stand in the file has its
    candidates; the events of other parts have none.

    Args:
        path: a `_ns.pkl` file.
        events: with the node numbers of py-tgb as ids, as `load_tgb` and `layout="tgb"` make them.

    Returns:
        [R] int64 rows, and R arrays of original ids.

    Raises:
        InputError: another content, or none of the events is in it.
    """
    content = read_pickle(path)
    if not isinstance(content, Mapping) or not content:
        raise InputError(
            f"{path}: holds {type(content).__name__}; expected a dictionary from (source, "
            "destination, time) to negative destinations"
        )
    first = next(iter(content))
    if not isinstance(first, tuple) or len(first) != 3:
        raise InputError(
            f"{path}: has the key {shown(first)}; expected (source, destination, time). Negatives "
            "of typed graphs (thgl, tkgl), whose keys hold a type, are not read"
        )
    original = events.ids.to_original
    source, target = original(events.source).tolist(), original(events.target).tolist()
    rows: list[int] = []
    lists: list[np.ndarray] = []
    for row, key in zip(
        events.row.tolist(), zip(source, target, events.time.tolist(), strict=True), strict=True
    ):
        found = content.get(key)  # numbers of any type are equal keys where they are equal
        if found is not None:
            rows.append(row)
            lists.append(_candidates(found, key, path))
    if not rows:
        key = (source[0], target[0], events.time[0].item())
        raise InputError(
            f"{path}: none of its {len(content):,} keys, such as {shown(first)}, is an event of "
            f"{events.report.source_name}, such as {shown(key)}. Ids must be those of py-tgb: read "
            'the edge list with layout="tgb", or load it with load_tgb'
        )
    return np.array(rows, np.int64), lists


def _candidates(value: Any, key: tuple[Any, ...], path: Path) -> np.ndarray:
    array = np.asarray(value)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iuf"):
        raise InputError(
            f"{path}: the negatives of {shown(key)} are {shown(value)}; expected a list of nodes"
        )
    whole = array.astype(np.int64)
    if not (whole == array).all():
        raise InputError(f"{path}: the negatives of {shown(key)} are not whole numbers")
    return whole
