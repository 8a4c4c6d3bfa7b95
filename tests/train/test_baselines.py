"""Baselines under the models' protocol: no look-ahead, and the field's published figures."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from tidegraph.batches.negatives import (
    EveryDestination,
    FixedNegatives,
    NegativeSampler,
    NegativeSettings,
)
from tidegraph.errors import InputError, SettingError
from tidegraph.events.core import Events
from tidegraph.models.edgebank import EdgeBank
from tidegraph.models.popularity import Popularity
from tidegraph.train.baselines import evaluate_baseline, evaluate_baseline_on_edges
from tidegraph.train.metrics import average_precision


def random_events(seed: int, count: int, sources: int, items: int) -> Events:
    rng = np.random.default_rng(seed)
    return Events.from_arrays(
        rng.integers(0, sources, count),
        rng.integers(sources, sources + items, count),
        np.sort(rng.integers(0, count, count)),
        num_nodes=sources + items,
        num_sources=sources,
    )


class Recorder:
    """Scores nothing, but keeps what it was told and asked, in order."""

    name = "recorder"

    def reset(self) -> None:
        self.log: list[tuple[str, list[int]]] = []

    def score(self, source_B, candidate_BC, time_B):
        self.log.append(("score", time_B.tolist()))
        return np.zeros(candidate_BC.shape)

    def update(self, source_M, target_M, time_M):
        self.log.append(("update", time_M.tolist()))


def stream(count: int) -> Events:
    """Source 0 meets item 1 + n % 3 at time n."""
    return Events.from_arrays(np.zeros(count, int), 1 + np.arange(count) % 3, np.arange(count))


def test_each_batch_is_scored_before_it_is_fed():
    """Pitfall 11, and every event exactly once, the short last batch too."""
    recorder, events = Recorder(), stream(10)
    evaluate_baseline(recorder, events, 3, 10, negatives=NegativeSampler(events), batch_size=4)
    assert recorder.log == [
        ("update", [0, 1, 2]),
        ("score", [3, 4, 5, 6]),
        ("update", [3, 4, 5, 6]),
        ("score", [7, 8, 9]),
        ("update", [7, 8, 9]),
    ]


def test_event_visibility_scores_one_event_at_a_time():
    recorder, events = Recorder(), stream(5)
    negatives = NegativeSampler(events)
    found = evaluate_baseline(
        recorder, events, 3, 5, negatives=negatives, batch_size=4, visibility="event"
    )
    assert recorder.log[1:] == [(what, [t]) for t in (3, 4) for what in ("score", "update")]
    assert "event by event" in found["AP"].protocol
    assert found["AP"].count == 2


def test_event_visibility_equals_batches_of_one():
    events = random_events(3, 400, 10, 10)
    arguments = {"negatives": NegativeSampler(events), "protocol": "mrr", "count": 8}
    alone = evaluate_baseline(EdgeBank(), events, 100, 400, batch_size=1, **arguments)
    seen = evaluate_baseline(
        EdgeBank(), events, 100, 400, batch_size=50, visibility="event", **arguments
    )
    unseen = evaluate_baseline(EdgeBank(), events, 100, 400, batch_size=50, **arguments)
    assert alone.values() == seen.values() != unseen.values()


def test_hidden_training_events_are_not_fed():
    """Pitfall 7."""
    recorder, events = Recorder(), stream(6)
    keep = np.array([True, False, True, False, False, False])
    evaluate_baseline(recorder, events, 4, 6, negatives=NegativeSampler(events), keep=keep)
    assert recorder.log == [("update", [0, 2]), ("score", [4, 5]), ("update", [4, 5])]


def test_only_the_chosen_events_are_scored_but_all_are_fed():
    events = random_events(4, 300, 10, 10)
    negatives = NegativeSampler(events)
    only = np.random.default_rng(0).random(300) < 0.3
    arguments = {"negatives": negatives, "protocol": "mrr", "count": 6, "batch_size": 25}
    found = evaluate_baseline(EdgeBank(), events, 100, 300, only=only, **arguments)
    bank, ranks = EdgeBank(), []
    bank.update(events.source[:100], events.target[:100], events.time[:100])
    for first in range(100, 300, 25):
        part = slice(first, first + 25)
        negative_BC = negatives.candidates(first, first + 25, count=6).node_BC
        ours = bank.score(events.source[part], events.target[part][:, None], events.time[part])
        theirs = bank.score(events.source[part], negative_BC, events.time[part])
        rank_B = 1 + (theirs > ours).sum(1) + 0.5 * (theirs == ours).sum(1)
        ranks.extend(rank_B[only[part]].tolist())
        bank.update(events.source[part], events.target[part], events.time[part])
    assert found["MRR"].count == len(ranks) == only[100:].sum()
    assert found["MRR"].value == pytest.approx(np.mean(1 / np.array(ranks)), abs=1e-15)


def test_ap_is_averaged_over_batches_and_says_so():
    events = random_events(5, 500, 20, 20)
    negatives = NegativeSampler(events)
    found = evaluate_baseline(Popularity(), events, 200, 500, negatives=negatives, batch_size=80)
    popularity, values = Popularity(), []
    popularity.update(events.source[:200], events.target[:200], events.time[:200])
    for first in range(200, 500, 80):
        part = slice(first, min(first + 80, 500))
        size = part.stop - first
        negative_BC = negatives.candidates(first, part.stop, count=1).node_BC
        both_BC = np.concatenate([events.target[part][:, None], negative_BC], axis=1)
        score_BC = popularity.score(events.source[part], both_BC, events.time[part])
        label = np.repeat([1, 0], size)
        values.append(average_precision(label, np.concatenate([score_BC[:, 0], score_BC[:, 1]])))
        popularity.update(events.source[part], events.target[part], events.time[part])
    assert found["AP"].value == pytest.approx(np.mean(values), abs=1e-15)
    assert "1 random destination per positive, averaged over batches of 80" in found["AP"].protocol


@pytest.mark.parametrize("baseline", [EdgeBank(), EdgeBank(50), Popularity(), Popularity(1)])
def test_no_signal_gives_chance(baseline):
    """I43: destinations drawn uniformly; anything above chance would be a leak."""
    events = random_events(6, 20_000, 50, 100)
    negatives = NegativeSampler(events)
    ap = evaluate_baseline(baseline, events, 5_000, 20_000, negatives=negatives)
    # the standard error of AUC over 15,000 positives and as many negatives is below 0.0034
    assert abs(ap["AUC (all events)"].value - 0.5) < 0.0134
    mrr = evaluate_baseline(
        baseline, events, 15_000, 20_000, negatives=negatives, protocol="mrr", count=5
    )
    # Ties rank in the middle, which can only lower the mean of 1/rank.
    assert mrr["MRR"].value < np.mean(1 / np.arange(1, 7)) + 4 * 0.3 / np.sqrt(5_000)


@pytest.mark.parametrize("baseline", [EdgeBank(), EdgeBank("repeat-interval"), Popularity()])
def test_a_score_does_not_depend_on_its_own_event_or_later_ones(baseline):
    """I37: streams equal up to event 60; its fixed candidates score the same in both."""

    class Keeping:
        name = "keeping"

        def __init__(self, inner):
            self.inner, self.update, self.reset = inner, inner.update, self.start

        def start(self):
            self.inner.reset()
            self.kept = []

        def score(self, source_B, candidate_BC, time_B):
            candidates = np.tile(np.arange(10, 20, dtype=np.int32), (len(source_B), 1))
            self.kept.append(self.inner.score(source_B, candidates, time_B))
            return self.inner.score(source_B, candidate_BC, time_B)

    events, scores = random_events(7, 100, 10, 10), []
    other = np.array(events.target)
    other[60:] = 10 + (other[60:] - 10 + 3) % 10
    for target in (events.target, other):
        changed = Events.from_arrays(
            events.source, target, events.time, num_nodes=20, num_sources=10
        )
        keeping = Keeping(baseline)
        evaluate_baseline(
            keeping, changed, 40, 100, negatives=NegativeSampler(changed), batch_size=1
        )
        scores.append(np.concatenate(keeping.kept))
    assert np.array_equal(scores[0][:21], scores[1][:21])
    assert not np.array_equal(scores[0][21:], scores[1][21:])


def test_own_data_needs_no_registration():
    """I34: a 20-event stream of one's own, MRR against 5 negatives, and a scorer by chance."""

    class Chance(Recorder):
        rng = np.random.default_rng(0)

        def score(self, source_B, candidate_BC, time_B):
            return self.rng.random(candidate_BC.shape)

    events, chance, values = random_events(8, 20, 4, 8), Chance(), []
    for seed in range(300):
        negatives = NegativeSampler(events, NegativeSettings(collisions="check", seed=seed))
        found = evaluate_baseline(
            chance, events, 5, 20, negatives=negatives, protocol="mrr", count=5
        )
        values.append(found["MRR"].value)
    assert abs(np.mean(values) - 0.408) < 4 * 0.3 / np.sqrt(300 * 15)


