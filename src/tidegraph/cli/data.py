"""DATA of a command: a name of the catalog, a table, or stored events; and how to find it again.

A table is read once into a store under the cache directory, keyed by path, size, time of change
and how it is read; the next command opens that.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidegraph.cli.origin import note_origin
from tidegraph.cli.settings import DataSettings, SplitSettings
from tidegraph.errors import (
    CheckpointError,
    InputError,
    SettingError,
    TidegraphError,
    listed,
    shown,
)
from tidegraph.events import Events, Split, open_events, read_table
from tidegraph.events.catalog import FLIGHTS_COLUMNS, list_datasets, load_dataset
from tidegraph.events.layouts import layout_files
from tidegraph.events.published import default_cache_directory
from tidegraph.events.sql import what_it_said
from tidegraph.train import Run, load_run
from tidegraph.train.run_config import checked
from tidegraph.train.run_files import RunFiles

_MANIFEST = "manifest.json"
_READING = ("time_unit", "header", "delimiter", "table", "query", "format")


@dataclass(frozen=True)
class OpenedData:
    """Events, and where they came from.

    Attributes:
        events: all of them.
        name: short, for the run's directory.
        spec: how to find them again, saved with a run.
        reused: a stored copy of the table was opened instead of the table.
    """

    events: Events
    name: str
    spec: dict[str, Any]
    reused: bool = False


def is_dataset(data: str) -> bool:
    """Whether DATA names a data set of the catalog rather than a file."""
    names = [info.name for info in list_datasets()]
    return not Path(data).exists() and (
        data.lower() in names or data.lower().startswith("synthetic:")
    )


def open_data(data: str | None, settings: DataSettings) -> OpenedData:
    """Open DATA.

    Args:
        data: name, file or directory; None for a query alone, which is read anew each time, since
            its text does not tell whether what it reads has changed.
        settings: columns of a table.

    Raises:
        InputError, SettingError, DownloadError: it cannot be used; says why and what to do.
    """
    if data is not None and (is_dataset(data) or not _looks_like_path(data)):
        _refuse_columns(data, settings.changed())
        return OpenedData(load_dataset(data), _short(data), {"dataset": data})
    if data is not None and (Path(data) / _MANIFEST).is_file():
        _refuse_columns(data, settings.changed())
        store = Path(data).resolve()
        return OpenedData(open_events(store), _short(store.name), {"store": str(store)})
    if settings.node_features is not None:  # found again from wherever the run is opened
        nodes = str(Path(settings.node_features).resolve())
        settings = settings.model_copy(update={"node_features": nodes})
    columns = settings.changed()
    if data is None:
        return OpenedData(read(None, settings, None), "query", {"columns": columns})
    path = Path(data)
    store = table_store(path, settings)
    spec = {"store": str(store), "file": str(path.resolve()), "columns": columns}
    name = _short(path.name.split(".")[0])
    if store.is_dir():
        try:
            return OpenedData(open_events(store), name, spec, reused=True)
        except TidegraphError:
            pass  # damaged: read the table again
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return OpenedData(read(path, settings, None), name, {**spec, "store": ""})
    events = read(path, settings, store)
    note_origin(store, _files_of(path, settings)[0])
    return OpenedData(events, name, spec)


def table_store(path: Path, settings: DataSettings) -> Path:
    """Where the stored copy of a table is kept: another file or other columns, another place."""
    if settings.layout is None and not path.is_file():
        read(path, settings, None)  # raises, with the closest name there is
    from tidegraph import __version__

    first, *beside = _files_of(path, settings)
    stat = first.stat()
    named = [str(first.resolve()), stat.st_size, stat.st_mtime_ns, settings.changed(), __version__]
    for other in beside:
        stat = other.stat()
        named += [str(other.resolve()), stat.st_size, stat.st_mtime_ns]
    key = hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]
    return default_cache_directory() / "tables" / f"{_short(path.name)}-{key}"


def _files_of(path: Path, settings: DataSettings) -> list[Path]:
    """The files that reading `path` reads."""
    files = [path] if settings.layout is None else layout_files(path, settings.layout)
    if settings.node_features is not None:
        nodes = Path(settings.node_features)
        if not nodes.is_file():
            raise InputError(f"--node-features {nodes}: no such file")
        files.append(nodes)
    return files


def keep_events(opened: OpenedData, directory: Path) -> OpenedData:
    """Events that are nowhere on disk, stored in the run's directory."""
    if "dataset" in opened.spec or opened.spec.get("store"):
        return opened
    kept = RunFiles(directory).keep_events(opened.events)
    return dataclasses.replace(opened, spec={**opened.spec, **kept})


