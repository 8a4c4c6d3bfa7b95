"""Evaluation of a model by named protocols, one pass over a phase of the stream.

Every batch is scored from the state before it, then written (streaming history), so validation
continues from the end of training and test from the end of validation. With history frozen at the
start of the phase nothing is written while scoring; the state moves past the phase afterwards.
Where that changes no bit, many batches are scored at once (`train/joint.py`).

Shape legend: B events, C candidates per event.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tidegraph.batches.negatives import (
    Candidates,
    CandidateSource,
    NegativeSampler,
    NegativeSettings,
)
from tidegraph.errors import SettingError
from tidegraph.events.core import Events
from tidegraph.models.base import TemporalModel
from tidegraph.state import NodeState
from tidegraph.train.executor import EagerExecutor
from tidegraph.train.joint import (
    JointScorer,
    MemorySteps,
    Piece,
    Scorer,
    SingleScorer,
    joins,
)
from tidegraph.train.metrics import Metrics, PairScores, Protocol, RankScores, lead
from tidegraph.train.scale import why_diverged
from tidegraph.train.settings import TrainSettings
from tidegraph.train.stages import Listener, StageTimes
from tidegraph.train.stream import Stream

FROZEN = "history frozen at the split"
_MOST_ROOTS = 50_000  # scored at once: bounds memory for one-against-many evaluation


@dataclass(frozen=True)
class EvaluationPlan:
    """What to measure.

    Attributes:
        pairs: negatives of AP and AUC, one per event; None to leave them out.
        ranking: candidates of MRR and Hits@k; None to leave them out.
        candidates: how many per event, where they are drawn.
        only: [E] bool over all events or None: also report metrics over these events alone
            (inductive: those that touch a node unseen in training).
        frozen: history ends where the evaluated phase begins.
    """

    pairs: CandidateSource | None
    ranking: CandidateSource | None = None
    candidates: int = 100
    only: np.ndarray | None = None
    frozen: bool = False


def evaluation_plan(
    settings: TrainSettings, stream: Stream, candidates: int | None = None
) -> EvaluationPlan:
    """The evaluation that the settings ask for.

    Args:
        settings: negatives, candidates, history, seed.
        stream: its first part is training: where it ends and which nodes it hides define
            "inductive".
        candidates: overrides `settings.candidates`.
    """
    count = settings.candidates if candidates is None else candidates
    events, seed = stream.events, settings.seed
    pairs = NegativeSampler(
        events,
        NegativeSettings(strategy=settings.negatives, seed=seed),
        train_stop=stream.parts[0].stop if settings.negatives == "inductive" else None,
    )
    ranking = ranking_negatives(events, settings) if count > 0 else None
    only = None
    hidden = stream.hidden_nodes
    if hidden is not None and stream.parts[0].hidden:
        only = hidden[events.source] | hidden[events.target]
    frozen = settings.history == "frozen"
    return EvaluationPlan(pairs, ranking, count, only, frozen)


def ranking_negatives(events: Events, settings: TrainSettings) -> NegativeSampler:
    """What true targets are ranked against, in evaluation and in prediction."""
    # Another seed than the pairs', so that the two sets of negatives are independent.
    return NegativeSampler(events, NegativeSettings(seed=settings.seed + 1, collisions="check"))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The figures of one evaluation, and the state it ended in.

    Attributes:
        metrics: transductive first, then (where asked for) the inductive ones.
        inductive: metrics over the events with an unseen node, or None.
        state: node state after the phase.
        seconds: wall time.
        events: events scored.
        stages: seconds by stage.
    """

    metrics: Metrics
    inductive: Metrics | None
    state: NodeState
    seconds: float
    events: int
    stages: dict[str, float] = field(default_factory=dict)


@dataclass
class _Collector:
    pairs: PairScores = field(default_factory=PairScores)
    ranks: RankScores = field(default_factory=RankScores)

    def add(self, logits: _BatchScores, chosen_B: np.ndarray) -> None:
        if not chosen_B.any():
            return
        positive_B = logits.positive_B[chosen_B]
        if logits.pair_BC is not None:
            self.pairs.add(positive_B, logits.pair_BC[chosen_B])
        if logits.lead_BC is not None:
            mask_BC = None if logits.mask_BC is None else logits.mask_BC[chosen_B]
            self.ranks.add(np.zeros_like(positive_B), logits.lead_BC[chosen_B], mask_BC)

    def result(self, plan: EvaluationPlan, protocol: Protocol) -> Metrics:
        found = Metrics(())
        if plan.pairs is not None:
            found += self.pairs.result(replace(protocol, negatives=plan.pairs.describe(1)))
        if plan.ranking is not None:
            text = plan.ranking.describe(plan.candidates)
            found += self.ranks.result(replace(protocol, negatives=text))
        return found


@dataclass(frozen=True, eq=False)
class _BatchScores:
    """`lead_BC`: how far each ranked candidate is ahead of the positive, see `metrics.lead`."""

    positive_B: np.ndarray
    pair_BC: np.ndarray | None
    lead_BC: np.ndarray | None
    mask_BC: np.ndarray | None


