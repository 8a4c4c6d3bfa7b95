"""Users' cases that need a whole training run: leaks, chance levels, lag, labels, memory use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tidegraph as tg
from tidegraph.batches import Preparer
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.errors import NoLegalNegativeError
from tidegraph.events import Events, load_dataset
from tidegraph.models import TGN
from tidegraph.models.base import Encoded
from tidegraph.state import NodeState
from tidegraph.train import EagerExecutor, Evaluation, Listener, Run, Stream, TrainSettings
from tidegraph.train.joint import JOINT_BYTES
from tidegraph.train.stream import Part
from training import Forgetful, Stopped, chatter, fit, held_out, outcome, small_tgn


def chance(candidates: int) -> float:
    """Mean of 1 / rank of a scorer that knows nothing."""
    return float(np.mean(1 / np.arange(1, candidates + 2)))


# ---------------------------------------------------------------- leaks


def bipartite(target_of: Callable[[np.random.Generator, np.ndarray], np.ndarray]) -> Events:
    """2,400 events of 30 sources and 100 items, drawn by `target_of`."""
    draw = np.random.default_rng(1)
    source = draw.integers(0, 30, 2400)
    return Events.from_arrays(
        source, 30 + target_of(draw, source), np.arange(2400), num_nodes=130, num_sources=30
    )


def figures(events: Events) -> tuple[Evaluation, int]:
    run = fit(events, batch_size=100, evaluation_batch_size=100, candidates=20, epochs=2)
    part = held_out(events)
    return run.evaluate(part), len(part)


def test_a_stream_without_signal_scores_at_chance():
    """Case I43: the destination is uniform over 100 items. More than chance would be a leak.

    Limits are four standard deviations of a scorer that knows nothing.
    """
    found, count = figures(bipartite(lambda draw, source: draw.integers(0, 100, len(source))))
    deviation = 1 / np.sqrt(6 * count)  # of the AUC over as many positives as negatives
    assert found.metrics["AUC (all events)"].value == pytest.approx(0.5, abs=4 * deviation)
    rank_deviation = np.std(1 / np.arange(1, 22)) / np.sqrt(count)
    assert found.metrics["MRR"].value == pytest.approx(chance(20), abs=4 * rank_deviation)
    assert "20 random destinations per positive" in found.metrics["MRR"].protocol


def test_the_same_training_finds_a_signal():
    """Otherwise the test above would pass with a model that learns nothing."""

    def favourites(draw: np.random.Generator, source: np.ndarray) -> np.ndarray:
        chosen = draw.random(len(source)) < 0.9
        return np.where(
            chosen, draw.integers(0, 5, len(source)), draw.integers(0, 100, len(source))
        )

    found, _ = figures(bipartite(favourites))
    assert found.metrics["AUC (all events)"].value > 0.8
    assert found.metrics["MRR"].value > 2 * chance(20)


def candidate_scores(events: Events, batch_size: int) -> dict[int, np.ndarray]:
    """[12] scores of every node as each event's target, from the state before its batch."""
    model = small_tgn(events)
    stream = Stream.open(events, (Part("all", 0, len(events), batch_size),), model.history)
    executor = EagerExecutor(model.eval(), NodeState(12, model.memory_width))
    found = {}
    for number in stream.phase("all").batches:
        event_B = stream.plan.events(number)
        every_BC = np.tile(np.arange(12, dtype=np.int32), (len(event_B), 1))
        score_BC = executor.score(stream.preparer.prepare(number, every_BC))
        found.update(zip(event_B.tolist(), score_BC[:, 1:], strict=True))
    return found


@pytest.mark.parametrize("batch_size", [1, 4, 11])
def test_an_event_does_not_change_its_own_score(batch_size):
    """Case I37: two streams that differ from event 11 on, in target and features.

        0 ... 10 | 11 | 12
          equal    5-7  5-6     in one,   5-2  5-6  in the other

    The candidates of 11 score the same in both; those of 12 need not.
    """
    source, time = np.arange(13) % 5, np.arange(13)
    target = 5 + np.arange(13) % 3
    source[11:] = 5
    one, other = target.copy(), target.copy()
    one[11:], other[11:] = [7, 6], [2, 6]
    features = [np.ones((13, 2)), np.ones((13, 2))]
    features[1][11] = 9
    scores = [
        candidate_scores(
            Events.from_arrays(source, aim, time, features=feature, num_nodes=12, bipartite=False),
            batch_size,
        )
        for aim, feature in zip((one, other), features, strict=True)
    ]
    for event in range(12):
        assert scores[0][event].tolist() == pytest.approx(scores[1][event].tolist(), abs=1e-6)
    assert np.abs(scores[0][12] - scores[1][12]).max() > 1e-4


# ---------------------------------------------------------------- metrics of one's own data


class Constant(Forgetful):
    """Scores everything alike."""

    def encode(self, batch: PreparedBatch, *vectors: Any) -> Encoded:
        return Encoded(super().encode(batch, *vectors).seed_SD * 0)


