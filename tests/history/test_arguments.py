"""What callers may pass to an index by mistake: an answer or one clear line, never a wrong one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tidegraph.errors import InputError, SettingError, UnknownNodeError
from tidegraph.history import Neighbors, TemporalIndex, sample_hops


@pytest.fixture
def index() -> TemporalIndex:
    #  0 --10-- 1,  0 --20-- 2,  1 --30-- 2,  0 --40-- 1
    return TemporalIndex.build([0, 0, 1, 0], [1, 2, 2, 1], [10, 20, 30, 40], num_nodes=3)


@pytest.mark.parametrize("limit", [2**63 - 1, 2**63, 2**64 - 1, np.uint64(2**63)])
def test_a_limit_beyond_all_events_hides_none(index: TemporalIndex, limit: Any) -> None:
    assert index.sample([0], [41], 3, before_event=limit).event_SK.tolist() == [[0, 1, 3]]
    each = np.array([limit], np.uint64)
    assert index.sample([0], [41], 3, before_event=each).event_SK.tolist() == [[0, 1, 3]]


@pytest.mark.parametrize("kind", [int, np.int64, np.int32, np.uint64])
def test_keys_of_any_integer_type_draw_alike(index: TemporalIndex, kind: Any) -> None:
    for draw in (
        lambda key: index.sample([0], [41], 2, strategy="uniform", key=key).event_SK,
        lambda key: sample_hops(index, [0], [41], [2, 1], strategy="uniform", key=key)[1].event_SK,
    ):
        np.testing.assert_array_equal(draw(kind(5)), draw(5))
        if kind is np.int64:
            np.testing.assert_array_equal(draw(np.int64(-1)), draw(2**64 - 1))


def test_a_key_must_be_an_integer(index: TemporalIndex) -> None:
    with pytest.raises(SettingError, match=r"key is 1\.5: expected an integer"):
        index.sample([0], [41], 2, key=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["neighbor_SK", "event_SK", "delta_SK", "time_SK", "count_S"])
def test_answers_need_room_that_can_be_written(index: TemporalIndex, name: str) -> None:
    out = index.sample([0], [41], 2)
    getattr(out, name).flags.writeable = False
    with pytest.raises(InputError, match=rf"out\.{name} .* expected a contiguous, writable array"):
        index.sample([0], [41], 2, out=out)


def test_out_must_be_neighbors(index: TemporalIndex) -> None:
    with pytest.raises(InputError, match="out is tuple, expected Neighbors"):
        index.sample([0], [41], 2, out=(1, 2))  # type: ignore[arg-type]


def test_read_only_questions_are_answered(index: TemporalIndex) -> None:
    parts = {
        "nodes_S": np.array([0, 1], np.int32),
        "times_S": np.array([41, 41]),
        "before_event": np.array([3, 3]),
        "slot_S": np.array([1, 2], np.uint64),
    }
    expected = index.sample(k=2, **parts)  # type: ignore[arg-type]
    compiled = len(_sampler_forms())
    for part in parts.values():
        part.flags.writeable = False
    found = index.sample(k=2, **parts)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found.event_SK, expected.event_SK)
    assert len(_sampler_forms()) == compiled  # nothing was compiled for it


def _sampler_forms() -> list[Any]:
    from tidegraph.history import sample_kernels

    return [*sample_kernels.sample_block.signatures]  # type: ignore[attr-defined]


def test_entries_must_be_a_vector(index: TemporalIndex) -> None:
    with pytest.raises(InputError, match=r"entries has type .* and shape \(8, 1\)"):
        replace(index, entries=index.entries.reshape(-1, 1))


def test_times_are_not_rounded() -> None:
    if np.dtype(np.longdouble).itemsize == 8:
        pytest.skip("long double is float64 here")
    index = TemporalIndex.build([0, 0], [1, 1], [0.5, 1.5], num_nodes=2)
    exact = np.array([1.5], np.longdouble)
    assert index.degree([0], exact).tolist() == [1]
    for time in (exact + np.longdouble(2) ** -60, np.array([np.longdouble("1e400")])):
        with pytest.raises(InputError, match=r"times_S\[0\] .* float64 does not hold exactly"):
            index.degree([0], time)


@pytest.mark.parametrize("count", [3.0, None, "3", True, -1, 2**31])
def test_a_number_of_nodes_is_a_whole_number(count: Any) -> None:
    with pytest.raises(SettingError, match=r"num_nodes is .* expected 0 to"):
        TemporalIndex.build([0], [1], [1], num_nodes=count)


@pytest.mark.parametrize("k", [2**31, 2**50, 2**63, 2**70])
def test_a_fanout_has_a_limit(index: TemporalIndex, k: int) -> None:
    with pytest.raises(SettingError, match="expected how many neighbours to take"):
        index.sample([0], [41], k)


@pytest.mark.parametrize("node", [-1, 3, 2**40])
def test_entries_of_an_unknown_node(index: TemporalIndex, node: int) -> None:
    with pytest.raises(UnknownNodeError, match=f"node {node}: the index has nodes 0 to 2"):
        index.entries_of(node)


def test_room_made_by_hand_is_accepted(index: TemporalIndex) -> None:
    kind = index.entries.dtype
    out = Neighbors.empty(1, 2, kind["event"], kind["time"])
    assert index.sample([0], [41], 2, out=out) is out
    assert out.event_SK.tolist() == [[1, 3]]
