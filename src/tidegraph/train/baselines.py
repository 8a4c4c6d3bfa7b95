"""Evaluating baselines under exactly the protocol that models are evaluated under.

The same events, negatives, batches and metrics: only the scorer differs. What a scorer may know
when it scores a batch is the history before that batch.

Shape legend: B events of a batch, C candidates per event.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

from tidegraph.batches.negatives import Candidates, CandidateSource, NegativeSampler
from tidegraph.errors import SettingError
from tidegraph.events.core import Events
from tidegraph.keys import Purpose
from tidegraph.train import metrics
from tidegraph.train.evaluate import FROZEN
from tidegraph.train.metrics import Metrics, PairScores, RankScores

Visibility = Literal["batch", "event"]


class Baseline(Protocol):
    """A scorer without parameters: it is asked, then told what happened."""

    @property
    def name(self) -> str: ...

    def reset(self) -> None: ...

    def score(
        self, source_B: np.ndarray, candidate_BC: np.ndarray, time_B: np.ndarray
    ) -> np.ndarray: ...

    def update(self, source_M: np.ndarray, target_M: np.ndarray, time_M: np.ndarray) -> None: ...


class _Deaf:
    """A baseline that is asked and told nothing."""

    def __init__(self, baseline: Baseline) -> None:
        self.baseline = baseline

    @property
    def name(self) -> str:
        return self.baseline.name

    def reset(self) -> None:
        self.baseline.reset()

    def score(
        self, source_B: np.ndarray, candidate_BC: np.ndarray, time_B: np.ndarray
    ) -> np.ndarray:
        return self.baseline.score(source_B, candidate_BC, time_B)

    def update(self, source_M: np.ndarray, target_M: np.ndarray, time_M: np.ndarray) -> None:
        pass


def evaluate_baseline(
    baseline: Baseline,
    events: Events,
    start: int,
    stop: int,
    *,
    negatives: CandidateSource,
    protocol: Literal["ap", "mrr"] = "ap",
    count: int = 1,
    batch_size: int = 200,
    keep: np.ndarray | None = None,
    only: np.ndarray | None = None,
    visibility: Visibility = "batch",
    frozen: bool = False,
    setting: str = "transductive",
    hits: tuple[int, ...] = (1, 3, 10),
) -> Metrics:
    """Score the events at [start, stop) of a stream after feeding what came before.

    Args:
        baseline: reset first, then fed [0, start), then each batch after it was scored.
        events: the whole stream.
        start, stop: the evaluated part, as positions.
        negatives: a `NegativeSampler`, `EveryDestination` or `FixedNegatives`.
        protocol: "ap" (AP and AUC against `count` negatives) or "mrr" (MRR and Hits@k).
        count: C, where `negatives` are drawn.
        batch_size: events per batch.
        keep: [E] bool or None: False for training events that are hidden in inductive set-ups;
            they are not fed. Only its part before `start` is used.
        only: [E] bool or None: score these events only (inductive); all are fed.
        visibility: "batch": a batch's events are scored from the state before the batch.
            "event": each event also knows the earlier events of its own batch.
        frozen: history ends at `start`: what happens from there on is scored and never fed, as
            models are evaluated with `history="frozen"`.
        setting: named in the protocol.
        hits: the k of Hits@k.

    Returns:
        The same metric objects that models return.

    Raises:
        SettingError: positions or options that cannot be.

    Examples:
        >>> from tidegraph.batches.negatives import EveryDestination
        >>> from tidegraph.events.core import Events
        >>> from tidegraph.models.edgebank import EdgeBank
        >>> events = Events.from_arrays([0, 1, 0, 1], [2, 3, 2, 3], [1, 2, 3, 4])
        >>> found = evaluate_baseline(
        ...     EdgeBank(), events, 2, 4, negatives=EveryDestination(events), protocol="mrr"
        ... )
        >>> found["MRR"].value
        1.0
    """
    _check(events, start, stop, batch_size, protocol, keep, only)
    if frozen and visibility == "event":
        raise SettingError("visibility='event' has no effect with frozen=True: nothing is fed.")
    _feed_history(baseline, events, start, keep)
    pairs, ranks = PairScores(), RankScores()
    for first in range(start, stop, batch_size):
        last = min(first + batch_size, stop)
        chosen_B = np.ones(last - first, np.bool_) if only is None else only[first:last]
        candidates = negatives.candidates(first, last, count=count)
        score = _score_batch if visibility == "batch" else _score_one_by_one
        positive_B, negative_BC = score(
            _Deaf(baseline) if frozen else baseline, events, first, last, candidates
        )
        if not chosen_B.any():
            continue
        mask_BC = None if candidates.mask_BC is None else candidates.mask_BC[chosen_B]
        if protocol == "mrr":
            ranks.add(positive_B[chosen_B], negative_BC[chosen_B], mask_BC)
        else:
            negative_BC = negative_BC[chosen_B]
            pairs.add(
                positive_B[chosen_B], negative_BC if mask_BC is None else negative_BC[mask_BC]
            )
    named = _protocol(negatives.describe(count), setting, visibility, batch_size, frozen)
    return ranks.result(named, hits) if protocol == "mrr" else pairs.result(named)


def evaluate_baseline_on_edges(
    baseline: Baseline,
    events: Events,
    start: int,
    stop: int,
    *,
    negatives: NegativeSampler,
    batch_size: int = 200,
    keep: np.ndarray | None = None,
    setting: str = "transductive",
) -> Metrics:
    """AP and AUC against past edges of any source: historical and inductive as published.

    Args:
        baseline, events, start, stop, batch_size, keep, setting: as in `evaluate_baseline`.
        negatives: a sampler of strategy `historical` or `inductive`; `draw_edges` is used.
    """
    _check(events, start, stop, batch_size, "ap", keep, None)
    _feed_history(baseline, events, start, keep)
    scores = PairScores()
    for first in range(start, stop, batch_size):
        last = min(first + batch_size, stop)
        part = slice(first, last)
        source_B, target_B, time_B = events.source[part], events.target[part], events.time[part]
        edges = negatives.draw_edges(first, last, purpose=Purpose.EVALUATION_NEGATIVE)
        scores.add(
            baseline.score(source_B, target_B[:, None], time_B)[:, 0],
            baseline.score(edges.source_BC[:, 0], edges.target_BC, time_B),
        )
        baseline.update(source_B, target_B, time_B)
    text = f"1 {negatives.settings.strategy} edge of any source per positive"
    return scores.result(_protocol(text, setting, "batch", batch_size))


def _score_batch(
    baseline: Baseline, events: Events, first: int, last: int, candidates: Candidates
) -> tuple[np.ndarray, np.ndarray]:
    """Score [first, last) from the state before it, then feed it (pitfall: never the reverse)."""
    part = slice(first, last)
    source_B, target_B, time_B = events.source[part], events.target[part], events.time[part]
    candidate_BC = np.concatenate([target_B[:, None], candidates.node_BC], axis=1)
    score_BC = baseline.score(source_B, candidate_BC, time_B)
    baseline.update(source_B, target_B, time_B)
    return score_BC[:, 0], score_BC[:, 1:]


def _score_one_by_one(
    baseline: Baseline, events: Events, first: int, last: int, candidates: Candidates
) -> tuple[np.ndarray, np.ndarray]:
    scored = [
        _score_batch(baseline, events, at, at + 1, Candidates(candidates.node_BC[row : row + 1]))
        for row, at in enumerate(range(first, last))
    ]
    positive_B, negative_BC = zip(*scored, strict=True)
    return np.concatenate(positive_B), np.concatenate(negative_BC)


def _feed_history(baseline: Baseline, events: Events, start: int, keep: np.ndarray | None) -> None:
    baseline.reset()
    source, target, time = events.source[:start], events.target[:start], events.time[:start]
    if keep is not None:
        kept = keep[:start]
        source, target, time = source[kept], target[kept], time[kept]
    baseline.update(source, target, time)


def _protocol(
    negatives: str, setting: str, visibility: Visibility, batch_size: int, frozen: bool = False
) -> metrics.Protocol:
    history = "streaming history" if visibility == "batch" else "streaming history, event by event"
    if frozen:
        history = FROZEN
    return metrics.Protocol(negatives, setting, history, batch_size)


def _check(
    events: Events,
    start: int,
    stop: int,
    batch_size: int,
    protocol: str,
    keep: np.ndarray | None,
    only: np.ndarray | None,
) -> None:
    if not 0 <= start < stop <= len(events):
        raise SettingError(
            f"Nothing to evaluate at positions {start} to {stop}; expected a non-empty part of "
            f"the {len(events)} events."
        )
    if batch_size < 1:
        raise SettingError(f"batch_size is {batch_size}; expected at least 1.")
    if protocol not in ("ap", "mrr"):
        raise SettingError(f"protocol is {protocol!r}; expected 'ap' or 'mrr'.")
    for name, mask in (("keep", keep), ("only", only)):
        if mask is not None and (len(mask) != len(events) or mask.dtype != np.bool_):
            raise SettingError(
                f"{name} must be a bool for each of the {len(events)} events; found "
                f"{mask.dtype} of length {len(mask)}."
            )
