"""Ids to internal numbers in SQL: distinct ids, sorted, their place being the node's number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegraph.errors import InputError
from tidegraph.events.formats import Table
from tidegraph.events.sql import one, run, stream
from tidegraph.events.store import Sink

_BATCH = 1 << 18


@dataclass(frozen=True)
class Block:
    """One sorted block of ids, in the table `ids{number}(id)`; a row's `rowid` is its place.

    Attributes:
        number: 0 or 1.
        side: "both", "source" or "target".
        count: ids in the block.
        text: kept as text, not as integers.
    """

    number: int
    side: str
    count: int
    text: bool


@dataclass(frozen=True)
class Numbering:
    """How nodes are numbered: one block, or sources then targets."""

    blocks: tuple[Block, ...]
    separate: bool
    overlap: int

    @property
    def bipartite(self) -> bool:
        return len(self.blocks) == 2

    @property
    def num_nodes(self) -> int:
        return sum(block.count for block in self.blocks)


def number_nodes(
    connection: Any,
    table: Table,
    bipartite: bool | None,
    extra: str | None,
    may_be_integers: tuple[bool, bool],
) -> Numbering:
    """Make the id tables from columns `s` and `d` of the staged table.

    Args:
        connection: DuckDB, with `staged`.
        table: for messages.
        bipartite: None detects it: no id is on both sides.
        extra: name of a table of ids that need a number though they may have no event.
        may_be_integers: whether source and target ids that are staged as text, and all look like
            integers, are integers.
    """
    for side, column in (("source", "s"), ("target", "d")):
        distinct = f"SELECT DISTINCT {column} AS id FROM staged"
        run(connection, f"CREATE TABLE {side}_ids AS {distinct}")
    overlap = _count(connection, "source_ids SEMI JOIN target_ids USING (id)")
    if bipartite is None:
        bipartite = overlap == 0
    if extra is not None:
        if bipartite and overlap:
            raise InputError(
                f"{table.name}: {overlap:,} ids are both source and target; bipartite=True makes "
                "them different nodes, so node features by id are ambiguous; make the ids differ "
                "(for example with a prefix)"
            )
        known = "(SELECT id FROM source_ids UNION ALL SELECT id FROM target_ids)"
        lonely = f"SELECT id FROM {extra} ANTI JOIN {known} USING (id)"
        run(connection, f"INSERT INTO source_ids {lonely}")
    texts = [
        not (possible and _all_integers(connection, f"{side}_ids"))
        for side, possible in zip(("source", "target"), may_be_integers, strict=True)
    ]
    if not bipartite:
        union = "(SELECT id FROM source_ids UNION SELECT id FROM target_ids)"
        blocks: tuple[Block, ...] = (_sorted_block(connection, 0, "both", union, any(texts)),)
    else:
        blocks = (
            _sorted_block(connection, 0, "source", "source_ids", texts[0]),
            _sorted_block(connection, 1, "target", "target_ids", texts[1]),
        )
    numbering = Numbering(blocks, bipartite and overlap > 0, overlap)
    if numbering.num_nodes >= np.iinfo(np.int32).max:
        raise InputError(f"{table.name}: {numbering.num_nodes:,} nodes; the most is 2^31 - 2")
    return numbering


def write_ids(
    connection: Any, numbering: Numbering, sink: Sink, integers: frozenset[str]
) -> list[dict[str, Any]]:
    """Copy the id tables into the sink; returns what the manifest says of the blocks."""
    for block in numbering.blocks:
        name, table = f"ids{block.number}", f"ids{block.number}"
        if block.text:
            _write_text(connection, table, name, block.count, sink, integers)
            continue
        column = sink.column(f"{name}_values", "<i8", (block.count,))
        for batch in _batches(connection, f"SELECT CAST(id AS BIGINT) FROM {table} ORDER BY rowid"):
            column.append(batch.column(0).to_numpy())
    return [{"count": block.count, "side": block.side} for block in numbering.blocks]


def _count(connection: Any, source: str) -> int:
    return int(one(connection, f"SELECT count(*) FROM {source}"))


def _all_integers(connection: Any, table: str) -> bool:
    """Whether all ids are integers as an integer is written ("7", not "07")."""
    # CAST to text of an integer column makes the same test trivially true.
    odd = "CAST(TRY_CAST(id AS BIGINT) AS VARCHAR) IS DISTINCT FROM CAST(id AS VARCHAR)"
    return _count(connection, f"(SELECT 1 FROM {table} WHERE {odd} LIMIT 1)") == 0


def _sorted_block(connection: Any, number: int, side: str, source: str, text: bool) -> Block:
    key = "CAST(id AS VARCHAR)" if text else "CAST(id AS BIGINT)"
    # Without a collation, text sorts by its bytes: by code point.
    run(connection, f"CREATE TABLE ids{number} AS SELECT id FROM {source} ORDER BY {key}")
    return Block(number, side, _count(connection, f"ids{number}"), text)


def _write_text(
    connection: Any, table: str, name: str, count: int, sink: Sink, integers: frozenset[str]
) -> None:
    size = f"SELECT coalesce(sum(strlen(CAST(id AS VARCHAR))), 0) FROM {table}"
    total = int(one(connection, size))
    offsets = sink.column(f"{name}_offsets", "<i8", (count + 1,))
    data = sink.column(f"{name}_data", "|u1", (total,))
    marks = sink.column(f"{name}_was_integer", "|b1", (count,)) if integers else None
    offsets.append(np.zeros(1, np.int64))
    start = 0
    for batch in _batches(connection, f"SELECT CAST(id AS VARCHAR) FROM {table} ORDER BY rowid"):
        piece_offsets, piece_data = _text_buffers(batch.column(0))
        offsets.append(piece_offsets[1:] + start)
        data.append(piece_data)
        start += len(piece_data)
        if marks is not None:
            values = batch.column(0).to_pylist()
            marks.append(np.fromiter((v in integers for v in values), bool, len(values)))


def _text_buffers(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Offsets from 0 and bytes of an Arrow text column without nulls."""
    import pyarrow as pa

    column = column.cast(pa.large_string())
    _, offset_buffer, data_buffer = column.buffers()
    first = column.offset
    offsets = np.frombuffer(offset_buffer, np.int64)[first : first + len(column) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, "u1")
    return offsets - offsets[0], data[offsets[0] : offsets[-1]]


def _batches(connection: Any, sql: str) -> Iterator[Any]:
    return stream(connection, sql, _BATCH)
