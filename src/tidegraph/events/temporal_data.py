"""To and from PyTorch Geometric's `TemporalData`, exactly: what models read, and what they do not.

`src`, `dst`, `t`, `msg`, `y` and `weight` become the columns that models read. Where such a
conversion changes a type or shape (labels that are integers, messages in float64), the original is
kept among the extra columns as well, and is what goes back.

Shape legend: E events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tidegraph.errors import InputError, SettingError, listed
from tidegraph.events.arrays import events_from_arrays
from tidegraph.events.core import Events

_ENDS = ("src", "dst", "t")
_READ = ("msg", "y", "weight")


def from_temporal_data(
    data: Any,
    *,
    node_features: Any = None,
    num_nodes: int | None = None,
    num_sources: int | None = None,
    bipartite: bool | None = None,
    time_unit: str | None = None,
    feature_names: Sequence[str] = (),
    name: str = "TemporalData",
) -> Events:
    """Events of a `torch_geometric.data.TemporalData`.

    Args:
        data: with `src`, `dst` and `t`; `msg` becomes the event features, `y` the label, `weight`
            the weight, and every other attribute an extra column, all one row an event.
        node_features, num_nodes, num_sources, bipartite, time_unit, feature_names, name: what
            `TemporalData` does not hold, as in `Events.from_arrays`.

    Returns:
        Events sorted by time, with the node numbers of `data`.

    Raises:
        InputError: an attribute is missing or has another number of rows; or anything that
            `Events.from_arrays` refuses.

    >>> class Data(dict):  # stands for torch_geometric.data.TemporalData
    ...     pass
    >>> data = Data(src=np.array([0, 1]), dst=np.array([2, 2]), t=np.array([3, 7]))
    >>> from_temporal_data(data).time.tolist()
    [3, 7]
    """
    keys = getattr(data, "keys", None)
    present = list(keys() if callable(keys) else keys or ())
    missing = [key for key in _ENDS if key not in present]
    if missing:
        raise InputError(
            f"{name}: no {' and no '.join(missing)}; expected a torch_geometric TemporalData with "
            f"src, dst and t, found {listed(present) or type(data).__name__}"
        )
    column = {key: _array(data[key], key, name) for key in present if data[key] is not None}
    rows = len(column["t"]) if column["t"].ndim else 0
    for key, array in column.items():
        if array.ndim == 0 or len(array) != rows:
            raise InputError(
                f"{name}: {key} has shape {array.shape}; expected one row for each of the {rows:,} "
                "events. What belongs to nodes is given apart, as node_features="
            )
    extra = {key: array for key, array in column.items() if key not in (*_ENDS, *_READ)}
    for key in (*_ENDS, *_READ):
        if key in column and not _goes_back(key, column[key]):
            extra[key] = column[key]
    label = column.get("y")
    if label is not None and label.size != rows:
        label = None  # several numbers an event: no label that models read, but kept
    msg = column.get("msg")
    return events_from_arrays(
        column["src"],
        column["dst"],
        column["t"],
        features=None if msg is None or msg.size == 0 else msg.reshape(rows, -1),
        label=label,
        weight=column.get("weight"),
        node_features=node_features,
        num_nodes=num_nodes,
        num_sources=num_sources,
        bipartite=bipartite,
        time_unit=time_unit,
        feature_names=feature_names,
        extra=extra,
        name=name,
    )


def to_temporal_data(events: Events) -> Any:
    """Events as a `torch_geometric.data.TemporalData`; `from_temporal_data` is the way back.

    Node numbers are the internal ones, 0..N-1 (`events.ids` gives the originals). Node features
    have no place in `TemporalData`.

    Raises:
        SettingError: PyTorch Geometric is not installed.
    """
    try:
        from torch_geometric.data import TemporalData
    except ImportError as error:
        raise SettingError(
            f"TemporalData needs PyTorch Geometric, which cannot be imported ({error}): "
            "pip install torch-geometric"
        ) from None
    import torch

    column: dict[str, np.ndarray | None] = {
        "src": events.source.astype(np.int64),
        "dst": events.target.astype(np.int64),
        "t": events.time,
        "msg": events.features,
        "y": events.label,
        "weight": events.weight,
        **events.extra,
    }
    # Copied: events may be mapped from files and read-only, and tensors are not.
    return TemporalData(
        **{key: torch.from_numpy(np.array(array)) for key, array in column.items()
           if array is not None}
    )  # fmt: skip


def _array(value: Any, key: str, name: str) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        try:
            value = value.numpy()
        except TypeError:
            raise InputError(
                f"{name}: {key} has type {value.dtype}, which has no counterpart in NumPy; convert "
                "it, for example to float32"
            ) from None
    return np.asarray(value)


def _goes_back(key: str, array: np.ndarray) -> bool:
    """Whether the column that models read gives back this very array."""
    if key in ("src", "dst"):
        return array.dtype == np.int64
    if key == "t":
        return array.dtype in (np.int64, np.float64)
    return array.dtype == np.float32 and array.ndim == (2 if key == "msg" else 1) and array.size > 0
