"""The fast operators equal plain loops in float64, forward and backward, and so does the reference.

Every expected value here comes from loops written from the equations: for a seed with neighbours
x_i = [table row ; event features ; cos(w delta_i + b)], softmax weights a_i of query . x_i, the
result is sum a_i x_i; a memory update is PyTorch's cell on the concatenated message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numba
import numpy as np
import pytest
import torch
from torch import Tensor

import tiny
from tidegraph import ops
from tidegraph.batches import Hop, Mail
from tidegraph.errors import SettingError
from tidegraph.ops import use_backend

BACKENDS = ["cpu", "reference"]


def close(found: Tensor, expected: Tensor, relative: float) -> None:
    """Equal to `relative` of the largest expected entry (at least 1)."""
    found, expected = found.detach().double(), expected.detach().double()
    assert found.shape == expected.shape
    assert torch.isfinite(found).all()
    if expected.numel():
        scale = max(1.0, float(expected.abs().max()))
        assert float((found - expected).abs().max()) <= relative * scale


# ---------------------------------------------------------------- attention


def naive_attention(
    query_HSW: Tensor,
    table_RD: Tensor,
    hop: Hop,
    features_EF: Tensor,
    weight_T: Tensor,
    bias_T: Tensor,
    keep_SKH: Tensor | None = None,
) -> Tensor:
    """Seed by seed, head by head, over the used slots only; the dtype is the query's."""
    H, S, _ = query_HSW.shape
    rows: list[Tensor] = []
    nothing = (query_HSW.sum() + table_RD.sum() + weight_T.sum() + bias_T.sum()) * 0
    if not S:
        return query_HSW * 0 + nothing
    for h in range(H):
        for s in range(S):
            n = int(hop.count_S[s])
            if n == 0:
                rows.append(torch.zeros_like(query_HSW[h, s]))
                continue
            x = [
                torch.cat(
                    [
                        table_RD[int(hop.neighbor_SK[s, i])],
                        features_EF[int(hop.event_SK[s, i])].to(table_RD.dtype),
                        torch.cos(weight_T * float(hop.delta_SK[s, i]) + bias_T),
                    ]
                )
                for i in range(n)
            ]
            a = torch.softmax(torch.stack([query_HSW[h, s] @ x_i for x_i in x]), 0)
            if keep_SKH is not None:
                a = a * keep_SKH[s, :n, h]
            rows.append(sum((a[i] * x[i] for i in range(n)), torch.zeros_like(x[0])))
    return torch.stack(rows).view(H, S, -1) + nothing  # every input gets a gradient


class AttentionCase:
    """Random inputs of one attention call."""

    def __init__(
        self,
        counts: list[int],
        H: int = 2,
        D: int = 5,
        F: int = 3,
        T: int = 4,
        K: int = 4,
        dropout: bool = False,
        seed: int = 0,
        largest_delta: float = 10.0,
    ) -> None:
        draw = torch.Generator().manual_seed(seed)
        S, R, E = len(counts), 7, 6
        self.hop = tiny.random_hop(seed, counts, K, R, E, largest_delta)
        self.query = torch.randn(H, S, D + F + T, generator=draw, dtype=torch.float64)
        self.table = torch.randn(R, D, generator=draw, dtype=torch.float64)
        self.features = torch.randn(E, F, generator=draw)
        self.weight = (10.0 ** torch.linspace(0, -9, T, dtype=torch.float64)).float().double()
        self.bias = torch.randn(T, generator=draw).double()
        self.upstream = torch.randn(H, S, D + F + T, generator=draw, dtype=torch.float64)
        self.keep: Tensor | None = None
        if dropout:
            self.keep = (torch.rand(S, K, H, generator=draw) < 0.7).double() / 0.7

    def run(
        self, function: Callable[..., Tensor], dtype: torch.dtype = torch.float64
    ) -> tuple[Tensor, ...]:
        """Output, then gradients by query, table, time weights and time bias."""
        leaves = [
            x.to(dtype).detach().requires_grad_()
            for x in (self.query, self.table, self.weight, self.bias)
        ]
        keep = None if self.keep is None else self.keep.to(dtype)
        out = function(leaves[0], leaves[1], self.hop, self.features, *leaves[2:], keep)
        (out * self.upstream.to(dtype)).sum().backward()
        grads = [leaf.grad for leaf in leaves]
        assert all(grad is not None for grad in grads)
        return (out, *grads)  # type: ignore[arg-type]