def test_prepared_negatives_are_used_and_missing_ones_named():
    """I33."""
    #  0 -> 2    1 -> 3    0 -> 2  and negatives for the last two events only
    events = Events.from_arrays([0, 1, 0], [2, 3, 2], [1, 2, 3], num_nodes=5, num_sources=2)
    fixed = FixedNegatives(events, np.array([1, 2]), np.array([[2, 4], [3, 4]]))
    found = evaluate_baseline(EdgeBank(), events, 1, 3, negatives=fixed, protocol="mrr")
    assert found["MRR"].value == (1 / 2 + 1) / 2  # a tie of three, then a pair seen before
    assert "prepared" in found["MRR"].protocol
    with pytest.raises(InputError, match="event row 0"):
        evaluate_baseline(EdgeBank(), events, 0, 3, negatives=fixed, protocol="mrr")


def test_filtered_destinations_do_not_count():
    # at time 5 source 0 meets both 1 and 2; ranking 1 must not be lowered by 2
    events = Events.from_arrays([0, 0, 0, 0], [1, 2, 1, 2], [1, 2, 5, 5], num_nodes=4)
    plain, filtered = (
        evaluate_baseline(
            EdgeBank(),
            events,
            2,
            4,
            negatives=EveryDestination(events, filtered=choice),
            protocol="mrr",
        )["MRR"].value
        for choice in (False, True)
    )
    assert filtered == 1.0
    assert plain == pytest.approx(1 / 1.5)


