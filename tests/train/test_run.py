"""A trained run in use: original ids in and out, a state that moves forward, files that move."""

from __future__ import annotations

import itertools
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tidegraph as tg
from tidegraph.batches import Uses
from tidegraph.errors import (
    CheckpointError,
    HistoryError,
    InputError,
    SettingError,
    UnknownNodeError,
)
from tidegraph.events import Events
from tidegraph.train import EagerExecutor, Listener, Run, load_run
from tidegraph.train.checkpoint import load_checkpoint, save_checkpoint
from tidegraph.train.predictions import sigmoid
from tidegraph.train.run_files import RunFiles
from tidegraph.train.stream import Part
from training import (
    SETTINGS,
    Forgetful,
    Stopped,
    chatter,
    fit,
    held_out,
    outcome,
    small_tgn,
    weights,
)

EVENTS = chatter()


def part(events: Events, start: int, stop: int, num_nodes: int = 12) -> Events:
    """Some of the events, as a table of its own."""
    return Events.from_arrays(
        events.source[start:stop], events.target[start:stop], events.time[start:stop],
        features=events.features[start:stop], num_nodes=num_nodes, bipartite=False,
    )  # fmt: skip


def known_run(directory: Path | None = None) -> Run:
    """A run that knows the first 104 events only; 16 more are to come."""
    known = part(EVENTS, 0, 104)
    train, val = known.range(0, 80, "train"), known.range(80, 104, "val")
    settings = {**SETTINGS, "epochs": 2, "evaluation_batch_size": 6}
    return tg.Trainer(small_tgn(known), directory=directory, **settings).fit(train, val)


@pytest.fixture(scope="module")
def shared() -> Run:
    """Never moved by the tests that use it."""
    return fit(EVENTS)


# ---------------------------------------------------------------- pairs


def test_pairs_are_scored_by_the_model_after_all_that_was_streamed(shared):
    """Written out: read the state after validation, embed both ends, decode."""
    found = shared.predict(([0, 3, 3], [5, 2, 7]), time=300)
    batch = shared.stream.preparer.prepare_query(
        np.array([0, 3, 3], np.int32), np.array([[5], [2], [7]], np.int32), np.array([300] * 3)
    )
    with torch.inference_mode():
        logit_BC, _ = shared.model(batch, *shared.state.read(batch))
    assert found.score.tolist() == sigmoid(logit_BC[:, 0].numpy()).tolist()
    assert found.source.tolist() == [0, 3, 3]
    assert found.target.tolist() == [5, 2, 7]
    assert found.time.tolist() == [300] * 3


def test_a_pair_scores_as_the_event_would():
    """The next event's score when it happens is what `predict` said of it before."""
    run = known_run()
    time = EVENTS.time[104]
    assert time > EVENTS.time[103]
    first = int(np.searchsorted(EVENTS.time, time, "right"))
    happened = part(EVENTS, 104, first)
    said = run.predict((happened.source, happened.target), time=time)
    scored = run.predict_events(happened)
    assert scored.score.tolist() == pytest.approx(said.score.tolist(), abs=1e-6)


def test_rows_and_columns_are_the_same(shared):
    columns = shared.predict(([0, 3], [5, 2])).score.tolist()
    assert shared.predict([(0, 5), (3, 2)]).score.tolist() == columns
    assert shared.predict(np.array([[0, 5], [3, 2]])).score.tolist() == columns
    assert shared.predict((0, 5)).score.tolist() == pytest.approx(columns[:1], abs=1e-6)


def test_many_pairs_equal_few(shared):
    source, target = np.divmod(np.arange(5000) % 144, 12)
    found = shared.predict((source, target)).score
    assert np.allclose(found[:144], found[144:288], atol=1e-6)
    assert np.allclose(found[4032:4176], found[:144], atol=1e-6)
    assert len(shared.predict(([], []))) == 0


def test_events_that_were_not_streamed_have_not_happened(shared):
    """The run knows the test events, but stands before them: they are no history yet.

    Their mail and their edges once leaked into queries made right after training.
    """
    source, target = EVENTS.source.copy(), EVENTS.target.copy()
    source[104:], target[104:] = 7, 8
    features = EVENTS.features.copy()
    features[104:] = 50
    other = Events.from_arrays(
        source, target, EVENTS.time, features=features, num_nodes=12, bipartite=False
    )
    pairs = np.array(np.divmod(np.arange(144), 12)).T
    for time in (None, 10**6):
        here = shared.predict(pairs, time=time).score
        assert here.tolist() == fit(other).predict(pairs, time=time).score.tolist()
        assert (
            shared.embed(time=time).embedding.tolist()
            == fit(other).embed(time=time).embedding.tolist()
        )


