"""Many batches scored at once: the bits of single batches, and of single events.

The stream (time runs to the right): training, then two batches of validation that are joined. Node
0 is an endpoint in the first of them, so it appears in the joined batch at two versions:

    ... train | 0-4 1-5 | 0-6 2-4 | ...
                version 4  version 5
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from tidegraph import ops
from tidegraph.batches import History, PreparedBatch
from tidegraph.batches.negatives import Candidates
from tidegraph.errors import TidegraphError
from tidegraph.events import Events
from tidegraph.events.core import Schema
from tidegraph.models import TGAT, TGN, TemporalModel
from tidegraph.models.base import Encoded
from tidegraph.state import NodeState
from tidegraph.train import EagerExecutor, EvaluationPlan, Stream, evaluate
from tidegraph.train.joint import (
    JointScorer,
    Piece,
    SingleScorer,
    join,
    joins,
)
from tidegraph.train.stages import StageTimes
from tidegraph.train.stream import Part
from training import chatter, fit, held_out, small_tgn

EVENTS = chatter()
SPLIT = (Part("train", 0, 60, 20), Part("val", 60, 120, 7))


class Lookup(TemporalModel):
    """A vector per node and a matrix: neither memory nor neighbours."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema, 6)
        self.history, self.rows_alone = History(neighbors=(), memory=False), True
        self.node = torch.nn.Parameter(torch.randn(schema.num_nodes, 6))
        self.layer = torch.nn.Linear(6, 6)

    def encode(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Encoded:
        own_UD = self.node.index_select(0, batch.node_U)
        return Encoded(torch.tanh(ops.linear(own_UD, self.layer)))


MODELS: dict[str, Callable[[Events], TemporalModel]] = {
    "plain": small_tgn,
    "two layers": lambda events: small_tgn(events, layers=2),
    "mean": lambda events: small_tgn(events, message="mean"),
    "rnn": lambda events: small_tgn(events, cell="rnn", heads=3),
    "uniform": lambda events: small_tgn(events, strategy="uniform", layers=2),
    "inclusive": lambda events: small_tgn(events, inclusive=True, layers=2),
    "window": lambda events: small_tgn(events, window=20.0),
    "batch visibility": lambda events: small_tgn(events, visibility="batch"),
    "trainable time": lambda events: small_tgn(events, time_code="trainable"),
    "no memory": lambda events: TGAT(events.schema, time=4, embedding=6, neighbors=3),
    "no neighbours": lambda events: Lookup(events.schema),
}


def opened(
    model: TemporalModel, events: Events = EVENTS, **options: Any
) -> tuple[Stream, NodeState]:
    """A stream and its state at the start of validation."""
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    stream = Stream.open(events, SPLIT, model.history, **options)
    state = NodeState(events.schema.num_nodes, model.memory_width)
    executor = EagerExecutor(model, state)
    for number in stream.phase("train").batches:
        executor.advance(stream.preparer.prepare(number, np.full((20, 1), 6, np.int32)))
    return stream, state


def candidates(count: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.integers(0, EVENTS.schema.num_nodes, (len(EVENTS), count)).astype(np.int32)


def pieces(stream: Stream, count: int) -> list[Piece[None]]:
    node_EC, found = candidates(count), []
    for number in stream.phase("val").batches:
        batch = stream.preparer.prepare(number, node_EC[stream.plan.events(number)])
        found.append(Piece(batch, True, None))
    return found


def alone(stream: Stream, number: int, event: int, negative_BC: np.ndarray) -> PreparedBatch:
    """One event of a batch as a batch of its own, with the whole batch's border."""
    plan = stream.plan
    event_P = np.concatenate([plan.event_P[: plan.border_B1[number]], [event]])
    border_B1 = np.append(plan.border_B1[: number + 1], plan.border_B1[number] + 1)
    single = dataclasses.replace(
        plan,
        event_P=event_P,
        border_B1=border_B1,
        first_event_B=plan.first_event_B[: number + 1],
    )
    return dataclasses.replace(stream.preparer, plan=single).prepare(number, negative_BC)


@pytest.mark.parametrize("budget", [1, 20_000, 1 << 30])
@pytest.mark.parametrize("name", list(MODELS))
def test_joint_scores_are_those_of_single_events(name: str, budget: int) -> None:
    model = MODELS[name](EVENTS)
    stream, state = opened(model)
    assert joins(model, state, stream)
    single, by_event = state.clone(), []
    executor, node_EC = EagerExecutor(model, single), candidates(5)
    for number in stream.phase("val").batches:
        for event in stream.plan.events(number):
            batch = alone(stream, number, int(event), node_EC[event : event + 1])
            by_event.append(executor.score(batch, write=False))
        B = len(stream.plan.events(number))
        executor.score(stream.preparer.prepare(number, np.zeros((B, 1), np.int32)))
    scorer = JointScorer(model, state, stream, StageTimes(), budget)
    found = [scores for _, scores in scorer.run(pieces(stream, 5))]
    assert [len(scores) for scores in found] == [7] * 8 + [4]
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(by_event))
    assert state.checksum() == single.checksum()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("most", [7, 30, 10**6])
def test_figures_and_state_are_those_of_the_plain_loop(
    monkeypatch: pytest.MonkeyPatch, frozen: bool, most: int
) -> None:
    monkeypatch.setattr(sys.modules["tidegraph.train.evaluate"], "_MOST_ROOTS", most)
    model = small_tgn(EVENTS)
    stream, state = opened(model)
    other = state.clone()
    only = np.arange(len(EVENTS)) % 3 == 0
    plan = EvaluationPlan(Given(candidates(1)), Given(candidates(9)), 9, only, frozen)
    found = evaluate(model, state, stream, "val", plan)
    expected = evaluate(model, other, stream, "val", plan, joint=False)
    assert found.metrics == expected.metrics
    assert found.inductive == expected.inductive
    assert state.checksum() == other.checksum()
    assert state.version == len(stream.plan)


@pytest.mark.parametrize("feature_type", ["float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("compact", [False, True])
def test_feature_tables_of_every_kind_are_joined(feature_type: str, compact: bool) -> None:
    rng = np.random.default_rng(0)
    events = Events.from_arrays(
        EVENTS.source, EVENTS.target, EVENTS.time, features=EVENTS.features,
        node_features=rng.normal(size=(12, 3)), num_nodes=12, bipartite=False,
    )  # fmt: skip
    model = small_tgn(events)
    stream, state = opened(model, events, feature_type=feature_type, compact=compact)
    single = state.clone()
    plain = SingleScorer(EagerExecutor(model, single)).run(pieces(stream, 4))
    joint = JointScorer(model, state, stream, StageTimes()).run(pieces(stream, 4))
    for (_, found), (_, expected) in zip(joint, plain, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert state.checksum() == single.checksum()


def test_the_state_does_not_depend_on_what_is_ranked() -> None:
    checksums = set()
    for count in (0, 1, 8):
        for joint in (True, False):
            model = small_tgn(EVENTS)
            stream, state = opened(model)
            scorer: Any = SingleScorer(EagerExecutor(model, state))
            if joint:
                scorer = JointScorer(model, state, stream, StageTimes())
            for _ in scorer.run(pieces(stream, count)):
                pass
            checksums.add(state.checksum())
    assert len(checksums) == 1


class Given:
    """Candidates as given, one row per event of the stream."""

    def __init__(self, node_EC: np.ndarray) -> None:
        self.node_EC = node_EC

    def candidates(self, start: int, stop: int, *, count: int) -> Candidates:
        return Candidates(self.node_EC[start:stop])

    def describe(self, count: int) -> str:
        return "given"


class Embedded(TGN):
    """What its memory becomes is said to depend on embeddings."""

    memory_from_embeddings: ClassVar[bool] = True


class Unsplit(TemporalModel):
    """A model with memory that does not say how memory moves alone."""

    def __init__(self, schema: Any) -> None:
        super().__init__(schema, 4)
        self.history, self.memory_width = History(neighbors=()), 4

    def encode(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Encoded:
        return Encoded(memory_UD + 1, memory_UD + mail_UD)


class Joined(TGN):
    """Says nothing about its rows."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        self.rows_alone = False


@pytest.mark.parametrize("kind", [Embedded, Unsplit, Joined])
def test_models_that_cannot_be_split_are_scored_batch_by_batch(kind: Any) -> None:
    model = kind(EVENTS.schema)
    stream, state = opened(model)
    assert not joins(model, state, stream)
    plan = EvaluationPlan(Given(candidates(1)))
    assert evaluate(model, state, stream, "val", plan).metrics["AP"].count == 60
    assert state.version == len(stream.plan)


@pytest.mark.parametrize(
    "options", [{"memory_time": "query"}, {"embedding_module": "time", "embedding": 6}]
)
def test_variants_that_tie_memory_to_queries_stay_single(options: dict[str, Any]) -> None:
    model = small_tgn(EVENTS, **options)
    stream, state = opened(model)
    assert not joins(model, state, stream)


def test_in_other_precision_batches_stay_single() -> None:
    model = small_tgn(EVENTS)
    stream, state = opened(model)
    assert not joins(model.double(), state, stream)


def test_a_batch_with_unknown_parts_is_refused() -> None:
    @dataclasses.dataclass(frozen=True, eq=False)
    class Extended(PreparedBatch):
        novelty: Tensor | None = None

    stream, _ = opened(small_tgn(EVENTS))
    batch = pieces(stream, 1)[0].batch
    extended = Extended(**vars(batch), novelty=torch.zeros(1))
    with pytest.raises(TidegraphError, match="'novelty' cannot be scored together"):
        join([extended], None)  # type: ignore[arg-type]


def test_runs_evaluate_jointly_and_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, its validation, and the test: all through `evaluate`."""
    calls = []
    real = JointScorer.run

    def watch(self: JointScorer, pieces: Any) -> Any:
        calls.append(1)
        return real(self, pieces)

    monkeypatch.setattr(JointScorer, "run", watch)
    run = fit(EVENTS, epochs=2)
    found = run.evaluate(held_out(EVENTS))
    assert len(calls) == 3
    module = sys.modules["tidegraph.train.evaluate"]
    monkeypatch.setattr(module, "joins", lambda *arguments: False)
    plain = fit(EVENTS, epochs=2)
    assert plain.evaluate(held_out(EVENTS)).metrics == found.metrics
    assert plain.state.checksum() == run.state.checksum()
    assert [r.metrics for r in plain.records] == [r.metrics for r in run.records]
