"""Prepared epochs: a kept batch is the one that preparing it anew gives, to the bit."""

from __future__ import annotations

import threading
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tiny
from tidegraph.batches import History, Preparer
from tidegraph.batches.prepared_epochs import KeptBatches, PreparedEpochs, keep_epochs


def flat(value: Any) -> list[Any]:
    """Every number of a batch, tensors with their types."""
    if isinstance(value, Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, tuple):
        return [flat(item) for item in value]
    if is_dataclass(value):
        return [flat(getattr(value, part.name)) for part in fields(value)]
    return [value]


def remembering(preparer: Preparer, budget: int = 1 << 24, **options: Any) -> PreparedEpochs:
    return PreparedEpochs(**vars(preparer), kept=KeptBatches(budget), **options)


def drawn(preparer: Preparer, number: int, epoch: int) -> np.ndarray:
    rng = np.random.default_rng((number, epoch))
    size = (len(preparer.plan.events(number)), 2)
    return rng.integers(0, preparer.events.schema.num_nodes, size).astype(np.int32)


HISTORIES = [
    History(neighbors=(3,)),
    History(neighbors=(3, 2)),
    History(neighbors=(2,), strategy="uniform"),
    History(neighbors=(2, 2), inclusive=True, message="mean"),
    History(neighbors=(2,), window=4.0, visibility="batch"),
    History(neighbors=()),
    History(neighbors=(2,), memory=False),
]


@settings(max_examples=60, deadline=None)
@given(
    stream=tiny.streams(),
    history=st.sampled_from(HISTORIES),
    budget=st.sampled_from([0, 900, 1 << 24]),
    compact=st.booleans(),
    size=st.integers(1, 7),
)
def test_every_epoch_is_prepared_as_anew(
    stream: tiny.Stream, history: History, budget: int, compact: bool, size: int
) -> None:
    """Fresh negatives, groups of two epochs, and fixed negatives."""
    plain = tiny.preparer(stream, history, size, compact=compact)
    count = len(plain.plan)
    fresh = remembering(plain, budget, fresh=range(count))
    grouped = remembering(plain, budget, fresh=range(count), groups=2)
    fixed = remembering(plain, budget)
    for epoch in range(4):
        for number in range(count):
            negative_BC = drawn(plain, number, epoch)
            expected = flat(plain.prepare(number, negative_BC, epoch=epoch))
            assert flat(fresh.prepare(number, negative_BC, epoch=epoch)) == expected

            negative_BC = drawn(plain, number, epoch % 2)
            expected = flat(plain.prepare(number, negative_BC, epoch=epoch % 2))
            found = grouped.prepare(number, negative_BC, epoch=epoch)
            assert found.key == plain.prepare(number, negative_BC, epoch=epoch).key
            assert flat(found)[3:] == expected[3:]

            for as_of in (None, 0):
                expected = flat(plain.prepare(number, negative_BC, as_of=as_of))
                assert flat(fixed.prepare(number, negative_BC, as_of=as_of)) == expected
    for preparer in (fresh, grouped, fixed):
        assert preparer.kept.used <= budget
    if budget > 900:
        assert grouped.kept.hits == grouped.kept.misses == 2 * count


def test_other_negatives_are_another_batch() -> None:
    """Also where their checksums agree: what comes back was compared."""
    preparer = remembering(tiny.preparer(tiny.random_stream(0, 12), History(), 4))
    one = np.zeros((4, 1), np.int32)
    assert flat(preparer.prepare(1, one)) != flat(preparer.prepare(1, one + 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("zlib.crc32", lambda data: 0)
        expected = [preparer.prepare(2, one + n).root_R.tolist() for n in (0, 3, 0)]
    plain = tiny.preparer(tiny.random_stream(0, 12), History(), 4)
    assert expected == [plain.prepare(2, one + n).root_R.tolist() for n in (0, 3, 0)]


def test_another_plan_or_history_never_meets_a_kept_batch() -> None:
    from dataclasses import replace

    preparer = remembering(tiny.preparer(tiny.random_stream(0, 12), History(), 4))
    other = tiny.preparer(tiny.random_stream(0, 12), History(), 3)
    nothing = np.empty((4, 0), np.int32)
    preparer.prepare(1, nothing)
    alone = replace(preparer, history=History(neighbors=()))
    assert alone.kept is preparer.kept
    assert alone.prepare(1, nothing).hops == ()
    cut = replace(preparer, plan=other.plan)
    assert cut.prepare(1, nothing[:3]).event_B.tolist() == [3, 4, 5]


def test_many_threads_share_one_memory() -> None:
    plain = tiny.preparer(tiny.random_stream(1, 60), History(neighbors=(3, 2)), 5)
    preparer = remembering(plain)
    expected = [flat(plain.prepare(n, drawn(plain, n, 0))) for n in range(12)]
    wrong: list[int] = []

    def work(first: int) -> None:
        for at in range(60):
            number = (first + at) % 12
            if flat(preparer.prepare(number, drawn(plain, number, 0))) != expected[number]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(3 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert preparer.kept.hits + preparer.kept.misses == 240


def test_without_a_budget_nothing_is_wrapped() -> None:
    preparer = tiny.preparer(tiny.random_stream(0, 12), History(), 4)
    assert keep_epochs(preparer, 0, 0, range(3)) is preparer
    assert isinstance(keep_epochs(preparer, 10, 0, range(3)), PreparedEpochs)
