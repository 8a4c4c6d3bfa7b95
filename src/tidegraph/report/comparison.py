"""A model beside baselines on exactly the same events and negatives."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tidegraph.batches.negatives import CandidateSource
from tidegraph.events.core import EventRange
from tidegraph.models.edgebank import EdgeBank
from tidegraph.models.popularity import Popularity
from tidegraph.train.baselines import Baseline, evaluate_baseline
from tidegraph.train.evaluate import Evaluation, EvaluationPlan, evaluation_plan
from tidegraph.train.metrics import Metrics
from tidegraph.train.run import Run
from tidegraph.train.settings import TrainSettings
from tidegraph.train.stream import Stream

TRANSDUCTIVE = "transductive"
INDUCTIVE = "inductive (events with a node unseen in training)"


@dataclass(frozen=True)
class Scored:
    """Figures of one scorer.

    Attributes:
        name: as printed.
        metrics: over all events of the part.
        inductive: over those with a node unseen in training, or None.
    """

    name: str
    metrics: Metrics
    inductive: Metrics | None = None


def scored(name: str, evaluation: Evaluation) -> Scored:
    """A model's evaluation under its name."""
    return Scored(name, evaluation.metrics, evaluation.inductive)


def evaluate_baselines(
    run: Run,
    part: EventRange,
    candidates: int | None = None,
    ranking: CandidateSource | None = None,
) -> tuple[Scored, ...]:
    """EdgeBank and popularity on `part`, with the negatives, batches and history of the run's.

    Args:
        run: its settings and hidden nodes.
        part: as evaluated with `run.evaluate`.
        candidates, ranking: as given there.
    """
    plan = evaluation_plan(run.settings, run.stream, candidates)
    if ranking is not None:
        plan = replace(plan, ranking=ranking)
    return tuple(
        evaluate_scorer(one, run.settings, run.stream, part, plan)
        for one in (EdgeBank(), Popularity())
    )


def evaluate_scorer(
    baseline: Baseline,
    settings: TrainSettings,
    stream: Stream,
    part: EventRange,
    plan: EvaluationPlan,
) -> Scored:
    """A baseline on `part`, by a plan that models are evaluated by.

    Args:
        baseline: asked, then told what happened.
        settings: batch size of the evaluation.
        stream: its first part is training: what is hidden there is not told.
        part: of the stream's events.
        plan: negatives, candidates, history.
    """
    inductive = None
    if plan.only is not None:
        inductive = _figures(baseline, settings, stream, part, plan, plan.only, INDUCTIVE)
    everything = _figures(baseline, settings, stream, part, plan, None, TRANSDUCTIVE)
    return Scored(baseline.name, everything, inductive)


def _figures(
    baseline: Baseline,
    settings: TrainSettings,
    stream: Stream,
    part: EventRange,
    plan: EvaluationPlan,
    only: np.ndarray | None,
    setting: str,
) -> Metrics:
    found = Metrics(())
    for source, protocol, count in ((plan.pairs, "ap", 1), (plan.ranking, "mrr", plan.candidates)):
        if source is not None:
            found += evaluate_baseline(
                baseline,
                stream.events,
                part.start,
                part.stop,
                negatives=source,
                protocol=protocol,  # type: ignore[arg-type]
                count=count,
                batch_size=settings.evaluation_batch_size,
                keep=_trained_on(stream),
                frozen=plan.frozen,
                only=only,
                setting=setting,
            )
    return found


def _trained_on(stream: Stream) -> np.ndarray | None:
    """[E] bool: False for training events that were hidden from the model; None if none were."""
    hidden_N = stream.hidden_nodes
    train = stream.parts[0]
    if hidden_N is None or not train.hidden:
        return None
    keep_E = np.ones(len(stream.events), bool)
    block = EventRange(stream.events, train.start, train.stop, hidden_nodes=hidden_N)
    keep_E[train.start : train.stop] = ~block.touches(hidden_N)
    return keep_E
