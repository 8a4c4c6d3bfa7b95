"""Node properties: queries between events see everything strictly before them and nothing else.

time   0 . . . . 5 . . . . 10 ...      events (four a time unit or so)
query        3 . . 6                   a node's weights over items, from a table of its own
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tidegraph.errors import InputError, SettingError
from tidegraph.events import Events
from tidegraph.state import NodeState
from tidegraph.train import Listener, Run, Stream
from tidegraph.train.evaluate import advance
from tidegraph.train.tasks import PropertyRun, TaskSettings, fit_task
from tidegraph.train.tasks.properties import Properties, past_properties, read_properties
from tidegraph.train.tasks.property_run import embed_queries
from training import chatter, fit, held_out


def queries(events: Events, times: list[int], nodes: int = 3) -> Properties:
    """The first nodes at the given times, weights over three items."""
    node_Q = np.tile(np.arange(nodes, dtype=np.int32), len(times))
    time_Q = np.repeat(np.asarray(times, events.time.dtype), nodes)
    draw = np.random.default_rng(1)
    weight_QL = draw.integers(0, 4, (len(node_Q), 3)).astype(np.float32)
    weight_QL[:, 0] += 1
    return Properties(node_Q, time_Q, weight_QL, ("a", "b", "c"))


def embedded(run: Run, table: Properties, stream: Stream | None = None) -> np.ndarray:
    return embed_queries(run, stream or run.stream, table, np.arange(len(table)), Listener())


def stream_of(run: Run, events: Events) -> Stream:
    """The same parts of other events."""
    return Stream.open(events, run.stream.parts, run.model.history, seed=run.settings.seed)


def test_a_query_sees_what_is_strictly_before_it_and_nothing_else() -> None:
    events = chatter(240)
    run = fit(events, epochs=1)
    now = int(events.time[61])
    table = queries(events, [now], nodes=12)
    before = embedded(run, table)
    features = np.array(events.features)
    features[events.time >= now] += 3.0
    target = np.where(events.time >= now, 11 - events.target, events.target).astype(np.int32)
    later = replace(events, features=features, target=target)
    np.testing.assert_array_equal(before, embedded(run, table, stream_of(run, later)))
    features = np.array(events.features)
    features[np.flatnonzero(events.time < now)[-1]] += 3.0
    earlier = replace(events, features=features)
    assert (before != embedded(run, table, stream_of(run, earlier))).any()


def test_a_query_after_the_last_event_is_what_the_run_embeds() -> None:
    """No batch is cut, so state and neighbours are those of a plain pass."""
    events = chatter(240)
    run = fit(events, epochs=1)
    end = int(events.time[run.stream.stop - 1]) + 7
    table = queries(events, [end], nodes=12)
    state = NodeState(events.schema.num_nodes, run.model.columns)
    for part in run.stream.parts:
        advance(run.model, state, run.stream, part.name)
    run.state = state
    expected = run.embed(np.arange(12), end).embedding
    np.testing.assert_array_equal(embedded(run, table), expected)


def test_every_event_is_streamed_once_whatever_the_queries() -> None:
    events = chatter(240)
    run = fit(events, epochs=1)
    few = queries(events, [int(events.time[100])])
    many = queries(events, [int(t) for t in np.unique(events.time[:200])])

    class Counted(Listener):
        total = 0

        def advanced(self, events: int, loss: float | None) -> None:
            self.total += events

    for table in (few, many):
        heard = Counted()
        embed_queries(run, run.stream, table, np.arange(len(table)), heard)
        last = int(np.searchsorted(events.time, table.time_Q[-1], "left"))
        assert heard.total == last


def test_queries_before_the_first_event_have_no_past() -> None:
    events = chatter(240)
    run = fit(events, epochs=1)
    table = queries(events, [int(events.time[0]) - 5, int(events.time[50])])
    found = embedded(run, table)
    assert np.isfinite(found).all()
    assert (found[:3] == found[0]).all()


def write(path: Path, rows: list[tuple[object, ...]]) -> Path:
    text = "node,time,item,weight\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    path.write_text(text)
    return path


def test_a_table_is_read_by_node_and_time(tmp_path: Path) -> None:
    events = chatter(240)
    path = write(
        tmp_path / "p.csv", [(2, 9, "x", 1), (0, 9, "y", 2), (0, 4, "x", 3), (0, 9, "x", 1)]
    )
    found = read_properties(path, events)
    assert found.items == ("x", "y")
    assert list(zip(found.time_Q.tolist(), found.node_Q.tolist(), strict=True)) == [
        (4, 0), (9, 0), (9, 2),
    ]  # fmt: skip
    assert found.weight_QL.tolist() == [[3, 0], [1, 2], [1, 0]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((0, 4, "x", -1), "row 2 .*column weight: is -1; expected 0 or more"),
        ((0, 4, "x", "much"), "row 2 .*column weight: is 'much'; expected a finite number"),
        ((0, "soon", "x", 1), "row 2 .*column time: is 'soon'; expected a whole number"),
        ((99, 4, "x", 1), "column node: .*99"),
        ((0, 4, "", 1), "row 2 .*column item: is missing"),
    ],
)
def test_a_bad_table_names_row_and_column(
    tmp_path: Path, row: tuple[object, ...], message: str
) -> None:
    path = write(tmp_path / "p.csv", [(0, 3, "x", 1), row])
    with pytest.raises(InputError, match=message):
        read_properties(path, chatter(240))


def test_a_table_without_a_column_says_which(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("node,time,thing,weight\n0,3,x,1\n")
    with pytest.raises(InputError, match="no column 'item'"):
        read_properties(path, chatter(240))


def test_past_vectors_by_hand() -> None:
    """Node 0 at times 1, 2, 3: the last and the mean of what came before; node 1 has no past."""
    table = Properties(
        np.array([0, 0, 1, 0], np.int32),
        np.array([1, 2, 2, 3]),
        np.array([[1, 1], [4, 0], [0, 1], [1, 3]], np.float32),
        ("a", "b"),
    )
    found = past_properties(table, train_stop=2)
    prior = [0.75, 0.25]
    assert found["last of the node"].tolist() == [prior, [0.5, 0.5], prior, [1, 0]]
    assert found["mean of the node"].tolist() == [prior, [0.5, 0.5], prior, [0.75, 0.25]]


def test_what_a_node_does_is_learned_and_the_same_twice(tmp_path: Path) -> None:
    """Weights are decided by the node; NDCG is above that of equal scores."""
    events = chatter(240)
    rows = [
        (node, int(time), f"i{(node + k) % 12}", 3 - k)
        for time in np.unique(events.time)[4::6]
        for node in range(12)
        for k in range(3)
    ]
    path = write(tmp_path / "p.csv", rows)
    settings = TaskSettings(
        task="node-property", properties=str(path), task_epochs=20, task_batch_size=40,
        task_learning_rate=0.01,
    )  # fmt: skip
    found = []
    for _ in range(2):
        task = fit_task(fit(events, epochs=1), settings)
        assert isinstance(task, PropertyRun)
        evaluation = task.evaluate(held_out(events))
        found.append(repr(evaluation.metrics))
    assert found[0] == found[1]
    past = dict(evaluation.baselines)
    assert past["last of the node"]["NDCG@10"].value == pytest.approx(1.0)
    assert evaluation.metrics["NDCG@10"].value > past["training mean"]["NDCG@10"].value


def test_what_node_properties_do_not_know_is_refused(tmp_path: Path) -> None:
    events = chatter(240)
    settings = TaskSettings(task="node-property")
    with pytest.raises(SettingError, match="--properties FILE"):
        fit_task(fit(events, epochs=1), settings)
    path = write(tmp_path / "p.csv", [(0, 10**6, "x", 1)])
    settings = settings.model_copy(update={"properties": str(path)})
    with pytest.raises(SettingError, match="no time lies in the training part"):
        fit_task(fit(events, epochs=1), settings)
    tuned = settings.model_copy(update={"encoder": "tuned"})
    with pytest.raises(SettingError, match="knows --encoder frozen"):
        fit_task(fit(events, epochs=1), tuned)
