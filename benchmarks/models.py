"""Training steps of any models on one data set, stage by stage: preparation, forward, backward.

    python benchmarks/models.py --models tgat graphmixer --batch 200 600 --steps 100

Prints, per model and batch size, the mean milliseconds of a step after the first few, its stages,
and how many (node, time) seeds the innermost hop had.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from tidegraph._jit import set_threads
from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
from tidegraph.events import load_dataset
from tidegraph.models import MODELS, build_model
from tidegraph.state import NodeState
from tidegraph.train import EagerExecutor, Stream
from tidegraph.train.adam import Adam
from tidegraph.train.stages import StageTimes
from tidegraph.train.stream import Part

_WARM = 5  # the first calls load kernels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", default="synthetic:wikipedia")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--batch", type=int, nargs="+", default=[200])
    parser.add_argument("--steps", type=int, default=60, help="per model and batch size")
    parser.add_argument("--from", dest="start", type=float, default=0.3, help="share of the epoch")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="model settings")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.threads:
        set_threads(arguments.threads)
    values = dict(one.split("=", 1) for one in arguments.set)
    found = [
        measure(arguments.data, name, batch, arguments.steps, arguments.start, values)
        for name in arguments.models
        for batch in arguments.batch
    ]
    if arguments.json:
        print(json.dumps(found))


def measure(
    data: str, name: str, batch_size: int, steps: int, start: float, values: dict[str, Any]
) -> dict[str, Any]:
    """`steps` batches from `start` (a share of the events) on; the state begins empty there."""
    events = load_dataset(data)
    model = build_model(name, events.schema, **values).train()
    part = Part("train", 0, int(len(events) * 0.7), batch_size)
    stream = Stream.open(events, (part,), model.history)
    negatives = NegativeSampler(events, NegativeSettings(seed=0))
    state = NodeState(events.schema.num_nodes, model.columns)
    times = StageTimes()
    optimizer = Adam(model.named_parameters(), learning_rate=1e-4)
    executor = EagerExecutor(model, state, optimizer, times=times)
    batches = stream.phase("train").batches
    first = int(len(batches) * start)
    seconds, seeds = [], []
    for number in batches[first : first + steps + _WARM]:
        state.version = number
        if number == first + _WARM:
            times.seconds.clear()
        started = time.perf_counter()
        with times("prepare"):
            negative_BC = negatives.draw_at(stream.plan.events(number))
            batch = stream.preparer.prepare(number, negative_BC)
        executor.train(batch)
        seconds.append(time.perf_counter() - started)
        seeds.append(len(batch.hops[0].self_S) if batch.hops else len(batch.node_U))
    seconds, seeds = seconds[_WARM:], seeds[_WARM:]
    result = {
        "data": data,
        "model": name,
        "batch": batch_size,
        "steps": len(seconds),
        "ms_per_step": 1e3 * float(np.mean(seconds)),
        "ms_median": 1e3 * float(np.median(seconds)),
        "stages_ms": {k: 1e3 * v / len(seconds) for k, v in times.seconds.items()},
        "inner_seeds": float(np.mean(seeds)),
    }
    stages = ", ".join(f"{k} {v:.1f}" for k, v in result["stages_ms"].items())
    print(
        f"{name:12} batch {batch_size}: {result['ms_per_step']:.1f} ms a step (median "
        f"{result['ms_median']:.1f}; {stages}), {result['inner_seeds']:,.0f} inner seeds"
    )
    return result


if __name__ == "__main__":
    main()
