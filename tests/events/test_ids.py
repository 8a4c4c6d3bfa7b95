"""Internal numbers and original ids, both ways: exact, sorted, searched without a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegraph.errors import SettingError, UnknownNodeError
from tidegraph.events import NodeIds
from tidegraph.events.text import TextColumn


def test_integers_are_numbered_by_value() -> None:
    ids = NodeIds.from_values([10**18, -5, 3])
    assert ids.to_original([0, 1, 2]).tolist() == [-5, 3, 10**18]
    assert ids.to_internal([3, 10**18]).tolist() == [1, 2]
    assert ids.to_internal(-5).dtype == np.int32


def test_text_is_numbered_by_code_point() -> None:
    ids = NodeIds.from_values(["b", "Z", "ä", "a"])
    assert ids.to_original(range(4)).tolist() == ["Z", "a", "b", "ä"]


def test_unknown_ids_are_named() -> None:
    ids = NodeIds.from_values(["alice", "bob"])
    with pytest.raises(UnknownNodeError, match=r"unknown node 'alise', 'zoe'.*mean 'alice'"):
        ids.to_internal(["bob", "alise", "zoe"])


def test_unknown_ids_can_be_marked() -> None:
    ids = NodeIds.from_values([5, 7])
    assert ids.to_internal([7, 6, 5], missing=-1).tolist() == [1, -1, 0]


def test_numbers_outside_the_table_are_refused() -> None:
    with pytest.raises(UnknownNodeError, match="no node 2; nodes are numbered 0 to 1"):
        NodeIds.identity(2).to_original([0, 2])


def test_text_of_digits_finds_integers_and_the_reverse() -> None:
    assert NodeIds.from_values([7, 8]).to_internal(["8"]).tolist() == [1]
    assert NodeIds.from_values(["7", "x"]).to_internal([7]).tolist() == [0]
    assert NodeIds.from_values([7, 8]).to_internal(["08", "8.0"], missing=-1).tolist() == [-1, -1]


def test_i25_mixed_integers_and_text_come_back_as_given() -> None:
    ids = NodeIds.from_values(["u7", "A9", 10**12, "B2"])
    assert len(ids) == 4
    assert ids.to_original(range(4)).tolist() == [10**12, "A9", "B2", "u7"]
    assert ids.to_internal(["u7", 10**12]).tolist() == [3, 0]


def test_separate_sides_may_share_an_id() -> None:
    #  sources 5, 6 -> 0, 1     targets 5, 9 -> 2, 3
    ids = NodeIds.from_sides([6, 5], [9, 5], separate=True)
    assert ids.to_internal([5], side="source").tolist() == [0]
    assert ids.to_internal([5], side="target").tolist() == [2]
    assert ids.to_internal([6, 9]).tolist() == [1, 3]
    with pytest.raises(SettingError, match="5 is both a source and a target"):
        ids.to_internal([5])
    with pytest.raises(UnknownNodeError, match="9 is a target in these events, not a source"):
        ids.to_internal([9], side="source")


def test_new_ids_follow_the_old_ones() -> None:
    ids = NodeIds.from_values(["m", "c"]).extended(["z", "a"])
    assert ids.to_original(range(4)).tolist() == ["c", "m", "a", "z"]
    assert ids.to_internal(["a", "m"]).tolist() == [2, 1]


def test_identity_stays_identity_when_it_runs_on() -> None:
    ids = NodeIds.identity(3).extended([3, 4])
    assert ids.is_identity
    assert len(ids) == 5
    gap = NodeIds.identity(3).extended([7])
    assert gap.to_internal([7]).tolist() == [3]
    assert gap.to_internal([3], missing=-1).tolist() == [-1]


def test_unsigned_and_float_values() -> None:
    ids = NodeIds.from_values(np.array([1, 2], np.uint8))
    assert ids.to_internal(np.array([2.0, 1.5, np.nan]), missing=-1).tolist() == [1, -1, -1]
    huge = np.array([2**64 - 1, 1], np.uint64)
    assert NodeIds.from_values([1]).to_internal(huge, missing=-1).tolist() == [-1, 0]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.lists(st.integers(-50, 50)))
def test_integer_lookup_equals_a_dictionary(values: list[int], others: list[int]) -> None:
    ids = NodeIds.from_values(values)
    table = {value: node for node, value in enumerate(sorted(set(values)))}
    asked = values + others
    expected = [table.get(value, -1) for value in asked]
    assert ids.to_internal(np.array(asked, np.int64), missing=-1).tolist() == expected
    assert ids.to_original(range(len(ids))).tolist() == sorted(set(values))


@given(st.lists(st.text(), min_size=1), st.lists(st.text(max_size=2)))
def test_text_lookup_equals_a_dictionary(values: list[str], others: list[str]) -> None:
    column = TextColumn.from_values(sorted(set(values)))
    table = {value: node for node, value in enumerate(sorted(set(values)))}
    asked = values + others
    found = column.find(TextColumn.from_values(asked)).tolist()
    assert found == [table.get(value, -1) for value in asked]
    assert column.take(np.arange(len(column))).tolist() == sorted(set(values))
