"""The events all libraries train on: written once as plain arrays, read by each process alone.

Negatives are drawn here, before any library starts: one per event and epoch, from the
destinations, the same for everyone.

Shape legend: E events (training, validation and test, in time order), F event-feature width,
P epochs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

_COLUMNS = ("source", "target", "time", "features", "train_negative", "val_negative")


@dataclass(frozen=True)
class StreamSizes:
    """Counts and borders.

    Attributes:
        name: of the data set.
        num_nodes: N; sources come first, destinations from `first_target` on.
        train_stop, val_stop: position after the last training and validation event.
    """

    name: str
    num_nodes: int
    first_target: int
    train_stop: int
    val_stop: int


@dataclass(frozen=True, eq=False)
class Stream:
    """Time-sorted events and their negatives.

    Attributes:
        source, target, time: [E] int64.
        features: [E, F] float32.
        train_negative: [P, E] int64, one row per epoch.
        val_negative: [E] int64, the same in every epoch.
        sizes: counts and borders.
    """

    source: np.ndarray
    target: np.ndarray
    time: np.ndarray
    features: np.ndarray
    train_negative: np.ndarray
    val_negative: np.ndarray
    sizes: StreamSizes

    def shortened(self, train_events: int) -> Stream:
        """The first `train_events` training events, and a validation part in proportion."""
        sizes = self.sizes
        train_stop = min(train_events, sizes.train_stop)
        share = (sizes.val_stop - sizes.train_stop) / sizes.train_stop
        val_stop = min(train_stop + max(1, round(share * train_stop)), sizes.val_stop)
        return replace(self, sizes=replace(sizes, train_stop=train_stop, val_stop=val_stop))


def draw_negatives(seed: int, count: int, first_target: int, num_nodes: int) -> np.ndarray:
    """[count] int64 destinations, uniform over `first_target .. num_nodes - 1`."""
    return np.random.default_rng(seed).integers(first_target, num_nodes, count, dtype=np.int64)


def write_stream(
    directory: Path,
    source_E: np.ndarray,
    target_E: np.ndarray,
    time_E: np.ndarray,
    features_EF: np.ndarray,
    sizes: StreamSizes,
    *,
    epochs: int,
    seed: int,
) -> None:
    """Write the arrays of a `Stream` into `directory`, negatives included."""
    count = len(time_E)
    drawn = [
        draw_negatives(seed * 1_000_003 + epoch, count, sizes.first_target, sizes.num_nodes)
        for epoch in range(epochs + 1)
    ]
    arrays = {
        "source": source_E.astype(np.int64),
        "target": target_E.astype(np.int64),
        "time": time_E.astype(np.int64),
        "features": np.ascontiguousarray(features_EF, dtype=np.float32),
        "train_negative": np.stack(drawn[1:]),
        "val_negative": drawn[0],
    }
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array)
    (directory / "sizes.json").write_text(json.dumps(asdict(sizes)))


def read_stream(directory: Path) -> Stream:
    """Read back what `write_stream` wrote, into memory."""
    sizes = StreamSizes(**json.loads((directory / "sizes.json").read_text()))
    columns = {name: np.load(directory / f"{name}.npy") for name in _COLUMNS}
    return Stream(**columns, sizes=sizes)
