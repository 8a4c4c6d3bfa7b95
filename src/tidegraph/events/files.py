"""Columns as files: written in pieces with a checksum, opened as mappings, renamed into place.

Stored events and encoded feature tables are both directories of such columns with a manifest; a
directory appears under its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tidegraph.errors import InputError
from tidegraph.events.digest import ChunkedDigest, array_digest


class FileColumn:
    """A `.npy` file that takes the pieces of one column, in order."""

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._dtype, self._shape, self._path = dtype, shape, path
        self._digest = ChunkedDigest()
        # Plain writes, not a mapping: mapped pages would count as resident memory.
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 (closed by close or abandon)
        header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, piece: np.ndarray) -> None:
        """Write the next rows."""
        rows = max(1, (1 << 24) // max(1, piece[:1].nbytes))
        for start in range(0, len(piece), rows):
            part = np.ascontiguousarray(piece[start : start + rows], dtype=self._dtype)
            data = part.reshape(-1).view(np.uint8).data
            self._digest.update(data)
            self._file.write(data)

    def close(self) -> dict[str, Any]:
        """Put the file on disk; returns its entry in the manifest."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {
            "bytes": self._path.stat().st_size,
            "dtype": self._dtype.str,
            "shape": list(self._shape),
            "sha256": self._digest.hexdigest(),
        }

    def abandon(self) -> None:
        """Close a file that will be removed."""
        with contextlib.suppress(OSError):
            self._file.close()


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest and wait until it is on disk."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def put_in_place(working: Path, directory: Path, holds: Callable[[], bool]) -> None:
    """Give a complete directory its name, also while other processes do the same.

    Where `holds` says that the same is there already, that stays: it may be in use. Anything else
    is replaced; the last one to finish is found there afterwards.
    """
    working.chmod(0o755)
    sync_directory(working)
    retired = []
    try:
        while not holds():
            try:
                working.rename(directory)  # fails where there is something, empty ones apart
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                place = tempfile.mkdtemp(prefix=f".{directory.name}.old-", dir=directory.parent)
                retired.append(place)
                with contextlib.suppress(FileNotFoundError):  # another process was faster
                    directory.rename(Path(place) / "old")
            else:
                sync_directory(directory.parent)
                return
        shutil.rmtree(working, ignore_errors=True)
    finally:
        for place in retired:
            shutil.rmtree(place, ignore_errors=True)


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_column(
    path: Path, entry: dict[str, Any], verify: bool, repair: str = "ingest the table again"
) -> np.ndarray:
    """Map a column, checking its size and shape; its content too if `verify`.

    Raises:
        InputError: missing, truncated or damaged; says what to do (`repair`).
    """
    if not path.is_file():
        raise InputError(f"{path}: missing; restore it or {repair}")
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise InputError(
            f"{path}: has {size:,} bytes, expected {entry['bytes']:,}; it is truncated or damaged. "
            f"Restore it or {repair}"
        )
    shape = tuple(entry["shape"])
    try:
        empty = 0 in shape
        array = np.asarray(np.load(path, mmap_mode=None if empty else "r", allow_pickle=False))
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: damaged ({error}); {repair}") from None
    if array.dtype.str != entry["dtype"] or array.shape != shape:
        raise InputError(
            f"{path}: holds {array.shape} of {array.dtype}, expected {shape} of {entry['dtype']}; "
            f"it is damaged. Restore it or {repair}"
        )
    if verify and array_digest(array) != entry["sha256"]:
        raise InputError(
            f"{path}: its content does not match its checksum; it is damaged. "
            f"Restore it or {repair}"
        )
    return array
