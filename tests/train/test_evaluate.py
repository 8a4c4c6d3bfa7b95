"""Evaluation: the right state, the right history, and figures that do not depend on how it is cut.

The tiny graph that most tests here use (time runs to the right, one event a column):

    time        0   1   2   3   4   5 |  6   7 |  8   9  10  11
                0-4 1-5 2-6 3-4 0-5 1-6|2-4 3-5| 0-6 1-4 2-5 0-4
                        train         | val   |      test
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tidegraph.batches.negatives import Candidates, FixedNegatives
from tidegraph.errors import SettingError
from tidegraph.events import Events
from tidegraph.models import TemporalModel
from tidegraph.state import NodeState
from tidegraph.train import (
    EagerExecutor,
    EvaluationPlan,
    Run,
    Stream,
    TrainSettings,
    evaluate,
    evaluation_plan,
)
from tidegraph.train.metrics import average_precision, roc_auc
from tidegraph.train.stream import Part
from training import Diary, chatter, fit, held_out, small_tgn

EVENTS = chatter()
SOURCE = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 0]
TARGET = [4, 5, 6, 4, 5, 6, 4, 5, 6, 4, 5, 4]


def drawn() -> Events:
    """The graph drawn above."""
    return drawn_with(SOURCE, TARGET)


def drawn_with(source: list[int], target: list[int]) -> Events:
    """The same times and features."""
    features = np.arange(24.0).reshape(12, 2)
    return Events.from_arrays(source, target, np.arange(12), features=features)


def model_of(events: Events, **settings: Any) -> TemporalModel:
    """Without dropout and with weights that matter."""
    model = small_tgn(events, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


class Given:
    """Candidates as given, one row per event of the stream."""

    def __init__(self, node_EC: np.ndarray) -> None:
        self.node_EC = node_EC.astype(np.int32)

    def candidates(self, start: int, stop: int, *, count: int) -> Candidates:
        return Candidates(self.node_EC[start:stop])

    def describe(self, count: int) -> str:
        return f"{self.node_EC.shape[1]} given candidates"


def opened(
    events: Events, model: TemporalModel, *parts: tuple[str, int, int, int]
) -> tuple[Stream, NodeState]:
    """A stream with (name, start, stop, batch size) parts, and an empty state."""
    stream = Stream.open(events, tuple(Part(*part) for part in parts), model.history)
    return stream, NodeState(events.schema.num_nodes, model.memory_width)


def advance(stream: Stream, state: NodeState, model: TemporalModel, *phases: str) -> None:
    """Execute phases batch by batch, scoring one arbitrary negative each."""
    executor = EagerExecutor(model.eval(), state)
    for phase in phases:
        for number in stream.phase(phase).batches:
            negative_BC = np.full((len(stream.plan.events(number)), 1), 6, np.int32)
            executor.score(stream.preparer.prepare(number, negative_BC))


def candidates_of(events: Events, count: int, seed: int = 0) -> np.ndarray:
    shape = (len(events), count)
    return np.random.default_rng(seed).integers(0, events.schema.num_nodes, shape)


# ---------------------------------------------------------------- against a loop


def test_figures_are_those_of_a_loop_over_events():
    """One event, one candidate at a time, from the state before the event's batch."""
    model = model_of(EVENTS)
    stream, state = opened(EVENTS, model, ("train", 0, 80, 20), ("val", 80, 120, 16))
    advance(stream, state, model, "train")
    pair_E1, rank_EC = candidates_of(EVENTS, 1), candidates_of(EVENTS, 7, seed=1)
    by_hand = state.clone()
    found = evaluate(model, state, stream, "val", EvaluationPlan(Given(pair_E1), Given(rank_EC), 7))

    ranks, precisions, areas = [], [], []
    executor = EagerExecutor(model.eval(), by_hand)

    def score(number: int, row: int, candidate: int) -> np.ndarray:
        """[2]: the positive of one event and one candidate."""
        negative = np.zeros((len(stream.plan.events(number)), 1), np.int32)
        negative[row] = candidate
        return executor.score(stream.preparer.prepare(number, negative), write=False)[row]

    for number in stream.phase("val").batches:
        pairs, event_B = [], stream.plan.events(number)
        for row, event in enumerate(event_B):
            two_C2 = np.array([score(number, row, int(node)) for node in rank_EC[event]])
            level = np.abs(two_C2[:, 1] - two_C2[:, 0]) < 1e-6
            ranks.append(1 + ((two_C2[:, 1] > two_C2[:, 0]) & ~level).sum() + 0.5 * level.sum())
            pairs.append(score(number, row, int(pair_E1[event, 0])))
        label = np.tile([1, 0], len(event_B))
        precisions.append(average_precision(label, np.concatenate(pairs)))
        areas.append(roc_auc(label, np.concatenate(pairs)))
        executor.score(stream.preparer.prepare(number, np.zeros((len(event_B), 1), np.int32)))
    assert found.metrics["MRR"].value == pytest.approx(np.mean(1 / np.array(ranks)), abs=1e-12)
    assert found.metrics["Hits@3"].value == np.mean(np.array(ranks) <= 3)
    assert found.metrics["AP"].value == pytest.approx(np.mean(precisions), abs=1e-12)
    assert found.metrics["AUC"].value == pytest.approx(np.mean(areas), abs=1e-12)
    assert found.metrics["MRR"].count == 40
    assert state.version == by_hand.version


