"""Columns as a file: CSV, Parquet, JSON lines or NPZ, complete or not at all."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tidegraph.errors import InputError, SettingError

SUFFIXES = (".csv", ".parquet", ".jsonl", ".npz")


def check_output(path: Path | None) -> None:
    """Refuse a name that says no format, before any work is done.

    Raises:
        SettingError: the suffix is none of the known ones, or the directory is not there.
    """
    if path is None:
        return
    if path.suffix.lower() not in SUFFIXES:
        raise SettingError(f"--out {path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise SettingError(f"--out {path}: there is no directory {path.parent}")


def write_columns(path: Path | None, columns: Mapping[str, np.ndarray]) -> None:
    """Write columns, to stdout as CSV if `path` is None.

    Args:
        path: its suffix says the format; replaced only when all is written. Of a link, what it
            leads to is replaced and the link stays.
        columns: [B] numbers or text, or [B, D] vectors: lists in Parquet and JSON lines, matrices
            in NPZ, columns `name_0`, `name_1`, ... in CSV.

    Raises:
        InputError: it cannot be written.
    """
    if path is None:
        sys.stdout.flush()
        _write_csv(sys.stdout.buffer, columns)
        sys.stdout.buffer.flush()
        return
    writer = {".csv": _write_csv, ".parquet": _write_parquet, ".jsonl": _write_jsonl,
              ".npz": _write_npz}[path.suffix.lower()]  # fmt: skip
    given = path
    path = Path(os.path.realpath(path))  # a link stays, and what it leads to is replaced
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {given}: it is no ordinary file. Nothing was written")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            writer(file, columns)
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(
            f"cannot write {given}: {error.strerror or error}; free some space or choose another "
            "place. Nothing was written"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _write_csv(file: Any, columns: Mapping[str, np.ndarray]) -> None:
    import pyarrow as pa
    from pyarrow import csv

    flat: dict[str, Any] = {}
    for name, column in columns.items():
        if column.ndim == 1:
            flat[name] = _arrow(column)
        else:
            flat |= {f"{name}_{d}": pa.array(column[:, d]) for d in range(column.shape[1])}
    # Quotes only where a value needs them; text ids with commas or quotes come back as they were.
    csv.write_csv(pa.table(flat), file, csv.WriteOptions(quoting_style="needed"))


def _write_parquet(file: Any, columns: Mapping[str, np.ndarray]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({name: _arrow(column) for name, column in columns.items()}), file)


def _write_jsonl(file: Any, columns: Mapping[str, np.ndarray]) -> None:
    lists = [column.tolist() for column in columns.values()]
    for row in zip(*lists, strict=True):
        file.write(json.dumps(dict(zip(columns, row, strict=True))).encode() + b"\n")


def _write_npz(file: Any, columns: Mapping[str, np.ndarray]) -> None:
    # Text as fixed-width unicode: objects would need pickle.
    plain = {n: c.astype(str) if c.dtype == object else c for n, c in columns.items()}
    np.savez(file, **plain)  # type: ignore[arg-type]


def _arrow(column: np.ndarray) -> Any:
    import pyarrow as pa

    if column.ndim == 1:
        if column.dtype == object:
            return pa.array(column.tolist(), pa.string() if _all_text(column) else None)
        return pa.array(np.ascontiguousarray(column))
    values = pa.array(np.ascontiguousarray(column).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, column.shape[1])


def _all_text(column: np.ndarray) -> bool:
    return all(isinstance(value, str) for value in column)
