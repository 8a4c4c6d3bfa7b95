"""Dropout masks: values, expectation, and independence of everything but the key."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest
import torch

from tidegraph import keys
from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.ops.dropout import dropout_arguments, fill_block, keep_mask, relu_block

LIKE = torch.empty(0)


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.9])
def test_mask_follows_the_key_slot_by_slot(probability: float) -> None:
    """Slots 2 i and 2 i + 1 are dropped when the low and the high half of the stream's i-th number
    are below p 2^32."""
    key = keys.make_key(3, keys.Purpose.DROPOUT, 0, 1)
    mask = keep_mask(key, (3, 7), probability, LIKE)
    number = np.repeat(keys.bits(key, 11), 2)[:21]
    half = np.where(np.arange(21) % 2, number >> np.uint64(32), number & np.uint64(0xFFFFFFFF))
    kept = half >= np.uint64(int(probability * 2.0**32))
    expected = np.where(kept, np.float32(1.0 / (1.0 - probability)), np.float32(0.0))
    assert np.array_equal(mask.numpy().reshape(-1), expected)


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_share_dropped_and_mean(probability: float) -> None:
    count = 200_000
    mask = keep_mask(11, (count,), probability, LIKE)
    spread = math.sqrt(probability * (1 - probability) / count)
    assert abs(float((mask == 0).double().mean()) - probability) < 5 * spread
    assert abs(float(mask.double().mean()) - 1.0) < 5 * spread / (1 - probability)


def test_probability_zero_keeps_everything() -> None:
    assert torch.equal(keep_mask(1, (50,), 0.0, LIKE), torch.ones(50))


def test_neighboring_keys_give_unrelated_masks() -> None:
    """A layer uses key and key + 1 for its two masks."""
    first, second = (keep_mask(key, (100_000,), 0.5, LIKE) == 0 for key in (8, 9))
    assert abs(float((first & second).double().mean()) - 0.25) < 0.01


def test_mask_does_not_depend_on_threads_or_shape() -> None:
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        one = keep_mask(5, (20_000,), 0.3, LIKE)
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
        many = keep_mask(5, (100, 200), 0.3, LIKE)
    finally:
        numba.set_num_threads(before)
    assert torch.equal(one, many.view(-1))


def test_keys_are_taken_modulo_two_to_the_64() -> None:
    top = (1 << 64) - 1
    assert torch.equal(keep_mask(top + 4, (99,), 0.5, LIKE), keep_mask(3, (99,), 0.5, LIKE))
    assert keep_mask(top, (99,), 0.5, LIKE.double()).dtype == torch.float64


def test_empty_mask() -> None:
    assert keep_mask(1, (0, 4, 2), 0.5, LIKE).shape == (0, 4, 2)


@kernel()
def _relu_dropout(key, threshold, scale, x):  # type: ignore[no-untyped-def]
    in_blocks(relu_block, x.shape[0], 64, (key, threshold, scale, x))


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.7])
def test_relu_with_dropout_equals_relu_times_mask(probability: float) -> None:
    x = torch.randn(37, 11, generator=torch.Generator().manual_seed(0))
    expected = torch.relu(x) * keep_mask(9, (37, 11), probability, x)
    found = x.clone()
    key, _, threshold, scale = dropout_arguments(9, probability)
    _relu_dropout(key, threshold, scale, found.view(-1).numpy())
    assert torch.equal(found, expected)


@kernel()
def _part(first, last, key, threshold, scale, mask, x):  # type: ignore[no-untyped-def]
    fill_block(first, last, key, threshold, scale, mask)
    relu_block(first, last, key, threshold, scale, x)


@pytest.mark.parametrize("first", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 9])
def test_a_part_may_begin_and_end_between_two_slots_of_one_number(first: int, count: int) -> None:
    last = first + count
    whole = keep_mask(9, (16,), 0.5, LIKE).numpy()
    mask, x = np.full(16, 7, np.float32), np.full(16, 3, np.float32)
    key, _, threshold, scale = dropout_arguments(9, 0.5)
    _part(first, last, key, threshold, scale, mask, x)
    assert (mask[first:last] == whole[first:last]).all()
    assert (x[first:last] == 3 * whole[first:last]).all()
    for untouched, value in ((mask, 7), (x, 3)):
        assert (untouched[:first] == value).all()
        assert (untouched[last:] == value).all()
