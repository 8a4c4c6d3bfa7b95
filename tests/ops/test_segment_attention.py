"""Attention over ragged neighbourhoods equals loops in float64, and `temporal_attention` where the
neighbourhoods fit a fixed fan-out. Segments of more than 64 edges are split into pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numba
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tiny
from tidegraph import ops
from tidegraph.batches import Hop
from tidegraph.errors import InputError
from tidegraph.ops import RaggedHop, ragged, use_backend

BACKENDS = ["cpu", "reference"]


def close(found: Tensor, expected: Tensor, relative: float, terms: float = 1.0) -> None:
    """Equal to `relative` of the largest expected entry (at least `terms`)."""
    found, expected = found.detach().double(), expected.detach().double()
    assert found.shape == expected.shape
    assert torch.isfinite(found).all()
    if expected.numel():
        scale = max(terms, float(expected.abs().max()))
        assert float((found - expected).abs().max()) <= relative * scale


def rows(
    table_RD: Tensor, hop: RaggedHop, features_EF: Tensor, weight_T: Tensor, bias_T: Tensor
) -> Tensor:
    """[M, W], every edge's [table row ; features ; time code]."""
    delta_M1 = hop.delta_M.to(weight_T.dtype).unsqueeze(1)
    return torch.cat(
        [
            table_RD[hop.neighbor_M.long()],
            features_EF[hop.event_M.long()].to(table_RD.dtype),
            torch.cos(weight_T * delta_M1 + bias_T),
        ],
        dim=1,
    )


