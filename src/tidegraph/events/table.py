"""`read_table`: from any table of events, also larger than memory, to checked `Events`.

The steps are in `formats` (what can be read), `columns` (which column is what), `clock` (times),
`numbering` (ids) and `ingest` (the way through SQL). DuckDB is imported here and only on use.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegraph.errors import InputError, SettingError, TidegraphError
from tidegraph.events.columns import resolve_columns
from tidegraph.events.core import Events
from tidegraph.events.formats import Options, open_table
from tidegraph.events.ingest import Plan, plan_ingest, write_events
from tidegraph.events.layouts import LAYOUTS, read_layout
from tidegraph.events.sql import literal, run, what_it_said
from tidegraph.events.store import MemorySink, directory_sink
from tidegraph.events.units import check_unit

_DEFAULT_MEMORY = 2 << 30
_IN_MEMORY_BYTES = 1 << 29
_SMALL_FILE = 1 << 25


def read_table(
    data: Any = None,
    *,
    source: str | int | None = None,
    target: str | int | None = None,
    time: str | int | None = None,
    features: Sequence[str | int] | str = (),
    categorical: Sequence[str | int] | str = (),
    label: str | int | None = None,
    weight: str | int | None = None,
    time_unit: str | None = None,
    bipartite: bool | None = None,
    node_features: Any = None,
    node_id: str | int | None = None,
    layout: str | None = None,
    format: str | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
    table: str | None = None,
    query: str | None = None,
    store: str | Path | None = None,
    memory_limit: str | int | None = None,
    threads: int | None = None,
) -> Events:
    """Read a table of events.

    Args:
        data: path of a CSV or TSV file (plain or .gz), Parquet, JSON lines, or DuckDB database; a
            pandas or polars frame, an Arrow table, a mapping of column names to arrays; or None
            with `query`. Blanks around values of CSV files are dropped, quoted or not.
        source, target, time: columns, by name or by position from 0. Columns of a file without a
            header are also called c0, c1, ... Ids are integers or text; a column with both is read
            as text (from frames, integers come back as integers). Integers stay exact, "007" stays
            text.
        features: columns of event features, numbers or lists of numbers; "rest" takes all numeric
            columns that have no other part.
        categorical: columns that become one feature per value, named "column=value", sorted.
        label, weight: numeric columns, kept as given.
        time_unit: "ns", "us", "ms", "s", "min", "h" or "d". For bare numbers it names their unit;
            ISO text and timestamps are converted to it, exactly or not at all. Without it they
            become the coarsest of s, ms, us and ns that is exact, and bare numbers have no unit.
        bipartite: True: sources and targets are different nodes, even under equal ids. False: one
            set of nodes. None: bipartite if no id is on both sides.
        node_features: [N, G] numbers whose row i belongs to integer id i, or a table (path or
            frame) with all its numeric columns; nodes without events are ordinary nodes.
        node_id: the id column of a `node_features` table.
        layout: "jodie", "dyglib" (also called "dgb"), "tgl" or "tgb": a file or directory that is
            laid out as these libraries expect. It says which column is which, so of the other
            arguments only `time_unit`, `bipartite` and `store` go with it; see
            `tidegraph.events.layouts`.
        format: "csv", "tsv", "parquet", "jsonl" or "duckdb" where the file name does not say.
        header, delimiter: of text files; found out if None.
        table: table of a database file.
        query: SQL to read from; a given file or frame is the table `data` in it.
        store: directory to write the columns to; they are mapped from there. Without it, small
            tables stay in memory and large ones go to a temporary directory.
        memory_limit: for sorting and joining, such as "2GB" (default: 2 GiB, or less on small
            machines); beyond it, disk is used.
        threads: at most that many (default: all cores).

    Returns:
        Events sorted by (time, row), with nodes numbered in the order of their ids (integers by
        value, text by code point; in bipartite data sources first).

    Raises:
        InputError: the table cannot be used; names file, row (data rows counted from 1), column
            and value.

    >>> events = read_table(
    ...     {"user": ["b", "a"], "item": ["x", "x"], "ts": [5, 3]},
    ...     source="user", target="item", time="ts",
    ... )
    >>> events.time.tolist(), events.ids.to_original(events.source).tolist()
    ([3, 5], ['a', 'b'])
    """
    check_unit(time_unit)
    if layout is not None:
        given = {
            "source": source, "target": target, "time": time, "features": features,
            "categorical": categorical, "label": label, "weight": weight,
            "node_features": node_features, "node_id": node_id, "format": format,
            "header": header, "delimiter": delimiter, "table": table, "query": query,
        }  # fmt: skip
        return read_layout(
            data, layout, time_unit=time_unit, bipartite=bipartite, store=store,
            without=[name for name, value in given.items() if value not in (None, ())],
        )  # fmt: skip
    if source is None or target is None or time is None:
        missing = [n for n, v in (("source", source), ("target", target), ("time", time))
                   if v is None]  # fmt: skip
        raise SettingError(
            f"read_table needs {', '.join(f'{name}=' for name in missing)}: which column is which; "
            f"or layout= for a file laid out as {', '.join(LAYOUTS)} expect"
        )
    options = Options(format, header, delimiter, table, query)
    wanted = [name for name in (source, target, time, label, weight) if name is not None]
    target_directory = None if store is None else Path(store)
    with _named(data), _database(data, target_directory, memory_limit, threads) as connection:
        opened = open_table(connection, data, options, wanted)
        columns = resolve_columns(
            opened,
            source=source,
            target=target,
            time=time,
            features=features,
            categorical=categorical,
            label=label,
            weight=weight,
        )
        plan = plan_ingest(
            connection,
            opened,
            columns,
            time_unit=time_unit,
            bipartite=bipartite,
            node_features=node_features,
            node_id=node_id,
        )
        return _write(connection, plan, target_directory)


@contextmanager
def scratch_database(data: Any) -> Iterator[Any]:
    """A connection to read `data` through; errors of the engine are errors of the input.

    Raises:
        InputError: what the engine could not do.
    """
    with _named(data), _database(data, None, None, None) as connection:
        yield connection


def _write(connection: Any, plan: Plan, directory: Path | None) -> Events:
    if directory is not None:
        with directory_sink(directory) as sink:
            return write_events(connection, plan, sink)
    nodes = 0 if plan.nodes is None else plan.nodes.width
    size = plan.count * (32 + 4 * len(plan.features)) + plan.numbering.num_nodes * (8 + 4 * nodes)
    if size <= _IN_MEMORY_BYTES:
        return write_events(connection, plan, MemorySink())
    temporary = tempfile.mkdtemp(prefix="tidegraph-events-")
    try:
        with directory_sink(Path(temporary) / "events") as sink:
            events = write_events(connection, plan, sink)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    weakref.finalize(events, shutil.rmtree, temporary, ignore_errors=True)
    return events


@contextmanager
def _database(
    data: Any, store: Path | None, memory_limit: str | int | None, threads: int | None
) -> Iterator[Any]:
    """A DuckDB connection on a scratch database that is removed afterwards."""
    import duckdb

    beside = None
    if store is not None:
        beside = store.parent  # where there must be room for the result anyway
        try:
            beside.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{store}: cannot be written ({error.strerror})") from None
    with tempfile.TemporaryDirectory(prefix=".tidegraph-scratch-", dir=beside) as scratch:
        connection = duckdb.connect()
        try:
            limit = memory_limit if memory_limit is not None else _default_memory()
            amount = f"{limit}B" if isinstance(limit, int) else limit
            try:
                run(connection, f"SET memory_limit = {literal(amount)}")
            except duckdb.Error:
                raise SettingError(
                    f"memory_limit is {limit!r}; expected bytes or a size such as '2GB'"
                ) from None
            run(connection, f"SET temp_directory = {literal(scratch)}")
            run(connection, "SET preserve_insertion_order = true")
            run(connection, "SET TimeZone = 'UTC'")
            run(connection, "SET python_enable_replacements = false")
            if threads is not None:
                run(connection, f"SET threads = {int(threads)}")
            place = ":memory:" if _is_small(data) else f"{scratch}/work.duckdb"
            run(connection, f"ATTACH {literal(place)} AS work")
            run(connection, "USE work")
            yield connection
        finally:
            connection.close()


def _default_memory() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(_DEFAULT_MEMORY, total // 3))


def _is_small(data: Any) -> bool:
    if isinstance(data, (str, Path)) and os.path.isfile(data):
        return os.path.getsize(data) < _SMALL_FILE
    return data is not None and hasattr(data, "__len__") and len(data) < 1_000_000


@contextmanager
def _named(data: Any) -> Iterator[None]:
    """Errors of the SQL engine as errors of the input, with the file's name and what it said."""
    import duckdb

    name = str(data) if isinstance(data, (str, Path)) else "query" if data is None else "frame"
    try:
        yield
    except TidegraphError:
        raise
    except duckdb.OutOfMemoryException as error:
        raise InputError(
            f"{name}: the memory limit was not enough ({what_it_said(error)}); "
            "give a larger memory_limit= or fewer threads="
        ) from None
    except duckdb.Error as error:
        raise InputError(f"{name}: cannot be read: {what_it_said(error)}") from None
