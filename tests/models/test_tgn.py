"""TGN equals its equations executed one event at a time in float64 (`plain_tgn`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import tiny
from plain_tgn import PlainTGN
from tidegraph.batches import PreparedBatch
from tidegraph.errors import SettingError
from tidegraph.events import Schema
from tidegraph.models import TGN, build_model
from tidegraph.ops import use_backend
from tidegraph.state import NodeState, VersionError

VARIANTS = [
    {"layers": layers, "message": message, "cell": cell}
    for layers in (1, 2)
    for message in ("last", "mean")
    for cell in ("gru", "rnn")
]


def loss_of(logit_BC: torch.Tensor) -> torch.Tensor:
    label_BC = torch.zeros_like(logit_BC)
    label_BC[:, 0] = 1
    return binary_cross_entropy_with_logits(logit_BC, label_BC)


def check_against_equations(
    stream: tiny.Stream,
    model: TGN,
    batch_size: int,
    *,
    learning_rate: float = 0.0,
    kept: list[int] | None = None,
    **preparation: bool,
) -> None:
    """Scores of every batch, and memory after it, with or without parameter steps between."""
    prep = tiny.preparer(stream, model.history, batch_size, kept=kept, **preparation)
    plain = PlainTGN(stream, model, kept if kept is not None else list(range(len(stream))))
    state = tiny.empty_state(model, stream.num_nodes)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for number in range(len(prep.plan)):
        events = prep.plan.events(number).tolist()
        drawn = tiny.negatives(prep, number, count=2)
        plain.read_weights()
        expected = plain.scores(events, drawn)
        logit_BC = tiny.step(model, state, prep.prepare(number, drawn))
        np.testing.assert_allclose(logit_BC.detach().numpy(), expected, rtol=0, atol=1e-9)
        plain.execute(events)
        stored = np.stack([plain.stored(node) for node in range(stream.num_nodes)])
        np.testing.assert_allclose(state.memory_ND.numpy(), stored, rtol=0, atol=1e-10)
        if learning_rate:
            optimizer.zero_grad()
            loss_of(logit_BC).backward()
            optimizer.step()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
@pytest.mark.parametrize("learning_rate", [0.0, 0.5])
def test_scores_and_memory_equal_the_equations(
    variant: dict[str, Any], learning_rate: float
) -> None:
    stream = tiny.random_stream(3, 26, node_feature_width=2)
    check_against_equations(stream, tiny.tgn(stream, **variant), 6, learning_rate=learning_rate)


@pytest.mark.parametrize("batch_size", [1, 5, 40])
@pytest.mark.parametrize("message", ["last", "mean"])
def test_every_batch_size(batch_size: int, message: str) -> None:
    stream = tiny.random_stream(4, 22, nodes=4)
    check_against_equations(stream, tiny.tgn(stream, message=message), batch_size)


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("visibility", ["event", "batch"])
@pytest.mark.parametrize("window", [None, 6.0])
def test_every_rule_of_history(inclusive: bool, visibility: str, window: float | None) -> None:
    stream = tiny.random_stream(5, 24, nodes=4)
    model = tiny.tgn(
        stream, layers=2, inclusive=inclusive, visibility=visibility, window=window, neighbors=2
    )
    check_against_equations(stream, model, 5)


@given(
    stream=tiny.streams(most_events=14),
    variant=st.sampled_from(VARIANTS),
    batch_size=st.integers(1, 6),
    heads=st.sampled_from([1, 2, 3]),
    hidden=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_any_stream(
    stream: tiny.Stream, variant: dict[str, Any], batch_size: int, heads: int, hidden: bool
) -> None:
    kept = [e for e in range(len(stream)) if not hidden or e % 3 != 1]
    model = tiny.tgn(stream, heads=heads, neighbors=2, **variant)
    check_against_equations(
        stream, model, batch_size, learning_rate=0.1, kept=kept if hidden else None
    )


@pytest.mark.parametrize("preparation", [{"dedup": False}, {"compact": True}], ids=str)
def test_however_it_is_prepared(preparation: dict[str, bool]) -> None:
    stream = tiny.random_stream(6, 24, nodes=4, node_feature_width=1)
    check_against_equations(stream, tiny.tgn(stream, layers=2), 5, **preparation)


def test_reference_operators_give_the_same_model() -> None:
    stream = tiny.random_stream(6, 24, nodes=4)
    for compact in (False, True):
        with use_backend("reference"):
            check_against_equations(
                stream, tiny.tgn(stream, layers=2), 5, learning_rate=0.5, compact=compact
            )


def test_single_precision_is_close_to_the_equations() -> None:
    """The precision that training runs in."""
    stream = tiny.random_stream(7, 30)
    model = tiny.tgn(stream).float()
    prep = tiny.preparer(stream, model.history, 6)
    plain = PlainTGN(stream, model, list(range(30)))
    for number, logit_BC in enumerate(tiny.scores(model, prep)):
        assert logit_BC.dtype == torch.float32
        events = prep.plan.events(number).tolist()
        expected = plain.scores(events, tiny.negatives(prep, number))
        np.testing.assert_allclose(logit_BC.numpy(), expected, rtol=0, atol=1e-5)
        plain.execute(events)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_gradient_is_the_slope_of_the_equations(variant: dict[str, Any]) -> None:
    """Move all parameters along a random direction: the oracle's loss changes by gradient .
    direction. Memory is a constant here, as in training (truncated backpropagation)."""
    stream = tiny.random_stream(8, 18, nodes=4, node_feature_width=2)
    model = tiny.tgn(stream, **variant)
    prep = tiny.preparer(stream, model.history, 6)
    plain = PlainTGN(stream, model, list(range(18)))
    state = tiny.empty_state(model, stream.num_nodes)
    with torch.no_grad():
        for number in range(2):
            tiny.step(model, state, prep.prepare(number, tiny.negatives(prep, number)))
            plain.execute(prep.plan.events(number).tolist())
    drawn = tiny.negatives(prep, 2)
    model.zero_grad()
    loss_of(tiny.step(model, state, prep.prepare(2, drawn))).backward()

    torch.manual_seed(1)
    direction = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    slope = sum(
        float((p.grad * direction[name]).sum())
        for name, p in model.named_parameters()
        if p.grad is not None
    )
    assert all(p.grad is not None for p in model.parameters())
    center, losses, size = dict(plain.weights), [], 1e-6
    for sign in (1, -1):
        plain.weights = {n: w + sign * size * direction[n].numpy() for n, w in center.items()}
        scores = torch.from_numpy(plain.scores(prep.plan.events(2).tolist(), drawn))
        losses.append(float(loss_of(scores)))
    assert (losses[0] - losses[1]) / (2 * size) == pytest.approx(slope, rel=1e-5, abs=1e-7)


# ---------------------------------------------------------------- deduplication


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("precision", "forward", "backward"),
    [(torch.float64, 1e-13, 1e-12), (torch.float32, 1e-6, 1e-6)],
    ids=["float64", "float32"],
)
def test_deduplication_changes_nothing(
    layers: int, precision: torch.dtype, forward: float, backward: float
) -> None:
    """The same rows are computed once or often: scores and memory are the same numbers (float64
    shows it), gradients differ by the order of their sums alone."""
    stream = tiny.random_stream(9, 40, nodes=4, node_feature_width=2)
    events = stream.events()
    assert events.features is not None
    object.__setattr__(events, "features", events.features / np.float32(len(stream)))
    model = tiny.tgn(stream, layers=layers).to(precision)
    states = [tiny.empty_state(model, stream.num_nodes) for _ in range(2)]
    preparers = [tiny.preparer(events, model.history, 10, dedup=dedup) for dedup in (True, False)]
    for number in range(4):
        logits, grads = [], []
        for state, prep in zip(states, preparers, strict=True):
            model.zero_grad()
            batch = prep.prepare(number, tiny.negatives(prep, number))
            logits.append(tiny.step(model, state, batch))
            loss_of(logits[-1]).backward()
            grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        assert float((logits[0] - logits[1]).detach().abs().max()) <= forward
        assert float((states[0].memory_ND - states[1].memory_ND).abs().max()) <= forward
        for one, other in zip(*grads, strict=True):
            assert float((one - other).abs().max()) <= backward * max(1.0, float(other.abs().max()))


# ---------------------------------------------------------------- memory, one fact at a time


def run(stream: tiny.Stream, model: TGN, batch_size: int) -> tuple[list[PreparedBatch], NodeState]:
    prep = tiny.preparer(stream, model.history, batch_size)
    state = tiny.empty_state(model, stream.num_nodes)
    batches = []
    with torch.no_grad():
        for number in range(len(prep.plan)):
            batch = prep.prepare(number, tiny.negatives(prep, number))
            tiny.step(model, state, batch)
            batches.append(batch)
    return batches, state


def test_memory_lags_its_message_by_one_batch() -> None:
    """I44: an event leaves a message; the message enters memory when its node next takes part.

    0 --1-- 1      then      0 --2-- 2
    """
    stream = tiny.Stream([0, 0], [1, 2], [1, 2], 4)
    model = tiny.tgn(stream)
    prep = tiny.preparer(stream, model.history, 1)
    state = tiny.empty_state(model, 4)
    with torch.no_grad():
        tiny.step(model, state, prep.prepare(0, tiny.negatives(prep, 0)))
        assert not state.memory_ND.any()  # the message of event 0 waits
        batch = prep.prepare(1, tiny.negatives(prep, 1))
        assert batch.mail is not None
        waiting = batch.node_U[batch.mail.row_M.long()].tolist()
        assert set(waiting) <= {0, 1}
        assert 0 in waiting
        tiny.step(model, state, batch)
    assert state.memory_ND[0].all()  # node 0 took part again: applied and persisted
    assert not state.memory_ND[1].any()  # node 1 did not: still waiting
    assert not state.memory_ND[2].any()  # node 2 had no message before
    assert not state.memory_ND[3].any()


def test_pending_messages_are_seen_by_a_query_after_the_stream() -> None:
    """I44: reading the nodes after the last batch applies what waits: 0 and 1, not 2."""
    stream = tiny.Stream([0], [1], [1], 3)
    model = tiny.tgn(stream)
    prep = tiny.preparer(stream, model.history, 1)
    state = tiny.empty_state(model, 3)
    with torch.no_grad():
        tiny.step(model, state, prep.prepare(0, tiny.negatives(prep, 0)))
        query = prep.prepare_query(
            np.array([0], np.int32), np.array([[1, 2]], np.int32), np.array([5], np.int64)
        )
        encoded = model.encode(query, *state.read(query))
    assert encoded.memory_UD is not None
    now = dict(zip(query.node_U.tolist(), encoded.memory_UD, strict=True))
    assert now[0].all()
    assert now[1].all()
    assert not now[2].any()


def test_each_message_is_applied_exactly_once() -> None:
    """Pitfall 13. Node 0 meets 1, then 2, then 3; its stored memory is GRU once, then twice, of
    its two first messages, however often 0 is merely read in between."""
    stream = tiny.Stream([0, 4, 0, 4, 0], [1, 5, 2, 5, 3], [1, 2, 3, 4, 5], 6)
    model = tiny.tgn(stream)
    prep = tiny.preparer(stream, model.history, 1)
    state = tiny.empty_state(model, 6)
    plain = PlainTGN(stream, model, list(range(5)))
    seen = []
    with torch.no_grad():
        for number in range(5):
            # Node 0 is a negative of every batch: read, updated for the score, not persisted.
            batch = prep.prepare(number, np.array([[0]], np.int32))
            tiny.step(model, state, batch)
            seen.append(state.memory_ND[0].clone())
    first = plain.cell(
        np.concatenate([np.zeros(8), plain.features(0), plain.time_code(0.0)]), np.zeros(4)
    )
    second = plain.cell(
        np.concatenate([first, np.zeros(4), plain.features(2), plain.time_code(2.0)]), first
    )
    for number, expected in enumerate([np.zeros(4), np.zeros(4), first, first, second]):
        np.testing.assert_allclose(seen[number].numpy(), expected, atol=1e-12)


def test_only_endpoints_are_persisted() -> None:
    """I45: neighbours and negatives are updated for the computation alone."""
    stream = tiny.random_stream(10, 30, nodes=12)
    model = tiny.tgn(stream, layers=2)
    prep = tiny.preparer(stream, model.history, 3)
    state = tiny.empty_state(model, 12)
    touched_more = 0
    with torch.no_grad():
        for number in range(len(prep.plan)):
            before = state.clone()
            batch = prep.prepare(number, tiny.negatives(prep, number))
            tiny.step(model, state, batch)
            events = batch.event_B.tolist()
            ends = {n for e in events for n in (stream.source[e], stream.target[e])}
            others = [n for n in range(12) if n not in ends]
            touched_more += len(set(batch.node_U.tolist()) - ends)
            assert torch.equal(state.memory_ND[others], before.memory_ND[others])
            assert torch.equal(state.mail_ND[others], before.mail_ND[others])
    assert touched_more > 20  # the batches did involve other nodes


def test_a_neighbor_brings_its_latest_message() -> None:
    """I45: node 1 as neighbour of 2 is read with the message of its event (0, 1) applied.

    1 --1-- 2      0 --2-- 1      then score (2, 3) at t = 3
    """
    stream = tiny.Stream([1, 0, 2], [2, 1, 3], [1, 2, 3], 4)
    other = tiny.Stream([1, 0, 2], [2, 0, 3], [1, 2, 3], 4)  # event 1 does not touch node 1
    model = tiny.tgn(stream)
    scores = [
        tiny.scores(model, tiny.preparer(s, model.history, 1), [np.array([[0]], np.int32)] * 3)
        for s in (stream, other)
    ]
    assert not torch.isclose(scores[0][2][0, 0], scores[1][2][0, 0], atol=1e-6)


def test_without_mail_memory_is_what_it_was() -> None:
    """Pitfall 14: node 5 never took part: its memory stays exactly zero inside the computation."""
    stream = tiny.Stream([0, 0], [1, 1], [1, 2], 6)
    model = tiny.tgn(stream)
    prep = tiny.preparer(stream, model.history, 1)
    state = tiny.empty_state(model, 6)
    with torch.no_grad():
        for number in range(2):
            batch = prep.prepare(number, np.array([[5]], np.int32))
            encoded = model.encode(batch, *state.read(batch))
            assert encoded.memory_UD is not None
            row = batch.node_U.tolist().index(5)
            assert not encoded.memory_UD[row].any()
            state.write(batch, encoded.memory_UD)


def test_batches_out_of_order_or_twice_are_refused() -> None:
    stream = tiny.random_stream(0, 12)
    model = tiny.tgn(stream)
    prep = tiny.preparer(stream, model.history, 4)
    state = tiny.empty_state(model, stream.num_nodes)
    batch = [prep.prepare(b, tiny.negatives(prep, b)) for b in range(3)]
    with torch.no_grad():
        tiny.step(model, state, batch[0])
        with pytest.raises(VersionError, match=r"batch 0 needs state version 0.*at version 1"):
            tiny.step(model, state, batch[0])
        with pytest.raises(VersionError, match=r"batch 2 needs state version 2.*at version 1"):
            tiny.step(model, state, batch[2])
        tiny.step(model, state, batch[1])
    assert state.version == 2


# ---------------------------------------------------------------- what reaches the score


def scores_of(stream: tiny.Stream, model: TGN, events: Any = None) -> torch.Tensor:
    """Scores of the last event and of node 0 as its negative, batch size 1."""
    prep = tiny.preparer(events if events is not None else stream, model.history, 1)
    return tiny.scores(model, prep, [np.array([[0]], np.int32)] * len(prep.plan))[-1]


def test_query_time_matters() -> None:
    """I46: the same pair after the same history, early and late."""
    early = tiny.Stream([0, 1, 0], [1, 2, 2], [1, 2, 10], 3)
    late = tiny.Stream([0, 1, 0], [1, 2, 2], [1, 2, 10_000], 3)
    model = tiny.tgn(early)
    assert not torch.isclose(scores_of(early, model), scores_of(late, model), atol=1e-4).any()


@pytest.mark.parametrize("node", [0, 1, 2])
def test_a_neighbors_features_reach_the_root(node: int) -> None:
    """I47 and I23: change one node's features (node 0's too): whoever has it as neighbour, or is
    it, gets another score; with the neighbour's edge gone the score does not change.

        0 --1-- 1      2 --2-- 3      then score (1, 3) at t = 5
    """
    stream = tiny.Stream([0, 2, 1], [1, 3, 3], [1, 2, 5], 4, node_feature_width=2)
    model = tiny.tgn(stream)
    events = stream.events()
    assert events.node_features is not None
    changed = tiny.Stream(stream.source, stream.target, stream.time, 4, node_feature_width=2)
    features = events.node_features.copy()
    features[node] += 3.0
    other = changed.events()
    object.__setattr__(other, "node_features", features)
    before, after = (scores_of(stream, model, e)[0, 0] for e in (events, other))
    assert abs(float(before - after)) > 1e-6
    if node != 1:
        # Without neighbours (k would find none within the window) the root is alone.
        alone = tiny.tgn(stream, window=0.0)
        before, after = (scores_of(stream, alone, e)[0, 0] for e in (events, other))
        assert torch.equal(before, after)


@pytest.mark.parametrize("event", [0, 1, 2])
def test_every_events_features_reach_what_follows(event: int) -> None:
    """I24: the first and the last event's features count, through neighbours and mail."""
    stream = tiny.Stream([0, 1, 0, 0], [1, 2, 2, 1], [1, 2, 3, 9], 3)
    model = tiny.tgn(stream)
    events, other = stream.events(), stream.events()
    assert events.features is not None
    features = events.features.copy()
    features[event] += 2.0
    object.__setattr__(other, "features", features)
    before, after = (scores_of(stream, model, e) for e in (events, other))
    assert not torch.isclose(before, after, atol=1e-7).any()
    own = events.features.copy()
    own[3] += 2.0  # the scored event's own features do not
    object.__setattr__(other, "features", own)
    assert torch.equal(scores_of(stream, model, other), before)


