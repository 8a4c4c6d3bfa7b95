"""A prepared batch equals what a scan over the events says, for every history a model may ask for.

The general test draws streams full of ties, repeats and self-loops and rebuilds every root's
computation, the mail and the writes from `ledger`. The named tests below it are the traps that
temporal graph code falls into, each on a graph small enough to draw.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ledger
import tiny
from tidegraph.batches import History, PreparedBatch, Preparer
from tidegraph.errors import SettingError
from tidegraph.history import TemporalIndex

histories = st.builds(
    History,
    neighbors=st.sampled_from([(1,), (2,), (4,), (2, 3), (3, 1)]),
    window=st.sampled_from([None, None, 3.0]),
    inclusive=st.booleans(),
    visibility=st.sampled_from(["event", "batch"]),
    message=st.sampled_from(["last", "mean"]),
)


def check_roots(
    stream: tiny.Stream, kept: list[int], prep: Preparer, batch: PreparedBatch, negative: np.ndarray
) -> None:
    """Every root's tree of neighbours is the oracle's."""
    history, depth = prep.history, len(prep.history.neighbors)
    events = batch.event_B.tolist()
    B, C = negative.shape
    assert batch.root_R.shape == (B * (2 + C),)
    roots = [(stream.source[e], e) for e in events]
    roots += [(stream.target[e], e) for e in events]
    roots += [(int(negative[b, c]), e) for b, e in enumerate(events) for c in range(C)]
    for (node, event), row in zip(roots, batch.root_R.tolist(), strict=True):
        before: int | None = None
        if history.visibility == "batch":
            before = events[0]
        elif history.inclusive:
            before = event
        expected = ledger.tree(stream, kept, history, node, stream.time[event], depth, before)
        assert ledger.expand(batch, depth, row) == expected


def check_mail(batch: PreparedBatch, book: ledger.MailLedger) -> None:
    mail, node_U = batch.mail, batch.node_U.tolist()
    assert mail is not None
    assert len(set(node_U)) == len(node_U)
    found = {}
    for m, row in enumerate(mail.row_M.tolist()):
        span = range(int(mail.indptr_M1[m]), int(mail.indptr_M1[m + 1]))
        found[node_U[row]] = [
            (int(batch.features[int(mail.event_L[i]), 0]) - 1, float(mail.delta_L[i])) for i in span
        ]
    expected = {node: book.mail(node) for node in node_U if book.mail(node)}
    assert found == expected


def check_writes(batch: PreparedBatch, book: ledger.MailLedger) -> None:
    """After `execute`, the ledger's pending partners are the batch's writes."""
    writes, node_U = batch.writes, batch.node_U.tolist()
    assert writes is not None
    stream = book.stream
    ends = {n for e in batch.event_B.tolist() for n in (stream.source[e], stream.target[e])}
    assert sorted(writes.node_W.tolist()) == sorted(ends)
    assert [node_U[row] for row in writes.row_W.tolist()] == writes.node_W.tolist()
    for w, node in enumerate(writes.node_W.tolist()):
        span = slice(int(writes.indptr_W1[w]), int(writes.indptr_W1[w + 1]))
        partners = [node_U[row] for row in writes.partner_row_P[span].tolist()]
        assert partners == book.partners(node)


def check_uses(batch: PreparedBatch) -> None:
    """Every transposed map is the transpose of its index over the used slots."""
    depth = len(batch.hops)
    pairs = [(batch.root_R.numpy(), batch.root_uses)]
    rows = [len(batch.hops[-1].self_S) if depth else len(batch.node_U)]
    for level, hop in enumerate(batch.hops):
        table = len(batch.node_U) if level == 0 else len(batch.hops[level - 1].self_S)
        used = np.arange(hop.neighbor_SK.shape[1]) < hop.count_S.numpy()[:, None]
        pairs += [
            (hop.self_S.numpy(), hop.self_uses),
            (np.where(used, hop.neighbor_SK.numpy(), -1), hop.neighbor_uses),
        ]
        rows += [table, table]
    for (index, uses), count in zip(pairs, rows, strict=True):
        expected = tiny.uses_of(index, count)
        assert torch.equal(uses.indptr_R1, expected.indptr_R1)
        assert torch.equal(uses.position_M, expected.position_M)


def check_padding(batch: PreparedBatch) -> None:
    """Padding holds row 0, event 0, difference 0, and these rows exist."""
    assert len(batch.features) >= 1
    for hop in batch.hops:
        unused = torch.arange(hop.neighbor_SK.shape[1]) >= hop.count_S.unsqueeze(1)
        for slots in (hop.neighbor_SK, hop.event_SK, hop.delta_SK):
            assert not slots[unused].any()


@given(
    stream=tiny.streams(),
    history=histories,
    batch_size=st.integers(1, 9),
    dedup=st.booleans(),
    compact=st.booleans(),
    hidden=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_everything_equals_a_scan_over_the_events(
    stream: tiny.Stream,
    history: History,
    batch_size: int,
    dedup: bool,
    compact: bool,
    hidden: int,
) -> None:
    """`hidden`: every third event (from there on) is withheld, as hidden nodes' events are."""
    kept = [e for e in range(len(stream)) if hidden == 0 or e % 3 != hidden - 1]
    if not kept:
        return
    prep = tiny.preparer(
        stream, history, batch_size, kept=kept if hidden else None, dedup=dedup, compact=compact
    )
    book = ledger.MailLedger(stream, history)
    for number in range(len(prep.plan)):
        negative = tiny.negatives(prep, number, count=number % 3)
        batch = prep.prepare(number, negative)
        assert (batch.number, batch.version) == (number, number)
        assert batch.event_B.tolist() == kept[number * batch_size : (number + 1) * batch_size]
        assert batch.candidates == number % 3
        check_roots(stream, kept, prep, batch, negative)
        check_mail(batch, book)
        book.execute(batch.event_B.tolist())
        check_writes(batch, book)
        check_uses(batch)
        check_padding(batch)


