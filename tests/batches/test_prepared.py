"""A prepared batch is a value: immutable, sized, and movable as a whole."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch import Tensor

import tiny
from tidegraph.batches import History
from tidegraph.batches.prepared import move_as_one


def all_tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple):
        return [tensor for item in value for tensor in all_tensors(item)]
    if hasattr(value, "__dataclass_fields__"):
        return [tensor for item in vars(value).values() for tensor in all_tensors(item)]
    return []


def test_to_moves_every_tensor_and_keeps_everything_else() -> None:
    """I64: no part of a batch stays behind. The meta device stands for any other device."""
    prep = tiny.preparer(
        tiny.random_stream(0, 12, node_feature_width=2), History(neighbors=(2, 2)), 6
    )
    batch = prep.prepare(1, tiny.negatives(prep, 1))
    moved = batch.to("meta")
    before, after = all_tensors(batch), all_tensors(moved)
    # 5 of the batch, 2 of the roots' uses, 5 + 2 * 2 a hop, 4 of the mail, 4 of the writes
    assert len(before) == len(after) == 5 + 2 + 2 * 9 + 4 + 4
    for one, other in zip(before, after, strict=True):
        assert other.device.type == "meta"
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
    kept = ("number", "version", "key", "candidates", "size")
    assert [getattr(batch, n) for n in kept] == [getattr(moved, n) for n in kept]
    assert batch.node_U.device.type == "cpu"


def test_to_the_same_device_changes_nothing() -> None:
    prep = tiny.preparer(tiny.random_stream(0, 12), History(memory=False), 6)
    batch = prep.prepare(1, tiny.negatives(prep, 1))
    again = batch.to("cpu")
    assert again.mail is None
    for one, other in zip(all_tensors(batch), all_tensors(again), strict=True):
        assert torch.equal(one, other)


def test_tensors_that_move_as_one_block_arrive_as_they_were() -> None:
    """Types of every width, empty and odd-sized ones, and views that are not contiguous."""
    tensors = [
        torch.arange(5, dtype=torch.uint8),
        torch.randn(3, 4),
        torch.empty(0, 7),
        torch.tensor([2**62, -1]),
        torch.arange(12, dtype=torch.int32).reshape(3, 4).t(),
        torch.tensor(1.5, dtype=torch.float64),
        torch.tensor([True, False, True]),
    ]
    moved = move_as_one(tensors, torch.device("cpu"))
    for before, after in zip(tensors, moved, strict=True):
        assert (before.dtype, before.shape) == (after.dtype, after.shape)
        assert torch.equal(before, after)
        assert after.data_ptr() % 16 == 0 or not after.numel()
    moved[1].zero_()  # a copy
    assert tensors[1].any()


@pytest.mark.parametrize("gather", [True, False])
def test_a_compact_batch_names_its_rows(gather: bool) -> None:
    """`event_E` names the rows of `features`; deferred, the names are there and the rows not."""
    stream = tiny.random_stream(1, 20, node_feature_width=2)
    prep = replace(tiny.preparer(stream, History(neighbors=(2, 2)), 5, compact=True), gather=gather)
    whole = tiny.preparer(stream, History(neighbors=(2, 2)), 5)
    for number in range(len(prep.plan)):
        batch = prep.prepare(number, tiny.negatives(prep, number))
        plain = whole.prepare(number, tiny.negatives(prep, number))
        assert plain.event_E is None
        assert not plain.deferred
        assert batch.event_E is not None
        assert batch.node_features is not None
        assert batch.deferred is not gather
        features = prep.features.rows(batch.event_E.numpy())
        if gather:
            assert torch.equal(batch.features, features)
        else:
            assert batch.features.shape == (0, 2)
            assert batch.node_features.shape == (0, 2)
        for hop, other in zip(batch.hops, plain.hops, strict=True):
            used_SK = torch.arange(hop.event_SK.shape[1]) < hop.count_S.unsqueeze(1)
            assert torch.equal(
                features[hop.event_SK.long()][used_SK],
                plain.features[other.event_SK.long()][used_SK],
            )


def test_a_batch_cannot_be_changed() -> None:
    prep = tiny.preparer(tiny.random_stream(0, 12), History(), 6)
    batch = prep.prepare(0, tiny.negatives(prep, 0))
    with pytest.raises(FrozenInstanceError):
        batch.version = 3  # type: ignore[misc]


def test_streams_of_dropout_differ_by_batch_epoch_and_seed() -> None:
    stream = tiny.random_stream(0, 12)
    keys = set()
    for seed in (0, 1):
        prep = tiny.preparer(stream, History(), 6, seed=seed)
        for epoch in (0, 1):
            for number in (0, 1):
                batch = prep.prepare(number, tiny.negatives(prep, number), epoch=epoch)
                keys.add(batch.key)
    assert len(keys) == 8
