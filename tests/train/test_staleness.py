"""Stale training equals the emulator bit for bit, and no batch reads another version than its own.

The emulator (`emulator.py`) keeps a copy of every version. Three oracles, from the equations up:
the mail ledger and the TGN of equations, in float64, for what staleness means; the plain training
loop for its bits.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import emulator
import tiny
from delays import delayed
from every import small_settings
from ledger import MailLedger
from plain_tgn import PlainTGN
from real import first_events
from tidegraph.batches import BatchPlan, History
from tidegraph.errors import CheckpointError
from tidegraph.events import Events
from tidegraph.models import MODELS, build_model
from tidegraph.ops import link_loss
from tidegraph.state import NodeState
from tidegraph.train import EagerExecutor, Stream
from tidegraph.train.adam import Adam
from tidegraph.train.checkpoint import load_checkpoint
from tidegraph.train.loaded import Loaded
from tidegraph.train.run_files import RunFiles
from tidegraph.train.stream import part_of
from training import SETTINGS, Diary, StopAt, Stopped, chatter, fit, outcome, small_tgn, weights

EVENTS = chatter()


def found_mail(batch: Any) -> dict[int, list[tuple[int, float]]]:
    """Node -> (event, difference) of its pending mail, by the feature that tells the event."""
    node_U, mail, found = batch.node_U.tolist(), batch.mail, {}
    for m, row in enumerate(mail.row_M.tolist()):
        span = range(int(mail.indptr_M1[m]), int(mail.indptr_M1[m + 1]))
        found[node_U[row]] = [
            (int(batch.features[int(mail.event_L[i]), 0]) - 1, float(mail.delta_L[i])) for i in span
        ]
    return found


# ---------------------------------------------------------------- what it means


def test_each_phase_has_its_staleness() -> None:
    """Training reads old versions; what comes after it reads all of them, and never before it."""
    parts = [
        ("train", np.arange(8), 2),
        ("val", np.arange(8, 12), 2),
        ("more", np.arange(12, 14), 1),
    ]
    plan = BatchPlan.build(parts, {"train": 2, "more": 1})
    assert plan.version_B.tolist() == [0, 0, 0, 1, 4, 5, 6, 6]


@given(
    stream=tiny.streams(),
    staleness=st.integers(0, 5),
    batch_size=st.integers(1, 5),
    message=st.sampled_from(["last", "mean"]),
    hidden=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_mail_is_that_of_the_version_read(
    stream: tiny.Stream, staleness: int, batch_size: int, message: str, hidden: bool
) -> None:
    """Which events are pending, and how long after the mail that the stored memory has applied."""
    kept = [e for e in range(len(stream)) if not hidden or e % 3]
    if not kept:
        return
    history = History(neighbors=(2,), message=message)  # type: ignore[arg-type]
    prep = tiny.preparer(
        stream, history, batch_size, kept=kept if hidden else None, staleness=staleness
    )
    book = emulator.Versions(MailLedger(stream, history), staleness)
    for number in range(len(prep.plan)):
        batch = prep.prepare(number, tiny.negatives(prep, number))
        assert batch.version == max(0, number - staleness)
        read = book.read()
        expected = {node: read.mail(node) for node in batch.node_U.tolist() if read.mail(node)}
        assert found_mail(batch) == expected
        book.execute(batch.event_B.tolist())


@pytest.mark.parametrize("staleness", [1, 2, 4])
@pytest.mark.parametrize("variant", [{}, {"message": "mean", "layers": 2, "visibility": "batch"}])
def test_scores_equal_the_equations(staleness: int, variant: dict[str, Any]) -> None:
    """In float64, with parameter steps between batches."""
    stream = tiny.random_stream(3, 30, node_feature_width=2)
    model = tiny.tgn(stream, **variant)
    prep = tiny.preparer(stream, model.history, 4, staleness=staleness)
    book = emulator.Versions(PlainTGN(stream, model, list(range(30))), staleness)
    state = tiny.empty_state(model, stream.num_nodes)
    state.keep_versions(staleness)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for number in range(len(prep.plan)):
        events = prep.plan.events(number).tolist()
        drawn = tiny.negatives(prep, number, count=2)
        book.read().read_weights()
        expected = book.read().scores(events, drawn)
        logit_BC = tiny.step(model, state, prep.prepare(number, drawn))
        np.testing.assert_allclose(logit_BC.detach().numpy(), expected, rtol=0, atol=1e-9)
        book.execute(events)
        stored = np.stack([book[-1].stored(node) for node in range(stream.num_nodes)])
        np.testing.assert_allclose(state.memory_ND.numpy(), stored, rtol=0, atol=1e-10)
        optimizer.zero_grad()
        link_loss(logit_BC).backward()
        optimizer.step()


# ---------------------------------------------------------------- its bits


def trained(events: Events, **settings: Any) -> tuple[list[float], dict[str, Any]]:
    diary = Diary()
    run = fit(events, model=small_tgn(events), listener=diary, **settings)
    return diary.losses, outcome(run)


class EndOfTraining(Diary):
    """Also keeps the state as it is when validation begins."""

    states: list[tuple[torch.Tensor, torch.Tensor]]

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.states = []
        real = NodeState.keep_versions

        def keep(state: NodeState, keep: int, *rest: Any) -> None:
            real(state, keep, *rest)
            if keep == 0:  # what the trainer does before it evaluates
                self.states.append((state.memory_ND.clone(), state.mail_ND.clone()))

        monkeypatch.setattr(NodeState, "keep_versions", keep)


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_training_equals_the_emulator(
    monkeypatch: pytest.MonkeyPatch, staleness: int, threads: int
) -> None:
    check_against_emulator(monkeypatch, EVENTS, staleness, threads, batch_size=8)


@pytest.mark.parametrize("staleness", [1, 2, 4])
@pytest.mark.parametrize("name", ["wikipedia", "flights"])
def test_training_on_real_data_equals_the_emulator(
    monkeypatch: pytest.MonkeyPatch, name: str, staleness: int
) -> None:
    events = first_events(name, 2400)
    check_against_emulator(monkeypatch, events, staleness, threads=2, batch_size=100, epochs=1)


def check_against_emulator(
    monkeypatch: pytest.MonkeyPatch,
    events: Events,
    staleness: int,
    threads: int,
    batch_size: int,
    epochs: int = 2,
) -> None:
    """Losses, weights, memory and mail, with delays that make threads overtake each other."""
    settings = {"batch_size": batch_size, "epochs": epochs}
    train, _, _ = events.split(val=0.2, test=0.13, ties="row")
    model = small_tgn(events)
    losses, memory_ND, mail_ND = emulator.train(
        model, train, staleness=staleness, learning_rate=SETTINGS["learning_rate"], **settings
    )
    diary, trained_model = EndOfTraining(monkeypatch), small_tgn(events)
    with delayed(0.004):
        run = fit(
            events, model=trained_model, listener=diary, staleness=staleness, candidates=0,
            prepare_threads=threads, queue_depth=3, **settings,
        )  # fmt: skip
    told = [value for record in run.records for value in [record.loss]]
    sizes = [min(batch_size, len(train) - first) for first in range(0, len(train), batch_size)]
    per_epoch = np.array(losses).reshape(epochs, len(sizes))
    expected = [
        sum(loss * size for loss, size in zip(epoch, sizes, strict=True)) / len(train)
        for epoch in per_epoch.tolist()
    ]
    assert told == expected
    end = diary.states[-1]
    assert torch.equal(end[0], memory_ND)
    assert torch.equal(end[1], mail_ND)
    if run.best_epoch == epochs - 1:
        for one, other in zip(run.model.parameters(), model.parameters(), strict=True):
            assert torch.equal(one, other)
    counted = {str(k): 1 for k in range(staleness)}
    counted[str(staleness)] = len(sizes) - staleness
    assert run.records[-1].staleness == counted


@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_reads_the_version_that_it_should(name: str) -> None:
    """Losses with rows put back equal those with a whole copy of the state for every version."""
    events, staleness = chatter(), 2
    train, _, _ = events.split(val=0.2, test=0.13, ties="row")
    found = []
    for copies in (True, False):
        model = build_model(name, events.schema, **small_settings(name)).train()
        part = part_of(train, 8, staleness=staleness)
        stream = Stream.open(events, (replace(part, name="train"),), model.history)
        state = NodeState(events.schema.num_nodes, model.columns)
        state.keep_versions(0 if copies else staleness)
        optimizer = Adam(model.named_parameters(), learning_rate=0.01)
        executor, versions, losses = EagerExecutor(model, state, optimizer), [state.clone()], []
        for number in stream.phase("train").batches:
            drawn = tiny.negatives(stream.preparer, number)
            batch = stream.preparer.prepare(number, drawn)
            if copies:
                rows = versions[batch.version].read(batch)
                batch = Loaded(batch, batch, rows)  # type: ignore[assignment]
            losses.append(executor.train(batch))
            versions.append(state.clone())
        found.append((losses, state.checksum(), weights(model)))
    assert found[0] == found[1]


def test_staleness_changes_the_result_and_nothing_else_does() -> None:
    """Threads, caches and where the state is are no part of what is computed."""
    exact = trained(EVENTS, batch_size=8)
    stale = trained(EVENTS, batch_size=8, staleness=2)
    assert stale[0][:1] == exact[0][:1]
    assert stale[0] != exact[0]
    assert trained(EVENTS, batch_size=8, staleness=1)[0] != stale[0]
    for threads in (0, 2):
        for place in (
            {"state": "host"},
            {"state": "host", "cache": "next-use", "cache_budget": 0.3, "cache_window": 3},
            {"cache": "lru", "cache_budget": 0.5},
        ):
            found = trained(EVENTS, batch_size=8, staleness=2, prepare_threads=threads, **place)
            assert found[0] == stale[0]
            assert found[1]["weights"] == stale[1]["weights"]
            assert found[1]["state"] == stale[1]["state"]


def test_more_staleness_than_batches_reads_the_empty_state() -> None:
    run = fit(EVENTS, batch_size=20, staleness=1000)
    assert run.records[0].staleness == {"0": 1, "1": 1, "2": 1, "3": 1}


def test_without_staleness_nothing_is_recorded() -> None:
    assert fit(EVENTS, prepare_threads=2).records[0].staleness == {}


# ---------------------------------------------------------------- stopped and resumed


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("batches", [0, 1, 2, 5, 9, 13, 16])
def test_a_stale_run_resumes(tmp_path: Path, batches: int, threads: int) -> None:
    """The checkpoint has the rows that the last writes replaced: nothing has to be drained."""
    options: dict[str, Any] = {
        "staleness": 2, "prepare_threads": threads, "checkpoint_batches": 1, "batch_size": 10,
    }  # fmt: skip
    expected = outcome(fit(EVENTS, **options))
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path, listener=StopAt(batches), **options)
    assert outcome(fit(EVENTS, tmp_path, resume=True, **options)) == expected


def test_a_stale_run_resumes_with_other_threads_and_places(tmp_path: Path) -> None:
    options: dict[str, Any] = {"staleness": 3, "checkpoint_batches": 1, "batch_size": 10}
    expected = outcome(fit(EVENTS, **options))
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path, listener=StopAt(6), prepare_threads=3, state="host", **options)
    found = fit(EVENTS, tmp_path, resume=True, prepare_threads=0, **options)
    assert outcome(found) == expected


def test_only_checkpoints_within_an_epoch_hold_replaced_rows(tmp_path: Path) -> None:
    """As many as the staleness; the best epoch's state stands at one version."""
    options: dict[str, Any] = {"staleness": 2, "checkpoint_batches": 1, "batch_size": 10}
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path, listener=StopAt(6), **options)
    files = RunFiles(tmp_path)
    last = [name for name in load_checkpoint(files.last).tensors if name.endswith(".node")]
    assert len(last) == 2 * 2  # memory and mail of two writes
    fit(EVENTS, tmp_path, resume=True, **options)
    for path in (files.best, files.last):
        assert not [name for name in load_checkpoint(path).tensors if "replaced" in name]


def test_staleness_is_part_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path, listener=StopAt(3), staleness=1, checkpoint_batches=1)
    with pytest.raises(CheckpointError, match=r"'staleness': 1.*'staleness': 2"):
        fit(EVENTS, tmp_path, resume=True, staleness=2, checkpoint_batches=1)
