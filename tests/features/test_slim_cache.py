"""What a cache delivers is the rows themselves, and its counters add up."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tidegraph.features import FeatureStore, Frequent, NextUse, Residents, SlimCache, Traffic

ROWS, WIDTH = 7, 3


class Table:
    """A host table that changes and remembers which rows it was asked for."""

    width = WIDTH

    def __init__(self) -> None:
        noise = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
        self.value_NW = torch.from_numpy(noise)
        self.asked: list[int] = []

    def rows(self, index: np.ndarray) -> Tensor:
        self.asked += index.tolist()
        return self.value_NW.index_select(0, torch.from_numpy(index))


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[list[int], list[bool], list[int]]]:
    """(rows of a batch, which of them are known to be zero, which of them are written)."""
    found = []
    for _ in range(draw(st.integers(1, 12))):
        rows = draw(st.lists(st.integers(0, ROWS - 1), unique=True, max_size=ROWS))
        flags = st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))
        written = [row for row, chosen in zip(rows, draw(flags), strict=True) if chosen]
        found.append((rows, draw(flags), written))
    return found


def policies(slots: int, window: int) -> list[tuple[Residents, int]]:
    frequent = Frequent(ROWS, slots)
    frequent.choose(np.array([3, 0, 5, 1, 9, 2, 2]))
    return [(NextUse(ROWS, slots, window), window), (NextUse(ROWS, slots), 0), (frequent, 0)]


@settings(deadline=None)
@given(steps=steps(), slots=st.integers(0, ROWS), window=st.integers(1, 13))
def test_rows_are_exact_and_follow_writes(
    steps: list[tuple[list[int], list[bool], list[int]]], slots: int, window: int
) -> None:
    """Rows known to be zero are not asked for: here they hold something else on the host."""
    for residents, ahead in policies(slots, window):
        table, draw = Table(), np.random.default_rng(1)
        cache = SlimCache(table, residents, torch.device("cpu"))
        tensors = [torch.tensor(rows, dtype=torch.int32) for rows, _, _ in steps]
        announced, total = 0, Traffic()
        written_rows: set[int] = set()
        for number, (rows, zero, written) in enumerate(steps):
            while announced < min(len(steps), number + ahead + 1):
                cache.announce(tensors[announced])
                announced += 1
            never = [row not in written_rows for row in rows]
            zero_U = np.logical_and(zero, never).astype(bool)
            table.asked.clear()
            found_UW = cache.fetch(tensors[number], zero_U)
            expected_UW = table.value_NW[tensors[number].long()].clone()
            expected_UW[torch.from_numpy(zero_U)] = 0.0
            assert torch.equal(found_UW, expected_UW)
            step = cache.step
            assert step.hits + step.misses + step.zeros == len(rows)
            assert step.misses == len(table.asked) == len(set(table.asked))
            assert step.zeros == zero_U.sum()
            assert step.moved == step.misses * WIDTH * 4
            assert step.moved + step.saved == len(rows) * WIDTH * 4
            new_XW = torch.from_numpy(draw.normal(size=(len(written), WIDTH)).astype(np.float32))
            table.value_NW[written] = new_XW
            cache.put(np.array(written, np.int32), new_XW)
            written_rows.update(written)
            assert cache.step.written == len(written) * WIDTH * 4
            total += cache.step
            assert cache.total == total


def test_without_slots_everything_crosses_and_with_all_slots_once() -> None:
    batches = [torch.tensor(rows, dtype=torch.int32) for rows in ([0, 3], [3, 1], [0, 1, 3])]
    for slots, misses in ((0, [2, 2, 3]), (ROWS, [2, 1, 0])):
        cache = SlimCache(Table(), NextUse(ROWS, slots), torch.device("cpu"))
        found = []
        for batch in batches:
            cache.fetch(batch)
            found.append(cache.step.misses)
        assert found == misses


def test_what_the_device_wrote_need_not_cross() -> None:
    cache = SlimCache(Table(), NextUse(ROWS, 2), torch.device("cpu"))
    rows = torch.tensor([4, 5], dtype=torch.int32)
    cache.fetch(rows, np.array([True, True]))
    cache.put(np.array([5], np.int32), torch.ones(1, WIDTH))
    assert cache.fetch(torch.tensor([5], dtype=torch.int32)).tolist() == [[1.0] * WIDTH]
    assert cache.total == Traffic(hits=1, zeros=2, saved=3 * 12, written=12)


def test_another_batch_of_equal_rows_is_not_the_announced_one() -> None:
    residents = NextUse(ROWS, 1, 1)
    cache = SlimCache(Table(), residents, torch.device("cpu"))
    announced = torch.tensor([2], dtype=torch.int32)
    cache.announce(announced)
    cache.fetch(announced.clone())
    assert residents.next_N[2] == 0
    cache.fetch(announced)
    assert residents.next_N[2] != 0
    assert cache.total.hits == 1


def test_a_feature_store_is_a_source() -> None:
    store = FeatureStore.of(np.arange(6, dtype=np.float32).reshape(3, 2))
    cache = SlimCache(store, NextUse(3, 1), torch.device("cpu"))
    for rows in ([2, 0], [0, 1], []):
        index = torch.tensor(rows, dtype=torch.int32)
        assert torch.equal(cache.fetch(index), store.rows(index.numpy()))


def test_traffic_adds_and_subtracts() -> None:
    one, other = Traffic(1, 2, 3, 4, 5, 6), Traffic(10, 20, 30, 40, 50, 60)
    assert one + other == Traffic(11, 22, 33, 44, 55, 66)
    assert one + other - other == one
    assert Traffic().hit_rate == 0.0