@pytest.mark.parametrize("strategy", ["recent", "uniform"])
def test_batches_are_equal_in_whatever_order_they_are_prepared(strategy: str) -> None:
    """Preparation keeps nothing between calls: ahead, backwards and again give the same value."""
    stream = tiny.random_stream(0, 40, node_feature_width=2)
    history = History(neighbors=(3, 2), strategy=strategy)  # type: ignore[arg-type]
    prep = tiny.preparer(stream, history, 7)

    def prepare(number: int) -> PreparedBatch:
        return prep.prepare(number, tiny.negatives(prep, number), epoch=1)

    forward = [prepare(b) for b in range(len(prep.plan))]
    backward = [prepare(b) for b in reversed(range(len(prep.plan)))][::-1]
    alone = tiny.preparer(stream, history, 7)
    for number, batch in enumerate(forward):
        tiny.assert_equal_batches(batch, backward[number])
        tiny.assert_equal_batches(
            batch, alone.prepare(number, tiny.negatives(alone, number), epoch=1)
        )


def test_uniform_neighbors_are_distinct_past_events_and_change_with_the_epoch() -> None:
    stream = tiny.random_stream(1, 60, nodes=4)
    prep = tiny.preparer(stream, History(neighbors=(3,), strategy="uniform"), 10)
    drawn = []
    for epoch in range(3):
        batch = prep.prepare(5, tiny.negatives(prep, 5), epoch=epoch)
        trees = [ledger.expand(batch, 1, row) for row in batch.root_R.tolist()]
        drawn.append(trees)
        for (_, below), event in zip(trees, batch.event_B.tolist() * 2, strict=False):
            events = [e for _, e, _ in below]
            assert events == sorted(set(events))
            assert all(stream.time[e] < stream.time[event] for e in events)
    assert drawn[0] != drawn[1] != drawn[2]


