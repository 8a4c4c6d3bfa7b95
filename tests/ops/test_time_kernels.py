"""The time code in kernels against float64, for every width, bias and size of difference."""

from __future__ import annotations

import numpy as np
import pytest

from tidegraph.ops.row_kernels import padded
from tidegraph.ops.time_kernels import split_turns, time_code, time_slope


def weights(width: int, kind: str) -> np.ndarray:
    usual = 10.0 ** np.linspace(0, -9, width) if width > 1 else np.ones(1)
    if kind == "rising":  # a trained code may have any order
        usual = usual[::-1].copy()
    return (3 * usual if kind == "large" else usual).astype(np.float32)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 100])
@pytest.mark.parametrize("kind", ["usual", "rising", "large"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("start", "padding"), [(0, 0), (3, 5)])
def test_code_and_slope_equal_float64(
    width: int, kind: str, biased: bool, start: int, padding: int
) -> None:
    draw = np.random.default_rng(width)
    weight_T = weights(width, kind)
    bias_T = (draw.uniform(-7, 7, width) * biased).astype(np.float32)
    turns_3X = np.empty((3, padded(width)), np.float32)
    limits = split_turns(weight_T, bias_T, turns_3X)
    out_1X = np.full((1, start + width + padding), np.nan, np.float32)
    out, around = out_1X[0, start : start + width], np.ones(out_1X.shape[1], bool)
    around[start : start + width] = False
    deltas = [0.0, 1e-3, 0.5, 3.0, 3.2, 1e3, 12345.0, 1e6, 2.6e6, 6.5e6, 7e7, 9e8, 3e9]
    for delta in (sign * np.float32(d) for d in deltas for sign in (1, -1)):
        argument = np.float64(delta) * weight_T.astype(np.float64) + bias_T.astype(np.float64)
        time_code(out_1X, 0, start, delta, turns_3X, limits, weight_T, bias_T)
        assert np.abs(out - np.cos(argument)).max() < 5e-7, delta
        time_slope(out_1X, 0, start, delta, turns_3X, limits, weight_T, bias_T)
        assert np.abs(out + np.sin(argument)).max() < 5e-7, delta
        assert np.isnan(out_1X[0, around]).all()  # nothing else is written


def test_float64_is_exact() -> None:
    weight_T, bias_T = weights(9, "usual").astype(np.float64), np.linspace(-1, 1, 9)
    turns_3X = np.empty((3, padded(9)), np.float32)
    limits = split_turns(weight_T, bias_T, turns_3X)
    out_1X = np.empty((1, 9))
    out = out_1X[0]
    for delta in (0.0, 2.5, 1e4):
        time_code(out_1X, 0, 0, delta, turns_3X, limits, weight_T, bias_T)
        assert np.abs(out - np.cos(delta * weight_T + bias_T)).max() < 1e-9
