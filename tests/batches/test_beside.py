"""What preparation counts for pairs, and the windows and walks in a batch, by brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ledger
import tiny
from tidegraph.batches import History, PreparedBatch
from tidegraph.batches.beside import WalkPlan, pairs_of
from tidegraph.errors import SettingError


def roots_of(batch: PreparedBatch) -> list[tuple[int, int]]:
    """(source seed, candidate seed) of each pair, in the order of logits."""
    root, B, C = batch.root_R.tolist(), batch.size, batch.candidates
    negatives = np.array(root[2 * B :]).reshape(B, C).tolist()
    return [(root[b], seed) for b in range(B) for seed in (root[B + b], *negatives[b])]


def sequence(batch: PreparedBatch, seed: int) -> list[int]:
    """Nodes of a seed's sequence: itself, then neighbours, newest first."""
    hop = batch.hops[-1]
    rows = hop.neighbor_SK[seed, : int(hop.count_S[seed])].tolist()[::-1]
    return [int(batch.node_U[row]) for row in (int(hop.self_S[seed]), *rows)]


@given(stream=tiny.streams(), batch_size=st.integers(1, 7), count=st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_shared_nodes_are_counted(stream: tiny.Stream, batch_size: int, count: int) -> None:
    prep = tiny.preparer(stream, History(neighbors=(3,), memory=False, shared=True), batch_size)
    for number in range(len(prep.plan)):
        batch = prep.prepare(number, tiny.negatives(prep, number, count))
        assert batch.shared is not None
        for seed, row in enumerate(batch.shared.own_SJ.tolist()):
            nodes = sequence(batch, seed)
            assert row == [nodes.count(n) for n in nodes] + [0] * (4 - len(nodes))
        pairs = roots_of(batch)
        assert len(pairs) == len(batch.shared.across_P2J)
        for (u, v), (first, second) in zip(pairs, batch.shared.across_P2J.tolist(), strict=True):
            of_u, of_v = sequence(batch, u), sequence(batch, v)
            assert first == [of_v.count(n) for n in of_u] + [0] * (4 - len(of_u))
            assert second == [of_u.count(n) for n in of_v] + [0] * (4 - len(of_v))


@given(stream=tiny.streams(), batch_size=st.integers(1, 7), inclusive=st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_window_lists_everyone(stream: tiny.Stream, batch_size: int, inclusive: bool) -> None:
    history = History(neighbors=(1,), memory=False, met_within=5.0, inclusive=inclusive)
    prep = tiny.preparer(stream, history, batch_size, dedup=False)
    everything = list(range(len(stream)))
    within = History(window=5.0, inclusive=inclusive)
    for number in range(len(prep.plan)):
        batch = prep.prepare(number, tiny.negatives(prep, number))
        assert batch.met is not None
        tiny_uses = tiny.uses_of(batch.met.neighbor_X.numpy(), len(batch.node_U))
        assert batch.met.uses.position_M.tolist() == tiny_uses.position_M.tolist()
        events = prep.plan.events(number).tolist()
        for b, event in enumerate(events):
            seed = int(batch.root_R[b])  # the event's source
            first, last = batch.met.indptr_S1[seed : seed + 2].tolist()
            found = [int(batch.node_U[row]) for row in batch.met.neighbor_X[first:last]]
            expected = ledger.neighbors(
                stream, everything, within, stream.source[event], stream.time[event], 10**6,
                event if inclusive else None,
            )  # fmt: skip
            assert found == [partner for partner, _, _ in expected]


def test_positions_of_walks_are_counted() -> None:
    stream = tiny.random_stream(2, 30, nodes=5)
    history = History(neighbors=(), memory=False, walks=WalkPlan(4, 2, 0.1))
    prep = tiny.preparer(stream, history, 6)
    batch = prep.prepare(3, tiny.negatives(prep, 3, 2))
    walks = batch.walks
    assert walks is not None

    def nodes(seed: int) -> np.ndarray:
        """[M, I], -1 for padding."""
        root = np.full((4, 1), int(batch.node_U[walks.self_S[seed]]))
        steps = batch.node_U[walks.node_SML[seed].long()].numpy()
        steps = np.where(np.arange(2) < walks.length_SM[seed].numpy()[:, None], steps, -1)
        return np.concatenate([root, steps], axis=1)

    def shares(of: np.ndarray, among: np.ndarray) -> np.ndarray:
        found = np.zeros((4, 3, 3))
        for m, i, place in np.ndindex(4, 3, 3):
            if of[m, i] >= 0:
                found[m, i, place] = np.mean(among[:, place] == of[m, i])
        return found

    assert int(walks.length_SM.min()) < 2 <= int(walks.length_SM.max())
    for seed in range(len(walks.self_S)):
        expected = shares(nodes(seed), nodes(seed))
        np.testing.assert_allclose(walks.own_SMII[seed], expected, atol=1e-7)
    for pair, (u, v) in enumerate(roots_of(batch)):
        for side, (of, among) in enumerate(((u, v), (v, u))):
            expected = shares(nodes(of), nodes(among))
            np.testing.assert_allclose(walks.across_P2MII[pair, side], expected, atol=1e-7)
    events = batch.features[walks.event_SML.long(), 0].numpy() - 1
    for seed, m in np.ndindex(len(walks.self_S), 4):
        path = nodes(seed)[m].tolist()
        for step in range(int(walks.length_SM[seed, m])):
            event = int(events[seed, m, step])
            assert {stream.source[event], stream.target[event]} == set(path[step : step + 2])


@pytest.mark.parametrize(
    "extra", [{"shared": True}, {"met_within": 4.0}, {"walks": WalkPlan(3, 2)}]
)
def test_nothing_beside_hops_unless_it_is_asked_for(extra: dict[str, Any]) -> None:
    stream = tiny.random_stream(0, 20)
    for options in ({}, extra):
        history = History(neighbors=(2,), memory=False, **options)
        batch = tiny.preparer(stream, history, 5).prepare(2, np.zeros((5, 1), np.int32))
        found = {"shared": batch.shared, "met_within": batch.met, "walks": batch.walks}
        assert {name for name, value in found.items() if value is not None} == set(options)


def test_walks_change_with_the_epoch_but_not_with_the_batch() -> None:
    stream = tiny.random_stream(1, 40, nodes=3)
    history = History(neighbors=(), memory=False, walks=WalkPlan(4, 2))
    none = np.empty((1, 0), np.int32)
    single, whole = tiny.preparer(stream, history, 1), tiny.preparer(stream, history, 40)
    batches = [single.prepare(30, none, epoch=epoch).walks for epoch in (0, 0, 1)]
    events = [walks.event_SML for walks in batches if walks is not None]
    assert events[0].equal(events[1])
    assert not events[0].equal(events[2])
    everyone = whole.prepare(0, np.empty((40, 0), np.int32))
    assert everyone.walks is not None
    assert everyone.walks.event_SML[int(everyone.root_R[30])].equal(events[0][0])


@pytest.mark.parametrize("neighbors", [(), (2, 2)])
def test_shared_nodes_take_one_layer(neighbors: tuple[int, ...]) -> None:
    history = History(neighbors=neighbors, memory=False, shared=True)
    with pytest.raises(SettingError, match="one layer"):
        tiny.preparer(tiny.random_stream(0, 5), history, 5)


def test_pairs_without_candidates_and_without_events() -> None:
    empty = pairs_of(np.empty(0, np.int32), 0)
    assert [len(part) for part in empty] == [0, 0]
    assert [part.tolist() for part in pairs_of(np.array([4, 5]), 1)] == [[4], [5]]
