"""Metrics: equal to scikit-learn; honest about ties, NaN and one class; independent of batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from tidegraph.errors import InputError
from tidegraph.train.metrics import (
    Metric,
    Metrics,
    PairScores,
    Protocol,
    RankScores,
    average_precision,
    batch_average,
    hits_at,
    label_metrics,
    one_class,
    rank,
    reciprocal_rank,
    roc_auc,
)

KINDS = {
    "float64": lambda x: np.asarray(x, np.float64),
    "float32": lambda x: np.asarray(x, np.float32),
    "float16": lambda x: np.asarray(x, np.float16),
    "torch": lambda x: torch.tensor(x, dtype=torch.float64, requires_grad=True),
    "torch float32": lambda x: torch.tensor(x, dtype=torch.float32),
    "torch bfloat16": lambda x: torch.tensor(x, dtype=torch.bfloat16),
    "list": lambda x: x,
    "int": lambda x: (np.asarray(x) * 10).round().astype(np.int64),
    "uint8": lambda x: (np.asarray(x) * 10).round().astype(np.uint8),
    "torch int": lambda x: (torch.tensor(x) * 10).round().to(torch.int32),
}


# ---------------------------------------------------------------- AP and AUC


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    length=st.integers(2, 400),
    share=st.floats(0.02, 0.98),
    ties=st.sampled_from([None, 0, 1, 2]),
    dtype=st.sampled_from([np.float64, np.float32, np.int64]),
)
def test_ap_and_auc_equal_scikit_learn_bit_for_bit(seed, length, share, ties, dtype):
    rng = np.random.default_rng(seed)
    label = (rng.random(length) < share).astype(int)
    label[0], label[-1] = 0, 1
    score = rng.normal(size=length) * (20 if dtype is np.int64 else 1)
    score = (score if ties is None else score.round(ties)).astype(dtype)
    assert average_precision(label, score) == average_precision_score(label, score)
    assert roc_auc(label, score) == roc_auc_score(label, score)


@pytest.mark.parametrize("kind", KINDS)
def test_ap_and_auc_take_any_kind_of_scores(kind):
    label, score = [1, 0, 1, 0, 0], [0.9, 0.8, 0.7, 0.2, 0.1]
    assert average_precision(label, KINDS[kind](score)) == average_precision_score(label, score)
    assert roc_auc(torch.tensor(label), KINDS[kind](score)) == roc_auc_score(label, score)


def test_one_positive_in_a_hundred_with_constant_scores():
    """I35: accuracy would say 99%."""
    label, score = [0] * 99 + [1], [0.3] * 100
    assert roc_auc(label, score) == 0.5
    assert average_precision(label, score) == 0.01


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ([0, 0, 0], "all 3 labels are negative"),
        ([1, 1], "all 2 labels are positive"),
        ([], "there are no labels"),
    ],
)
def test_one_class_is_undefined_with_a_reason(label, reason):
    """I35: neither a crash nor 0 nor 1."""
    score = np.linspace(0, 1, len(label))
    assert one_class(label) == reason
    assert math.isnan(average_precision(label, score))
    assert math.isnan(roc_auc(label, score))
    for metric in label_metrics(label, score, "node labels"):
        assert math.isnan(metric.value)
        assert str(metric) == f"{metric.name} undefined: {reason} (node labels)"


def test_label_metrics_do_not_depend_on_the_batch_size():
    """I36: three labels at one time and one at another, in any batches, are pooled."""
    label, score = np.array([1, 0, 0, 1]), np.array([0.9, 0.95, 0.1, 0.4])
    whole = label_metrics(label, score, "labels")
    assert whole["AP"].value == average_precision_score(label, score)
    for size in (1, 3):
        parts = [slice(start, start + size) for start in range(0, 4, size)]
        joined = [np.concatenate([x[part] for part in parts]) for x in (label, score)]
        assert label_metrics(*joined, "labels") == whole


def test_average_over_batches_is_not_the_value_over_all():
    """Pitfall 22: which of the two it is must be named, and it is."""
    batches = [([1, 0], [0.9, 0.8]), ([1, 0], [0.2, 0.1])]
    assert batch_average(average_precision, batches) == 1.0
    label, score = [1, 0, 1, 0], [0.9, 0.8, 0.2, 0.1]
    assert average_precision(label, score) == average_precision_score(label, score) < 1
    assert batch_average(average_precision, [*batches, ([0], [0.5])]) == 1.0
    assert math.isnan(batch_average(average_precision, [([0], [0.5])]))

    scores = PairScores()
    scores.add([0.9], [[0.8]])
    scores.add([0.2], [[0.1]])
    metrics = scores.result(Protocol("1 random destination per positive", batch_size=1))
    assert metrics["AP"].value == 1.0
    assert "averaged over batches of 1" in metrics["AP"].protocol
    assert metrics["AP (all events)"].value == average_precision(label, score)
    assert "over all events at once" in metrics["AP (all events)"].protocol


@pytest.mark.parametrize(
    ("label", "score", "message"),
    [
        ([0, 1], [0.1, math.nan], "Score 1 of 2 is NaN"),
        ([0, 2], [0.1, 0.2], "Label 1 is .*expected 0 or 1"),
        ([0, 1, 1], [0.1, 0.2], "one length"),
    ],
)
def test_labels_and_scores_that_cannot_be(label, score, message):
    for function in (average_precision, roc_auc):
        with pytest.raises(InputError, match=message):
            function(label, score)


# ---------------------------------------------------------------- ranks


@pytest.mark.parametrize("kind", KINDS)
def test_mrr_batched_and_one_by_one_for_any_kind_of_scores(kind):
    """I29."""
    positive, negative = [0.9, 0.1], [[0.5, 0.4], [0.5, 0.4]]
    make = KINDS[kind]
    together = reciprocal_rank(make(positive), make(negative))
    assert together.tolist() == [1.0, 1 / 3]
    assert together.mean() == 2 / 3
    alone = [
        reciprocal_rank(make([p]), make([n]))[0] for p, n in zip(positive, negative, strict=True)
    ]
    assert alone == together.tolist()


def test_ties_get_their_mean_rank():
    """I30, pitfall 23: neither a constant nor a 0/1 scorer earns the top rank."""
    assert reciprocal_rank(np.full(1, 0.3), np.full((1, 999), 0.3)).tolist() == [1 / 500.5]
    assert reciprocal_rank([0.5], [[0.5, 0.5, 0.1]]).tolist() == [1 / 2]
    assert rank([1, 1, 0], [[0, 0], [1, 0], [0, 0]]).tolist() == [1.0, 1.5, 2.0]
    assert hits_at(1, [1, 1, 0], [[0, 0], [1, 0], [0, 0]]).tolist() == [1.0, 0.0, 0.0]


def test_nan_never_ranks_first():
    """I30: a broken scorer gains nothing, whichever side breaks."""
    nan = math.nan
    assert rank([nan], [[0.1, 0.2]]).tolist() == [3.0]
    assert rank([nan], [[nan, nan]]).tolist() == [3.0]
    assert rank([0.5], [[nan, 0.1]]).tolist() == [2.0]
    assert hits_at(1, [nan, 0.5], [[nan], [nan]]).tolist() == [0.0, 0.0]
    assert rank(torch.tensor([nan]), torch.tensor([[0, 1]])).tolist() == [3.0]
    assert rank([1], [[nan, 0.0]]).tolist() == [2.0]


def test_infinite_scores_are_ordinary_numbers():
    assert rank([math.inf, -math.inf], [[1.0, math.inf], [0.0, -math.inf]]).tolist() == [1.5, 2.5]


def test_large_integers_are_compared_exactly():
    assert rank(np.array([2**60]), np.array([[2**60 + 1, 2**60 - 1]])).tolist() == [2.0]


def test_masked_negatives_do_not_count():
    mask = [[True, False, True], [False, False, False]]
    found = rank([0.5, 0.5], [[0.1, 0.9, 0.7], [0.1, 0.2, 0.3]], mask)
    assert found[0] == 2.0
    assert math.isnan(found[1])  # nothing to rank against is no success
    assert math.isnan(hits_at(1, [0.5, 0.5], [[0.1, 0.9, 0.7], [0.1, 0.2, 0.3]], mask)[1])
    assert math.isnan(rank([0.5], np.zeros((1, 0)))[0])
    assert rank([0.5], [[0.1, math.nan]], [[True, False]]).tolist() == [1.0]


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 20),
    width=st.integers(1, 30),
    masked=st.booleans(),
)
def test_batched_equals_one_by_one_and_order_does_not_matter(seed, rows, width, masked):
    rng = np.random.default_rng(seed)
    positive = rng.normal(size=rows).round(1)
    negative = rng.normal(size=(rows, width)).round(1)
    negative[rng.random((rows, width)) < 0.05] = np.nan
    mask = rng.random((rows, width)) < 0.8 if masked else None
    together = rank(positive, negative, mask)
    for row in range(rows):
        one = slice(row, row + 1)
        alone = rank(positive[one], negative[one], None if mask is None else mask[one])
        assert np.array_equal(alone, together[one], equal_nan=True)
        kept = negative[row] if mask is None else negative[row][mask[row]]
        above = sum(bool(n > positive[row] or np.isnan(n)) for n in kept)
        level = sum(bool(n == positive[row]) for n in kept)
        expected = 0.5 * (above + above + level) + 1 if len(kept) else math.nan
        assert np.array_equal(together[row], expected, equal_nan=True)
    order = rng.permutation(width)
    shuffled = rank(positive, negative[:, order], None if mask is None else mask[:, order])
    assert np.array_equal(shuffled, together, equal_nan=True)


@pytest.mark.parametrize(
    ("positive", "negative", "mask"),
    [
        ([1, 2], [[1], [2], [3]], None),
        ([1, 2], [1, 2], None),
        ([[1], [2]], [[1], [2]], None),
        ([1, 2], [[1], [2]], [[True, True], [True, True]]),
    ],
)
def test_shapes_that_do_not_fit(positive, negative, mask):
    with pytest.raises(InputError, match="found"):
        rank(positive, negative, mask)


# ---------------------------------------------------------------- collected evaluations


def test_mrr_does_not_depend_on_batches_or_order():
    rng = np.random.default_rng(0)
    positive, negative = rng.normal(size=500), rng.normal(size=(500, 20))
    protocol, found = Protocol("20 random destinations per positive"), []
    for order, size in ((np.arange(500), 500), (np.arange(500), 7), (rng.permutation(500), 64)):
        scores = RankScores()
        for start in range(0, 500, size):
            part = order[start : start + size]
            scores.add(positive[part], negative[part])
        found.append(scores.result(protocol))
    assert found[0] == found[1] == found[2]
    assert found[0]["Hits@3"].value == hits_at(3, positive, negative).mean()


def test_a_random_scorer_gets_the_mrr_of_chance():
    """I34: with 5 negatives the mean of 1/rank over 6 is 0.408, not nearly 1."""
    rng, scores = np.random.default_rng(1), RankScores()
    for _ in range(2000):
        scores.add(rng.normal(size=20), rng.normal(size=(20, 5)))
    metric = scores.result(Protocol("5 random destinations per positive"))["MRR"]
    expected = np.mean(1 / np.arange(1, 7))
    assert abs(metric.value - expected) < 4 * 0.3 / np.sqrt(40000)
    assert metric.count == 40000


def test_nothing_to_evaluate_is_undefined():
    protocol = Protocol("1 random destination per positive")
    assert PairScores().result(protocol)["AP"].undefined == "there are no events"
    scores = RankScores()
    scores.add([1.0], [[2.0]], [[False]])
    assert math.isnan(scores.result(protocol)["MRR"].value)
    assert "undefined" in str(scores.result(protocol)["MRR"])


def test_every_figure_carries_its_protocol():
    scores = RankScores()
    scores.add([1.0], [[0.0]])
    for metric in scores.result(Protocol("49 random destinations per positive", batch_size=600)):
        for words in ("49 random", "mean rank of ties", "transductive", "streaming", "batch 600"):
            assert words in metric.protocol


def test_metrics_are_found_by_name():
    both = Metrics((Metric("AP", 0.5, "p", 1),)) + Metrics((Metric("MRR", 0.25, "q", 1),))
    assert both["MRR"].value == 0.25
    assert "AP" in both
    assert "AUC" not in both
    assert len(both) == 2
    assert both.values() == {"AP": 0.5, "MRR": 0.25}
    with pytest.raises(KeyError, match="AP, MRR"):
        both["AUC"]
