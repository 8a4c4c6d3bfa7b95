"""Fine-tuning: the encoder trained on by the task, from where link prediction and decoder are.

Each pass starts from an empty node state and walks the training events in order, as link training
does; a batch whose events have labels takes a step, every batch moves the state. The pass with
the best validation stays, and it may be none: then the encoder is as it was.

Shape legend: B events of a batch, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tidegraph.batches.prepared import PreparedBatch
from tidegraph.errors import SettingError
from tidegraph.models.base import TemporalModel
from tidegraph.state import NodeState
from tidegraph.train.adam import Adam
from tidegraph.train.executor import EagerExecutor
from tidegraph.train.stages import Listener
from tidegraph.train.stream import Stream
from tidegraph.train.tasks.decoder import Decoder
from tidegraph.train.tasks.settings import TaskSettings

Loss = Callable[[PreparedBatch, Tensor], Tensor | None]


@dataclass(frozen=True, eq=False)
class Tuned:
    """What fine-tuning came to.

    Attributes:
        best_epoch: from 0; -1: the encoder as it was.
        value: the figure that chose it.
    """

    best_epoch: int
    value: float


def tune(
    model: TemporalModel,
    decoder: Decoder,
    stream: Stream,
    empty: Callable[[], NodeState],
    loss: Loss,
    validate: Callable[[NodeState], float],
    settings: TaskSettings,
    *,
    start: float,
    lower: bool,
    clip: float | None,
    listener: Listener,
) -> Tuned:
    """Train encoder and decoder; both end at the best pass.

    Args:
        model, decoder: to be trained on.
        stream: its first part is training.
        empty: makes an empty node state.
        loss: of a batch's root embeddings, None where nothing is labelled.
        validate: the figure on validation, from the end-of-train state.
        settings: of the task.
        start: the figure of the model as it is.
        lower: whether less of it is better.
        clip: largest gradient norm of the encoder and decoder together.
        listener: told about progress.

    Raises:
        SettingError: the loss became no number.
    """
    numbers = stream.phase(stream.parts[0].name).batches
    named = [
        *model.named_parameters(),
        *((f"decoder.{n}", p) for n, p in decoder.named_parameters()),
    ]
    optimizer = Adam(named, settings.tune_learning_rate)
    best, kept = Tuned(-1, start), _copies(model, decoder)
    with torch.random.fork_rng(devices=[]):
        for epoch in range(settings.tune_epochs):
            state = empty()
            executor = EagerExecutor(model, state, optimizer, clip, transfer=stream.transfer)
            total = sum(len(stream.plan.events(number)) for number in numbers)
            listener.started(f"tune {epoch + 1}", None, total)
            model.train()
            decoder.train()
            for number in numbers:
                nothing = np.empty((len(stream.plan.events(number)), 0), np.int32)
                # Epoch numbers of their own: other draws than those of link training.
                batch = stream.preparer.prepare(number, nothing, epoch=1_000_000 + epoch)
                value = executor.fit(batch, lambda root_RD, batch=batch: loss(batch, root_RD))  # type: ignore[misc]
                if value is not None and not math.isfinite(value):
                    raise SettingError(
                        f"the task's loss became {value} while the encoder was tuned: choose a "
                        "smaller --tune-learning-rate"
                    )
                listener.advanced(batch.size, value)
            model.eval()
            decoder.eval()
            found = validate(state)
            better = found < best.value if lower else found > best.value
            listener.finished(f"tune {epoch + 1}", None, {})
            listener.message(f"tuned     pass {epoch + 1}: validation {found:.4f}")
            if better:
                best, kept = Tuned(epoch, found), _copies(model, decoder)
    model.load_state_dict(kept[0])
    decoder.load_state_dict(kept[1])
    return best


def _copies(*modules: torch.nn.Module) -> list[dict[str, Tensor]]:
    return [
        {name: tensor.clone() for name, tensor in module.state_dict().items()} for module in modules
    ]