def split_events(events: Events, settings: SplitSettings, seed: int) -> Split:
    """Training, validation and test parts."""
    values = settings.model_dump()
    if settings.val_time is not None or settings.test_time is not None:
        for name in ("val", "test"):
            values.pop(name)
    return events.split(seed=seed, **values)


def open_run(directory: Path, at: str = "best") -> Run:
    """A run with its events; a table whose stored copy is gone is read again.

    Raises:
        CheckpointError: not a run, damaged, or the data is gone or has changed.
    """
    files = RunFiles(directory)
    data = files.read_config()["data"]
    checked(DataSettings, data.get("columns", {}), files.config, "data.columns")
    checked(SplitSettings, data.get("split", {}), files.config, "data.split")
    restore_store(data)
    return load_run(directory, at=at)


def restore_store(spec: Mapping[str, Any]) -> None:
    """Read a run's table again if its stored copy is gone, for example with the cache."""
    store, file = spec.get("store"), spec.get("file")
    if not file or not store or Path(store).exists():
        return
    if not Path(file).exists():
        raise CheckpointError(
            f"the events of this run are gone: neither the stored copy {store} nor the table "
            f"{file} exists. Put the table back, or train again."
        )
    read(Path(file), DataSettings(**spec.get("columns", {})), Path(store))


def read_new_events(path: Path, run: Run, given: Mapping[str, Any]) -> Events:
    """Events that a run has not seen, with features in the order the model was trained with.

    Args:
        path: a table, or stored events.
        run: what its columns are called is the default.
        given: data settings of flags.

    Raises:
        InputError: the table lacks a column or cannot be read.
    """
    if (path / _MANIFEST).is_file():
        _refuse_columns(str(path), given)
        stored: Events = open_events(path)
        return stored
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    saved = run_columns(run)
    # How a file is read depends on the file; which column is which, on the run.
    values = {k: v for k, v in saved.items() if k not in _READING or k == "time_unit"}
    settings = DataSettings(**{**values, **given})
    for part in ("label", "weight"):
        name = getattr(settings, part)
        if name is not None and part not in given and name not in table_columns(path, settings):
            settings = settings.model_copy(update={part: None})
    unit = settings.time_unit or run.events.schema.time_unit
    settings = settings.model_copy(
        update={"time_unit": unit, "bipartite": True if run.events.ids.separate else None}
    )
    events = read(path, settings, None)
    if unit is None and events.schema.time_unit is not None:
        raise InputError(
            f"{path}: column {shown(settings.time)} holds dates, but the run's time is bare "
            "numbers without a unit; give numbers as in the run's table"
        )
    return align_features(events, run, settings)


def align_features(events: Events, run: Run, settings: DataSettings) -> Events:
    """The events with exactly the run's feature columns.

    A value of a categorical column that does not occur in the new events becomes zeros, one that
    the run never saw has no feature; both follow from one feature per value.
    """
    wanted, found = run.events.schema.feature_names, events.schema.feature_names
    if wanted == found or (len(wanted) == len(found) and not settings.categorical):
        return events
    coded = tuple(f"{column}=" for column in settings.categorical)
    missing = [
        name for name in wanted if name not in found and not name.startswith(coded or ("\0",))
    ]
    extra = [name for name in found if name not in wanted and not name.startswith(coded or ("\0",))]
    if missing or extra:
        raise InputError(
            f"{events.report.source_name}: the run was trained with {len(wanted)} event features "
            f"({_listed(wanted)}); these events have {len(found)} ({_listed(found)}). "
            "Name the same columns, in the same order, with --features and --categorical"
        )
    features_EF = np.zeros((len(events), len(wanted)), np.float32)
    assert events.features is not None
    for place, name in enumerate(wanted):
        if name in found:
            features_EF[:, place] = events.features[:, found.index(name)]
    schema = dataclasses.replace(
        events.schema, event_features=len(wanted), feature_names=tuple(wanted)
    )
    return dataclasses.replace(events, features=features_EF, schema=schema)


def run_columns(run: Run) -> dict[str, Any]:
    """What the columns of a run's table are called."""
    assert run.directory is not None
    data = RunFiles(run.directory).read_config()["data"]
    if data.get("dataset") == "flights":
        return dict(FLIGHTS_COLUMNS)
    columns: dict[str, Any] = data.get("columns", {})
    return columns


