"""A mailbox's layer equals its equations, written out, in value and in every gradient."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import tiny
from tidegraph import ops
from tidegraph.batches import Hop
from tidegraph.batches.rows import NO_USES
from tidegraph.ops import LayerWeights, use_backend, use_precision
from tidegraph.ops.dropout import keep_mask

COUNTS = [3, 0, 1, 4, 2, 0, 4, 4, 1] * 5  # more seeds than a block has
KEY = 977


def layer_weights(H: int, d: int, X: int, T: int, kind: torch.dtype) -> LayerWeights:
    generator, E = torch.Generator().manual_seed(4), H * d

    def drawn(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator) / 3).to(kind).requires_grad_()

    return LayerWeights(
        drawn(E, E), drawn(E), torch.empty(E, 0, dtype=kind), drawn(H, d, X + T),
        drawn(H, X + T, d), drawn(E, E), drawn(E), drawn(E, E), drawn(E), drawn(T), drawn(T),
    )  # fmt: skip


def written_out(
    own_RD: Tensor, mail_NX: Tensor, w: LayerWeights, hop: Hop, dropout: float
) -> Tensor:
    """Seed by seed."""
    H, d, _ = w.key.shape
    S, K = hop.neighbor_SK.shape
    keep = keep_mask(KEY, (S, K, H), dropout, own_RD)
    kept = keep_mask(KEY + 1, (S, H * d), dropout, own_RD)
    rows = []
    for s in range(S):
        h, count = own_RD[int(hop.self_S[s])], int(hop.count_S[s])
        delta = hop.delta_SK[s, :count].to(own_RD.dtype).unsqueeze(1)
        code = torch.cos(delta * w.time + w.time_bias)
        x = torch.cat([mail_NX[hop.neighbor_SK[s, :count].long()], code], dim=1)
        query = (w.query @ h + w.query_bias).view(H, d)
        parts = []
        for i in range(H):
            score = x @ (query[i] @ w.key[i]) / math.sqrt(d)
            a = torch.softmax(score, 0) * keep[s, :count, i]
            parts.append((a @ x) @ w.value[i] if count else query[i] * 0)
        merged = torch.cat(parts) + h
        merged = merged - merged.mean()
        merged = merged / torch.sqrt((merged**2).mean() + 1e-5)
        hidden = torch.relu(w.merge_in @ merged + w.merge_in_bias) * kept[s]
        rows.append(w.merge_out @ hidden + w.merge_out_bias)
    return torch.stack(rows)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("H", [1, 2, 3])
@pytest.mark.parametrize(
    ("kind", "backend", "error"),
    [
        (torch.float64, "auto", 1e-10),
        (torch.float32, "auto", 3e-5),
        (torch.float32, "reference", 3e-5),
    ],
)
def test_equals_the_equations(
    kind: torch.dtype, backend: str, error: float, H: int, dropout: float
) -> None:
    d, X, T, R, N = 4, 9, 5, 7, 30
    generator = torch.Generator().manual_seed(1)
    hop = tiny.random_hop(1, COUNTS, 4, R, events=1)
    slots = torch.randint(N, hop.neighbor_SK.shape, generator=generator, dtype=torch.int32)
    hop = replace(hop, neighbor_SK=slots, event_SK=torch.zeros_like(slots), neighbor_uses=NO_USES)
    found = []
    for way in ("op", "written"):
        w = layer_weights(H, d, X, T, kind)
        draw = torch.Generator().manual_seed(2)
        own_RD = torch.randn(R, H * d, generator=draw).to(kind).requires_grad_()
        mail_NX = torch.randn(N, X, generator=draw).to(kind)
        if way == "op":
            with use_backend(backend):
                out_SE = ops.mailbox_layer(own_RD, mail_NX, w, hop, dropout, KEY)
        else:
            out_SE = written_out(own_RD, mail_NX, w, hop, dropout)
        slope = torch.linspace(-1, 1, out_SE.numel(), dtype=kind).view_as(out_SE)
        (out_SE * slope).sum().backward()
        leaves = [own_RD, *(value for value in vars(w).values() if value.numel())]
        found.append([out_SE.detach(), *(leaf.grad for leaf in leaves)])
    for fast, plain in zip(*found, strict=True):
        assert fast is not None
        scale = max(1.0, float(plain.abs().max()))
        assert float((fast - plain).abs().max()) <= error * scale


def test_rounded_products_are_close() -> None:
    w = layer_weights(2, 4, 9, 5, torch.float32)
    hop = replace(tiny.random_hop(1, COUNTS, 4, 7, events=1), neighbor_uses=NO_USES)
    hop = replace(hop, event_SK=torch.zeros_like(hop.event_SK))
    own_RD, mail_NX = torch.randn(7, 8), torch.randn(7, 9)
    exact = ops.mailbox_layer(own_RD, mail_NX, w, hop)
    with use_precision("bf16"):
        rounded = ops.mailbox_layer(own_RD, mail_NX, w, hop)
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.1, atol=0.1)


def test_no_seeds() -> None:
    w = layer_weights(2, 4, 9, 5, torch.float32)
    hop = replace(tiny.random_hop(1, [], 4, 7, events=1), neighbor_uses=NO_USES)
    out_SE = ops.mailbox_layer(torch.randn(7, 8, requires_grad=True), torch.randn(7, 9), w, hop)
    assert out_SE.shape == (0, 8)
    out_SE.sum().backward()
    assert w.merge_in.grad is not None
    assert not w.merge_in.grad.any()


def test_mails_changed_before_the_way_back_are_noticed() -> None:
    w = layer_weights(2, 4, 9, 5, torch.float32)
    hop = replace(tiny.random_hop(1, COUNTS, 4, 7, events=1), neighbor_uses=NO_USES)
    hop = replace(hop, event_SK=torch.zeros_like(hop.event_SK))
    mail_NX = torch.randn(7, 9)
    out_SE = ops.mailbox_layer(torch.randn(7, 8), mail_NX, w, hop)
    mail_NX[0] = 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out_SE.sum().backward()