def check_attention(case: AttentionCase, relative: float = 1e-6) -> None:
    expected = case.run(naive_attention)
    for backend in BACKENDS:
        with use_backend(backend):
            for dtype, limit in ((torch.float64, 1e-9), (torch.float32, relative)):
                for found, want in zip(
                    case.run(ops.temporal_attention, dtype), expected, strict=True
                ):
                    close(found, want, limit)


@pytest.mark.parametrize("H", [1, 2, 3, 4])
@pytest.mark.parametrize("F", [0, 3])
@pytest.mark.parametrize("dropout", [False, True])
def test_attention_equals_loops(H: int, F: int, dropout: bool) -> None:
    check_attention(AttentionCase([0, 1, 2, 3, 4, 4, 0, 1], H=H, F=F, dropout=dropout))


def test_attention_over_several_blocks_of_seeds_and_rows() -> None:
    check_attention(AttentionCase([i % 5 for i in range(67)], seed=1))


@pytest.mark.parametrize("counts", [[], [0], [0, 0, 0], [1], [1, 1]])
def test_attention_with_none_or_one_neighbor(counts: list[int]) -> None:
    case = AttentionCase(counts)
    check_attention(case)
    out = ops.temporal_attention(
        case.query, case.table, case.hop, case.features, case.weight, case.bias
    )
    for s, n in enumerate(counts):
        if n == 0:
            assert torch.equal(out[:, s], torch.zeros_like(out[:, s]))
        else:  # a softmax over one is 1, whatever the query
            assert torch.equal(out[0, s], out[1, s])
            assert torch.equal(out[0, s, :5], case.table[case.hop.neighbor_SK[s, 0]])


def test_attention_with_equal_logits_is_the_mean() -> None:
    case = AttentionCase([4, 2])
    case.query = torch.zeros_like(case.query)
    check_attention(case)
    out = ops.temporal_attention(
        case.query, case.table, case.hop, case.features, case.weight, case.bias
    )
    close(out[0, 0, :5], case.table[case.hop.neighbor_SK[0].long()].mean(0), 1e-12)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_attention_with_huge_logits(size: float) -> None:
    """Logits of +-1e4: a naive exp would overflow, or sum to zero."""
    case = AttentionCase([4, 3, 1, 0], H=1)
    case.table[:, 0] = torch.tensor([1.0, -1.0, 1.0, 0.5, -0.5, 1.0, 0.0])
    case.query = torch.zeros_like(case.query)
    case.query[:, :, 0] = size
    # The gradient by the table is (about) 1e4 times larger than the values: relative to scale.
    check_attention(case)


@pytest.mark.parametrize("largest_delta", [1e6, 1e9])
def test_attention_with_large_time_differences(largest_delta: float) -> None:
    """Differences of decades in seconds: cos(w delta) stays exact where float32 would not be."""
    case = AttentionCase([1, 1, 4, 3], largest_delta=largest_delta)
    expected = case.run(naive_attention)
    for backend in BACKENDS:
        with use_backend(backend):
            for dtype, limit in ((torch.float64, 5e-7), (torch.float32, 1e-6)):
                found = case.run(ops.temporal_attention, dtype)
                for value, want in zip(found, expected, strict=True):
                    close(value, want, limit)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("delta", [0.0, 1.0, 1e9, 1e12, 1e15, 1e18, 9e18])
