"""Digests of arrays: the checksums of stored columns and the fingerprint of a whole stream.

An array's digest covers its bytes in fixed-size chunks, hashed on several threads, so that
gigabytes of features cost little beside reading them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

CHUNK_BYTES = 1 << 24
_POOL_ABOVE = 1 << 26


def array_digest(array: np.ndarray) -> str:
    """Hex SHA-256 over the SHA-256 of each 16 MiB chunk of the array's bytes (C order)."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    if len(data) < _POOL_ABOVE:
        return combine_chunks([_sha256(chunk) for chunk in chunks])
    with ThreadPoolExecutor(4) as pool:
        return combine_chunks(list(pool.map(_sha256, chunks)))


def _sha256(chunk: np.ndarray) -> bytes:
    return hashlib.sha256(chunk.data).digest()


def combine_chunks(chunk_digests: list[bytes]) -> str:
    """The digest of an array from those of its chunks, in order."""
    return hashlib.sha256(b"".join(chunk_digests)).hexdigest()


class ChunkedDigest:
    """`array_digest` of bytes that arrive piece by piece."""

    def __init__(self) -> None:
        self._done: list[bytes] = []
        self._open = hashlib.sha256()
        self._filled = 0

    def update(self, data: memoryview) -> None:
        while len(data):
            part = data[: CHUNK_BYTES - self._filled]
            self._open.update(part)
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == CHUNK_BYTES:
                self._done.append(self._open.digest())
                self._open, self._filled = hashlib.sha256(), 0

    def hexdigest(self) -> str:
        tail = [self._open.digest()] if self._filled else []
        return combine_chunks([*self._done, *tail])


def fingerprint_of(schema: Mapping[str, Any], digests: Mapping[str, str]) -> str:
    """One digest of a stream from its schema and the digests of its columns.

    The input's row numbers are left out: the same events in another row order are equal data.
    """
    counted = {name: value for name, value in sorted(digests.items()) if name != "row"}
    text = json.dumps({"schema": dict(schema), "columns": counted}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