@pytest.mark.parametrize("event_width", [0, 1, 3])
@pytest.mark.parametrize("node_width", [0, 1, 3])
@pytest.mark.parametrize("layers", [1, 2])
def test_training_steps_with_any_features(event_width: int, node_width: int, layers: int) -> None:
    """I51: none, edge only, node only, both; widths 1 and 3."""
    stream = tiny.random_stream(11, 24, feature_width=event_width, node_feature_width=node_width)
    model = tiny.tgn(stream, layers=layers).float()
    prep = tiny.preparer(stream, model.history, 6)
    state = tiny.empty_state(model, stream.num_nodes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    before = [p.detach().clone() for p in model.parameters()]
    for number in range(4):  # memory is zero, and W_hh untouched, until the third batch
        optimizer.zero_grad()
        loss = loss_of(tiny.step(model, state, prep.prepare(number, tiny.negatives(prep, number))))
        assert torch.isfinite(loss)
        loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
        optimizer.step()
    changed = [not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)]
    assert all(changed)


@pytest.mark.parametrize("cell", ["gru", "rnn"])
@pytest.mark.parametrize("size", [1e6, -1e6])
def test_finite_input_gives_finite_output_and_gradients(cell: str, size: float) -> None:
    """I53: a feature of 1e6, and node 3 of degree 0 as a negative."""
    stream = tiny.random_stream(12, 20, nodes=3)
    events = stream.events()
    assert events.features is not None
    features = events.features.copy()
    features[::4] = size
    object.__setattr__(events, "features", features)
    model = tiny.tgn(tiny.Stream(stream.source, stream.target, stream.time, 4), cell=cell).float()
    events = tiny.Stream(stream.source, stream.target, stream.time, 4).events()
    object.__setattr__(events, "features", features)
    prep = tiny.preparer(events, model.history, 5)
    state = tiny.empty_state(model, 4)
    for number in range(4):
        batch = prep.prepare(number, np.full((5, 1), 3, np.int32))
        logit_BC = tiny.step(model, state, batch)
        assert torch.isfinite(logit_BC).all()
        loss_of(logit_BC).backward()
    assert torch.isfinite(state.memory_ND).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_an_unseen_node_is_scored_from_zero_state() -> None:
    """I52: no event, no memory, no neighbours: a score all the same."""
    stream = tiny.Stream([0, 1], [1, 2], [1, 2], 9)
    model = tiny.tgn(stream)
    logit_BC = tiny.scores(
        model, tiny.preparer(stream, model.history, 2), [np.array([[7], [8]], np.int32)]
    )[0]
    assert torch.isfinite(logit_BC).all()


