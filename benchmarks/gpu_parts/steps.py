"""Whole training steps by each executor: equal to the CPU, how fast, how many launches, how idle.

Batches are prepared beforehand, as a pipeline would have them; a step is everything after that, the
batch's way to the device and the state included.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_parts.report import Check, Report, Speed, synchronize
from tidegraph.batches import PreparedBatch, TemplateSet
from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
from tidegraph.events import load_dataset
from tidegraph.events.core import Events
from tidegraph.models import TemporalModel, build_model
from tidegraph.ops import use_backend
from tidegraph.state import NodeState
from tidegraph.train import EagerExecutor, Stream
from tidegraph.train.adam import Adam
from tidegraph.train.compiled_executor import CompiledExecutor
from tidegraph.train.graph_executor import GraphExecutor
from tidegraph.train.stream import Part
from tidegraph.train.template_executor import TemplateExecutor

CLIP = 1.0
RATE = 5e-4
_LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemcpy", "cudaMemset", "cuMem")


@dataclass(frozen=True, eq=False)
class Case:
    """Consecutive batches of a stream for one model, as they go to a device."""

    data: str
    name: str
    events: Events
    batches: list[PreparedBatch]
    size: int

    @staticmethod
    def of(data: str, name: str, size: int, count: int) -> Case:
        """`count` batches from the middle of the stream."""
        events = load_dataset(data)
        model = build_model(name, events.schema)
        part = Part("train", 0, len(events), size)
        stream = Stream.open(events, (part,), model.history, compact=True)
        sampler = NegativeSampler(events, NegativeSettings(seed=0))
        numbers = range(len(stream.plan) - 1)  # the last batch is a partial one
        first = max(0, len(numbers) // 2 - count // 2)
        batches = [
            stream.preparer.prepare(n, sampler.draw_at(stream.plan.events(n)))
            for n in numbers[first : first + count]
        ]
        return Case(data, name, events, batches, size)

    def templates(self) -> TemplateSet:
        """Those of these batches."""
        return TemplateSet.fit(self.batches, num_nodes=self.events.schema.num_nodes)


@dataclass(frozen=True, eq=False)
class Training:
    """A model in training on a device."""

    model: TemporalModel
    state: NodeState
    executor: EagerExecutor
    batches: list[PreparedBatch]

    @staticmethod
    def of(
        case: Case, kind: str, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Training:
        """`kind`: eager, cudagraph or compile; the same weights for all."""
        model = build_model(case.name, case.events.schema).to(device, dtype).train()
        state = NodeState(case.events.schema.num_nodes, model.columns).to(device)
        for name, table in state.tables.items():
            state.tables[name] = table.to(dtype) if table.is_floating_point() else table
        optimizer = Adam(model.named_parameters(), RATE)
        if kind == "eager":
            executor = EagerExecutor(model, state, optimizer, CLIP)
        elif kind == "compile":
            executor = CompiledExecutor(model, state, optimizer, case.templates(), CLIP)
        else:
            record = device.type == "cuda"
            executor = GraphExecutor(model, state, optimizer, case.templates(), CLIP, record=record)
        return Training(model, state, executor, case.batches)

    def epoch(self) -> list[float]:
        """The losses of one pass, from an empty state."""
        self.state.reset()
        self.state.version = self.batches[0].version
        return [self.executor.train(batch) for batch in self.batches]

    def results(self, weights: bool) -> list[Tensor]:
        """The state's tables, and the weights if asked for, on the CPU."""
        tensors = list(self.state.tables.values())
        tensors += self.model.state_dict().values() if weights else ()
        return [tensor.detach().cpu().clone() for tensor in tensors]


def _apart(found: list[Any], expected: list[Any]) -> float:
    largest = 0.0
    for a, b in zip(found, expected, strict=True):
        a, b = torch.as_tensor(a).double(), torch.as_tensor(b).double()
        apart = float((a - b).abs().max()) if a.numel() else 0.0
        largest = apart if not apart <= largest else largest  # a NaN stays
    return largest


