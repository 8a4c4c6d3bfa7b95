"""Data sets that others publish: finding the file, fetching it, checking it, reading it once.

A file is looked for in the data directory, then in the cache directory, then downloaded there. What
was read and found right is kept as a store in the cache directory, under a key of the file's
content and of this package's reading code, so that the next load only maps it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from tidegraph.errors import DownloadError, TidegraphError
from tidegraph.events.core import Events
from tidegraph.events.download import Progress, by_hand, download, file_sha256

_LOG = logging.getLogger("tidegraph")
# Above this, a file is known by size, time of change and its ends: hashing it would take longer
# than opening the store.
_HASH_WHOLE_BYTES = 1 << 26


@dataclass(frozen=True)
class PublishedFile:
    """One published data set as a file.

    Attributes:
        name: the data set's name.
        files: accepted file names, in the order they are looked for; the last is the download's.
        url: where the publisher offers the last of `files`.
        read: makes `Events` of one of the files.
        events, nodes: what a whole file holds.
        sha256: digest of the publisher's file, or None where it is not known.
        content: `content_digest` of the right events.
        exact: refuse other content. False where the publisher's file could not be compared: then
            equal counts suffice and the report carries a note.
        unpack: the member to take out of a zip archive, and its file name, or None.
    """

    name: str
    files: tuple[str, ...]
    url: str
    read: Callable[[Path], Events]
    events: int
    nodes: int
    content: str
    sha256: str | None = None
    exact: bool = True
    unpack: str | None = None


def default_cache_directory() -> Path:
    """$TIDEGRAPH_CACHE, else the user's cache directory."""
    named = os.environ.get("TIDEGRAPH_CACHE")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tidegraph" / "data"


def load_published(
    published: PublishedFile, data_dir: Path | None, cache_dir: Path, *, fetch: bool
) -> Events:
    """Events of the data set, from wherever its file is.

    Raises:
        DownloadError: the file is nowhere and cannot be fetched, or is not the whole data set.
    """
    path = find_file(published, data_dir, cache_dir)
    if path is None:
        path = _fetch(published, data_dir, cache_dir, fetch=fetch)
    if path.suffix == ".zip":
        path = _unpack(published, path, cache_dir)
    return load_once(
        path, published.name, cache_dir, lambda source: _read_checked(published, source)
    )


def find_file(published: PublishedFile, data_dir: Path | None, cache_dir: Path) -> Path | None:
    """The first accepted file in the data directory or the cache directory."""
    for directory in [cache_dir] if data_dir is None else [data_dir, cache_dir]:
        for file in published.files:
            path = directory / file
            if path.is_file():
                return path
    return None


def load_once(path: Path, name: str, cache_dir: Path, read: Callable[[Path], Events]) -> Events:
    """`read(path)`, kept as a store so that the same content is read once.

    Silently does without the store where the cache directory cannot be written.
    """
    # Imported late: the table of data sets is printed without loading any reader.
    from tidegraph.events.store import open_events

    stores = cache_dir / "stores"
    store = stores / f"{name}-{_store_key(path)}"
    if store.is_dir():
        try:
            return open_events(store)
        except (TidegraphError, OSError):  # damaged: read the source again
            shutil.rmtree(store, ignore_errors=True)
    events = read(path)
    try:
        stores.mkdir(parents=True, exist_ok=True)
        saved = events.save(store)
    except (TidegraphError, OSError):
        return events
    for old in stores.glob(f"{name}-*"):
        if old != store:  # of another version of the file or of the package
            shutil.rmtree(old, ignore_errors=True)
    return saved


def content_digest(events: Events) -> str:
    """SHA-256 over the original sources, targets and times (int64), in the order of the events."""
    digest = hashlib.sha256()
    columns = (
        events.ids.to_original(events.source),
        events.ids.to_original(events.target),
        events.time,
    )
    for column in columns:
        digest.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
    return digest.hexdigest()


