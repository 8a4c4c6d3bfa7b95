"""Cutting segments into pieces: every edge once, small pieces, even blocks, clear refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegraph.errors import InputError
from tidegraph.ops.segment_cuts import BLOCK_COST, PIECE, Cuts, cut

counts = st.lists(
    st.one_of(st.integers(0, 3), st.integers(PIECE - 1, PIECE + 1), st.integers(0, 1000)),
    max_size=40,
)


def cut_counts(sizes: list[int], kind: type = np.int32) -> Cuts:
    return cut(np.cumsum([0, *sizes]).astype(kind), sum(sizes))


@settings(deadline=None)
@given(counts)
def test_pieces_cover_each_segment_once_and_in_order(sizes: list[int]) -> None:
    cuts = cut_counts(sizes)
    found: list[list[int]] = [[] for _ in sizes]
    for u, s in enumerate(cuts.segment_U.tolist()):
        edges = range(cuts.first_U1[u], cuts.first_U1[u + 1])
        assert len(edges) <= PIECE
        found[s] += edges
    start = np.cumsum([0, *sizes])
    assert found == [list(range(start[s], start[s + 1])) for s in range(len(sizes))]
    assert (np.diff(cuts.segment_U) >= 0).all()
    assert set(cuts.segment_U.tolist()) == set(range(len(sizes)))  # empty ones get their zeros
    assert cuts.segment_of_edges().tolist() == np.repeat(range(len(sizes)), sizes).tolist()


@settings(deadline=None)
@given(counts)
def test_split_segments_own_consecutive_partial_results(sizes: list[int]) -> None:
    cuts = cut_counts(sizes)
    assert cuts.split_X.tolist() == [s for s, size in enumerate(sizes) if size > PIECE]
    assert cuts.part_U[cuts.part_U >= 0].tolist() == list(range(cuts.parts))
    for x, s in enumerate(cuts.split_X.tolist()):
        parts = cuts.part_U[cuts.segment_U == s].tolist()
        assert parts == list(range(cuts.part_X1[x], cuts.part_X1[x + 1]))
        assert len(parts) == -(-sizes[s] // PIECE)
    for s, part in zip(cuts.segment_U.tolist(), cuts.part_U.tolist(), strict=True):
        assert (part >= 0) == (sizes[s] > PIECE)


@settings(deadline=None)
@given(counts)
def test_blocks_cover_the_pieces_evenly(sizes: list[int]) -> None:
    cuts = cut_counts(sizes)
    assert cuts.block_B1[0] == 0
    assert cuts.block_B1[-1] == len(cuts.segment_U)
    for first, last in zip(cuts.block_B1[:-1], cuts.block_B1[1:], strict=True):
        cost = (last - first) + cuts.first_U1[last] - cuts.first_U1[first]
        assert 0 < cost <= BLOCK_COST + PIECE + 1


def test_one_huge_segment_is_work_for_many() -> None:
    cuts = cut_counts([100_000])
    assert cuts.blocks > 300
    assert np.diff(cuts.block_B1).max() <= BLOCK_COST // PIECE + 1


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_borders_of_either_type(kind: type) -> None:
    assert cut_counts([2, 0, 70], kind).first_U1.tolist() == [0, 2, 2, 66, 72]


def test_no_segments() -> None:
    cuts = cut_counts([])
    assert (cuts.blocks, cuts.parts, len(cuts.segment_U)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("borders", "wrong"),
    [
        ([1, 3], r"indptr\[0\] = 1"),
        ([0, 2, 1, 3], r"indptr\[2\] = 1"),
        ([0, 2], r"indptr\[1\] = 2.*edges, 3"),
        ([0, 4, 3], r"indptr\[1\] = 4"),
        ([0, -1, 3], r"indptr\[1\] = -1"),
    ],
)
def test_wrong_borders_are_named(borders: list[int], wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        cut(np.array(borders), 3)


@pytest.mark.parametrize("borders", [np.empty(0, np.int64), np.zeros((2, 2), np.int64)])
def test_borders_of_the_wrong_shape_are_named(borders: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"expected \[S \+ 1\]"):
        cut(borders, 0)