def test_uniform_sample_does_not_depend_on_dedup_or_batch_size() -> None:
    stream = tiny.random_stream(2, 60, nodes=4)
    history = History(neighbors=(2, 2), strategy="uniform")
    trees = []
    for batch_size, dedup in ((5, True), (5, False), (20, True)):
        prep = tiny.preparer(stream, history, batch_size, dedup=dedup)
        found = []
        for number in range(len(prep.plan)):
            batch = prep.prepare(number, np.empty((len(prep.plan.events(number)), 0), np.int32))
            half = batch.size
            found += [ledger.expand(batch, 2, row) for row in batch.root_R[:half].tolist()]
        trees.append(found)
    assert trees[0] == trees[1] == trees[2]


# ---------------------------------------------------------------- the traps, one by one


def root_tree(prep: Preparer, number: int, row: int = 0) -> ledger.Tree:
    batch = prep.prepare(number, tiny.negatives(prep, number))
    return ledger.expand(batch, len(batch.hops), int(batch.root_R[row]))


def test_strict_and_inclusive_at_the_query_time() -> None:
    """I02, pitfalls 1 and 6.

    0 --5-- 1     two events at t = 5, then the event (0, 3) at t = 5 as well:
    0 --5-- 2     strict: none of them is history; inclusive: the two before it in row order
    0 --5-- 3     are, itself never.
    """
    stream = tiny.Stream([0, 0, 0], [1, 2, 3], [5, 5, 5], 4)
    strict = tiny.preparer(stream, History(neighbors=(10,)), 3)
    inclusive = tiny.preparer(stream, History(neighbors=(10,), inclusive=True), 3)
    assert root_tree(strict, 0, row=2) == (0, ())
    assert root_tree(inclusive, 0, row=2) == (0, ((1, 0, 0.0), (2, 1, 0.0)))
    assert root_tree(inclusive, 0, row=0) == (0, ())  # the first of the three sees nothing


@pytest.mark.parametrize("visibility", ["event", "batch"])
@pytest.mark.parametrize("layers", [1, 2])
def test_inclusive_never_returns_the_event_itself(visibility: str, layers: int) -> None:
    """Also at hop 2: node 1, reached through event 0 at t = 5, must not lead back through it.

    0 --5-- 1 --5-- 2        0 --9-- 2
    """
    stream = tiny.Stream([0, 1, 0], [1, 2, 2], [5, 5, 9], 3)
    history = History(neighbors=(4,) * layers, inclusive=True, visibility=visibility)  # type: ignore[arg-type]
    prep = tiny.preparer(stream, history, 1)
    if layers == 1:
        assert root_tree(prep, 2) == (0, ((1, 0, 4.0),))
        return
    # From root 0 at t = 9 through event 0 to node 1 at t = 5: nothing was before event 0.
    assert root_tree(prep, 2, row=0)[1] == (((1, ()), 0, 4.0),)
    # From root 2 at t = 9 through event 1 to node 1 at t = 5: event 0 was before it.
    assert root_tree(prep, 2, row=1)[1] == (((1, ((0, 0, 0.0),)), 1, 4.0),)


def test_hop_two_is_asked_at_the_time_of_the_hop_one_event() -> None:
    """I08 and pitfall 8: events (2,1,10), (3,1,40), (1,0,50), (4,1,55), query node 0 at 60."""
    stream = tiny.Stream([2, 3, 1, 4, 0], [1, 1, 0, 1, 5], [10, 40, 50, 55, 60], 6)
    prep = tiny.preparer(stream, History(neighbors=(5, 5)), 1)
    own, below = root_tree(prep, 4)
    assert own == (0, ((1, 2, 10.0),))
    assert below == (((1, ((2, 0, 40.0), (3, 1, 10.0))), 2, 10.0),)