def test_twenty_events_of_ones_own_are_ranked():
    """Case I34: no data set to register, and nothing near 1 for a scorer that knows nothing."""
    events = chatter(20)
    run = fit(events, model=Constant(events.schema), epochs=1, batch_size=5)
    found = run.evaluate(held_out(events))
    assert found.metrics["MRR"].count == 3
    assert found.metrics["MRR"].value == pytest.approx(1 / 3.5)  # the middle of 6
    assert found.metrics["Hits@1"].value == 0
    assert fit(events, epochs=1, batch_size=5).evaluate(held_out(events)).metrics["MRR"].value < 1


def test_a_constant_scorer_is_told_to_know_nothing():
    """Case I35: half of the pairs are positive, so AP and AUC are one half."""
    events = chatter()
    run = fit(events, model=Constant(events.schema), epochs=1)
    values = run.evaluate(held_out(events)).metrics.values()
    assert values["AUC"] == values["AP"] == values["AUC (all events)"] == 0.5


# ---------------------------------------------------------------- state and its lag


def test_stored_memory_lags_by_one_message_and_answers_do_not():
    """Case I44: one event 0-1, and node 2 which has none.

    The event is a pending message: stored memory stays zero until the next event of its node,
    but whatever is computed applies it first, so `embed` and `predict` know of it at once.
    """
    events = Events.from_arrays([0, 0], [1, 1], [1, 2], num_nodes=3, bipartite=False)
    model = small_tgn(events)
    stream = Stream.open(events, (Part("seen", 0, 1, 1),), model.history)
    run = Run(model.eval(), TrainSettings(), stream, NodeState(3, model.memory_width))
    EagerExecutor(model, run.state).advance(stream.preparer.prepare(0, np.empty((1, 0), np.int32)))
    assert run.state.memory_ND.abs().sum() == 0
    zero, one, two = run.embed(time=5).embedding
    assert np.abs(zero - two).max() > 1e-3
    assert np.abs(one - two).max() > 1e-3
    run.advance()
    assert (run.state.memory_ND[:2].abs().sum(dim=1) > 0).all(), "applied by the next event"
    assert run.state.memory_ND[2].abs().sum() == 0


# ---------------------------------------------------------------- labels


def test_labels_change_neither_batches_nor_training():
    """Case I60: a label is a column of its event, not an entry of the stream."""
    plain = chatter()
    labelled = Events.from_arrays(
        plain.source, plain.target, plain.time, features=plain.features,
        label=np.arange(120) % 7 == 0, num_nodes=12, bipartite=False,
    )  # fmt: skip
    assert outcome(fit(labelled)) == outcome(fit(plain))


def test_a_node_is_asked_about_between_its_events():
    """Case I52: labels at 5 (node 0) and 3 (node 7, unseen); edges at 1, 2 and 9.

    What was streamed up to a label's time is its history; the edge at 9 is not.
    """
    source, target = [0, 1, 0], [1, 2, 3]
    answers = []
    for last in (3, 4):
        events = Events.from_arrays(
            source, [*target[:2], last], [1, 2, 9], num_nodes=8, bipartite=False
        )
        model = small_tgn(events)
        stream = Stream.open(events, (Part("seen", 0, 1, 1),), model.history)
        run = Run(
            model.eval(), TrainSettings(batch_size=1), stream, NodeState(8, model.memory_width)
        )
        EagerExecutor(model, run.state).advance(
            stream.preparer.prepare(0, np.empty((1, 0), np.int32))
        )
        run.advance(2)
        unseen = run.embed([7], time=3).embedding
        answers.append((run.embed([0], time=5).embedding, unseen))
        run.advance()
        assert np.abs(run.embed([0], time=10).embedding - answers[-1][0]).max() > 1e-4
    assert np.isfinite(answers[0][1]).all()
    assert answers[0][0].tolist() == answers[1][0].tolist()


# ---------------------------------------------------------------- odd sizes


@pytest.mark.parametrize("batch_size", [1, 3, 10, 80, 500])
def test_any_batch_size_trains(batch_size):
    events = chatter()
    run = fit(events, batch_size=batch_size, evaluation_batch_size=batch_size, epochs=1)
    assert np.isfinite(run.records[0].loss)
    assert run.evaluate(held_out(events)).events == 16


@pytest.mark.parametrize(
    ("event_features", "node_features"), [(0, 0), (1, 0), (0, 3), (3, 1), (1, 3)]
)
def test_any_features_or_none(tmp_path, event_features, node_features):
    """Case I51, through training, checkpoints and prediction."""
    plain = chatter()
    events = Events.from_arrays(
        plain.source, plain.target, plain.time,
        features=np.ones((120, event_features)) if event_features else None,
        node_features=np.ones((12, node_features)) if node_features else None,
        num_nodes=12, bipartite=False,
    )  # fmt: skip
    run = fit(events, tmp_path, epochs=1)
    found = tg.load_run(tmp_path)
    assert outcome(found) == outcome(run)
    assert np.isfinite(found.predict([(0, 1)]).score).all()


