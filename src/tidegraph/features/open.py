"""The feature stores of a stream: from events, with the stored type that a run asks for.

Tables that are mapped from disk and large are encoded into the cache directory, once, and mapped
again from there; all others are encoded in memory.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from tidegraph.errors import InputError
from tidegraph.events.core import Events
from tidegraph.events.published import default_cache_directory
from tidegraph.features.encode import check_type
from tidegraph.features.files import FORMAT_VERSION
from tidegraph.features.store import FeatureStore

IN_MEMORY_BELOW = 1 << 26
"""Bytes of the encoded table: less is encoded in memory each time (a tenth of a second)."""


def open_stores(
    events: Events, dtype: str = "float32", *, fit: int | None = None, directory: Path | None = None
) -> tuple[FeatureStore, FeatureStore]:
    """The stores of a stream's event features and node features.

    Args:
        events: the stream.
        dtype: the stored type, see `FeatureStore.of`.
        fit: events of the training part, which comes first. The ranges of int8 codes are taken
            from these events and from the nodes that occur in them, so nothing that happens later
            changes how earlier features are read.
        directory: where encoded tables larger than memory are kept; default: in the cache.

    Raises:
        InputError: a value that the type cannot hold; the cache cannot be written.

    >>> events = Events.from_arrays([0, 1], [2, 2], [3, 7], features=[[0.5], [2.0]])
    >>> features, node_features = open_stores(events, "bfloat16")
    >>> features.dtype, node_features.width
    ('bfloat16', 0)
    """
    kind = check_type(dtype)
    directory = directory or default_cache_directory() / "features"
    count = len(events) if fit is None else min(fit, len(events))
    names = events.schema.feature_names
    features = _open(events, events.features, kind, count, "event feature", names, directory)
    seen: np.ndarray | None = None
    if events.node_features is not None and kind == "int8":
        seen = np.zeros(events.schema.num_nodes, bool)
        seen[events.source[:count]] = True
        seen[events.target[:count]] = True
    nodes = _open(events, events.node_features, kind, seen, "node feature", (), directory)
    return features, nodes


def _open(
    events: Events,
    table_EF: np.ndarray | None,
    dtype: str,
    fit: int | np.ndarray | None,
    what: str,
    names: tuple[str, ...],
    directory: Path,
) -> FeatureStore:
    place = None
    if table_EF is not None and dtype != "float32" and _is_mapped(table_EF):
        width = 1 if dtype == "int8" else 2
        if table_EF.size * width >= IN_MEMORY_BELOW:
            place = directory / _key(events, dtype, fit, what)
            try:
                return FeatureStore.open(place)
            except InputError:
                pass  # not there yet, or damaged
    return FeatureStore.of(
        table_EF, dtype, fit=fit if dtype == "int8" else None, directory=place, names=names,
        what=what,
    )  # fmt: skip


def _is_mapped(array: np.ndarray) -> bool:
    base: object = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return type(base).__name__ == "mmap"


def _key(events: Events, dtype: str, fit: int | np.ndarray | None, what: str) -> str:
    """Other content, or another range, is another file."""
    digest = hashlib.sha256(f"{FORMAT_VERSION}:{events.fingerprint}".encode())
    if dtype == "int8":
        digest.update(fit.tobytes() if isinstance(fit, np.ndarray) else str(fit).encode())
    return f"{what.split()[0]}-{dtype}-{digest.hexdigest()[:24]}"