def test_the_query_time_matters(shared):
    """Case I46."""
    near, far = (shared.predict([(0, 1)], time=t).score[0] for t in (240, 10**7))
    assert near != far


def test_each_pair_may_have_its_own_time(shared):
    both = shared.predict([(0, 1), (0, 1)], time=[240, 10**7]).score
    alone = [shared.predict([(0, 1)], time=t).score[0] for t in (240, 10**7)]
    assert both.tolist() == pytest.approx(alone, abs=1e-6)


def test_a_time_in_the_past_is_refused(shared):
    last = int(EVENTS.time[103])
    with pytest.raises(HistoryError, match=rf"query time {last - 1} is before .* at {last}"):
        shared.predict([(0, 1), (0, 2)], time=[last, last - 1])
    with pytest.raises(HistoryError):
        shared.embed(time=0)


@pytest.mark.parametrize(
    "time", ["tomorrow", np.datetime64("2020-01-01"), [1, 2, 3], 240.5, float("nan"), 1e300, None]
)
def test_a_time_of_another_kind_is_refused(shared, time):
    if time is None:
        assert shared.predict([(0, 1)], time=None).time.tolist() == [EVENTS.time[103]]
        return
    with pytest.raises(SettingError, match="query time"), np.errstate(invalid="ignore"):
        shared.predict([(0, 1), (1, 2)], time=time)


def test_unknown_ids_and_odd_pairs_are_named(shared):
    with pytest.raises(UnknownNodeError, match="99"):
        shared.predict([(0, 99)])
    with pytest.raises(UnknownNodeError, match="-1"):
        shared.embed([-1])
    with pytest.raises(SettingError, match="1 sources and 2 targets"):
        shared.predict(([0], [1, 2]))
    with pytest.raises(SettingError, match=r"pairs of shape \(3,\)"):
        shared.predict([0, 1, 2])


def test_a_node_without_a_past_is_scored(shared):
    """Case I52: an id that no streamed event has, from zero state; nothing is not a number."""
    events = Events.from_arrays(
        EVENTS.source, EVENTS.target, EVENTS.time, features=EVENTS.features, num_nodes=20,
        bipartite=False,
    )  # fmt: skip
    run = fit(events)
    assert np.isfinite(run.predict([(19, 18), (19, 0), (0, 19)]).score).all()
    rows = run.embed([17, 19]).embedding
    assert rows[0].tolist() == pytest.approx(rows[1].tolist(), abs=1e-6)


# ---------------------------------------------------------------- ids


def read(tmp_path: Path, rows: list[tuple[Any, Any, int]]) -> Events:
    path = tmp_path / "table.csv"
    path.write_text("u,v,t\n" + "".join(f"{u},{v},{t}\n" for u, v, t in rows))
    return tg.read_table(path, source="u", target="v", time="t")


def test_text_ids_come_back(tmp_path):
    events = read(tmp_path, [(f"anna{n % 4}", f"item {n % 3}", n) for n in range(60)])
    assert events.schema.bipartite
    run = fit(events)
    found = run.predict([("anna3", "item 0"), ("anna0", "item 2")])
    assert found.source.tolist() == ["anna3", "anna0"]
    assert found.target.tolist() == ["item 0", "item 2"]
    embedded = run.embed()
    assert sorted(embedded.node.tolist()) == sorted(
        [f"anna{n}" for n in range(4)] + [f"item {n}" for n in range(3)]
    )
    assert run.embed("anna3").node.tolist() == ["anna3"]
    with pytest.raises(UnknownNodeError, match="'item 0' is a target in these events, not a"):
        run.predict([("item 0", "anna3")])
    with pytest.raises(UnknownNodeError, match=r"Did you mean 'anna3'"):
        run.predict([("anna33", "item 0")])


def test_large_integer_ids_come_back(tmp_path):
    """Case I25: a million million is an id, not a size."""
    events = read(tmp_path, [(10**12 + n % 4, 5 * 10**11 + n % 3, n) for n in range(60)])
    run = fit(events)
    found = run.predict([(10**12 + 3, 5 * 10**11)])
    assert found.source.tolist() == [10**12 + 3]
    assert run.predict([(str(10**12 + 3), str(5 * 10**11))]).score == found.score
    assert run.embed().embedding.shape == (7, 6)