def test_arguments_that_cannot_be():
    events = stream(10)
    negatives = NegativeSampler(events)
    for arguments, message in (
        ({"start": 5, "stop": 5}, "Nothing to evaluate"),
        ({"start": 5, "stop": 11}, "Nothing to evaluate"),
        ({"start": 5, "stop": 9, "batch_size": 0}, "batch_size is 0"),
        ({"start": 5, "stop": 9, "protocol": "f1"}, "'ap' or 'mrr'"),
        ({"start": 5, "stop": 9, "keep": np.ones(3, bool)}, "each of the 10 events"),
    ):
        with pytest.raises(SettingError, match=message):
            evaluate_baseline(EdgeBank(), events, negatives=negatives, **arguments)


# ---------------------------------------------------------------- published figures

FILES = {"uci": "CollegeMsg.txt.gz", "enron": "ml_enron.csv.gz", "wikipedia": "wikipedia.csv"}


def literature_events(name: str) -> Events:
    folder = os.environ.get("TIDEGRAPH_DATA")
    if not folder or not (Path(folder) / FILES[name]).exists():
        pytest.skip(f"TIDEGRAPH_DATA does not name a folder with {FILES[name]}")
    header, separator, columns = (
        (0, " ", (0, 1, 2))
        if name == "uci"
        else (1, ",", (1, 2, 3) if name == "enron" else (0, 1, 2))
    )
    table = np.loadtxt(
        Path(folder) / FILES[name], delimiter=separator, skiprows=header, usecols=columns
    )
    _, node = np.unique(table[:, :2], return_inverse=True)
    node = node.reshape(-1, 2)
    return Events.from_arrays(node[:, 0], node[:, 1], table[:, 2].astype(np.int64))


