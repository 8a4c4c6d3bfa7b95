"""Tasks beside link prediction: targets in line with their events, no leakage, oracles, errors.

The stream of most tests is `chatter`: 120 events of 12 nodes, ties and self-loops included, and a
label that the source's number decides:

    0..11 --(two features)--> 0..11        label 1 where the source is a multiple of 3
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tidegraph.errors import CheckpointError, InputError, SettingError
from tidegraph.events import Events
from tidegraph.state import NodeState
from tidegraph.train import Listener, Run, Trainer, load_run
from tidegraph.train.metrics import roc_auc
from tidegraph.train.tasks import (
    TaskDecoder,
    TaskRun,
    TaskSettings,
    find_target,
    fit_task,
    load_task,
)
from tidegraph.train.tasks.collect import collect
from tidegraph.train.tasks.decoder import class_weights
from tidegraph.train.tasks.objectives import Classes, Number, ndcg
from tidegraph.train.tasks.past import past_predictions
from training import SETTINGS, chatter, fit, held_out, small_tgn, weights

NODE = TaskSettings(task="node-classification", task_epochs=4)
NUMBER = TaskSettings(task="event-regression", task_epochs=4, target="f0")


def labelled(count: int = 240) -> Events:
    return changed(chatter(count), label=lambda e: (e.source % 3 == 0).astype(np.float32))


def changed(events: Events, **columns: Any) -> Events:
    """The same events with other columns, and the fingerprint that belongs to them."""
    kept = {name: getattr(events, name) for name in ("features", "label")}
    kept |= {name: value(events) if callable(value) else value for name, value in columns.items()}
    return Events.from_arrays(
        events.source, events.target, events.time,
        num_nodes=events.schema.num_nodes, bipartite=False, **kept,
    )  # fmt: skip


def embeddings(run: Run, events: Events | None = None) -> np.ndarray:
    """[E, 2, D] of all streamed events, from an empty state, with the run's weights."""
    stream = run.stream
    if events is not None:
        stream = replace(fit(events, epochs=1).stream)
    state = NodeState(run.events.schema.num_nodes, run.model.columns)
    return np.concatenate(
        [collect(run.model, state, stream, part.name).both_M2D for part in stream.parts]
    )


def outcome(task: TaskRun) -> tuple[bytes, bytes, str]:
    decoder = b"".join(t.numpy().tobytes() for t in task.decoder.state_dict().values())
    return decoder, weights(task.run.model), repr(task.validation)


# ---------------------------------------------------------------- what is embedded


def test_each_event_is_embedded_strictly_before_it() -> None:
    """Neither its label, nor its features, nor that it happens at all is in its embedding."""
    events = labelled()
    run = fit(events, epochs=1)
    before = embeddings(run)
    at = 61  # in the middle of a batch
    features = np.array(events.features)
    features[at] += 3.0
    label = np.array(events.label)
    label[at] = 1 - label[at]
    target = np.array(events.target)
    after = embeddings(run, replace(events, features=features, label=label, target=target))
    earlier = events.time[: len(after)] <= events.time[at]
    np.testing.assert_array_equal(before[earlier], after[earlier])
    assert (before[~earlier] != after[~earlier]).any()  # it is history of what comes later


def test_labels_are_in_no_embedding() -> None:
    events = labelled()
    run = fit(events, epochs=1)
    other = replace(events, label=1 - np.asarray(events.label))
    np.testing.assert_array_equal(embeddings(run), embeddings(run, other))


def test_rows_and_labels_belong_to_the_same_event() -> None:
    """`collect` in batches of 20 and 12 lines up with single queries of an executor."""
    events = labelled()
    run = fit(events, epochs=1)
    state = NodeState(run.events.schema.num_nodes, run.model.columns)
    found = collect(run.model, state, run.stream, "train")
    np.testing.assert_array_equal(found.event_M, np.arange(run.stream.parts[0].stop))
    # Nodes without any past share one embedding, those that return have another.
    first = [int(np.flatnonzero(events.source == node)[0]) for node in range(3)]
    seen = {int(n) for e in first for n in (events.source[:e], events.target[:e]) for n in n}
    fresh = [e for e in first if int(events.source[e]) not in seen]
    assert all(np.isfinite(found.both_M2D[e]).all() for e in fresh)


# ---------------------------------------------------------------- fitting


