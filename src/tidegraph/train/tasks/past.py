"""Baselines from past labels: what a source's earlier labels say, without any model.

Every figure of a task is printed beside these. "Earlier" is strictly before the event's time.

Shape legend: E events, M labelled events, L classes.
"""

from __future__ import annotations

import numpy as np

from tidegraph.events.core import Events
from tidegraph.train.tasks.targets import Target


def past_predictions(
    events: Events, target: Target, event_M: np.ndarray, train_stop: int, stop: int | None = None
) -> dict[str, np.ndarray]:
    """Predictions by name, as an objective takes them: [M] numbers or [M, L] probabilities.

    Args:
        events: the stream.
        target: of the task.
        event_M: events to predict, ascending.
        train_stop: the training part ends here; its mean stands in where a source has no past.
        stop: labels from this position on are not known (frozen history); None: all earlier ones.

    >>> from tidegraph.train.tasks.settings import TaskSettings
    >>> from tidegraph.train.tasks.targets import find_target
    >>> events = Events.from_arrays([0, 0, 0], [1, 1, 1], [1, 2, 2], label=[5.0, 7.0, 9.0])
    >>> target = find_target(events, TaskSettings(task="event-regression"))
    >>> past_predictions(events, target, np.arange(3), 2)["last of the source"].tolist()
    [6.0, 5.0, 5.0]
    """
    known_E = target.has_E.copy()
    known_E[len(known_E) if stop is None else stop :] = False
    trained = known_E[:train_stop]
    if target.kind == "number":
        vector_EL = target.value_E[:, None].astype(np.float64)
    else:
        vector_EL = np.eye(len(target.classes))[target.value_E]
    prior_L = vector_EL[:train_stop][trained].mean(axis=0)
    last_EL, mean_EL = _before(events, vector_EL, known_E, prior_L)
    constant = "training mean" if target.kind == "number" else "training shares"
    found = {
        constant: np.broadcast_to(prior_L, (len(event_M), len(prior_L))),
        "last of the source": last_EL[event_M],
        "mean of the source": mean_EL[event_M],
    }
    if target.kind == "number":
        return {name: values[:, 0] for name, values in found.items()}
    return found


def _before(
    events: Events, vector_EL: np.ndarray, known_E: np.ndarray, prior_L: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The source's last label and the mean of its labels, strictly before each event's time."""
    order_E = np.argsort(events.source, kind="stable")
    source_E, time_E = events.source[order_E], events.time[order_E]
    known_E, vector_EL = known_E[order_E], vector_EL[order_E]
    place_E = np.arange(len(order_E))
    new_source = np.append(True, source_E[1:] != source_E[:-1])
    new_time = new_source | np.append(True, time_E[1:] != time_E[:-1])
    # Of each event: where its source's events begin, and where those of its own time begin.
    first_E = np.maximum.accumulate(np.where(new_source, place_E, 0))
    tie_E = np.maximum.accumulate(np.where(new_time, place_E, 0))
    count_E1 = np.concatenate([[0], np.cumsum(known_E)])
    labelled_E = np.where(known_E, place_E, -1)
    latest_E1 = np.concatenate([[-1], np.maximum.accumulate(labelled_E)])
    number_E = count_E1[tie_E] - count_E1[first_E]
    last_E = latest_E1[tie_E]
    has_E = (number_E > 0)[:, None]
    last_EL = np.where(has_E, vector_EL[np.maximum(last_E, 0)], prior_L)
    sum_E1L = np.concatenate(
        [np.zeros((1, vector_EL.shape[1])), np.cumsum(vector_EL * known_E[:, None], axis=0)]
    )
    mean_EL = (sum_E1L[tie_E] - sum_E1L[first_E]) / np.maximum(number_E, 1)[:, None]
    mean_EL = np.where(has_E, mean_EL, prior_L)
    back_E = np.empty_like(order_E)
    back_E[order_E] = place_E
    return last_EL[back_E], mean_EL[back_E]
