"""The generators: exact by seed, of the stated size, and shaped as stated."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tidegraph.errors import SettingError
from tidegraph.events.synthetic import (
    TALK_SECONDS,
    WIKIPEDIA_EVENTS,
    WIKIPEDIA_ITEMS,
    WIKIPEDIA_SECONDS,
    WIKIPEDIA_USERS,
    SyntheticArrays,
    synthetic_events,
    talk_like,
    wikipedia_like,
)


def digest(arrays: SyntheticArrays) -> str:
    """Digest of everything that a generator returns."""
    result = hashlib.sha256()
    for array in (arrays.source_E, arrays.target_E, arrays.time_E, arrays.features_EF):
        if array is not None:
            result.update(np.ascontiguousarray(array).tobytes())
    return result.hexdigest()


@pytest.fixture(scope="module")
def wikipedia() -> SyntheticArrays:
    return wikipedia_like()


@pytest.fixture(scope="module")
def talk() -> SyntheticArrays:
    return talk_like(scale=0.02)


def returns_to_previous_item(arrays: SyntheticArrays) -> np.ndarray:
    """[E] whether an event's item is that of the same user's event before, one event at a time."""
    last: dict[int, int] = {}
    returned = np.zeros(len(arrays.time_E), dtype=bool)
    pairs = zip(arrays.source_E.tolist(), arrays.target_E.tolist(), strict=True)
    for event, (user, item) in enumerate(pairs):
        returned[event] = last.get(user) == item
        last[user] = item
    return returned


def test_wikipedia_has_the_stated_sizes(wikipedia: SyntheticArrays) -> None:
    assert len(wikipedia.time_E) == WIKIPEDIA_EVENTS == 157_474
    assert wikipedia.num_sources == WIKIPEDIA_USERS == 8_227
    assert wikipedia.num_nodes == WIKIPEDIA_USERS + WIKIPEDIA_ITEMS == 9_227
    assert len(np.unique(wikipedia.source_E)) == WIKIPEDIA_USERS
    assert np.array_equal(np.unique(wikipedia.target_E), np.arange(8_227, 9_227))
    assert wikipedia.features_EF is not None
    assert wikipedia.features_EF.shape == (157_474, 172)
    assert wikipedia.features_EF.dtype == np.float32


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_79_percent_of_events_return_to_the_users_previous_item(seed: int) -> None:
    returned = returns_to_previous_item(wikipedia_like(seed=seed, features=0))
    assert 0.78 <= returned.mean() <= 0.80


def test_wikipedia_activity_is_heavy_tailed(wikipedia: SyntheticArrays) -> None:
    count_U = np.bincount(wikipedia.source_E)
    assert np.median(count_U) <= 3
    assert count_U.max() >= 1_000
    assert np.sort(count_U)[-822:].sum() >= 0.7 * WIKIPEDIA_EVENTS  # a tenth of the users
    count_I = np.bincount(wikipedia.target_E - WIKIPEDIA_USERS)
    assert count_I.max() >= 8 * np.median(count_I)


def test_wikipedia_times_fill_the_month_with_few_ties(wikipedia: SyntheticArrays) -> None:
    time_E = wikipedia.time_E
    assert time_E.dtype == np.int64
    assert (np.diff(time_E) >= 0).all()
    assert time_E[0] >= 0
    assert 0.99 * WIKIPEDIA_SECONDS <= time_E[-1] <= WIKIPEDIA_SECONDS
    _, count = np.unique(time_E, return_counts=True)
    assert 0.03 <= count[count > 1].sum() / len(time_E) <= 0.10
    per_day = np.histogram(time_E, bins=30)[0]
    assert per_day.min() >= 0.5 * per_day.mean()


def test_wikipedia_features_tell_items_apart(wikipedia: SyntheticArrays) -> None:
    features_EF = wikipedia.features_EF
    assert features_EF is not None
    half = len(features_EF) // 2
    item_E = wikipedia.target_E - WIKIPEDIA_USERS
    mean_IF = np.zeros((WIKIPEDIA_ITEMS, 172))
    np.add.at(mean_IF, item_E[:half], features_EF[:half])
    mean_IF /= np.maximum(np.bincount(item_E[:half], minlength=WIKIPEDIA_ITEMS), 1)[:, None]
    probe = features_EF[half : half + 2_000]
    distance = (mean_IF**2).sum(axis=1) - 2.0 * probe @ mean_IF.T  # squared, less a constant
    found = distance.argmin(axis=1) == item_E[half : half + 2_000]
    assert found.mean() >= 0.3  # chance is 0.001
    assert 0.9 <= features_EF.std() <= 1.4
    assert abs(float(features_EF.mean())) <= 0.01


def test_talk_has_the_stated_sizes(talk: SyntheticArrays) -> None:
    assert len(talk.time_E) == 156_000
    assert talk.num_nodes == 22_000
    assert talk.num_sources is None
    assert talk.features_EF is None
    seen = np.union1d(talk.source_E, talk.target_E)
    assert np.array_equal(seen, np.arange(22_000))
    assert (np.diff(talk.time_E) >= 0).all()
    assert 0.99 * TALK_SECONDS <= talk.time_E[-1] <= TALK_SECONDS


def test_talk_is_heavy_tailed_and_node_numbers_are_shuffled(talk: SyntheticArrays) -> None:
    degree_N = np.bincount(talk.source_E, minlength=22_000)
    degree_N += np.bincount(talk.target_E, minlength=22_000)
    assert np.median(degree_N) <= 8
    assert np.sort(degree_N)[-220:].sum() >= 0.25 * degree_N.sum()  # a hundredth of the nodes
    rank_correlation = np.corrcoef(np.arange(22_000), np.argsort(np.argsort(degree_N)))[0, 1]
    assert abs(rank_correlation) <= 0.03


def test_talk_answers_and_repeats(talk: SyntheticArrays) -> None:
    seen: set[tuple[int, int]] = set()
    repeated = answered = 0
    for source, target in zip(talk.source_E.tolist(), talk.target_E.tolist(), strict=True):
        repeated += (source, target) in seen
        answered += (target, source) in seen
        seen.add((source, target))
    assert 0.20 <= repeated / len(talk.time_E) <= 0.45
    assert 0.10 <= answered / len(talk.time_E) <= 0.35


def test_talk_features_on_request() -> None:
    features_EF = talk_like(scale=0.001, features=3).features_EF
    assert features_EF is not None
    assert features_EF.shape == (7_800, 3)
    assert abs(float(features_EF.mean())) <= 0.05
    assert 0.95 <= features_EF.std() <= 1.05


def test_the_same_seed_gives_the_same_bits_on_every_machine() -> None:
    assert digest(wikipedia_like(scale=0.02, seed=7)) == (
        "2161b00cd1e82bf1195ab9d635c4ffe9884fe78dfbda6ceed72ae6f3c545ba36"
    )
    assert digest(talk_like(scale=0.002, seed=7, features=2)) == (
        "bb80a93e7bb559afb3162ff958b2e7a807c68c3ba2eaafd24d0c03f9c6e2a0e2"
    )


def test_another_seed_gives_other_events() -> None:
    for generate in (wikipedia_like, talk_like):
        first, second = generate(scale=0.01, seed=0), generate(scale=0.01, seed=1)
        assert not np.array_equal(first.source_E, second.source_E)
        assert not np.array_equal(first.time_E, second.time_E)


def test_the_number_of_threads_changes_nothing() -> None:
    import numba

    before = numba.get_num_threads()
    digests = []
    for threads in {1, before}:
        numba.set_num_threads(threads)
        digests.append(digest(wikipedia_like(scale=0.02)))
    numba.set_num_threads(before)
    assert len(set(digests)) == 1


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 101.0])
def test_a_senseless_scale_is_refused(scale: float) -> None:
    for generate in (wikipedia_like, talk_like):
        with pytest.raises(SettingError, match="scale is"):
            generate(scale=scale)


def test_a_scale_that_leaves_no_graph_says_what_would() -> None:
    with pytest.raises(SettingError, match=r"leaves 1 items; use at least 0\.002"):
        wikipedia_like(scale=0.001)
    assert len(wikipedia_like(scale=0.002).time_E) == 315


def test_an_unknown_generator_lists_the_known() -> None:
    with pytest.raises(SettingError, match="wikipedia, talk"):
        synthetic_events("reddit")


def test_events_keep_node_numbers_and_sides() -> None:
    arrays = wikipedia_like(scale=0.01)
    events = synthetic_events("wikipedia", scale=0.01)
    assert np.array_equal(events.source, arrays.source_E)
    assert np.array_equal(events.target, arrays.target_E)
    assert events.schema.bipartite
    assert events.schema.num_sources == 82
    assert events.schema.time_unit == "s"
    assert events.fingerprint == synthetic_events("wikipedia", scale=0.01).fingerprint
    assert not synthetic_events("talk", scale=0.001).schema.bipartite
