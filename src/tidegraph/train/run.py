"""`Run`: a trained model with the history and state it goes on from; evaluates and predicts.

A run stands at the end of validation of its best epoch. Evaluating leaves it there; `advance` and
`predict_events` move it forward. Original ids go in and come out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tidegraph.batches.negatives import CandidateSource
from tidegraph.errors import CheckpointError, HistoryError, SettingError, shown
from tidegraph.events.append import concatenate
from tidegraph.events.catalog import load_dataset
from tidegraph.events.core import EventRange, Events, Schema
from tidegraph.events.store import open_events
from tidegraph.events.units import shown_time
from tidegraph.models import MODELS, TemporalModel, build_model
from tidegraph.models.own import check_outside, is_own
from tidegraph.state import NodeState
from tidegraph.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from tidegraph.train.contents import (
    about_run,
    as_json,
    check_schema,
    state_from,
    state_tensors,
    weight_tensors,
)
from tidegraph.train.evaluate import (
    Evaluation,
    advance,
    evaluate,
    evaluation_plan,
    ranking_negatives,
)
from tidegraph.train.executor import EagerExecutor
from tidegraph.train.placement import cache_settings, place_state, with_caches
from tidegraph.train.predictions import Embeddings, EventPredictions, PairPredictions, sigmoid
from tidegraph.train.progress import EpochRecord
from tidegraph.train.run_files import RunFiles
from tidegraph.train.settings import TrainSettings, check_device
from tidegraph.train.stages import Listener
from tidegraph.train.stream import Part, Stream

_SHOWN = ("AP", "AUC", "MRR")  # of the validation, in `repr(run)`


class Run:
    """A trained model, ready to be evaluated and used.

    Attributes:
        model: in evaluation mode, at the best epoch's weights.
        settings: it was trained with.
        stream: events and what has been streamed of them.
        state: node state after the last streamed event.
        records: one per epoch.
        best_epoch: from 0.
        directory: on disk, or None.
    """

    def __init__(
        self,
        model: TemporalModel,
        settings: TrainSettings,
        stream: Stream,
        state: NodeState,
        records: Sequence[EpochRecord] = (),
        best_epoch: int = 0,
        directory: Path | None = None,
    ) -> None:
        self.model, self.settings = model, settings
        self.stream, self.state = stream, state
        self.records, self.best_epoch, self.directory = tuple(records), best_epoch, directory

    def __repr__(self) -> str:
        best = ""
        if self.records:
            figures = self.records[self.best_epoch].metrics
            named = ", ".join(f"{name} {figures[name]:.4f}" for name in _SHOWN if name in figures)
            best = f", best epoch {self.best_epoch + 1} of {len(self.records)} (validation {named})"
        place = "in memory" if self.directory is None else f"in {self.directory}"
        return (
            f"<Run of {self.model.name or type(self.model).__name__} {place}: "
            f"{self.stream.stop:,} of {len(self.events):,} events streamed{best}>"
        )

    @property
    def events(self) -> Events:
        """All events the run knows."""
        return self.stream.events

    def evaluate(
        self,
        part: EventRange,
        *,
        candidates: int | None = None,
        ranking: CandidateSource | None = None,
        listener: Listener | None = None,
        advance: bool = False,
    ) -> Evaluation:
        """Measure on a range of events that comes after what was streamed.

        Args:
            part: for example the test range; events between it and the streamed ones are fed
                first, unscored.
            candidates: negatives per event of the MRR evaluation, instead of the settings'.
            ranking: what true targets are ranked against, in place of drawn candidates; for
                example `FixedNegatives.read(path, run.events)`.
            listener: told about progress.
            advance: leave the run at the end of `part`. By default it stays where it is, so
                evaluating twice gives the same figures.

        Raises:
            HistoryError: the range starts before the end of what was streamed.
        """
        stream, state = self._ahead(part.start, part.events)
        name = _free_name(stream, part.name)
        size = self.settings.evaluation_batch_size
        stream = stream.with_part(Part(name, part.start, part.stop, size))
        plan = evaluation_plan(self.settings, stream, candidates)
        if ranking is not None:
            plan = replace(plan, ranking=ranking)
        result = evaluate(self.model, state, stream, name, plan, listener=listener)
        if advance:
            self.stream, self.state = stream, state
        return result

    def advance(self, stop: int | None = None) -> None:
        """Stream the known events up to position `stop` (default: all) without scoring.

        Raises:
            HistoryError: a position that the run is past, or that no event has.
        """
        stop = len(self.events) if stop is None else stop
        self.stream, self.state = self._ahead(stop, self.events)

    def predict(self, pairs: Any, time: Any = None) -> PairPredictions:
        """Score pairs that have not happened, from everything streamed so far.

        Args:
            pairs: (sources, targets) or rows of two columns, original ids.
            time: query time of each pair, or one for all; default: the last streamed event's.

        Returns:
            probabilities, in the order of the pairs.

        Raises:
            UnknownNodeError: an id the events do not have.
            HistoryError: a time before the last streamed event.
        """
        source, target = _columns(pairs)
        source_B = self._internal(source, "source")
        target_B = self._internal(target, "target")
        time_B = self._query_times(time, len(source_B))
        executor = EagerExecutor(self.model, self.state, transfer=self.stream.transfer)
        scores = []
        for first in range(0, len(source_B), 4096):
            block = slice(first, first + 4096)
            batch = self.stream.preparer.prepare_query(
                source_B[block], target_B[block, None], time_B[block]
            )
            scores.append(executor.score(batch, write=False)[:, 0])
        score = np.concatenate(scores) if scores else np.empty(0, np.float32)
        return PairPredictions(source, target, time_B, sigmoid(score))

    def embed(self, nodes: Any = None, time: Any = None, *, side: str | None = None) -> Embeddings:
        """Embeddings of nodes, from everything streamed so far.

        Args:
            nodes: original ids; default: all.
            time: as in `predict`.
            side: "source" or "target", where the same id means two nodes.

        Raises:
            UnknownNodeError, HistoryError: as in `predict`.
        """
        ids = self.events.ids
        node_B = np.arange(self.events.schema.num_nodes, dtype=np.int32)
        if nodes is not None:
            node_B = ids.to_internal(np.asarray(nodes), side=side).astype(np.int32)
        time_B = self._query_times(time, len(node_B))
        executor = EagerExecutor(self.model, self.state, transfer=self.stream.transfer)
        rows = [np.empty((0, self.model.embedding_width), np.float32)]
        for first in range(0, len(node_B), 4096):
            node = node_B[first : first + 4096]
            batch = self.stream.preparer.prepare_query(
                node, node[:, None], time_B[first : first + 4096]
            )
            rows.append(executor.embed(batch)[: len(node)])
        return Embeddings(ids.to_original(node_B), time_B, np.concatenate(rows))

    def predict_events(
        self,
        events: Events,
        *,
        candidates: int = 0,
        embeddings: bool = False,
        listener: Listener | None = None,
    ) -> EventPredictions:
        """Score new events in order, each batch from the state before it; the state moves on.

        Known events that were not streamed yet are streamed first, unscored. After an error the
        run stands where it stood.

        Args:
            events: later than everything known. Nodes never seen before start empty.
            candidates: also rank each true target among this many random ones.
            embeddings: also return the embeddings of source and target before each event.
            listener: told about progress.

        Raises:
            SettingError: other features than the model was built for.
            InputError: events earlier than those known.
        """
        check_schema(self.model.schema, events.schema)
        known = concatenate(*_alike(self.events, events))
        stream, state = self._ahead(len(self.events), self.events)
        stream = stream.with_events(known)
        state.grow(known.schema.num_nodes)
        name = _free_name(stream, "predict")
        size = self.settings.evaluation_batch_size
        stream = stream.with_part(Part(name, len(self.events), len(known), size))
        result = self._predict_phase(
            stream, state, name, candidates, embeddings, listener or Listener()
        )
        self.stream, self.state = stream, state
        return replace(result, row=np.array(events.row))

    def save(self) -> Path:
        """Keep where the stream stands now, so that a loaded run goes on from here.

        Raises:
            SettingError: the run has no directory.
        """
        if self.directory is None:
            raise SettingError("this run has no directory: give Trainer(..., directory=...)")
        files = RunFiles(self.directory)
        about = about_run(self.model, self.stream, self.settings)
        about["best_epoch"] = self.best_epoch
        # The events that the run was made from are found through config.yaml; others are kept here.
        if self.events.fingerprint != files.read_config()["data"].get("fingerprint"):
            store = self.events.path
            if store is None:
                target = files.directory / f"events-{self.events.fingerprint[:12]}"
                if not target.exists():
                    self.events.save(target)
                store = target.resolve()
            about["data"] = {"store": str(store)}
        tensors = {**weight_tensors(self.model), **state_tensors(self.state)}
        if self.stream.hidden_nodes is not None:
            tensors["hidden"] = torch.from_numpy(self.stream.hidden_nodes)
        save_checkpoint(files.stream, Checkpoint(tensors, about))
        return files.stream

    def on(self, stream: Stream, state: NodeState) -> Run:
        """This run at another place: the same model, settings and directory."""
        return Run(
            self.model, self.settings, stream, state, self.records, self.best_epoch, self.directory
        )

    # -- helpers

    def _ahead(self, stop: int, events: Events) -> tuple[Stream, NodeState]:
        """The stream and a copy of the state, moved up to position `stop` without scoring."""
        stream, state = self._stream_to(stop, events), self.state.clone()
        if stream is not self.stream:
            advance(self.model, state, stream, stream.parts[-1].name)
        return stream, state

    def _stream_to(self, stop: int, events: Events) -> Stream:
        if events is not self.events and events.fingerprint != self.events.fingerprint:
            raise SettingError(
                "these events are not the ones the run knows: use predict_events for new ones"
            )
        if stop > len(self.events):
            raise HistoryError(
                f"there is no event {stop}: the run knows {len(self.events)} events. Score new "
                "ones with predict_events"
            )
        if stop < self.stream.stop:
            raise HistoryError(
                f"asked to go on at event {stop}, but the node state has already seen the "
                f"events up to {self.stream.stop}: load the run again to evaluate earlier ones"
            )
        if stop == self.stream.stop:
            return self.stream
        name = _free_name(self.stream, "between")
        size = self.settings.evaluation_batch_size
        return self.stream.with_part(Part(name, self.stream.stop, stop, size))

    def _predict_phase(
        self,
        stream: Stream,
        state: NodeState,
        name: str,
        candidates: int,
        embeddings: bool,
        listener: Listener,
    ) -> EventPredictions:
        executor = EagerExecutor(self.model.eval(), state, transfer=stream.transfer)
        ranking = ranking_negatives(stream.events, self.settings) if candidates else None
        phase = stream.phase(name)
        start = stream.parts[-1].start
        listener.started(name, None, len(stream.events) - start)
        logits = [np.empty((0, 1 + candidates), np.float32)]
        roots = [np.empty((2, 0, self.model.embedding_width), np.float32)]
        for number in phase.batches:
            event_B = stream.plan.events(number)
            negative_BC = np.empty((len(event_B), 0), np.int32)
            if ranking is not None:
                first, last = int(event_B[0]), int(event_B[-1])
                negative_BC = ranking.candidates(first, last + 1, count=candidates).node_BC
            batch = stream.preparer.prepare(number, negative_BC)
            if embeddings:
                roots.append(executor.embed(batch)[: 2 * len(event_B)].reshape(2, len(event_B), -1))
            logits.append(executor.score(batch))
            listener.advanced(len(event_B), None)
        logit_BC = np.concatenate(logits)
        both = np.concatenate(roots, axis=1) if embeddings else None
        listener.finished(name, None, {})
        return EventPredictions.of(stream.events, start, logit_BC, both)

    def _internal(self, values: np.ndarray, side: str) -> np.ndarray:
        ids = self.events.ids
        named = side if self.events.schema.bipartite else None
        return ids.to_internal(values, side=named).astype(np.int32)

    def _query_times(self, time: Any, count: int) -> np.ndarray:
        last = self.events.time[self.stream.stop - 1]
        if time is None:
            return np.full(count, last, self.events.time.dtype)
        given = np.asarray(time)
        huge = given.dtype == object and all(isinstance(t, int) for t in given.reshape(-1))
        if not (huge or given.dtype.kind in "iuf") or given.shape not in ((), (1,), (count,)):
            raise SettingError(
                f"query times of type {given.dtype} and shape {given.shape}: expected one number, "
                f"or one for each of the {count} rows, in the events' time unit"
            )
        time_B = _exactly(np.broadcast_to(given, (count,)), self.events.time)
        if count and time_B.min() < last:
            unit = self.events.schema.time_unit
            raise HistoryError(
                f"query time {shown_time(time_B.min().item(), unit)} is before the last streamed "
                f"event at {shown_time(last, unit)}: the node state already contains what happened "
                "since. Ask about that time or a later one"
            )
        return time_B


def load_run(
    directory: str | Path,
    *,
    events: Events | None = None,
    model: TemporalModel | None = None,
    at: str = "best",
    device: str | None = None,
) -> Run:
    """Open a run from its directory.

    Args:
        directory: as written by `Trainer` or `tidegraph train`.
        events: the run's events, if they are no longer where they were.
        model: an untrained model of the same settings, for a class that is not in
            `tidegraph.models.MODELS`.
        at: "best": end of validation of the best epoch; "stream": where `Run.save` left it (or
            "best" where it never did).
        device: where the model runs; default: where it was trained.

    Raises:
        CheckpointError: not a run, damaged, or of other data or another model.
        SettingError: this machine does not have the device.
    """
    files = RunFiles(Path(directory))
    config = files.read_config()
    if at not in ("best", "stream"):
        raise SettingError(f"at={at!r}: expected 'best' or 'stream'")
    kept = at == "stream" and files.stream.exists()
    path = files.stream if kept else files.best
    checkpoint = load_checkpoint(path, "stream" if kept else "best")
    about = checkpoint.about
    _check_model(files.config, config["model"], about["model"])
    if events is None:
        events = open_data(about.get("data") or config["data"], files.directory)
    if events.fingerprint != about["fingerprint"]:
        raise CheckpointError(
            f"the data of {directory} has changed since the run was made (fingerprint "
            f"{events.fingerprint[:12]}, expected {about['fingerprint'][:12]}): restore the "
            "original, or train again"
        )
    settings = TrainSettings.of({**config["training"], **({"device": device} if device else {})})
    check_device(settings.device)
    model = _model_of(checkpoint, model, path)
    model.precision = settings.precision
    parts = tuple(Part(**part) for part in about["parts"])
    hidden = checkpoint.tensors.get("hidden")
    stream = Stream.open(
        events,
        parts,
        model.history,
        hidden_nodes=None if hidden is None else hidden.numpy(),
        seed=settings.seed,
        compact=settings.device != "cpu",
        feature_type=settings.feature_type,
        neighbor_types=settings.neighbor_types,
    )
    caches = cache_settings(settings, stream, model.memory_width)
    stream = with_caches(stream, caches, settings.device)
    state = place_state(state_from(checkpoint, model.columns), settings, caches)
    return Run(
        model.to(settings.device).eval(),
        settings,
        stream,
        state,
        files.read_records(),
        about["best_epoch"] if "best_epoch" in about else about["cursor"]["best_epoch"],
        files.directory,
    )


def open_data(spec: dict[str, Any], directory: Path) -> Events:
    """The events a run was made from.

    Raises:
        CheckpointError: they are no longer there.
    """
    if "dataset" in spec:
        return load_dataset(spec["dataset"], scale=spec.get("scale", 1.0), seed=spec.get("seed", 0))
    store = Path(spec["store"])
    if not store.exists() and (directory / store.name).exists():
        store = directory / store.name  # the run was moved together with its events
    if not store.exists():
        raise CheckpointError(
            f"the events of this run are gone: expected them at {store}. Read them again and "
            "pass them with events=..."
        )
    return open_events(store)


def _check_model(path: Path, saved: dict[str, Any], trained: dict[str, Any]) -> None:
    """Refuse settings that the weights were not trained with: they would have no effect.

    Raises:
        CheckpointError: names the key and both values.
    """
    settings, known = as_json(saved["settings"]), trained["settings"]
    for name in {**settings, **known}:
        missing = "(missing)"
        here, there = settings.get(name, missing), known.get(name, missing)
        if here != there:
            raise CheckpointError(
                f"{path}: model.settings.{name} is {shown(here)}, but the checkpoint was trained "
                f"with {shown(there)}: put that back"
            )


def _model_of(checkpoint: Checkpoint, given: TemporalModel | None, path: Path) -> TemporalModel:
    """The checkpoint's model, with its weights; `given` is used where it is the same model."""
    named, schema = checkpoint.about["model"], dict(checkpoint.about["schema"])
    schema["feature_names"] = tuple(schema["feature_names"])
    if given is None and is_own(named["name"]):
        check_outside(named["name"], path)
    elif given is None and named["name"] not in MODELS:
        raise CheckpointError(
            f"{path} is of the model {named['name']}, which is not one of {', '.join(MODELS)}: "
            "give an untrained one, load_run(..., model=...), built with "
            f"{named['settings']}"
        )
    model = given or build_model(named["name"], Schema(**schema), **named["settings"])
    found = {"name": model.name or type(model).__name__, "settings": as_json(model.settings)}
    if found != named:
        raise CheckpointError(f"{path} is of the model {named}, the given one is {found}")
    try:
        model.load_state_dict(checkpoint.group("weights"))
    except RuntimeError as error:
        raise CheckpointError(
            f"{path} is of another model than {type(model).__name__}: {error}"
        ) from error
    return model


