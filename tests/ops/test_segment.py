"""Softmax, weighted sum and mean over segments equal plain loops in float64, and so do gradients.

edges      0 1 2 | | 3 | 4 5 ... 73 |
segment      0    1  2       3            segments 0..3; number 1 is empty, number 3 is split
"""

from __future__ import annotations

import copy
import doctest
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tidegraph.ops.segment
import tiny
from tidegraph import ops
from tidegraph.errors import InputError
from tidegraph.ops import use_backend

BACKENDS = ["cpu", "reference"]
PICTURE = [3, 0, 1, 70]


def close(found: Tensor, expected: Tensor, relative: float, terms: float = 1.0) -> None:
    """Equal to `relative` of the largest expected entry (at least `terms`)."""
    found, expected = found.detach().double(), expected.detach().double()
    assert found.shape == expected.shape
    assert torch.isfinite(found).all()
    if expected.numel():
        scale = max(terms, float(expected.abs().max()))
        assert float((found - expected).abs().max()) <= relative * scale


def naive_softmax(score_MH: Tensor, indptr_S1: Tensor) -> Tensor:
    parts = [
        torch.softmax(score_MH[first:last], 0)
        for first, last in zip(indptr_S1[:-1].tolist(), indptr_S1[1:].tolist(), strict=True)
    ]
    return torch.cat([score_MH[:0], *parts])


def naive_sum(weight_MH: Tensor, table: Tensor, column_M: Tensor, indptr_S1: Tensor) -> Tensor:
    H = weight_MH.shape[1]
    out = []
    for first, last in zip(indptr_S1[:-1].tolist(), indptr_S1[1:].tolist(), strict=True):
        for h in range(H):
            total = torch.zeros(table.shape[-1], dtype=table.dtype)
            for m in range(first, last):
                row = table[int(column_M[m])]
                total = total + weight_MH[m, h] * (row if table.ndim == 2 else row[h])
            out.append(total)
    nothing = (weight_MH.sum() + table.sum()) * 0  # every input gets a gradient
    if not out:
        return table.new_zeros(0, H, table.shape[-1]) + nothing
    return torch.stack(out).view(-1, H, table.shape[-1]) + nothing


class Case:
    """Random inputs over segments of the given sizes."""

    def __init__(
        self, sizes: list[int], H: int = 2, d: int = 5, R: int = 7, shared: bool = False,
        seed: int = 0,
    ) -> None:  # fmt: skip
        draw = torch.Generator().manual_seed(seed)
        M = sum(sizes)
        self.indptr = torch.tensor(np.cumsum([0, *sizes]), dtype=torch.int32)
        self.score = torch.randn(M, H, generator=draw, dtype=torch.float64)
        shape = (R, d) if shared else (R, H, d)
        self.table = torch.randn(*shape, generator=draw, dtype=torch.float64)
        self.column = torch.randint(0, R, (M,), generator=draw, dtype=torch.int32)
        self.uses = tiny.uses_of(self.column.numpy(), R)
        self.up_M = torch.randn(M, H, generator=draw, dtype=torch.float64)
        self.up_S = torch.randn(len(sizes), H, d, generator=draw, dtype=torch.float64)

    def softmax(
        self, function: Callable[..., Tensor], dtype: torch.dtype = torch.float64
    ) -> tuple[Tensor, ...]:
        """Weights, then the gradient of the scores."""
        score = self.score.to(dtype).detach().clone().requires_grad_()
        out = function(score, self.indptr)
        (out * self.up_M.to(dtype)).sum().backward()
        assert score.grad is not None
        return out, score.grad

    def sum(
        self, function: Callable[..., Tensor], dtype: torch.dtype = torch.float64, *uses: Any
    ) -> tuple[Tensor, ...]:
        """Sums, then the gradients of weights and table."""
        leaves = [x.to(dtype).detach().clone().requires_grad_() for x in (self.score, self.table)]
        out = function(*leaves, self.column, self.indptr, *uses)
        (out * self.up_S.to(dtype)).sum().backward()
        assert all(leaf.grad is not None for leaf in leaves)
        return (out, *(leaf.grad for leaf in leaves))  # type: ignore[arg-type]

    def sizes(self) -> list[float]:
        """The largest sum of absolute terms in the output and in each gradient, at least 1."""
        absolute = copy.copy(self)
        absolute.score, absolute.table = self.score.abs(), self.table.abs()
        absolute.up_S = self.up_S.abs()
        return [max([1.0, *value.flatten().tolist()]) for value in absolute.sum(naive_sum)]


def check(case: Case) -> None:
    """A sum's rounding is relative to what is added up, not to what is left of it."""
    softmax, total, sizes = case.softmax(naive_softmax), case.sum(naive_sum), case.sizes()
    for backend in BACKENDS:
        with use_backend(backend):
            for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-6)):
                for found, want in zip(case.softmax(ops.edge_softmax, dtype), softmax, strict=True):
                    close(found, want, limit)
                for uses in ((), (case.uses,)):
                    found = case.sum(ops.segment_sum, dtype, *uses)
                    for value, want, terms in zip(found, total, sizes, strict=True):
                        close(value, want, limit, terms)


