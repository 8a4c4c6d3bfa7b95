"""Distinct rows and transposed indices: from lists of nodes and events to a batch's tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tidegraph.batches import kernels
from tidegraph.batches.prepared import Uses

NONE = np.empty(0, np.int64)
"""In place of a part that a list does not have."""


def distinct(node_P: Any, time_P: Any = NONE, bound_P: Any = NONE) -> tuple[np.ndarray, np.ndarray]:
    """Where each distinct entry stands first, and each entry's number among them (-1 for negative
    nodes).

    Args:
        node_P: int32 or int64 [P].
        time_P, bound_P: int64 [P] or empty; entries are the same where all parts are.

    >>> first, number = distinct(np.array([7, -1, 7, 3], np.int32))
    >>> first.tolist(), number.tolist()
    ([0, 3], [0, -1, 0, 1])
    """
    number_P, first_P = np.empty(len(node_P), np.int32), np.empty(len(node_P), np.int32)
    count = kernels.unique_pairs(node_P, time_P, bound_P, number_P, first_P)
    return first_P[:count], number_P


def transposed(index_P: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """For each of `rows` rows the positions that name it, ascending: borders [rows + 1], positions.

    Args:
        index_P: int32, below `rows`; negative ones are left out.

    >>> [part.tolist() for part in transposed(np.array([2, 0, 2, -1], np.int32), 3)]
    [[0, 1, 1, 3], [1, 0, 2]]
    """
    indptr_R1, position_M = np.empty(rows + 1, np.int32), np.empty(len(index_P), np.int32)
    used = kernels.transpose(index_P, indptr_R1, position_M)
    return indptr_R1, position_M[:used]


def uses_of(index_P: np.ndarray, rows: int) -> Uses:
    """`transposed`, as a batch holds it."""
    return Uses(*(torch.from_numpy(part) for part in transposed(index_P, rows)))


NO_USES = Uses(torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=torch.int32))
"""Of a batch that is only scored."""