def _alike(events: Events, later: Events) -> tuple[Events, Events]:
    """Labels of new events are rarely known yet: without them, nothing that follows has any.

    The same goes for columns that no model reads.
    """
    if events.extra.keys() != later.extra.keys():
        events, later = replace(events, extra={}), replace(later, extra={})
    if (events.label is None) == (later.label is None):
        return events, later
    return replace(events, label=None), replace(later, label=None)


def _free_name(stream: Stream, name: str) -> str:
    taken = {part.name for part in stream.parts}
    if name not in taken:
        return name
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"


def _exactly(given_B: np.ndarray, time_E: np.ndarray) -> np.ndarray:
    """Query times in the type of the events' times, with every digit.

    Raises:
        SettingError: a time that is no finite number, that this type does not hold, or so far from
            the events that the difference is no number.
    """
    whole = time_E.dtype.kind == "i"
    time_B = np.empty(len(given_B), time_E.dtype)
    first = time_E[0].item()
    for place, value in enumerate(given_B.tolist()):
        if not math.isfinite(value):
            problem = "expected a finite number"
        elif whole and (value != int(value) or not -(2**63) <= value < 2**63):
            problem = "expected a whole number of 64 bits, as the events' times are"
        elif not whole and float(value) != value:
            problem = "a 64-bit float, as the events' times are, does not hold it exactly"
        elif not abs(value - first) < (2**63 if whole else 1e30):
            problem = f"it is too far from the first event, at {first}"
        else:
            time_B[place] = value
            continue
        raise SettingError(f"query time {shown(value)}: {problem}")
    return time_B


def _columns(pairs: Any) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(pairs, tuple) and len(pairs) == 2:
        source, target = np.atleast_1d(pairs[0]), np.atleast_1d(pairs[1])
    else:
        table = np.asarray(pairs)
        if table.ndim != 2 or table.shape[1] != 2:
            raise SettingError(
                f"pairs of shape {table.shape}: expected (sources, targets) or rows of two ids"
            )
        source, target = table[:, 0], table[:, 1]
    if source.shape != target.shape or source.ndim != 1:
        raise SettingError(f"{len(source)} sources and {len(target)} targets: expected as many")
    return source, target
