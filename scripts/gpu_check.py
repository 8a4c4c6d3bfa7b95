"""Checks and times the GPU kernels on this machine: one script, under five minutes.

    python scripts/gpu_check.py --json gpu.json

Every operator is compared with the plain one in float64 on the CPU (forward, every gradient,
garbage in padding, differences up to 9e18, bfloat16 features, two runs bit for bit), then operators
and a training step are timed on CPU and GPU. Exit code: 0 all equal, 1 a check failed, 2 no CUDA
device.

Shape legend: as in `tidegraph.ops`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tidegraph import ops
from tidegraph.batches import Hop, Mail, Uses
from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
from tidegraph.events import load_dataset
from tidegraph.models import build_model
from tidegraph.ops import use_backend
from tidegraph.state import NodeState
from tidegraph.train import EagerExecutor, Stream
from tidegraph.train.adam import Adam
from tidegraph.train.stream import Part

CUDA = torch.device("cuda")
D, F, T, H = 100, 172, 100, 2  # the published sizes


@dataclass(frozen=True)
class Check:
    """One comparison: the largest error, relative to the largest expected entry (at least 1)."""

    name: str
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Within what is allowed (a NaN is not)."""
        return self.error <= self.allowed


@dataclass(frozen=True)
class Timing:
    """Median milliseconds of one call, by where it ran."""

    name: str
    milliseconds: dict[str, float]


# ---------------------------------------------------------------- inputs


def on_device(value: Any, device: torch.device) -> Any:
    """A dataclass with every tensor in it on `device`."""
    if isinstance(value, Tensor):
        return value.to(device)
    moved = {field.name: on_device(getattr(value, field.name), device) for field in fields(value)}
    return replace(value, **moved)


def uses_of(index: np.ndarray, rows: int) -> Uses:
    """The transpose of an index; negative entries are left out."""
    flat = index.reshape(-1)
    order = np.argsort(flat, kind="stable")
    indptr = np.searchsorted(flat[order], np.arange(rows + 1))
    used = order[indptr[0] :].astype(np.int32)
    return Uses(torch.from_numpy((indptr - indptr[0]).astype(np.int32)), torch.from_numpy(used))


