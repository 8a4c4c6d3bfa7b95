"""Event types: several kinds of event in one stream, and which of them are neighbours (I56)."""

from __future__ import annotations

import numpy as np
import pytest

import tidegraph as tg
from tidegraph.events import Events, merge_types, read_table
from tidegraph.events.types import events_of_types

#  view (d = 1):  u0 -1-> i0   u0 -3-> i1   u1 -5-> i1
#  buy  (d = 3):               u0 -2-> i0   u1 -5-> i0
VIEW = {"u": ["u0", "u0", "u1"], "i": ["i0", "i1", "i1"], "t": [1, 3, 5], "x": [0.5, 1.5, 2.5]}
BUY = {"u": ["u1", "u0"], "i": ["i0", "i0"], "t": [5, 2], "p": [7, 4], "q": [8, 5], "r": [9, 6]}
ENDS = {"source": "u", "target": "i", "time": "t"}


def merged() -> Events:
    view = read_table(VIEW, **ENDS, features=["x"])
    buy = read_table(BUY, **ENDS, features=["p", "q", "r"])
    return merge_types({"view": view, "buy": buy})


def test_features_of_different_width_and_order_by_time_across_types() -> None:
    """I56."""
    events = merged()
    original = events.ids.to_original
    assert events.time.tolist() == [1, 2, 3, 5, 5]
    assert original(events.source).tolist() == ["u0", "u0", "u0", "u1", "u1"]
    assert original(events.target).tolist() == ["i0", "i0", "i1", "i1", "i0"]
    assert events.schema.feature_names == (
        "type=view", "type=buy", "view.x", "buy.p", "buy.q", "buy.r",
    )  # fmt: skip
    assert events.features is not None
    assert events.features.tolist() == [
        [1, 0, 0.5, 0, 0, 0],
        [0, 1, 0, 4, 5, 6],
        [1, 0, 1.5, 0, 0, 0],
        [1, 0, 2.5, 0, 0, 0],  # at equal times: in the order the kinds were given
        [0, 1, 0, 7, 8, 9],
    ]


def test_which_events_are_of_a_type() -> None:
    events = merged()
    assert events_of_types(events, ["type=buy"]).tolist() == [False, True, False, False, True]
    assert events_of_types(events, ["type=buy", "type=view"]).all()


def test_a_column_of_types_of_one_table() -> None:
    table = {"u": [0, 0, 1], "i": [2, 3, 3], "t": [1, 2, 3], "kind": ["buy", "view", "buy"]}
    events = read_table(table, **ENDS, categorical=["kind"])
    assert events_of_types(events, ["kind=buy"]).tolist() == [True, False, True]


def test_streams_that_do_not_go_together() -> None:
    first = Events.from_arrays([0], [1], [1])
    with pytest.raises(tg.TidegraphError, match="two or more kinds"):
        merge_types({"view": first})
    with pytest.raises(tg.InputError, match="view has times of type int64, buy has float64"):
        merge_types({"view": first, "buy": Events.from_arrays([0], [1], np.array([1.5]))})
    with pytest.raises(tg.InputError, match="the time unit None, buy has s"):
        merge_types({"view": first, "buy": Events.from_arrays([0], [1], [1], time_unit="s")})


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (["type=bought"], "no event feature 'type=bought'"),
        (["type=bought"], "Did you mean 'type=buy'?"),
        (["view.x"], "the feature 'view.x' is 0.5 in row 1; a type is a feature that is 0 or 1"),
    ],
)
def test_types_that_are_none(types: list[str], message: str) -> None:
    with pytest.raises(tg.TidegraphError) as found:
        events_of_types(merged(), types)
    assert message in str(found.value)


def test_without_features_there_are_no_types() -> None:
    with pytest.raises(tg.TidegraphError, match="there are none"):
        events_of_types(Events.from_arrays([0], [1], [1]), ["type=buy"])