@pytest.mark.parametrize("H", [1, 2, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_equals_loops(H: int, shared: bool) -> None:
    check(Case(PICTURE, H=H, shared=shared))


@pytest.mark.parametrize(
    "sizes", [[], [0], [0, 0, 0], [1], [1, 1], [64], [65], [63, 64, 65, 0, 128, 129, 0]]
)
def test_none_one_and_borders_of_pieces(sizes: list[int]) -> None:
    check(Case(sizes))


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 4), st.integers(60, 140)), max_size=6),
    H=st.integers(1, 3),
    d=st.integers(1, 9),
    R=st.integers(1, 9),
    shared=st.booleans(),
    seed=st.integers(0, 99),
)
def test_equals_loops_anywhere(
    sizes: list[int], H: int, d: int, R: int, shared: bool, seed: int
) -> None:
    check(Case(sizes, H=H, d=d, R=R, shared=shared, seed=seed))


def test_one_huge_segment_and_one_huge_table_row() -> None:
    """20,000 edges of one segment among small ones, three in four of which name one row."""
    case = Case([2, 20_000, 0, 1], H=2, d=33, R=5)
    case.column[torch.arange(20_003) % 4 != 0] = 3
    case.score /= 20_000  # keeps the sums near 1, where the limit is absolute
    weight, table = (x.clone().requires_grad_() for x in (case.score, case.table))
    dense = torch.zeros(4, 20_003, dtype=torch.float64)
    for s, (first, last) in enumerate(((0, 2), (2, 20_002), (20_002, 20_002), (20_002, 20_003))):
        dense[s, first:last] = 1
    expected = torch.einsum("sm,mh,mhd->shd", dense, weight, table[case.column.long()])
    (expected * case.up_S).sum().backward()
    wanted = (expected, weight.grad, table.grad)
    softmax = case.softmax(naive_softmax)
    for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-6)):
        for found, want in zip(case.sum(ops.segment_sum, dtype), wanted, strict=True):
            assert want is not None
            close(found, want, limit)
        for found, want in zip(case.softmax(ops.edge_softmax, dtype), softmax, strict=True):
            close(found, want, limit)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_scores_share_equally(backend: str, dtype: torch.dtype) -> None:
    case = Case(PICTURE)
    case.score[:] = 3.25
    with use_backend(backend):
        found = case.softmax(ops.edge_softmax, dtype)[0]
    shares = torch.tensor([1 / n for n in PICTURE for _ in range(n)], dtype=torch.float64)
    close(found, shares.unsqueeze(1).expand(-1, 2), 1e-7)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_huge_scores(size: float) -> None:
    """A naive exp would overflow, or sum to zero; also where pieces differ by 2e4."""
    case = Case([3, 1, 0, 200])
    case.score = size * torch.sign(case.score)
    case.score[10:70] = -1e4
    case.score[80:] *= 0.5
    expected = case.softmax(naive_softmax)
    for backend in BACKENDS:
        with use_backend(backend):
            for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-6)):
                for found, want in zip(
                    case.softmax(ops.edge_softmax, dtype), expected, strict=True
                ):
                    close(found, want, limit)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shared", [False, True])
def test_gradients_against_finite_differences(backend: str, shared: bool) -> None:
    case = Case(PICTURE, d=2, R=4, shared=shared)
    score, table = case.score.requires_grad_(), case.table.requires_grad_()

    def softmax(x: Tensor) -> Tensor:
        return ops.edge_softmax(x, case.indptr)

    def total(x: Tensor, y: Tensor) -> Tensor:
        return ops.segment_sum(x, y, case.column, case.indptr, case.uses)

    with use_backend(backend):
        assert torch.autograd.gradcheck(softmax, [score])
        assert torch.autograd.gradcheck(total, [score, table])


@pytest.mark.parametrize("backend", BACKENDS)
def test_mean_equals_loops_and_its_gradient_finite_differences(backend: str) -> None:
    case = Case(PICTURE, shared=True)
    with use_backend(backend):
        found = ops.segment_mean(case.table, case.column, case.indptr, case.uses)
        assert torch.autograd.gradcheck(
            lambda x: ops.segment_mean(x, case.column, case.indptr), [case.table.requires_grad_()]
        )
    parts = torch.split(case.table[case.column.long()], PICTURE)
    close(found, torch.stack([part.sum(0) / max(1, len(part)) for part in parts]), 1e-12)


def test_a_segment_does_not_depend_on_the_others() -> None:
    """Bit for bit, wherever it stands in the list."""
    case = Case([2, 150, 3, 150], shared=True)
    for tensor in (case.score, case.column):
        tensor[155:] = tensor[2:152]
    case.up_M[155:] = case.up_M[2:152]
    case.up_S[3] = case.up_S[1]
    for dtype in (torch.float32, torch.float64):
        weight, grad_score = case.softmax(ops.edge_softmax, dtype)
        out, grad_weight, _ = case.sum(ops.segment_sum, dtype)
        assert torch.equal(out[1], out[3])
        for value in (weight, grad_score, grad_weight):
            assert torch.equal(value[2:152], value[155:])