def test_the_same_id_on_both_sides_is_two_nodes(tmp_path):
    """User 1 and item 1, where the table is read as bipartite."""
    path = tmp_path / "table.csv"
    path.write_text("u,v,t\n" + "".join(f"{n % 4},{n % 3},{n}\n" for n in range(60)))
    events = tg.read_table(path, source="u", target="v", time="t", bipartite=True)
    assert events.schema.num_nodes == 7
    run = fit(events)
    assert run.predict([(1, 1)]).score.shape == (1,)
    with pytest.raises(SettingError, match="side='source'"):
        run.embed([1])
    one, other = (run.embed([1], side=side).embedding for side in ("source", "target"))
    assert one.tolist() != other.tolist()


# ---------------------------------------------------------------- embeddings


def test_embeddings_are_those_that_scores_are_made_of(shared):
    found = shared.embed([3, 5])
    with torch.no_grad():
        seed_SD = torch.from_numpy(found.embedding)
        uses = Uses(torch.arange(3, dtype=torch.int32), torch.arange(2, dtype=torch.int32))
        batch = SimpleNamespace(root_R=torch.arange(2, dtype=torch.int32), root_uses=uses, size=1)
        logit = shared.model.decode(batch, seed_SD)
    score = shared.predict([(3, 5)]).score
    assert sigmoid(logit[0].numpy()).tolist() == pytest.approx(score.tolist(), abs=1e-6)
    assert found.columns()["node"].tolist() == [3, 5]


def test_embedding_changes_nothing(shared):
    before = shared.state.checksum()
    assert shared.embed().embedding.tolist() == shared.embed().embedding.tolist()
    assert shared.embed().embedding.shape == (12, 6)
    assert shared.embed([]).embedding.shape == (0, 6)
    assert shared.state.checksum() == before


# ---------------------------------------------------------------- moving forward


def test_advancing_is_evaluating_without_the_figures():
    one, other, third = fit(EVENTS), fit(EVENTS), fit(EVENTS)
    one.advance()
    other.evaluate(held_out(EVENTS), advance=True)
    third.advance(110)
    third.advance()
    assert one.state.version == other.state.version == one.stream.plan.__len__()
    assert torch.allclose(one.state.memory_ND, other.state.memory_ND, atol=1e-6)
    assert one.stream.stop == other.stream.stop == third.stream.stop == 120
    before = one.state.checksum()
    one.advance()
    one.advance(120)
    assert one.state.checksum() == before


def test_positions_that_cannot_be_are_refused():
    run = fit(EVENTS)
    with pytest.raises(HistoryError, match="there is no event 121: the run knows 120"):
        run.advance(121)
    run.advance(110)
    with pytest.raises(HistoryError, match=r"go on at event 105, but .* up to 110"):
        run.advance(105)
    with pytest.raises(HistoryError, match="go on at event 104, but"):
        run.evaluate(held_out(EVENTS))
    assert run.evaluate(EVENTS.range(112, 120, "late")).events == 8


def test_a_range_of_other_events_is_refused(shared):
    with pytest.raises(SettingError, match="not the ones the run knows: use predict_events"):
        shared.evaluate(held_out(chatter(130)))


def test_equal_events_read_again_are_the_same(shared):
    assert shared.evaluate(held_out(chatter())).metrics == shared.evaluate(held_out(EVENTS)).metrics


# ---------------------------------------------------------------- new events


@pytest.mark.parametrize("steps", [(104, 120), (104, 110, 116, 120)])
def test_events_that_arrive_equal_events_that_were_there(steps):
    """Online: inserted then predicted == known all along; in one go or in several.

    Borders of batches are borders of knowledge, so the steps are multiples of the batch size.
    """
    whole = fit(EVENTS, epochs=2, evaluation_batch_size=6)
    arriving = known_run()
    assert weights(whole.model) == weights(arriving.model)
    assert whole.state.checksum() == arriving.state.checksum()

    stream = whole.stream.with_part(Part("test", 104, 120, 6))
    executor = EagerExecutor(whole.model, whole.state)
    expected = []
    for number in stream.phase("test").batches:
        nothing = np.empty((len(stream.plan.events(number)), 0), np.int32)
        expected.append(executor.score(stream.preparer.prepare(number, nothing))[:, 0])
    found = [
        arriving.predict_events(part(EVENTS, start, stop)).score
        for start, stop in itertools.pairwise(steps)
    ]
    assert np.concatenate(found).tolist() == sigmoid(np.concatenate(expected)).tolist()
    assert arriving.state.checksum() == whole.state.checksum()
    assert arriving.stream.events.fingerprint == EVENTS.fingerprint


