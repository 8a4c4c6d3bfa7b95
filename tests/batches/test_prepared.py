"""A prepared batch is a value: immutable, sized, and movable as a whole."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import Tensor

import tiny
from tidegraph.batches import History


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
