"""`FeatureStore`: event or node features, read in place.

A store is a table [E, F] in memory or mapped from a file larger than memory; kernels read the rows
they need where they lie. Executors on another device receive the compacted rows instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


class _Address:
    """An array's memory under NumPy's array interface, marked writable, keeping its owner alive.

    Kernels are compiled per array type and a read-only mapping is another type; PyTorch cannot
    wrap it at all. Nothing ever writes through this view.
    """

    def __init__(self, array: np.ndarray) -> None:
        self._owner = array
        interface: dict[str, Any] = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def _as_tensor(array: np.ndarray) -> Tensor:
    if not array.flags.writeable:
        array = np.asarray(_Address(array))
    return torch.from_numpy(array)


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """An immutable table of features.

    Attributes:
        table: float32 [E, F]; F is 0 where there are no features (E is then 1, so that row 0
            exists for padding).

    >>> FeatureStore.of(None).width
    0
    """

    table: Tensor

    @classmethod
    def of(cls, array: np.ndarray | None) -> FeatureStore:
        """Wrap a float32 array [E, F] (memory-mapped or not) without copying it; None for none."""
        if array is None:
            return cls(torch.zeros(1, 0))
        if array.dtype != np.float32 or not array.flags.c_contiguous:
            array = np.ascontiguousarray(array, dtype=np.float32)
        return cls(_as_tensor(array))

    @property
    def width(self) -> int:
        """F."""
        return int(self.table.shape[1])

    def rows(self, index: np.ndarray) -> Tensor:
        """Copy the named rows: float32 [len(index), F]."""
        return self.table.index_select(0, torch.from_numpy(index))
