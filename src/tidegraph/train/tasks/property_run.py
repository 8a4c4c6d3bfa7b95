"""`PropertyRun`: a run whose encoder predicts node properties, between events as well.

A query asks about a node at a time of the table's own. Batches are cut at these times, so that a
query sees every event strictly before it and no other; all events are streamed once, in order.

Shape legend: Q queries, L items, D width.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tidegraph.batches.plan import BatchPlan
from tidegraph.errors import SettingError
from tidegraph.events.core import EventRange
from tidegraph.state import NodeState
from tidegraph.train.executor import EagerExecutor
from tidegraph.train.metrics import Metrics
from tidegraph.train.placement import cache_settings, place_state
from tidegraph.train.run import Run
from tidegraph.train.stages import Listener
from tidegraph.train.stream import Part, Stream
from tidegraph.train.tasks.decoder import Decoder, Table, fit_decoder
from tidegraph.train.tasks.objectives import Shares
from tidegraph.train.tasks.properties import Properties, past_properties, read_properties
from tidegraph.train.tasks.settings import TaskSettings
from tidegraph.train.tasks.task_run import TaskEvaluation, save_task

_BLOCK = 4096  # queries embedded at once


class PropertyRun:
    """A run with a decoder for node properties.

    Attributes:
        run: encoder and stream, as link prediction left them at the end of validation.
        settings: of the task.
        table: what is predicted.
        decoder: trained.
        about: `balance`, `best_epoch`, `tuned_epoch`.
        validation: figures on the validation part.
    """

    def __init__(
        self,
        run: Run,
        settings: TaskSettings,
        table: Properties,
        decoder: Decoder,
        about: dict[str, Any],
        validation: Metrics | None = None,
    ) -> None:
        self.run, self.settings, self.table = run, settings, table
        self.decoder, self.about, self.validation = decoder, about, validation

    @property
    def target_name(self) -> str:
        """What is predicted."""
        return "properties"

    @property
    def classes(self) -> list[Any]:
        """The items."""
        return list(self.table.items)

    def evaluate(
        self, part: EventRange, *, listener: Listener | None = None, advance: bool = False
    ) -> TaskEvaluation:
        """Figures on the queries whose time lies in a range of events.

        Args:
            part: for example the test range; queries after its last event belong to it where it
                ends the stream.
            listener: told about progress.
            advance: leave the run at the end of `part`.
        """
        started = time.perf_counter()
        run = self.run
        stream = run._stream_to(part.start, run.events)
        stream = stream.with_part(
            Part(part.name, part.start, part.stop, run.settings.evaluation_batch_size)
        )
        chosen_Q = _queries(self.table, stream, part)
        vector_QD = embed_queries(run, stream, self.table, chosen_Q, listener or Listener())
        objective = Shares(len(self.table.items))
        predicted = objective.predict(self.decoder.outputs(vector_QD))
        truth = self.table.weight_QL[chosen_Q]
        train_stop = int(_queries(self.table, stream, _range(run, 0))[-1]) + 1
        past = past_properties(self.table, train_stop)
        text = "node-property: earlier vectors of the node alone, mean over nodes and times"
        if advance:
            run.advance(part.stop)
        return TaskEvaluation(
            objective.figures(truth, predicted, self._protocol()),
            tuple((n, objective.figures(truth, made[chosen_Q], text)) for n, made in past.items()),
            len(truth),
            time.perf_counter() - started,
        )

    def save(self) -> Any:
        """Keep the decoder beside the run's checkpoints."""
        return save_task(self.run, self.settings, self.decoder, self.about, {"name": "properties"})

    def _protocol(self) -> str:
        return (
            "node-property: vector of a node at a time, from events strictly before it, frozen "
            "encoder pre-trained by link prediction, mean over nodes and times, ties averaged, "
            f"streaming history, batch {self.run.settings.evaluation_batch_size}"
        )


def fit_properties(run: Run, settings: TaskSettings, listener: Listener) -> PropertyRun:
    """Train a decoder on embeddings of nodes at the table's times.

    Raises:
        SettingError: no table, none of its queries in a part, or a setting this task does not know.
    """
    check_property_settings(settings, run.settings.history)
    assert settings.properties is not None
    table = read_properties(settings.properties, run.events)
    parts = [_queries(table, run.stream, _range(run, place)) for place in (0, 1)]
    for chosen_Q, name in zip(parts, ("training", "validation"), strict=True):
        if not len(chosen_Q):
            raise SettingError(
                f"{settings.properties}: no time lies in the {name} part, so there is nothing to "
                "learn there; give properties for the whole span of the events"
            )
    both_QD = embed_queries(run, run.stream, table, np.concatenate(parts), listener)
    train, val = (
        Table(rows_QD, table.weight_QL[chosen_Q])
        for rows_QD, chosen_Q in zip(np.split(both_QD, [len(parts[0])]), parts, strict=True)
    )
    objective = Shares(len(table.items))
    fitted = fit_decoder(train, val, objective, settings, run.settings.seed, listener)
    about = {"balance": "none", "best_epoch": fitted.best_epoch, "tuned_epoch": None}
    found = PropertyRun(run, settings, table, fitted.decoder, about)
    predicted = objective.predict(fitted.decoder.outputs(val.row_MI))
    found.validation = objective.figures(val.value_M, predicted, found._protocol())
    return found


