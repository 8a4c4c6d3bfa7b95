"""Batch borders: every event in exactly one batch, phases one after another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegraph.batches import BatchPlan
from tidegraph.errors import SettingError


@pytest.mark.parametrize(
    ("size", "expected"),
    [(4, [4, 4, 2]), (10, [10]), (3, [3, 3, 3, 1]), (20, [10]), (1, [1] * 10)],
)
def test_no_event_is_lost_at_the_end(size: int, expected: list[int]) -> None:
    """I58: ten events; the last, smaller batch counts like any other."""
    plan = BatchPlan.build([("train", np.arange(10), size)])
    batches = [plan.events(b).tolist() for b in range(len(plan))]
    assert [len(batch) for batch in batches] == expected
    assert [event for batch in batches for event in batch] == list(range(10))
    assert plan.first_event_B.tolist() == [batch[0] for batch in batches]


@given(
    st.lists(
        st.tuples(st.lists(st.booleans(), max_size=12), st.integers(1, 6)), min_size=1, max_size=4
    )
)
def test_phases_partition_the_events(parts: list[tuple[list[bool], int]]) -> None:
    """Each phase is cut alone; no batch spans two; events left out are in none."""
    ids, start = [], 0
    for kept, _ in parts:
        ids.append(start + np.flatnonzero(kept))
        start += len(kept)
    names = [f"phase{i}" for i in range(len(parts))]
    plan = BatchPlan.build(
        [(n, part, size) for n, part, (_, size) in zip(names, ids, parts, strict=True)]
    )
    covered = []
    for name, part, (_, size) in zip(names, ids, parts, strict=True):
        phase = plan.phase(name)
        batches = [plan.events(b) for b in phase.batches]
        assert len(batches) == len(phase) == -(-len(part) // size)
        assert all(len(batch) == size for batch in batches[:-1])
        assert all(1 <= len(batch) <= size for batch in batches[-1:])
        assert np.concatenate([*batches, np.empty(0, np.int64)]).tolist() == part.tolist()
        covered += list(phase.batches)
    assert covered == list(range(len(plan)))
    assert all(plan.first_event_B[b] == plan.events(b)[0] for b in range(len(plan)))


def test_an_empty_phase_has_no_batches() -> None:
    plan = BatchPlan.build(
        [("train", np.arange(3), 2), ("val", np.arange(0), 2), ("test", np.arange(3, 4), 2)]
    )
    assert [len(plan.phase(name)) for name in ("train", "val", "test")] == [2, 0, 1]
    assert plan.events(2).tolist() == [3]


@pytest.mark.parametrize("size", [0, -1])
def test_batch_size_below_one_is_refused(size: int) -> None:
    with pytest.raises(SettingError, match=f"'val' is {size}.*at least 1"):
        BatchPlan.build([("val", np.arange(3), size)])


@pytest.mark.parametrize("parts", [([2, 3], [0, 1]), ([0, 1], [1, 2]), ([1, 0], [2])])
def test_phases_out_of_order_are_refused(parts: tuple[list[int], list[int]]) -> None:
    with pytest.raises(SettingError, match="follow each other in event order"):
        BatchPlan.build([("a", np.array(parts[0]), 2), ("b", np.array(parts[1]), 2)])


def test_unknown_phase_names_the_known_ones() -> None:
    plan = BatchPlan.build([("train", np.arange(3), 2)])
    with pytest.raises(SettingError, match=r"'tset'.*\['train'\]"):
        plan.phase("tset")