def test_own_edge_takes_no_slot_from_the_positive() -> None:
    """Pitfall 3: with k = 2, source and target of an event have as many neighbours as a negative
    of equal history: a count that differed would give the label away."""
    #  0, 1 and 2 each met 3 three times; then (0, 1) happens and 2 is the negative
    stream = tiny.Stream([0, 1, 2] * 3 + [0], [3] * 9 + [1], [*range(9), 20], 4)
    for inclusive in (False, True):
        prep = tiny.preparer(stream, History(neighbors=(2,), inclusive=inclusive), 1)
        batch = prep.prepare(9, np.array([[2]], np.int32))
        counts = batch.hops[-1].count_S[batch.root_R.long()]
        assert counts.tolist() == [2, 2, 2]


def test_every_root_is_searched_on_its_own() -> None:
    """Pitfalls 2 and 5: the later events of a batch do not push out the neighbours of the
    earlier ones, and hop 2 looks back past the latest k."""
    stream = tiny.Stream([0] * 8, [1, 2, 3, 4, 5, 6, 7, 8], list(range(8)), 9)
    prep = tiny.preparer(stream, History(neighbors=(2,)), 8)
    batch = prep.prepare(0, np.empty((8, 0), np.int32))
    for event, row in enumerate(batch.root_R[:8].tolist()):
        _, below = ledger.expand(batch, 1, row)
        assert [e for _, e, _ in below] == list(range(max(0, event - 2), event))


def test_visibility_of_earlier_events_of_the_same_batch() -> None:
    """Pitfall 4: an explicit choice."""
    stream = tiny.Stream([0, 0, 0], [1, 2, 3], [1, 2, 3], 4)
    event = tiny.preparer(stream, History(neighbors=(5,)), 2)
    batch = tiny.preparer(stream, History(neighbors=(5,), visibility="batch"), 2)
    assert root_tree(event, 0, row=1) == (0, ((1, 0, 1.0),))
    assert root_tree(batch, 0, row=1) == (0, ())
    assert root_tree(batch, 1) == (0, ((1, 0, 2.0), (2, 1, 1.0)))


@pytest.mark.parametrize("batch_size", [1, 2, 7, 30])
def test_fresh_sources_have_no_neighbors(batch_size: int) -> None:
    """I07: pairs (i, i + 30): whatever the batch size, no event of the batch is a neighbour."""
    stream = tiny.Stream(list(range(30)), list(range(30, 60)), list(range(30)), 60)
    prep = tiny.preparer(stream, History(neighbors=(5,)), batch_size)
    for number in range(len(prep.plan)):
        batch = prep.prepare(number, np.empty((len(prep.plan.events(number)), 0), np.int32))
        assert batch.hops[0].count_S.tolist() == [0] * len(batch.hops[0].count_S)


def test_self_loops_and_both_sides_in_one_batch() -> None:
    """Pitfall 12: node 0 is source, then target, then both; the latest event's partner counts.

    0 --1-- 1      2 --1-- 0      0 --1-- 0      (all at one time, one batch)
    """
    stream = tiny.Stream([0, 2, 0], [1, 0, 0], [1, 1, 1], 3)
    last = tiny.preparer(stream, History(message="last"), 3).prepare(0, np.empty((3, 0), np.int32))
    mean = tiny.preparer(stream, History(message="mean"), 3).prepare(0, np.empty((3, 0), np.int32))

    def partners(batch: PreparedBatch) -> dict[int, list[int]]:
        writes = batch.writes
        assert writes is not None
        bounds = writes.indptr_W1.tolist()
        rows = batch.node_U[writes.partner_row_P.long()].tolist()
        return {n: rows[bounds[w] : bounds[w + 1]] for w, n in enumerate(writes.node_W.tolist())}

    assert partners(last) == {0: [0], 1: [0], 2: [0]}
    assert partners(mean) == {0: [1, 2, 0], 1: [0], 2: [0]}


def test_withheld_training_events_leave_no_trace() -> None:
    """Pitfall 7: an event outside the streamed part is no neighbour and no mail."""
    stream = tiny.Stream([0, 0, 0], [1, 2, 1], [1, 2, 3], 3)
    prep = tiny.preparer(stream, History(neighbors=(5,)), 1, kept=[0, 2])
    batch = prep.prepare(1, np.empty((1, 0), np.int32))
    assert root_tree(prep, 1) == (0, ((1, 0, 2.0),))
    assert batch.mail is not None
    assert batch.mail.event_L.tolist() == [0, 0]  # for node 0 and node 1


