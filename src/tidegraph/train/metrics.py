"""Metrics: how well positives are told from negatives, each with the protocol it was taken under.

Pure functions on NumPy arrays or torch tensors of any dtype, and small collectors that the
evaluation of models and of baselines share. AP and AUC are computed here, equal to scikit-learn
bit for bit: importing scikit-learn alone takes about a second, as long as evaluating does.

Shape legend: B positives, C candidates (negatives) per positive, L labelled scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegraph.errors import InputError

Scores = Any
"""A NumPy array, a torch tensor on any device, or a sequence of numbers."""

_ROUNDING = np.float32(1e-6)  # eight units in the last place of a float32


@dataclass(frozen=True)
class Metric:
    """One figure and how it was taken.

    Attributes:
        name: "AP", "AUC", "MRR", "Hits@10", ...
        value: NaN where the metric is undefined.
        protocol: everything that must be equal for two values to be comparable.
        count: positives (or labels) it was taken over.
        undefined: why there is no value; empty where there is one.

    Examples:
        >>> print(Metric("AP", 0.98451, "1 random destination per positive", 200))
        AP 0.9845 (1 random destination per positive)
        >>> print(Metric("AUC", float("nan"), "node labels", 5, "all 5 labels are negative"))
        AUC undefined: all 5 labels are negative (node labels)
    """

    name: str
    value: float
    protocol: str
    count: int
    undefined: str = ""

    def __str__(self) -> str:
        if self.undefined:
            return f"{self.name} undefined: {self.undefined} ({self.protocol})"
        return f"{self.name} {self.value:.4f} ({self.protocol})"


@dataclass(frozen=True)
class Metrics:
    """Several figures, in the order they are printed; `metrics["AP"]` is a `Metric`."""

    items: tuple[Metric, ...]

    def __getitem__(self, name: str) -> Metric:
        for metric in self.items:
            if metric.name == name:
                return metric
        raise KeyError(f"no metric {name!r}; there are {', '.join(m.name for m in self.items)}")

    def __contains__(self, name: object) -> bool:
        return any(metric.name == name for metric in self.items)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(self.items + other.items)

    def values(self) -> dict[str, float]:
        """Names and bare values, for a log line."""
        return {metric.name: metric.value for metric in self.items}


@dataclass(frozen=True)
class Protocol:
    """The conditions of an evaluation; its text goes with every figure.

    Attributes:
        negatives: what positives are compared with, e.g. "1 random destination per positive".
        setting: "transductive", or "inductive (events with a node unseen in training)".
        history: "streaming history" (every event before the batch) or "history frozen at the
            split".
        batch_size: events per batch: what a batch's own events cannot see.

    Examples:
        >>> Protocol("1 random destination per positive", batch_size=200).text("averaged")
        '1 random destination per positive, averaged, transductive, streaming history, batch 200'
    """

    negatives: str
    setting: str = "transductive"
    history: str = "streaming history"
    batch_size: int = 200

    def text(self, how: str) -> str:
        """The protocol with `how` the figure was put together, e.g. "over all events"."""
        parts = [self.negatives, how, self.setting, self.history]
        if how != self.by_batches:
            parts.append(f"batch {self.batch_size}")
        return ", ".join(parts)

    @property
    def by_batches(self) -> str:
        """How a mean over batches was put together."""
        return f"averaged over batches of {self.batch_size}"


# ---------------------------------------------------------------- binary labels


def average_precision(label_L: Scores, score_L: Scores) -> float:
    """Average precision: the sum over thresholds of precision times the step in recall.

    Args:
        label_L: [L] 0/1 or bool.
        score_L: [L] scores of any dtype; logits and probabilities give the same value as long as
            rounding does not create ties.

    Returns:
        NaN where there is only one class (or nothing): see `one_class`.

    Raises:
        InputError: NaN scores, labels other than 0 and 1, or different lengths.

    Examples:
        >>> average_precision([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1])
        0.8333333333333333
    """
    label_L, score_L = _checked(label_L, score_L)
    if one_class(label_L):
        return math.nan
    true, false = _cumulative_counts(label_L, score_L)
    precision = true / (true + false)
    recall = true / true[-1]
    # Summed from the highest recall down, as scikit-learn does, so that the last bit agrees too.
    step = -np.diff(np.concatenate([recall[::-1], [0.0]]))
    return float(max(0.0, np.sum(step * precision[::-1])))


def roc_auc(label_L: Scores, score_L: Scores) -> float:
    """Area under the ROC curve; arguments, errors and NaN as in `average_precision`.

    Examples:
        >>> roc_auc([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1])
        0.75
        >>> roc_auc([1] + [0] * 99, [0.5] * 100)  # nothing is told apart
        0.5
    """
    label_L, score_L = _checked(label_L, score_L)
    if one_class(label_L):
        return math.nan
    true, false = _cumulative_counts(label_L, score_L)
    if len(true) > 2:
        # Points in the middle of a straight line add nothing but rounding.
        corner = np.ones(len(true), np.bool_)
        corner[1:-1] = (np.diff(true, 2) != 0) | (np.diff(false, 2) != 0)
        true, false = true[corner], false[corner]
    height = np.concatenate([[0.0], true]) / true[-1]
    place = np.concatenate([[0.0], false]) / false[-1]
    return float(np.trapezoid(height, place))


def one_class(label_L: Scores) -> str:
    """Why AP and AUC are undefined for these labels; empty where they are defined.

    Examples:
        >>> one_class([0, 0, 0])
        'all 3 labels are negative'
    """
    label_L = _array(label_L)
    if len(label_L) == 0:
        return "there are no labels"
    positive = int(np.count_nonzero(label_L))
    if 0 < positive < len(label_L):
        return ""
    return f"all {len(label_L)} labels are {'positive' if positive else 'negative'}"


def batch_average(
    function: Callable[[Scores, Scores], float], batches: Iterable[tuple[Scores, Scores]]
) -> float:
    """The plain mean over batches of `function(label, score)`: not its value over all scores.

    The field reports link prediction like this; the value depends on the batch size, which is
    therefore part of the protocol. Batches of one class have no value and are left out.

    Args:
        function: `average_precision` or `roc_auc`.
        batches: pairs of labels and scores.

    Returns:
        NaN where no batch has a value.
    """
    values = [function(label, score) for label, score in batches]
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else math.nan


def label_metrics(label_L: Scores, score_L: Scores, protocol: str) -> Metrics:
    """AP and AUC over all labels at once, e.g. of a node-label task.

    Pooled, so the value does not depend on the batch size; `undefined` says why where there is
    none.

    Examples:
        >>> [round(m.value, 2) for m in label_metrics([1] + [0] * 99, [0.0] * 100, "labels")]
        [0.01, 0.5]
    """
    reason, count = one_class(label_L), len(_array(label_L))
    return Metrics(
        (
            Metric("AP", average_precision(label_L, score_L), protocol, count, reason),
            Metric("AUC", roc_auc(label_L, score_L), protocol, count, reason),
        )
    )


# ---------------------------------------------------------------- ranking


def rank(positive_B: Scores, negative_BC: Scores, mask_BC: Scores | None = None) -> np.ndarray:
    """The rank of each positive among its negatives, ties at their mean.

    rank = 0.5 * (#negatives > positive + #negatives >= positive) + 1: a constant scorer gets the
    middle, never the top. A NaN positive ranks after all its negatives; a NaN negative counts as
    ahead of the positive, so that a scorer that breaks down cannot gain by it.

    Args:
        positive_B: [B] scores of any dtype.
        negative_BC: [B, C] scores; row i belongs to positive i.
        mask_BC: [B, C] bool, False where a negative does not count; None: all count.

    Returns:
        [B] float64 ranks from 1 (best) to 1 + negatives; NaN where a row has no negatives, since
        there is nothing to rank against.

    Raises:
        InputError: shapes that do not fit.

    Examples:
        >>> rank([0.5], [[0.5, 0.5, 0.1]]).tolist()
        [2.0]
    """
    positive_B, negative_BC = _array(positive_B), _array(negative_BC)
    if positive_B.ndim != 1 or negative_BC.ndim != 2 or len(positive_B) != len(negative_BC):
        raise InputError(
            f"Ranking needs positives [B] and negatives [B, C]; found {list(positive_B.shape)} "
            f"and {list(negative_BC.shape)}."
        )
    positive_B1 = positive_B[:, None]
    ahead_BC = negative_BC > positive_B1
    level_BC = negative_BC == positive_B1
    if negative_BC.dtype.kind == "f":
        ahead_BC |= np.isnan(negative_BC)
    if positive_B.dtype.kind == "f":
        ahead_BC |= np.isnan(positive_B1)
    valid_B = np.full(len(positive_B), negative_BC.shape[1])
    if mask_BC is not None:
        mask_BC = _array(mask_BC).astype(np.bool_)
        if mask_BC.shape != negative_BC.shape:
            raise InputError(
                f"The mask must have the negatives' shape {list(negative_BC.shape)}; found "
                f"{list(mask_BC.shape)}."
            )
        ahead_BC &= mask_BC
        level_BC &= mask_BC
        valid_B = np.count_nonzero(mask_BC, axis=1)
    ahead_B = np.count_nonzero(ahead_BC, axis=1)
    level_B = np.count_nonzero(level_BC, axis=1)
    return np.where(valid_B > 0, ahead_B + 0.5 * level_B + 1.0, math.nan)


def lead(logit_BC: np.ndarray) -> np.ndarray:
    """How far a model's candidates are ahead of the true target, to be ranked against 0.

    A matrix product rounds a row by its place in the batch, so two nodes without a past, whose
    scores are equal, come out a last bit apart: which one is ahead would depend on their columns.
    Differences within rounding are therefore exactly 0, a tie.

    Args:
        logit_BC: [B, 1 + C] float32, the true target first.

    Returns:
        [B, C].

    Examples:
        >>> lead(np.array([[1.0, 1.0000001, 1.5]], np.float32)).tolist()
        [[0.0, 0.5]]
    """
    positive_B1 = logit_BC[:, :1]
    lead_BC: np.ndarray = logit_BC[:, 1:] - positive_B1
    lead_BC[np.abs(lead_BC) <= _ROUNDING * (1 + np.abs(positive_B1))] = 0
    return lead_BC


def reciprocal_rank(
    positive_B: Scores, negative_BC: Scores, mask_BC: Scores | None = None
) -> np.ndarray:
    """1 / `rank`, [B] float64; its mean is the MRR.

    Examples:
        >>> reciprocal_rank([9, 1], [[5, 4], [5, 4]]).tolist()
        [1.0, 0.3333333333333333]
    """
    return 1.0 / rank(positive_B, negative_BC, mask_BC)


def hits_at(
    k: int, positive_B: Scores, negative_BC: Scores, mask_BC: Scores | None = None
) -> np.ndarray:
    """[B] float64: 1 where the positive's mean `rank` is at most k, else 0 (NaN as in `rank`).

    Examples:
        >>> hits_at(1, [0.9, 0.1], [[0.5, 0.4], [0.5, 0.4]]).tolist()
        [1.0, 0.0]
    """
    return _hits(k, rank(positive_B, negative_BC, mask_BC))


# ---------------------------------------------------------------- collecting an evaluation


class PairScores:
    """Collects batches of an AP evaluation: positives and their few negatives.

    Examples:
        >>> scores = PairScores()
        >>> scores.add([0.9, 0.8], [[0.1], [0.2]])
        >>> metrics = scores.result(Protocol("1 random destination per positive", batch_size=2))
        >>> print(metrics["AP"])  # doctest: +ELLIPSIS
        AP 1.0000 (1 random destination per positive, averaged over batches of 2, ...)
    """

    def __init__(self) -> None:
        self._batches: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, positive_B: Scores, negative_BC: Scores) -> None:
        """One batch: [B] scores of the positives, [B, C] (or [B]) of their negatives."""
        positive_B = _array(positive_B)
        negative_M = _array(negative_BC).reshape(-1)
        label_L = np.zeros(len(positive_B) + len(negative_M), np.int8)
        label_L[: len(positive_B)] = 1
        self._batches.append((label_L, np.concatenate([positive_B, negative_M])))

    def result(self, protocol: Protocol) -> Metrics:
        """AP and AUC averaged over batches (the field's figures) and over all events at once."""
        if not self._batches:
            reason = "there are no events"
            return Metrics(
                tuple(
                    Metric(name, math.nan, protocol.text("over all events"), 0, reason)
                    for name in ("AP", "AUC", "AP (all events)", "AUC (all events)")
                )
            )
        label_L, score_L = (np.concatenate(part) for part in zip(*self._batches, strict=True))
        count = int(label_L.sum())
        averaged = protocol.text(protocol.by_batches)
        pooled = protocol.text("over all events at once")
        functions = (("AP", average_precision), ("AUC", roc_auc))
        by_batch = [(n, batch_average(f, self._batches), averaged) for n, f in functions]
        at_once = [(f"{n} (all events)", f(label_L, score_L), pooled) for n, f in functions]
        return Metrics(
            tuple(
                Metric(name, value, text, count, one_class(label_L) if math.isnan(value) else "")
                for name, value, text in by_batch + at_once
            )
        )


class RankScores:
    """Collects batches of a ranking evaluation: one positive against many.

    Examples:
        >>> scores = RankScores()
        >>> scores.add([0.9, 0.1], [[0.5, 0.4], [0.5, 0.4]])
        >>> metrics = scores.result(Protocol("2 random destinations per positive"))
        >>> round(metrics["MRR"].value, 4)
        0.6667
    """

    def __init__(self) -> None:
        self._ranks: list[np.ndarray] = []

    def add(self, positive_B: Scores, negative_BC: Scores, mask_BC: Scores | None = None) -> None:
        """One batch; arguments as in `rank`."""
        self._ranks.append(rank(positive_B, negative_BC, mask_BC))

    def result(self, protocol: Protocol, hits: tuple[int, ...] = (1, 3, 10)) -> Metrics:
        """MRR and Hits@k over all events; events without any negative are left out."""
        rank_B = np.concatenate(self._ranks) if self._ranks else np.zeros(0)
        rank_B = rank_B[~np.isnan(rank_B)]
        reason = "" if len(rank_B) else "there are no events with a negative"
        text = protocol.text("mean over events, mean rank of ties")
        named = [("MRR", 1.0 / rank_B)] + [(f"Hits@{k}", _hits(k, rank_B)) for k in hits]
        return Metrics(
            tuple(
                Metric(name, _mean(value_B), text, len(rank_B), reason) for name, value_B in named
            )
        )


# ---------------------------------------------------------------- helpers


def _array(values: Scores) -> np.ndarray:
    """A NumPy array of the same numbers; integers stay integers, so that they compare exactly."""
    if isinstance(values, np.ndarray):
        return values
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if values.is_floating_point() and values.element_size() < 4:
            values = values.float()  # NumPy has no bfloat16
        return np.asarray(values.numpy())
    return np.asarray(values)


def _checked(label_L: Scores, score_L: Scores) -> tuple[np.ndarray, np.ndarray]:
    label_L, score_L = _array(label_L), _array(score_L)
    if label_L.ndim != 1 or label_L.shape != score_L.shape:
        raise InputError(
            f"Labels and scores must be two lists of one length; found shapes "
            f"{list(label_L.shape)} and {list(score_L.shape)}."
        )
    other = (label_L != 0) & (label_L != 1)
    if other.any():
        at = int(np.argmax(other))
        raise InputError(f"Label {at} is {label_L[at]!r}; expected 0 or 1.")
    if score_L.dtype.kind == "f" and np.isnan(score_L).any():
        at = int(np.argmax(np.isnan(score_L)))
        raise InputError(
            f"Score {at} of {len(score_L)} is NaN; expected a number. The model's output is "
            "broken: look for a diverged loss or a too high learning rate."
        )
    return label_L.astype(np.bool_), score_L


def _cumulative_counts(label_L: np.ndarray, score_L: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positives and negatives at or above each distinct score, from the highest score down."""
    order = np.argsort(score_L, kind="stable")[::-1]
    label_L, score_L = label_L[order], score_L[order]
    last_of_tie = np.append(np.flatnonzero(score_L[1:] != score_L[:-1]), len(score_L) - 1)
    true = np.cumsum(label_L, dtype=np.int64)[last_of_tie]
    return true.astype(np.float64), (last_of_tie + 1 - true).astype(np.float64)


def _hits(k: int, rank_B: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(rank_B), math.nan, (rank_B <= k).astype(np.float64))


def _mean(value_B: np.ndarray) -> float:
    """A correctly rounded sum, so that the order and the batches of the events do not matter."""
    return math.fsum(value_B.tolist()) / len(value_B) if len(value_B) else math.nan
