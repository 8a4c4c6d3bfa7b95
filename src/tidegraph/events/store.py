"""Events on disk: a directory of memory-mapped `.npy` columns with a manifest and checksums.

Columns are written in pieces, so a table larger than memory can be stored; the directory appears
under its name only when it is complete. Opening checks the size and shape of every file and reads
none of it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tidegraph.errors import InputError
from tidegraph.events.arrays import EXTRA
from tidegraph.events.core import Events, ReadReport, Schema
from tidegraph.events.digest import array_digest, fingerprint_of
from tidegraph.events.files import FileColumn, open_column, put_in_place, write_manifest
from tidegraph.events.ids import IdBlock, NodeIds
from tidegraph.events.text import TextColumn

MANIFEST = "manifest.json"
FORMAT = "tidegraph-events"
FORMAT_VERSION = 1
_COLUMNS = ("source", "target", "time", "row", "features", "label", "weight", "node_features")


class ColumnWriter(Protocol):
    """Takes the pieces of one column, in order."""

    def append(self, piece: np.ndarray) -> None: ...


class Sink(Protocol):
    """Where columns go: memory or a directory."""

    def column(self, name: str, dtype: str, shape: tuple[int, ...]) -> ColumnWriter: ...

    def finish(
        self,
        schema: Schema,
        blocks: list[dict[str, Any]],
        report: ReadReport,
        separate: bool = False,
    ) -> Events:
        """All columns are written: make the events."""
        ...


class MemorySink:
    """Columns in memory, for tables that fit."""

    def __init__(self) -> None:
        self._columns: dict[str, np.ndarray] = {}

    def column(self, name: str, dtype: str, shape: tuple[int, ...]) -> ColumnWriter:
        self._columns[name] = np.empty(shape, dtype)
        return _MemoryColumn(self._columns[name])

    def finish(
        self,
        schema: Schema,
        blocks: list[dict[str, Any]],
        report: ReadReport,
        separate: bool = False,
    ) -> Events:
        digests = {name: array_digest(array) for name, array in self._columns.items()}
        return _build(
            self._columns,
            schema,
            _ids_from(blocks, self._columns, separate),
            report,
            fingerprint_of(asdict(schema), digests),
            None,
        )


class DirectorySink:
    """Columns as files of a directory that is not visible under its name until it is complete."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.working = _working_directory(directory)
        self._open: dict[str, FileColumn] = {}

    def column(self, name: str, dtype: str, shape: tuple[int, ...]) -> ColumnWriter:
        writer = FileColumn(self.working / f"{name}.npy", np.dtype(dtype), shape)
        self._open[name] = writer
        return writer

    def finish(
        self,
        schema: Schema,
        blocks: list[dict[str, Any]],
        report: ReadReport,
        separate: bool = False,
    ) -> Events:
        files = {name: writer.close() for name, writer in self._open.items()}
        digests = {name: entry["sha256"] for name, entry in files.items()}
        manifest = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "fingerprint": fingerprint_of(asdict(schema), digests),
            "schema": asdict(schema),
            "report": asdict(report),
            "ids": {"separate": separate, "blocks": blocks},
            "files": files,
        }
        write_manifest(self.working / MANIFEST, manifest)
        put_in_place(self.working, self.directory, lambda: _holds(self.directory, manifest))
        return open_events(self.directory)

    def abandon(self) -> None:
        """Remove what was written so far."""
        for writer in self._open.values():
            writer.abandon()
        shutil.rmtree(self.working, ignore_errors=True)


def save_events(events: Events, directory: str | Path) -> Events:
    """Write events to `directory`, atomically, and return them opened from there.

    An existing directory of events is replaced; any other existing directory is left alone.

    Raises:
        InputError: the directory holds something else, or it cannot be written (disk full,
            no permission); nothing half-written stays.
    """
    with directory_sink(Path(directory)) as sink:
        columns = {name: getattr(events, name) for name in _COLUMNS}
        columns |= {EXTRA + name: column for name, column in events.extra.items()}
        columns |= events.ids.arrays()
        for name, array in columns.items():
            if array is not None:
                sink.column(name, array.dtype.str, array.shape).append(array)
        blocks = describe_blocks(events.ids)
        return sink.finish(events.schema, blocks, events.report, events.ids.separate)


@contextlib.contextmanager
def directory_sink(directory: Path) -> Iterator[DirectorySink]:
    """A `DirectorySink` that cleans up after a failure and names the directory in it."""
    try:
        sink = DirectorySink(directory)
    except OSError as error:
        raise InputError(f"{directory}: cannot be written ({error.strerror or error})") from error
    try:
        yield sink
    except OSError as error:
        sink.abandon()
        raise InputError(
            f"{directory}: writing failed ({error.strerror or error}); nothing was kept. "
            "Free some space or choose another directory"
        ) from error
    except BaseException:
        sink.abandon()
        raise