@pytest.mark.parametrize("offset", [1_700_000_000, 1_700_000_000 * 10**9])
def test_differences_of_large_integer_times_are_exact(offset: int) -> None:
    """I20: seconds that are equal in float32 and nanoseconds that are equal in float64."""
    stream = tiny.Stream([0, 0, 0], [1, 1, 1], [offset, offset + 1, offset + 61], 2)
    prep = tiny.preparer(stream, History(neighbors=(5,)), 1)
    assert root_tree(prep, 1) == (0, ((1, 0, 1.0),))
    assert root_tree(prep, 2) == (0, ((1, 0, 61.0), (1, 1, 60.0)))
    mail = prep.prepare(2, np.empty((1, 0), np.int32)).mail
    assert mail is not None
    assert mail.delta_L.tolist() == [1.0, 1.0]  # event 1, last update at event 0


def test_fractional_times() -> None:
    stream = tiny.Stream([0, 0, 0], [1, 1, 1], [0.25, 0.5, 0.5], 2, float_time=True)
    strict = tiny.preparer(stream, History(neighbors=(5,)), 1)
    inclusive = tiny.preparer(stream, History(neighbors=(5,), inclusive=True), 1)
    assert root_tree(strict, 2) == (0, ((1, 0, 0.25),))
    assert root_tree(inclusive, 2) == (0, ((1, 0, 0.25), (1, 1, 0.0)))


def test_features_reach_every_event_and_node() -> None:
    """I23, I24, pitfall 19: node 0 and the last event are ordinary; no off-by-one anywhere."""
    stream = tiny.Stream([0, 1, 2], [1, 2, 0], [1, 2, 3], 3, node_feature_width=2)
    events = stream.events()
    for compact in (False, True):
        prep = tiny.preparer(stream, History(neighbors=(5,)), 1, compact=compact)
        batch = prep.prepare(2, np.array([[1]], np.int32))
        hop, own = batch.hops[0], stream.features
        assert own is not None
        for s in range(len(hop.self_S)):
            for slot in range(int(hop.count_S[s])):
                found = batch.features[int(hop.event_SK[s, slot])].numpy()
                assert np.array_equal(found, own[int(found[0]) - 1])
        assert batch.node_features is not None
        assert events.node_features is not None
        assert np.array_equal(
            batch.node_features.numpy(), events.node_features[batch.node_U.numpy()]
        )
        assert 0 in batch.node_U.tolist()


def test_the_last_event_is_a_neighbor_and_mail_of_what_follows() -> None:
    """I24: with batch size 1, event E - 1 reads event E - 2; a query after the end reads E - 1."""
    stream = tiny.Stream([0, 0, 0], [1, 1, 1], [1, 2, 3], 2)
    prep = tiny.preparer(stream, History(neighbors=(1,)), 1)
    query = prep.prepare_query(
        np.array([0], np.int32), np.array([[1]], np.int32), np.array([9], np.int64)
    )
    assert ledger.expand(query, 1, int(query.root_R[0])) == (0, ((1, 2, 6.0),))
    assert query.mail is not None
    assert query.mail.event_L.tolist() == [2, 2]
    assert query.mail.delta_L.tolist() == [1.0, 1.0]
    assert query.version == 3
    assert query.writes is None


