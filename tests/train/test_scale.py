"""Features of an extreme scale: told before training, and named when it diverges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tidegraph.errors import SettingError
from tidegraph.events import Events, load_dataset
from tidegraph.train.scale import column_scales, scale_warning, why_diverged
from training import Diary, chatter, fit


def with_column(value: Any, events: Events | None = None) -> Events:
    events = events or chatter()
    assert events.features is not None
    features = np.array(events.features)
    features[:, 1] = value
    return replace(events, features=features, fingerprint="")


def test_the_largest_value_and_its_column_are_named() -> None:
    values = np.full(120, -1e30)
    values[::2] = 1.0
    with pytest.raises(SettingError, match=r"the loss became .* batch") as caught:
        fit(with_column(values))
    message = str(caught.value)
    assert "feature f1 reaches 1e+30, which overflows 32-bit floats: scale such columns" in message
    assert "learning_rate" not in message


def test_where_features_are_harmless_the_step_is_the_cause() -> None:
    assert why_diverged(chatter(), 0.5) == "try a learning_rate below 0.5, or clip=1.0"
    assert why_diverged(chatter(features=0)) == "try a lower learning_rate, or clip=1.0"
    both = why_diverged(with_column(500.0), 0.5)
    assert "learning_rate below 0.5" in both
    assert "Feature f1 reaches 500" in both


@pytest.mark.parametrize(
    ("value", "warned"), [(1.0, False), (23.0, False), (0.0, False), (2013.0, True), (1e30, True)]
)
def test_a_column_far_from_one_is_told_once(value: float, warned: bool) -> None:
    diary = Diary()
    if value < 1e20:
        fit(with_column(value), listener=diary, epochs=2)
    else:
        with pytest.raises(SettingError):
            fit(with_column(value), listener=diary)
    said = [line for line in diary.said if "far from the order of 1" in line]
    assert len(said) == warned
    if warned:
        assert "f1 (up to " in said[0]
        assert "f0" not in said[0]


def test_one_wild_row_is_told() -> None:
    values = np.zeros(120)
    values[3] = 1e9
    assert "f1 (up to 1e+09)" in str(scale_warning(with_column(values)))


def test_bundled_data_gives_no_warning() -> None:
    assert scale_warning(load_dataset("flights")) is None


def test_scales_are_those_of_all_rows() -> None:
    events = with_column(np.arange(120.0))
    scale = column_scales(events)[1]
    assert (scale.name, scale.largest) == ("f1", 119.0)
    assert scale.typical == pytest.approx(np.sqrt((np.arange(120.0) ** 2).mean()))
    few = column_scales(events, rows=10)[1]
    assert few.typical == pytest.approx(scale.typical, rel=0.1)