@pytest.mark.parametrize("most", [1, 13, 40, 10**6])
@pytest.mark.parametrize("frozen", [False, True])
def test_cutting_candidates_into_pieces_changes_nothing(monkeypatch, most, frozen):
    """A table of candidates too large to score at once is scored in turn; one piece writes."""
    import sys

    monkeypatch.setattr(sys.modules["tidegraph.train.evaluate"], "_MOST_ROOTS", most)
    model = model_of(EVENTS)
    stream, state = opened(EVENTS, model, ("train", 0, 80, 20), ("val", 80, 120, 16))
    advance(stream, state, model, "train")
    plan = EvaluationPlan(Given(candidates_of(EVENTS, 1)), Given(candidates_of(EVENTS, 9)), 9)
    whole = state.clone()
    found = evaluate(model, state, stream, "val", replace(plan, frozen=frozen))
    monkeypatch.undo()
    expected = evaluate(model, whole, stream, "val", replace(plan, frozen=frozen))
    assert found.metrics == expected.metrics
    assert state.version == whole.version
    assert torch.allclose(state.memory_ND, whole.memory_ND, atol=1e-6)


def test_the_order_of_negatives_changes_nothing():
    model = model_of(EVENTS)
    rank_EC = candidates_of(EVENTS, 9)
    shuffled = np.random.default_rng(2).permuted(rank_EC, axis=1)
    assert (shuffled != rank_EC).any()
    results = []
    for given in (rank_EC, shuffled):
        stream, state = opened(EVENTS, model, ("train", 0, 80, 20), ("val", 80, 120, 16))
        advance(stream, state, model, "train")
        plan = EvaluationPlan(Given(candidates_of(EVENTS, 1)), Given(given), 9)
        results.append(evaluate(model, state, stream, "val", plan))
    assert results[0].metrics == results[1].metrics