def _fetch(
    published: PublishedFile, data_dir: Path | None, cache_dir: Path, *, fetch: bool
) -> Path:
    file = published.files[-1]
    target = cache_dir / file
    if not fetch:
        looked = " or ".join(str(d) for d in (data_dir, cache_dir) if d is not None)
        names = " or ".join(published.files)
        raise DownloadError(
            f"the data set {published.name!r} is not on this machine (no {names} in {looked}) and "
            f"downloading is off. {by_hand(published.url, target)}"
        )
    with _shown_progress(published.name, published.url) as progress:
        return download(published.url, target, sha256=published.sha256, progress=progress)


@contextmanager
def _shown_progress(name: str, url: str) -> Iterator[Progress | None]:
    """A bar on a terminal, one line in the log otherwise; never a question."""
    if not sys.stderr.isatty():
        _LOG.info("downloading %s from %s", name, url)
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"downloading {name}", total=None)
        yield lambda have, total: bar.update(task, completed=have, total=total)


def _unpack(published: PublishedFile, archive: Path, cache_dir: Path) -> Path:
    """The wanted member of a zip archive as a file in the cache directory."""
    member = published.unpack or ""
    target = cache_dir / member
    part = target.with_name(f"{member}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(archive) as zipped:
            name = next((n for n in zipped.namelist() if Path(n).name == member), None)
            if name is None:
                raise _unusable(published, archive, f"it holds no {member}")
            cache_dir.mkdir(parents=True, exist_ok=True)
            with zipped.open(name) as source, part.open("wb") as file:
                shutil.copyfileobj(source, file)
        part.replace(target)
    except (zipfile.BadZipFile, EOFError) as error:
        raise _unusable(published, archive, f"it cannot be unpacked ({error})") from error
    except OSError as error:
        raise DownloadError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return target


def _read_checked(published: PublishedFile, path: Path) -> Events:
    """Read and compare with what is known of the data set; see `PublishedFile.exact`."""
    try:
        events = published.read(path)
    except (TidegraphError, OSError, EOFError, ValueError) as error:
        raise _unusable(published, path, f"it cannot be read ({error})") from error
    found = (len(events), _nodes_seen(events))
    if found != (published.events, published.nodes):
        raise _unusable(published, path, f"it holds {found[0]:,} events on {found[1]:,} nodes")
    if content_digest(events) == published.content:
        return events
    if published.exact:
        raise _unusable(published, path, "its events are not those of the published file")
    note = (
        f"{path.name} has the expected number of events and nodes; its content is not the one that "
        "Tidegraph was tested with, and no checksum of this file is known"
    )
    return replace(events, report=replace(events.report, notes=(*events.report.notes, note)))


def _nodes_seen(events: Events) -> int:
    seen_N = np.zeros(events.schema.num_nodes, dtype=bool)
    seen_N[events.source] = True
    seen_N[events.target] = True
    return int(seen_N.sum())


def _unusable(published: PublishedFile, path: Path, problem: str) -> DownloadError:
    return DownloadError(
        f"{path} is not the whole data set {published.name!r}: {problem}; expected "
        f"{published.events:,} events on {published.nodes:,} nodes. The file is cut short or "
        f"another one: delete it and load again, or fetch {published.url} by hand to "
        f"{path.with_name(published.files[-1])}"
    )


def _store_key(path: Path) -> str:
    """Names the content of a file together with the code that reads it."""
    stat = path.stat()
    digest = hashlib.sha256(_reading_code().encode())
    if stat.st_size <= _HASH_WHOLE_BYTES:
        digest.update(file_sha256(path).encode())
    else:
        digest.update(f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}".encode())
        with path.open("rb") as file:
            digest.update(file.read(1 << 20))
            file.seek(-(1 << 20), os.SEEK_END)
            digest.update(file.read())
    return digest.hexdigest()[:24]


@cache
def _reading_code() -> str:
    """Package version and content of this room's sources: another reader, another store."""
    from tidegraph import __version__

    digest = hashlib.sha256(__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()