def test_a_label_of_the_source_is_learned() -> None:
    """Past events of a source carry its label as a feature: an encoder can be tuned to see it."""
    events = labelled(600)
    features = np.array(events.features)
    features[:, 0] = np.asarray(events.label) * 2 - 1
    events = changed(events, features=features)
    settings = replace_settings(
        NODE, task_epochs=40, task_batch_size=20, task_learning_rate=0.01, encoder="tuned",
        tune_epochs=10, tune_learning_rate=5e-3,
    )  # fmt: skip
    found = fit_task(fit(events, epochs=2), settings).evaluate(held_out(events))
    assert found.metrics["AUC"].value > 0.7
    assert dict(found.baselines)["last of the source"]["AUC"].value == 1.0
    assert "strictly before" in found.metrics["AUC"].protocol


@pytest.mark.parametrize("settings", [NODE, NUMBER], ids=["classes", "number"])
def test_the_same_seed_gives_the_same_bits_and_another_does_not(settings: TaskSettings) -> None:
    events = labelled()
    first, second = (outcome(fit_task(fit(events, epochs=1), settings)) for _ in range(2))
    assert first == second
    assert outcome(fit_task(fit(events, epochs=1, seed=1), settings))[0] != first[0]


def test_fitting_leaves_pytorch_s_generator_alone() -> None:
    run = fit(labelled(), epochs=1)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    fit_task(run, NODE)
    assert torch.equal(torch.rand(3), expected)


def test_a_frozen_encoder_keeps_its_weights_and_a_tuned_one_is_never_worse() -> None:
    events = labelled()
    run = fit(events, epochs=1)
    before = weights(run.model)
    frozen = fit_task(run, NODE)
    assert weights(run.model) == before
    tuned = fit_task(
        fit(events, epochs=1),
        replace_settings(NODE, encoder="tuned", tune_epochs=2, tune_learning_rate=3e-3),
    )
    assert tuned.validation is not None
    assert frozen.validation is not None
    assert tuned.validation["AUC"].value >= frozen.validation["AUC"].value
    assert (weights(tuned.run.model) != before) == (tuned.about["tuned_epoch"] >= 0)


def test_what_the_tuned_encoder_scored_is_what_it_is_kept_with() -> None:
    """The best pass' figure is found again from its weights: nothing of a later pass is left."""
    said: list[str] = []

    class Heard(Listener):
        def message(self, text: str) -> None:
            said.append(text)

    settings = replace_settings(NODE, encoder="tuned", tune_epochs=3, tune_learning_rate=1e-2)
    task = fit_task(fit(labelled(), epochs=1), settings, Heard())
    passes = [float(line.rsplit(" ", 1)[1]) for line in said if line.startswith("tuned")]
    start = max(float(line.rsplit(" ", 1)[1]) for line in said if line.startswith("decoder"))
    assert len(passes) == 3
    assert task.about["tuned_epoch"] == (int(np.argmax(passes)) if max(passes) > start else -1)
    assert task.validation is not None
    assert task.validation["AUC"].value == pytest.approx(max(start, *passes), abs=1e-4)


def test_three_ways_of_balance_are_tried_and_the_best_is_named() -> None:
    said: list[str] = []

    class Heard(Listener):
        def message(self, text: str) -> None:
            said.append(text)

    task = fit_task(fit(labelled(), epochs=1), NODE, Heard())
    lines = [line for line in said if line.startswith("decoder")]
    assert [line.split("balance ")[1].split(":")[0] for line in lines] == [
        "none", "weight", "sampling",
    ]  # fmt: skip
    values = [float(line.rsplit(" ", 1)[1]) for line in lines]
    best = ("none", "weight", "sampling")[int(np.argmax(values))]
    assert task.about["balance"] == best


def test_evaluating_leaves_the_run_where_it_is_unless_asked() -> None:
    events = labelled()
    task = fit_task(fit(events, epochs=1), NODE)
    part = held_out(events)
    first, second = task.evaluate(part), task.evaluate(part, advance=True)
    assert repr(first.metrics) == repr(second.metrics)
    assert task.run.stream.stop == part.stop


def test_a_saved_task_evaluates_to_the_same_bits(tmp_path: Path) -> None:
    events = labelled()
    task = fit_task(fit(events, tmp_path / "run", epochs=1), NODE)
    task.save()
    expected = task.evaluate(held_out(events))
    again = load_task(tmp_path / "run", load_run(tmp_path / "run"))
    found = again.evaluate(held_out(again.run.events))
    assert repr(found.metrics) == repr(expected.metrics)
    assert again.settings == NODE


