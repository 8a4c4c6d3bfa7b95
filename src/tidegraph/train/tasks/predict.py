"""Predictions of a task for new events: a decoder with what it needs to speak the column's terms.

Shape legend: B events.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidegraph.errors import CheckpointError
from tidegraph.events.core import Events
from tidegraph.train.checkpoint import Checkpoint, load_checkpoint
from tidegraph.train.predictions import EventPredictions
from tidegraph.train.tasks.decoder import Decoder
from tidegraph.train.tasks.inputs import decoder_inputs, sees_target
from tidegraph.train.tasks.objectives import Classes, Number
from tidegraph.train.tasks.settings import TaskSettings
from tidegraph.train.tasks.targets import known_columns
from tidegraph.train.tasks.task_run import task_path


@dataclass(frozen=True, eq=False)
class TaskDecoder:
    """A task's decoder without the events it was trained on.

    Attributes:
        settings: of the task.
        decoder: trained.
        name: of the target's column.
        classes: distinct values, ascending; empty for a number.
        number: mean and deviation of the training labels, of a number.
    """

    settings: TaskSettings
    decoder: Decoder
    name: str
    classes: tuple[float, ...]
    number: Number | None

    @classmethod
    def load(cls, directory: Path) -> TaskDecoder | None:
        """Of a run's directory; None where the run has no task that is about events.

        Raises:
            CheckpointError: it is damaged.
        """
        path = task_path(directory)
        if not path.exists():
            return None
        checkpoint = load_checkpoint(path)
        if "task" not in checkpoint.about:
            raise CheckpointError(f"{path} is no checkpoint of a task: put it back, or train again")
        settings = TaskSettings.of(checkpoint.about["task"])
        if settings.task == "node-property":
            return None
        target = checkpoint.about["target"]
        number = None if target["classes"] else Number(target["mean"], target["deviation"])
        decoder = decoder_of(checkpoint, settings)
        return cls(settings, decoder, target["name"], tuple(target["classes"]), number)

    def columns(self, found: EventPredictions, events: Events) -> dict[str, np.ndarray]:
        """Predictions by column name.

        Args:
            found: of the same events, with embeddings before each.
            events: their features, as far as they are known before.

        Returns:
            "<target>_predicted" of a number or the likeliest class, and "<target>_probability" of
            that class, or of the larger one of two.
        """
        assert found.source_embedding is not None
        assert found.target_embedding is not None
        both_B2D = np.stack([found.source_embedding, found.target_embedding], axis=1)
        known = known_columns(events, self.settings, self.name)
        row_BI = decoder_inputs(
            both_B2D, np.arange(len(events)), events, known, sees_target(self.settings.task)
        )
        output_BO = self.decoder.outputs(row_BI)
        if self.number is not None:
            return {f"{self.name}_predicted": self.number.predict(output_BO)}
        share_BL = Classes(len(self.classes)).predict(output_BO)
        likeliest_B = np.argmax(share_BL, axis=1)
        shown_B = share_BL[:, 1] if len(self.classes) == 2 else share_BL.max(axis=1)
        return {
            f"{self.name}_predicted": np.asarray(self.classes)[likeliest_B],
            f"{self.name}_probability": shown_B.astype(np.float32),
        }


def decoder_of(checkpoint: Checkpoint, settings: TaskSettings) -> Decoder:
    """The decoder in a task's checkpoint."""
    tensors = checkpoint.group("decoder")
    inputs, outputs = len(tensors["mean"]), len(tensors["last.bias"])
    decoder = Decoder(inputs, outputs, settings.task_width, settings.task_dropout)
    decoder.load_state_dict(tensors)
    return decoder.eval()
