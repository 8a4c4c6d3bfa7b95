"""Scoring many batches at once: memory goes ahead batch by batch, aggregation follows for all.

With parameters fixed, what a batch leaves in memory does not depend on what is ranked in it. So the
endpoints' memories are moved through a run of batches first, every row of the state that a later
aggregation needs is kept as it was at that version (each distinct row once), and the batches are
joined into one, whose scores are those of the single batches to the bit.

Shape legend: B events, C candidates, S seeds, K slots, U unique nodes of a batch, V rows of the
state (node at a version), M rows with pending mail, L mails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from tidegraph._waiting import WAITING
from tidegraph.batches.prepare import History, Preparer
from tidegraph.batches.prepared import Hop, Mail, PreparedBatch
from tidegraph.batches.rows import NO_USES
from tidegraph.errors import TidegraphError
from tidegraph.models.base import TemporalModel
from tidegraph.ops import use_precision
from tidegraph.state import HostState, NodeState
from tidegraph.train.executor import EagerExecutor
from tidegraph.train.stages import StageTimes
from tidegraph.train.stream import Stream

JOINT_BYTES = 160 << 20
"""Bytes of prepared batches, state rows and embeddings that are scored together, about.

The largest array is then below 32 MiB: such memory stays with the process, while larger pieces come
from the system each time, page by page (measured: with 256 MiB scoring takes a tenth longer)."""

WIDEST_FEATURES = 1024
"""Columns of event features; wider ones are scored batch by batch."""

_Meta = TypeVar("_Meta")


@dataclass(frozen=True, eq=False)
class Piece(Generic[_Meta]):
    """A prepared batch to score, and whether the state moves past it afterwards.

    Attributes:
        batch: prepared, with its candidates.
        write: execute it; otherwise another piece of the same batch, or nothing, follows.
        meta: whatever the caller wants back with the scores.
    """

    batch: PreparedBatch
    write: bool
    meta: _Meta


class Scorer(Protocol):
    """Scores pieces in order; yields each with its logits [B, 1 + C]."""

    def run(self, pieces: Iterable[Piece[_Meta]]) -> Iterator[tuple[Piece[_Meta], np.ndarray]]: ...


class SingleScorer:
    """One piece after the other: the plain loop.

    Args:
        executor: of the model and state.
    """

    def __init__(self, executor: EagerExecutor) -> None:
        self.executor = executor

    def run(self, pieces: Iterable[Piece[_Meta]]) -> Iterator[tuple[Piece[_Meta], np.ndarray]]:
        """Score each piece from the state before it."""
        for piece in pieces:
            yield piece, self.executor.score(piece.batch, write=piece.write)


class JointScorer:
    """As many pieces at once as fit the budget.

    Args:
        model: in evaluation mode; `joins(model, state, stream)` must hold.
        state: moves forward with the pieces.
        stream: they come from.
        times: where stage times are added up.
        budget: bytes, see `JOINT_BYTES`.
    """

    def __init__(
        self,
        model: TemporalModel,
        state: NodeState,
        stream: Stream,
        times: StageTimes,
        budget: int = JOINT_BYTES,
    ) -> None:
        self.model, self.state, self.times, self.budget = model, state, times, budget
        self._steps = MemorySteps(model, state, stream)

    def run(self, pieces: Iterable[Piece[_Meta]]) -> Iterator[tuple[Piece[_Meta], np.ndarray]]:
        """Score all pieces; those that were scored together are yielded one after the other."""
        waiting: list[Piece[_Meta]] = []
        rows, used = _StateRows(self.state), 0
        for piece in pieces:
            if waiting and piece.batch.candidates != waiting[0].batch.candidates:
                yield from self._score(waiting, rows)
                waiting, rows, used = [], _StateRows(self.state), 0
            WAITING.watch()
            rows.read(piece.batch)
            waiting.append(piece)
            used += _joint_bytes(piece.batch, waiting[0].batch, self.model, len(rows.nodes[-1]))
            if piece.write:
                with self.times("memory"):
                    rows.forget(self._steps.step(piece.batch))
            if used >= self.budget:
                yield from self._score(waiting, rows)
                waiting, rows, used = [], _StateRows(self.state), 0
        if waiting:
            yield from self._score(waiting, rows)

    def _score(
        self, pieces: Sequence[Piece[_Meta]], rows: _StateRows
    ) -> Iterator[tuple[Piece[_Meta], np.ndarray]]:
        with torch.inference_mode(), use_precision(self.model.precision), self.times("score"):
            joined = join([piece.batch for piece in pieces], rows)
            logit_BC, _ = self.model(joined, *rows.vectors())
            scores: np.ndarray = logit_BC.numpy()
        first = 0
        for piece in pieces:
            yield piece, scores[first : first + piece.batch.size]
            first += piece.batch.size


class MemorySteps:
    """Moves a state past batches by their endpoints alone, without aggregation.

    Args:
        model: `joins(model, state, stream)` must hold.
        state: moves.
        stream: where the batches come from.
    """

    def __init__(self, model: TemporalModel, state: NodeState, stream: Stream) -> None:
        self.model, self.state = model, state
        history = replace(stream.preparer.history, neighbors=())
        self._preparer: Preparer = replace(stream.preparer, history=history)

    def step(self, batch: PreparedBatch) -> Tensor | None:
        """Execute the batch; returns the nodes that were written (None for no memory)."""
        if batch.writes is None:
            self.state.write(batch, None)
            return None
        return self.step_to(batch.number)

    def step_to(self, number: int) -> Tensor | None:
        """Execute batch `number` of the plan."""
        nothing_BC = np.empty((len(self._preparer.plan.events(number)), 0), np.int32)
        batch = self._preparer.prepare(number, nothing_BC)
        with torch.inference_mode(), use_precision(self.model.precision):
            updated_UD = None
            if batch.writes is not None:
                updated_UD = self.model.evolve(batch, *self.state.read(batch))
            self.state.write(batch, updated_UD)
        return None if batch.writes is None else batch.writes.node_W


_KNOWN_HISTORY = {
    "neighbors", "strategy", "window", "inclusive", "visibility", "memory", "message"
}  # fmt: skip


def joins(model: TemporalModel, state: NodeState, stream: Stream) -> bool:
    """Whether memory can go ahead, and batches be scored together, with the same bits.

    On a CPU only: elsewhere products round a row by the rows beside it. And with rows of features
    that are not too wide: the memory cell's inputs hold a copy of each, and many batches of them at
    once would take what a mapped table saves.
    """
    history: Any = model.history
    # What a history asks for beyond this may tie state and aggregation together.
    plain = all(
        getattr(history, asked.name) == asked.default
        for asked in fields(History)
        if asked.name not in _KNOWN_HISTORY
    )
    evolves = not history.memory or type(model).evolve is not TemporalModel.evolve
    on_host = state.device.type == "cpu" and not isinstance(state, HostState)
    return (
        model.rows_alone
        and plain
        and evolves
        and on_host
        and stream.transfer is None
        and stream.preparer.features.width <= WIDEST_FEATURES
        and not model.memory_from_embeddings
        and next(model.parameters()).dtype == torch.float32
    )


class _StateRows:
    """Rows of the state at the versions that were read, each distinct (node, version) once."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._row_N = np.full(state.num_nodes, -1, np.int32)
        self._count = 0
        self.rows: list[np.ndarray] = []
        self.news: list[np.ndarray] = []
        self.nodes: list[Tensor] = []
        self._vectors: list[tuple[Tensor, ...]] = []

    def read(self, batch: PreparedBatch) -> None:
        """Read the batch's nodes that have changed (or were never read) since the last batch."""
        node_U = batch.node_U.numpy()
        row_U = self._row_N[node_U]
        new_X = np.flatnonzero(row_U < 0)
        row_U[new_X] = self._count + np.arange(len(new_X), dtype=np.int32)
        self._row_N[node_U[new_X]] = row_U[new_X]
        self._count += len(new_X)
        new_node_X = batch.node_U[torch.from_numpy(new_X)]
        self._vectors.append(tuple(self._state.read(replace(batch, node_U=new_node_X))))
        self.rows.append(row_U)
        self.news.append(new_X)
        self.nodes.append(new_node_X)

    def forget(self, node_W: Tensor | None) -> None:
        """These nodes were written: what was read of them is of an older version."""
        if node_W is not None:
            self._row_N[node_W.numpy()] = -1

    def vectors(self) -> tuple[Tensor, ...]:
        """The state's rows [V, ...], column by column."""
        return tuple(torch.cat(parts) for parts in zip(*self._vectors, strict=True))