def evaluate(
    model: TemporalModel,
    state: NodeState,
    stream: Stream,
    phase: str,
    plan: EvaluationPlan,
    *,
    listener: Listener | None = None,
    joint: bool = True,
) -> Evaluation:
    """Score a phase of the stream, starting from `state`, which moves forward with it.

    Args:
        model: put into evaluation mode for the duration.
        state: at the version of the phase's first batch, afterwards at its end, whatever history
            was visible while scoring; give a clone to keep it.
        stream: its plan contains the phase.
        phase: name of the phase.
        plan: what to measure.
        joint: score many batches at once where that gives the same bits; off, batch by batch.

    Raises:
        SettingError: scores that are no numbers, since training has diverged.
    """
    listener = listener or Listener()
    started = time.perf_counter()
    batches = stream.phase(phase)
    times = StageTimes()
    everything, inductive = _Collector(), _Collector()
    events = int(sum(len(stream.plan.events(number)) for number in batches.batches))
    listener.started(phase, None, events)
    was_training = model.training
    model.eval()
    try:
        as_of = batches.first if plan.frozen else None
        scorer: Scorer = SingleScorer(
            EagerExecutor(model, state, times=times, transfer=stream.transfer)
        )
        if joint and joins(model, state, stream):
            scorer, stream = JointScorer(model, state, stream, times), stream.for_scoring()
        for event_B, scores in _scores(scorer, stream, batches.batches, plan, as_of, times):
            everything.add(scores, np.ones(len(event_B), bool))
            if plan.only is not None:
                inductive.add(scores, plan.only[event_B])
            listener.advanced(len(event_B), None)
        if plan.frozen:
            advance(model, state, stream, phase)
    finally:
        model.train(was_training)
    part = next(part for part in stream.parts if part.name == phase)
    protocol = Protocol(
        negatives="",
        history=FROZEN if plan.frozen else "streaming history",
        batch_size=part.batch_size,
    )
    metrics = everything.result(plan, protocol)
    unseen = None
    if plan.only is not None:
        setting = "inductive (events with a node unseen in training)"
        unseen = inductive.result(plan, replace(protocol, setting=setting))
    seconds = time.perf_counter() - started
    listener.finished(phase, None, {"events/s": events / max(seconds, 1e-9), **metrics.values()})
    return Evaluation(metrics, unseen, state, seconds, events, dict(times.seconds))


def advance(model: TemporalModel, state: NodeState, stream: Stream, phase: str) -> None:
    """Move `state` past a phase of the stream without scoring."""
    model.eval()
    if joins(model, state, stream):
        steps = MemorySteps(model, state, stream)
        for number in stream.phase(phase).batches:
            steps.step_to(number)
        return
    executor = EagerExecutor(model, state, transfer=stream.transfer)
    for number in stream.phase(phase).batches:
        nothing = np.empty((len(stream.plan.events(number)), 0), np.int32)
        executor.advance(stream.preparer.prepare(number, nothing))


def _scores(
    scorer: Scorer,
    stream: Stream,
    numbers: range,
    plan: EvaluationPlan,
    as_of: int | None,
    times: StageTimes,
) -> Iterator[tuple[np.ndarray, _BatchScores]]:
    """Event ids [B] and scores, batch by batch."""
    logits: list[np.ndarray] = []
    for piece, logit_BC in scorer.run(_pieces(stream, numbers, plan, as_of, times)):
        logits.append(logit_BC)
        if piece.meta.last:
            yield piece.meta.event_B, _batch_scores(piece.meta, logits, stream)
            logits = []


@dataclass(frozen=True, eq=False)
class _Meta:
    """Of a piece: its batch's events, what was asked for, and whether it is the batch's last."""

    event_B: np.ndarray
    pairs: bool
    ranking: Candidates | None
    last: bool


def _pieces(
    stream: Stream, numbers: range, plan: EvaluationPlan, as_of: int | None, times: StageTimes
) -> Iterator[Piece[_Meta]]:
    """The batches with their candidates.

    Candidates that do not fit at once are scored in turn from the same version; the last writes.
    """
    for number in numbers:
        event_B = stream.plan.events(number)
        pairs = _candidates(plan.pairs, event_B, 1)
        ranking = _candidates(plan.ranking, event_B, plan.candidates)
        parts = [part.node_BC for part in (pairs, ranking) if part is not None]
        node_BC = np.concatenate(parts, axis=1) if parts else np.empty((len(event_B), 0), np.int32)
        width = max(1, _MOST_ROOTS // len(event_B))
        for first in range(0, max(node_BC.shape[1], 1), width):
            last = first + width >= node_BC.shape[1]
            with times("prepare"):
                batch = stream.preparer.prepare(
                    number, node_BC[:, first : first + width], as_of=as_of
                )
            meta = _Meta(event_B, pairs is not None, ranking, last)
            yield Piece(batch, last and as_of is None, meta)


def _batch_scores(meta: _Meta, logits: list[np.ndarray], stream: Stream) -> _BatchScores:
    event_B = meta.event_B
    if not all(np.isfinite(piece).all() for piece in logits):
        raise SettingError(
            f"the model's scores of events {event_B[0]} to {event_B[-1]} are not all finite "
            f"numbers: training has diverged; {why_diverged(stream.events)}"
        )
    lead_BC = np.concatenate([lead(piece) for piece in logits], axis=1)
    return _BatchScores(
        positive_B=logits[0][:, 0],
        pair_BC=logits[0][:, 1:2] if meta.pairs else None,
        lead_BC=None if meta.ranking is None else lead_BC[:, 1 if meta.pairs else 0 :],
        mask_BC=None if meta.ranking is None else meta.ranking.mask_BC,
    )


def _candidates(
    source: CandidateSource | None, event_B: np.ndarray, count: int
) -> Candidates | None:
    if source is None:
        return None
    return source.candidates(int(event_B[0]), int(event_B[-1]) + 1, count=count)
