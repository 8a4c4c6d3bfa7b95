"""A TGN training step beside its matrix-product floor, over a whole epoch, batch by batch.

Every batch is prepared and trained, and right after it the bare products of that very batch are
multiplied (twice, the first time to wake the caches), so that both see the same machine. Prints
the ratio of the sums, and of the medians over tenths of the epoch.

    python benchmarks/step.py --batch 200 600
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import torch

from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
from tidegraph.events import load_dataset
from tidegraph.models import TGN, build_model
from tidegraph.report.floor import Floor, training_products
from tidegraph.state import NodeState
from tidegraph.train import EagerExecutor, Stream
from tidegraph.train.adam import Adam
from tidegraph.train.stream import Part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", default="synthetic:wikipedia")
    parser.add_argument("--batch", type=int, nargs="+", default=[200, 600])
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = [measure(arguments.data, batch, arguments.precision) for batch in arguments.batch]
    if arguments.json:
        print(json.dumps(found))


def measure(data: str, batch_size: int, precision: str) -> dict[str, Any]:
    """One epoch over the first 70% of the events."""
    events = load_dataset(data)
    model = build_model("tgn", events.schema)
    assert isinstance(model, TGN)
    model.train()
    model.precision = precision
    part = Part("train", 0, int(len(events) * 0.7), batch_size)
    stream = Stream.open(events, (part,), model.history)
    negatives = NegativeSampler(events, NegativeSettings(seed=0))
    state = NodeState(events.schema.num_nodes, model.memory_width)
    executor = EagerExecutor(model, state, Adam(model.named_parameters(), learning_rate=5e-4))
    steps, floors, operations = [], [], []
    for number in stream.phase("train").batches:
        started = time.perf_counter()
        negative_BC = negatives.draw_at(stream.plan.events(number))
        batch = stream.preparer.prepare(number, negative_BC)
        executor.train(batch)
        steps.append(time.perf_counter() - started)
        products = training_products(model, batch)
        floor = Floor(products)
        floor.run()
        floors.append(floor.run())
        operations.append(sum(p.operations for p in products))
    steps, floors = steps[5:], floors[5:]  # the first calls load kernels
    tenths = [
        (float(np.median(s)), float(np.median(f)))
        for s, f in zip(np.array_split(steps, 10), np.array_split(floors, 10), strict=True)
    ]
    result = {
        "data": data,
        "batch": batch_size,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "batches": len(steps),
        "ms_per_step": 1e3 * sum(steps) / len(steps),
        "ms_floor": 1e3 * sum(floors) / len(floors),
        "ratio_of_sums": sum(steps) / sum(floors),
        "ratio_of_medians": statistics.median(s / f for s, f in tenths),
        "least_and_most": (min(s / f for s, f in tenths), max(s / f for s, f in tenths)),
        "events_per_second": batch_size * len(steps) / sum(steps),
        "gflop_per_step": statistics.mean(operations) / 1e9,
    }
    low, high = result["least_and_most"]  # type: ignore[misc]
    print(
        f"batch {batch_size}: step {result['ms_per_step']:.2f} ms, floor "
        f"{result['ms_floor']:.2f} ms ({result['gflop_per_step']:.2f} GFLOP), ratio "
        f"{result['ratio_of_sums']:.2f} (tenths: median {result['ratio_of_medians']:.2f}, "
        f"{low:.2f} to {high:.2f}), {result['events_per_second']:,.0f} events/s"
    )
    return result


if __name__ == "__main__":
    main()
