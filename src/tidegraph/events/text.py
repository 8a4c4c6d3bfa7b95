"""A sorted column of text as two flat arrays, memory-mapped and searched in place.

`NodeIds` keeps text ids this way: 20 million of them open instantly, and looking some up costs a
binary search each instead of a Python dictionary of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegraph._jit import kernel


@dataclass(frozen=True, eq=False)
class TextColumn:
    """Text values end to end in UTF-8.

    Attributes:
        offsets: [count + 1] int64, where each value starts in `data`.
        data: [total bytes] uint8.
    """

    offsets: np.ndarray
    data: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def from_values(cls, values: Sequence[Any] | np.ndarray) -> TextColumn:
        """Encode text values in the order given.

        >>> TextColumn.from_values(["b", "ä"]).take(np.array([1, 0])).tolist()
        ['ä', 'b']
        """
        encoded = [str(value).encode("utf-8", "surrogatepass") for value in values]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(encoded), np.uint8))

    def take(self, positions: np.ndarray) -> np.ndarray:
        """The values at `positions`, as an object array of `str`."""
        starts, stops = self.offsets[positions].tolist(), self.offsets[positions + 1].tolist()
        result = np.empty(len(starts), object)
        for slot, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            text = self.data[start:stop].tobytes().decode("utf-8", "surrogatepass")
            result[slot] = text
        return result

    def find(self, values: TextColumn) -> np.ndarray:
        """Position of each of `values` in this sorted column, -1 where it is not there."""
        if len(self) == 0 or len(values) == 0:
            return np.full(len(values), -1, np.int64)
        found = np.empty(len(values), np.int64)
        arrays = (self.offsets, self.data, values.offsets, values.data)
        _find(*map(_read_only, arrays), found)
        return found


def _read_only(array: np.ndarray) -> np.ndarray:
    # Mapped files are read-only, fresh arrays are not: one form, so the kernel compiles once.
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@kernel()
def _find(offsets, data, query_offsets, query_data, found):  # type: ignore[no-untyped-def]
    for query in range(len(query_offsets) - 1):
        query_start = query_offsets[query]
        query_length = query_offsets[query + 1] - query_start
        low, high = 0, len(offsets) - 1
        found[query] = -1
        while low < high:
            middle = (low + high) // 2
            start = offsets[middle]
            length = offsets[middle + 1] - start
            # Bytes of UTF-8 sort as code points do, so the comparison needs no decoding.
            order = np.int64(0)
            for position in range(min(length, query_length)):
                order = np.int64(data[start + position]) - np.int64(
                    query_data[query_start + position]
                )
                if order != 0:
                    break
            if order == 0:
                order = length - query_length
            if order == 0:
                found[query] = middle
                break
            if order < 0:
                low = middle + 1
            else:
                high = middle
