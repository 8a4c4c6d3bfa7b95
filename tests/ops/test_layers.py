"""The fused layer, decoder and loss against the same in single operators and plain autograd."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import tiny
from tidegraph import ops
from tidegraph.batches import Uses
from tidegraph.errors import SettingError
from tidegraph.ops import LayerWeights, use_backend, use_precision
from tidegraph.ops.layer import composed
from tidegraph.ops.links import composed_scores

WIDTHS = [(2, 5, 3, 4, 3), (1, 6, 0, 5, 4), (3, 4, 2, 3, 2)]  # H, D, F, T, d


def uses_of(index: Tensor, rows: int) -> Uses:
    """The transpose of an index, by a stable sort."""
    order = torch.argsort(index.long(), stable=True).int()
    counts = torch.bincount(index.long(), minlength=rows)
    return Uses(torch.cat([torch.zeros(1), counts.cumsum(0)]).int(), order)


class Layer:
    """Random inputs of one attention layer; the table has seven rows."""

    def __init__(
        self, widths: tuple[int, ...], trainable: bool, seed: int = 0, seeds: int = 24
    ) -> None:
        H, D, F, T, d = widths
        draw = torch.Generator().manual_seed(seed)
        counts = [(0, 1, 2, 3, 4, 4, 0, 1)[s % 8] for s in range(seeds)]
        self.hop = tiny.random_hop(seed, counts, 4, 7, 6, 10.0)
        self.features = torch.randn(6, F, generator=draw)
        W, E = D + F + T, H * d
        shapes: dict[str, tuple[int, ...]] = {
            "query": (E, D), "query_bias": (E,), "query_time": (E, T),
            "key": (H, d, W), "value": (H, W, d),
            "merge_in": (E, E + D), "merge_in_bias": (E,),
            "merge_out": (E, E), "merge_out_bias": (E,), "time": (T,), "time_bias": (T,),
        }  # fmt: skip
        self.parameters = {
            name: torch.randn(*shape, generator=draw, dtype=torch.float64) * 0.5
            for name, shape in shapes.items()
        }
        self.trainable = trainable
        self.table = torch.randn(7, D, generator=draw, dtype=torch.float64)
        self.upstream = torch.randn(len(counts), E, generator=draw, dtype=torch.float64)

    def run(
        self, function: Any, dtype: torch.dtype, dropout: float, table_grad: bool = True
    ) -> dict[str, Tensor]:
        """The output and every gradient."""
        leaves = {
            name: value.to(dtype, copy=True).requires_grad_(
                self.trainable or not name.startswith("time")
            )
            for name, value in self.parameters.items()
        }
        table = self.table.to(dtype, copy=True).requires_grad_(table_grad)
        out = function(table, LayerWeights(**leaves), self.hop, self.features, dropout, 3 << 62)
        (out * self.upstream.to(dtype)).sum().backward()
        found = {"out": out.detach()}
        if table_grad:
            assert table.grad is not None
            found["table"] = table.grad
        for name, leaf in leaves.items():
            if leaf.requires_grad:
                assert leaf.grad is not None, name
                found[name] = leaf.grad
        return found


def close(found: dict[str, Tensor], expected: dict[str, Tensor], limit: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.isfinite(value).all()
        scale = max(1.0, float(expected[name].abs().max()))
        assert float((value.double() - expected[name]).abs().max()) <= limit * scale, name


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_the_fused_layer_equals_single_operators(
    widths: tuple[int, ...], trainable: bool, dropout: float
) -> None:
    layer = Layer(widths, trainable)
    with use_backend("reference"):
        expected = layer.run(composed, torch.float64, dropout)
    close(layer.run(ops.attention_layer, torch.float64, dropout), expected, 1e-9)
    close(layer.run(ops.attention_layer, torch.float32, dropout), expected, 2e-6)


def test_a_table_without_gradient() -> None:
    layer = Layer(WIDTHS[0], False)
    with use_backend("reference"):
        expected = layer.run(composed, torch.float64, 0.0, table_grad=False)
    close(layer.run(ops.attention_layer, torch.float64, 0.0, table_grad=False), expected, 1e-9)
    close(layer.run(ops.attention_layer, torch.float32, 0.0, table_grad=False), expected, 2e-6)


# Widths beyond a panel of the products, with and without a rest; seeds beyond a block.
@pytest.mark.parametrize("widths", [(2, 40, 21, 19, 25), (1, 17, 32, 15, 64), (3, 33, 0, 9, 11)])
@pytest.mark.parametrize("seeds", [1, 23, 25, 131])
def test_the_fused_layer_at_every_edge_of_its_blocks(widths: tuple[int, ...], seeds: int) -> None:
    layer = Layer(widths, True, seeds=seeds)
    with use_backend("reference"):
        expected = layer.run(composed, torch.float64, 0.3)
    close(layer.run(ops.attention_layer, torch.float32, 0.3), expected, 1e-5)


def test_layer_and_decoder_do_not_depend_on_threads() -> None:
    layer, links = Layer((2, 40, 21, 19, 25), True, seeds=131), Links(131, 2, D=50)
    before = numba.get_num_threads()
    found = []
    try:
        for threads in (1, numba.config.NUMBA_NUM_THREADS):
            numba.set_num_threads(threads)
            found.append(
                [layer.run(ops.attention_layer, torch.float32, 0.3)["out"],
                 layer.run(ops.attention_layer, torch.float32, 0.3)["table"],
                 *links.run(ops.link_scores, torch.float32).values()]
            )  # fmt: skip
    finally:
        numba.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_gradcheck_of_the_layer() -> None:
    layer = Layer(WIDTHS[0], True)
    leaves = [value.clone().requires_grad_() for value in layer.parameters.values()]
    table = layer.table.clone().requires_grad_()

    def run(table: Tensor, *parameters: Tensor) -> Tensor:
        return ops.attention_layer(
            table, LayerWeights(*parameters), layer.hop, layer.features, 0.3, 5
        )

    assert torch.autograd.gradcheck(run, (table, *leaves), eps=1e-6, atol=1e-6)


def test_garbage_in_padding_changes_nothing() -> None:
    layer, spoiled = Layer(WIDTHS[0], True), Layer(WIDTHS[0], True)
    padding = torch.arange(4) >= spoiled.hop.count_S.unsqueeze(1)
    spoiled.hop.delta_SK[padding] = float("nan")
    expected = layer.run(ops.attention_layer, torch.float32, 0.2)
    found = spoiled.run(ops.attention_layer, torch.float32, 0.2)
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


# ---------------------------------------------------------------- links


class Links:
    """Random inputs of the decoder: B events, C negatives, seeds used several times."""

    def __init__(self, B: int, C: int, D: int = 6) -> None:
        draw = torch.Generator().manual_seed(B + 100 * C)
        seeds = 5
        self.root = torch.randint(seeds, (B * (2 + C),), generator=draw).int()
        self.uses, self.B, self.C = uses_of(self.root, seeds), B, C
        shapes = [(seeds, D), (D, D), (D,), (D, D), (1, D), (1,)]
        self.tensors = [torch.randn(*s, generator=draw, dtype=torch.float64) for s in shapes]
        self.upstream = torch.randn(B, 1 + C, generator=draw, dtype=torch.float64)

    def run(self, function: Any, dtype: torch.dtype) -> dict[str, Tensor]:
        leaves = [tensor.to(dtype, copy=True).requires_grad_() for tensor in self.tensors]
        out = function(*leaves, self.root, self.uses, self.B)
        assert out.shape == (self.B, 1 + self.C)
        (out * self.upstream.to(dtype)).sum().backward()
        grads = {str(n): leaf.grad for n, leaf in enumerate(leaves)}
        return {"out": out.detach(), **grads}  # type: ignore[dict-item]


def naive_scores(
    seed: Tensor, source: Tensor, bias: Tensor, target: Tensor, output: Tensor, last: Tensor,
    root: Tensor, uses: Uses, B: int,
) -> Tensor:  # fmt: skip
    """One pair at a time."""
    C = len(root) // B - 2
    rows = []
    for b in range(B):
        candidates = [B + b] + [2 * B + b * C + c for c in range(C)]
        for x in candidates:
            hidden = source @ seed[root[b]] + bias + target @ seed[root[x]]
            rows.append(output[0] @ torch.relu(hidden) + last[0])
    return torch.stack(rows).view(B, 1 + C)


@pytest.mark.parametrize(("B", "C"), [(1, 1), (5, 1), (60, 1), (49, 3), (3, 0), (17, 12)])
def test_link_scores_equal_one_pair_at_a_time(B: int, C: int) -> None:
    links = Links(B, C)
    expected = links.run(naive_scores, torch.float64)
    for function in (ops.link_scores, composed_scores):
        close(links.run(function, torch.float64), expected, 1e-10)
        close(links.run(function, torch.float32), expected, 2e-6)


@pytest.mark.parametrize(("B", "C"), [(1, 1), (40, 1), (17, 12), (3, 0)])
def test_without_gradients_scores_are_the_same_and_ties_stay_ties(B: int, C: int) -> None:
    links = Links(B, C, D=100)
    tensors = [tensor.float() for tensor in links.tensors]
    with torch.no_grad():
        found = ops.link_scores(*tensors, links.root, links.uses, links.B)
        expected = naive_scores(*links.tensors, links.root, links.uses, links.B)
    close({"": found}, {"": expected}, 2e-6)
    seen: dict[tuple[int, int], float] = {}
    for b in range(B):
        for x, row in enumerate([B + b] + [2 * B + b * C + c for c in range(C)]):
            pair = int(links.root[b]), int(links.root[row])
            assert seen.setdefault(pair, float(found[b, x])) == float(found[b, x])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_deferred_embeddings_score_as_their_product_does(mode: Any) -> None:
    links = Links(17, 12, D=40)
    row, *parameters = [tensor.float() for tensor in links.tensors]
    draw = torch.Generator().manual_seed(3)
    waiting = ops.Deferred(row, *(torch.randn(*s, generator=draw) for s in ((40, 40), (40,))))
    with mode():
        found = ops.link_scores(waiting, *parameters, links.root, links.uses, links.B)
        made = waiting.row_SJ.double() @ waiting.weight_DJ.double().t() + waiting.bias_D
        double = [tensor.double() for tensor in parameters]
        expected = naive_scores(made, *double, links.root, links.uses, links.B)
    scale = float(expected.abs().max())
    close({"": found / scale}, {"": expected / scale}, 2e-6)


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_link_loss_is_binary_cross_entropy(scale: float, backend: str) -> None:
    logit = (torch.randn(9, 4, generator=torch.Generator().manual_seed(1)) * scale).double()
    one, other = logit.clone().requires_grad_(), logit.clone().requires_grad_()
    label = torch.zeros(9, 4, dtype=torch.float64)
    label[:, 0] = 1
    expected = binary_cross_entropy_with_logits(one, label)
    with use_backend(backend):
        found = ops.link_loss(other)
    (3 * expected).backward()
    (3 * found).backward()
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-9)
    assert one.grad is not None
    assert other.grad is not None
    np.testing.assert_allclose(other.grad.numpy(), one.grad.numpy(), rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------- precision


def test_bf16_rounds_the_factors_and_nothing_else() -> None:
    from tidegraph.ops.products import product

    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(50, 70, generator=draw), torch.randn(70, 30, generator=draw)
    bias = torch.randn(30, generator=draw)
    with use_precision("bf16"):
        found = product(a, b, bias)
    expected = a.bfloat16().double() @ b.bfloat16().double() + bias.double()
    assert float((found - expected).abs().max()) < 1e-5
    assert float((found - (a @ b + bias)).abs().max()) > 1e-3  # it did round
    assert torch.equal(product(a, b, bias), torch.addmm(bias, a, b))  # and stopped rounding


def test_bf16_is_close_to_fp32_forward_and_backward() -> None:
    layer = Layer(WIDTHS[0], True)
    plain = layer.run(ops.attention_layer, torch.float32, 0.0)
    with use_precision("bf16"):
        rounded = layer.run(ops.attention_layer, torch.float32, 0.0)
    for name, value in rounded.items():
        scale = float(plain[name].abs().max())
        assert float((value - plain[name]).abs().max()) < 0.1 * scale, name
    assert not torch.equal(rounded["out"], plain["out"])


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(SettingError, match="fp8"), use_precision("fp8"):
        pass
