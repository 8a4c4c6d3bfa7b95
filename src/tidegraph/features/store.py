"""`FeatureStore`: event or node features, stored as float32 or in fewer bytes, read in place.

A store is a table [E, F] in memory or mapped from a file larger than memory. Kernels read float32
and bfloat16 rows where they lie; rows of other types, and rows for another device, are gathered
and decoded by preparation, each unique row once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tidegraph.features import decode_kernels
from tidegraph.features.encode import (
    RELATIVE_ERROR,
    Encoding,
    FeatureType,
    blocks,
    check_type,
    encoding_of,
)
from tidegraph.features.files import open_encoded, write_encoded


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


def _nothing() -> np.ndarray:
    return np.empty(0, np.float32)


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """An immutable table of features.

    Attributes:
        table: [E, F] as stored: float32, float16, bfloat16, or int8 codes. F is 0 where there are
            no features (E is then 1, so that row 0 exists for padding).
        error_F: float64 [F], the most that a decoded value of each column differs from the given
            one; 0 for float32.
        scale_F, offset_F: float32 [F] of an int8 store, value = offset + scale * code; else empty.
        clipped: values of an int8 store outside the range that its codes cover.

    >>> FeatureStore.of(None).width
    0
    """

    table: Tensor
    error_F: np.ndarray = field(default_factory=lambda: np.empty(0))
    scale_F: np.ndarray = field(default_factory=_nothing)
    offset_F: np.ndarray = field(default_factory=_nothing)
    clipped: int = 0

    @classmethod
    def of(
        cls,
        array: np.ndarray | None,
        dtype: str = "float32",
        *,
        fit: int | np.ndarray | None = None,
        directory: Path | None = None,
        names: Sequence[str] = (),
        what: str = "feature",
    ) -> FeatureStore:
        """Store an array [E, F] (memory-mapped or not); None for no features.

        Args:
            array: float32; as float32 it is wrapped, not copied.
            dtype: "float32"; "bfloat16": half the bytes, each value within 1/257 of itself;
                "float16": half the bytes, within 1/2049, up to 65504 only; "int8": a quarter,
                within half a 255th of its column's range. `error_F` has the columns' bounds.
            fit: rows whose range the int8 codes cover: the first so many, a mask bool [E], or all.
                Values of other rows outside it are clipped, counted, and accounted for in
                `error_F`. A range of training rows keeps later rows from changing earlier ones.
            directory: write the encoded table there, block by block, and map it; None: in memory.
                A directory that is there already is replaced.
            names: of the columns; what: of the table; for messages.

        Raises:
            SettingError: no such type.
            InputError: a value that the type cannot hold; the directory cannot be written.

        >>> store = FeatureStore.of(np.array([[0.0], [1.0], [0.3]], np.float32), "int8")
        >>> bool(abs(store.rows(np.array([2])).item() - 0.3) <= store.error_F[0])
        True
        """
        kind = check_type(dtype)
        if array is None:
            return cls(torch.zeros(1, 0))
        if array.dtype != np.float32 or not array.flags.c_contiguous:
            array = np.ascontiguousarray(array, dtype=np.float32)
        if kind == "float32" or array.shape[1] == 0:
            return cls(_as_tensor(array), np.zeros(array.shape[1]))
        encoding = encoding_of(array, kind, fit=fit, names=names, what=what)
        if directory is not None:
            write_encoded(directory, array, encoding)
            return cls.open(directory)
        code_EF = np.empty(array.shape, np.int8 if kind == "int8" else np.uint16)
        clipped = 0
        for start, value_nF in blocks(array):
            code_nF, outside = encoding.encode(value_nF)
            code_EF[start : start + len(code_nF)] = code_nF
            clipped += outside
        return cls._encoded(code_EF, encoding, clipped)

    @classmethod
    def open(cls, directory: Path, *, verify: bool = False) -> FeatureStore:
        """Map a store that `of(..., directory=...)` wrote; reads nothing of it, so it is instant.

        Args:
            verify: also read everything and compare checksums.

        Raises:
            InputError: missing, truncated or damaged; names the file.
        """
        code_EF, encoding, clipped = open_encoded(directory, verify=verify)
        return cls._encoded(code_EF, encoding, clipped)

    @classmethod
    def _encoded(cls, code_EF: np.ndarray, encoding: Encoding, clipped: int) -> FeatureStore:
        table = _as_tensor(code_EF.view(np.int16) if code_EF.dtype == np.uint16 else code_EF)
        if encoding.dtype != "int8":
            table = table.view(getattr(torch, encoding.dtype))
        return cls(table, encoding.error_F, encoding.scale_F, encoding.offset_F, clipped)

    @property
    def width(self) -> int:
        """F."""
        return int(self.table.shape[1])

    @property
    def dtype(self) -> FeatureType:
        """The stored type."""
        return check_type(str(self.table.dtype).removeprefix("torch."))

    @property
    def in_place(self) -> bool:
        """Kernels read rows of this type where they lie."""
        return self.table.dtype in (torch.float32, torch.bfloat16)

    def rows(self, index: np.ndarray) -> Tensor:
        """Copy and decode the named rows: float32 [len(index), F].

        Raises:
            IndexError: no such row.
        """
        if self.table.dtype == torch.float32:
            return self.table.index_select(0, torch.from_numpy(index))
        if len(index) and not 0 <= index.min() <= index.max() < len(self.table):
            raise IndexError(f"rows {index.min()} to {index.max()} of {len(self.table)}")
        out_nF = torch.empty(len(index), self.width)
        if self.dtype == "int8":
            decode_kernels.gather_int8(
                self.table.numpy(), index, self.scale_F, self.offset_F, out_nF.numpy()
            )
            return out_nF
        half = self.dtype == "float16"
        gather = decode_kernels.gather_float16 if half else decode_kernels.gather_bfloat16
        gather(self.table.view(torch.int16).numpy().view(np.uint16), index, out_nF.numpy())
        return out_nF

    def take(self, index: np.ndarray) -> Tensor:
        """Copy the named rows in a type that operators read, with as few bytes as that allows.

        bfloat16 stays as it is, for it may be about to cross to another device; other types become
        float32.

        Raises:
            IndexError: no such row.
        """
        if self.in_place:
            return self.table.index_select(0, torch.from_numpy(index))
        return self.rows(index)

    def about(self, names: Sequence[str] = ()) -> str:
        """One line: the stored type, and how far values may be off.

        >>> FeatureStore.of(np.ones((2, 1), np.float32), "bfloat16").about()
        'bfloat16, each value within 1/257 of itself (here at most 0.00391)'
        """
        if self.dtype == "float32":
            return "float32, as given"
        worst = int(np.argmax(self.error_F)) if len(self.error_F) else 0
        largest = float(self.error_F[worst]) if len(self.error_F) else 0.0
        if self.dtype != "int8":
            share = round(1 / RELATIVE_ERROR[self.dtype])
            tiny = "" if self.dtype == "bfloat16" else " or within 3e-08"
            return (
                f"{self.dtype}, each value within 1/{share} of itself{tiny} "
                f"(here at most {largest:.3g})"
            )
        named = repr(names[worst]) if worst < len(names) else str(worst)
        outside = f"; {self.clipped:,} values outside the training range clipped"
        return (
            f"int8, each value within half a 255th of its column's range (largest error "
            f"{largest:.3g}, column {named}){outside if self.clipped else ''}"
        )
