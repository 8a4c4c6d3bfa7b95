"""Segments cut into pieces of work: every thread stays busy, also when one segment is huge.

A piece is at most `PIECE` consecutive edges of one segment, counted from the segment's own start,
so a segment's result does not depend on its neighbours in the list. Consecutive pieces form blocks
of about `BLOCK_COST` edges, the unit of parallel work. A segment of one piece is finished where it
is read; the pieces of a longer one leave partial results that are then added in order. Neither
depends on the number of threads.

Shape legend: S segments, M edges, U pieces, X segments of several pieces, P their pieces, B blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegraph._jit import kernel
from tidegraph.errors import InputError

PIECE = 64
"""Most edges in a piece: their rows fit the second-level cache, and adding the partial results of a
split segment costs a 64th of the work on its edges."""

BLOCK_COST = 256
"""Edges and pieces per block, about."""


@dataclass(frozen=True, eq=False)
class Cuts:
    """The pieces of all segments, in order.

    Attributes:
        segment_U: int32, the segment a piece belongs to.
        first_U1: int64 [U + 1], the piece's first edge; it ends where the next one begins.
        part_U: int32, where the piece of a split segment leaves its partial result, else -1.
        split_X: int32, segments of several pieces.
        part_X1: int32 [X + 1], the partial results of each of them.
        block_B1: int64 [B + 1], first piece of each block.
    """

    segment_U: np.ndarray
    first_U1: np.ndarray
    part_U: np.ndarray
    split_X: np.ndarray
    part_X1: np.ndarray
    block_B1: np.ndarray

    @property
    def blocks(self) -> int:
        """B."""
        return len(self.block_B1) - 1

    @property
    def parts(self) -> int:
        """P."""
        return int(self.part_X1[-1])

    def segment_of_edges(self) -> np.ndarray:
        """int32 [M], the segment of each edge."""
        return np.repeat(self.segment_U, np.diff(self.first_U1))


@kernel()
def _count(indptr_S1, edges):  # type: ignore[no-untyped-def]
    """(pieces, split segments, first wrong border or -1)."""
    S = indptr_S1.shape[0] - 1
    pieces, splits = 0, 0
    if indptr_S1[0] != 0:
        return pieces, splits, 0
    for s in range(S):
        n = indptr_S1[s + 1] - indptr_S1[s]
        if n < 0 or indptr_S1[s + 1] > edges:
            return pieces, splits, s + 1
        here = max(1, (n + PIECE - 1) // PIECE)
        pieces += here
        if here > 1:
            splits += 1
    return pieces, splits, -1 if indptr_S1[S] == edges else S


@kernel()
def _fill(indptr_S1, segment_U, first_U1, part_U, split_X, part_X1, block_B1):  # type: ignore[no-untyped-def]
    """Write the pieces; return the number of blocks."""
    u, x, part, block = 0, 0, 0, 0
    for s in range(indptr_S1.shape[0] - 1):
        first, last = np.int64(indptr_S1[s]), np.int64(indptr_S1[s + 1])
        split = last - first > PIECE
        while True:
            if first + u >= block * BLOCK_COST:
                block_B1[block] = u
                block += 1
            segment_U[u] = s
            first_U1[u] = first
            part_U[u] = part if split else -1
            if split:
                part += 1
            u += 1
            first += PIECE
            if first >= last:
                break
        if split:
            split_X[x] = s
            x += 1
            part_X1[x] = part
    first_U1[u] = indptr_S1[indptr_S1.shape[0] - 1]
    block_B1[block] = u
    return block


def cut(indptr_S1: np.ndarray, edges: int) -> Cuts:
    """The pieces of segments given by their borders.

    Args:
        indptr_S1: [S + 1], 0 first, `edges` last, never falling.
        edges: M.

    Raises:
        InputError: the borders are not of that form.
    """
    if indptr_S1.ndim != 1 or not len(indptr_S1):
        raise InputError(
            f"indptr of shape {list(indptr_S1.shape)}: expected [S + 1], the borders of S segments"
        )
    pieces, splits, wrong = _count(indptr_S1, edges)
    if wrong >= 0:
        raise InputError(
            f"indptr[{wrong}] = {indptr_S1[wrong]} of {len(indptr_S1)} borders: expected borders "
            f"that start at 0, never fall, and end at the number of edges, {edges}"
        )
    cuts = Cuts(
        segment_U=np.empty(pieces, np.int32),
        first_U1=np.empty(pieces + 1, np.int64),
        part_U=np.empty(pieces, np.int32),
        split_X=np.empty(splits, np.int32),
        part_X1=np.zeros(splits + 1, np.int32),
        block_B1=np.empty((edges + pieces) // BLOCK_COST + 2, np.int64),
    )
    blocks = _fill(
        indptr_S1, cuts.segment_U, cuts.first_U1, cuts.part_U, cuts.split_X, cuts.part_X1,
        cuts.block_B1,
    )  # fmt: skip
    return Cuts(
        cuts.segment_U, cuts.first_U1, cuts.part_U, cuts.split_X, cuts.part_X1,
        cuts.block_B1[: blocks + 1],
    )  # fmt: skip
