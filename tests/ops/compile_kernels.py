"""Compiles every Triton kernel for a Hopper GPU that need not be there, and prints what came out.

A program of its own, because kernels that Triton's interpreter has taken over (as in the tests)
cannot be compiled in the same process. The operators run on empty tensors with their launches
recorded instead of executed, so what is compiled here is what they would start. One JSON list:
kernel, size, registers, bytes of spills and of stack, and the widest loads from global memory.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from tidegraph.batches import Hop, Mail, Uses
from tidegraph.ops.triton_backend import attention, memory, rows, time_code
from tidegraph.ops.triton_backend.launch import OPTIONS

HOPPER = GPUTarget("cuda", 90, 32)
_POINTER = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.bfloat16: "*bf16", torch.int32: "*i32",
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """One start of a kernel, as an operator asked for it."""

    kernel: Any
    arguments: tuple[Any, ...]
    warps: int
    constants: dict[str, Any]


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a launch."""

    kernel: str
    size: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    widest_load: int  # bytes


def recorded(run: Callable[[], object]) -> list[Launch]:
    """The launches that `run` asks for; none is executed."""
    launches: list[Launch] = []

    def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, warps: int, **constants: Any):
        launches.append(Launch(kernel, arguments, warps, constants))

    modules = (attention, memory, rows, time_code)
    originals = [module.launch for module in modules]
    for module in modules:
        module.launch = launch
    try:
        run()
    finally:
        for module, original in zip(modules, originals, strict=True):
            module.launch = original
    return launches


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Memory that nobody reads; PyTorch aligns it to 64 bytes, as on a GPU (to 256)."""
    return torch.empty(*shape, dtype=dtype)


def integers(*shape: int) -> Tensor:
    """The same for indices."""
    return empty(*shape, dtype=torch.int32)


def attention_step(K: int, D: int, F: int, T: int, H: int, features: torch.dtype) -> None:
    """Forward and backward with dropout and a trained time code: every kernel it has."""
    S, R, E = 4, 8, 8
    hop = Hop(
        integers(S), integers(S, K), integers(S, K), empty(S, K), integers(S),
        Uses(integers(R + 1), integers(S)), Uses(integers(R + 1), integers(S * K)),
    )  # fmt: skip
    leaves = [empty(H, S, D + F + T), empty(R, D), empty(T), empty(T)]
    query, table, weight, bias = (leaf.requires_grad_() for leaf in leaves)
    for keep in (None, empty(S, K, H)):
        attention.temporal_attention(
            query, table, hop, empty(E, F, dtype=features), weight, bias, keep
        ).sum().backward()


def memory_step(cell: str, D: int, F: int, T: int, features: torch.dtype) -> None:
    """Forward and backward with a trained time code."""
    U, M, L, G = 8, 4, 6, 3 * D if cell == "gru" else D
    mail = Mail(integers(M), integers(M + 1), integers(L), empty(L))
    shapes = [(T,), (T,), (G, 2 * D + F + T), (G, D), (G,), (G,)]
    parameters = [empty(*shape).requires_grad_() for shape in shapes]
    table = empty(8, F, dtype=features)
    memory.memory_update(
        cell, empty(U, D), empty(U, D), mail, table, *parameters
    ).sum().backward()  # fmt: skip


def other_steps(D: int, T: int) -> None:
    """Row gathering and the bare time code."""
    uses = Uses(integers(9), integers(16))
    rows.gather_rows(
        empty(8, D).requires_grad_(), torch.zeros(16, dtype=torch.int32), uses
    ).sum().backward()
    time_code.time_code(
        empty(40), empty(T).requires_grad_(), empty(T).requires_grad_()
    ).sum().backward()


def compiled(launch: Launch, size: str, directory: Path) -> Compiled:
    """Triton's PTX of one launch, assembled for Hopper with a report on registers."""
    names = launch.kernel.arg_names
    signature = dict.fromkeys(names, "constexpr")
    attributes = {}
    for position, (name, value) in enumerate(zip(names, launch.arguments, strict=False)):
        if isinstance(value, Tensor):
            signature[name] = _POINTER[value.dtype]
            if value.data_ptr() % 16 == 0:
                attributes[(position,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "i32"
    source = ASTSource(launch.kernel, signature, launch.constants, attributes)
    result = triton.compile(source, target=HOPPER, options={"num_warps": launch.warps, **OPTIONS})
    path = directory / "kernel.ptx"
    path.write_text(result.asm["ptx"])
    report = subprocess.run(
        [
            get_ptxas(HOPPER.arch).path, "-v", "--gpu-name=sm_90a", path,
            "-o", directory / "kernel.cubin",
        ],
        check=True, capture_output=True, text=True,
    ).stderr  # fmt: skip

    def total(pattern: str) -> int:
        found = re.findall(pattern, report)
        assert found, report
        return sum(map(int, found))

    loads = re.findall(r"ld\.global\S*?(?:\.v(\d))?\.b(\d+)", result.asm["ptx"])
    return Compiled(
        kernel=launch.kernel.fn.__name__,
        size=size,
        registers=total(r"Used (\d+) registers"),
        spill_bytes=total(r"(\d+) bytes spill stores") + total(r"(\d+) bytes spill loads"),
        stack_bytes=total(r"(\d+) bytes stack frame"),
        widest_load=max((int(v or 1) * int(b) // 8 for v, b in loads), default=0),
    )


def every_launch(
    D: int, F: int, T: int, H: int, fan_outs: list[int], kinds: list[torch.dtype]
) -> list[tuple[str, Launch]]:
    """All launches of training steps at one size, each once."""
    runs: list[Callable[[], object]] = [lambda: other_steps(D, T)]
    for kind in kinds:
        runs += [lambda K=K, kind=kind: attention_step(K, D, F, T, H, kind) for K in fan_outs]
        runs += [lambda c=c, kind=kind: memory_step(c, D, F, T, kind) for c in ("gru", "rnn")]
    found = {}
    for run in runs:
        for launch in recorded(run):
            types = [str(x.dtype) if isinstance(x, Tensor) else "int" for x in launch.arguments]
            sizes = " ".join(f"{name}={value}" for name, value in launch.constants.items())
            label = f"{sizes} warps={launch.warps}" + " bf16" * ("torch.bfloat16" in types)
            found.setdefault((launch.kernel.fn.__name__, label, *types), (label, launch))
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("D", 100), ("F", 172), ("T", 100), ("H", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--k", type=int, nargs="+", default=[10, 20])
    parser.add_argument("--features", nargs="+", default=["float32", "bfloat16"])
    options = parser.parse_args()
    kinds = [getattr(torch, name) for name in options.features]
    launches = every_launch(options.D, options.F, options.T, options.H, options.k, kinds)
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps([asdict(compiled(x, size, Path(directory))) for size, x in launches]))


if __name__ == "__main__":
    main()
