"""`Trainer`: the loop. It owns nothing clever: prepare, execute, evaluate, keep the best, resume.

Each epoch starts from an empty node state and walks the training events in order; validation goes
on from the end-of-train state. The best epoch's weights and end-of-validation state become the
`Run`. All of it is a pure function of events, settings and seed, so a run that is killed anywhere
and resumed ends in the same bits.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.batches.prepared_epochs import keep_epochs
from tidegraph.errors import CheckpointError, NoLegalNegativeError, SettingError
from tidegraph.events.core import EventRange
from tidegraph.features import Traffic
from tidegraph.models.base import TemporalModel, TrainingEvents
from tidegraph.state import HostState, NodeState
from tidegraph.train.adam import Adam
from tidegraph.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from tidegraph.train.contents import (
    about_run,
    check_same,
    check_schema,
    check_settings,
    optimizer_tensors,
    replaced_from,
    state_from,
    state_tensors,
    weight_tensors,
)
from tidegraph.train.evaluate import Evaluation, evaluate, evaluation_plan, ranking_negatives
from tidegraph.train.executor import EagerExecutor
from tidegraph.train.executors import about_executor, executor_name, make_executor, spread
from tidegraph.train.interrupt import Interrupt
from tidegraph.train.loaded import CopyStream, Loaded
from tidegraph.train.pipeline import Pipeline, choose_pipeline
from tidegraph.train.placement import (
    cache_settings,
    choose_frequent,
    place_state,
    with_caches,
)
from tidegraph.train.progress import Cursor, EpochCost, EpochRecord
from tidegraph.train.run import Run
from tidegraph.train.run_files import RunFiles
from tidegraph.train.scale import scale_warning, why_diverged
from tidegraph.train.settings import TrainSettings, check_device
from tidegraph.train.stages import Listener, StageTimes
from tidegraph.train.stream import Stream, part_of
from tidegraph.train.template_executor import TemplateExecutor
from tidegraph.train.trace import Trace
from tidegraph.train.transfer import look_ahead


class Trainer:
    """Trains a model on one range of events and validates it on the next.

    Args:
        model: a `TemporalModel` built for the events' schema.
        settings: a `TrainSettings`; or give its fields by name.
        directory: where the run is kept on disk (settings, metrics, checkpoints); None keeps
            everything in memory.
        listener: told about progress.
        data: how to find the events again, saved with the run; by default they are found where
            they were opened from, or saved into the directory.
        **overrides: fields of `TrainSettings`.

    Raises:
        SettingError: an unknown setting or a value out of range.

    >>> import tidegraph as tg
    >>> events = tg.Events.from_arrays([0, 1] * 20, [2, 3] * 20, list(range(40)))
    >>> train, val, test = events.split(val=0.25, test=0.25)
    >>> model = tg.models.TGN(events.schema, memory=8, time=8, embedding=8, neighbors=2)
    >>> run = tg.Trainer(model, epochs=1, batch_size=10, candidates=0).fit(train, val)
    >>> "AP" in run.evaluate(test).metrics
    True
    """

    def __init__(
        self,
        model: TemporalModel,
        settings: TrainSettings | None = None,
        *,
        directory: str | Path | None = None,
        listener: Listener | None = None,
        data: dict[str, Any] | None = None,
        **overrides: Any,
    ) -> None:
        base = settings.model_dump() if settings else {}
        self.settings = TrainSettings.of({**base, **overrides})
        self.model = model
        self.files = RunFiles(Path(directory)) if directory is not None else None
        self.listener = listener or Listener()
        self.data = data

    def fit(self, train: EventRange, val: EventRange, *, resume: bool = False) -> Run:
        """Train, and return the run at its best epoch.

        Args:
            train, val: consecutive ranges of the same events.
            resume: go on from the directory's last checkpoint, if there is one. `epochs` and
                `patience` may differ from those it was started with: to train longer, raise them.

        Raises:
            SettingError: ranges that do not belong together, a model built for other data, a
                directory that holds a run already, or training that diverges.
            KeyboardInterrupt: Ctrl-C; a batch that is being trained is finished first, and where
                there is a directory a checkpoint saved.
            CheckpointError: a checkpoint of other data, another model or other settings; or one
                that cannot be written, which leaves the previous one.
        """
        _check_ranges(self.model, train, val)
        device = check_device(self.settings.device)
        if self.files is not None:
            check_settings(self.model)
        elif resume or self.settings.trace:
            asked = "resume=True" if resume else "trace=True"
            raise SettingError(f"{asked} needs the directory: give Trainer(..., directory=...)")
        # The executor seeds PyTorch's generators batch by batch; the caller's go on as they were.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            session = _Session(self, train, val)
            restored = resume and session.restore()
            session.begin(resume)
            if not restored:
                session.fit_statistics(train)
            warning = None if session.finished() else scale_warning(train.events)
            if warning is not None:
                self.listener.message(warning)
            try:
                while not session.finished():
                    session.run_epoch()
            finally:
                session.write_trace()
            return session.close()


class _Session:
    """One `fit`: everything that changes while training."""

    def __init__(self, trainer: Trainer, train: EventRange, val: EventRange) -> None:
        settings = self.settings = trainer.settings
        self.trainer, self.listener, self.files = trainer, trainer.listener, trainer.files
        self.model = trainer.model.to(settings.device)
        self.model.precision = settings.precision
        self.events = train.events
        training = part_of(
            _named(train, "train"), settings.batch_size, hide=True, staleness=settings.staleness
        )
        self.stream = Stream.open(
            train.events,
            (
                training,
                part_of(_named(val, "val"), settings.evaluation_batch_size),
            ),
            self.model.history,
            hidden_nodes=train.hidden_nodes,
            seed=settings.seed,
            compact=torch.device(settings.device).type != "cpu",
            feature_type=settings.feature_type,
            neighbor_types=settings.neighbor_types,
        )
        for line in self.stream.about_features():
            self.listener.message(line)
        self.caches = cache_settings(settings, self.stream, self.model.memory_width)
        self.stream = with_caches(self.stream, self.caches, settings.device)
        # While training: the run that comes out of it does not hold on to prepared batches.
        self.lasting = self.stream
        self.stream = self._remembering(self.stream)
        self.state = self._place(NodeState(self.events.schema.num_nodes, self.model.columns))
        self.optimizer = Adam(
            self.model.named_parameters(), settings.learning_rate, settings.weight_decay
        )
        # Destinations that training has not met yet would be negatives by their newness alone, a
        # clue that is gone in evaluation: only destinations of training events are drawn.
        seen = np.zeros(self.events.schema.num_nodes, bool)
        seen[self.events.target[train.kept()]] = True
        self.negatives = NegativeSampler(
            self.events, NegativeSettings(seed=settings.seed), nodes=np.flatnonzero(seen)
        )
        _check_candidates(val, settings)
        ranking = settings.candidates if settings.metric == "MRR" else 0
        self.plan = evaluation_plan(settings, self.stream, candidates=ranking)
        executor_name(settings)  # one that this machine does not have is refused now
        self.executor: TemplateExecutor | None = None
        self.pipeline = choose_pipeline(
            self.state.device, settings.prepare_threads, settings.queue_depth
        )
        self.trace = Trace() if settings.trace else None
        self.cursor = Cursor()
        self.interrupt = Interrupt()
        self.best: Checkpoint | None = None
        self.uses_counted = False

    def _place(self, state: NodeState) -> NodeState:
        return place_state(state, self.settings, self.caches)

    def _remembering(self, stream: Stream) -> Stream:
        """The stream with batches kept from epoch to epoch, up to the settings' budget."""
        phase, settings = stream.phase("train"), self.settings
        preparer = keep_epochs(
            stream.preparer, settings.prepared_budget, settings.negative_groups, phase.batches
        )
        return replace(stream, preparer=preparer)

    def _count_uses(self) -> None:
        """How often this epoch uses each row, by preparing it once more than it is executed.

        Once is enough: the other epochs differ in their negatives only.
        """
        self.uses_counted = True
        schema = self.events.schema
        event_count_E = np.zeros(len(self.events), np.int32)
        node_count_N = np.zeros(schema.num_nodes, np.int32)
        numbers = self.stream.phase("train").batches
        with Pipeline(numbers, self._prepare, self.pipeline) as batches:
            for batch in batches:
                node_count_N[batch.node_U.numpy()] += 1
                if batch.event_E is not None:
                    event_count_E[batch.event_E.numpy()] += 1
        choose_frequent(self.stream, self.state, event_count_E, node_count_N)

    # -- life cycle

    def begin(self, resume: bool) -> None:
        if self.files is None:
            return
        if not resume:
            self.files.check_unused()
        self.files.clean()
        self.files.begin(self.describe_config(), self.cursor.records)
        if not self.finished():
            # It is where a run that trains on now was left at: other weights, another state.
            self.files.stream.unlink(missing_ok=True)

    def finished(self) -> bool:
        cursor, patience = self.cursor, self.settings.patience
        stale = cursor.epoch - 1 - cursor.best_epoch
        return cursor.epoch >= self.settings.epochs or (patience > 0 and stale >= patience)

    def run_epoch(self) -> None:
        if self.cursor.batch == 0:
            self.state.keep_versions(self.settings.staleness)
            self.state.reset()
        times = StageTimes(self.trace)
        frequent = self.caches is not None and self.caches.policy == "frequency"
        if frequent and not self.uses_counted:
            self._count_uses()
        started, before = time.perf_counter(), self._traffic()
        with self.interrupt.held():
            trained, staleness = self._train_batches(times)
        seconds = time.perf_counter() - started
        took = EpochCost(
            events_per_second=trained / max(seconds, 1e-9),
            seconds=seconds,
            stages=dict(times.seconds),
            traffic={} if self.caches is None else asdict(self._traffic() - before),
            exposed=dict(times.exposed),
            staleness={str(k): n for k, n in sorted(staleness.items())}
            if max(staleness, default=0)
            else {},
        )
        # Also before the first validation, so that a stop during it keeps what was trained.
        if self.files is not None and (self.interrupt.asked or not self.files.last.exists()):
            self._save_last()
        if self.interrupt.asked:
            raise KeyboardInterrupt
        self.state.keep_versions(0)  # evaluation reads the newest version, always
        with StageTimes(self.trace)("validation"):
            evaluation = evaluate(
                self.model, self.state, self.stream, "val", self.plan, listener=self.listener
            )
        self._end_epoch(evaluation, took)

    def _train_batches(self, times: StageTimes) -> tuple[int, Counter[int]]:
        """Execute what is left of the epoch's batches.

        Returns:
            how many events that was, and how stale the state was that the batches read.
        """
        cursor, phase = self.cursor, self.stream.phase("train")
        executor = self._executor(times)
        border_B1 = self.stream.plan.border_B1
        left = int(border_B1[phase.last] - border_B1[phase.first + cursor.batch])
        self.listener.started("train", cursor.epoch, left)
        self.model.train()
        saved = time.perf_counter()
        with self._batches(phase.batches[cursor.batch :], executor) as batches:
            for batch in batches:
                loss = executor.train(batch)
                cursor.add_loss(loss, batch.size)
                self._check_loss(loss, batch.number)
                self.listener.advanced(batch.size, cursor.mean_loss)
                if self.interrupt.asked:
                    break
                if self._checkpoint_due(batch.number, saved):
                    with times("checkpoint"):
                        self._save_last()
                    saved = time.perf_counter()
        return left, executor.staleness

    def _executor(self, times: StageTimes) -> EagerExecutor:
        """The executor of this epoch; what one has compiled or recorded is kept for the next."""
        if self.executor is not None and self.executor.state is self.state:
            self.executor.times = times
            return self.executor
        executor = make_executor(
            self.settings,
            self.model,
            self.state,
            self.optimizer,
            map(self._prepare, spread(self.stream.phase("train").batches)),
            times,
            self.stream.transfer,
        )
        self.executor = executor if isinstance(executor, TemplateExecutor) else None
        return executor

    def _batches(self, numbers: range, executor: EagerExecutor) -> Pipeline[PreparedBatch, Loaded]:
        """The current epoch's training batches, as far ahead of their execution as they can be."""
        window = 0 if self.caches is None else self.caches.ahead
        pipeline: Pipeline[PreparedBatch, Loaded] = Pipeline(
            numbers,
            self._prepare,
            self.pipeline,
            executor.times,
            ahead=lambda batches: look_ahead(batches, window, executor.announce),
        )
        stale = self.settings.staleness > 0
        # Fixed shapes are filled by the step itself, in one copy.
        ahead = not isinstance(executor, TemplateExecutor)
        if ahead and self.pipeline.threads and (stale or self.state.device.type != "cpu"):
            stream = CopyStream(self.state.device)
            pipeline.load_within, pipeline.wake = stream.held, self.state.wake
            pipeline.load = lambda batch: executor.load(
                batch, stream=stream, read=stale, stopped=lambda: pipeline.stopped
            )
        return pipeline

    def _prepare(self, number: int) -> PreparedBatch:
        """A training batch of the current epoch; any thread may call it."""
        epoch, groups = self.cursor.epoch, self.settings.negative_groups
        drawn = epoch % groups if groups else epoch
        negative_BC = self.negatives.draw_at(self.stream.plan.events(number), epoch=drawn)
        return self.stream.preparer.prepare(number, negative_BC, epoch=epoch)

    def _traffic(self) -> Traffic:
        """Between host and device so far, as far as caches see it."""
        total = self.stream.transfer.total if self.stream.transfer else Traffic()
        return total + self.state.cache.total if isinstance(self.state, HostState) else total

    def _end_epoch(self, evaluation: Evaluation, took: EpochCost) -> None:
        cursor = self.cursor
        value = self._chosen_metric(evaluation)
        record = EpochRecord.of(cursor, evaluation, took)
        if self.executor is not None:
            record = replace(record, templates=self.executor.usage.figures())
            self.listener.message(about_executor(self.executor))
        improved = cursor.best_epoch < 0 or value > cursor.best_value
        if improved:
            cursor.best_value, cursor.best_epoch = value, cursor.epoch
            self._keep_best()
        self.listener.finished("train", cursor.epoch, record.figures())
        cursor.next_epoch(record)
        if self.files is not None:
            self._save_last()
            self.files.append(record)

    def close(self) -> Run:
        best = self.best if self.files is None else self._load_best(self.files)
        assert best is not None
        self.model.load_state_dict(best.group("weights"))
        state = state_from(best, self.model.columns)
        return Run(
            model=self.model.eval(),
            settings=self.settings,
            stream=self.lasting,
            state=self._place(state),
            records=tuple(self.cursor.records),
            best_epoch=self.cursor.best_epoch,
            directory=None if self.files is None else self.files.directory,
        )

    def write_trace(self) -> None:
        """What was traced so far, also of a run that is cut short."""
        if self.files is not None and self.trace is not None:
            self.files.write_trace(self.trace)

    # -- checkpoints

    def _checkpoint_due(self, number: int, saved: float) -> bool:
        if self.files is None:
            return False
        if self.settings.checkpoint_batches is not None:
            return (number + 1) % self.settings.checkpoint_batches == 0
        return time.perf_counter() - saved >= self.settings.checkpoint_seconds

    def _keep_best(self) -> None:
        checkpoint = Checkpoint(
            {**weight_tensors(self.model), **state_tensors(self.state), **self._hidden()},
            {**self._about(), "cursor": self.cursor.to_dict()},
        )
        if self.files is not None:
            save_checkpoint(self.files.best, checkpoint)
        else:
            self.best = Checkpoint(
                {
                    name: tensor.detach().cpu().clone()
                    for name, tensor in checkpoint.tensors.items()
                },
                checkpoint.about,
            )

    def _hidden(self) -> dict[str, torch.Tensor]:
        hidden = self.stream.hidden_nodes
        return {} if hidden is None else {"hidden": torch.from_numpy(hidden)}

    def _save_last(self) -> None:
        assert self.files is not None
        tensors = {
            **weight_tensors(self.model),
            **optimizer_tensors(self.optimizer),
        }
        # Between epochs the state is about to be reset: only inside an epoch is it needed.
        if self.cursor.batch > 0:
            tensors.update(state_tensors(self.state))
        about = {**self._about(), "cursor": self.cursor.to_dict()}
        save_checkpoint(self.files.last, Checkpoint(tensors, about))

    def _load_best(self, files: RunFiles) -> Checkpoint:
        best = load_checkpoint(files.best, "best")
        found, cursor = best.about["cursor"]["epoch"], self.cursor
        # Killed between the best checkpoint and the last one: the epoch is about to be repeated.
        repeats = found == cursor.epoch and not self.finished()
        if found != cursor.best_epoch and not repeats:
            raise CheckpointError(
                f"{files.best} is of epoch {found + 1}, but by {files.last} the best of "
                f"{cursor.epoch} epochs is epoch {cursor.best_epoch + 1}: resume with epochs at "
                f"least {found + 1} and the number of threads it was trained with"
            )
        return best

    def restore(self) -> bool:
        """Continue from the last checkpoint of the directory; False if there is none."""
        assert self.files is not None
        if not self.files.last.exists():
            return False
        checkpoint = load_checkpoint(self.files.last, "last")
        check_same(self.files.last, checkpoint.about, self._about())
        self.model.load_state_dict(checkpoint.group("weights"))
        self.optimizer.load(checkpoint.group("optimizer"))
        self.cursor = Cursor.from_dict(checkpoint.about["cursor"])
        if self.cursor.batch > 0:
            self.state = self._place(state_from(checkpoint, self.model.columns))
            replaced = replaced_from(checkpoint, self.state.device)
            self.state.keep_versions(self.settings.staleness, replaced)
        if self.cursor.best_epoch >= 0:
            self._load_best(self.files)  # damaged or lost, it would be missed at the very end
        place = f"epoch {self.cursor.epoch + 1}, batch {self.cursor.batch + 1}"
        self.listener.message(
            "training is complete already" if self.finished() else f"resuming at {place}"
        )
        return True

    def fit_statistics(self, train: EventRange) -> None:
        """What the model learns from the training events alone, before training on them."""
        event_E, events = train.kept(), self.events
        self.model.fit_statistics(
            TrainingEvents(
                source_E=events.source[event_E],
                target_E=events.target[event_E],
                time_E=events.time[event_E],
                seed=self.settings.seed,
            )
        )

    def _about(self) -> dict[str, Any]:
        return about_run(self.model, self.stream, self.settings)

    def describe_config(self) -> dict[str, Any]:
        """The effective settings, as saved in the run's config.yaml."""
        assert self.files is not None
        data = self.trainer.data or self.files.keep_events(self.events)
        return {
            "model": {"name": self.model.name, "settings": self.model.settings},
            "training": self.settings.model_dump(),
            "data": {**data, "fingerprint": self.events.fingerprint},
            "parts": [asdict(part) for part in self.stream.parts],
        }

    def _check_loss(self, loss: float, number: int) -> None:
        if not math.isfinite(loss):
            raise SettingError(
                f"the loss became {loss} at epoch {self.cursor.epoch + 1}, batch {number + 1}: "
                + why_diverged(self.events, self.settings.learning_rate)
            )

    def _chosen_metric(self, evaluation: Evaluation) -> float:
        metric = evaluation.metrics[self.settings.metric]
        if math.isnan(metric.value):
            raise SettingError(
                f"validation has no {metric.name} to choose the best epoch by: {metric.undefined}. "
                "Validate on more events, or choose another metric"
            )
        return metric.value