def test_new_nodes_start_empty_and_are_known_afterwards():
    run = known_run()
    later = Events.from_arrays(
        [12, 12], [13, 3], [10**4, 10**4 + 1], features=np.zeros((2, 2)), bipartite=False
    )
    with pytest.raises(UnknownNodeError):
        run.predict([(12, 3)])
    found = run.predict_events(later, candidates=4, embeddings=True)
    assert np.isfinite(found.score).all()
    assert found.source.tolist() == [12, 12]
    assert found.row.tolist() == [0, 1]
    assert found.source_embedding.shape == found.target_embedding.shape == (2, 6)
    assert ((found.rank >= 1) & (found.rank <= 5)).all()
    assert run.state.num_nodes == 14
    known = run.predict([(12, 3), (0, 3)]).score
    assert known[0] != known[1]


def test_embeddings_are_from_before_the_event():
    """Of both ends, before each batch: what `embed` says at the event's time."""
    run, other = known_run(), known_run()
    time = int(EVENTS.time[104])
    said = other.embed([int(EVENTS.source[104]), int(EVENTS.target[104])], time=time).embedding
    found = run.predict_events(part(EVENTS, 104, 105), embeddings=True)
    assert found.source_embedding[0].tolist() == pytest.approx(said[0].tolist(), abs=1e-6)
    assert found.target_embedding[0].tolist() == pytest.approx(said[1].tolist(), abs=1e-6)


def test_known_events_that_were_skipped_are_streamed_first():
    """The run knows test events it has not seen: new ones come after them."""
    run, careful = fit(EVENTS), fit(EVENTS)
    later = part(chatter(140), 120, 140)
    time = later.time + EVENTS.time[-1]
    later = Events.from_arrays(
        later.source, later.target, time, features=later.features, num_nodes=12, bipartite=False
    )
    careful.advance()
    assert run.predict_events(later).score.tolist() == careful.predict_events(later).score.tolist()
    assert run.state.checksum() == careful.state.checksum()


def test_no_new_events_are_no_predictions():
    run = known_run()
    found = run.predict_events(part(EVENTS, 104, 104), candidates=3, embeddings=True)
    assert len(found) == 0
    assert found.rank.shape == (0,)
    assert found.source_embedding.shape == (0, 6)
    assert run.predict([(0, 1)]).score.shape == (1,)


def test_labels_of_new_events_are_not_needed():
    labelled = replace(part(EVENTS, 0, 104), label=np.ones(104, np.float32))
    run = known_run()
    run.stream = replace(run.stream, events=labelled)
    found = run.predict_events(part(EVENTS, 104, 120))
    assert found.score.tolist() == known_run().predict_events(part(EVENTS, 104, 120)).score.tolist()


class Breaks(Listener):
    """Stops after the first batch."""

    def advanced(self, events: int, loss: float | None) -> None:
        raise Stopped


def test_after_an_error_the_run_stands_where_it_stood():
    run = fit(EVENTS)
    before = outcome(run)
    early = part(EVENTS, 0, 5)
    later = Events.from_arrays([0, 1], [1, 2], [10**4] * 2, features=np.ones((2, 2)))
    wide = Events.from_arrays([0, 1], [1, 2], [10**4] * 2, features=np.ones((2, 3)))
    with pytest.raises(InputError, match="earlier than the last"):
        run.predict_events(early)
    with pytest.raises(SettingError, match="built for 2 event features, the data has 3"):
        run.predict_events(wide)
    with pytest.raises(Stopped):
        run.predict_events(later, listener=Breaks())
    with pytest.raises(Stopped):
        run.evaluate(held_out(EVENTS), advance=True, listener=Breaks())
    assert outcome(run) == before
    assert run.evaluate(held_out(EVENTS)).events == 16
    assert len(run.predict_events(later)) == 2


# ---------------------------------------------------------------- kept on disk


def test_a_run_is_opened_as_it_was_returned(tmp_path):
    run = fit(EVENTS, tmp_path)
    found = load_run(tmp_path)
    assert outcome(found) == outcome(run)
    assert found.records == run.records
    assert found.settings == run.settings
    assert not found.model.training
    assert found.evaluate(held_out(found.events)).metrics == run.evaluate(held_out(EVENTS)).metrics