def test_results_do_not_depend_on_threads() -> None:
    most, before = numba.config.NUMBA_NUM_THREADS, numba.get_num_threads()
    case = Case([i % 5 for i in range(131)] + [5000, 1], d=33)

    def everything() -> list[Tensor]:
        return [
            *case.softmax(ops.edge_softmax, torch.float32),
            *case.sum(ops.segment_sum, torch.float32),
        ]

    try:
        numba.set_num_threads(1)
        expected = everything()
        for threads in range(1, most + 1):
            numba.set_num_threads(threads)
            for found, want in zip(everything(), expected, strict=True):
                assert torch.equal(found, want)
    finally:
        numba.set_num_threads(before)


def test_a_row_that_no_edge_names_has_no_gradient() -> None:
    case = Case(PICTURE)
    case.column[case.column == 3] = 4
    for found in (case.sum(ops.segment_sum, torch.float32)[2],):
        assert torch.equal(found[3], torch.zeros(2, 5))


def test_inputs_that_are_not_contiguous_and_borders_of_int64() -> None:
    case = Case(PICTURE)
    softmax, total = case.softmax(naive_softmax), case.sum(naive_sum)
    case.score = case.score.t().contiguous().t()
    case.table = case.table.transpose(0, 2).contiguous().transpose(0, 2)
    case.up_M = case.up_M.t().contiguous().t()
    case.column = case.column.long().repeat_interleave(2)[::2]
    case.indptr = case.indptr.long()
    for found, want in zip(
        case.softmax(ops.edge_softmax) + case.sum(ops.segment_sum), softmax + total, strict=True
    ):
        close(found, want, 1e-9)


def test_only_the_gradients_that_are_asked_for() -> None:
    case = Case(PICTURE)
    expected = case.sum(naive_sum)
    weight = case.score.clone().requires_grad_()
    out = ops.segment_sum(weight, case.table, case.column, case.indptr)
    (out * case.up_S).sum().backward()
    assert weight.grad is not None
    close(weight.grad, expected[1], 1e-12)
    table = case.table.clone().requires_grad_()
    out = ops.segment_sum(case.score, table, case.column, case.indptr)
    (out * case.up_S).sum().backward()
    assert table.grad is not None
    close(table.grad, expected[2], 1e-12)


def test_half_precision_takes_the_plain_version() -> None:
    case = Case(PICTURE)
    found = ops.edge_softmax(case.score.bfloat16(), case.indptr)
    assert found.dtype == torch.bfloat16
    close(found, naive_softmax(case.score, case.indptr), 2e-2)


@pytest.mark.parametrize("column", [7, -1])
def test_a_column_outside_the_table_is_refused(column: int) -> None:
    case = Case(PICTURE)
    case.column[5] = column
    with pytest.raises(InputError, match=f"row {column} of a table of 7 rows"):
        ops.segment_sum(case.score, case.table, case.column, case.indptr)


def test_wrong_shapes_are_refused() -> None:
    case = Case(PICTURE, H=2)
    with pytest.raises(InputError, match=r"column of shape \[3\].*\[74\]"):
        ops.segment_sum(case.score, case.table, case.column[:3], case.indptr)
    with pytest.raises(InputError, match=r"weights of 2 heads.*\[R, 2, d\] or \[R, D\]"):
        ops.segment_sum(case.score, case.table.repeat(1, 2, 1), case.column, case.indptr)
    with pytest.raises(InputError, match=r"indptr\[4\] = 74.*edges, 73"):
        ops.edge_softmax(case.score[1:], case.indptr)
    for operator in (ops.edge_softmax, lambda x, y: ops.segment_sum(x, case.table, case.column, y)):
        with pytest.raises(InputError, match=r"of shape \[74\]: expected \[M, H\]"):
            operator(case.score[:, 0], case.indptr)
    weight = case.score.clone().requires_grad_()
    table = case.table.clone().requires_grad_()
    out = ops.segment_sum(weight, table, case.column, case.indptr, tiny.uses_of(np.zeros(3), 7))
    with pytest.raises(InputError, match="uses of 3 edges and 7 rows"):
        out.sum().backward()


def test_transpose_equals_brute_force_and_refuses_what_is_outside() -> None:
    index = np.random.default_rng(0).integers(-1, 9, 50)
    found, want = ops.transpose(torch.from_numpy(index), 9), tiny.uses_of(index, 9)
    assert torch.equal(found.indptr_R1, want.indptr_R1)
    assert torch.equal(found.position_M, want.position_M)
    with pytest.raises(InputError, match="index 8 in a table of 8 rows"):
        ops.transpose(torch.from_numpy(index), 8)


def test_examples_in_the_documentation() -> None:
    result = doctest.testmod(tidegraph.ops.segment)
    assert result.attempted > 10
    assert result.failed == 0