def check_property_settings(settings: TaskSettings, history: str) -> None:
    """Refuse what node properties do not know.

    Raises:
        SettingError: names the setting.
    """
    if settings.properties is None:
        raise SettingError(
            "--task node-property needs a table of properties: name it with --properties FILE "
            "(columns node, time, item, weight)"
        )
    if settings.encoder != "frozen" or history != "streaming":
        raise SettingError(
            "--task node-property knows --encoder frozen and --history streaming: leave the other "
            "out"
        )


def embed_queries(
    run: Run, stream: Stream, table: Properties, chosen_Q: np.ndarray, listener: Listener
) -> np.ndarray:
    """[Q, D] embeddings of the chosen queries' nodes at their times, in one pass over the stream.

    Args:
        run: its model; its state is not touched.
        stream: everything that may be history.
        table: of all queries.
        chosen_Q: the chosen ones, ascending.
        listener: told about progress.
    """
    model, schema = run.model.eval(), run.events.schema
    caches = cache_settings(run.settings, stream, model.memory_width)
    state = place_state(NodeState(schema.num_nodes, model.columns), run.settings, caches)
    plan, group_G1, batches_G = _cut_plan(stream, table.time_Q[chosen_Q])
    executor = EagerExecutor(model, state, transfer=stream.transfer)
    preparer = replace(stream.preparer, plan=plan)
    found_QD = np.empty((len(chosen_Q), model.embedding_width), np.float32)
    listener.started("embed", None, len(plan.event_P))
    done = 0
    for group, batches in enumerate(batches_G.tolist()):
        for number in range(done, batches):
            nothing = np.empty((len(plan.events(number)), 0), np.int32)
            executor.advance(preparer.prepare(number, nothing))
            listener.advanced(len(plan.events(number)), None)
        done = batches
        so_far = replace(preparer, plan=_first(plan, batches))
        for place_Q in _blocks(int(group_G1[group]), int(group_G1[group + 1])):
            query_Q = chosen_Q[place_Q]
            node_Q = table.node_Q[query_Q]
            batch = so_far.prepare_query(node_Q, node_Q[:, None], table.time_Q[query_Q])
            found_QD[place_Q] = executor.embed(batch)[: len(node_Q)]
    listener.finished("embed", None, {})
    return found_QD


def _blocks(start: int, stop: int) -> Iterator[slice]:
    for first in range(start, stop, _BLOCK):
        yield slice(first, min(first + _BLOCK, stop))


def _cut_plan(stream: Stream, time_Q: np.ndarray) -> tuple[BatchPlan, np.ndarray, np.ndarray]:
    """The stream's batches, cut wherever a query asks; queries ascend in time.

    Returns:
        the plan; borders of the groups of queries with one time; batches before each group.
    """
    event_P, time = stream.plan.event_P, stream.events.time
    new_Q = np.append(True, time_Q[1:] != time_Q[:-1])[: len(time_Q)]
    group_G1 = np.append(np.flatnonzero(new_Q), len(time_Q))
    before_G = np.searchsorted(time[event_P], time_Q[group_G1[:-1]], side="left")
    border_B1 = np.union1d(stream.plan.border_B1, before_G)
    newest_B = np.arange(len(border_B1) - 1, dtype=np.int64)
    plan = BatchPlan(event_P, border_B1, event_P[border_B1[:-1]], newest_B, ())
    return plan, group_G1, np.searchsorted(border_B1, before_G)


def _first(plan: BatchPlan, batches: int) -> BatchPlan:
    """The plan's first batches alone."""
    border_B1 = plan.border_B1[: batches + 1]
    return BatchPlan(
        plan.event_P[: border_B1[-1]],
        border_B1,
        plan.first_event_B[:batches],
        plan.version_B[:batches],
        (),
    )


def _range(run: Run, place: int) -> EventRange:
    part = run.stream.parts[place]
    return EventRange(run.events, part.start, part.stop, part.name)


def _queries(table: Properties, stream: Stream, part: EventRange) -> np.ndarray:
    """Positions of the queries of a part: from its first event's time to the next part's."""
    time = stream.events.time
    first = 0 if part.start == 0 else np.searchsorted(table.time_Q, time[part.start], "left")
    last = len(table)
    if part.stop < len(time):
        last = int(np.searchsorted(table.time_Q, time[part.stop], "left"))
    return np.arange(first, last, dtype=np.int64)
