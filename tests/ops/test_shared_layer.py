"""The layer as scoring computes it: right, and each seed by itself to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tiny
from tidegraph import ops
from tidegraph._jit import kernel
from tidegraph.batches import Hop
from tidegraph.ops import LayerWeights, use_backend, use_scoring
from tidegraph.ops.layer import composed
from tidegraph.ops.shared_embedding import _sum_codes
from tidegraph.ops.shared_layer import shared_layer
from tidegraph.ops.tiles import address, keep

WIDTHS = [(2, 5, 3, 4, 3), (1, 6, 0, 5, 4), (3, 4, 2, 3, 2), (2, 40, 30, 33, 25)]  # H, D, F, T, d


def weights_of(widths: tuple[int, ...], dtype: torch.dtype = torch.float32) -> LayerWeights:
    H, D, F, T, d = widths
    W, E = D + F + T, H * d
    draw = torch.Generator().manual_seed(1)
    shapes = [
        (E, D),
        (E,),
        (E, T),
        (H, d, W),
        (H, W, d),
        (E, E + D),
        (E,),
        (E, E),
        (E,),
        (T,),
        (T,),
    ]
    return LayerWeights(
        *((torch.randn(*shape, generator=draw) * 0.5).to(dtype) for shape in shapes)
    )


def seeds_of(seed: int, count: int, different: int, whole: bool, odd: float = 0.0) -> Hop:
    """`count` seeds that share `different` neighbourhoods, as candidates of many events do.

    A share `odd` of them asks half a unit of time later.
    """
    rng = np.random.default_rng(seed)
    hop = tiny.random_hop(seed, rng.integers(0, 5, different).tolist(), 4, 7, 6, 10.0)
    if whole:
        hop = replace(hop, delta_SK=hop.delta_SK.ceil())
    pick = torch.from_numpy(rng.integers(0, different, count))
    later = torch.from_numpy(rng.integers(0, 9, count)).float().unsqueeze(1)
    later += torch.from_numpy(rng.random((count, 1)) < odd) * 0.5
    return replace(taken(hop, pick), delta_SK=hop.delta_SK[pick] + later)


def taken(hop: Hop, pick: Tensor) -> Hop:
    fields = ("self_S", "neighbor_SK", "event_SK", "delta_SK", "count_S")
    return replace(hop, **{name: getattr(hop, name)[pick] for name in fields})


def scored(widths: tuple[int, ...], hop: Hop, features: Tensor, table: Tensor) -> Tensor:
    with torch.inference_mode():
        return ops.attention_layer(table, weights_of(widths), hop, features)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize(("whole", "odd"), [(True, 0.0), (False, 0.0), (True, 0.2)])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_it_equals_single_operators(
    widths: tuple[int, ...], whole: bool, odd: float, kind: torch.dtype
) -> None:
    draw = torch.Generator().manual_seed(2)
    features = torch.randn(6, widths[2], generator=draw).to(kind)
    table = torch.randn(7, widths[1], generator=draw)
    hop = seeds_of(0, 150, 20, whole, odd)
    found = scored(widths, hop, features, table)
    trained = ops.attention_layer(table, weights_of(widths), hop, features)
    with use_backend("reference"), torch.no_grad():
        exact = weights_of(widths, torch.float64)
        expected = composed(table.double(), exact, hop, features.double(), 0.0, 0)
    scale = max(1.0, float(expected.abs().max()))
    # Wide rows round more, in any order of summing: so does the layer of training.
    rounding = float((trained - expected).abs().max())
    assert float((found - expected).abs().max()) < max(2e-6 * scale, 3 * rounding)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 100),
    count=st.integers(0, 130),
    different=st.integers(1, 30),
    whole=st.booleans(),
    odd=st.sampled_from([0.0, 0.2]),
    widths=st.sampled_from(WIDTHS),
)
def test_a_seed_does_not_know_the_seeds_beside_it(
    seed: int, count: int, different: int, whole: bool, odd: float, widths: tuple[int, ...]
) -> None:
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(6, widths[2], generator=draw)
    table = torch.randn(7, widths[1], generator=draw)
    hop = seeds_of(seed, count, different, whole, odd)
    together = scored(widths, hop, features, table)
    order = torch.randperm(count, generator=draw)
    for pick in (order, order[: count // 2], order[:1], order[1:2]):
        alone = scored(widths, taken(hop, pick), features, table)
        assert torch.equal(alone, together[pick])


def test_many_neighbourhoods_are_cut_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegraph.ops import shared_layer as module

    widths = WIDTHS[0]
    features, table = torch.randn(6, 3), torch.randn(7, 5)
    hop = seeds_of(3, 200, 50, True)
    whole = scored(widths, hop, features, table)
    monkeypatch.setattr(module, "_MOST_GROUPS", 7)
    assert torch.equal(scored(widths, hop, features, table), whole)


def error_of(weights: LayerWeights, hop: Hop) -> float:
    """The largest difference from single operators in float64."""
    table, features = torch.randn(7, 4), torch.randn(6, 0)
    with torch.inference_mode():
        found = shared_layer(table, weights, hop, features).result()
    double = LayerWeights(**{name: value.double() for name, value in vars(weights).items()})
    with use_backend("reference"), torch.no_grad():
        expected = composed(table.double(), double, hop, features.double(), 0.0, 0)
    return float((found - expected).abs().max())


@pytest.mark.parametrize("delta", [1e6, 2.0**24 - 2, 2.0**24 + 2, 3e9, 0.5, 123456.75])
def test_any_time_difference_is_exact_enough(delta: float) -> None:
    """On both sides of what float32 holds exactly; the weights span nine orders of magnitude."""
    widths, T = (1, 4, 0, 20, 6), 20
    weights = replace(weights_of(widths), time=10.0 ** torch.linspace(0, -9, T))
    hop = seeds_of(5, 40, 8, True)
    hop = replace(hop, delta_SK=hop.delta_SK + delta)
    assert error_of(weights, hop) < 5e-6


@pytest.mark.parametrize("delta", [(2.0**24 - 1, -2.0), (-3.0, 2.0**24 - 2)])
def test_differences_of_both_signs_are_no_gap_that_float32_holds(
    delta: tuple[float, float],
) -> None:
    weights = replace(weights_of((1, 4, 0, 20, 6)), time=torch.ones(20), time_bias=torch.zeros(20))
    hop = taken(tiny.random_hop(5, [2], 2, 7, 6, 10.0), torch.zeros(1, dtype=torch.int64))
    hop = replace(hop, delta_SK=torch.tensor([delta]))
    assert error_of(weights, hop) < 5e-6


def test_differences_may_have_any_strides() -> None:
    hop, features, table = seeds_of(0, 90, 12, True, 0.2), torch.randn(6, 3), torch.randn(7, 5)
    expected = scored(WIDTHS[0], hop, features, table)
    turned = replace(hop, delta_SK=hop.delta_SK.t().contiguous().t())
    assert torch.equal(scored(WIDTHS[0], turned, features, table), expected)


def test_a_query_may_do_without_time() -> None:
    hop, features, table = seeds_of(0, 90, 12, True), torch.randn(6, 3), torch.randn(7, 5)
    weights = weights_of(WIDTHS[0])
    weights = replace(weights, query_time=weights.query_time[:, :0])
    with torch.inference_mode():
        found = ops.attention_layer(table, weights, hop, features)
    trained = ops.attention_layer(table, weights, hop, features)
    assert float((found - trained).abs().max()) < 2e-5


@pytest.mark.parametrize("T", [1, 4, 17, 20, 32])
def test_sums_stay_within_their_memory(T: int) -> None:
    """Whole vectors are written: the last seed's end where the block's memory does."""
    heads, slots, seeds, X = 2, 3, 16, (T + 15) // 16 * 16
    out = np.full(seeds * heads * T + X - T + 64, 7, np.float32)
    draw = np.random.default_rng(T)
    weight_NQ = draw.random((seeds, heads * slots)).astype(np.float32)
    circle_NY = draw.random((seeds, 2 * X)).astype(np.float32)
    circle_KY = draw.random((slots, 2 * X)).astype(np.float32)
    _sum(weight_NQ, circle_NY, seeds, circle_KY, heads, slots, T, out)
    assert (out[-64:] == 7).all()
    w = weight_NQ.reshape(seeds, heads, slots).astype(float) @ circle_KY.astype(float)
    turn = circle_NY.astype(float)[:, None]
    wanted = (w[..., :X] * turn[..., :X] - w[..., X:] * turn[..., X:])[..., :T]
    found = out[: seeds * heads * T].reshape(seeds, heads, T)
    assert np.abs(found - wanted).max() < 1e-5


@kernel()
def _sum(weight_NQ, circle_NY, seeds, circle_KY, heads, slots, T, out):  # type: ignore[no-untyped-def]
    _sum_codes(weight_NQ, circle_NY, seeds, circle_KY, heads, slots, T, address(out))
    keep(out)


def test_garbage_in_padding_changes_nothing() -> None:
    hop = seeds_of(0, 60, 10, True)
    padding = torch.arange(4) >= hop.count_S.unsqueeze(1)
    spoiled: Any = replace(
        hop,
        delta_SK=hop.delta_SK.masked_fill(padding, float("nan")),
        neighbor_SK=hop.neighbor_SK.masked_fill(padding, 3),
        event_SK=hop.event_SK.masked_fill(padding, 2),
    )
    features, table = torch.randn(6, 3), torch.randn(7, 5)
    expected = scored(WIDTHS[0], hop, features, table)
    assert torch.equal(scored(WIDTHS[0], spoiled, features, table), expected)


def test_plain_scoring_is_the_layer_of_training() -> None:
    hop, features, table = seeds_of(0, 90, 12, True), torch.randn(6, 3), torch.randn(7, 5)
    weights = weights_of(WIDTHS[0])
    trained = ops.attention_layer(table, weights, hop, features)
    with use_scoring("plain"):
        plain = scored(WIDTHS[0], hop, features, table)
    assert torch.equal(plain, trained)
