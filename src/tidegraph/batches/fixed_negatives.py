"""Prepared negatives: a file that says, for each evaluated event, what to rank it against.

Shape legend: B rows asked for, R rows in the file, C candidates per row.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tidegraph.batches.candidates import Candidates
from tidegraph.batches.tgb_negatives import read_tgb_negatives
from tidegraph.errors import InputError, UnknownNodeError
from tidegraph.events.core import EventRange, Events


class FixedNegatives:
    """Prepared negatives, read from a file: used as they are, never resampled.

    Three layouts are read. **npz**: `row`, [R] integers, the events' rows in the input (0-based,
    as in `Events.row`), and `candidate`, [R, C] original ids. **Parquet**: a column `row` and a
    column `candidate` of lists of original ids, whose lengths may differ. **pkl**: the Temporal
    Graph Benchmark's, see `tidegraph.batches.tgb_negatives`.

    Args:
        events: the stream the rows belong to.
        row_R: [R] int64, rows of the input, each at most once.
        node_RC: [R, C] int32 internal nodes.
        mask_RC: [R, C] bool or None, False where padded.
        name: where they come from, for messages.

    Raises:
        InputError: a row that occurs twice.
    """

    def __init__(
        self,
        events: Events,
        row_R: np.ndarray,
        node_RC: np.ndarray,
        mask_RC: np.ndarray | None = None,
        *,
        name: str = "prepared negatives",
    ) -> None:
        order = np.argsort(row_R, kind="stable")
        self.events = events
        self.name = name
        self._row_R = np.asarray(row_R, np.int64)[order]
        self._node_RC = np.asarray(node_RC, np.int32)[order]
        self._mask_RC = None if mask_RC is None else np.asarray(mask_RC, np.bool_)[order]
        repeated = self._row_R[1:][self._row_R[1:] == self._row_R[:-1]]
        if len(repeated):
            raise InputError(
                f"{name}: event row {repeated[0]} occurs more than once. Expected one list of "
                "candidates per event; join them or remove one."
            )

    @classmethod
    def read(cls, path: str | Path, events: Events) -> FixedNegatives:
        """Read an `.npz`, `.parquet` or `.pkl` file of the layouts above.

        Raises:
            InputError: another layout, an id that no event has, or a row that occurs twice.
        """
        path = Path(path)
        reader = {".npz": _read_npz, ".parquet": _read_parquet}.get(path.suffix.lower())
        if path.suffix.lower() == ".pkl":
            row_R, lists = read_tgb_negatives(path, events)
        elif reader is not None:
            row_R, lists = reader(path)
        else:
            raise InputError(
                f"{path}: prepared negatives are read from .npz, .parquet or .pkl, found "
                f"{path.suffix or 'no suffix'!r}."
            )
        length_R = np.asarray([len(one) for one in lists], np.int64)
        mask_RC = np.arange(length_R.max(initial=0))[None, :] < length_R[:, None]
        node_RC = np.zeros(mask_RC.shape, np.int32)
        if mask_RC.any():
            node_RC[mask_RC] = _internal(events, np.concatenate(lists), path)
        return cls(events, row_R, node_RC, None if mask_RC.all() else mask_RC, name=str(path))

    def candidates(self, start: int, stop: int, *, count: int = 0) -> Candidates:
        """The file's candidates for the events at [start, stop); `count` is not used.

        Raises:
            InputError: an event the file has no candidates for.
        """
        row_B = self.events.row[start:stop]
        at_B = np.searchsorted(self._row_R, row_B)
        inside = at_B < len(self._row_R)
        found = inside.copy()
        found[inside] = self._row_R[at_B[inside]] == row_B[inside]
        if not found.all():
            missing = int(np.flatnonzero(~found)[0])
            position = start + missing
            original = self.events.ids.to_original
            raise InputError(
                f"{self.name}: no candidates for event row {row_B[missing]} (source "
                f"{original([self.events.source[position]])[0]}, target "
                f"{original([self.events.target[position]])[0]}, time "
                f"{self.events.time[position]}); {int((~found).sum())} of {stop - start} events "
                "here have none. Expected one list per evaluated event; add it to the file, or "
                "evaluate with drawn negatives."
            )
        return Candidates(
            self._node_RC[at_B], None if self._mask_RC is None else self._mask_RC[at_B]
        )

    def describe(self, count: int = 0) -> str:
        """How these negatives are named in a metric's protocol."""
        return f"up to {self._node_RC.shape[1]} prepared destinations per positive ({self.name})"


def write_negatives(path: Path, events: Events, drawn: Candidates, part: EventRange) -> None:
    """Write negatives to an `.npz` file that `FixedNegatives.read` reads.

    Args:
        path: the file; it appears only when it is complete.
        events: the stream.
        drawn: of the events of `part`, without padding.
        part: whose events they belong to.

    Raises:
        InputError: another kind of file, or lists of different lengths.
    """
    if path.suffix.lower() != ".npz":
        raise InputError(
            f"{path}: prepared negatives are written as .npz, found {path.suffix or 'no suffix'!r}"
        )
    if drawn.mask_BC is not None and not drawn.mask_BC.all():
        raise InputError(f"{path}: the events have different numbers of candidates; a matrix is "
                         "written, so they must be equal")  # fmt: skip
    original = events.ids.to_original(drawn.node_BC.reshape(-1))
    candidate = np.asarray(original).reshape(drawn.node_BC.shape)
    if candidate.dtype == object:
        candidate = candidate.astype(str)  # text ids; without pickle
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        np.savez(file, row=events.row[part.start : part.stop], candidate=candidate)
    temporary.replace(path)


def _read_npz(path: Path) -> tuple[np.ndarray, list[np.ndarray]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: not a readable npz file ({error}).") from error
    row, candidate = columns.get("row"), columns.get("candidate")
    if row is None or candidate is None:
        raise InputError(
            f"{path}: expected arrays named row and candidate; found "
            f"{', '.join(columns) or 'none'}."
        )
    integers = np.issubdtype(row.dtype, np.integer)
    if row.ndim != 1 or candidate.ndim != 2 or len(row) != len(candidate) or not integers:
        raise InputError(
            f"{path}: expected row as [R] integers and candidate as [R, C]; found shapes "
            f"{row.shape} ({row.dtype}) and {candidate.shape}."
        )
    return row.astype(np.int64), list(candidate)


def _read_parquet(path: Path) -> tuple[np.ndarray, list[np.ndarray]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error}).") from error
    if not {"row", "candidate"} <= set(table.column_names):
        raise InputError(
            f"{path}: expected columns named row and candidate; found "
            f"{', '.join(table.column_names) or 'none'}."
        )
    row, candidate = table.column("row"), table.column("candidate")
    lists = pa.types.is_list(candidate.type) or pa.types.is_large_list(candidate.type)
    if not (pa.types.is_integer(row.type) and lists) or row.null_count or candidate.null_count:
        raise InputError(
            f"{path}: expected row as integers and candidate as lists, without missing values; "
            f"found {row.type} and {candidate.type}."
        )
    return row.to_numpy().astype(np.int64), [np.asarray(one) for one in candidate.to_pylist()]


def _internal(events: Events, values: np.ndarray, path: Path) -> np.ndarray:
    try:
        return events.ids.to_internal(values, side="target" if events.schema.bipartite else None)
    except UnknownNodeError as error:
        raise InputError(f"{path}: in the candidates: {error}") from error