def test_candidates_from_a_file_are_used_as_they_are(tmp_path):
    """Cases I33 and I34: a padded slot is no candidate; a missing event is named."""
    events = drawn()
    rows = np.arange(8, 12)
    lists = np.array([[4, 5], [5, 6], [4, 6], [5, 6]])
    np.savez(tmp_path / "negatives.npz", row=rows, candidate=lists)
    model = model_of(events)
    stream, state = opened(events, model, ("train", 0, 8, 3), ("test", 8, 12, 4))
    advance(stream, state, model, "train")
    table = np.zeros((12, 2), np.int64)
    table[8:] = lists
    fixed = FixedNegatives.read(tmp_path / "negatives.npz", events)
    results = [
        evaluate(model, state.clone(), stream, "test", EvaluationPlan(None, source, 2)).metrics
        for source in (fixed, Given(table))
    ]
    assert results[0].values() == results[1].values()
    assert "prepared destinations" in results[0]["MRR"].protocol
    np.savez(tmp_path / "short.npz", row=rows[:3], candidate=lists[:3])
    short = FixedNegatives.read(tmp_path / "short.npz", events)
    with pytest.raises(Exception, match=r"no candidates for event row 11 \(source 0, target 4"):
        evaluate(model, state.clone(), stream, "test", EvaluationPlan(None, short, 2))


# ---------------------------------------------------------------- which state


def test_validation_goes_on_from_training_and_test_from_validation():
    """Pitfall 16, in the graph drawn above."""
    events = drawn()
    model = model_of(events)
    stream, state = opened(events, model, ("train", 0, 6, 2), ("val", 6, 8, 2), ("test", 8, 12, 2))
    straight = state.clone()
    advance(stream, straight, model, "train", "val", "test")
    advance(stream, state, model, "train")
    plan = EvaluationPlan(Given(candidates_of(events, 1)), Given(candidates_of(events, 3)), 3)
    for phase in ("val", "test"):
        evaluate(model, state, stream, phase, plan)
    assert state.version == straight.version == 6
    assert torch.allclose(state.memory_ND, straight.memory_ND, atol=1e-6)
    assert torch.allclose(state.mail_ND, straight.mail_ND, atol=1e-6)


def test_the_test_starts_at_the_end_of_the_best_epochs_validation(tmp_path):
    """Not at the last epoch's, and not at the end of training."""
    run = fit(EVENTS, tmp_path, epochs=3)
    assert run.best_epoch == 1
    best = fit(EVENTS, epochs=2)
    assert run.state.version == len(run.stream.plan) == 6
    assert run.state.checksum() == best.state.checksum()
    assert run.evaluate(held_out(EVENTS)).metrics == best.evaluate(held_out(EVENTS)).metrics


def test_evaluation_does_not_depend_on_earlier_evaluations():
    """Pitfall 18: the same figures however often, and after others."""
    run = fit(EVENTS)
    part = held_out(EVENTS)
    first = run.evaluate(part)
    run.evaluate(part, candidates=2)
    run.evaluate(EVENTS.range(110, 115))
    run.predict([(0, 1)])
    run.embed()
    again = run.evaluate(part)
    assert again.metrics == first.metrics
    assert again.state.checksum() == first.state.checksum()
    assert run.stream.stop == 104


def test_evaluating_does_not_change_training(monkeypatch):
    """Ranking candidates in each epoch costs time, not bits of the weights."""
    plain, ranked = fit(EVENTS), fit(EVENTS, metric="MRR", patience=0)
    assert [r.loss for r in plain.records] == [r.loss for r in ranked.records]
    assert {"MRR", "Hits@10"} <= set(ranked.records[0].metrics)


def test_the_model_is_left_in_the_mode_it_was_in():
    events = drawn()
    model = model_of(events)
    stream, state = opened(events, model, ("train", 0, 6, 2), ("val", 6, 8, 2))
    advance(stream, state, model, "train")
    for training in (True, False):
        model.train(training)
        evaluate(model, state.clone(), stream, "val", EvaluationPlan(None))
        assert model.training is training


# ---------------------------------------------------------------- which history (case I42)


def scored_test(events: Events, frozen: bool) -> tuple[Any, np.ndarray, NodeState]:
    """Of the drawn graph's test part, batch by batch of one: figures, logits, end state."""
    model = model_of(events)
    stream, state = opened(events, model, ("train", 0, 8, 2), ("test", 8, 12, 1))
    advance(stream, state, model, "train")
    plan = EvaluationPlan(None, Given(np.tile([4, 5, 6], (12, 1))), 3, frozen=frozen)
    scores: list[np.ndarray] = []
    real = EagerExecutor.score

    def watch(self: EagerExecutor, batch: Any, *, write: bool = True) -> np.ndarray:
        scores.append(real(self, batch, write=write))
        return scores[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EagerExecutor, "score", watch)
        found = evaluate(model, state, stream, "test", plan, joint=False)
    return found, np.concatenate(scores), state


