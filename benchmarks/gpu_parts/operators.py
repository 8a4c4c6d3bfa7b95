"""Every operator on a device against the plain one in float64 on the CPU, and both timed.

Compared are the result and every gradient: with garbage in padding, differences up to 9e18,
bfloat16 features, and two runs bit for bit. On a CPU the same checks run on its own kernels.

Shape legend: as in `tidegraph.ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_parts.report import Check, Timing, median_ms
from tidegraph import ops
from tidegraph.batches import Hop, Mail, Uses
from tidegraph.ops import use_backend
from tidegraph.ops.dropout import keep_mask, plain_keep_mask

D, F, T, H = 100, 172, 100, 2  # the published sizes


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


def masked(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Dropout masks from a key that lies on the device."""
    key = torch.tensor(-5_000_000_000_000_000_001, device=device)
    like = torch.empty((), device=device, dtype=dtype)
    if device.type == "cpu" and dtype == torch.float64:
        return [keep_mask(int(key), (101, 7), 0.3, like)]
    return [plain_keep_mask(key, (101, 7), 0.3, like).cpu()]


# ---------------------------------------------------------------- checks


def compare(
    device: torch.device,
    name: str,
    run: Callable[[torch.device, torch.dtype], list[Tensor]],
    allowed: float = 3e-6,
) -> list[Check]:
    """The device's kernels in float32 against plain float64, and against themselves."""
    with use_backend("reference"):
        expected = run(torch.device("cpu"), torch.float64)
    with use_backend("triton" if device.type == "cuda" else "cpu"):
        found, again = run(device, torch.float32), run(device, torch.float32)
    error = 0.0
    for one, want in zip(found, expected, strict=True):
        scale = max(1.0, float(want.abs().max())) if want.numel() else 1.0
        apart = float((one.double() - want).abs().max()) / scale if want.numel() else 0.0
        error = apart if not apart <= error else error  # a NaN stays
    same = all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    return [Check(name, error, allowed), Check(f"{name}: two runs", 0.0 if same else 1.0, 0.0)]


def checks(device: torch.device, quick: bool) -> Iterator[list[Check]]:
    """Every operator against the reference, one after another."""
    shapes = ((65, 10),) if quick else ((1, 1), (257, 10), (257, 20), (65, 64))
    for S, K in shapes:
        for dropout in (False, True):
            case = Attention.random(S, K, dropout=dropout)
            yield compare(device, f"attention S={S} k={K} dropout={dropout}", case.run)
    for cell in ("gru", "rnn"):
        for mails in (1, 5):
            memory = Memory.random(cell, 997, mails)
            yield compare(device, f"memory {cell}, mails <= {mails}", memory.run)
    # One row is the sum of 2,000 gradients in float32.
    yield compare(device, "gather_rows", gathered, allowed=2e-5)
    yield compare(device, "time_code to 9e18", coded, allowed=1e-6)
    yield compare(device, "dropout masks", masked, allowed=1e-7)
    if quick:
        return
    for heads in (1, 4):
        case = Attention.random(129, 10, heads=heads)
        yield compare(device, f"attention {heads} heads", case.run)
    large = Attention.random(257, 10, largest_delta=1e9)
    # A gradient by w is scaled by the differences: everything else is compared.
    yield compare(device, "attention, differences to 1e9", lambda d, t: large.run(d, t, False))
    short = replace(large, features_EF=large.features_EF.bfloat16())
    yield compare(device, "attention, bfloat16 features", lambda d, t: short.run(d, t, False))


# ---------------------------------------------------------------- timings


def places(device: torch.device) -> tuple[tuple[str, torch.device, str], ...]:
    """Where an operator is timed: label, device, backend."""
    fast = (("cpu", torch.device("cpu"), "auto"),)
    if device.type == "cpu":
        return fast
    return (*fast, ("gpu, plain", device, "reference"), ("gpu, triton", device, "triton"))


def attention_timing(device: torch.device, S: int, K: int) -> Timing:
    """Forward and backward with a fixed time code."""
    case = Attention.random(S, K)
    found = {}
    for label, place, backend in places(device):
        query, table = (x.to(place, copy=True).requires_grad_() for x in case.tensors[:2])
        weight, bias = (x.to(place) for x in case.tensors[2:])
        hop, features = on_device(case.hop, place), case.features_EF.to(place)
        upstream = case.upstream_HSW.to(place)

        def call(query=query, table=table, rest=(hop, features, weight, bias), up=upstream):  # type: ignore[no-untyped-def]
            ops.temporal_attention(query, table, *rest).backward(up)

        with use_backend(backend):
            found[label] = median_ms(call, place)
    return Timing(f"attention [{S}, k={K}, {H} heads], forward + backward", found)


def memory_timing(device: torch.device, U: int) -> Timing:
    """Forward and backward of a GRU, message "last"."""
    case = Memory.random("gru", U, 1)
    found = {}
    for label, place, backend in places(device):
        leaves = [p.to(place, copy=True) for p in case.parameters]
        leaves[2:] = [p.requires_grad_() for p in leaves[2:]]
        stored = [x.to(place) for x in case.stored]
        features, mail = case.features_EF.to(place), on_device(case.mail, place)

        def call(rest=(*stored, mail, features, *leaves)):  # type: ignore[no-untyped-def]
            ops.memory_update("gru", *rest).sum().backward()

        with use_backend(backend):
            found[label] = median_ms(call, place)
    return Timing(f"memory update [{U} nodes], forward + backward", found)
