"""EdgeBank and popularity against event-by-event dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegraph.errors import SettingError
from tidegraph.models.baselines import BASELINES, build_baseline
from tidegraph.models.edgebank import EdgeBank
from tidegraph.models.popularity import Popularity
from tidegraph.models.recency import Recency

EITHER = -1.0


def mean(values):
    return sum(values) / len(values) if values else 0.0


class DictionaryBank:
    """EdgeBank's definition, one event at a time."""

    def __init__(self, window, share, undirected):
        self.window, self.share, self.undirected = window, share, undirected
        self.last, self.place, self.gaps, self.count = {}, {}, {}, 0

    def pair(self, u, v):
        return (min(u, v), max(u, v)) if self.undirected else (u, v)

    def add(self, u, v, t):
        pair = self.pair(u, v)
        self.gaps.setdefault(pair, [])
        if pair in self.last:
            self.gaps[pair].append(t - self.last[pair])
        self.last[pair], self.place[pair] = t, self.count
        self.count += 1

    def score(self, u, v, t):
        pair = self.pair(u, v)
        if pair not in self.last:
            return 0.0
        if self.window is None:
            return 1.0
        if self.window == "recent-share":
            return float(self.count - 1 - self.place[pair] <= self.share * (self.count - 1))
        if self.window == "repeat-threshold":
            return float(len(self.gaps[pair]) + 1 >= self.count / len(self.last))
        width = self.window
        if width == "mean-gap":
            width = mean([gap for gaps in self.gaps.values() for gap in gaps])
        elif width == "repeat-interval":
            width, t = mean([mean(gaps) for gaps in self.gaps.values()]), max(self.last.values())
            if abs(t - self.last[pair] - width) < 1e-9:
                return EITHER  # a rounding of the mean decides
        return float(t - self.last[pair] <= width)


NAMED = ("repeat-interval", "mean-gap", "recent-share", "repeat-threshold")


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    window=st.sampled_from([None, 0.0, 4, 7.5, *NAMED]),
    undirected=st.booleans(),
    real_time=st.booleans(),
    size=st.integers(1, 40),
)
def test_edgebank_against_a_dictionary(seed, window, undirected, real_time, size):
    rng = np.random.default_rng(seed)
    source, target = rng.integers(0, 6, (2, 120)).astype(np.int32)
    time = np.sort(rng.integers(-30, 60, 120))
    time = time / 4 if real_time else time
    bank = EdgeBank(window, share=0.2, undirected=undirected)
    expected = DictionaryBank(window, 0.2, undirected)
    for start in range(0, 120, size):
        part = slice(start, start + size)
        candidate_BC = rng.integers(0, 6, (len(source[part]), 5)).astype(np.int32)
        score_BC = bank.score(source[part], candidate_BC, time[part])
        wanted = [
            [expected.score(u, v, t) for v in row]
            for u, row, t in zip(
                source[part].tolist(), candidate_BC.tolist(), time[part].tolist(), strict=True
            )
        ]
        wanted_BC = np.where(np.equal(wanted, EITHER), score_BC, wanted)
        assert score_BC.tolist() == wanted_BC.tolist()
        bank.update(source[part], target[part], time[part])
        for u, v, t in zip(source[part], target[part], time[part], strict=True):
            expected.add(int(u), int(v), t.item())
    assert bank.num_pairs == len(expected.last)


def test_the_window_forgets():
    """I11: node 0 meets 1, 4, 6, 9 at those times; a window of 5."""
    met = np.array([1, 4, 6, 9], np.int32)
    bank = EdgeBank(window=5)
    bank.update(np.zeros(4, np.int32), met, met.astype(np.int64))
    query = np.zeros(2, np.int32)
    scores = bank.score(query, np.stack([met, met]), np.array([10, 20]))
    assert scores.tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]
    bank.window = 6  # the bound is inclusive
    assert bank.score(query[:1], met[None], np.array([10])).tolist() == [[0, 1, 1, 1]]


def test_nanosecond_times_are_compared_exactly():
    """Times that float64 cannot tell apart."""
    first = 1_700_000_000_000_000_000
    bank = EdgeBank(window=0)
    bank.update(np.int32([0]), np.int32([1]), np.int64([first]))
    query = np.int64([first, first + 1])
    assert bank.score(np.int32([0, 0]), np.int32([[1], [1]]), query).tolist() == [[1], [0]]


def test_memory_is_bounded_by_distinct_pairs():
    bank = EdgeBank()
    rng = np.random.default_rng(0)
    for step in range(4):
        source, target = rng.integers(0, 50, (2, 250_000)).astype(np.int32)
        bank.update(source, target, np.full(250_000, step))
        if step == 0:
            size = bank.nbytes
    assert bank.num_pairs == 2500
    assert bank.nbytes == size < 8e6


def test_the_table_grows_without_losing_pairs():
    count = 300_000
    source = np.arange(count, dtype=np.int32)
    target = (source * 7919) % 100_003
    target = target.astype(np.int32)
    bank = EdgeBank()
    for start in range(0, count, 50_000):
        part = slice(start, start + 50_000)
        bank.update(source[part], target[part], np.zeros(50_000, np.int64))
    assert bank.num_pairs == count
    other = (target + 1).astype(np.int32)
    scores = bank.score(source, np.stack([target, other], axis=1), np.zeros(count, np.int64))
    assert scores[:, 0].all()
    assert not scores[:, 1].any()