def test_a_checkpoint_of_no_task_is_refused(tmp_path: Path) -> None:
    run = fit(labelled(), tmp_path / "run", epochs=1)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_task(tmp_path / "run", run)
    folder = tmp_path / "run" / "checkpoints"
    (folder / "task.safetensors").write_bytes((folder / "best.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="no checkpoint of a task"):
        load_task(tmp_path / "run", run)


def test_known_features_reach_the_decoder_and_decide() -> None:
    """The event's own first feature is the number to predict: known, it is read off."""
    events = chatter(600)
    features = np.array(events.features)
    features[:, 1] = 2 * features[:, 0] + 1
    events = replace(events, features=features)
    run = fit(events, epochs=1)
    steps = {"task_epochs": 40, "task_batch_size": 20, "task_learning_rate": 0.01}
    blind = fit_task(run, replace_settings(NUMBER, **steps))
    knowing = fit_task(fit(events, epochs=1), replace_settings(NUMBER, known=("f1",), **steps))
    part = held_out(events)
    assert knowing.evaluate(part).metrics["R2"].value > 0.7
    assert blind.evaluate(part).metrics["R2"].value < 0.3


def test_history_may_be_frozen_at_the_split() -> None:
    events = labelled()
    streaming = fit_task(fit(events, epochs=1), NODE)
    frozen = fit_task(fit(events, epochs=1, history="frozen"), NODE)
    found = frozen.evaluate(held_out(events), advance=True)
    assert "history frozen at the split" in found.metrics["AUC"].protocol
    assert frozen.run.state.version == len(frozen.run.stream.plan)
    assert repr(found.metrics) != repr(streaming.evaluate(held_out(events)).metrics)


def test_a_run_trained_with_staleness_is_walked_without(tmp_path: Path) -> None:
    events = labelled()
    task = fit_task(fit(events, tmp_path / "run", epochs=1, staleness=2), NODE)
    assert [part.staleness for part in task.run.stream.parts] == [0, 0]
    task.save()
    expected = task.evaluate(held_out(events), advance=True)
    task.run.save()
    again = load_task(tmp_path / "run", load_run(tmp_path / "run"))
    assert repr(again.evaluate(held_out(again.run.events)).metrics) == repr(expected.metrics)
    assert load_run(tmp_path / "run", at="stream").stream.stop == held_out(events).stop


@pytest.mark.parametrize("settings", [NODE, NUMBER], ids=["classes", "number"])
def test_new_events_are_predicted_as_known_ones_are_evaluated(
    tmp_path: Path, settings: TaskSettings
) -> None:
    """The test part as known events and as new ones: the same figures from the same state."""
    events = labelled()
    part = held_out(events)
    task = fit_task(fit(events, epochs=1), settings)
    expected = task.evaluate(part).metrics
    head, later = (
        Events.from_arrays(
            events.source[block], events.target[block], events.time[block],
            features=np.asarray(events.features)[block], label=np.asarray(events.label)[block],
            num_nodes=events.schema.num_nodes, bipartite=False,
        )
        for block in (slice(0, part.start), slice(part.start, part.stop))
    )  # fmt: skip
    trained = task.run.stream.parts[0].stop
    trainer = Trainer(small_tgn(head), directory=tmp_path, **{**SETTINGS, "epochs": 1})
    run = trainer.fit(head.range(0, trained, "train"), head.range(trained, name="val"))
    again = fit_task(run, settings)
    again.save()
    decoder = TaskDecoder.load(tmp_path)
    assert decoder is not None
    found = decoder.columns(again.run.predict_events(later, embeddings=True), later)
    if settings is NODE:
        probability = found["label_probability"]
        assert roc_auc(later.label, probability) == pytest.approx(expected["AUC"].value)
    else:
        wanted = np.asarray(later.features)[:, 0]
        error = float(np.mean(np.abs(found["f0_predicted"] - wanted)))
        assert error == pytest.approx(expected["MAE"].value)


# ---------------------------------------------------------------- targets and what is wrong


def test_events_without_a_label_are_left_out() -> None:
    events = labelled()
    label = np.array(events.label)
    label[::3] = -1
    events = replace(events, label=label)
    settings = replace_settings(NODE, unlabelled=-1)
    target = find_target(events, settings)
    assert target.classes == (0.0, 1.0)
    assert target.has_E.sum() == (label >= 0).sum()
    found = fit_task(fit(events, epochs=1), settings).evaluate(held_out(events))
    assert found.metrics["AUC"].count == int((label[held_out(events).start :] >= 0).sum())


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ({"label": None}, {}, "needs a label for each event, and these events have none"),
        ({}, {"target": "speed"}, "there is no event feature 'speed'.*there are f0, f1, and the"),
        ({}, {"target": "f0"}, "240 different values.*choose --task event-regression"),
        ({"label": 0.0}, {}, "all 161 labels label of the training part are 0"),
        ({}, {"known": ("f7",)}, "known='f7': there is no such event feature"),
        ({}, {"unlabelled": 5.0}, "unlabelled=5: no event has this value"),
        ({"label": 2.0}, {"unlabelled": 2.0}, "no event of the training part has a label"),
    ],
)
def test_what_is_wrong_is_said(
    change: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    events = labelled()
    if isinstance(change.get("label"), float):
        change = {"label": np.full(len(events), change["label"], np.float32)}
    events = replace(events, **change)
    with pytest.raises(SettingError, match=message):
        fit_task(fit(events, epochs=1), replace_settings(NODE, **settings))


def test_a_target_may_not_be_known_before() -> None:
    with pytest.raises(SettingError, match="that is the target"):
        fit_task(fit(labelled(), epochs=1), replace_settings(NUMBER, known=("f0",)))


def test_one_class_in_validation_has_no_auc_to_choose_by() -> None:
    events = labelled()
    label = np.array(events.label)
    label[160:208] = 0
    with pytest.raises(SettingError, match="of the validation part are 0"):
        fit_task(fit(replace(events, label=label), epochs=1), NODE)


def test_one_class_in_the_test_is_undefined_not_an_error() -> None:
    events = labelled()
    label = np.array(events.label)
    label[208:] = 0
    events = replace(events, label=label)
    found = fit_task(fit(events, epochs=1), NODE).evaluate(held_out(events))
    assert "are negative" in found.metrics["AUC"].undefined


def test_a_label_that_is_no_number_names_its_row() -> None:
    events = labelled()
    label = np.array(events.label)
    label[5] = np.nan
    with pytest.raises(InputError, match=r"row 6 .*column label: the label is nan"):
        find_target(replace(events, label=label), NODE)


def test_a_run_past_validation_is_refused() -> None:
    events = labelled()
    run = fit(events, epochs=1)
    run.advance(held_out(events).stop)
    with pytest.raises(SettingError, match="moved past validation"):
        fit_task(run, NODE)


# ---------------------------------------------------------------- baselines and figures


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 3)), min_size=4))
def test_past_labels_equal_a_plain_loop(rows: list[tuple[int, int, int]]) -> None:
    """(source, time, label): strictly earlier labels of the same source, ties excluded."""
    rows.sort(key=lambda row: row[1])
    source, time, label = zip(*rows, strict=True)
    events = Events.from_arrays(
        source, [3] * len(rows), time, label=[float(x) for x in label], bipartite=False
    )
    target = find_target(events, TaskSettings(task="event-regression"))
    stop = len(rows) // 2
    found = past_predictions(events, target, np.arange(len(rows)), stop)
    prior = float(np.mean(label[:stop]))
    for at, (node, now, _) in enumerate(rows):
        past = [x for n, t, x in rows if n == node and t < now]
        assert found["training mean"][at] == pytest.approx(prior)
        assert found["last of the source"][at] == pytest.approx(past[-1] if past else prior)
        assert found["mean of the source"][at] == pytest.approx(np.mean(past) if past else prior)


