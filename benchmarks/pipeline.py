"""Preparation threads against preparing in turn: what they cost, and how much of a delay they hide.

Two trainings of the same model walk the same batches, a segment of one and the same segment of the
other, in changing order, so that both see the same machine. Reported is the median over segments.

1. Without delay: the time with threads by the time without. Above 1 the threads cost.
2. Every preparation sleeps as long as a step takes: the share of the sleep that does not show in
   the time of the segment, its first batch included, for which everything has to be waited for.

    python benchmarks/pipeline.py --data synthetic:wikipedia --threads 1 2
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tidegraph._jit import set_threads
from tidegraph.batches import PreparedBatch
from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
from tidegraph.events import load_dataset
from tidegraph.models import build_model
from tidegraph.state import NodeState
from tidegraph.train import EagerExecutor, Stream
from tidegraph.train.adam import Adam
from tidegraph.train.pipeline import Pipeline, PipelineSettings, choose_pipeline
from tidegraph.train.planner import describe_plan, plan_staleness
from tidegraph.train.stages import StageTimes
from tidegraph.train.stream import Part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", default="synthetic:wikipedia")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--segments", type=int, default=8)
    parser.add_argument("--batches", type=int, default=50, help="in a segment")
    parser.add_argument("--cpu-threads", type=int, help="of the step (default: all)")
    parser.add_argument("--delay", type=float, nargs="+", default=[0.0, 1.0],
                        help="of a preparation, in steps; 0: what threads cost")  # fmt: skip
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall",
                        help="cpu: processor time, where others use the machine")  # fmt: skip
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    Training.clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
    if arguments.cpu_threads is not None:
        set_threads(arguments.cpu_threads)
    chosen = choose_pipeline(torch.device("cpu"))
    print(
        f"{arguments.data}, batches of {arguments.batch}, {arguments.segments} segments of "
        f"{arguments.batches}; step on {torch.get_num_threads()} threads; chosen by default: "
        f"{chosen.threads} preparation threads"
    )
    results = []
    for threads in arguments.threads:
        settings = PipelineSettings(threads, arguments.depth)
        for delay in arguments.delay:
            results.append(compare(arguments, settings, delay))  # noqa: PERF401
    if arguments.json:
        print(json.dumps(results))


class Training:
    """A TGN, its state and optimiser, and where it stands in the stream."""

    clock: Callable[[], float] = time.perf_counter

    def __init__(self, data: str, batch_size: int) -> None:
        self.events = load_dataset(data)
        self.model = build_model("tgn", self.events.schema).train()
        part = Part("train", 0, int(len(self.events) * 0.7), batch_size)
        self.stream = Stream.open(self.events, (part,), self.model.history)
        self.negatives = NegativeSampler(self.events, NegativeSettings(seed=0))
        state = NodeState(self.events.schema.num_nodes, self.model.memory_width)
        optimizer = Adam(self.model.named_parameters(), learning_rate=5e-4)
        self.executor = EagerExecutor(self.model, state, optimizer)
        self.times = StageTimes()

    def prepare(self, number: int) -> PreparedBatch:
        """A batch, any thread."""
        negative_BC = self.negatives.draw_at(self.stream.plan.events(number))
        return self.stream.preparer.prepare(number, negative_BC)

    def run(
        self, batches: int, settings: PipelineSettings, prepare: Callable[[int], PreparedBatch]
    ) -> float:
        """Seconds for the next batches; where there are not as many left, from the first again."""
        first = self.executor.state.version
        if first + batches > len(self.stream.plan):
            self.executor.state.reset()
            first = 0
        started = Training.clock()
        numbers = range(first, first + batches)
        times = self.executor.times = StageTimes()
        with Pipeline(numbers, prepare, settings, times) as prepared:
            for batch in prepared:
                self.executor.train(batch)
        self.times = times
        return Training.clock() - started


def quartiles(values: list[float]) -> str:
    """The middle half, for people."""
    low, high = np.percentile(values, [25, 75])
    return f"{low:.3f} to {high:.3f}"


def delayed(
    prepare: Callable[[int], PreparedBatch], seconds: float
) -> Callable[[int], PreparedBatch]:
    """Preparation that sleeps first."""

    def slow(number: int) -> PreparedBatch:
        time.sleep(seconds)
        return prepare(number)

    return slow if seconds else prepare


def compare(arguments: argparse.Namespace, settings: PipelineSettings, steps_delay: float) -> Any:
    """Segments in turn: without threads and delay, and with threads (and delay)."""
    plain, ahead = (Training(arguments.data, arguments.batch) for _ in range(2))
    count = arguments.batches
    plain.run(20, PipelineSettings(), plain.prepare)  # the first calls load kernels
    ahead.run(20, settings, ahead.prepare)
    delay = 0.0
    if steps_delay:
        seconds = [plain.run(10, PipelineSettings(), plain.prepare) / 10 for _ in range(3)]
        delay = steps_delay * statistics.median(seconds)
        ahead.run(30, settings, ahead.prepare)
    slow = delayed(ahead.prepare, delay)
    ratios, hidden, steps = [], [], []
    for segment in range(arguments.segments):
        if segment % 2:
            with_threads = ahead.run(count, settings, slow)
            without = plain.run(count, PipelineSettings(), plain.prepare)
        else:
            without = plain.run(count, PipelineSettings(), plain.prepare)
            with_threads = ahead.run(count, settings, slow)
        ratios.append(with_threads / without)
        steps.append(without / count)
        if delay:
            hidden.append(1 - (with_threads - without) / (count * delay))
    step = statistics.median(steps)
    exposed = sum(plain.times.exposed.values())
    found = {
        "threads": settings.threads, "depth": settings.depth, "delay_seconds": delay,
        "step_seconds": step, "ratio": statistics.median(ratios), "ratios": ratios,
        "hidden": statistics.median(hidden) if hidden else None, "all_hidden": hidden,
        "preparation_share": plain.times.exposed["prepare"] / exposed,
    }  # fmt: skip
    print(f"{settings.threads} threads, {1e3 * delay:.1f} ms delay: ", end="")
    if delay:
        print(
            f"hidden {found['hidden']:.1%} (middle half of the segments {quartiles(hidden)}); a "
            f"step takes {1e3 * step:.1f} ms"
        )
    else:
        print(
            f"time with threads / without {found['ratio']:.3f} (middle half of the segments "
            f"{quartiles(ratios)}); a step takes {1e3 * step:.1f} ms, "
            f"{found['preparation_share']:.1%} of it preparation"
        )
        plan = plan_staleness(ahead.times.seconds, count, settings.threads)
        print(f"  {describe_plan(plan)}")
    return found


if __name__ == "__main__":
    main()