def correctness(case: Case, device: torch.device, kinds: tuple[str, ...]) -> Iterator[Check]:
    """Three passes (record, capture, replay) against plain operators on the CPU and each other.

    In float64 everything is compared, weights included. In float32 losses and the state after the
    first pass are: Adam divides gradients that are nothing but rounding by their own size, so
    single weights move by a share of the learning rate, whoever computes them, and the state with
    them. (The CPU's kernels round time codes to float32 in either precision, so there float64 is
    compared between executors only.)
    """
    rounded = device.type == "cpu"
    for dtype, near, far in (
        (torch.float32, 2e-5, 2e-4),
        (torch.float64, 1e-9, 1e-5 if rounded else 1e-7),
    ):
        exact = dtype == torch.float64
        with use_backend("reference"):
            plain = _three_passes(Training.of(case, "eager", torch.device("cpu"), dtype), exact)
        first: _Passes | None = None
        what = "weights and state" if exact else "state"
        for kind in kinds:
            passes = _three_passes(Training.of(case, kind, device, dtype), exact)
            label = f"{case.name} {case.data} {case.size}, {kind}, {str(dtype)[6:]}"
            count = len(passes.losses)
            yield Check(f"{label}: {count} losses, CPU", _apart(passes.losses, plain.losses), far)
            if not (exact and rounded):
                apart = _apart(passes.results, plain.results)
                yield Check(f"{label}: {what}, CPU", apart, far if exact else 10 * far)
            if first is None:
                first = passes
                continue
            # The compiler's code has time codes of its own, not the kernels'.
            if kind == "compile" and exact and rounded:
                continue
            apart = _apart(passes.results, first.results)
            yield Check(f"{label}: {what}, {kinds[0]}", apart, near if exact else 10 * near)


@dataclass(frozen=True, eq=False)
class _Passes:
    """Losses of three passes, and what they are compared by; see `correctness`."""

    losses: list[float]
    results: list[Tensor]


def _three_passes(training: Training, exact: bool) -> _Passes:
    losses = training.epoch()
    results = training.results(False)
    losses += training.epoch() + training.epoch()
    return _Passes(losses, training.results(True) if exact else results)


def speed(report: Report, case: Case, kind: str, device: torch.device) -> Speed:
    """Two passes to get ready, then as many as a second takes, then one under the profiler."""
    training = Training.of(case, kind, device)
    began = time.perf_counter()
    training.epoch()
    report.check_time()
    training.epoch()
    synchronize(device)
    ready = time.perf_counter() - began
    began, passes = time.perf_counter(), 0
    while passes < 2 or time.perf_counter() - began < 1.0:
        training.epoch()
        passes += 1
        report.check_time()
    synchronize(device)
    seconds = (time.perf_counter() - began) / (passes * len(case.batches))
    launches, busy = _profiled(training) if device.type == "cuda" else (None, None)
    executor, templates, waste, share = training.executor, 0, 0.0, 0.0
    if isinstance(executor, TemplateExecutor):
        usage = executor.usage
        templates, waste = len(executor.templates.templates), usage.waste
        share = usage.batches / max(usage.batches + usage.misses, 1)
    return Speed(
        data=case.data,
        model=case.name,
        batch=case.size,
        executor=kind,
        events_per_second=case.size / seconds,
        milliseconds=1e3 * seconds,
        launches=launches,
        # The profiler slows the host, not the device: its busy time is compared with plain time.
        idle=None if busy is None else max(0.0, 1.0 - busy / seconds),
        in_template=share,
        templates=templates,
        waste=waste,
        first_seconds=ready,
    )


def _profiled(training: Training) -> tuple[float, float]:
    """Launches and busy seconds of the device, per step."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        training.epoch()
        torch.cuda.synchronize()
    launches, spans = 0, []
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spans.append((event.time_range.start, event.time_range.end))
        elif event.name.startswith(_LAUNCHES):
            launches += 1
    steps = len(training.batches)
    return launches / steps, 1e-6 * _covered(spans) / steps


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of spans.

    >>> _covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
