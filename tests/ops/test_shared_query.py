"""The first layer over nodes without features equals the plain layer, gradients included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiny
from tidegraph.models.layers import AttentionLayer, TimeCode
from tidegraph.ops import use_backend

COUNTS = [3, 0, 1, 4, 2, 0, 4, 4, 1] * 5  # more seeds than a block has


def results(
    backend: str, kind: torch.dtype, features: int, heads: int, dropout: float, trained: bool
) -> list[torch.Tensor]:
    """Output and all gradients of one layer."""
    torch.manual_seed(3)
    layer = AttentionLayer(0, features, 5, 6, heads, dropout).to(kind).train()
    code = TimeCode(5, trainable=trained).to(kind)
    hop = tiny.random_hop(1, COUNTS, 4, 7, events=11)
    feature_EF = torch.randn(11, features).to(kind)
    with use_backend(backend):
        out_SE = layer(torch.empty(7, 0, dtype=kind), hop, feature_EF, code, 12345)
        (
            out_SE * torch.linspace(-1, 1, out_SE.numel(), dtype=kind).view_as(out_SE)
        ).sum().backward()
    parameters = [*layer.parameters(), *(code.parameters() if trained else ())]
    grads = [p.grad for p in parameters if p.numel()]
    assert all(grad is not None for grad in grads)
    return [out_SE.detach(), *(grad for grad in grads if grad is not None)]


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("features", [0, 1, 40])
@pytest.mark.parametrize(("kind", "error"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_equals_the_plain_layer(
    kind: torch.dtype, error: float, features: int, heads: int, dropout: float, trained: bool
) -> None:
    fast, plain = (
        results(backend, kind, features, heads, dropout, trained)
        for backend in ("auto", "reference")
    )
    for found, expected in zip(fast, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=error, atol=error)


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize(("width", "queries"), [(0, 1), (3, 4)])
def test_one_query_for_all_is_computed_once(
    width: int, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegraph.ops import layer_kernels

    shapes: list[tuple[int, ...]] = []
    original = layer_kernels.layer_forward

    def watched(*arguments: Any) -> None:
        original(*arguments)
        shapes.append(arguments[-7].shape)  # the queries times the keys

    monkeypatch.setattr(layer_kernels, "layer_forward", watched)
    layer, code = AttentionLayer(width, 2, 3, 6, 2, 0.0), TimeCode(3, trainable=False)
    hop, feature_EF = tiny.random_hop(1, [2, 1, 0, 3], 3, 4, events=5), torch.randn(5, 2)
    layer(torch.randn(4, width), hop, feature_EF, code, 0)
    assert shapes == [(2, queries, width + 2 + 3)]


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_no_seeds_and_padding_without_numbers() -> None:
    layer, code = AttentionLayer(0, 2, 3, 4, 2, 0.0), TimeCode(3, trainable=False)
    feature_EF = torch.randn(5, 2)
    assert layer(torch.empty(4, 0), tiny.random_hop(1, [], 3, 4, 5), feature_EF, code, 0).shape == (
        0,
        4,
    )
    hop = tiny.random_hop(1, [2, 0], 3, 4, events=5)
    expected = layer(torch.empty(4, 0), hop, feature_EF, code, 0)
    hop.delta_SK[0, 2], hop.event_SK[0, 2] = float("nan"), 4
    assert torch.equal(layer(torch.empty(4, 0), hop, feature_EF, code, 0), expected)
