"""What every model of the registry must do; one that joins it is tested here without a change.

Its reference, `references/<name>.py`, is the one thing it has to bring: the model from its paper's
equations, event by event in float64.
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

import tiny
import training
from every import (
    candidate_scores,
    equations_are_cited,
    has,
    reference,
    rewrite,
    small,
    small_settings,
    spoiled,
)
from tidegraph.errors import SettingError
from tidegraph.models import MODELS, build_model, model_class, model_settings
from tidegraph.train import load_run

every_model = pytest.mark.parametrize("name", list(MODELS))
names = st.sampled_from(list(MODELS))
EXACT = {"rtol": 0, "atol": 1e-12}


def rules(name: str) -> list[dict[str, Any]]:
    """Each rule of history that the model has as a setting, one by one."""
    found: list[dict[str, Any]] = [{}]
    for key, value in (("inclusive", True), ("visibility", "batch"), ("window", 6.0),
                       ("layers", 2), ("patch", 1)):  # fmt: skip
        if has(name, key):
            found.append({key: value})
    if has(name, "inclusive") and has(name, "visibility"):
        found.append({"inclusive": True, "visibility": "batch"})
    return found


# ---------------------------------------------------------------- equations


@every_model
@pytest.mark.parametrize(
    "stream",
    [
        tiny.random_stream(3, 22, nodes=5, node_feature_width=2),
        tiny.random_stream(4, 20, nodes=4, feature_width=0),
    ],
    ids=["features", "none"],
)
@pytest.mark.parametrize("batch_size", [1, 6])
def test_scores_equal_the_equations(name: str, stream: tiny.Stream, batch_size: int) -> None:
    for options in rules(name) if batch_size > 1 else [{}]:
        model = small(name, stream, **options)
        prep = tiny.preparer(stream, model.history, batch_size)
        plain = reference(name, stream, model, list(range(len(stream))))
        drawn = [tiny.negatives(prep, number, count=2) for number in range(len(prep.plan))]
        for number, logit_BC in enumerate(tiny.scores(model, prep, drawn)):
            events = prep.plan.events(number).tolist()
            expected = plain.scores(events, drawn[number])
            np.testing.assert_allclose(logit_BC.numpy(), expected, rtol=0, atol=1e-9)
            plain.execute(events)


@given(name=names, stream=tiny.streams(most_events=10), batch_size=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_scores_equal_the_equations_on_any_stream(
    name: str, stream: tiny.Stream, batch_size: int
) -> None:
    """Ties, repeats, self-loops, float times, nodes without history; training events left out."""
    kept = [event for event in range(len(stream)) if event % 3 != 1]
    model = small(name, stream)
    prep = tiny.preparer(stream, model.history, batch_size, kept=kept)
    plain = reference(name, stream, model, kept)
    for number, logit_BC in enumerate(tiny.scores(model, prep)):
        events = prep.plan.events(number).tolist()
        expected = plain.scores(events, tiny.negatives(prep, number))
        np.testing.assert_allclose(logit_BC.numpy(), expected, rtol=0, atol=1e-9)
        plain.execute(events)


@every_model
def test_every_weight_learns_along_the_slope(name: str) -> None:
    """Moved a little along a random direction, the loss changes by gradient . direction."""
    stream = tiny.random_stream(8, 18, nodes=4, node_feature_width=2)
    model = small(name, stream)
    prep = tiny.preparer(stream, model.history, 6)
    state = tiny.empty_state(model, stream.num_nodes)
    with torch.no_grad():
        for number in range(2):
            tiny.step(model, state, prep.prepare(number, tiny.negatives(prep, number)))
    batch = tiny.in_precision(prep.prepare(2, tiny.negatives(prep, 2)), model)
    rows = state.read(batch)

    def loss() -> torch.Tensor:
        logit_BC = model(batch, *rows)[0]
        return torch.nn.functional.softplus(logit_BC).sum() - logit_BC[:, 0].sum()

    loss().backward()
    learned = {n: p for n, p in model.named_parameters() if p.requires_grad and p.numel()}
    assert [n for n, p in learned.items() if p.grad is None] == []
    torch.manual_seed(1)
    direction = {n: torch.randn_like(p) for n, p in learned.items()}
    slope = sum(float((p.grad * direction[n]).sum()) for n, p in learned.items())
    losses, size = [], 1e-6
    with torch.no_grad():
        for sign in (1, -2):
            for n, p in learned.items():
                p.add_(direction[n], alpha=sign * size)
            losses.append(float(loss()))
    assert (losses[0] - losses[1]) / (2 * size) == pytest.approx(slope, rel=1e-5, abs=1e-6)


@every_model
@pytest.mark.parametrize("width", [0, 2])
def test_single_precision_is_close(name: str, width: int) -> None:
    """What training and scoring run in; scoring has faster paths of its own."""
    stream = tiny.random_stream(7, 30, node_feature_width=width)
    model = small(name, stream)
    drawn = [np.full((10, 2), 1, np.int32)] * 3
    expected = torch.cat(tiny.scores(model, tiny.preparer(stream, model.history, 10), drawn))
    model = model.float()
    prep = tiny.preparer(stream, model.history, 10)
    found = torch.cat(tiny.scores(model, prep, drawn))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)
    state = tiny.empty_state(model, stream.num_nodes)
    with_graph = [
        tiny.step(model, state, prep.prepare(number, drawn[number])).detach() for number in range(3)
    ]
    torch.testing.assert_close(torch.cat(with_graph).double(), expected, rtol=1e-4, atol=1e-3)


# ---------------------------------------------------------------- what a score may depend on


@every_model
@given(
    stream=tiny.streams(most_events=14),
    batch_size=st.integers(1, 7),
    position=st.integers(0, 13),
    seed=st.integers(0, 2**16),
    inclusive=st.booleans(),
)
@settings(max_examples=8, deadline=None)
def test_nothing_at_or_after_the_query_changes_its_scores(
    name: str, stream: tiny.Stream, batch_size: int, position: int, seed: int, inclusive: bool
) -> None:
    stream, event = replace(stream, feature_width=0), position % len(stream)
    options = {"inclusive": inclusive} if has(name, "inclusive") else {}
    model = small(name, stream, **options)
    draw = np.random.default_rng(seed)
    other, moved = rewrite(stream, draw, event, batch_size, model.history.inclusive)
    before = candidate_scores(stream, model, batch_size, event)
    after = candidate_scores(other, model, batch_size, moved)
    torch.testing.assert_close(after, before, **EXACT)


@every_model
@given(
    stream=tiny.streams(most_events=14),
    batch_size=st.integers(1, 7),
    position=st.integers(0, 13),
    target=st.integers(0, 5),
)
@settings(max_examples=8, deadline=None)
def test_a_score_does_not_depend_on_its_own_edge(
    name: str, stream: tiny.Stream, batch_size: int, position: int, target: int
) -> None:
    """Give the event another target: each candidate's score stays; and a node scores the same as
    the true target and as a candidate."""
    event, target = position % len(stream), target % stream.num_nodes
    model = small(name, stream)
    targets = list(stream.target)
    targets[event] = target
    before = candidate_scores(stream, model, batch_size, event)
    after = candidate_scores(replace(stream, target=targets), model, batch_size, event)
    torch.testing.assert_close(after[1:], before[1:], **EXACT)
    for scores, node in ((before, stream.target[event]), (after, target)):
        torch.testing.assert_close(scores[0], scores[1 + node], **EXACT)


@every_model
def test_the_past_does_change_a_score(name: str) -> None:
    """What the tests above look for would be seen."""
    stream = tiny.random_stream(2, 20, nodes=4, feature_width=0)
    model = small(name, stream)
    before = candidate_scores(stream, model, 5, 17)
    seen = 0
    for event in range(15):
        targets = list(stream.target)
        targets[event] = (targets[event] + 1) % 4
        after = candidate_scores(replace(stream, target=targets), model, 5, 17)
        seen += int(float((after - before)[1:].abs().max()) > 1e-7)
    assert seen >= 4


@every_model
def test_other_events_and_candidates_of_the_batch_change_nothing(name: str) -> None:
    """Among them nodes with far longer and far shorter histories."""
    stream = tiny.random_stream(11, 30, nodes=7, feature_width=0)
    model = small(name, stream)
    prep = tiny.preparer(stream, model.history, 10)
    one = np.full((10, 2), 3, np.int32)
    others = np.tile(np.arange(10, dtype=np.int32)[:, None] % 7, (1, 4))
    others[4] = 3
    rows = [tiny.scores(model, prep, [drawn] * 3)[2][4] for drawn in (one, others)]
    torch.testing.assert_close(rows[1][:3], rows[0][:3], **EXACT)


@pytest.mark.parametrize("name", [n for n in MODELS if not has(n, "memory")])
def test_without_memory_the_batch_size_changes_nothing(name: str) -> None:
    stream = tiny.random_stream(12, 24, nodes=5, node_feature_width=2)
    model = small(name, stream)
    if model.memory_width:
        pytest.skip("the model keeps memory under another name")
    rows = []
    for batch_size in (1, 7, 24):
        prep = tiny.preparer(stream, model.history, batch_size)
        drawn = [np.full((len(prep.plan.events(n)), 1), 2, np.int32) for n in range(len(prep.plan))]
        rows.append(torch.cat(tiny.scores(model, prep, drawn)))
    torch.testing.assert_close(rows[1], rows[0], **EXACT)
    torch.testing.assert_close(rows[2], rows[0], **EXACT)


# ---------------------------------------------------------------- preparation


@every_model
def test_padding_is_inert(name: str) -> None:
    """Whatever padding holds, scores and gradients are the same to the bit."""
    stream = tiny.random_stream(13, 16, nodes=8, node_feature_width=1)
    model = small(name, stream)
    prep = tiny.preparer(stream, model.history, 8)
    state = tiny.empty_state(model, stream.num_nodes)
    batch = tiny.in_precision(prep.prepare(0, tiny.negatives(prep, 0)), model)
    tiny.step(model, state, batch)
    batch = tiny.in_precision(prep.prepare(1, tiny.negatives(prep, 1)), model)
    results = []
    for given_batch in (batch, spoiled(batch)):
        model.zero_grad()
        logit_BC = model(given_batch, *state.read(batch))[0]
        logit_BC.square().sum().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        results.append([logit_BC.detach(), *grads])
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


@every_model
def test_deduplication_changes_nothing(name: str) -> None:
    stream = tiny.random_stream(9, 30, nodes=4, node_feature_width=2)
    for options in [{}, *([{"strategy": "uniform", "neighbors": 2}] * has(name, "strategy"))]:
        model = small(name, stream, **options)
        rows = [
            torch.cat(tiny.scores(model, tiny.preparer(stream, model.history, 10, dedup=dedup)))
            for dedup in (True, False)
        ]
        torch.testing.assert_close(rows[1], rows[0], **EXACT)


@every_model
def test_gathered_features_give_the_same_scores(name: str) -> None:
    """As for another device: only the events that a batch uses are in its table."""
    stream = tiny.random_stream(10, 30, nodes=5, node_feature_width=2)
    model = small(name, stream)
    rows = [
        torch.cat(tiny.scores(model, tiny.preparer(stream, model.history, 10, compact=compact)))
        for compact in (False, True)
    ]
    torch.testing.assert_close(rows[1], rows[0], **EXACT)


# ---------------------------------------------------------------- training


def trained(name: str, **settings: Any) -> training.Run:
    events = training.chatter(90, features=1)
    options = small_settings(name, **({"dropout": 0.2} if has(name, "dropout") else {}))
    model = build_model(name, events.schema, **options)
    return training.fit(events, model=model, **{"epochs": 2, "candidates": 3, **settings})


@every_model
def test_two_trainings_end_in_the_same_bits(name: str) -> None:
    first, second = (training.outcome(trained(name)) for _ in range(2))
    assert first == second


@every_model
def test_a_run_stopped_and_resumed_and_loaded_is_the_same(name: str, tmp_path: Path) -> None:
    whole = trained(name)
    with pytest.raises(training.Stopped):
        trained(name, directory=tmp_path / "run", listener=training.StopAt(5), checkpoint_batches=1)
    resumed = trained(name, directory=tmp_path / "run", resume=True, checkpoint_batches=1)
    assert training.outcome(resumed) == training.outcome(whole)
    loaded, test = load_run(tmp_path / "run"), training.held_out(whole.events)
    values = [run.evaluate(test).metrics.values() for run in (loaded, whole)]
    assert values[0] == values[1]


@every_model
def test_embeddings_can_be_asked_for(name: str) -> None:
    run = trained(name, epochs=1)
    rows = run.embed()
    assert rows.embedding.shape == (run.events.schema.num_nodes, run.model.embedding_width)
    assert np.isfinite(rows.embedding).all()
    np.testing.assert_allclose(run.embed([3]).embedding[0], rows.embedding[3], rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- description


@every_model
def test_settings_and_equations_are_described(name: str) -> None:
    undescribed = [s.name for s in model_settings(model_class(name)) if not s.help]
    assert undescribed == []
    assert equations_are_cited(name)


WRONG = {
    "tgat": [{"layers": 4}, {"time": 0}, {"neighbors": 0}, {"dropout": 1.0}, {"heads": 0}],
    "graphmixer": [
        {"neighbors": 0}, {"token_factor": 0.0}, {"channel_factor": float("inf")},
        {"dropout": -0.1}, {"node_window": 0.0}, {"layers": 0},
    ],
    "dygformer": [{"length": 1}, {"patch": 0}, {"channel": 0}, {"heads": 7}, {"dropout": 2.0}],
    "tcl": [{"neighbors": 0}, {"layers": 0}, {"heads": 7}, {"dropout": 1.0}],
    "cawn": [{"walks": 0}, {"steps": 0}, {"bias": -1.0}, {"bias": float("inf")}, {"hidden": 0}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "wrong"), [(name, wrong) for name, several in WRONG.items() for wrong in several]
)
def test_values_out_of_range_are_named(name: str, wrong: dict[str, Any]) -> None:
    schema = tiny.random_stream(0, 5).events().schema
    with pytest.raises(SettingError, match=next(iter(wrong))):
        build_model(name, schema, **wrong)
