"""Counter-based randomness: every random number is a pure function of named integers.

A draw is `hash(seed, purpose, epoch, batch, ..., slot)`, so any batch of any epoch can be
reproduced alone, in any order, on any number of threads. Used by splits, negatives, uniform
sampling and dropout.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from tidegraph._jit import kernel

_MASK = (1 << 64) - 1


class Purpose(IntEnum):
    """What a random stream is for; two purposes never share numbers."""

    SPLIT = 1
    NEGATIVE = 2
    EVALUATION_NEGATIVE = 3
    NEIGHBOR = 4
    DROPOUT = 5
    SYNTHETIC = 6
    INITIAL_WEIGHTS = 7
    SHUFFLE = 8
    WALK = 9


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def make_key(seed: int, purpose: Purpose, *counters: int) -> int:
    """Fold a seed, a purpose and any counters into one 64-bit key.

    >>> make_key(0, Purpose.NEGATIVE, 1, 2) == make_key(0, Purpose.NEGATIVE, 1, 2)
    True
    >>> make_key(0, Purpose.NEGATIVE, 1, 2) == make_key(0, Purpose.NEGATIVE, 2, 1)
    False
    """
    value = _mix(seed & _MASK)
    for part in (int(purpose), *counters):
        value = _mix(value ^ (part & _MASK))
    return value


@kernel(inline=True)
def random_bits(key, slot):  # type: ignore[no-untyped-def]
    """64 random bits of stream `key` (uint64) at position `slot` (uint64); splitmix64."""
    value = np.uint64(key) + (np.uint64(slot) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel(inline=True)
def random_below(key, slot, bound):  # type: ignore[no-untyped-def]
    """An integer in [0, bound) with bound < 2**32, from the high bits of `random_bits`."""
    return np.int64(((random_bits(key, slot) >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


def bits(key: int, count: int, start: int = 0) -> np.ndarray:
    """`random_bits(key, start .. start + count - 1)` as a uint64 array, in plain NumPy."""
    with np.errstate(over="ignore"):
        slot = np.arange(start, start + count, dtype=np.uint64) + np.uint64(1)
        value = np.uint64(key) + slot * np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def uniform(key: int, count: int, start: int = 0) -> np.ndarray:
    """`count` float64 numbers in [0, 1) of stream `key`."""
    return (bits(key, count, start) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(key: int, count: int) -> np.ndarray:
    """A random order of `0 .. count - 1` (ties in the 64-bit draws broken by position)."""
    return np.argsort(bits(key, count), kind="stable")