def test_frozen_and_streaming_history_are_two_named_protocols():
    """May the event at 11 (0-4) see those at 8 (0-6) and 9 (1-4)? Streaming yes, frozen no."""
    (streaming, scores, state), (frozen, still, after) = (
        scored_test(drawn(), frozen) for frozen in (False, True)
    )
    assert "streaming history" in streaming.metrics["MRR"].protocol
    assert "history frozen at the split" in frozen.metrics["MRR"].protocol
    assert scores[0].tolist() == still[0].tolist(), "the first test event sees the same history"
    assert scores[3].tolist() != still[3].tolist()

    # Other events at 8 and 9 change the streaming score of 11, never the frozen one.
    source, target = SOURCE.copy(), TARGET.copy()
    source[8:10], target[8:10] = [3, 2], [5, 6]
    other = drawn_with(source, target)
    (_, other_scores, _), (_, other_still, _) = (
        scored_test(other, frozen) for frozen in (False, True)
    )
    assert other_scores[3].tolist() != scores[3].tolist()
    assert other_still[3].tolist() == pytest.approx(still[3].tolist(), abs=1e-6)

    # Either way the state has moved past the phase: what follows starts from it.
    assert state.version == after.version == 8
    assert torch.allclose(state.memory_ND, after.memory_ND, atol=1e-6)


def test_a_run_with_frozen_history_goes_on_to_the_test():
    run = fit(EVENTS, history="frozen")
    assert "history frozen" in run.records[0].protocols["AP"]
    assert run.state.version == len(run.stream.plan)
    found = run.evaluate(held_out(EVENTS), advance=True)
    assert "history frozen" in found.metrics["MRR"].protocol
    assert run.state.version == len(run.stream.plan)
    assert run.predict([(0, 1)]).score.shape == (1,)


def test_streaming_is_the_default():
    assert TrainSettings().history == "streaming"
    assert not EvaluationPlan(None).frozen


# ---------------------------------------------------------------- inductive (case I41)


def inductive_run() -> tuple[Run, np.ndarray]:
    split = EVENTS.split(val=0.2, test=0.13, ties="row", hidden_nodes=0.25)
    assert split.hidden_nodes is not None
    return fit(EVENTS, hidden=0.25), split.hidden_nodes


def test_inductive_figures_are_over_events_with_a_hidden_node():
    run, hidden = inductive_run()
    part = held_out(EVENTS, hidden=0.25)
    found = run.evaluate(part)
    assert found.inductive is not None
    touched = part.touches(hidden)
    assert found.metrics["MRR"].count == 16
    assert 0 < found.inductive["MRR"].count == int(touched.sum()) < 16
    assert "inductive (events with a node unseen in training)" in found.inductive["AP"].protocol
    assert "transductive" in found.metrics["AP"].protocol
    assert set(run.records[0].inductive) == set(run.records[0].metrics)


def test_the_inductive_set_is_seeded():
    one, other = (EVENTS.split(hidden_nodes=0.25, seed=seed).hidden_nodes for seed in (0, 1))
    assert (one == EVENTS.split(hidden_nodes=0.25, seed=0).hidden_nodes).all()
    assert (one != other).any()


def test_no_training_event_touches_a_hidden_node(monkeypatch):
    """Not as an event, not as a negative, not as a neighbour, not in memory."""
    split = EVENTS.split(val=0.2, test=0.13, ties="row", hidden_nodes=0.25)
    hidden = split.hidden_nodes
    batches: list[Any] = []
    states: list[np.ndarray] = []
    real = EagerExecutor.train

    def watch(self: EagerExecutor, batch: Any) -> float:
        loss = real(self, batch)
        batches.append(batch.node_U.numpy())
        states.append(self.state.memory_ND[torch.from_numpy(hidden)].abs().sum().item())
        return loss

    monkeypatch.setattr(EagerExecutor, "train", watch)
    fit(EVENTS, hidden=0.25)
    assert not hidden[np.concatenate(batches)].any()
    assert set(states) == {0.0}


