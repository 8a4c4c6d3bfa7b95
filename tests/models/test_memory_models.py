"""Models with memory equal their equations executed one event at a time in float64.

Every case is a model with settings and its oracle; streams have ties, repeats and self-loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

import tiny
from models.references.apan import Reference as PlainAPAN
from models.references.dyrep import Reference as PlainDyRep
from models.references.jodie import Reference as PlainJODIE
from models.references.memory import PlainModel
from models.references.tgn_variants import PlainTGN1
from tidegraph.batches import Preparer
from tidegraph.models import TemporalModel
from tidegraph.ops import use_backend
from tidegraph.state import NodeState


@dataclass(frozen=True)
class Case:
    """A model, its settings, and who says what it must compute."""

    name: str
    oracle: Callable[..., PlainModel]
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return "-".join([self.name, *(str(value) for _, value in self.options)])

    def model(self, stream: tiny.Stream, seed: int = 0, **options: Any) -> TemporalModel:
        return tiny.small_model(self.name, stream, seed, **{**dict(self.options), **options})


CASES = [
    Case("jodie", PlainJODIE),
    Case("jodie", PlainJODIE, (("message", "mean"), ("cell", "gru"))),
    Case("jodie", PlainJODIE, (("projection", "normal"),)),
    Case("dyrep", PlainDyRep),
    Case("dyrep", PlainDyRep, (("embedding_module", "attention"), ("message", "mean"))),
    Case("apan", PlainAPAN, (("mails", 3), ("neighbors", 2))),
    Case("apan", PlainAPAN, (("mails", 2), ("neighbors", 0))),
    Case("apan", PlainAPAN, (("mails", 4), ("inclusive", True), ("visibility", "batch"))),
    Case("tgn", PlainTGN1, (("embedding_module", "sum"),)),
    Case("tgn", PlainTGN1, (("embedding_module", "identity"), ("embedding", 4))),
    Case("tgn", PlainTGN1, (("embedding_module", "time"), ("embedding", 4))),
    Case("tgn", PlainTGN1, (("memory_time", "query"),)),
    Case("tgn", PlainTGN1, (("memory_time", "query"), ("message", "mean"), ("inclusive", True))),
    Case(
        "tgn",
        PlainTGN1,
        (("memory_time", "query"), ("embedding_module", "identity"), ("embedding", 4)),
    ),
    Case("tgn", PlainTGN1, (("static", 3),)),
]
each = pytest.mark.parametrize("case", CASES, ids=str)
cases = st.sampled_from(CASES)


def loss_of(logit_BC: torch.Tensor) -> torch.Tensor:
    label_BC = torch.zeros_like(logit_BC)
    label_BC[:, 0] = 1
    return binary_cross_entropy_with_logits(logit_BC, label_BC)


def check_against_equations(
    stream: tiny.Stream,
    case: Case,
    batch_size: int,
    *,
    learning_rate: float = 0.0,
    kept: list[int] | None = None,
    options: dict[str, Any] | None = None,
    **preparation: bool,
) -> None:
    """Scores of every batch, and the whole state after it, with or without parameter steps."""
    model = case.model(stream, **(options or {}))
    prep = tiny.preparer(stream, model.history, batch_size, kept=kept, **preparation)
    plain = case.oracle(stream, model, kept if kept is not None else list(range(len(stream))))
    state = tiny.empty_state(model, stream.num_nodes)
    # Here a batch is written before its backward pass: what is read in place must be a copy.
    state.keep_versions(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for number in range(len(prep.plan)):
        events = prep.plan.events(number).tolist()
        drawn = tiny.negatives(prep, number, count=2)
        plain.read_weights()
        expected = plain.scores(events, drawn)
        logit_BC = tiny.step(model, state, prep.prepare(number, drawn))
        np.testing.assert_allclose(logit_BC.detach().numpy(), expected, rtol=0, atol=1e-9)
        plain.execute(events)
        check_state(state, plain)
        if learning_rate:
            optimizer.zero_grad()
            loss_of(logit_BC).backward()
            optimizer.step()


def check_state(state: NodeState, plain: PlainModel) -> None:
    expected = plain.tables()
    assert set(state.tables) == set(expected)
    for name, table in state.tables.items():
        np.testing.assert_allclose(table.numpy(), expected[name], rtol=0, atol=1e-10, err_msg=name)


@each
@pytest.mark.parametrize("learning_rate", [0.0, 0.5])
def test_scores_and_state_equal_the_equations(case: Case, learning_rate: float) -> None:
    stream = tiny.random_stream(3, 26, node_feature_width=2)
    check_against_equations(stream, case, 6, learning_rate=learning_rate)


@each
@pytest.mark.parametrize("batch_size", [1, 5, 40])
def test_every_batch_size(case: Case, batch_size: int) -> None:
    check_against_equations(tiny.random_stream(4, 22, nodes=4), case, batch_size)


@given(
    stream=tiny.streams(most_events=14),
    case=cases,
    batch_size=st.integers(1, 6),
    hidden=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_stream(stream: tiny.Stream, case: Case, batch_size: int, hidden: bool) -> None:
    kept = [e for e in range(len(stream)) if not hidden or e % 3 != 1]
    check_against_equations(
        stream, case, batch_size, learning_rate=0.1, kept=kept if hidden else None
    )


@each
@pytest.mark.parametrize("preparation", [{"dedup": False}, {"compact": True}], ids=str)
def test_however_it_is_prepared(case: Case, preparation: dict[str, bool]) -> None:
    stream = tiny.random_stream(6, 24, nodes=4, node_feature_width=1)
    check_against_equations(stream, case, 5, **preparation)


@each
def test_reference_operators_give_the_same_model(case: Case) -> None:
    with use_backend("reference"):
        check_against_equations(tiny.random_stream(6, 24, nodes=4), case, 5, learning_rate=0.5)


@each
def test_gradient_is_the_slope_of_the_equations(case: Case) -> None:
    """Move all parameters along a random direction: the oracle's loss changes by gradient .
    direction. The state is a constant here, as in training (truncated backpropagation)."""
    stream = tiny.random_stream(8, 18, nodes=4, node_feature_width=2)
    model = case.model(stream)
    prep = tiny.preparer(stream, model.history, 6)
    plain = case.oracle(stream, model, list(range(18)))
    state = tiny.empty_state(model, stream.num_nodes)
    state.keep_versions(1)  # as above
    with torch.no_grad():
        for number in range(2):
            tiny.step(model, state, prep.prepare(number, tiny.negatives(prep, number)))
            plain.execute(prep.plan.events(number).tolist())
    drawn = tiny.negatives(prep, 2)
    model.zero_grad()
    loss_of(tiny.step(model, state, prep.prepare(2, drawn))).backward()

    torch.manual_seed(1)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    direction = {name: torch.randn_like(p) for name, p in trained.items()}
    slope = sum(
        float((p.grad * direction[name]).sum()) for name, p in trained.items() if p.grad is not None
    )
    center, losses, size = dict(plain.weights), [], 1e-6
    for sign in (1, -1):
        moved = {n: center[n] + sign * size * direction[n].numpy() for n in trained}
        plain.weights = {**center, **moved}
        scores = torch.from_numpy(plain.scores(prep.plan.events(2).tolist(), drawn))
        losses.append(float(loss_of(scores)))
    assert (losses[0] - losses[1]) / (2 * size) == pytest.approx(slope, rel=1e-5, abs=1e-7)


@each
def test_single_precision_is_close_to_the_equations(case: Case) -> None:
    """The precision that training runs in."""
    stream = tiny.random_stream(7, 30)
    model = case.model(stream).float()
    prep = tiny.preparer(stream, model.history, 6)
    plain = case.oracle(stream, model, list(range(30)))
    for number, logit_BC in enumerate(tiny.scores(model, prep)):
        assert logit_BC.dtype == torch.float32
        events = prep.plan.events(number).tolist()
        expected = plain.scores(events, tiny.negatives(prep, number))
        np.testing.assert_allclose(logit_BC.numpy(), expected, rtol=0, atol=2e-5)
        plain.execute(events)


# ---------------------------------------------------------------- no look-ahead


def every_candidate(prep: Preparer, model: TemporalModel, event: int) -> torch.Tensor:
    """[1 + N]: the scores that `event`'s source gives its true target, then every node."""
    state = tiny.empty_state(model, prep.events.schema.num_nodes)
    every = np.arange(prep.events.schema.num_nodes, dtype=np.int32)
    with torch.no_grad():
        for number in range(len(prep.plan)):
            event_B = prep.plan.events(number)
            drawn = np.tile(every, (len(event_B), 1))
            logit_BC = tiny.step(model, state, prep.prepare(number, drawn))
            if event in event_B:
                return logit_BC[event - event_B[0]]
    raise AssertionError("no such event")


