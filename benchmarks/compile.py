"""Compiled training steps beside eager ones on this machine's processor.

Each executor trains on the same consecutive batches, prepared beforehand, in a process of its own.
Printed are the median step, the first step with the compiler's cache empty and once more with what
it kept, and how far the losses are apart.

    python benchmarks/compile.py
    python benchmarks/compile.py --data flights --batch 600 --batches 40 --json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

RATE = 5e-4


def train(data: str, size: int, count: int, executor_name: str) -> dict[str, Any]:
    """Milliseconds and loss of every step, from an empty state in the middle of the stream."""
    from tidegraph.batches import TemplateSet
    from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
    from tidegraph.events import load_dataset
    from tidegraph.models import build_model
    from tidegraph.state import NodeState
    from tidegraph.train import EagerExecutor, Stream
    from tidegraph.train.adam import Adam
    from tidegraph.train.compiled_executor import CompiledExecutor
    from tidegraph.train.stream import Part

    events = load_dataset(data)
    model = build_model("tgn", events.schema).train()
    stream = Stream.open(events, (Part("train", 0, len(events), size),), model.history)
    sampler = NegativeSampler(events, NegativeSettings(seed=0))
    first = max(0, len(stream.plan) // 2 - count // 2)
    batches = [
        stream.preparer.prepare(n, sampler.draw_at(stream.plan.events(n)))
        for n in range(first, min(first + count, len(stream.plan) - 1))
    ]
    nodes = events.schema.num_nodes
    state, optimizer = NodeState(nodes, model.columns), Adam(model.named_parameters(), RATE)
    state.version = batches[0].version
    if executor_name == "eager":
        executor = EagerExecutor(model, state, optimizer)
    else:
        templates = TemplateSet.fit(batches, num_nodes=nodes, most=1)
        executor = CompiledExecutor(model, state, optimizer, templates)
    seconds, losses = [], []
    for batch in batches:
        began = time.perf_counter()
        losses.append(executor.train(batch))
        seconds.append(time.perf_counter() - began)
    return {
        "first_seconds": seconds[0],
        "median_ms": 1e3 * statistics.median(seconds[3:]),
        "losses": losses,
    }


def separately(arguments: list[str], cache: str) -> dict[str, Any]:
    """`train` in a process of its own, with the compiler's cache where it is told."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, __file__, "--worker", *arguments],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--data", nargs="+", default=["flights", "synthetic:wikipedia"])
    parser.add_argument("--batch", type=int, nargs="+", default=[200, 600])
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.worker:
        data, size, count, name = options.worker
        print(json.dumps(train(data, int(size), int(count), name)))
        return
    print("| data | batch | eager | compiled | first step | with a cache | losses apart |")
    print("|---|---|---|---|---|---|---|", flush=True)
    rows = []
    for data in options.data:
        for size in options.batch:
            arguments = [data, str(size), str(options.batches)]
            with tempfile.TemporaryDirectory() as cache:
                eager = separately([*arguments, "eager"], cache)
                cold = separately([*arguments, "compile"], cache)
                warm = separately([*arguments, "compile"], cache)
            pairs = zip(eager["losses"], cold["losses"], strict=True)
            apart = max(abs(a - b) for a, b in pairs)
            rows.append({"data": data, "batch": size, "eager": eager, "cold": cold, "warm": warm})
            print(
                f"| {data} | {size} | {eager['median_ms']:.1f} ms | {cold['median_ms']:.1f} ms | "
                f"{cold['first_seconds']:.1f} s | {warm['first_seconds']:.1f} s | {apart:.1e} |",
                flush=True,
            )
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
