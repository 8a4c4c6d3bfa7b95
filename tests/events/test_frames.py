"""Frames of columns that are no ids, and ids that are no 64-bit integers."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest

from tidegraph.errors import InputError, UnknownNodeError
from tidegraph.events import Events, read_table

PARTS = {"source": "s", "target": "d", "time": "t"}


class Thing:
    """What no table holds."""


def frame(kind: str, **columns: Any) -> Any:
    found = {"s": ["a", "b", "c"], "d": ["x", "y", "x"], "t": [1, 2, 3]} | columns
    if kind == "mapping":
        return found
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({name: list(column) for name, column in found.items()})


@pytest.mark.parametrize("kind", ["mapping", "pandas"])
def test_integers_of_any_size_are_ids(kind: str) -> None:
    events = read_table(frame(kind, s=[2**70, 1, -(2**70)]), **PARTS)
    assert events.ids.to_original(events.source).tolist() == [2**70, 1, -(2**70)]
    assert events.ids.to_internal([2**70])[0] == events.source[0]


@pytest.mark.parametrize("kind", ["mapping", "pandas"])
def test_ids_that_have_a_text_of_their_own(kind: str) -> None:
    one, two = uuid.uuid4(), uuid.uuid4()
    events = read_table(frame(kind, s=[one, two, one]), **PARTS)
    assert events.ids.to_original(events.source).tolist() == [str(one), str(two), str(one)]


@pytest.mark.parametrize("kind", ["mapping", "pandas"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([Thing(), "b", "c"], "column 's', row 1 (counted from 1): holds a Thing; expected"),
        (["a", "b", Thing], "column 's', row 3 (counted from 1): holds a type; expected"),
        ([1j, 2j, 3j], "column 's', row 1 (counted from 1): holds a complex; expected"),
        ([(1, 2), (3, 4), (1, 2)], "column 's' is BIGINT[]; expected ids, integers or text"),
        ([{"a": 1}] * 3, "column 's' is STRUCT(a BIGINT); expected ids, integers or text"),
    ],
)
def test_other_objects_are_no_ids(kind: str, values: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        read_table(frame(kind, s=values), **PARTS)


@pytest.mark.parametrize("kind", ["mapping", "pandas"])
@pytest.mark.parametrize("part", ["time", "features", "label", "weight", "categorical"])
def test_other_objects_have_no_part(kind: str, part: str) -> None:
    data = frame(kind, odd=[Thing(), Thing(), Thing()])
    value = ["odd"] if part in ("features", "categorical") else "odd"
    with pytest.raises(InputError, match=r"column 'odd', row 1 \(counted from 1\): holds a Thing"):
        read_table(data, **{**PARTS, part: value})


@pytest.mark.parametrize("kind", ["mapping", "pandas"])
def test_a_column_without_a_part_may_hold_anything(kind: str) -> None:
    data = frame(kind, odd=[Thing(), 1, None])
    assert len(read_table(data, **PARTS)) == 3
    assert read_table(data, **PARTS, features="rest").features is None


def test_a_time_beyond_64_bits_is_named() -> None:
    with pytest.raises(InputError, match=r"row 1 .*'1180591620717411303424': time does not fit"):
        read_table(frame("mapping", t=[2**70, 1, 2]), **PARTS)


def test_ids_of_the_other_side_are_told_as_such() -> None:
    events: Events = read_table(frame("mapping"), **PARTS)
    with pytest.raises(UnknownNodeError, match="'x' is a target in these events, not a source"):
        events.ids.to_internal(["x"], side="source")
    with pytest.raises(UnknownNodeError, match="'a' is a source in these events, not a target"):
        events.ids.to_internal(["nobody", "a"], side="target")
    with pytest.raises(UnknownNodeError, match="unknown source node 'q': not among the 3 source"):
        events.ids.to_internal(["q"], side="source")
