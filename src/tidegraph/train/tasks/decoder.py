"""The decoder: a small network from collected embeddings to a target, trained on its own.

Rows are standardised by the training rows, so that one step size serves encoders of any scale.
Initial weights, order, dropout and balanced draws derive from the seed alone.

Shape legend: M rows, I inputs, O outputs, L classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tidegraph.keys import Purpose, make_key, permutation, uniform
from tidegraph.train.adam import Adam
from tidegraph.train.stages import Listener
from tidegraph.train.tasks.objectives import Classes, Objective
from tidegraph.train.tasks.settings import TaskSettings

_BLOCK = 16_384  # rows scored at once
_STREAMS = {"none": 0, "weight": 1, "sampling": 2}


class Decoder(nn.Module):
    """Two hidden layers over standardised inputs.

    Args:
        inputs, outputs: I and O.
        width: hidden units of each layer.
        dropout: of the hidden units.
    """

    def __init__(self, inputs: int, outputs: int, width: int, dropout: float) -> None:
        super().__init__()
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))
        self.first = nn.Linear(inputs, width)
        self.second = nn.Linear(width, width)
        self.last = nn.Linear(width, outputs)
        self.dropout = nn.Dropout(dropout)

    def standardise(self, row_MI: np.ndarray) -> None:
        """Take means and deviations from training rows; a constant input becomes 0."""
        deviation_I = row_MI.std(axis=0, dtype=np.float64)
        deviation_I[deviation_I < 1e-6] = math.inf
        self.mean.copy_(torch.from_numpy(row_MI.mean(axis=0, dtype=np.float64)))
        self.scale.copy_(torch.from_numpy(1.0 / deviation_I))

    def forward(self, row_MI: Tensor) -> Tensor:
        """Outputs [M, O]."""
        hidden_MW = (row_MI - self.mean) * self.scale
        for layer in (self.first, self.second):
            hidden_MW = self.dropout(torch.relu(layer(hidden_MW)))
        output_MO: Tensor = self.last(hidden_MW)
        return output_MO

    def outputs(self, row_MI: np.ndarray) -> np.ndarray:
        """Outputs of any number of rows, without gradients or dropout."""
        was_training = self.training
        self.eval()
        with torch.inference_mode():
            parts = [
                self(torch.from_numpy(row_MI[first : first + _BLOCK])).numpy()
                for first in range(0, len(row_MI), _BLOCK)
            ]
        self.train(was_training)
        return np.concatenate(parts) if parts else np.empty((0, self.last.out_features), np.float32)


@dataclass(frozen=True, eq=False)
class Table:
    """Rows to learn from.

    Attributes:
        row_MI: [M, I] float32 inputs.
        value_M: [M] (or [M, L]) targets, as the objective takes them.
    """

    row_MI: np.ndarray
    value_M: np.ndarray


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained decoder.

    Attributes:
        decoder: at its best pass.
        balance: how rare classes were treated.
        best_epoch: from 0; value: the figure that chose it.
        epochs: passes made.
    """

    decoder: Decoder
    balance: str
    best_epoch: int
    value: float
    epochs: int


def fit_decoder(
    train: Table,
    val: Table,
    objective: Objective,
    settings: TaskSettings,
    seed: int,
    listener: Listener | None = None,
) -> Fitted:
    """Train a decoder and keep its best pass on validation; `balance="auto"` tries every way.

    Args:
        train, val: rows of the two parts.
        objective: says what is minimised and what is best.
        settings: of the task.
        seed: all randomness derives from it.
        listener: told which way led where.
    """
    listener = listener or Listener()
    ways = [settings.balance]
    if not isinstance(objective, Classes):
        ways = ["none"]
    elif settings.balance == "auto":
        ways = ["none", "weight", "sampling"]
    best: Fitted | None = None
    with torch.random.fork_rng(devices=[]):
        for way in ways:
            found = _fit_one(train, val, objective, settings, seed, way)
            listener.message(
                f"decoder   {'' if len(ways) == 1 else f'balance {way}: '}best pass "
                f"{found.best_epoch + 1} of {found.epochs}, validation {objective.chosen_by} "
                f"{found.value:.4f}"
            )
            if best is None or _better(found.value, best.value, objective):
                best = found
    assert best is not None
    return best


