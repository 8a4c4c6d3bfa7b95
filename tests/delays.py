"""Faults put into a pipeline by tests: preparation that takes as long as it likes, or fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from tidegraph.batches import PreparedBatch, Preparer


@contextmanager
def delayed(most: float, seed: int = 0) -> Any:
    """Every preparation of a training batch sleeps first, up to `most` seconds, by its number.

    Batches then become ready in another order than they are executed in.
    """
    real = Preparer.prepare

    def slow(self: Preparer, number: int, *args: Any, **kwargs: Any) -> PreparedBatch:
        draw = np.random.default_rng((seed, number, kwargs.get("epoch", 0)))
        time.sleep(float(draw.random() ** 3 * most))
        return real(self, number, *args, **kwargs)

    with patch.object(Preparer, "prepare", slow):
        yield


def failing(real: Callable[[int], Any], at: int, error: BaseException) -> Callable[[int], Any]:
    """`real`, but for one number, where it raises."""

    def prepare(number: int) -> Any:
        if number == at:
            raise error
        return real(number)

    return prepare