def table_columns(path: Path, settings: DataSettings) -> Sequence[str]:
    """The names of a table's columns."""
    with _table(path, settings) as (_, table):
        return tuple(table.columns)


def read_pairs(path: Path, run: Run, given: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Two id columns of a table, as text.

    Raises:
        InputError: a column is not there or an id is missing; names the row.
    """
    from tidegraph.events.columns import find_column, text_of

    saved = {k: v for k, v in run_columns(run).items() if k in ("source", "target")}
    settings = DataSettings(**{**saved, **given})
    with _table(path, settings) as (connection, table):
        named = {part: find_column(table, getattr(settings, part), part)
                 for part in ("source", "target")}  # fmt: skip
        chosen = ", ".join(text_of(table, name) for name in named.values())
        rows = connection.execute(f"SELECT {chosen} FROM {table.sql}").fetchall()
    for number, row in enumerate(rows, 1):
        for part, value in zip(named, row, strict=True):
            if value is None:
                raise InputError(
                    f"{path}, row {number} (data rows counted from 1), column "
                    f"{shown(named[part])}: the {part} is missing"
                )
    if not rows:
        raise InputError(f"{path}: has no pairs; expected at least one row")
    source, target = (np.array(column, object) for column in zip(*rows, strict=True))
    return source, target


class _table:  # noqa: N801
    """A table opened for a look: `with _table(path, settings) as (connection, table)`."""

    def __init__(self, path: Path, settings: DataSettings) -> None:
        self.path, self.settings = path, settings

    def __enter__(self) -> tuple[Any, Any]:
        import duckdb

        from tidegraph.events.formats import Options, open_table
        from tidegraph.events.sql import literal

        chosen = self.settings
        self.scratch = tempfile.TemporaryDirectory(prefix="tidegraph-")
        self.connection = duckdb.connect()
        self.connection.execute(f"SET temp_directory = {literal(self.scratch.name)}")
        options = Options(
            chosen.format, chosen.header, chosen.delimiter, chosen.table, chosen.query
        )
        wanted = [chosen.source, chosen.target]
        try:
            table = open_table(self.connection, self.path, options, wanted)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self.connection, table

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import duckdb

        self.connection.close()
        self.scratch.cleanup()
        if isinstance(error, duckdb.Error):
            raise InputError(f"{self.path}: cannot be read: {what_it_said(error)}") from None


def read(path: Path | None, settings: DataSettings, store: Path | None, **resources: Any) -> Events:
    """`read_table` with these settings; a missing column's message names the flag."""
    values = settings.model_dump()
    if settings.features == ("rest",):
        values["features"] = "rest"
    if settings.layout is not None:
        values = _layout_values(settings)
        resources = {}
    try:
        events: Events = read_table(path, store=store, **values, **resources)
    except InputError as error:
        named = [p for p in ("source", "target", "time") if f"(for {p})" in str(error)]
        if named:
            end = "" if str(error).endswith("?") else "."
            raise InputError(
                f"{error}{end} Say which column it is with --{named[0]} NAME"
            ) from None
        raise
    return events


def _layout_values(settings: DataSettings) -> dict[str, Any]:
    """What goes with a layout; anything else would have no effect."""
    allowed = ("layout", "time_unit", "bipartite")
    others = [key for key in settings.changed() if key not in allowed]
    if others:
        names = ", ".join(f"--{key.replace('_', '-')}" for key in others)
        raise SettingError(
            f"{names}: no effect with --layout {settings.layout}, which says which column is "
            "which; leave one of them out"
        )
    return {key: getattr(settings, key) for key in allowed}


def _refuse_columns(data: str, changed: Mapping[str, Any]) -> None:
    if changed:
        names = ", ".join(f"--{key.replace('_', '-')}" for key in changed)
        raise SettingError(
            f"{names}: no effect on {shown(data)}, whose columns are already known; "
            "leave it out, or give a file to read"
        )


def _looks_like_path(data: str) -> bool:
    return Path(data).exists() or "/" in data or "." in Path(data).name


def _short(name: str) -> str:
    kept = "".join(letter if letter.isalnum() else "-" for letter in name.lower())
    return kept.strip("-")[:40] or "data"


def _listed(names: Sequence[str]) -> str:
    return listed(names, most=8) or "none"