def test_a_saved_stream_goes_on_exactly(tmp_path):
    """New events, saved, opened, more new events: as if never closed."""
    run, straight = known_run(tmp_path), known_run()
    for one in (run, straight):
        one.predict_events(part(EVENTS, 104, 110))
    path = run.save()
    assert path == RunFiles(tmp_path).stream
    again = load_run(tmp_path, at="stream")
    assert again.state.checksum() == straight.state.checksum()
    assert (again.best_epoch, again.records) == (run.best_epoch, run.records)
    assert (
        again.predict_events(part(EVENTS, 110, 120)).score.tolist()
        == straight.predict_events(part(EVENTS, 110, 120)).score.tolist()
    )
    assert again.state.checksum() == straight.state.checksum()
    # Saved a second time, with other events of the same number: not mistaken for the first.
    again.save()
    third = load_run(tmp_path, at="stream")
    assert third.state.checksum() == straight.state.checksum()
    best = load_run(tmp_path)
    other = part(EVENTS, 104, 110)
    best.predict_events(replace(other, features=other.features * 2))
    best.predict_events(part(EVENTS, 110, 120))
    best.save()
    fourth = load_run(tmp_path, at="stream")
    assert fourth.state.checksum() == best.state.checksum() != third.state.checksum()
    assert load_run(tmp_path).stream.stop == 104


def test_saving_without_new_events_keeps_no_second_copy(tmp_path):
    run = fit(EVENTS, tmp_path)
    run.evaluate(held_out(EVENTS), advance=True)
    run.save()
    assert [p.name for p in tmp_path.glob("events*")] == ["events"]
    assert load_run(tmp_path, at="stream").stream.stop == 120
    assert load_run(tmp_path, at="best").stream.stop == 104


def test_hidden_nodes_are_kept(tmp_path):
    run = fit(EVENTS, tmp_path, hidden=0.25)
    expected = run.evaluate(held_out(EVENTS))
    assert expected.inductive is not None
    found = load_run(tmp_path).evaluate(held_out(EVENTS))
    assert found.inductive == expected.inductive
    run.advance()
    run.save()
    stream = load_run(tmp_path, at="stream").stream
    assert stream.hidden_nodes.tolist() == run.stream.hidden_nodes.tolist()