@given(stream=tiny.streams(), history=histories, batch_size=st.integers(1, 9))
@settings(max_examples=20, deadline=None)
def test_query_after_the_stream_sees_all_of_it(
    stream: tiny.Stream, history: History, batch_size: int
) -> None:
    """Events at exactly the query time count: all of them have happened."""
    prep = tiny.preparer(stream, history, batch_size)
    book = ledger.MailLedger(stream, history)
    for number in range(len(prep.plan)):
        book.execute(prep.plan.events(number).tolist())
    rng = np.random.default_rng(len(stream))
    source, time = rng.integers(0, stream.num_nodes, 3), np.full(3, stream.time[-1])
    time[1:] += 1
    candidate = rng.integers(0, stream.num_nodes, (3, 2)).astype(np.int32)
    kind = np.float64 if stream.float_time else np.int64
    batch = prep.prepare_query(source.astype(np.int32), candidate, time.astype(kind))
    check_mail(batch, book)
    check_uses(batch)
    check_padding(batch)
    roots = [*source.tolist(), *candidate[:, 0].tolist(), *candidate[:, 1].tolist()]
    everything = replace(history, inclusive=True)
    depth, end = len(history.neighbors), len(stream)
    for (node, t), row in zip(
        zip(roots, time.tolist() * 3, strict=True), batch.root_R.tolist(), strict=True
    ):
        expected = ledger.tree(stream, list(range(end)), everything, node, t, depth, end)
        assert ledger.expand(batch, depth, row) == expected


@pytest.mark.parametrize("inclusive", [False, True])
def test_frozen_history_ends_where_the_named_batch_begins(inclusive: bool) -> None:
    """I42: scored as of batch 2, batch 4 sees neighbours, mail and state of batch 2's start."""
    stream = tiny.random_stream(4, 20, nodes=4)
    history = History(neighbors=(3, 2), inclusive=inclusive)
    prep = tiny.preparer(stream, history, 4)
    book = ledger.MailLedger(stream, history)
    for number in range(2):
        book.execute(prep.plan.events(number).tolist())
    batch = prep.prepare(4, tiny.negatives(prep, 4), as_of=2)
    assert (batch.number, batch.version, batch.writes) == (4, 2, None)
    check_mail(batch, book)
    for event, row in zip(batch.event_B.tolist(), batch.root_R.tolist(), strict=False):
        expected = ledger.tree(
            stream, list(range(8)), history, stream.source[event], stream.time[event], 2, 8
        )
        assert ledger.expand(batch, 2, row) == expected


def test_models_without_memory_get_no_mail() -> None:
    stream = tiny.random_stream(0, 10)
    prep = tiny.preparer(stream, History(neighbors=(3,), memory=False), 5)
    batch = prep.prepare(1, tiny.negatives(prep, 1))
    assert batch.mail is None
    assert batch.writes is None


def test_models_without_neighbors_get_their_roots_as_unique_nodes() -> None:
    stream = tiny.random_stream(0, 10)
    prep = tiny.preparer(stream, History(neighbors=()), 5)
    batch = prep.prepare(1, tiny.negatives(prep, 1))
    assert batch.hops == ()
    events = batch.event_B.tolist()
    roots = [stream.source[e] for e in events] + [stream.target[e] for e in events]
    roots += tiny.negatives(prep, 1)[:, 0].tolist()
    assert batch.node_U[batch.root_R.long()].tolist() == roots
    check_uses(batch)


@pytest.mark.parametrize("shape", [(3, 1), (5,), (6, 2)])
def test_negatives_of_another_length_are_refused(shape: tuple[int, ...]) -> None:
    prep = tiny.preparer(tiny.random_stream(0, 10), History(), 5)
    with pytest.raises(SettingError, match=r"batch 1 of 5 events: expected one row per event"):
        prep.prepare(1, np.zeros(shape, np.int32))


def test_a_directed_index_is_refused_for_memory() -> None:
    """It would list an event under its source only, and the target would miss its mail."""
    prep = tiny.preparer(tiny.random_stream(0, 10), History(), 5)
    directed = TemporalIndex.from_events(prep.events, directed=True)
    with pytest.raises(SettingError, match=r"directed.*mail.*undirected index"):
        replace(prep, index=directed)
    without = replace(prep, index=directed, history=History(memory=False))
    assert without.prepare(1, tiny.negatives(prep, 1)).mail is None