def test_hidden_events_could_be_any_others():
    """Pitfall 7: other features, and other partners among the hidden, change no bit of training."""
    split = EVENTS.split(val=0.2, test=0.13, ties="row", hidden_nodes=0.25)
    hidden = split.hidden_nodes
    assert hidden is not None
    position = np.flatnonzero(split.train.touches(hidden))
    features, source = EVENTS.features.copy(), EVENTS.source.copy()
    features[position] = 99
    source[position] = np.flatnonzero(hidden)[0]
    other = Events.from_arrays(
        source, EVENTS.target, EVENTS.time, features=features, num_nodes=12, bipartite=False
    )
    one, another = fit(EVENTS, hidden=0.25), fit(other, hidden=0.25)
    assert [r.loss for r in one.records] == [r.loss for r in another.records]
    assert [r.metrics for r in one.records] == [r.metrics for r in another.records]
    assert one.state.checksum() == another.state.checksum()


def test_without_hidden_nodes_there_are_no_inductive_figures():
    run = fit(EVENTS)
    assert run.evaluate(held_out(EVENTS)).inductive is None
    assert run.records[0].inductive == {}


# ---------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("strategy", "named"),
    [
        ("random", "1 random destination per positive"),
        ("historical", "1 historical destination per positive"),
        ("inductive", "1 inductive destination per positive"),
    ],
)
def test_negatives_are_those_of_the_settings(strategy, named):
    run = fit(EVENTS, negatives=strategy)
    found = run.evaluate(held_out(EVENTS))
    assert named in run.records[0].protocols["AP"]
    assert named in found.metrics["AP"].protocol
    assert "5 random destinations per positive, collisions checked" in found.metrics["MRR"].protocol


def test_pairs_and_ranking_are_drawn_independently():
    run = fit(EVENTS)
    plan = evaluation_plan(run.settings, run.stream)
    assert plan.pairs is not None
    assert plan.ranking is not None
    pair = plan.pairs.candidates(80, 104, count=1).node_BC
    ranked = plan.ranking.candidates(80, 104, count=1).node_BC
    assert 0 < (pair == ranked).sum() < 24


def test_nothing_asked_for_only_moves_the_state():
    events = drawn()
    model = model_of(events)
    stream, state = opened(events, model, ("train", 0, 6, 2), ("val", 6, 8, 2))
    straight = state.clone()
    advance(stream, straight, model, "train", "val")
    advance(stream, state, model, "train")
    found = evaluate(model, state, stream, "val", EvaluationPlan(None))
    assert len(found.metrics) == 0
    assert found.events == 2
    assert torch.allclose(state.memory_ND, straight.memory_ND, atol=1e-6)


def test_candidates_zero_leaves_out_the_ranking():
    run = fit(EVENTS, candidates=0)
    assert "MRR" not in run.evaluate(held_out(EVENTS)).metrics
    assert "MRR" in run.evaluate(held_out(EVENTS), candidates=3).metrics


def test_progress_and_times_are_told():
    run, diary = fit(EVENTS), Diary()
    found = run.evaluate(held_out(EVENTS), listener=diary)
    assert diary.starts == [("test", None, 16)]
    assert diary.ends[0][2]["AP"] == found.metrics["AP"].value
    assert found.seconds > 0
    assert {"prepare", "score"} <= set(found.stages)


def test_a_phase_that_is_not_there_is_named():
    run = fit(EVENTS)
    with pytest.raises(SettingError, match="no phase 'later'"):
        evaluate(run.model, run.state.clone(), run.stream, "later", EvaluationPlan(None))
