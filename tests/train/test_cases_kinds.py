"""Users' cases of other kinds of event: deletions, changing features, types, passing nodes.

What there is no operation for is an event of its own: then time decides who knows of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegraph as tg
from tidegraph.batches import History
from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
from tidegraph.errors import SettingError
from tidegraph.events import Events, read_table
from tidegraph.history import TemporalIndex
from tidegraph.models import build_model
from tidegraph.state import NodeState
from tidegraph.train import EagerExecutor, Stream
from tidegraph.train.stream import Part
from training import fit, held_out, outcome, small_tgn

DOCS = Path(__file__).parents[2] / "docs" / "usage.md"


# ---------------------------------------------------------------- deletions (I54)

#  0 -t1- 2    1 -t2- 2    "2 is deleted" at t3    1 -t4- 3


def test_i54_what_happened_stays_history_and_the_manual_says_so() -> None:
    """Nodes and events are not deleted: node 2 is a candidate and a neighbour at t4 as before."""
    events = Events.from_arrays([0, 1, 1], [2, 2, 3], [1, 2, 4], num_nodes=4, bipartite=False)
    index = TemporalIndex.from_events(events)
    assert index.sample([1], [4], k=5).neighbor_SK[0, :1].tolist() == [2]
    drawn = NegativeSampler(events, NegativeSettings(strategy="seen", pool="all"))
    assert 2 in drawn.candidates(2, 3, count=200).node_BC
    text = " ".join(DOCS.read_text().split())
    assert "Nodes and events cannot be deleted" in text


# ---------------------------------------------------------------- features that change (I55)


def scored(value: float) -> list[float]:
    """Scores of node 0's events at 9, 10 and 11; its feature is 1 from t=0, `value` from t=10.

    A change is an event of the node with itself that carries the new value.
    """
    events = Events.from_arrays(
        [0, 0, 0, 0, 0, 0], [0, 1, 2, 0, 2, 2], [0, 5, 9, 10, 10, 11],
        features=[[1.0], [0.0], [0.0], [value], [0.0], [0.0]], num_nodes=3, bipartite=False,
    )  # fmt: skip
    model = build_model("tgat", events.schema, time=4, embedding=6, neighbors=4).eval()
    stream = Stream.open(events, (Part("all", 0, 6, 1),), model.history)
    executor = EagerExecutor(model, NodeState(3, model.columns))
    nothing = np.empty((1, 0), np.int32)
    found = [executor.score(stream.preparer.prepare(number, nothing)).item() for number in range(6)]
    return [found[2], found[4], found[5]]


def test_i55_a_later_value_is_never_known_earlier() -> None:
    five, six = scored(5), scored(6)
    assert five[0] == six[0]
    assert five[1] == six[1]  # the tie rule: strictly before
    assert abs(five[2] - six[2]) > 1e-6


def test_i55_node_features_of_two_times_are_refused() -> None:
    """A table of node features holds one row a node: the second value has no time to belong to."""
    with pytest.raises(tg.InputError, match="node 0 stands in rows 1, 2"):
        read_table(
            {"u": [0], "v": [1], "t": [1]}, source="u", target="v", time="t",
            node_features={"id": [0, 0, 1], "x": [1, 5, 2]}, node_id="id",
        )  # fmt: skip


# ---------------------------------------------------------------- types (I56)


@st.composite
def typed_events(draw: st.DrawFn) -> Events:
    """Events of three types; a feature beside them says which event it is."""
    count, nodes = draw(st.integers(1, 24)), draw(st.integers(1, 5))
    ends = draw(
        st.lists(
            st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)),
            min_size=count,
            max_size=count,
        )
    )
    time = sorted(draw(st.lists(st.integers(0, 12), min_size=count, max_size=count)))
    kind = np.array(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    return Events.from_arrays(
        [u for u, _ in ends], [v for _, v in ends], time,
        features=np.concatenate([np.eye(3)[kind], np.arange(count)[:, None]], axis=1),
        feature_names=["kind=a", "kind=b", "kind=c", "number"],
        num_nodes=nodes, bipartite=False,
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(typed_events(), st.sampled_from([("kind=a",), ("kind=b", "kind=c")]), st.integers(1, 7))
def test_i56_only_events_of_the_types_are_neighbours(
    events: Events, types: tuple[str, ...], batch_size: int
) -> None:
    """Both hops, against a scan of all events."""
    history = History(neighbors=(2, 2), memory=False)
    parts = (Part("all", 0, len(events), batch_size),)
    stream = Stream.open(events, parts, history, neighbor_types=types)
    assert events.features is not None
    allowed = [events.schema.feature_names[int(row[:3].argmax())] in types
               for row in events.features]  # fmt: skip

    def latest(node: int, time: int) -> list[int]:
        found = [e for e in range(len(events)) if allowed[e] and events.time[e] < time
                 and node in (events.source[e], events.target[e])]  # fmt: skip
        return found[-2:]

    for number in stream.phase("all").batches:
        event_B = stream.plan.events(number)
        batch = stream.preparer.prepare(number, np.empty((len(event_B), 0), np.int32))
        outer = batch.hops[-1]
        number_E = batch.features[:, 3]
        for root, seed in enumerate(batch.root_R.tolist()):
            event = int(event_B[root % len(event_B)])
            side = events.source if root < len(event_B) else events.target
            expected = latest(int(side[event]), int(events.time[event]))
            used = outer.event_SK[seed, : int(outer.count_S[seed])]
            assert number_E[used.long()].tolist() == expected
        for hop in batch.hops:
            for seed, count in enumerate(hop.count_S.tolist()):
                used = hop.event_SK[seed, :count].long()
                assert all(allowed[int(event)] for event in number_E[used].tolist())


def test_i56_memory_remembers_events_of_every_type() -> None:
    """Neighbours are filtered, mail is not: memory is the same, what is made of it differs."""
    draw = np.random.default_rng(2)
    kind = np.eye(2)[draw.integers(0, 2, 60)]
    events = Events.from_arrays(
        draw.integers(0, 8, 60), draw.integers(0, 8, 60), np.arange(60), features=kind,
        feature_names=["kind=buy", "kind=view"], num_nodes=8, bipartite=False,
    )  # fmt: skip
    model = small_tgn(events).eval()
    states, scores = [], []
    for types in ((), ("kind=buy",), ("kind=buy", "kind=view")):
        stream = Stream.open(events, (Part("all", 0, 60, 7),), model.history, neighbor_types=types)
        state = NodeState(8, model.columns)
        executor = EagerExecutor(model, state)
        logits = [
            executor.score(stream.preparer.prepare(number, np.full((len(event_B), 1), 3, np.int32)))
            for number in stream.phase("all").batches
            for event_B in [stream.plan.events(number)]
        ]
        states.append(state.checksum())
        scores.append(np.concatenate(logits))
    assert states[0] == states[1] == states[2]
    assert (scores[0] == scores[2]).all()
    assert np.abs(scores[0] - scores[1]).max() > 1e-5


def test_i56_training_resuming_and_loading_keep_the_types(tmp_path: Path) -> None:
    draw = np.random.default_rng(4)
    events = Events.from_arrays(
        draw.integers(0, 9, 120), draw.integers(0, 9, 120), np.arange(120),
        features=np.eye(2)[draw.integers(0, 2, 120)], feature_names=["kind=buy", "kind=view"],
        num_nodes=9, bipartite=False,
    )  # fmt: skip
    typed = {"neighbor_types": ("kind=buy",), "epochs": 1}
    run = fit(events, tmp_path / "run", **typed)
    assert outcome(run)["weights"] != outcome(fit(events, epochs=1))["weights"]
    opened = tg.load_run(tmp_path / "run")
    assert opened.stream.neighbor_types == ("kind=buy",)
    part = held_out(events)
    found, again = run.evaluate(part).metrics, opened.evaluate(held_out(opened.events)).metrics
    assert found.values() == again.values()
    assert outcome(fit(events, tmp_path / "run", resume=True, **typed)) == outcome(run)
    with pytest.raises(SettingError, match="no event feature 'kind=bought'"):
        fit(events, neighbor_types=("kind=bought",))


def test_i56_a_type_is_learned_as_a_vector() -> None:
    """The first product that reads a type's feature adds one column of weights: its embedding."""
    events = Events.from_arrays(
        [0, 1] * 20, [2, 3] * 20, np.arange(40), features=np.eye(2)[np.arange(40) % 2],
        feature_names=["kind=buy", "kind=view"],
    )  # fmt: skip
    model = small_tgn(events)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    fit(events, model=model, epochs=1)
    width = model.memory_width
    for name, one in model.named_parameters():
        if name == "memory_cell.weight_ih":
            columns = (
                one.detach()[:, 2 * width : 2 * width + 2] - before[name][:, 2 * width :][:, :2]
            )
            assert (columns.abs().amax(dim=0) > 0).all()
            assert not torch.equal(columns[:, 0], columns[:, 1])
            break
    else:
        raise AssertionError(f"no weights over features among {list(before)}")