# ---------------------------------------------------------------- checks


def _check_candidates(val: EventRange, settings: TrainSettings) -> None:
    """Find now what would otherwise end the evaluation after training.

    Raises:
        NoLegalNegativeError: an event that all destinations are true for; names it.
    """
    if settings.candidates == 0:
        return
    try:
        ranking = ranking_negatives(val.events, settings)
        ranking.candidates(val.start, len(val.events), count=1)
    except NoLegalNegativeError as error:
        raise NoLegalNegativeError(
            f"{error} Or leave out MRR and Hits@k, which rank the event: candidates=0."
        ) from None


def _named(part: EventRange, name: str) -> EventRange:
    return EventRange(part.events, part.start, part.stop, name, part.hidden_nodes)


def _check_ranges(model: TemporalModel, train: EventRange, val: EventRange) -> None:
    if train.events is not val.events:
        raise SettingError(
            "train and val must be ranges of the same events: make them with events.split(...)"
        )
    if train.stop != val.start:
        raise SettingError(
            f"val must follow train directly: train ends at event {train.stop}, val starts at "
            f"{val.start}"
        )
    if len(train.kept()) == 0:
        raise SettingError("the training range has no events")
    if len(val) == 0:
        raise SettingError(
            "the validation range has no events: the best epoch is chosen on it, so give "
            "events.split(val=...) a share"
        )
    check_schema(model.schema, train.events.schema)