def _joint_bytes(
    batch: PreparedBatch, first: PreparedBatch, model: TemporalModel, new_rows: int
) -> int:
    slots = sum(hop.neighbor_SK.numel() for hop in batch.hops)
    seeds = sum(len(hop.count_S) for hop in batch.hops) + new_rows
    widest = max(model.embedding_width, model.memory_width)
    # The memory cell's inputs, features included, all stand at once, together with what is made of
    # them; a few hundred wide rows must not take the whole budget.
    inputs = 8 * new_rows * (3 * widest + batch.features.shape[1])
    # Tables of the batches' own are joined into one more; they were stored small for a reason.
    own = 0 if batch.features is first.features else 16 * batch.features.numel()
    return 4 * (max(8 * slots + 6 * widest * seeds, inputs) + own)


# ---------------------------------------------------------------- joining


def join(batches: Sequence[PreparedBatch], rows: _StateRows) -> PreparedBatch:
    """One batch with the roots of all: its unique nodes are rows of the state at some version.

    It can be scored, not trained on or executed: transposes are left empty, and it writes nothing.
    """
    first = batches[0]
    _check_fields(first)
    events = _EventTables(batches)
    root_parts, seed_offset = [], 0
    for batch, row_U in zip(batches, rows.rows, strict=True):
        root_R = batch.root_R.numpy()
        root_parts.append(root_R + np.int32(seed_offset) if batch.hops else row_U[root_R])
        if batch.hops:
            seed_offset += len(batch.hops[-1].count_S)
    node_features = None
    if first.node_features is not None:
        node_features = torch.cat(
            [
                _of(batch.node_features)[torch.from_numpy(new_X)]
                for batch, new_X in zip(batches, rows.news, strict=True)
            ]
        )
    return replace(
        first,
        event_B=torch.cat([batch.event_B for batch in batches]),
        root_R=torch.from_numpy(_by_role(root_parts, batches)),
        root_uses=NO_USES,
        node_U=torch.cat(rows.nodes),
        hops=tuple(_join_hop(batches, depth, rows, events) for depth in range(len(first.hops))),
        mail=None if first.mail is None else _join_mail(batches, rows, events),
        writes=None,
        features=events.table,
        node_features=node_features,
        event_E=None,
    )


