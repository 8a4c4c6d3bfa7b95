"""JODIE's projection and the times that go into it: kernels equal the plain form, to gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tidegraph import ops
from tidegraph.batches.prepared import Seeds
from tidegraph.batches.rows import uses_of
from tidegraph.ops import use_backend


def some_seeds(rows: int, count: int, generator: torch.Generator) -> Seeds:
    row_S = torch.randint(rows, (count,), generator=generator, dtype=torch.int32)
    elapsed_S = torch.rand(count, generator=generator) * 1e6
    return Seeds(row_S, uses_of(row_S.numpy(), rows), torch.zeros(count), elapsed_S)


@pytest.mark.parametrize("first_target", [None, 0, 40, 1000])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_gaps_equal_the_plain_form(kind: torch.dtype, first_target: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    seeds = some_seeds(30, 200, generator)
    node_U = torch.randperm(80, generator=generator, dtype=torch.int32)[:30]
    mean_2, scale_2 = torch.tensor([3e4, 2e5], dtype=kind), torch.tensor([1e5, 3e3], dtype=kind)
    fast, plain = (
        backend_gaps(name, seeds, node_U, first_target, mean_2, scale_2)
        for name in ("auto", "reference")
    )
    assert fast.dtype == kind
    torch.testing.assert_close(fast, plain, rtol=1e-6, atol=1e-6)
    assert float(fast.abs().max()) == 50.0, "some reach the bound"


def backend_gaps(
    name: str, seeds: Seeds, node_U: torch.Tensor, first_target: int | None, mean_2: torch.Tensor,
    scale_2: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    seeds = replace(seeds, elapsed_S=torch.cat([torch.full((1,), 1e8), seeds.elapsed_S[1:]]))
    with use_backend(name):
        return ops.normalized_gaps(seeds, node_U, first_target, mean_2, scale_2, 50.0)


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("count", [0, 1, 500])
def test_projection_equals_the_plain_form(count: int, offset: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    seeds = some_seeds(90, count, generator)
    tensors = [torch.randn(90, 7, generator=generator), torch.randn(7, generator=generator)]
    tensors += [torch.randn(7, generator=generator)] if offset else []
    time_S = torch.randn(count, generator=generator)
    found = {}
    for name in ("auto", "reference"):
        memory_UD, weight_D, *rest = own = [tensor.clone().requires_grad_() for tensor in tensors]
        with use_backend(name):
            out_SD = ops.time_projection(memory_UD, seeds, time_S, weight_D, *rest)
            (out_SD * torch.arange(float(out_SD.numel())).view_as(out_SD).cos()).sum().backward()
        found[name] = [out_SD.detach(), *(tensor.grad for tensor in own)]
    for fast, plain in zip(found["auto"], found["reference"], strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-5)
