"""Fitting a task on a trained run, and finding it again: every task by one call."""

from __future__ import annotations

from pathlib import Path

from tidegraph.errors import CheckpointError, SettingError
from tidegraph.train.checkpoint import load_checkpoint
from tidegraph.train.contents import state_from
from tidegraph.train.placement import cache_settings, place_state
from tidegraph.train.run import Run
from tidegraph.train.stages import Listener
from tidegraph.train.tasks.collect import exact
from tidegraph.train.tasks.predict import decoder_of
from tidegraph.train.tasks.properties import read_properties
from tidegraph.train.tasks.property_run import PropertyRun, fit_properties
from tidegraph.train.tasks.settings import TaskSettings
from tidegraph.train.tasks.targets import find_target
from tidegraph.train.tasks.task_run import Fitting, TaskRun, task_path


def fit_task(
    run: Run, settings: TaskSettings, listener: Listener | None = None
) -> TaskRun | PropertyRun:
    """Train a task's decoder on a run's embeddings, and with `encoder="tuned"` the encoder too.

    Args:
        run: at the end of validation, as `Trainer.fit` and `load_run` give it; a tuned encoder
            changes its model's weights.
        settings: of the task.
        listener: told about progress.

    Raises:
        SettingError: a target that is not there, or that nothing can be learned of; a run that has
            moved past validation.

    >>> import tidegraph as tg
    >>> from tidegraph.train.tasks import TaskSettings, fit_task
    >>> label = [0, 1] * 30
    >>> events = tg.Events.from_arrays([0, 1] * 30, [2, 3] * 30, list(range(60)), label=label)
    >>> train, val, test = events.split(val=0.25, test=0.25)
    >>> model = tg.models.TGN(events.schema, memory=8, time=8, embedding=8, neighbors=2)
    >>> run = tg.Trainer(model, epochs=1, batch_size=10, candidates=0).fit(train, val)
    >>> task = fit_task(run, TaskSettings(task="node-classification", task_epochs=2))
    >>> "AUC" in task.evaluate(test).metrics
    True
    """
    listener = listener or Listener()
    if settings.task == "link":
        raise SettingError("task='link' is what a run is trained for anyway: choose another task")
    if len(run.stream.parts) != 2:
        raise SettingError(
            "the run has moved past validation: fit the task first, or open the run again "
            "with load_run(directory)"
        )
    run = run.on(exact(run.stream), run.state)
    if settings.task == "node-property":
        return fit_properties(run, settings, listener)
    return Fitting(run, settings, listener).fit()


def load_task(directory: Path, run: Run) -> TaskRun | PropertyRun:
    """The task that a run was trained for.

    Args:
        directory: of the run.
        run: opened from there; it is put to where the task left validation.

    Raises:
        CheckpointError: there is none, or it is damaged or of another run.
    """
    path = task_path(directory)
    checkpoint = load_checkpoint(path)
    about = checkpoint.about
    if "task" not in about:
        raise CheckpointError(f"{path} is no checkpoint of a task: put it back, or train again")
    if about["fingerprint"] != run.events.fingerprint:
        raise CheckpointError(f"{path} belongs to other data than the run: train again")
    settings = TaskSettings.of(about["task"])
    run = run.on(exact(run.stream), run.state)
    run.model.load_state_dict(checkpoint.group("weights"))
    caches = cache_settings(run.settings, run.stream, run.model.memory_width)
    run.state = place_state(state_from(checkpoint, run.model.columns), run.settings, caches)
    decoder = decoder_of(checkpoint, settings)
    if settings.properties is not None:
        table = read_properties(settings.properties, run.events)
        return PropertyRun(run, settings, table, decoder, about["task_about"])
    target = find_target(run.events, settings)
    return TaskRun(run, settings, target, decoder, about["task_about"])