def test_time_code_is_a_cosine_up_to_nanoseconds_of_centuries(backend: str, delta: float) -> None:
    """With one neighbour the output is the neighbour's row itself, so its time code is visible."""
    case = AttentionCase([1], H=1, D=1, F=0, T=100, K=1)
    case.hop.delta_SK[:] = delta
    with use_backend(backend):
        out, *_, grad_bias = case.run(ops.temporal_attention, torch.float32)
    argument = float(np.float32(delta)) * case.weight.numpy() + case.bias.numpy()
    close(out[0, 0, 1:], torch.from_numpy(np.cos(argument)), 2e-7)
    # d cos(x) / dx = -sin(x); the upstream gradient goes through the query path too (softmax of
    # one: no gradient), so what remains is upstream * -sin.
    want = torch.from_numpy(-np.sin(argument)) * case.upstream[0, 0, 1:]
    close(grad_bias, want, 4e-7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e30])
def test_attention_ignores_what_padding_holds(backend: str, garbage: float) -> None:
    """Garbage difference, row and event in every padding slot, and garbage in the rows they name:
    neither output nor any gradient changes, bit for bit."""
    case = AttentionCase([0, 1, 2, 3, 4], dropout=True)
    # Row 6 and event 5 belong to padding alone.
    used_SK = torch.arange(4) < case.hop.count_S.unsqueeze(1)
    neighbor = torch.where(used_SK, case.hop.neighbor_SK % 6, 6).int()
    event = torch.where(used_SK, case.hop.event_SK % 5, 5).int()
    masked = np.where(used_SK.numpy(), neighbor.numpy(), -1)
    case.hop = replace(
        case.hop,
        neighbor_SK=neighbor,
        event_SK=event,
        neighbor_uses=tiny.uses_of(masked, 7),
    )
    with use_backend(backend):
        clean = case.run(ops.temporal_attention)
        case.table[6] = garbage
        case.features[5] = garbage
        case.hop = replace(case.hop, delta_SK=case.hop.delta_SK.masked_fill(~used_SK, garbage))
        dirty = case.run(ops.temporal_attention)
    for before, after in zip(clean, dirty, strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_ignores_row_zero_when_only_padding_names_it(backend: str) -> None:
    case = AttentionCase([0, 2, 4])
    used_SK = torch.arange(4) < case.hop.count_S.unsqueeze(1)
    neighbor = torch.where(used_SK, case.hop.neighbor_SK.clamp(min=1), 0).int()
    event = torch.where(used_SK, case.hop.event_SK.clamp(min=1), 0).int()
    uses = tiny.uses_of(np.where(used_SK.numpy(), neighbor.numpy(), -1), 7)
    case.hop = replace(case.hop, neighbor_SK=neighbor, event_SK=event, neighbor_uses=uses)
    case.table[0] = float("nan")
    case.features[0] = float("nan")
    with use_backend(backend):
        for value in case.run(ops.temporal_attention):
            assert torch.isfinite(value).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dropout", [False, True])
def test_attention_gradients_against_finite_differences(backend: str, dropout: bool) -> None:
    case = AttentionCase([0, 1, 3, 2], D=2, F=1, T=2, K=3, dropout=dropout, largest_delta=2.0)
    leaves = [x.requires_grad_() for x in (case.query, case.table, case.weight, case.bias)]

    def function(query: Tensor, table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.temporal_attention(
            query, table, case.hop, case.features, weight, bias, case.keep
        )

    with use_backend(backend):
        assert torch.autograd.gradcheck(function, leaves)


def test_attention_accepts_inputs_that_are_not_contiguous() -> None:
    case = AttentionCase([2, 4, 1])
    expected = case.run(naive_attention)[0]
    query = case.query.transpose(0, 1).contiguous().transpose(0, 1)
    table = case.table.t().contiguous().t()
    found = ops.temporal_attention(query, table, case.hop, case.features, case.weight, case.bias)
    close(found, expected, 1e-9)


def test_attention_without_a_table_gradient() -> None:
    """The innermost table of a model without trained inputs needs none."""
    case = AttentionCase([2, 4, 1])
    expected = case.run(ops.temporal_attention)[1]
    query = case.query.clone().requires_grad_()
    out = ops.temporal_attention(query, case.table, case.hop, case.features, case.weight, case.bias)
    (out * case.upstream).sum().backward()
    assert query.grad is not None
    assert torch.equal(query.grad, expected)


# ---------------------------------------------------------------- gathering rows


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gather_rows_equals_indexing(backend: str, dtype: torch.dtype) -> None:
    index = np.random.default_rng(0).integers(0, 40, 90).astype(np.int32)
    index[index == 3] = 4  # row 3 is used by nobody: its gradient is zero, not left over
    table = torch.randn(41, 6, dtype=dtype, requires_grad=True)
    upstream = torch.randn(90, 6, dtype=dtype)
    with use_backend(backend):
        out = ops.gather_rows(table, torch.from_numpy(index), tiny.uses_of(index, 41))
        (out * upstream).sum().backward()
    assert torch.equal(out, table[index.tolist()])
    expected = torch.zeros(41, 6, dtype=torch.float64)
    for position, row in enumerate(index.tolist()):
        expected[row] += upstream[position].double()
    assert table.grad is not None
    close(table.grad, expected, 1e-6)
    assert torch.equal(table.grad[3], torch.zeros(6, dtype=dtype))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gather_rows_gradient_against_finite_differences(backend: str) -> None:
    index = np.array([2, 0, 2, 2, 1], np.int32)
    table = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    with use_backend(backend):
        assert torch.autograd.gradcheck(
            lambda x: ops.gather_rows(x, torch.from_numpy(index), tiny.uses_of(index, 4)), [table]
        )


def test_gather_rows_of_nothing() -> None:
    table = torch.randn(3, 2, requires_grad=True)
    index = np.empty(0, np.int32)
    out = ops.gather_rows(table, torch.from_numpy(index), tiny.uses_of(index, 3))
    assert out.shape == (0, 2)
    out.sum().backward()
    assert table.grad is not None
    assert torch.equal(table.grad, torch.zeros(3, 2))


# ---------------------------------------------------------------- memory update


class MemoryCase:
    """Random inputs of one memory update; `mails` gives each node's number of pending mails."""

    def __init__(self, cell: str, mails: list[int], D: int = 4, F: int = 3, T: int = 5) -> None:
        draw = torch.Generator().manual_seed(3)
        self.cell, self.D, self.F, self.T = cell, D, F, T
        U, L = len(mails), sum(mails)
        pending = [n for n in mails if n]
        self.mails = mails
        rng = np.random.default_rng(3)
        self.mail = Mail(
            row_M=torch.tensor([u for u, n in enumerate(mails) if n], dtype=torch.int32),
            indptr_M1=torch.tensor(np.cumsum([0, *pending]), dtype=torch.int32),
            event_L=torch.from_numpy(rng.integers(0, 6, L).astype(np.int32)),
            delta_L=torch.from_numpy(rng.uniform(0, 5, L).astype(np.float32)),
        )
        G = 3 * D if cell == "gru" else D

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw, dtype=torch.float64)

        self.memory, self.partner = normal(U, D), normal(U, D)
        self.features = normal(6, F).float()
        self.upstream = normal(U, D)
        self.parameters = [
            (10.0 ** torch.linspace(0, -9, T, dtype=torch.float64)).float().double(),
            normal(T),
            normal(G, 2 * D + F + T) * 0.5,
            normal(G, D) * 0.5,
            normal(G),
            normal(G),
        ]

    def run(self, function: Callable[..., Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Output, then the gradient of every parameter."""
        leaves = [p.to(dtype).detach().requires_grad_() for p in self.parameters]
        out = function(
            self.cell, self.memory.to(dtype), self.partner.to(dtype), self.mail, self.features,
            *leaves,
        )  # fmt: skip
        (out * self.upstream.to(dtype)).sum().backward()
        return (out, *(leaf.grad for leaf in leaves))  # type: ignore[arg-type]


def torch_cell_update(
    cell: str, memory_UD: Tensor, partner_UD: Tensor, mail: Mail, features_EF: Tensor,
    weight_T: Tensor, bias_T: Tensor, *cell_parameters: Tensor,
) -> Tensor:  # fmt: skip
    """Node by node: PyTorch's own cell on the mean of the concatenated messages."""
    out = list(memory_UD)
    for m, row in enumerate(mail.row_M.tolist()):
        messages = [
            torch.cat(
                [
                    memory_UD[row],
                    partner_UD[row],
                    features_EF[int(mail.event_L[i])].to(memory_UD.dtype),
                    torch.cos(weight_T * float(mail.delta_L[i]) + bias_T),
                ]
            )
            for i in range(int(mail.indptr_M1[m]), int(mail.indptr_M1[m + 1]))
        ]
        message = torch.stack(messages).mean(0, keepdim=True)
        D = memory_UD.shape[1]
        kind = torch.nn.GRUCell if cell == "gru" else torch.nn.RNNCell
        module = kind(message.shape[1], D, dtype=memory_UD.dtype)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        out[row] = torch.func.functional_call(
            module,
            dict(zip(names, cell_parameters, strict=True)),
            (message, memory_UD[row].unsqueeze(0)),
        )[0]
    return torch.stack(out)


@pytest.mark.parametrize("cell", ["gru", "rnn"])
@pytest.mark.parametrize(
    "mails", [[1, 0, 1, 1], [0, 2, 1, 5, 0], [1] * 37, [1], [3]], ids=lambda m: f"{len(m)}nodes"
)
@pytest.mark.parametrize("F", [0, 3])
def test_memory_update_equals_torch_cell(cell: str, mails: list[int], F: int) -> None:
    case = MemoryCase(cell, mails, F=F)
    expected = case.run(torch_cell_update, torch.float64)
    for backend in BACKENDS:
        with use_backend(backend):
            for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 2e-6)):
                for found, want in zip(case.run(ops.memory_update, dtype), expected, strict=True):
                    close(found, want, limit)


@pytest.mark.parametrize("cell", ["gru", "rnn"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_without_mail_is_unchanged(cell: str, backend: str) -> None:
    """Pitfall 14: a cell applied to zeros is not the identity."""
    case = MemoryCase(cell, [0, 1, 0, 2])
    with use_backend(backend):
        out = case.run(ops.memory_update, torch.float32)[0]
    memory = case.memory.float()
    assert torch.equal(out[[0, 2]], memory[[0, 2]])
    assert not torch.isclose(out[[1, 3]], memory[[1, 3]]).any()


@pytest.mark.parametrize("cell", ["gru", "rnn"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_update_without_any_mail(cell: str, backend: str) -> None:
    case = MemoryCase(cell, [0, 0, 0])
    with use_backend(backend):
        out, *grads = case.run(ops.memory_update, torch.float32)
    assert torch.equal(out, case.memory.float())
    for grad in grads:
        assert torch.equal(grad, torch.zeros_like(grad))


@pytest.mark.parametrize("cell", ["gru", "rnn"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_update_gradients_against_finite_differences(cell: str, backend: str) -> None:
    case = MemoryCase(cell, [0, 1, 2, 1], D=2, F=1, T=2)
    leaves = [p.requires_grad_() for p in case.parameters]

    def function(*parameters: Tensor) -> Tensor:
        return ops.memory_update(
            cell, case.memory, case.partner, case.mail, case.features, *parameters
        )

    with use_backend(backend):
        assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("cell", ["gru", "rnn"])
def test_parameters_get_gradients_of_their_own(cell: str) -> None:
    """Gradients that share memory would be scaled twice by clipping."""
    case = MemoryCase(cell, [1, 1])
    grads = case.run(ops.memory_update, torch.float32)[1:]
    before = [grad.clone() for grad in grads]
    for i, grad in enumerate(grads):
        grad += 1.0
        for other, value in list(zip(grads, before, strict=True))[i + 1 :]:
            assert torch.equal(other, value)


def test_memory_update_passes_gradients_to_memory_that_wants_them() -> None:
    case = MemoryCase("gru", [0, 1])
    memory = case.memory.clone().requires_grad_()
    out = ops.memory_update("gru", memory, case.partner, case.mail, case.features, *case.parameters)
    out.sum().backward()
    assert memory.grad is not None
    assert torch.equal(memory.grad[0], torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("extreme", [0.0, 1e-3, 1.0, 20.0, 88.0, 1e3, 1e6])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gates_equal_numpy_to_float32_precision(extreme: float, sign: float) -> None:
    """A cell with one weight shows its non-linearities: rnn gives tanh(x); a gru with candidate 1
    and memory 0 gives 1 - sigmoid(x)."""
    x = sign * extreme * np.linspace(0.5, 1.0, 6)
    mail = Mail(
        row_M=torch.arange(6, dtype=torch.int32),
        indptr_M1=torch.arange(7, dtype=torch.int32),
        event_L=torch.arange(6, dtype=torch.int32),
        delta_L=torch.zeros(6),
    )
    features = torch.from_numpy(x.astype(np.float32)).unsqueeze(1)
    zero, one = torch.zeros(6, 1), torch.ones(1)
    time = (torch.zeros(0), torch.zeros(0))
    tanh = ops.memory_update(
        "rnn", zero, zero, mail, features, *time,
        torch.tensor([[0.0, 0.0, 1.0]]), torch.zeros(1, 1), torch.zeros(1), torch.zeros(1),
    )  # fmt: skip
    x64 = features[:, 0].double().numpy()
    assert np.abs(tanh[:, 0].numpy() - np.tanh(x64)).max() <= 2e-7
    weight = torch.zeros(3, 3)
    weight[1, 2] = 1.0  # the update gate reads the feature
    bias = torch.cat([torch.zeros(2), 50.0 * one])  # the candidate is 1
    gru = ops.memory_update(
        "gru", zero, zero, mail, features, *time, weight, torch.zeros(3, 1), bias, torch.zeros(3)
    )
    with np.errstate(over="ignore"):
        sigmoid = 1.0 / (1.0 + np.exp(-x64))
    assert np.abs(gru[:, 0].numpy() - (1.0 - sigmoid)).max() <= 2e-7


# ---------------------------------------------------------------- threads and backends


def test_results_do_not_depend_on_threads() -> None:
    """Bit for bit: sums are cut into blocks of fixed size, not into one part per thread."""
    most = numba.config.NUMBA_NUM_THREADS
    before = numba.get_num_threads()
    attention = AttentionCase([i % 5 for i in range(131)], H=2, dropout=True)
    memory = MemoryCase("gru", [i % 3 for i in range(131)])
    index = np.random.default_rng(1).integers(0, 131, 300).astype(np.int32)
    uses = tiny.uses_of(index, 131)

    def everything() -> list[Tensor]:
        table = memory.memory.float().requires_grad_()
        ops.gather_rows(table, torch.from_numpy(index), uses).square().sum().backward()
        assert table.grad is not None
        return [
            *attention.run(ops.temporal_attention, torch.float32),
            *memory.run(ops.memory_update, torch.float32),
            table.grad,
        ]

    try:
        numba.set_num_threads(1)
        expected = everything()
        for threads in range(2, most + 1):
            numba.set_num_threads(threads)
            for found, want in zip(everything(), expected, strict=True):
                assert torch.equal(found, want)
    finally:
        numba.set_num_threads(before)


def test_two_runs_are_equal_bit_for_bit() -> None:
    case = AttentionCase([i % 5 for i in range(67)])
    for first, second in zip(
        case.run(ops.temporal_attention, torch.float32),
        case.run(ops.temporal_attention, torch.float32),
        strict=True,
    ):
        assert torch.equal(first, second)


def test_unknown_backend_is_refused() -> None:
    with (
        pytest.raises(SettingError, match=r"cuda-magic.*auto.*cpu.*reference"),
        use_backend("cuda-magic"),
    ):
        pass


def test_backend_is_restored_after_an_error() -> None:
    case = AttentionCase([1])
    with pytest.raises(RuntimeError), use_backend("reference"):
        raise RuntimeError
    out = ops.temporal_attention(
        case.query.requires_grad_(), case.table, case.hop, case.features, case.weight, case.bias
    )
    assert out.grad_fn is not None
    assert "TemporalAttention" in type(out.grad_fn).__name__