def test_float_times_train():
    plain = chatter()
    events = Events.from_arrays(
        plain.source, plain.target, plain.time * 0.5, features=plain.features, num_nodes=12,
        bipartite=False,
    )  # fmt: skip
    run = fit(events, epochs=1)
    assert np.isfinite(run.records[0].loss)
    assert run.predict([(0, 1)], time=1e6).time.dtype == np.float64


def test_all_events_at_one_time_train():
    """Nothing has a past, in training or in evaluation; nothing divides by zero.

    Each pair happens, so there is nothing to rank against: that is told before training.
    """
    events = Events.from_arrays(np.arange(60) % 5, np.arange(60) % 7, np.full(60, 3))
    run = fit(events, batch_size=10, epochs=1, candidates=0)
    assert np.isfinite(run.records[0].loss)
    assert np.isfinite(run.evaluate(held_out(events)).metrics["AP"].value)
    watch = Resident(1)
    with pytest.raises(NoLegalNegativeError, match=r"no legal negative.*candidates=0"):
        fit(events, batch_size=10, epochs=1, listener=watch)
    assert watch.bytes == []


# ---------------------------------------------------------------- memory use (case I62)


def resident_bytes() -> int:
    """Of this process, now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


class Resident(Listener):
    """Writes down resident memory batch by batch; stops after `most` batches."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.bytes: list[int] = []

    def advanced(self, events: int, loss: float | None) -> None:
        self.bytes.append(resident_bytes())
        if len(self.bytes) == self.most:
            raise Stopped


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads resident memory from /proc"
)


@needs_proc
def test_memory_is_flat_with_a_hundred_thousand_nodes():
    """Nothing of size N x N or N x batches; less than 4 MB more after 200 further batches."""
    draw = np.random.default_rng(0)
    nodes, count = 100_000, 80_000
    events = Events.from_arrays(
        draw.integers(0, nodes // 2, count), nodes // 2 + draw.integers(0, nodes // 2, count),
        np.arange(count), num_nodes=nodes, num_sources=nodes // 2,
    )  # fmt: skip
    before, watch = resident_bytes(), Resident(300)
    with pytest.raises(Stopped):
        fit(events, model=small_tgn(events, memory=32), listener=watch, batch_size=150)
    assert max(watch.bytes) - before < 400 * 2**20
    assert watch.bytes[-1] - watch.bytes[99] < 4 * 2**20


@needs_proc
@pytest.mark.slow
def test_memory_is_flat_with_a_million_nodes(capsys):
    """Over 2,000 batches at full width; prints what it took (pytest -m slow -s)."""
    events = load_dataset("synthetic:talk", scale=0.91)
    assert events.schema.num_nodes > 1_000_000
    assert len(events) > 5_000_000
    watch = Resident(2000)
    model = tg.models.build_model("tgn", events.schema)
    with pytest.raises(Stopped):
        fit(events, model=model, listener=watch, batch_size=600, candidates=0)
    # Neighbourhoods fill up first (4,200 nodes a batch at the 100th, 7,000 at the 1,000th): what a
    # batch takes grows with them, and only then says flat memory anything about leaks.
    growth = (watch.bytes[-1] - watch.bytes[999]) / 2**20
    with capsys.disabled():
        print(
            f"\n{events.schema.num_nodes:,} nodes, {len(events):,} events: "
            f"{watch.bytes[999] / 2**20:,.0f} MiB resident after 1,000 batches, "
            f"{growth:+.1f} MiB after 2,000, {max(watch.bytes) / 2**20:,.0f} at most"
        )
    assert growth < 16


def test_peak_memory_is_that_of_the_batch_not_of_the_candidates():
    """One against 8,000 with 16 events a batch is prepared in pieces of 50,000 roots, and as many
    pieces are scored at once as a fixed number of bytes holds."""
    events = chatter(nodes=40)
    run = fit(events, epochs=1, evaluation_batch_size=16)
    prepared: list[int] = []
    scored: list[int] = []
    prepare, forward = Preparer.prepare, TGN.forward

    def watch(self: Preparer, *args: Any, **kwargs: Any) -> PreparedBatch:
        batch = prepare(self, *args, **kwargs)
        prepared.append(batch.size * (2 + batch.candidates))
        return batch

    def measure(self: TGN, batch: PreparedBatch, *state: Tensor) -> Any:
        slots = sum(hop.neighbor_SK.numel() for hop in batch.hops)
        scored.append(8 * 4 * slots)
        return forward(self, batch, *state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Preparer, "prepare", watch)
        patch.setattr(TGN, "forward", measure)
        found = run.evaluate(held_out(events), candidates=8000)
    assert max(prepared) <= 50_000 + 2 * 16
    assert sum(prepared) > 16 * 8000
    assert max(scored) <= JOINT_BYTES + 8 * 4 * 10 * 50_032
    assert found.metrics["MRR"].count == 16
    assert torch.isfinite(found.state.memory_ND).all()