def naive_attention(
    query_HSW: Tensor, table_RD: Tensor, hop: RaggedHop, features_EF: Tensor, weight_T: Tensor,
    bias_T: Tensor, keep_MH: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Seed by seed, head by head; the dtype is the query's."""
    nothing = (query_HSW.sum() + table_RD.sum() + weight_T.sum() + bias_T.sum()) * 0
    row_MW = rows(table_RD, hop, features_EF, weight_T, bias_T)
    out = torch.zeros_like(query_HSW) + nothing  # every input gets a gradient
    for h in range(query_HSW.shape[0]):
        for s in range(query_HSW.shape[1]):
            edges = slice(int(hop.indptr_S1[s]), int(hop.indptr_S1[s + 1]))
            x = row_MW[edges]
            a = torch.softmax(x @ query_HSW[h, s], 0)
            if keep_MH is not None:
                a = a * keep_MH[edges, h]
            out = out.index_put((torch.tensor(h), torch.tensor(s)), a @ x, accumulate=True)
    return out


class Case:
    """Random inputs; `sizes` are the numbers of neighbours."""

    def __init__(
        self, sizes: list[int], H: int = 2, D: int = 5, F: int = 3, T: int = 4, R: int = 7,
        dropout: bool = False, seed: int = 0, largest_delta: float = 10.0,
    ) -> None:  # fmt: skip
        draw = torch.Generator().manual_seed(seed)
        S, K, E = len(sizes), max([1, *sizes]), 6
        self.dense = tiny.random_hop(seed, sizes, K, R, E, largest_delta)
        self.hop = ragged(self.dense)
        M = sum(sizes)
        self.query = torch.randn(H, S, D + F + T, generator=draw, dtype=torch.float64)
        self.table = torch.randn(R, D, generator=draw, dtype=torch.float64)
        self.features = torch.randn(E, F, generator=draw)
        self.weight = (10.0 ** torch.linspace(0, -9, T, dtype=torch.float64)).float().double()
        self.bias = torch.randn(T, generator=draw).double()
        self.upstream = torch.randn(H, S, D + F + T, generator=draw, dtype=torch.float64)
        self.keep: Tensor | None = None
        if dropout:
            self.keep = (torch.rand(M, H, generator=draw) < 0.7).double() / 0.7

    def run(
        self, function: Callable[..., Tensor], dtype: torch.dtype = torch.float64,
        hop: RaggedHop | Hop | None = None, keep: Tensor | None = None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Output, then gradients by query, table, time weights and time bias."""
        leaves = [
            x.to(dtype).detach().requires_grad_()
            for x in (self.query, self.table, self.weight, self.bias)
        ]
        keep = self.keep if keep is None else keep
        keep = None if keep is None else keep.to(dtype)
        out = function(leaves[0], leaves[1], hop or self.hop, self.features, *leaves[2:], keep)
        (out * self.upstream.to(dtype)).sum().backward()
        grads = [leaf.grad for leaf in leaves]
        assert all(grad is not None for grad in grads)
        return (out, *grads)  # type: ignore[arg-type]

    def largest_term(self) -> float:
        """The largest product g . x times an entry of x or of a query, at least 1: gradients are
        sums of these. Where a softmax is all but 0 or 1 the sums cancel, and rounding is relative
        to the terms, not to what is left of them."""
        row_MW = rows(self.table, self.hop, self.features, self.weight, self.bias)
        seed_M = torch.repeat_interleave(torch.diff(self.hop.indptr_S1).long())
        value_HM = torch.einsum("hmw,mw->hm", self.upstream[:, seed_M], row_MW).abs()
        if not value_HM.numel():
            return 1.0
        entry = max(float(row_MW.abs().max()), float(self.query.abs().max()))
        return max(1.0, float(value_HM.max()) * entry)


PRECISIONS = [
    ("cpu", torch.float64, 1e-9),
    ("cpu", torch.float32, 1e-6),
    ("reference", torch.float64, 1e-9),
]


def check(case: Case, terms: float = 1.0) -> None:
    expected = case.run(naive_attention)
    # The slope by a frequency has the time difference as a factor: so have the terms of that sum.
    longest = max(1.0, float(case.hop.delta_M.abs().max())) if len(case.hop.delta_M) else 1.0
    scales = [terms, terms, terms, terms * longest, terms]
    for backend, dtype, limit in PRECISIONS:
        with use_backend(backend):
            results = case.run(ops.segment_attention, dtype)
            for found, want, scale in zip(results, expected, scales, strict=True):
                close(found, want, limit, scale)


@pytest.mark.parametrize("H", [1, 2, 3])
@pytest.mark.parametrize("F", [0, 3])
@pytest.mark.parametrize("dropout", [False, True])
def test_equals_loops(H: int, F: int, dropout: bool) -> None:
    check(Case([0, 1, 2, 70, 4, 0, 1], H=H, F=F, dropout=dropout))


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 4), st.integers(60, 140)), max_size=6),
    H=st.integers(1, 3),
    D=st.integers(1, 40),
    T=st.integers(1, 5),
    R=st.integers(1, 9),
    dropout=st.booleans(),
    seed=st.integers(0, 99),
)
def test_equals_loops_anywhere(
    sizes: list[int], H: int, D: int, T: int, R: int, dropout: bool, seed: int
) -> None:
    case = Case(sizes, H=H, D=D, T=T, R=R, dropout=dropout, seed=seed)
    check(case, case.largest_term())


@pytest.mark.parametrize("sizes", [[], [0], [0, 0, 0], [1], [1, 1]])
def test_none_or_one_neighbor(sizes: list[int]) -> None:
    case = Case(sizes)
    check(case)
    for dtype in (torch.float32, torch.float64):
        out, grad_query, *_ = case.run(ops.segment_attention, dtype)
        for s, n in enumerate(sizes):
            if n == 0:
                assert torch.equal(out[:, s], torch.zeros_like(out[:, s]))
            else:  # a softmax over one is 1, whatever the query
                assert torch.equal(out[0, s], out[1, s])
                assert torch.equal(out[0, s, :5], case.table[case.hop.neighbor_M[s]].to(dtype))
                assert torch.equal(grad_query[:, s], torch.zeros_like(grad_query[:, s]))


@pytest.mark.parametrize("sizes", [[4, 2], [200]])
def test_equal_scores_give_the_mean(sizes: list[int]) -> None:
    case = Case(sizes)
    case.query = torch.zeros_like(case.query)
    check(case, case.largest_term())
    out = case.run(ops.segment_attention)[0]
    close(out[0, 0, :5], case.table[case.hop.neighbor_M[: sizes[0]].long()].mean(0), 1e-12)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_huge_scores(size: float) -> None:
    case = Case([4, 3, 1, 0, 150], H=1)
    case.table[:, 0] = torch.tensor([1.0, -1.0, 1.0, 0.5, -0.5, 1.0, 0.0])
    case.query = torch.zeros_like(case.query)
    case.query[:, :, 0] = size
    check(case, case.largest_term())


@pytest.mark.parametrize("largest_delta", [1e6, 1e9])
def test_large_time_differences(largest_delta: float) -> None:
    case = Case([1, 1, 80, 3], largest_delta=largest_delta)
    expected = case.run(naive_attention)
    for backend in BACKENDS:
        with use_backend(backend):
            for dtype, limit in ((torch.float64, 5e-7), (torch.float32, 1e-6)):
                for found, want in zip(
                    case.run(ops.segment_attention, dtype), expected, strict=True
                ):
                    close(found, want, limit)


def test_one_huge_neighborhood_and_one_popular_row() -> None:
    """5,000 neighbours, most of them one node: seed and row are both split into pieces."""
    case = Case([2, 5000, 0, 1], D=40, R=5, dropout=True)
    case.dense.neighbor_SK[:, 100:] = torch.where(case.dense.neighbor_SK[:, 100:] > 0, 2, 2)
    flat = ragged(case.dense)
    case.hop = replace(flat, neighbor_uses=None)
    check(case, case.largest_term())


@pytest.mark.parametrize("dropout", [False, True])
def test_equals_temporal_attention_where_the_fan_out_is_fixed(dropout: bool) -> None:
    case = Case([i % 6 for i in range(67)], dropout=dropout)
    used_SK = torch.arange(5) < case.dense.count_S.unsqueeze(1)
    keep_SKH = None
    if case.keep is not None:
        keep_SKH = torch.zeros(67, 5, 2, dtype=torch.float64)
        keep_SKH[used_SK] = case.keep
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        dense = case.run(ops.temporal_attention, dtype, case.dense, keep_SKH)
        for found, want in zip(case.run(ops.segment_attention, dtype), dense, strict=True):
            close(found, want, limit)


def test_uses_of_a_ragged_hop_are_the_transpose_of_its_neighbors() -> None:
    case = Case([3, 0, 5, 1, 2])
    assert case.hop.neighbor_uses is not None
    want = tiny.uses_of(case.hop.neighbor_M.numpy(), 7)
    assert torch.equal(case.hop.neighbor_uses.indptr_R1, want.indptr_R1)
    assert torch.equal(case.hop.neighbor_uses.position_M, want.position_M)
    assert case.hop.indptr_S1.tolist() == [0, 3, 3, 8, 9, 11]
    without = case.run(ops.segment_attention, hop=replace(case.hop, neighbor_uses=None))
    for found, expected in zip(without, case.run(ops.segment_attention), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dropout", [False, True])
def test_gradients_against_finite_differences(backend: str, dropout: bool) -> None:
    case = Case([0, 1, 3, 66], D=2, F=1, T=2, R=3, dropout=dropout, largest_delta=2.0)
    leaves = [x.requires_grad_() for x in (case.query, case.table, case.weight, case.bias)]

    def function(query: Tensor, table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.segment_attention(query, table, case.hop, case.features, weight, bias, case.keep)

    with use_backend(backend):
        assert torch.autograd.gradcheck(function, leaves)


def test_a_neighborhood_does_not_depend_on_the_others() -> None:
    """Bit for bit: alone, or after others, short or split."""
    for n in (3, 64, 150):
        case = Case([5, n, 1])
        edges = slice(5, 5 + n)
        alone = RaggedHop(
            torch.tensor([0, n]), case.hop.neighbor_M[edges], case.hop.event_M[edges],
            case.hop.delta_M[edges],
        )  # fmt: skip
        together = case.run(ops.segment_attention, torch.float32)
        case.query, case.upstream = case.query[:, 1:2], case.upstream[:, 1:2]
        single = case.run(ops.segment_attention, torch.float32, alone)
        for found, want in zip(single[:2], together[:2], strict=True):
            assert torch.equal(found, want[:, 1:2])


def test_results_do_not_depend_on_threads() -> None:
    most, before = numba.config.NUMBA_NUM_THREADS, numba.get_num_threads()
    case = Case([i % 5 for i in range(131)] + [900, 1], dropout=True)
    try:
        numba.set_num_threads(1)
        expected = case.run(ops.segment_attention, torch.float32)
        for threads in range(1, most + 1):
            numba.set_num_threads(threads)
            for found, want in zip(
                case.run(ops.segment_attention, torch.float32), expected, strict=True
            ):
                assert torch.equal(found, want)
    finally:
        numba.set_num_threads(before)


def test_inputs_that_are_not_contiguous() -> None:
    case = Case([2, 80, 1])
    expected = case.run(naive_attention)[0]
    query = case.query.transpose(0, 1).contiguous().transpose(0, 1)
    table = case.table.t().contiguous().t()
    hop = replace(case.hop, delta_M=case.hop.delta_M.repeat_interleave(2)[::2])
    found = ops.segment_attention(query, table, hop, case.features, case.weight, case.bias)
    close(found, expected, 1e-9)


def test_a_fixed_time_code_and_a_table_without_gradient() -> None:
    case = Case([2, 80, 1])
    expected = case.run(naive_attention)
    query = case.query.clone().requires_grad_()
    out = ops.segment_attention(query, case.table, case.hop, case.features, case.weight, case.bias)
    (out * case.upstream).sum().backward()
    assert query.grad is not None
    close(query.grad, expected[1], 1e-9)


@pytest.mark.parametrize(("name", "row"), [("neighbor", 7), ("event", 6), ("neighbor", -1)])
def test_rows_outside_a_table_are_refused(name: str, row: int) -> None:
    case = Case([2, 1])
    getattr(case.hop, f"{name}_M")[1] = row
    with pytest.raises(InputError, match=f"{name} names row {row} of a table"):
        case.run(ops.segment_attention)


def test_shapes_that_do_not_fit_are_refused() -> None:
    case = Case([2, 1], dropout=True)
    arguments = (case.hop, case.features, case.weight, case.bias)
    with pytest.raises(InputError, match="queries of 1 seeds and width 12: expected 2 seeds"):
        ops.segment_attention(case.query[:, :1], case.table, *arguments)
    with pytest.raises(InputError, match=r"width 11: .*width 12 \(table 5, event features 3, time"):
        ops.segment_attention(case.query[:, :, :11], case.table, *arguments)
    assert case.keep is not None
    with pytest.raises(InputError, match=r"keep of shape \[2, 2\]: expected \[3, 2\]"):
        ops.segment_attention(case.query, case.table, *arguments, case.keep[:2])