def class_weights(value_M: np.ndarray, count: int) -> Tensor:
    """[L] weights under which every class that occurs weighs the same in total.

    >>> class_weights(np.array([0, 0, 0, 1]), 2).tolist()
    [0.6666666865348816, 2.0]
    """
    found_L = np.bincount(value_M, minlength=count)
    occurring = np.count_nonzero(found_L)
    weight_L = len(value_M) / (occurring * np.maximum(found_L, 1))
    return torch.from_numpy(np.where(found_L > 0, weight_L, 0).astype(np.float32))


def _fit_one(
    train: Table, val: Table, objective: Objective, settings: TaskSettings, seed: int, way: str
) -> Fitted:
    key = make_key(seed, Purpose.SHUFFLE, _STREAMS[way])
    torch.manual_seed(key >> 1)
    decoder = Decoder(
        train.row_MI.shape[1], objective.outputs, settings.task_width, settings.task_dropout
    )
    decoder.standardise(train.row_MI)
    optimizer = Adam(decoder.named_parameters(), settings.task_learning_rate)
    row_MI, target_M = torch.from_numpy(train.row_MI), objective.target(train.value_M)
    weight_L = None
    if way == "weight" and isinstance(objective, Classes):
        weight_L = class_weights(train.value_M, objective.count)
    best_value, best_epoch, kept = math.nan, -1, decoder.state_dict()
    epoch = 0
    while epoch < settings.task_epochs:
        decoder.train()
        for chosen_B in _batches(train.value_M, settings.task_batch_size, way, key, epoch):
            at_B = torch.from_numpy(chosen_B)
            loss = objective.loss(decoder(row_MI[at_B]), target_M[at_B], weight_L)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        value = validation(decoder, val, objective)
        if best_epoch < 0 or _better(value, best_value, objective):
            best_value, best_epoch = value, epoch
            kept = {name: tensor.clone() for name, tensor in decoder.state_dict().items()}
        epoch += 1
        if settings.task_patience and epoch - 1 - best_epoch >= settings.task_patience:
            break
    decoder.load_state_dict(kept)
    return Fitted(decoder.eval(), way, best_epoch, best_value, epoch)


def validation(decoder: Decoder, val: Table, objective: Objective) -> float:
    """The figure that chooses."""
    predicted_M = objective.predict(decoder.outputs(val.row_MI))
    return objective.figures(val.value_M, predicted_M, "")[objective.chosen_by].value


def _better(value: float, best: float, objective: Objective) -> bool:
    return value < best if objective.lower else value > best


def _batches(
    value_M: np.ndarray, size: int, way: str, key: int, epoch: int
) -> Iterator[np.ndarray]:
    """Rows of each step: every row once, or as many, every class drawn alike."""
    own = make_key(key, Purpose.SHUFFLE, epoch)
    order_M = permutation(own, len(value_M))
    if way == "sampling":
        by_class = [np.flatnonzero(value_M == label) for label in np.unique(value_M)]
        label_M = order_M % len(by_class)  # as often each, in random order
        draw_M = uniform(make_key(own, Purpose.SHUFFLE), len(value_M))
        length_L = np.asarray([len(rows) for rows in by_class])
        start_L = np.concatenate([[0], np.cumsum(length_L[:-1])])
        picked_M = start_L[label_M] + (draw_M * length_L[label_M]).astype(np.int64)
        order_M = np.concatenate(by_class)[picked_M]
    for first in range(0, len(order_M), size):
        yield order_M[first : first + size]
