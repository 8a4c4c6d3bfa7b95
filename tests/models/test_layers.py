"""Shared layers equal their equations: nothing folded, one seed and one head at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import tiny
from tidegraph.batches import Hop, Mail
from tidegraph.errors import SettingError
from tidegraph.models.layers import AttentionLayer, MemoryCell, TimeCode
from tidegraph.ops import use_backend


def test_time_code_frequencies() -> None:
    """w_j = 10^(-9 (j-1) / (T-1)), b = 0."""
    code = TimeCode(100)
    expected = [10.0 ** (-9 * j / 99) for j in range(100)]
    assert np.allclose(code.weight.detach().numpy(), expected, rtol=1e-6)
    assert not code.bias.any()
    assert torch.equal(code(torch.zeros(3)), torch.ones(3, 100))
    assert len(TimeCode(1).weight) == 1


def test_time_code_of_large_differences_equals_float64() -> None:
    code = TimeCode(100)
    delta = torch.tensor([0.0, 1.0, 1.6e9, 3.1e9])
    with torch.no_grad():
        found = code(delta).double().numpy()
        expected = np.cos(np.outer(delta.double().numpy(), code.weight.double().numpy()))
    assert np.abs(found - expected).max() < 1e-7


def test_fixed_time_code_is_not_trained() -> None:
    assert not any(p.requires_grad for p in TimeCode(4, trainable=False).parameters())
    assert all(p.requires_grad for p in TimeCode(4).parameters())


def naive_layer(
    layer: AttentionLayer, table_RD: Tensor, hop: Hop, features_EF: Tensor, code: TimeCode,
    key_bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """q = W_q [h ; Phi(0)] + b; k, v = W_k x (+ a key bias), W_v x; z = W_2 relu(W_1 [r ; h])."""
    heads, width, _ = layer.key.shape
    w_query = torch.cat([layer.query.weight, layer.query_time], dim=1)
    out = []
    for s in range(len(hop.self_S)):
        h = table_RD[int(hop.self_S[s])]
        at_zero = torch.cos(code.weight * 0.0 + code.bias)
        q = (w_query @ torch.cat([h, at_zero]) + layer.query.bias).view(heads, width)
        x = [
            torch.cat(
                [
                    table_RD[int(hop.neighbor_SK[s, i])],
                    features_EF[int(hop.event_SK[s, i])].to(table_RD.dtype),
                    torch.cos(code.weight * float(hop.delta_SK[s, i]) + code.bias),
                ]
            )
            for i in range(int(hop.count_S[s]))
        ]
        r = []
        for head in range(heads):
            if not x:
                r.append(torch.zeros(width, dtype=table_RD.dtype))
                continue
            keys = [layer.key[head] @ x_i for x_i in x]
            if key_bias is not None:
                keys = [k + key_bias[head] for k in keys]
            logits = torch.stack([q[head] @ k / math.sqrt(width) for k in keys])
            values = torch.stack([x_i @ layer.value[head] for x_i in x])
            r.append(torch.softmax(logits, 0) @ values)
        hidden = torch.relu(layer.merge_in(torch.cat([*r, h])))
        out.append(layer.merge_out(hidden))
    return torch.stack(out)


def make_layer(heads: int = 2, dropout: float = 0.0) -> tuple[AttentionLayer, TimeCode]:
    torch.manual_seed(0)
    layer = AttentionLayer(5, 3, 4, 12, heads, dropout).double()
    code = TimeCode(4).double()
    with torch.no_grad():
        code.bias.uniform_(-1, 1)
    return layer, code


@pytest.mark.parametrize("heads", [1, 2, 3, 4])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_attention_layer_equals_the_unfolded_equations(heads: int, backend: str) -> None:
    layer, code = make_layer(heads)
    hop = tiny.random_hop(1, [0, 1, 3, 4, 2, 0, 4], 4, rows=7, events=6)
    features = torch.randn(6, 3)
    upstream = torch.randn(7, 12, dtype=torch.float64)
    table = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    parameters = [table, *layer.parameters(), *code.parameters()]
    results = []
    with use_backend(backend):
        out = layer(table, hop, features, code, key=0)
        results.append((out, torch.autograd.grad((out * upstream).sum(), parameters)))
    out = naive_layer(layer, table, hop, features, code)
    results.append((out, torch.autograd.grad((out * upstream).sum(), parameters)))
    (found, found_grads), (expected, expected_grads) = results
    assert torch.allclose(found, expected, rtol=0, atol=1e-9)
    for one, other in zip(found_grads, expected_grads, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-8)


def test_a_key_bias_would_cancel() -> None:
    """Why the layer has none: softmax does not see what all keys share."""
    layer, code = make_layer()
    hop = tiny.random_hop(2, [4, 2, 1], 4, rows=7, events=6)
    table, features = torch.randn(7, 5, dtype=torch.float64), torch.randn(6, 3)
    bias = torch.randn(2, 6, dtype=torch.float64)
    with torch.no_grad():
        without = naive_layer(layer, table, hop, features, code)
        assert torch.allclose(without, naive_layer(layer, table, hop, features, code, bias))


def test_order_of_neighbors_does_not_matter() -> None:
    layer, code = make_layer()
    hop = tiny.random_hop(3, [4], 4, rows=7, events=6)
    order = [2, 0, 3, 1]
    turned = Hop(
        self_S=hop.self_S,
        neighbor_SK=hop.neighbor_SK[:, order].contiguous(),
        event_SK=hop.event_SK[:, order].contiguous(),
        delta_SK=hop.delta_SK[:, order].contiguous(),
        count_S=hop.count_S,
        self_uses=hop.self_uses,
        neighbor_uses=tiny.uses_of(hop.neighbor_SK[:, order].numpy(), 7),
    )
    table, features = torch.randn(7, 5, dtype=torch.float64), torch.randn(6, 3)
    with torch.no_grad():
        found = [layer(table, h, features, code, key=0) for h in (hop, turned)]
    assert torch.allclose(found[0], found[1], rtol=0, atol=1e-12)


def test_dropout_uses_the_key_and_only_in_training() -> None:
    layer, code = make_layer(dropout=0.5)
    hop = tiny.random_hop(4, [4, 3, 2, 4], 4, rows=7, events=6)
    table, features = torch.randn(7, 5, dtype=torch.float64), torch.randn(6, 3)
    with torch.no_grad():
        layer.train()
        one, again, other = (layer(table, hop, features, code, key=k) for k in (8, 8, 10))
        layer.eval()
        evaluated = layer(table, hop, features, code, key=8)
        assert torch.allclose(evaluated, naive_layer(layer, table, hop, features, code))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    assert not torch.allclose(one, evaluated)


def test_heads_must_divide_the_embedding() -> None:
    with pytest.raises(SettingError, match="embedding=10 is not divisible by heads=3"):
        AttentionLayer(4, 2, 3, 10, 3, 0.0)


def test_unknown_cell_is_refused() -> None:
    with pytest.raises(SettingError, match=r"'lstm'.*'gru' or 'rnn'"):
        MemoryCell("lstm", 4, 2, 3)


@pytest.mark.parametrize(("cell", "kind"), [("gru", torch.nn.GRUCell), ("rnn", torch.nn.RNNCell)])
def test_memory_cell_is_pytorchs_cell_on_the_concatenated_message(
    cell: str, kind: type[torch.nn.GRUCell] | type[torch.nn.RNNCell]
) -> None:
    torch.manual_seed(0)
    own = MemoryCell(cell, 4, 2, 3)
    code = TimeCode(3)
    other = kind(4 + 4 + 2 + 3, 4)
    other.load_state_dict(own.state_dict())  # the same names and shapes
    memory, partner, features = torch.randn(3, 4), torch.randn(3, 4), torch.randn(5, 2)
    mail = Mail(
        row_M=torch.tensor([0, 2], dtype=torch.int32),
        indptr_M1=torch.tensor([0, 1, 2], dtype=torch.int32),
        event_L=torch.tensor([4, 0], dtype=torch.int32),
        delta_L=torch.tensor([3.0, 0.0]),
    )
    with torch.no_grad():
        found = own(memory, partner, mail, features, code)
        message = torch.cat(
            [memory[[0, 2]], partner[[0, 2]], features[[4, 0]], code(mail.delta_L)], dim=1
        )
        expected = other(message, memory[[0, 2]])
    assert torch.allclose(found[[0, 2]], expected, rtol=0, atol=1e-6)
    assert torch.equal(found[1], memory[1])