def test_figures_of_numbers_by_hand() -> None:
    found = Number(0.0, 1.0).figures(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 5.0]), "")
    assert found["MAE"].value == pytest.approx(2 / 3)
    assert found["RMSE"].value == pytest.approx(np.sqrt(4 / 3))
    assert found["R2"].value == pytest.approx(1 - 4 / 2)


def test_figures_of_three_classes_are_means_against_the_rest() -> None:
    value = np.array([0, 1, 2, 1])
    share = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4], [0.5, 0.4, 0.1]])
    found = Classes(3).figures(value, share, "labels")
    expected = np.mean([roc_auc(value == k, share[:, k]) for k in range(3)])
    assert found["AUC"].value == pytest.approx(float(expected))
    assert found["accuracy"].value == 0.75
    assert "each against the rest" in found["AUC"].protocol


def test_classes_weigh_the_same_in_total() -> None:
    value = np.array([0] * 9 + [2])
    weight = class_weights(value, 3).numpy()
    assert weight[0] * 9 == pytest.approx(weight[2])
    assert weight[1] == 0


def test_ndcg_by_hand_and_with_ties() -> None:
    """Weights 3, 1: DCG = 3 / log2(2) + 1 / log2(3); a constant score averages all places."""
    truth = np.array([[3.0, 1.0, 0.0]])
    ideal = 3 + 1 / np.log2(3)
    assert ndcg(truth, np.array([[0.1, 0.9, 0.5]]))[0] == pytest.approx(
        (1 / 1 + 3 / np.log2(4)) / ideal
    )
    discount = (1 + 1 / np.log2(3) + 0.5) / 3
    assert ndcg(truth, np.array([[0.5, 0.5, 0.5]]))[0] == pytest.approx(4 * discount / ideal)


def replace_settings(settings: TaskSettings, **changes: Any) -> TaskSettings:
    return TaskSettings.of({**settings.model_dump(), **changes})