def open_events(directory: str | Path, verify: bool = False) -> Events:
    """Open stored events; columns are mapped, not read, so this takes milliseconds.

    Args:
        directory: written by `Events.save` or `read_table(..., store=...)`.
        verify: also read everything and compare checksums.

    Raises:
        InputError: the directory or a file is missing, truncated or damaged; names it.

    >>> import tempfile
    >>> events = Events.from_arrays([0, 1], [2, 2], [3, 7])
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     stored = events.save(directory + "/events")
    ...     open_events(directory + "/events").fingerprint == events.fingerprint
    True
    """
    directory = Path(directory)
    manifest = _read_manifest(directory)
    arrays = {
        name: open_column(directory / f"{name}.npy", entry, verify)
        for name, entry in manifest["files"].items()
    }
    schema = dict(manifest["schema"])
    schema["feature_names"] = tuple(schema["feature_names"])
    report = dict(manifest["report"])
    report["notes"] = tuple(report["notes"])
    ids = _ids_from(manifest["ids"]["blocks"], arrays, manifest["ids"]["separate"])
    fingerprint = manifest["fingerprint"]
    digests = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    if fingerprint != fingerprint_of(manifest["schema"], digests):
        raise InputError(
            f"{directory / MANIFEST}: the fingerprint does not belong to the listed files; "
            "the manifest is damaged. Ingest the table again"
        )
    return _build(arrays, Schema(**schema), ids, ReadReport(**report), fingerprint, directory)


def describe_blocks(ids: NodeIds) -> list[dict[str, Any]]:
    """What the manifest says of each block of ids."""
    return [{"count": block.count, "side": block.side} for block in ids.blocks]


def _build(
    arrays: dict[str, np.ndarray],
    schema: Schema,
    ids: NodeIds,
    report: ReadReport,
    fingerprint: str,
    path: Path | None,
) -> Events:
    return Events(
        source=arrays["source"],
        target=arrays["target"],
        time=arrays["time"],
        row=arrays["row"],
        schema=schema,
        ids=ids,
        features=arrays.get("features"),
        label=arrays.get("label"),
        weight=arrays.get("weight"),
        node_features=arrays.get("node_features"),
        extra={
            name.removeprefix(EXTRA): array
            for name, array in arrays.items()
            if name.startswith(EXTRA)
        },
        report=report,
        fingerprint=fingerprint,
        path=path,
    )


def _ids_from(
    blocks: list[dict[str, Any]], arrays: dict[str, np.ndarray], separate: bool
) -> NodeIds:
    built = []
    for number, block in enumerate(blocks):
        name = f"ids{number}"
        values: np.ndarray | TextColumn | None = arrays.get(f"{name}_values")
        if f"{name}_offsets" in arrays:
            values = TextColumn(arrays[f"{name}_offsets"], arrays[f"{name}_data"])
        was_integer = arrays.get(f"{name}_was_integer")
        built.append(IdBlock(block["count"], block["side"], values, was_integer))
    return NodeIds(tuple(built), separate)


@dataclass
class _MemoryColumn:
    array: np.ndarray
    filled: int = 0

    def append(self, piece: np.ndarray) -> None:
        self.array[self.filled : self.filled + len(piece)] = piece
        self.filled += len(piece)


def _working_directory(directory: Path) -> Path:
    if directory.exists():
        if not directory.is_dir():
            raise InputError(f"{directory}: is a file; expected the name of a new directory")
        if any(directory.iterdir()) and not (directory / MANIFEST).exists():
            raise InputError(
                f"{directory}: holds something other than stored events; "
                "choose a new directory, nothing was touched"
            )
    directory.parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f".{directory.name}.partial-", dir=directory.parent))


def _holds(directory: Path, manifest: dict[str, Any]) -> bool:
    """Whether exactly these events are stored there, undamaged as far as their sizes tell."""
    try:
        if _read_manifest(directory) != json.loads(json.dumps(manifest)):
            return False
        open_events(directory)
    except InputError:
        return False
    return True


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    if not directory.is_dir():
        what = "is a file" if directory.exists() else "does not exist"
        raise InputError(
            f"{directory}: {what}; expected a directory written by `tidegraph ingest` or "
            "Events.save. To read a table use read_table"
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: missing; {directory} does not hold stored events") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: damaged ({error}); ingest the table again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f"{path}: is not the manifest of stored events")
    if manifest.get("version") != FORMAT_VERSION:
        raise InputError(
            f"{path}: format version {manifest.get('version')}; this version reads "
            f"{FORMAT_VERSION}. Ingest the table again"
        )
    missing = {"files", "schema", "report", "ids", "fingerprint"} - manifest.keys()
    if missing:
        raise InputError(f"{path}: damaged, {', '.join(sorted(missing))} missing; ingest again")
    return manifest