@dataclass(frozen=True)
class Attention:
    """Inputs of one attention call: counts from 0 to K, garbage wherever padding is."""

    hop: Hop
    features_EF: Tensor
    tensors: tuple[Tensor, ...]  # query, table, weight, bias
    keep_SKH: Tensor | None
    upstream_HSW: Tensor

    @staticmethod
    def random(
        S: int, K: int, *, dropout: bool = False, largest_delta: float = 1e6, heads: int = H
    ) -> Attention:
        """Reproducible inputs; row and event 0 hold NaN and are named by padding alone."""
        rng = np.random.default_rng(S + K)
        R, E = max(2, S // 2), max(2, S * K // 4)
        count = rng.integers(0, K + 1, S)
        used_SK = np.arange(K) < count[:, None]
        neighbor = np.where(used_SK, rng.integers(1, R, (S, K)), 0).astype(np.int32)
        event = np.where(used_SK, rng.integers(1, E, (S, K)), 0).astype(np.int32)
        delta = np.where(used_SK, rng.uniform(0, largest_delta, (S, K)), np.nan)
        own = rng.integers(0, R, S).astype(np.int32)
        hop = Hop(
            self_S=torch.from_numpy(own),
            neighbor_SK=torch.from_numpy(neighbor),
            event_SK=torch.from_numpy(event),
            delta_SK=torch.from_numpy(delta.astype(np.float32)),
            count_S=torch.from_numpy(count.astype(np.int32)),
            self_uses=uses_of(own, R),
            neighbor_uses=uses_of(np.where(used_SK, neighbor, -1), R),
        )
        draw = torch.Generator().manual_seed(0)
        W = D + F + T
        table, features = (torch.randn(*shape, generator=draw) for shape in ((R, D), (E, F)))
        table[0], features[0] = float("nan"), float("nan")
        keep = (torch.rand(S, K, heads, generator=draw) < 0.9).float() / 0.9 if dropout else None
        weight = (10.0 ** torch.linspace(0, -9, T, dtype=torch.float64)).float()
        query = torch.randn(heads, S, W, generator=draw) * 0.1
        tensors = (query, table, weight, torch.randn(T, generator=draw))
        upstream = torch.randn(heads, S, W, generator=draw)
        return Attention(hop, features, tensors, keep, upstream)

    def run(self, device: torch.device, dtype: torch.dtype, time_code: bool = True) -> list[Tensor]:
        """Output and gradients, on the CPU."""
        leaves = [x.to(device, dtype, copy=True).requires_grad_() for x in self.tensors]
        if not time_code:
            leaves[2:] = [x.detach() for x in leaves[2:]]
        keep = None if self.keep_SKH is None else self.keep_SKH.to(device, dtype)
        out = ops.temporal_attention(
            leaves[0], leaves[1], on_device(self.hop, device), self.features_EF.to(device),
            leaves[2], leaves[3], keep,
        )  # fmt: skip
        out.backward(self.upstream_HSW.to(device, dtype))
        grads = [leaf.grad.cpu() for leaf in leaves if leaf.grad is not None]
        return [out.detach().cpu(), *grads]


@dataclass(frozen=True)
class Memory:
    """Inputs of one memory update; every third node has no mail."""

    cell: str
    mail: Mail
    features_EF: Tensor
    stored: tuple[Tensor, Tensor]
    parameters: tuple[Tensor, ...]

    @staticmethod
    def random(cell: str, U: int, most_mails: int) -> Memory:
        """Reproducible inputs; `most_mails` 1 is message "last"."""
        rng, draw = np.random.default_rng(U), torch.Generator().manual_seed(1)
        row = np.flatnonzero(np.arange(U) % 3).astype(np.int32)
        indptr = np.concatenate([[0], rng.integers(1, most_mails + 1, len(row)).cumsum()])
        L, E, G = int(indptr[-1]), 1000, 3 * D if cell == "gru" else D
        mail = Mail(
            torch.from_numpy(row),
            torch.from_numpy(indptr.astype(np.int32)),
            torch.from_numpy(rng.integers(0, E, L).astype(np.int32)),
            torch.from_numpy(rng.uniform(0, 1e6, L).astype(np.float32)),
        )
        shapes = [(G, 2 * D + F + T), (G, D), (G,), (G,)]
        weight = (10.0 ** torch.linspace(0, -9, T, dtype=torch.float64)).float()
        cells = [torch.randn(*shape, generator=draw) * 0.1 for shape in shapes]
        return Memory(
            cell,
            mail,
            torch.randn(E, F, generator=draw),
            (torch.randn(U, D, generator=draw), torch.randn(U, D, generator=draw)),
            (weight, torch.randn(T, generator=draw), *cells),
        )

    def run(self, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        """Output and gradients, on the CPU."""
        leaves = [p.to(device, dtype, copy=True).requires_grad_() for p in self.parameters]
        stored = [x.to(device, dtype) for x in self.stored]
        features, mail = self.features_EF.to(device), on_device(self.mail, device)
        out = ops.memory_update(self.cell, stored[0], stored[1], mail, features, *leaves)
        out.square().sum().backward()
        return [x.detach().cpu() for x in (out, *(leaf.grad for leaf in leaves))]  # type: ignore[union-attr]


def gathered(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """`gather_rows` with a hub that half of the positions name."""
    index = np.random.default_rng(0).integers(0, 500, 4000).astype(np.int32)
    index[::2] = 7
    table = torch.randn(500, D, generator=torch.Generator().manual_seed(2)).to(device, dtype)
    table.requires_grad_()
    uses = on_device(uses_of(index, 500), device)
    out = ops.gather_rows(table, torch.from_numpy(index).to(device), uses)
    out.square().sum().backward()
    assert table.grad is not None
    return [out.detach().cpu(), table.grad.cpu()]


def coded(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """`time_code` from nothing to nanoseconds of centuries."""
    delta = torch.tensor([0.0, 1.0, 1e6, 1e9, 1e12, 1e15, 1e18, 9e18], device=device)
    weight = (10.0 ** torch.linspace(0, -9, T, dtype=torch.float64)).float().to(device, dtype)
    bias = torch.linspace(-1, 1, T).to(device, dtype)
    return [ops.time_code(delta, weight, bias).cpu()]


# ---------------------------------------------------------------- checks


def compare(
    name: str, run: Callable[[torch.device, torch.dtype], list[Tensor]], allowed: float = 3e-6
) -> list[Check]:
    """GPU kernels in float32 against plain float64, and against themselves."""
    with use_backend("reference"):
        expected = run(torch.device("cpu"), torch.float64)
    with use_backend("triton"):
        found, again = run(CUDA, torch.float32), run(CUDA, torch.float32)
    error = 0.0
    for one, want in zip(found, expected, strict=True):
        scale = max(1.0, float(want.abs().max())) if want.numel() else 1.0
        apart = float((one.double() - want).abs().max()) / scale if want.numel() else 0.0
        error = apart if not apart <= error else error  # a NaN stays
    same = all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    return [Check(name, error, allowed), Check(f"{name}: two runs", 0.0 if same else 1.0, 0.0)]


def all_checks() -> list[Check]:
    """Every operator against the reference."""
    checks: list[Check] = []
    for S, K in ((1, 1), (257, 10), (257, 20), (65, 64)):
        for dropout in (False, True):
            case = Attention.random(S, K, dropout=dropout)
            checks += compare(f"attention S={S} k={K} dropout={dropout}", case.run)
    for heads in (1, 4):
        case = Attention.random(129, 10, heads=heads)
        checks += compare(f"attention {heads} heads", case.run)
    large = Attention.random(257, 10, largest_delta=1e9)
    # A gradient by w is scaled by the differences: everything else is compared.
    checks += compare("attention, differences to 1e9", lambda d, t: large.run(d, t, False))
    short = replace(large, features_EF=large.features_EF.bfloat16())
    checks += compare("attention, bfloat16 features", lambda d, t: short.run(d, t, False))
    for cell in ("gru", "rnn"):
        for mails in (1, 5):
            checks += compare(
                f"memory {cell}, mails <= {mails}", Memory.random(cell, 997, mails).run
            )
    checks += compare("gather_rows", gathered)
    checks += compare("time_code to 9e18", coded, allowed=1e-6)
    return checks


# ---------------------------------------------------------------- timings


def median_ms(call: Callable[[], object], device: torch.device, most_seconds: float = 2.0) -> float:
    """Median of repeats after two warm calls, the device idle before and after each."""

    def timed() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - started)

    timed(), timed()
    seconds: list[float] = []
    begun = time.perf_counter()
    while len(seconds) < 50 and time.perf_counter() - begun < most_seconds:
        seconds.append(timed())
    return statistics.median(seconds)


PLACES = (
    ("cpu", torch.device("cpu"), "auto"),
    ("gpu, plain", CUDA, "reference"),
    ("gpu, triton", CUDA, "triton"),
)


def attention_timing(S: int, K: int) -> Timing:
    """Forward and backward with a fixed time code."""
    case = Attention.random(S, K)
    found = {}
    for label, device, backend in PLACES:
        query, table = (x.to(device, copy=True).requires_grad_() for x in case.tensors[:2])
        weight, bias = (x.to(device) for x in case.tensors[2:])
        hop, features = on_device(case.hop, device), case.features_EF.to(device)
        upstream = case.upstream_HSW.to(device)

        def call(query=query, table=table, rest=(hop, features, weight, bias), up=upstream):  # type: ignore[no-untyped-def]
            ops.temporal_attention(query, table, *rest).backward(up)

        with use_backend(backend):
            found[label] = median_ms(call, device)
    return Timing(f"attention [{S}, k={K}, {H} heads], forward + backward", found)


def memory_timing(U: int) -> Timing:
    """Forward and backward of a GRU, message "last"."""
    case = Memory.random("gru", U, 1)
    found = {}
    for label, device, backend in PLACES:
        leaves = [p.to(device, copy=True) for p in case.parameters]
        leaves[2:] = [p.requires_grad_() for p in leaves[2:]]
        stored = [x.to(device) for x in case.stored]
        features, mail = case.features_EF.to(device), on_device(case.mail, device)

        def call(rest=(*stored, mail, features, *leaves)):  # type: ignore[no-untyped-def]
            ops.memory_update("gru", *rest).sum().backward()

        with use_backend(backend):
            found[label] = median_ms(call, device)
    return Timing(f"memory update [{U} nodes], forward + backward", found)


def step_timing(batch_size: int) -> Timing:
    """A TGN training step on one prepared batch, the transfer of the batch included."""
    events = load_dataset("synthetic:wikipedia:0.25")
    found = {}
    for label, device, backend in PLACES:
        model = build_model("tgn", events.schema)
        part = Part("train", 0, len(events), batch_size)
        stream = Stream.open(events, (part,), model.history, compact=device.type != "cpu")
        number = len(stream.plan) // 2
        sampler = NegativeSampler(stream.events, NegativeSettings(seed=0))
        batch = stream.preparer.prepare(number, sampler.draw_at(stream.plan.events(number)))
        state = NodeState(events.schema.num_nodes, model.memory_width).to(device)
        model = model.to(device).train()
        optimizer = Adam(model.named_parameters(), learning_rate=1e-3)
        executor = EagerExecutor(model, state, optimizer)

        def call(state=state, executor=executor, batch=batch, number=number):  # type: ignore[no-untyped-def]
            state.version = number  # the same batch again
            executor.train(batch)

        with use_backend(backend):
            found[label] = median_ms(call, device, most_seconds=5.0)
    return Timing(f"TGN training step, batch {batch_size}", found)


# ---------------------------------------------------------------- report


def report(checks: list[Check], timings: list[Timing]) -> None:
    """Two tables for a person."""
    from rich.console import Console
    from rich.table import Table

    table = Table("check", "error", "allowed", "", title="Triton on this GPU against the reference")
    for check in checks:
        table.add_row(
            check.name,
            f"{check.error:.2e}",
            f"{check.allowed:.0e}",
            "ok" if check.passed else "FAILED",
        )
    Console().print(table)
    times = Table("ms", *(label for label, _, _ in PLACES), title="Median of one call")
    for timing in timings:
        times.add_row(timing.name, *(f"{ms:.3f}" for ms in timing.milliseconds.values()))
    Console().print(times)


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the result here")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_check: PyTorch sees no CUDA device on this machine; nothing was checked.",
              file=sys.stderr)  # fmt: skip
        return 2
    started = time.perf_counter()
    checks = all_checks()
    timings = [attention_timing(1800, 10), attention_timing(12_600, 20), memory_timing(2000)]
    timings += [step_timing(200), step_timing(600)]
    report(checks, timings)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": __import__("triton").__version__,
        "seconds": time.perf_counter() - started,
        "checks": [{**asdict(check), "passed": check.passed} for check in checks],
        "timings": [asdict(timing) for timing in timings],
    }
    text = json.dumps(result)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)
    return 0 if all(check.passed for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
