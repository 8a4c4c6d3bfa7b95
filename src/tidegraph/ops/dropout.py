"""Dropout masks from counter-based keys: the same batch has the same mask, wherever it runs."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.keys import random_bits

_CHUNK = 4096


@kernel(inline=True)
def _kept(key, slot, threshold):  # type: ignore[no-untyped-def]
    """Whether a slot stays; two slots share 64 random bits."""
    bits = random_bits(key, slot >> 1) >> np.uint64(32 * (slot & 1))
    return (bits & np.uint64(0xFFFFFFFF)) >= threshold


@kernel(inline=True)
def _kept_two(key, pair, threshold):  # type: ignore[no-untyped-def]
    """Whether the slots 2 pair and 2 pair + 1 stay."""
    bits = random_bits(key, pair)
    return (bits & np.uint64(0xFFFFFFFF)) >= threshold, (bits >> np.uint64(32)) >= threshold


@kernel(block=True)
def fill_block(first, last, key, threshold, scale, out):  # type: ignore[no-untyped-def]
    zero = out.dtype.type(0)
    if first % 2 == 1:
        out[first] = scale if _kept(key, first, threshold) else zero
    for pair in range((first + 1) // 2, last // 2):
        one, other = _kept_two(key, pair, threshold)
        out[2 * pair] = scale if one else zero
        out[2 * pair + 1] = scale if other else zero
    if last % 2 == 1:
        out[last - 1] = scale if _kept(key, last - 1, threshold) else zero


@kernel()
def _fill_mask(key, threshold, scale, out):  # type: ignore[no-untyped-def]
    in_blocks(fill_block, out.shape[0], _CHUNK, (key, threshold, scale, out))


@kernel(block=True)
def relu_block(first, last, key, threshold, scale, x):  # type: ignore[no-untyped-def]
    zero = x.dtype.type(0)
    if threshold == 0:
        for slot in range(first, last):
            x[slot] = max(x[slot], zero)
        return
    # Factors, not branches: whether an element stays cannot be predicted.
    if first % 2 == 1:
        x[first] = max(x[first], zero) * (scale if _kept(key, first, threshold) else zero)
    for pair in range((first + 1) // 2, last // 2):
        one, other = _kept_two(key, pair, threshold)
        x[2 * pair] = max(x[2 * pair], zero) * (scale if one else zero)
        x[2 * pair + 1] = max(x[2 * pair + 1], zero) * (scale if other else zero)
    if last % 2 == 1:
        x[last - 1] = max(x[last - 1], zero) * (scale if _kept(key, last - 1, threshold) else zero)


@kernel(block=True)
def slope_block(first, last, grad, result, scale):  # type: ignore[no-untyped-def]
    zero = grad.dtype.type(0)
    for i in range(first, last):
        slope = grad[i] * scale  # whether it is needed or not: a branch would not be vectorised
        grad[i] = slope if result[i] > zero else zero


def _bits(key: int) -> np.uint64:
    return np.uint64(key & 0xFFFFFFFFFFFFFFFF)


def _threshold(probability: float) -> np.uint64:
    return np.uint64(int(probability * 2.0**32))


def dropout_arguments(
    key: int, probability: float
) -> tuple[np.uint64, np.uint64, np.uint64, np.float32]:
    """What a float32 kernel takes for two masks: both keys, the threshold, the scale."""
    scale = np.float32(1.0 / (1.0 - probability))
    return _bits(key), _bits(key + 1), _threshold(probability), scale


def keep_mask(
    key: int | Tensor, shape: tuple[int, ...], probability: float, like: Tensor
) -> Tensor:
    """Multipliers of inverted dropout: 0 with `probability`, else 1 / (1 - probability).

    Args:
        key: 64-bit key; taken modulo 2**64. As a tensor (int64 []) it is read where it lies, so a
            captured or compiled step may be repeated with another.
        shape: of the result.
        probability: in [0, 1).
        like: gives dtype and device.
    """
    if isinstance(key, Tensor):
        return plain_keep_mask(key, shape, probability, like)
    mask = torch.empty(shape, dtype=like.dtype)
    scale = mask.numpy().dtype.type(1.0 / (1.0 - probability))
    _fill_mask(_bits(key), _threshold(probability), scale, mask.view(-1).numpy())
    return mask.to(like.device)


def plain_keep_mask(
    key: Tensor, shape: tuple[int, ...], probability: float, like: Tensor
) -> Tensor:
    """`keep_mask` in plain PyTorch, the same bits: int64 arithmetic wraps as uint64 does."""
    size = math.prod(shape)
    place = torch.arange(-(-size // 2), dtype=torch.int64, device=like.device)
    value = key + (place + 1) * _signed(0x9E3779B97F4A7C15)
    value = (value ^ _shifted(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shifted(value, 27)) * _signed(0x94D049BB133111EB)
    value = value ^ _shifted(value, 31)
    half = torch.stack([value & 0xFFFFFFFF, _shifted(value, 32)], dim=1).view(-1)[:size]
    kept = (half >= int(probability * 2.0**32)).to(like.dtype) * (1.0 / (1.0 - probability))
    return kept.view(shape)


def _signed(bits: int) -> int:
    return bits - ((bits & 1 << 63) << 1)


def _shifted(value: Tensor, by: int) -> Tensor:
    """A logical shift to the right."""
    return (value >> by) & ((1 << (64 - by)) - 1)
