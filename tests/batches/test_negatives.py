"""Negatives: reproducible alone, legal when asked to be, and as the published protocols define."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegraph.batches.negatives import (
    EveryDestination,
    FixedNegatives,
    NegativeSampler,
    NegativeSettings,
)
from tidegraph.errors import InputError, NoLegalNegativeError, SettingError
from tidegraph.events.core import Events
from tidegraph.keys import Purpose

STRATEGIES = ("random", "seen", "historical", "inductive")


def random_events(seed: int, count: int, nodes: int, bipartite: bool, times: int = 20) -> Events:
    rng = np.random.default_rng(seed)
    sources = nodes // 2 if bipartite else nodes
    return Events.from_arrays(
        rng.integers(0, sources, count),
        rng.integers(sources if bipartite else 0, nodes, count),
        rng.integers(0, times, count),
        num_nodes=nodes,
        num_sources=sources if bipartite else None,
        bipartite=bipartite,
    )


def true_targets(events: Events, position: int) -> set[int]:
    same = (events.source == events.source[position]) & (events.time == events.time[position])
    return set(events.target[same].tolist())


def sampler_for(events: Events, **options: object) -> NegativeSampler:
    train_stop = len(events) // 2 if options.get("strategy") == "inductive" else None
    return NegativeSampler(events, NegativeSettings(**options), train_stop=train_stop)


# ---------------------------------------------------------------- reproducible


@pytest.mark.parametrize("collisions", ["allow", "check"])
@pytest.mark.parametrize("strategy", ["random", "seen"])
def test_a_batch_is_reproduced_alone_whatever_the_batch_size(strategy, collisions):
    events = random_events(1, 97, 30, bipartite=True)
    sampler = sampler_for(events, strategy=strategy, collisions=collisions)
    whole_BC = sampler.draw(0, 97, epoch=3, count=5)
    for size in (1, 7, 50):
        for start in range(0, 97, size):
            stop = min(start + size, 97)
            part_BC = sampler.draw(start, stop, epoch=3, count=5)
            assert np.array_equal(part_BC, whole_BC[start:stop])
    assert np.array_equal(sampler.draw(0, 97, epoch=3, count=2), whole_BC[:, :2])
    scattered = np.array([3, 40, 96])
    assert np.array_equal(sampler.draw_at(scattered, epoch=3, count=5), whole_BC[scattered])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_new_sampler_with_the_same_seed_draws_the_same(strategy):
    events = random_events(2, 80, 20, bipartite=False)
    draws = [sampler_for(events, strategy=strategy).draw(40, 60, epoch=1) for _ in range(2)]
    assert np.array_equal(*draws)
    other = sampler_for(events, strategy=strategy, seed=1).draw(40, 60, epoch=1)
    assert not np.array_equal(draws[0], other)


def test_epochs_groups_and_purposes_differ_but_evaluation_never_changes():
    sampler = NegativeSampler(random_events(3, 200, 60, bipartite=True))
    base = sampler.draw(0, 200, epoch=0)
    assert not np.array_equal(base, sampler.draw(0, 200, epoch=1))
    assert not np.array_equal(base, sampler.draw(0, 200, epoch=0, group=1))
    evaluation = [
        sampler.draw(0, 200, epoch=e, purpose=Purpose.EVALUATION_NEGATIVE) for e in (0, 1)
    ]
    assert np.array_equal(*evaluation)
    assert not np.array_equal(base, evaluation[0])
    assert np.array_equal(sampler.candidates(0, 200, count=1).node_BC, evaluation[0])


def test_random_draws_are_uniform_over_the_destinations():
    events = random_events(4, 2000, 20, bipartite=True)
    negative_BC = NegativeSampler(events).draw(0, 2000, count=50)
    count = np.bincount(negative_BC.ravel(), minlength=20)
    assert (count[:10] == 0).all()
    expected = negative_BC.size / 10
    # chi-square with 9 degrees of freedom: 27.9 is its 0.999 quantile
    assert ((count[10:] - expected) ** 2 / expected).sum() < 27.9


def test_slots_and_neighbouring_events_are_independent():
    negative_BC = NegativeSampler(random_events(5, 20000, 200, bipartite=True)).draw(
        0, 20000, count=2
    )
    rank_BC = (negative_BC - 100).astype(np.float64)
    for left, right in (
        (rank_BC[:, 0], rank_BC[:, 1]),
        (rank_BC[:-1, 0], rank_BC[1:, 0]),
        (rank_BC[:-1, 1], rank_BC[1:, 0]),
    ):
        assert abs(np.corrcoef(left, right)[0, 1]) < 4 / np.sqrt(20000)


# ---------------------------------------------------------------- the pool


def test_bipartite_draws_destinations_only():
    """Pitfall 21: a source as negative gives the answer away."""
    events = random_events(6, 300, 40, bipartite=True)
    for strategy in STRATEGIES:
        negative_BC = sampler_for(events, strategy=strategy).draw(150, 300, count=7)
        assert negative_BC.dtype == np.int32
        assert negative_BC.min() >= events.schema.first_target
        assert negative_BC.max() < events.schema.num_nodes


def test_without_sides_the_pool_is_what_is_ever_a_target_or_all_nodes():
    # 0 -> 2, 1 -> 2, 2 -> 3: nodes 0 and 1 are never a target
    events = Events.from_arrays([0, 1, 2], [2, 2, 3], [1, 2, 3])
    assert not events.schema.bipartite
    drawn = NegativeSampler(events).draw(0, 3, count=100)
    assert set(drawn.ravel().tolist()) == {2, 3}
    drawn = NegativeSampler(events, NegativeSettings(pool="all")).draw(0, 3, count=100)
    assert set(drawn.ravel().tolist()) == {0, 1, 2, 3}


def test_own_nodes_are_the_only_ones_drawn():
    events = random_events(7, 100, 20, bipartite=True)
    sampler = NegativeSampler(events, NegativeSettings(collisions="check"), nodes=[11, 15, 19])
    assert set(sampler.draw(0, 100, count=20).ravel().tolist()) == {11, 15, 19}


# ---------------------------------------------------------------- collisions (I31, pitfall 20)


def test_true_destinations_of_the_same_source_and_time_are_never_drawn():
    #   time 5:  0 -> 10, 0 -> 11        items: 10, 11, 12
    #   time 6:  1 -> 12
    events = Events.from_arrays([0, 0, 1], [10, 11, 12], [5, 5, 6])
    sampler = NegativeSampler(events, NegativeSettings(collisions="check"), nodes=[10, 11, 12])
    negative_BC = sampler.draw(0, 3, count=1000)
    assert set(negative_BC[:2].ravel().tolist()) == {12}
    assert set(negative_BC[2].tolist()) == {10, 11}
    allowed = NegativeSampler(events, nodes=[10, 11, 12]).draw(0, 2, count=1000)
    assert set(allowed.ravel().tolist()) == {10, 11, 12}


@pytest.mark.parametrize("strategy", ["random", "historical"])
def test_no_legal_negative_names_source_and_time(strategy):
    # source 0 has every item at time 7
    events = Events.from_arrays([0, 0, 0], [1, 2, 3], [7, 7, 7])
    sampler = NegativeSampler(events, NegativeSettings(strategy=strategy, collisions="check"))
    with pytest.raises(NoLegalNegativeError, match=r"source 0, time 7.*collisions='allow'"):
        sampler.draw(0, 3)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(4, 14),
    bipartite=st.booleans(),
    strategy=st.sampled_from(STRATEGIES),
)
def test_checked_draws_are_legal_or_refused_for_a_reason(seed, nodes, bipartite, strategy):
    events = random_events(seed, 60, nodes, bipartite, times=12)
    sampler = sampler_for(events, strategy=strategy, collisions="check")
    pool = set(sampler.pool_L.tolist())
    for start in range(0, 60, 9):
        stop = min(start + 9, 60)
        legal = [pool - true_targets(events, p) for p in range(start, stop)]
        try:
            negative_BC = sampler.draw(start, stop, count=6)
        except NoLegalNegativeError:
            if strategy in ("random", "seen"):
                assert not all(legal)
            continue
        for row, allowed in enumerate(legal):
            assert set(negative_BC[row].tolist()) <= allowed


def test_checked_draws_are_uniform_over_the_legal_ones():
    # source 0 has items 4 and 7 at time 1; legal: 5, 6, 8, 9
    events = Events.from_arrays([0, 0, 1, 1, 1, 1], [4, 7, 5, 6, 8, 9], [1, 1, 2, 3, 4, 5])
    settings_ = NegativeSettings(collisions="check")
    drawn = NegativeSampler(events, settings_).draw(0, 1, count=40000)
    count = np.bincount(drawn[0], minlength=10)
    assert (count[[4, 7]] == 0).all()
    # chi-square with 3 degrees of freedom: 16.3 is its 0.999 quantile
    assert ((count[[5, 6, 8, 9]] - 10000) ** 2 / 10000).sum() < 16.3


# ---------------------------------------------------------------- seen (I32)


def test_seen_draws_only_what_exists_before_the_time():
    #   t=1: 0 -> 10    t=2: 0 -> 11    t=100: 0 -> 12    t=101: 0 -> 10
    events = Events.from_arrays([0, 0, 0, 0], [10, 11, 12, 10], [1, 2, 100, 101])
    sampler = NegativeSampler(events, NegativeSettings(strategy="seen"), nodes=[10, 11, 12])
    negative_BC = sampler.draw(0, 4, count=200)
    assert set(negative_BC[1].tolist()) == {10}
    assert set(negative_BC[2].tolist()) == {10, 11}  # 12 first appears at this very time
    assert set(negative_BC[3].tolist()) == {10, 11, 12}
    assert set(negative_BC[0].tolist()) == {10, 11, 12}  # nothing seen yet: the whole pool


def test_seen_can_refuse_where_nothing_has_been_seen():
    events = Events.from_arrays([0, 0], [1, 2], [1, 2])
    sampler = NegativeSampler(events, NegativeSettings(strategy="seen", unseen="error"))
    with pytest.raises(NoLegalNegativeError, match=r"source 0, time 1"):
        sampler.draw(0, 2)
    assert sampler.draw(1, 2).tolist() == [[1]]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), checked=st.booleans())
def test_seen_against_brute_force(seed, checked):
    events = random_events(seed, 50, 16, bipartite=True)
    collisions = "check" if checked else "allow"
    sampler = sampler_for(events, strategy="seen", collisions=collisions)
    negative_BC = sampler.draw(0, 50, count=60)
    for position in range(50):
        before = events.target[events.time < events.time[position]]
        allowed = set(before.tolist())
        if checked:
            allowed -= true_targets(events, position)
        if allowed:
            assert set(negative_BC[position].tolist()) <= allowed
            assert len(allowed) < 4 or len(set(negative_BC[position].tolist())) > 1


# ---------------------------------------------------------------- historical and inductive


def pairs(events: Events, start: int, stop: int) -> list[tuple[int, int]]:
    part = slice(start, stop)
    return list(zip(events.source[part].tolist(), events.target[part].tolist(), strict=True))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    strategy=st.sampled_from(["historical", "inductive"]),
    bipartite=st.booleans(),
    start=st.integers(0, 55),
    size=st.integers(1, 12),
    count=st.integers(1, 9),
)
def test_past_partners_against_brute_force(seed, strategy, bipartite, start, size, count):
    events = random_events(seed, 60, 14, bipartite, times=200)
    stop = min(start + size, 60)
    sampler = sampler_for(events, strategy=strategy)
    before, batch = set(pairs(events, 0, start)), set(pairs(events, start, stop))
    if strategy == "inductive":
        before -= set(pairs(events, 0, 30))
    pool = set(sampler.pool_L.tolist())
    try:
        negative_BC = sampler.draw(start, stop, count=count)
    except NoLegalNegativeError:
        assert any(pool <= {v for u, v in batch if u == s} for s in events.source[start:stop])
        return
    for row, source in enumerate(events.source[start:stop].tolist()):
        past = {v for u, v in before - batch if u == source}
        drawn = negative_BC[row].tolist()
        assert all((source, v) not in batch for v in drawn)
        # Without replacement; all of them where they do not suffice, then random ones.
        head = drawn[: min(count, len(past))]
        assert len(set(head)) == len(head)
        assert set(head) <= past
        assert set(drawn) <= pool


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    strategy=st.sampled_from(["historical", "inductive"]),
    start=st.integers(0, 55),
    size=st.integers(1, 12),
    count=st.integers(1, 4),
)
def test_past_edges_against_brute_force(seed, strategy, start, size, count):
    events = random_events(seed, 60, 14, bipartite=True, times=200)
    stop = min(start + size, 60)
    before, batch = set(pairs(events, 0, start)), set(pairs(events, start, stop))
    if strategy == "inductive":
        before -= set(pairs(events, 0, 30))
    past, needed = before - batch, (stop - start) * count
    edges = sampler_for(events, strategy=strategy).draw_edges(start, stop, count=count)
    assert edges.source_BC.shape == edges.target_BC.shape == (stop - start, count)
    drawn = list(
        zip(edges.source_BC.ravel().tolist(), edges.target_BC.ravel().tolist(), strict=True)
    )
    head = drawn[: min(needed, len(past))]
    assert len(set(head)) == len(head)
    assert set(head) <= past
    assert not set(drawn) & batch
    assert all(u < 7 <= v for u, v in drawn)


def test_past_edges_are_drawn_uniformly():
    # 20 distinct edges before a batch of one; count which of them come, over many epochs
    events = Events.from_arrays(np.zeros(21, int), np.arange(1, 22), np.arange(21))
    sampler = NegativeSampler(events, NegativeSettings(strategy="historical"))
    count = np.zeros(22, int)
    for epoch in range(2000):
        partners = sampler.draw(20, 21, epoch=epoch, count=5)
        edges = sampler.draw_edges(20, 21, epoch=epoch, count=5, purpose=Purpose.NEGATIVE)
        np.add.at(count, partners.ravel(), 1)
        np.add.at(count, edges.target_BC.ravel(), 1)
    assert count[0] == count[21] == 0
    # chi-square with 19 degrees of freedom: 43.8 is its 0.999 quantile; drawing without
    # replacement only narrows it
    assert ((count[1:21] - 1000) ** 2 / 1000).sum() < 43.8


# ---------------------------------------------------------------- every destination


@pytest.mark.parametrize("bipartite", [True, False])
@pytest.mark.parametrize("filtered", [True, False])
def test_every_destination_but_the_true_one(bipartite, filtered):
    events = random_events(11, 80, 16, bipartite, times=10)
    source = EveryDestination(events, filtered=filtered)
    found = source.candidates(20, 60)
    pool = set(NegativeSampler(events).pool_L.tolist())
    for row, position in enumerate(range(20, 60)):
        node_C = found.node_BC[row]
        left = node_C if found.mask_BC is None else node_C[found.mask_BC[row]]
        out = true_targets(events, position) if filtered else {int(events.target[position])}
        assert sorted(left.tolist()) == sorted(pool - out)


def test_every_destination_refuses_what_cannot_be_held():
    events = Events.from_arrays([0, 1], [2, 3], [0, 1], num_nodes=2**22, num_sources=2)
    with pytest.raises(SettingError, match="smaller batch"):
        EveryDestination(events).candidates(0, 2000)


# ---------------------------------------------------------------- prepared negatives (I33)

#  row 0: 0 -> 4 at 30    row 1: 1 -> 5 at 10    row 2: 2 -> 4 at 20   (out of order on purpose)
PREPARED = Events.from_arrays([0, 1, 2], [4, 5, 4], [30, 10, 20], num_nodes=7, num_sources=4)


def test_prepared_negatives_are_used_as_they_are(tmp_path):
    path = tmp_path / "negatives.npz"
    np.savez(path, row=[2, 0, 1], candidate=[[5, 6], [6, 5], [4, 6]])
    found = FixedNegatives.read(path, PREPARED).candidates(0, 3)
    assert found.node_BC.tolist() == [[4, 6], [5, 6], [6, 5]]  # in time order: rows 1, 2, 0
    assert found.mask_BC is None


def test_prepared_lists_of_different_length(tmp_path):
    path = tmp_path / "negatives.parquet"
    pq.write_table(pa.table({"row": [0, 1, 2], "candidate": [[5, 6], [4], [6, 5]]}), path)
    found = FixedNegatives.read(path, PREPARED).candidates(0, 2)
    assert found.node_BC[0, 0] == 4
    assert found.node_BC[1].tolist() == [6, 5]
    assert found.mask_BC.tolist() == [[True, False], [True, True]]


def test_a_missing_event_is_named_and_nothing_is_resampled(tmp_path):
    path = tmp_path / "negatives.npz"
    np.savez(path, row=[0, 1], candidate=[[5, 6], [4, 6]])
    fixed = FixedNegatives.read(path, PREPARED)
    assert fixed.candidates(0, 1).node_BC.tolist() == [[4, 6]]
    with pytest.raises(InputError, match=r"event row 2 \(source 2, target 4, time 20\)"):
        fixed.candidates(0, 3)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"rows": [0], "candidate": [[5]]}, "found rows, candidate"),
        ({"row": [0, 0], "candidate": [[5], [6]]}, "row 0 occurs more than once"),
        ({"row": [0], "candidate": [[99]]}, "99"),
        ({"row": [0.5], "candidate": [[5]]}, "row as .* integers"),
        ({"row": [0, 1], "candidate": [[5]]}, "shapes"),
    ],
)
def test_files_of_another_layout_are_refused(tmp_path, columns, message):
    path = tmp_path / "negatives.npz"
    np.savez(path, **columns)
    with pytest.raises(InputError, match=message):
        FixedNegatives.read(path, PREPARED)


def test_files_of_another_kind_are_refused(tmp_path):
    (tmp_path / "negatives.csv").write_text("row,candidate\n")
    with pytest.raises(InputError, match=r"\.npz, \.parquet or \.pkl"):
        FixedNegatives.read(tmp_path / "negatives.csv", PREPARED)
    for suffix in ("npz", "parquet"):
        broken = tmp_path / f"broken.{suffix}"
        broken.write_bytes(b"not a file of this kind")
        with pytest.raises(InputError, match="not a readable"):
            FixedNegatives.read(broken, PREPARED)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "hard"}, "'hard'; expected one of random, seen"),
        ({"collisions": "maybe"}, "expected one of allow, check"),
        ({"pool": "sources"}, "expected one of destinations, all"),
        ({"unseen": "error"}, "no effect"),
    ],
)
def test_settings_that_cannot_be(options, message):
    with pytest.raises(SettingError, match=message):
        NegativeSettings(**options)


def test_combinations_that_cannot_be():
    events = random_events(12, 20, 10, bipartite=True)
    with pytest.raises(SettingError, match="train_stop"):
        NegativeSampler(events, NegativeSettings(strategy="inductive"))
    with pytest.raises(SettingError, match="train_stop"):
        NegativeSampler(events, train_stop=5)
    with pytest.raises(SettingError, match="sources as destinations"):
        NegativeSampler(events, NegativeSettings(pool="all"))
    with pytest.raises(SettingError, match="empty"):
        NegativeSampler(events, nodes=np.zeros(0, np.int32))
    with pytest.raises(SettingError, match=r"0\.\.9"):
        NegativeSampler(events, nodes=[3, 10])
    with pytest.raises(SettingError, match="draw_edges belongs to"):
        NegativeSampler(events).draw_edges(0, 5)