@pytest.mark.parametrize(
    "option",
    [
        {"layers": 2},
        {"message": "mean"},
        {"cell": "rnn"},
        {"heads": 3},
        {"neighbors": 1},
        {"strategy": "uniform", "neighbors": 2},
        {"window": 2.0},
        {"inclusive": True},
        {"visibility": "batch"},
    ],
    ids=str,
)
def test_every_setting_has_an_effect(option: dict[str, Any]) -> None:
    """I49: two configurations that differ give different scores from one seed."""
    stream = tiny.random_stream(13, 40, nodes=4)
    base = {"neighbors": 2} if option.get("strategy") else {}
    plain, changed = tiny.tgn(stream, **base), tiny.tgn(stream, **option)
    found = [
        torch.cat(tiny.scores(model, tiny.preparer(stream, model.history, 10)))
        for model in (plain, changed)
    ]
    assert not torch.allclose(found[0], found[1], atol=1e-6)


def test_time_code_is_trained_on_request() -> None:
    stream = tiny.random_stream(13, 12)
    for kind, trained in (("fixed", False), ("trainable", True)):
        model = tiny.tgn(stream, time_code=kind)
        assert [p.requires_grad for p in model.time_code.parameters()] == [trained] * 2
        prep = tiny.preparer(stream, model.history, 12)
        state = tiny.empty_state(model, stream.num_nodes)
        loss_of(tiny.step(model, state, prep.prepare(0, tiny.negatives(prep, 0)))).backward()
        assert [p.grad is not None for p in model.time_code.parameters()] == [trained] * 2
        check_against_equations(stream, model, 5, learning_rate=0.5)