def test_reset_forgets_everything():
    for baseline in (EdgeBank(), Popularity()):
        baseline.update(np.int32([0]), np.int32([1]), np.int64([5]))
        assert baseline.score(np.int32([0]), np.int32([[1]]), np.int64([6])).item() > 0
        baseline.reset()
        assert baseline.score(np.int32([0]), np.int32([[1]]), np.int64([6])).item() == 0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    decay=st.sampled_from([1.0, 0.999, 0.7]),
    clock=st.sampled_from(["events", "time"]),
    real_time=st.booleans(),
    size=st.integers(1, 40),
)
def test_popularity_against_the_sum(seed, decay, clock, real_time, size):
    rng = np.random.default_rng(seed)
    source, target = rng.integers(0, 9, (2, 90)).astype(np.int32)
    time = np.sort(rng.integers(-500, 60, 90))
    time = time / 8 if real_time else time
    popularity = Popularity(decay, clock=clock)
    for start in range(0, 90, size):
        part = slice(start, start + size)
        candidate_BC = rng.integers(0, 12, (len(source[part]), 4)).astype(np.int32)
        score_BC = popularity.score(source[part], candidate_BC, time[part])
        for row, now in enumerate(time[part]):
            age = start - np.arange(start) if clock == "events" else now - time[:start]
            for column, node in enumerate(candidate_BC[row]):
                wanted = (decay ** age[target[:start] == node].astype(float)).sum()
                assert score_BC[row, column] == pytest.approx(wanted, rel=1e-10, abs=1e-300)
        popularity.update(source[part], target[part], time[part])


def test_popularity_survives_huge_times():
    popularity = Popularity(0.5, clock="time")
    popularity.update(np.int32([0, 0]), np.int32([1, 2]), np.int64([-(2**61), 2**61]))
    scores = popularity.score(np.int32([0]), np.int32([[1, 2, 3]]), np.int64([2**61 + 1]))
    assert scores.tolist() == [[0.0, 0.5, 0.0]]


@pytest.mark.parametrize("window", ["weekly", -1, float("nan")])
def test_windows_that_cannot_be(window):
    with pytest.raises(SettingError, match="window is"):
        EdgeBank(window)


def test_other_settings_that_cannot_be():
    with pytest.raises(SettingError, match="share is 0"):
        EdgeBank("recent-share", share=0)
    with pytest.raises(SettingError, match=r"decay is 1\.5"):
        Popularity(1.5)
    with pytest.raises(SettingError, match="clock is 'days'"):
        Popularity(clock="days")


def test_names_say_what_was_set():
    assert EdgeBank().name == "EdgeBank (unlimited)"
    assert EdgeBank(3600).name == "EdgeBank (window 3600)"
    assert EdgeBank("mean-gap").name == "EdgeBank (window: mean gap between repeats)"
    assert "mean over pairs" in EdgeBank("repeat-interval").name
    assert "at least as often" in EdgeBank("repeat-threshold").name
    assert EdgeBank("recent-share").name == "EdgeBank (latest 15% of past events)"
    assert Popularity(1).name == "Popularity (no decay)"
    assert Popularity(0.9).name == "Popularity (decay 0.9 per event)"


# ---------------------------------------------------------------- recency and the list of baselines


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    of=st.sampled_from(["pair", "destination"]),
    undirected=st.booleans(),
    size=st.integers(1, 40),
)
def test_recency_against_a_dictionary(seed, of, undirected, size):
    rng = np.random.default_rng(seed)
    source, target = rng.integers(0, 6, (2, 90)).astype(np.int32)
    time = np.sort(rng.integers(0, 20, 90))
    recency, last = Recency(of, undirected=undirected), {}

    def key(u, v):
        if of == "destination":
            return v
        return (min(u, v), max(u, v)) if undirected else (u, v)

    for start in range(0, 90, size):
        part = slice(start, start + size)
        candidate_BC = rng.integers(0, 8, (len(source[part]), 4)).astype(np.int32)
        expected = [
            [float(last.get(key(u, v), 0)) for v in row]
            for u, row in zip(source[part].tolist(), candidate_BC.tolist(), strict=True)
        ]
        assert recency.score(source[part], candidate_BC, time[part]).tolist() == expected
        recency.update(source[part], target[part], time[part])
        for at in range(start, min(start + size, 90)):
            last[key(int(source[at]), int(target[at]))] = at + 1
    recency.reset()
    assert not recency.score(source[:1], target[None, :1], time[:1]).any()


def test_an_unknown_kind_of_recency_is_refused():
    with pytest.raises(SettingError, match="expected 'pair' or 'destination'"):
        Recency("source")


def test_baselines_are_built_by_name():
    names = {name: build_baseline(name, 12.0).name for name in BASELINES}
    assert len(set(names.values())) == len(names)
    assert names["edgebank-window"] == "EdgeBank (window 12)"
    with pytest.raises(SettingError, match="Did you mean 'edgebank'"):
        build_baseline("edgebnk", 1.0)