def changed_from(stream: tiny.Stream, event: int, seed: int) -> tiny.Stream:
    """Other ends for every event after `event`, at the same times, and one more at the end."""
    draw = np.random.default_rng(seed)
    rest = len(stream) - event - 1
    ends = draw.integers(0, stream.num_nodes, (2, rest + 1)).tolist()
    return replace(
        stream,
        source=[*stream.source[: event + 1], *ends[0]],
        target=[*stream.target[: event + 1], *ends[1]],
        time=[*stream.time, stream.time[-1] + 1],
    )


@given(
    stream=tiny.streams(most_events=16),
    case=cases,
    batch_size=st.integers(1, 7),
    position=st.integers(0, 15),
    target=st.integers(0, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_nothing_that_follows_nor_the_own_edge_changes_a_score(
    stream: tiny.Stream, case: Case, batch_size: int, position: int, target: int, seed: int
) -> None:
    """Other events afterwards, and another true target: every candidate's score stays; and a node
    scores the same as the true target and as a candidate."""
    stream = replace(stream, feature_width=0)
    event, target = position % len(stream), target % stream.num_nodes
    model = case.model(stream)
    targets = list(stream.target)
    targets[event] = target
    other = replace(changed_from(stream, event, seed))
    other.target[event] = target
    before, after = (
        every_candidate(tiny.preparer(s, model.history, batch_size), model, event)
        for s in (stream, other)
    )
    torch.testing.assert_close(after[1:], before[1:], rtol=0, atol=1e-12)
    for scores, node in ((before, stream.target[event]), (after, target)):
        torch.testing.assert_close(scores[0], scores[1 + node], rtol=0, atol=1e-12)


@each
def test_an_earlier_batch_does_change_a_score(case: Case) -> None:
    """What the test above looks for would be visible: the smallest change of the past is."""
    stream = tiny.random_stream(2, 20, nodes=4)
    model = case.model(stream)
    before = every_candidate(tiny.preparer(stream, model.history, 5), model, 17)
    seen = 0
    for event in range(15):
        targets = list(stream.target)
        targets[event] = (targets[event] + 1) % 4
        other = tiny.preparer(replace(stream, target=targets), model.history, 5)
        seen += int(float((every_candidate(other, model, 17) - before)[1:].abs().max()) > 1e-7)
    assert seen >= 10


def test_dropout_of_projected_memories() -> None:
    """JODIE's: the same batch drops the same numbers, scoring drops none."""
    stream = tiny.random_stream(3, 40)
    model = tiny.small_model("jodie", stream, 0, dropout=0.25, memory=32).float()
    state = tiny.empty_state(model, stream.num_nodes)
    batch = tiny.preparer(stream, model.history, 20).prepare(0, np.zeros((20, 30), np.int32))
    memory_UD = torch.ones(len(batch.node_U), 32)

    def rows() -> torch.Tensor:
        return model.encode(batch, memory_UD, memory_UD).seed_SD

    del state
    first, second = rows(), rows()
    assert torch.equal(first, second)
    dropped = first == 0
    assert 0.15 < dropped.float().mean() < 0.35
    model.eval()
    assert not (rows() == 0).any()
    torch.testing.assert_close(first[~dropped] * 0.75, rows()[~dropped])