def test_dropout_acts_in_training_only_and_follows_the_batch_key() -> None:
    stream = tiny.random_stream(14, 20)
    model = tiny.tgn(stream, dropout=0.5)
    prep = tiny.preparer(stream, model.history, 10)
    state = tiny.empty_state(model, stream.num_nodes)
    state.version = 1
    memory = torch.randn_like(state.memory_ND)
    state.memory_ND = memory

    def logits(training: bool, epoch: int) -> torch.Tensor:
        batch = prep.prepare(1, tiny.negatives(prep, 1), epoch=epoch)
        model.train(training)
        with torch.no_grad():
            return model(batch, *state.read(batch))[0]

    assert torch.equal(logits(True, 0), logits(True, 0))
    assert not torch.allclose(logits(True, 0), logits(True, 1))
    assert torch.equal(logits(False, 0), logits(False, 1))
    assert not torch.allclose(logits(True, 0), logits(False, 0))


def test_training_twice_from_one_seed_is_equal_bit_for_bit() -> None:
    stream = tiny.random_stream(15, 60, nodes=8)

    def train() -> tuple[list[torch.Tensor], str]:
        model = tiny.tgn(stream, dropout=0.2, layers=2).float()
        prep = tiny.preparer(stream, model.history, 10)
        state = tiny.empty_state(model, stream.num_nodes)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        model.train()
        for number in range(len(prep.plan)):
            optimizer.zero_grad()
            batch = prep.prepare(number, tiny.negatives(prep, number))
            loss_of(tiny.step(model, state, batch)).backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()], state.checksum()

    first, second = train(), train()
    assert first[1] == second[1]
    assert all(torch.equal(p, q) for p, q in zip(first[0], second[0], strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 3}, "layers=3.*1 or 2"),
        ({"layers": 0}, "layers=0.*1 or 2"),
        ({"heads": 4}, "embedding=6 is not divisible by heads=4"),
        ({"cell": "lstm"}, "'lstm'.*'gru' or 'rnn'"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        tiny.tgn(tiny.random_stream(0, 5), **options)


def test_initial_weights_derive_from_the_seed_not_from_the_global_generator() -> None:
    schema = Schema(num_nodes=4, num_sources=4, bipartite=False)

    def weights(model: nn.Module) -> torch.Tensor:
        return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])

    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = TGN(schema, memory=4, time=4, embedding=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    sizes = {"memory": 4, "time": 4, "embedding": 4}
    assert torch.equal(weights(first), weights(TGN(schema, memory=4, time=4, embedding=4)))
    assert torch.equal(weights(first), weights(build_model("tgn", schema, seed=0, **sizes)))
    assert not torch.equal(weights(first), weights(build_model("tgn", schema, seed=1, **sizes)))
