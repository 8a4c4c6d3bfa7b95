"""Dropout masks from counter-based keys: the same batch has the same mask, wherever it runs."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from tidegraph._jit import kernel
from tidegraph.keys import random_bits

_CHUNK = 4096


@kernel(inline=True)
def _kept(key, slot, threshold):  # type: ignore[no-untyped-def]
    """Whether a slot stays; two slots share 64 random bits."""
    bits = random_bits(key, slot >> 1) >> np.uint64(32 * (slot & 1))
    return (bits & np.uint64(0xFFFFFFFF)) >= threshold


@kernel()
def _fill_block(first, last, key, threshold, scale, out):  # type: ignore[no-untyped-def]
    zero = out.dtype.type(0)
    for slot in range(first, last):
        out[slot] = scale if _kept(key, slot, threshold) else zero


@kernel(parallel=True)
def _fill_mask(key, threshold, scale, out):  # type: ignore[no-untyped-def]
    blocks = (out.shape[0] + _CHUNK - 1) // _CHUNK
    for block in numba.prange(blocks):
        first = block * _CHUNK
        _fill_block(first, min(out.shape[0], first + _CHUNK), key, threshold, scale, out)


@kernel()
def _relu_block(first, last, key, threshold, scale, x):  # type: ignore[no-untyped-def]
    zero = x.dtype.type(0)
    if threshold == 0:
        for slot in range(first, last):
            x[slot] = max(x[slot], zero)
        return
    for slot in range(first, last):
        # A factor, not a branch: whether an element stays cannot be predicted.
        factor = scale if _kept(key, slot, threshold) else zero
        x[slot] = max(x[slot], zero) * factor


@kernel(parallel=True)
def _relu_dropout(key, threshold, scale, x):  # type: ignore[no-untyped-def]
    blocks = (x.shape[0] + _CHUNK - 1) // _CHUNK
    for block in numba.prange(blocks):
        first = block * _CHUNK
        _relu_block(first, min(x.shape[0], first + _CHUNK), key, threshold, scale, x)


def relu_dropout_(x: Tensor, key: int, probability: float) -> Tensor:
    """In place: relu(x) times `keep_mask(key, x.shape, probability, x)`, without the mask.

    Where the result is positive, its derivative is 1 / (1 - probability); elsewhere it is 0.
    """
    _relu_dropout(
        np.uint64(key & 0xFFFFFFFFFFFFFFFF),
        np.uint64(int(probability * 2.0**32)),
        x.numpy().dtype.type(1.0 / (1.0 - probability)),
        x.view(-1).numpy(),
    )
    return x


def keep_mask(key: int, shape: tuple[int, ...], probability: float, like: Tensor) -> Tensor:
    """Multipliers of inverted dropout: 0 with `probability`, else 1 / (1 - probability).

    Args:
        key: 64-bit key; taken modulo 2**64.
        shape: of the result.
        probability: in [0, 1).
        like: gives dtype and device.
    """
    mask = torch.empty(shape, dtype=like.dtype)
    _fill_mask(
        np.uint64(key & 0xFFFFFFFFFFFFFFFF),
        np.uint64(int(probability * 2.0**32)),
        mask.numpy().dtype.type(1.0 / (1.0 - probability)),
        mask.view(-1).numpy(),
    )
    return mask.to(like.device)
