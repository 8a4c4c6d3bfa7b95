"""Dropout masks from counter-based keys: the same batch has the same mask, wherever it runs."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

from tidegraph._jit import kernel
from tidegraph.keys import random_bits

_CHUNK = 4096


@kernel()
def _fill_block(first, last, key, threshold, scale, out):  # type: ignore[no-untyped-def]
    zero = out.dtype.type(0)
    for slot in range(first, last):
        kept = (random_bits(key, slot) >> np.uint64(32)) >= threshold
        out[slot] = scale if kept else zero


@kernel(parallel=True)
def _fill_mask(key, threshold, scale, out):  # type: ignore[no-untyped-def]
    blocks = (out.shape[0] + _CHUNK - 1) // _CHUNK
    for block in numba.prange(blocks):
        first = block * _CHUNK
        _fill_block(first, min(out.shape[0], first + _CHUNK), key, threshold, scale, out)


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
