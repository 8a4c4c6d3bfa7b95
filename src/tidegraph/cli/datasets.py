"""`tidegraph datasets`: the catalog as a table; and what is kept in the cache, to be removed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegraph.cli.origin import origin_of

if TYPE_CHECKING:
    from tidegraph.report.console import Printer

_DAY = 86400


def command() -> Callable[..., Any]:
    """The command."""
    return datasets


def datasets(
    cached: Annotated[
        bool, typer.Option("--cached", help="list the copies of tables and downloads in the cache")
    ] = False,
    clean: Annotated[
        bool,
        typer.Option("--clean", help="remove the copies that are made anew when they are needed"),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="print one JSON object as the last line of stdout")
    ] = False,
) -> None:
    """List what `train`, `describe` and `load_dataset` take by name."""
    from rich.table import Table

    from tidegraph.events import list_datasets
    from tidegraph.report.console import Printer
    from tidegraph.report.plain import print_json

    if cached or clean:
        _cache(clean, Printer(results_only=json), json)
        return
    found = list_datasets()
    table = Table(title="data sets", title_justify="left")
    for name in ("name", "events", "nodes", "features", "an event is", "from", "terms"):
        table.add_column(
            name, justify="right" if name in ("events", "nodes", "features") else "left"
        )
    for info in found:
        counts = (f"{info.events:,}", f"{info.nodes:,}", str(info.features))
        table.add_row(info.name, *counts, info.description, info.obtained, info.terms)
    Printer(results_only=json).results.print(table)
    if json:
        print_json({"command": "datasets", "datasets": [asdict(info) for info in found]})


def _cache(clean: bool, printer: Printer, as_json: bool) -> None:
    """List what is kept, or remove the copies of tables."""
    from tidegraph.events.published import default_cache_directory
    from tidegraph.report.plain import print_json
    from tidegraph.train.room import in_words

    kept = cached_copies(default_cache_directory())
    for copy in kept:
        gone = "removed   " if clean and copy.removable else ""
        printer.say(f"{gone}{in_words(copy.bytes):>10}  {copy.path}  {copy.what}")
    removable = [copy for copy in kept if copy.removable]
    total = in_words(sum(copy.bytes for copy in removable))
    if clean:
        for copy in removable:
            shutil.rmtree(copy.path)
        printer.say(f"{len(removable)} of {len(kept)} removed, {total}")
    else:
        printer.say(
            f"{len(kept)} in {default_cache_directory()}, {in_words(sum(c.bytes for c in kept))}; "
            f"`tidegraph datasets --clean` removes {len(removable)} that are read again when they "
            f"are needed, {total}"
        )
    if as_json:
        copies = [{**asdict(copy), "path": str(copy.path)} for copy in kept]
        print_json({"command": "datasets", "cached": copies, "removed": clean})


@dataclass(frozen=True)
class CachedCopy:
    """Something in the cache directory.

    Attributes:
        path: file or directory.
        what: what it is, in words.
        bytes: its size.
        removable: it is made anew from what it is a copy of, which is still there unchanged; or it
            was left unfinished by a process that is gone.
    """

    path: Path
    what: str
    bytes: int
    removable: bool


def cached_copies(cache: Path) -> list[CachedCopy]:
    """What is kept: stored events, largest first, then downloads."""
    found = [_stored(path) for kind in ("tables", "stores") for path in _inside(cache / kind)
             if path.is_dir() and not _in_work(path)]  # fmt: skip
    found.sort(key=lambda copy: -copy.bytes)
    downloads = [path for path in _inside(cache) if path.is_file()]
    return found + [CachedCopy(p, "download", p.stat().st_size, False) for p in downloads]


def _inside(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _in_work(path: Path) -> bool:
    """Whether a process may still be writing it."""
    return path.name.startswith(".") and time.time() - path.stat().st_mtime < _DAY


def _stored(path: Path) -> CachedCopy:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    if path.name.startswith("."):
        return CachedCopy(path, "left unfinished", size, True)
    if path.parent.name == "stores":
        return CachedCopy(path, "a data set, as read", size, True)
    table = origin_of(path)
    if table is None:
        return CachedCopy(path, "copy of a table that is gone or has changed", size, False)
    return CachedCopy(path, f"copy of {table}", size, True)
