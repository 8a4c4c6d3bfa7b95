"""Encoded feature tables on disk: a directory with the codes, a manifest and checksums.

It is written block by block, so the table may be larger than memory, and appears under its name
only when it is complete.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tidegraph.errors import InputError
from tidegraph.events.files import FileColumn, open_column, put_in_place, write_manifest
from tidegraph.features.encode import Encoding, blocks, check_type

MANIFEST = "manifest.json"
FORMAT = "tidegraph-features"
FORMAT_VERSION = 1
_REPAIR = "delete the directory, and it is made again"
_PER_COLUMN = ("error", "scale", "offset", "low", "high")


def write_encoded(directory: Path, table_EF: np.ndarray, encoding: Encoding) -> None:
    """Encode a table into `directory`, atomically; never more than a block of it in memory.

    Raises:
        InputError: it cannot be written (disk full, no permission); nothing half-written stays.
    """
    working = None
    try:
        if directory.is_dir() and any(directory.iterdir()) and not _is_ours(directory):
            raise InputError(
                f"{directory}: holds something other than encoded features; choose a new "
                "directory, nothing was touched"
            )
        directory.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{directory.name}.partial-"
        working = Path(tempfile.mkdtemp(prefix=prefix, dir=directory.parent))
        manifest = _write(working, table_EF, encoding)
        put_in_place(working, directory, lambda: _holds(directory, manifest))
    except OSError as error:
        raise InputError(
            f"{directory}: encoded features could not be written ({error.strerror or error}); "
            "nothing was kept. Free some space, set TIDEGRAPH_CACHE to another place, or store "
            "features as float32"
        ) from error
    finally:
        if working is not None:
            shutil.rmtree(working, ignore_errors=True)


def _holds(directory: Path, manifest: dict[str, Any]) -> bool:
    """Whether exactly this is there already, undamaged as far as sizes tell."""
    try:
        if _read_manifest(directory) != json.loads(json.dumps(manifest)):
            return False
        open_encoded(directory)
    except InputError:
        return False
    return True


def _is_ours(directory: Path) -> bool:
    try:
        return bool(json.loads((directory / MANIFEST).read_text())["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write(working: Path, table_EF: np.ndarray, encoding: Encoding) -> dict[str, Any]:
    columns = {f"{name}_F": getattr(encoding, f"{name}_F") for name in _PER_COLUMN}
    kind = np.dtype(np.int8 if encoding.dtype == "int8" else np.uint16)
    codes = FileColumn(working / "codes.npy", kind, table_EF.shape)
    clipped = 0
    try:
        for _, value_nF in blocks(table_EF):
            code_nF, outside = encoding.encode(value_nF)
            codes.append(code_nF)
            clipped += outside
        files = {"codes": codes.close()}
    finally:
        codes.abandon()
    for name, value_F in columns.items():
        writer = FileColumn(working / f"{name}.npy", value_F.dtype, value_F.shape)
        writer.append(value_F)
        files[name] = writer.close()
    manifest = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "dtype": encoding.dtype,
        "clipped": clipped,
        "files": files,
    }
    write_manifest(working / MANIFEST, manifest)
    return manifest


def open_encoded(directory: Path, *, verify: bool = False) -> tuple[np.ndarray, Encoding, int]:
    """The codes, mapped; how they are to be read; how many values were clipped.

    Raises:
        InputError: missing, truncated or damaged; names the file.
    """
    manifest = _read_manifest(directory)
    array = {
        name: open_column(directory / f"{name}.npy", manifest["files"][name], verify, _REPAIR)
        for name in ("codes", *(f"{name}_F" for name in _PER_COLUMN))
    }
    codes = array.pop("codes")
    # The columns' numbers are small: in memory, and writable as kernels' arguments always are.
    encoding = Encoding(dtype=manifest["dtype"], **{k: np.array(v) for k, v in array.items()})
    return codes, encoding, int(manifest["clipped"])


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT or manifest["version"] != FORMAT_VERSION:
            raise ValueError("of another format or version")
        check_type(manifest["dtype"])
        if {"codes", *(f"{name}_F" for name in _PER_COLUMN)} - manifest["files"].keys():
            raise ValueError("files are missing from the list")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: no manifest of encoded features ({error}); {_REPAIR}") from None
    found: dict[str, Any] = manifest
    return found
