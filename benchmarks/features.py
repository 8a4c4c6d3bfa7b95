"""Measure stored feature types: bytes, gather-and-decode rate, attention and a whole step.

    python benchmarks/features.py --batch 200 --scale 1

Batches come from the middle of `synthetic:wikipedia` (scale 1: 157,474 events, 172 features) in
their order, so the processor's caches hold what they hold in training. The types take turns, and
each figure is the median over all turns. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from tidegraph import ops
from tidegraph.batches import PreparedBatch
from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
from tidegraph.events import Events, load_dataset
from tidegraph.features import FEATURE_TYPES, FeatureStore
from tidegraph.models import TGN
from tidegraph.state import NodeState
from tidegraph.train.adam import Adam
from tidegraph.train.executor import EagerExecutor
from tidegraph.train.stream import Part, Stream


def median_ms(calls: dict[str, Callable[[int], None]], turns: int) -> dict[str, float]:
    """Median milliseconds of each call; they alternate, so that all see the same machine."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-2, turns):
        for name, call in calls.items():
            started = time.perf_counter()
            call(max(turn, 0))
            if turn >= 0:
                seconds[name].append(time.perf_counter() - started)
    return {name: round(1e3 * statistics.median(found), 4) for name, found in seconds.items()}


def gather_rates(stores: dict[str, FeatureStore], rows: int, turns: int) -> dict[str, float]:
    """Gigabytes of float32 rows delivered a second, random rows, another choice each time."""
    events = len(stores["float32"].table)
    draw = np.random.default_rng(0)
    chosen = [draw.integers(0, events, rows).astype(np.int32) for _ in range(turns)]

    def gather(store: FeatureStore) -> Callable[[int], None]:
        def call(turn: int) -> None:
            store.rows(chosen[turn])

        return call

    found = median_ms({name: gather(store) for name, store in stores.items()}, turns)
    size = rows * stores["float32"].width * 4
    return {name: round(size / ms / 1e6, 2) for name, ms in found.items()}


def attention(batches: list[PreparedBatch], backward: bool) -> Callable[[int], None]:
    """Forward (and backward) of one attention layer over each batch in turn."""
    width = 100 + 100 + batches[0].features.shape[1]
    weight = 10.0 ** torch.linspace(0, -9, 100)
    bias = torch.zeros(100)

    def call(turn: int) -> None:
        batch = batches[turn % len(batches)]
        hop = batch.hops[0]
        query = torch.ones(2, hop.neighbor_SK.shape[0], width).requires_grad_(backward)
        table = torch.ones(len(batch.node_U), 100).requires_grad_(backward)
        out = ops.temporal_attention(query, table, hop, batch.features, weight, bias)
        if backward:
            out.sum().backward()  # type: ignore[no-untyped-call]

    return call


def scattered(batch: PreparedBatch) -> PreparedBatch:
    """The batch with events from all over the stream: rows that no cache holds."""
    (hop,) = batch.hops
    draw = np.random.default_rng(batch.number)
    event_SK = draw.integers(0, len(batch.features), hop.event_SK.shape).astype(np.int32)
    return replace(batch, hops=(replace(hop, event_SK=torch.from_numpy(event_SK)),))


class Steps:
    """Preparation and training steps with one stored type."""

    def __init__(self, events: Events, store: FeatureStore, batch_size: int, turns: int) -> None:
        self.model = TGN(events.schema)
        stream = Stream.open(
            events, (Part("train", 0, len(events), batch_size),), self.model.history
        )
        self.preparer = replace(stream.preparer, features=store)
        self.first = len(stream.plan) // 2
        self.count = min(turns, len(stream.plan) - self.first - 1)
        self.negatives = NegativeSampler(events, NegativeSettings(seed=0))
        self.state = NodeState(events.schema.num_nodes, self.model.memory_width)
        optimizer = Adam(self.model.named_parameters(), learning_rate=1e-3)
        self.executor = EagerExecutor(self.model, self.state, optimizer)

    def prepare(self, turn: int) -> PreparedBatch:
        number = self.first + turn % self.count
        event_B = self.preparer.plan.events(number)
        return self.preparer.prepare(number, self.negatives.draw_at(event_B))

    def prepare_only(self, turn: int) -> None:
        self.prepare(turn)

    def step(self, turn: int) -> None:
        batch = self.prepare(turn)
        self.model.train()
        self.state.version = batch.version
        self.executor.train(batch)


def file_bytes(table_EF: np.ndarray) -> dict[str, int]:
    """The size of the stored columns on disk."""
    found = {"float32": table_EF.nbytes + 128}
    with tempfile.TemporaryDirectory() as directory:
        for name in FEATURE_TYPES:
            if name != "float32":
                place = Path(directory) / name
                FeatureStore.of(table_EF, name, directory=place)
                found[name] = sum(path.stat().st_size for path in place.iterdir())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--turns", type=int, default=100)
    options = parser.parse_args()

    events = load_dataset(f"synthetic:wikipedia:{options.scale:g}")
    assert events.features is not None
    stores = {name: FeatureStore.of(events.features, name) for name in FEATURE_TYPES}
    steps = {
        name: Steps(events, store, options.batch, options.turns) for name, store in stores.items()
    }
    in_place = ("float32", "bfloat16")
    batches = {
        name: [steps[name].prepare(turn) for turn in range(options.turns)] for name in in_place
    }
    turns = options.turns
    print(
        json.dumps(
            {
                "events": len(events),
                "features": events.schema.event_features,
                "batch": options.batch,
                "threads": torch.get_num_threads(),
                "file_bytes": file_bytes(events.features),
                "gather_gigabytes_per_second": {
                    rows: gather_rates(stores, rows, turns) for rows in (2_000, 20_000)
                },
                "attention_forward_ms": median_ms(
                    {name: attention(batches[name], False) for name in in_place}, turns
                ),
                "attention_forward_backward_ms": median_ms(
                    {name: attention(batches[name], True) for name in in_place}, turns
                ),
                "attention_forward_scattered_events_ms": median_ms(
                    {
                        name: attention([scattered(batch) for batch in batches[name]], False)
                        for name in in_place
                    },
                    turns,
                ),
                "prepare_ms": median_ms({n: s.prepare_only for n, s in steps.items()}, turns),
                "prepare_and_train_ms": median_ms({n: s.step for n, s in steps.items()}, turns),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
