"""`TaskRun`: a run whose encoder serves a task; fitted after link prediction, evaluated like a run.

The encoder's weights are fixed, so the whole stream is walked once more from an empty state: that
gives every training event's embedding before it, and the state that validation and test go on from.

Shape legend: B events of a batch, M labelled events, D width.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tidegraph.batches.prepared import PreparedBatch
from tidegraph.errors import SettingError
from tidegraph.events.core import EventRange
from tidegraph.state import NodeState
from tidegraph.train.checkpoint import Checkpoint, save_checkpoint
from tidegraph.train.contents import about_run, state_tensors, weight_tensors
from tidegraph.train.metrics import Metrics
from tidegraph.train.placement import cache_settings, place_state
from tidegraph.train.run import Run
from tidegraph.train.stages import Listener
from tidegraph.train.stream import Part
from tidegraph.train.tasks.collect import Collected, collect
from tidegraph.train.tasks.decoder import Decoder, Table, class_weights, fit_decoder, validation
from tidegraph.train.tasks.inputs import decoder_inputs, decoder_inputs_of_roots, sees_target
from tidegraph.train.tasks.objectives import Classes, Number, Objective
from tidegraph.train.tasks.past import past_predictions
from tidegraph.train.tasks.settings import TaskSettings
from tidegraph.train.tasks.targets import Target, check_part, find_target, known_columns
from tidegraph.train.tasks.tune import Tuned, tune


@dataclass(frozen=True, eq=False)
class TaskEvaluation:
    """Figures of a task on one part of the stream.

    Attributes:
        metrics: of the model.
        baselines: (name, figures) of what past labels alone say.
        events: labelled events.
        seconds: wall time.
    """

    metrics: Metrics
    baselines: tuple[tuple[str, Metrics], ...]
    events: int
    seconds: float


class TaskRun:
    """A run with a decoder for one task.

    Attributes:
        run: encoder, stream and state, at the end of validation.
        settings: of the task.
        target: what is predicted.
        decoder: trained.
        about: how it came about: `balance`, `best_epoch`, `tuned_epoch` (None without tuning).
        validation: figures on the validation part.
    """

    def __init__(
        self,
        run: Run,
        settings: TaskSettings,
        target: Target,
        decoder: Decoder,
        about: dict[str, Any],
        validation: Metrics | None = None,
    ) -> None:
        self.run, self.settings, self.target = run, settings, target
        self.decoder, self.about, self.validation = decoder, about, validation

    def evaluate(
        self, part: EventRange, *, listener: Listener | None = None, advance: bool = False
    ) -> TaskEvaluation:
        """Figures on a range of events that comes after what was streamed.

        Args:
            part: for example the test range.
            listener: told about progress.
            advance: leave the run at the end of `part`; otherwise it stays where it is.
        """
        started = time.perf_counter()
        run = self.run
        stream, state = run._ahead(part.start, part.events)
        size = run.settings.evaluation_batch_size
        stream = stream.with_part(Part(part.name, part.start, part.stop, size))
        frozen = run.settings.history == "frozen"
        found = collect(run.model, state, stream, part.name, listener, frozen=frozen)
        if advance:
            run.stream, run.state = stream, state
        columns = known_columns(run.events, self.settings, self.target.name)
        labelled = _labelled(found, self.target)
        objective = make_objective(self.target, run.stream.parts[0].stop)
        table = _table(run, labelled, self.target, self.settings, columns)
        protocol = self._protocol(part.name)
        value_M = table.value_M
        predicted_M = objective.predict(self.decoder.outputs(table.row_MI))
        train = run.stream.parts[0].stop
        past = past_predictions(
            run.events, self.target, labelled.event_M, train, part.start if frozen else None
        )
        text = f"{self._label()}, earlier labels alone, {self._history()}"
        return TaskEvaluation(
            objective.figures(value_M, predicted_M, protocol),
            tuple((name, objective.figures(value_M, made, text)) for name, made in past.items()),
            len(value_M),
            time.perf_counter() - started,
        )

    def save(self) -> Path:
        """Keep decoder, encoder and state beside the run's checkpoints.

        Raises:
            SettingError: the run has no directory.
        """
        target: dict[str, Any] = {"name": self.target.name, "classes": self.classes}
        if self.target.kind == "number":
            objective = make_objective(self.target, self.run.stream.parts[0].stop)
            assert isinstance(objective, Number)
            target |= {"mean": objective.mean, "deviation": objective.deviation}
        return save_task(self.run, self.settings, self.decoder, self.about, target)

    @property
    def target_name(self) -> str:
        """What is predicted."""
        return self.target.name

    @property
    def classes(self) -> list[Any]:
        """The distinct values, of a target of classes."""
        return list(self.target.classes)

    def _label(self) -> str:
        task = self.settings.task
        of = ", from both of its nodes" if sees_target(task) else "'s source"
        return f"{task}: {self.target.name} of each event{of}"

    def _history(self) -> str:
        history = self.run.settings.history
        return "streaming history" if history == "streaming" else "history frozen at the split"

    def _protocol(self, part: str) -> str:
        encoder = f"{self.settings.encoder} encoder pre-trained by link prediction"
        known = f", knowing {', '.join(self.settings.known)}" if self.settings.known else ""
        return (
            f"{self._label()}, embeddings strictly before the event{known}, "
            f"{encoder}, over all labelled events at once, {self._history()}, batch "
            f"{self.run.settings.evaluation_batch_size}"
        )


class Fitting:
    """Fits a task of events; what its steps share."""

    def __init__(self, run: Run, settings: TaskSettings, listener: Listener) -> None:
        self.run, self.settings, self.listener = run, settings, listener
        self.target = find_target(run.events, settings)
        self.columns = known_columns(run.events, settings, self.target.name)
        train, val = run.stream.parts
        for part, name in ((train, "training"), (val, "validation")):
            event_M = np.concatenate(
                [run.stream.plan.events(n) for n in run.stream.phase(part.name).batches]
            )
            check_part(self.target, event_M[self.target.has_E[event_M]], name)
        self.objective = make_objective(self.target, train.stop)

    def fit(self) -> TaskRun:
        state = self.empty()
        train = self.collect("train", state)
        val = self.collect("val", state)
        fitted = fit_decoder(
            train, val, self.objective, self.settings, self.run.settings.seed, self.listener
        )
        about = {"balance": fitted.balance, "best_epoch": fitted.best_epoch, "tuned_epoch": None}
        if self.settings.encoder == "tuned":
            tuned = self.tune(fitted.decoder, fitted.value, fitted.balance, train)
            about["tuned_epoch"] = tuned.best_epoch
            state = self.empty()
            self.collect("train", state)
            val = self.collect("val", state)
        run = self.run
        moved = run.on(run.stream, state)
        result = TaskRun(moved, self.settings, self.target, fitted.decoder, about)
        predicted_M = self.objective.predict(fitted.decoder.outputs(val.row_MI))
        result.validation = self.objective.figures(
            val.value_M, predicted_M, result._protocol("val")
        )
        return result

    def empty(self) -> NodeState:
        run = self.run
        state = NodeState(run.events.schema.num_nodes, run.model.columns)
        caches = cache_settings(run.settings, run.stream, run.model.memory_width)
        return place_state(state, run.settings, caches)

    def collect(self, part: str, state: NodeState) -> Table:
        frozen = part == "val" and self.run.settings.history == "frozen"
        found = collect(self.run.model, state, self.run.stream, part, self.listener, frozen=frozen)
        labelled = _labelled(found, self.target)
        return _table(self.run, labelled, self.target, self.settings, self.columns)

    def tune(self, decoder: Decoder, start: float, balance: str, train: Table) -> Tuned:
        run, objective, target = self.run, self.objective, self.target
        decoder.to(run.settings.device)
        both = sees_target(self.settings.task)
        weight_L = None
        if balance != "none" and isinstance(objective, Classes):
            # In stream order nothing can be drawn more often; weights do the same on average.
            weight_L = class_weights(train.value_M, objective.count).to(run.settings.device)

        def loss(batch: PreparedBatch, root_RD: Tensor) -> Tensor | None:
            event_B = batch.event_B.cpu().numpy()
            has_B = target.has_E[event_B]
            if not has_B.any():
                return None
            row_BI = decoder_inputs_of_roots(root_RD, event_B, run.events, self.columns, both)
            wanted_M = objective.target(target.value_E[event_B[has_B]]).to(row_BI.device)
            chosen_B = torch.from_numpy(has_B).to(row_BI.device)
            return objective.loss(decoder(row_BI[chosen_B]), wanted_M, weight_L)

        def validate(state: NodeState) -> float:
            decoder.cpu()
            value = validation(decoder, self.collect("val", state), objective)
            decoder.to(run.settings.device)
            return value

        found = tune(
            run.model, decoder, run.stream, self.empty, loss, validate, self.settings,
            start=start, lower=objective.lower, clip=run.settings.clip, listener=self.listener,
        )  # fmt: skip
        decoder.cpu().eval()
        run.model.eval()
        return found


def save_task(
    run: Run,
    settings: TaskSettings,
    decoder: Decoder,
    about_task: dict[str, Any],
    target: dict[str, Any],
) -> Path:
    """Write a task's checkpoint: decoder, encoder, state, and how they came about.

    Raises:
        SettingError: the run has no directory.
    """
    path = task_path(_directory(run))
    about = about_run(run.model, run.stream, run.settings)
    about |= {
        "best_epoch": run.best_epoch,
        "task": settings.model_dump(mode="json"),
        "task_about": about_task,
        "target": target,
    }
    tensors = {**weight_tensors(run.model), **state_tensors(run.state)}
    tensors |= {f"decoder.{name}": tensor for name, tensor in decoder.state_dict().items()}
    if run.stream.hidden_nodes is not None:
        tensors["hidden"] = torch.from_numpy(run.stream.hidden_nodes)
    save_checkpoint(path, Checkpoint(tensors, about))
    return path


def task_path(directory: Path) -> Path:
    """Where a run keeps its task."""
    return directory / "checkpoints" / "task.safetensors"


def make_objective(target: Target, train_stop: int) -> Objective:
    """The objective of a target; a number is standardised by the training part's labels."""
    if target.kind == "classes":
        return Classes(len(target.classes))
    value_M = target.value_E[:train_stop][target.has_E[:train_stop]]
    return Number(float(value_M.mean()), float(value_M.std()))


def _labelled(found: Collected, target: Target) -> Collected:
    has_M = target.has_E[found.event_M]
    if has_M.all():
        return found
    return Collected(found.event_M[has_M], found.both_M2D[has_M])


def _table(
    run: Run, found: Collected, target: Target, settings: TaskSettings, known: Sequence[int]
) -> Table:
    row_MI = decoder_inputs(
        found.both_M2D, found.event_M, run.events, known, sees_target(settings.task)
    )
    return Table(row_MI, target.value_E[found.event_M])


def _directory(run: Run) -> Path:
    if run.directory is None:
        raise SettingError("this run has no directory: give Trainer(..., directory=...)")
    return run.directory