def test_a_run_that_moved_with_its_events_is_opened(tmp_path):
    run = fit(EVENTS, tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert outcome(load_run(tmp_path / "there")) == outcome(run)


def test_events_that_are_gone_may_be_given(tmp_path):
    run = fit(EVENTS, tmp_path)
    shutil.rmtree(tmp_path / "events")
    with pytest.raises(CheckpointError, match=r"events of this run are gone.*pass them with"):
        load_run(tmp_path)
    assert outcome(load_run(tmp_path, events=EVENTS)) == outcome(run)
    with pytest.raises(CheckpointError, match="has changed since the run was made"):
        load_run(tmp_path, events=chatter(130))


def test_events_that_changed_are_refused(tmp_path):
    """Where the run was made from a store that is now another one."""
    chatter().save(tmp_path / "store")
    events = tg.events.store.open_events(tmp_path / "store")
    fit(events, tmp_path / "run")
    assert not list((tmp_path / "run").glob("events*"))
    assert load_run(tmp_path / "run").stream.stop == 104
    shutil.rmtree(tmp_path / "store")
    chatter(130).save(tmp_path / "store")
    with pytest.raises(CheckpointError, match=r"the data of .* has changed"):
        load_run(tmp_path / "run")


def test_other_events_do_not_hide_behind_a_copy(tmp_path):
    """A directory with the events of a run that never got to its first checkpoint."""
    chatter(130).save(tmp_path / "run" / "events")
    run = fit(EVENTS, tmp_path / "run")
    assert outcome(load_run(tmp_path / "run")) == outcome(run)


@pytest.mark.parametrize("what", ["nothing", "config", "yaml", "best"])
def test_what_is_no_run_is_named(tmp_path, what):
    directory = tmp_path / "run"
    if what in ("yaml", "best"):
        fit(EVENTS, directory)
    if what == "config":
        directory.mkdir()
        (directory / "config.yaml").write_text("- a list\n")
    if what == "yaml":
        (directory / "config.yaml").write_text("a: [")
    if what == "best":
        RunFiles(directory).best.unlink()
    named = {
        "nothing": "not the directory of a run: it has no config.yaml",
        "config": "is not the settings of a run",
        "yaml": "cannot be read as YAML",
        "best": "no checkpoint at",
    }
    with pytest.raises(CheckpointError, match=named[what]):
        load_run(directory)


def test_at_is_checked(tmp_path):
    fit(EVENTS, tmp_path)
    with pytest.raises(SettingError, match="at='last': expected 'best' or 'stream'"):
        load_run(tmp_path, at="last")
    assert load_run(tmp_path, at="stream").stream.stop == 104, "never saved: the best"


def test_a_run_without_a_directory_cannot_be_saved(shared):
    with pytest.raises(SettingError, match="this run has no directory"):
        shared.save()


def test_a_device_may_be_chosen(tmp_path):
    run = fit(EVENTS, tmp_path)
    assert outcome(load_run(tmp_path, device="cpu")) == outcome(run)
    absent = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(SettingError, match="PyTorch sees"):
        load_run(tmp_path, device=absent)


# ---------------------------------------------------------------- models of one's own


def test_a_model_of_ones_own_comes_with_everything(tmp_path):
    """No memory, no neighbours, tied weights, PyTorch's dropout: trained, kept, evaluated, used."""
    torch.manual_seed(0)
    run = fit(EVENTS, tmp_path, model=Forgetful(EVENTS.schema, width=5))
    assert run.state.memory_ND.shape == (12, 0)
    assert run.model.settings == {"width": 5, "unused": (3,)}
    found = load_run(tmp_path, model=Forgetful(EVENTS.schema, width=5))
    assert outcome(found) == outcome(run)
    assert found.evaluate(held_out(EVENTS)).metrics == run.evaluate(held_out(EVENTS)).metrics
    assert found.predict([(0, 1)]).score == run.predict([(0, 1)]).score
    assert run.embed([4]).embedding.shape == (1, 5)
    later = part(chatter(130), 120, 130)
    later = replace(later, time=later.time + EVENTS.time[-1])
    assert len(run.predict_events(later)) == 10
    run.save()
    again = load_run(tmp_path, at="stream", model=Forgetful(EVENTS.schema, width=5))
    assert again.stream.stop == 130


def test_another_model_than_the_runs_is_named(tmp_path):
    fit(EVENTS, tmp_path, model=Forgetful(EVENTS.schema, width=5))
    with pytest.raises(CheckpointError, match=r"Forgetful, which is not one of .*model=.*'width'"):
        load_run(tmp_path)
    with pytest.raises(CheckpointError, match=r"'width': 5.* the given one is .*'width': 4"):
        load_run(tmp_path, model=Forgetful(EVENTS.schema))
    with pytest.raises(CheckpointError, match=r"'name': 'Forgetful'.*'name': 'tgn'"):
        load_run(tmp_path, model=small_tgn(EVENTS))


def test_weights_of_another_shape_are_named(tmp_path):
    """The same name and settings, but another class behind them."""
    fit(EVENTS, tmp_path)
    path = RunFiles(tmp_path).best
    checkpoint = load_checkpoint(path)
    checkpoint.tensors["weights.output_layer.weight"] = torch.zeros(1, 9)
    save_checkpoint(path, checkpoint)
    with pytest.raises(CheckpointError, match="is of another model than TGN"):
        load_run(tmp_path)


# ---------------------------------------------------------------- how a run shows itself


def test_a_run_says_what_it_is(tmp_path, shared):
    assert re.fullmatch(
        r"<Run of tgn in memory: 104 of 120 events streamed, best epoch \d of 3 "
        r"\(validation AP 0\.\d{4}, AUC 0\.\d{4}\)>",
        repr(shared),
    )
    fit(EVENTS, tmp_path / "kept", epochs=1)
    assert f"in {tmp_path / 'kept'}: " in str(load_run(tmp_path / "kept"))


def test_precision_is_the_runs_and_survives_loading(tmp_path):
    run = fit(EVENTS, tmp_path / "rounded", precision="bf16")
    plain = fit(EVENTS)
    assert run.state.checksum() != plain.state.checksum()
    again = load_run(tmp_path / "rounded", events=EVENTS)
    assert again.model.precision == "bf16"
    assert again.predict([(3, 5)]).score.tolist() == run.predict([(3, 5)]).score.tolist()