def literature_split(events: Events) -> tuple[int, int, np.ndarray]:
    """70/15/15 by quantiles of time; training events of 10% of the nodes are left out."""
    val_time, test_time = np.quantile(events.time, [0.70, 0.85])
    train_stop, val_stop = np.searchsorted(events.time, [val_time, test_time], side="right")
    late = sorted({*events.source[train_stop:].tolist(), *events.target[train_stop:].tolist()})
    hidden = np.zeros(events.schema.num_nodes, bool)
    count = int(0.1 * events.schema.num_nodes)
    hidden[random.Random(2020).sample(late, count)] = True
    keep = ~(hidden[events.source] | hidden[events.target])
    keep[train_stop:] = True
    return int(train_stop), int(val_stop), keep


@pytest.mark.parametrize(
    ("name", "window", "published"),
    [("uci", None, 76.20), ("wikipedia", None, 90.37), ("enron", "recent-share", 83.53)],
)
def test_edgebank_reaches_the_published_figure(name, window, published):
    """AP with random negatives, batch 200; the literature reports EdgeBank's best memory."""
    events = literature_events(name)
    _, val_stop, keep = literature_split(events)
    values = [
        evaluate_baseline(
            EdgeBank(window),
            events,
            val_stop,
            len(events),
            negatives=NegativeSampler(events, NegativeSettings(seed=seed)),
            keep=keep,
        )["AP"].value
        for seed in range(3)
    ]
    assert 100 * np.mean(values) == pytest.approx(published, abs=0.35)


def test_edgebank_reaches_the_published_figure_on_historical_negatives():
    """65.5 on UCI is of the window as long as the test part; unlimited memory gets 44."""
    events = literature_events("uci")
    _, val_stop, keep = literature_split(events)
    values = []
    for seed in range(3):
        settings = NegativeSettings(strategy="historical", seed=seed)
        found = evaluate_baseline_on_edges(
            EdgeBank("recent-share"),
            events,
            val_stop,
            len(events),
            negatives=NegativeSampler(events, settings),
            keep=keep,
        )
        values.append(found["AP"].value)
    assert 100 * np.mean(values) == pytest.approx(65.50, abs=0.5)


@pytest.mark.parametrize("name", ["uci", "enron"])
def test_unlimited_edgebank_fails_on_historical_negatives(name):
    """Every historical edge was seen: to unlimited memory it looks like a true event."""
    events = literature_events(name)
    train_stop, val_stop, keep = literature_split(events)
    for strategy, stop in (("historical", None), ("inductive", train_stop)):
        sampler = NegativeSampler(events, NegativeSettings(strategy=strategy), train_stop=stop)
        found = evaluate_baseline_on_edges(
            EdgeBank(), events, val_stop, len(events), negatives=sampler, keep=keep
        )
        assert found["AP"].value < 0.5
        assert f"1 {strategy} edge of any source" in found["AP"].protocol


def test_frozen_history_ends_where_the_evaluated_part_starts() -> None:
    """A pair first seen in the test part stays unknown to the end of it; models do the same."""
    #  0 - 2 | 1 - 3, 1 - 3      (| is the split)
    events = Events.from_arrays([0, 1, 1], [2, 3, 3], [1, 2, 3], num_sources=2, bipartite=True)
    figures = {}
    for frozen in (False, True):
        recorder = Recorder()
        evaluate_baseline(
            recorder, events, 1, 3, negatives=EveryDestination(events), batch_size=1, frozen=frozen
        )
        figures[frozen] = evaluate_baseline(
            EdgeBank(), events, 1, 3, negatives=EveryDestination(events), batch_size=1,
            protocol="mrr", frozen=frozen,
        )  # fmt: skip
    assert figures[False]["MRR"].value == (2 / 3 + 1) / 2
    assert figures[True]["MRR"].value == 2 / 3
    assert "streaming history" in figures[False]["MRR"].protocol
    assert "history frozen at the split" in figures[True]["MRR"].protocol
    with pytest.raises(SettingError, match="no effect with frozen=True"):
        evaluate_baseline(
            EdgeBank(), events, 1, 3, negatives=EveryDestination(events), visibility="event",
            frozen=True,
        )  # fmt: skip