_KNOWN_FIELDS = {
    "number", "version", "key", "event_B", "root_R", "root_uses", "candidates", "node_U", "hops",
    "mail", "writes", "features", "node_features", "event_E",
}  # fmt: skip


def _check_fields(batch: PreparedBatch) -> None:
    for name, value in vars(batch).items():
        if name not in _KNOWN_FIELDS and value is not None:
            raise TidegraphError(f"batches with {name!r} cannot be scored together")


def _of(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def _by_role(root_parts: list[np.ndarray], batches: Sequence[PreparedBatch]) -> np.ndarray:
    """All sources, then all targets, then all negatives event by event."""
    sizes = [batch.size for batch in batches]
    both = list(zip(root_parts, sizes, strict=True))
    return np.concatenate(
        [root_R[:B] for root_R, B in both]
        + [root_R[B : 2 * B] for root_R, B in both]
        + [root_R[2 * B :] for root_R, B in both]
    )


class _EventTables:
    """The batches' event features as one table, and where each batch's rows begin in it."""

    def __init__(self, batches: Sequence[PreparedBatch]) -> None:
        tables = [batch.features for batch in batches]
        if all(table.data_ptr() == tables[0].data_ptr() for table in tables):
            self.table, self.offsets = tables[0], [0] * len(tables)
            if all(len(table) == len(tables[0]) for table in tables):
                return
        self.table = torch.cat(tables)
        lengths = [len(table) for table in tables]
        self.offsets = [0, *np.cumsum(lengths[:-1]).tolist()]

    def shifted(self, batch: int, event: Tensor) -> Tensor:
        offset = self.offsets[batch]
        return event + offset if offset else event


def _join_hop(
    batches: Sequence[PreparedBatch], depth: int, rows: _StateRows, events: _EventTables
) -> Hop:
    own, neighbors, below = [], [], 0
    for batch, row_U in zip(batches, rows.rows, strict=True):
        hop = batch.hops[depth]
        if depth == 0:
            own.append(torch.from_numpy(row_U[hop.self_S.numpy()]))
            neighbors.append(torch.from_numpy(row_U[hop.neighbor_SK.numpy()]))
        else:
            own.append(hop.self_S + below)
            neighbors.append(hop.neighbor_SK + below)
            below += len(batch.hops[depth - 1].count_S)
    hops = [batch.hops[depth] for batch in batches]
    return Hop(
        self_S=torch.cat(own),
        neighbor_SK=torch.cat(neighbors),
        event_SK=torch.cat([events.shifted(b, hop.event_SK) for b, hop in enumerate(hops)]),
        delta_SK=torch.cat([hop.delta_SK for hop in hops]),
        count_S=torch.cat([hop.count_S for hop in hops]),
        self_uses=NO_USES,
        neighbor_uses=NO_USES,
    )


def _join_mail(batches: Sequence[PreparedBatch], rows: _StateRows, events: _EventTables) -> Mail:
    """The pending mail of the rows, each taken from the batch that read the row first."""
    row_parts, length_parts, event_parts, delta_parts = [], [], [], []
    for b, (batch, row_U, new_X) in enumerate(zip(batches, rows.rows, rows.news, strict=True)):
        mail = batch.mail
        assert mail is not None
        row_M, length_M = mail.row_M.numpy(), np.diff(mail.indptr_M1.numpy())
        is_new_U = np.zeros(len(row_U), bool)
        is_new_U[new_X] = True
        new_M = is_new_U[row_M]
        new_L = torch.from_numpy(np.repeat(new_M, length_M))
        row_parts.append(row_U[row_M[new_M]])
        length_parts.append(length_M[new_M])
        event_parts.append(events.shifted(b, mail.event_L[new_L]))
        delta_parts.append(mail.delta_L[new_L])
    indptr_M1 = np.concatenate([np.zeros(1, np.int32), np.cumsum(np.concatenate(length_parts))])
    return Mail(
        row_M=torch.from_numpy(np.concatenate(row_parts)),
        indptr_M1=torch.from_numpy(indptr_M1.astype(np.int32)),
        event_L=torch.cat(event_parts),
        delta_L=torch.cat(delta_parts),
    )