# ---------------------------------------------------------------- nodes come and go (I57)

#  snapshot 1, at t=0 and 1:    0 - 1
#  snapshot 2, at t=10:             1 - 2, 2 - 3        (nothing in between; 0 is gone)


def test_i57_absent_nodes_are_neither_trained_nor_scored_and_gaps_are_real() -> None:
    events = Events.from_arrays(
        [0, 1, 1, 2], [1, 0, 2, 3], [0, 1, 10, 10], num_nodes=4, bipartite=False
    )
    windows = list(events.snapshots(2))
    nodes = [sorted({*one.source.tolist(), *one.target.tolist()}) for one in windows]
    assert nodes == [[0, 1], [1, 2, 3]]
    assert [one.start_time for one in windows] == [0, 10]
    model = small_tgn(events).eval()
    parts = tuple(Part(f"s{i}", one.start, one.stop, 2) for i, one in enumerate(windows))
    stream = Stream.open(events, parts, model.history)
    state = NodeState(4, model.columns)
    executor = EagerExecutor(model, state)
    first, second = (
        stream.preparer.prepare(number, np.empty((2, 0), np.int32)) for number in (0, 1)
    )
    executor.score(first)
    assert second.hops[-1].delta_SK.max() == 10  # the gap as it is, not one step
    executor.score(second)
    moved = state.memory_ND.abs().amax(dim=1) > 0
    assert moved.tolist() == [False, True, False, False]  # 0 is gone, 2 and 3 have just come
    # Candidates among those who were there before: 2 and 3 are none for the first snapshot.
    drawn = NegativeSampler(events, NegativeSettings(strategy="seen", pool="all"))
    assert set(drawn.candidates(1, 2, count=50).node_BC.ravel().tolist()) <= {0, 1}
