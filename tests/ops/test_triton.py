"""The Triton kernels equal the plain operators, forward and backward, run by Triton's interpreter.

It executes kernels program by program on the CPU, masks and pointers included, so a wrong index or
a read of padding shows here as on a GPU. Speed does not; nor does what the compiler makes of them
(`test_triton_compile.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

import tiny
from tidegraph import ops
from tidegraph.errors import SettingError
from tidegraph.ops import reference, triton_backend, use_backend

triton = pytest.importorskip("triton", reason="Triton is not installed")
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
if VERSION < (3, 9) and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
    pytest.skip(
        f"the interpreter of Triton {triton.__version__} does not run on NumPy {np.__version__}",
        allow_module_level=True,
    )

from ops import test_functions as plain  # noqa: E402
from ops.test_functions import (  # noqa: E402
    AttentionCase,
    MemoryCase,
    close,
    naive_attention,
    torch_cell_update,
)
from tidegraph.ops.triton_backend import attention, launch  # noqa: E402


@pytest.fixture(autouse=True)
def _triton_operators() -> Iterator[None]:
    with use_backend("triton"):
        yield


def check_attention(case: AttentionCase, *, float32: bool = True) -> None:
    expected = case.run(naive_attention)
    for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-6))[: 1 + float32]:
        for found, want in zip(case.run(ops.temporal_attention, dtype), expected, strict=True):
            close(found, want, limit)


# ---------------------------------------------------------------- attention


@pytest.mark.parametrize("H", [1, 2, 3])
@pytest.mark.parametrize("F", [0, 3])
@pytest.mark.parametrize("dropout", [False, True])
def test_attention_equals_loops(H: int, F: int, dropout: bool) -> None:
    check_attention(AttentionCase([0, 1, 2, 3, 4, 4, 0, 1], H=H, F=F, dropout=dropout))


# Interpreted examples take a tenth of a second each: shrinking one would take minutes.
@settings(max_examples=15, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data())
def test_attention_of_any_shape_equals_loops(data: st.DataObject) -> None:
    """Any fan-out, number of heads and odd width; none, one, some or all slots in use. In float64:
    sums that cancel leave float32 fewer digits than any fixed tolerance says."""
    K = data.draw(st.integers(1, 9), "K")
    check_attention(
        AttentionCase(
            data.draw(st.lists(st.integers(0, K), min_size=1, max_size=4), "counts"),
            K=K,
            H=data.draw(st.integers(1, 3), "H"),
            D=data.draw(st.integers(1, 9), "D"),
            F=data.draw(st.integers(0, 5), "F"),
            T=data.draw(st.integers(1, 5), "T"),
            dropout=data.draw(st.booleans(), "dropout"),
            seed=data.draw(st.integers(0, 99), "seed"),
        ),
        float32=False,
    )


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("resident", [64, 32, 1])
def test_attention_over_neighborhoods_larger_than_the_registers(
    monkeypatch: pytest.MonkeyPatch, resident: int, dropout: bool
) -> None:
    """Rows of 5 + 3 + 4 elements, padded to 16: two, one and one slots a tile instead of all."""
    monkeypatch.setattr(attention, "RESIDENT", resident)
    check_attention(AttentionCase([0, 5, 1, 4], K=5, dropout=dropout))


def test_tiles_hold_what_registers_hold() -> None:
    """The published width, 372, pads to 512: 32 slots fit, more are cut into tiles."""

    def tiles(K: int, D: int = 100) -> attention._Tiles:
        return attention._Tiles(H=2, K=K, D=D, F=172, T=100, dropout=False)

    assert [tiles(K).resident for K in (1, 10, 20, 32, 33)] == [True, True, True, True, False]
    assert [tiles(K).slots for K in (1, 10, 20, 33, 200)] == [1, 16, 32, 16, 16]
    assert tiles(64, D=20_000).slots == 1


@pytest.mark.parametrize("counts", [[], [0], [0, 0], [1], [1, 1]])
def test_attention_with_none_or_one_neighbor(counts: list[int]) -> None:
    case = AttentionCase(counts)
    check_attention(case)
    out = case.run(ops.temporal_attention, torch.float32)[0]
    for s, n in enumerate(counts):
        if n == 0:
            assert torch.equal(out[:, s], torch.zeros_like(out[:, s]))
        else:  # a softmax over one is 1, whatever the query
            assert torch.equal(out[0, s], out[1, s])
            assert torch.equal(out[0, s, :5], case.table[case.hop.neighbor_SK[s, 0]].float())


@pytest.mark.parametrize("size", [0.0, 1e4, -1e4])
def test_attention_with_equal_and_with_huge_logits(size: float) -> None:
    case = AttentionCase([4, 3, 1, 0], H=1)
    case.table[:, 0] = torch.tensor([1.0, -1.0, 1.0, 0.5, -0.5, 1.0, 0.0])
    case.query = torch.zeros_like(case.query)
    case.query[:, :, 0] = size
    check_attention(case)


@pytest.mark.parametrize(
    ("garbage", "resident"),
    [(float("nan"), launch.RESIDENT), (float("inf"), launch.RESIDENT), (float("nan"), 16)],
)
def test_attention_ignores_what_padding_holds(
    monkeypatch: pytest.MonkeyPatch, garbage: float, resident: int
) -> None:
    """Garbage in padding slots, and in the rows they name, changes nothing, bit for bit."""
    monkeypatch.setattr(attention, "RESIDENT", resident)
    case = AttentionCase([0, 1, 2, 3, 4], dropout=True)
    # Row 6 and event 5 belong to padding alone.
    used_SK = torch.arange(4) < case.hop.count_S.unsqueeze(1)
    neighbor = torch.where(used_SK, case.hop.neighbor_SK % 6, 6).int()
    event = torch.where(used_SK, case.hop.event_SK % 5, 5).int()
    uses = tiny.uses_of(np.where(used_SK.numpy(), neighbor.numpy(), -1), 7)
    case.hop = replace(case.hop, neighbor_SK=neighbor, event_SK=event, neighbor_uses=uses)
    clean = case.run(ops.temporal_attention)
    case.table[6] = garbage
    case.features[5] = garbage
    assert case.keep is not None
    case.keep = case.keep.masked_fill(~used_SK.unsqueeze(2), garbage)
    case.hop = replace(
        case.hop,
        delta_SK=case.hop.delta_SK.masked_fill(~used_SK, garbage),
        neighbor_SK=neighbor.masked_fill(~used_SK, 2**31 - 1),  # no memory there at all
        event_SK=event.masked_fill(~used_SK, -(2**31)),
    )
    for before, after in zip(clean, case.run(ops.temporal_attention), strict=True):
        assert torch.equal(before, after)


def test_attention_reads_bfloat16_features_in_place() -> None:
    case = AttentionCase([0, 1, 3, 4], F=5)
    case.features = case.features.bfloat16()
    expected = case.run(naive_attention)
    for found, want in zip(case.run(ops.temporal_attention, torch.float32), expected, strict=True):
        close(found, want, 1e-6)


def test_attention_gradients_against_finite_differences() -> None:
    case = AttentionCase([0, 1, 2], H=1, D=1, F=1, T=1, K=2, dropout=True, largest_delta=2.0)
    leaves = [x.requires_grad_() for x in (case.query, case.table, case.weight, case.bias)]
    assert torch.autograd.gradcheck(
        lambda query, table, weight, bias: ops.temporal_attention(
            query, table, case.hop, case.features, weight, bias, case.keep
        ),
        leaves,
    )


def test_attention_without_gradients_nobody_wants() -> None:
    """A table without gradient and a fixed time code: the query's gradient is the same."""
    case = AttentionCase([2, 4, 1])
    expected = case.run(ops.temporal_attention)[1]
    query = case.query.clone().requires_grad_()
    out = ops.temporal_attention(query, case.table, case.hop, case.features, case.weight, case.bias)
    (out * case.upstream).sum().backward()
    assert query.grad is not None
    assert torch.equal(query.grad, expected)


def test_attention_accepts_inputs_that_are_not_contiguous() -> None:
    case = AttentionCase([2, 4, 1])
    expected = case.run(naive_attention)[0]
    query = case.query.transpose(0, 1).contiguous().transpose(0, 1)
    table, features = case.table.t().contiguous().t(), case.features.t().contiguous().t()
    close(
        ops.temporal_attention(query, table, case.hop, features, case.weight, case.bias),
        expected,
        1e-9,
    )


def test_two_runs_are_equal_bit_for_bit() -> None:
    case = AttentionCase([i % 5 for i in range(12)], dropout=True)
    first = case.run(ops.temporal_attention, torch.float32)
    for one, other in zip(first, case.run(ops.temporal_attention, torch.float32), strict=True):
        assert torch.equal(one, other)


# ---------------------------------------------------------------- time code


@pytest.mark.parametrize("delta", [0.0, 1.0, -3.5, 1e6, 1e9, 1e12, 1e15, 1e18, 9e18])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_time_code_is_a_cosine_up_to_nanoseconds_of_centuries(
    delta: float, dtype: torch.dtype
) -> None:
    if delta > 1e9 and VERSION < (3, 9):
        pytest.skip(f"the interpreter of Triton {triton.__version__} rounds fused products")
    draw = torch.Generator().manual_seed(0)
    weight = (10.0 ** torch.linspace(0, -9, 100, dtype=torch.float64)).float().to(dtype)
    bias = torch.randn(100, generator=draw).to(dtype)
    found = ops.time_code(torch.tensor([delta, -delta]), weight, bias)
    argument = np.float64(np.float32([[delta], [-delta]])) * weight.numpy() + bias.numpy()
    exact = torch.from_numpy(np.cos(argument))
    assert found.dtype == dtype
    interpreted_fma = 2e-7 if VERSION < (3, 9) else 1e-13
    close(found, exact, 2e-7 if dtype == torch.float32 else interpreted_fma)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 7), (2, 3, 4)])
@pytest.mark.parametrize("T", [0, 1, 5])
def test_time_code_of_any_shape_equals_the_reference(shape: tuple[int, ...], T: int) -> None:
    draw = torch.Generator().manual_seed(1)
    delta = torch.rand(shape, generator=draw) * 10
    leaves = [torch.randn(T, generator=draw, dtype=torch.float64) for _ in range(2)]
    upstream = torch.randn(*shape, T, generator=draw, dtype=torch.float64)
    results = []
    for function in (ops.time_code, reference.time_code):
        weight, bias = (leaf.clone().requires_grad_() for leaf in leaves)
        out = function(delta, weight, bias)
        (out * upstream).sum().backward()
        results.append((out, weight.grad, bias.grad))
    for found, want in zip(*results, strict=True):
        assert found is not None
        assert want is not None
        close(found, want, 1e-12)


def test_time_code_passes_gradients_to_differences_that_want_them() -> None:
    delta = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    ops.time_code(delta, torch.ones(1).double(), torch.zeros(1).double()).sum().backward()
    assert delta.grad is not None
    close(delta.grad, -torch.sin(delta), 1e-12)


@pytest.mark.parametrize("largest_delta", [1e6, 1e9])
def test_attention_with_large_time_differences(largest_delta: float) -> None:
    case = AttentionCase([1, 1, 4, 3], largest_delta=largest_delta)
    expected = case.run(naive_attention)
    for found, want in zip(case.run(ops.temporal_attention, torch.float32), expected, strict=True):
        close(found, want, 1e-6)


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("cell", ["gru", "rnn"])
@pytest.mark.parametrize(
    "mails", [[1, 0, 1, 1], [0, 2, 1, 5, 0], [1] * 19, [3], [0, 0], []],
    ids=lambda m: "-".join(map(str, m)),
)  # fmt: skip
@pytest.mark.parametrize("F", [0, 3])
def test_memory_update_equals_torch_cell(cell: str, mails: list[int], F: int) -> None:
    """Message "last" (one mail each) and "mean" (several); nodes without mail keep their memory."""
    case = MemoryCase(cell, mails, F=F)
    expected = case.run(torch_cell_update, torch.float64) if any(mails) else None
    for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 2e-6)):
        out, *grads = case.run(ops.memory_update, dtype)
        silent = [u for u, n in enumerate(mails) if n == 0]
        assert torch.equal(out[silent], case.memory.to(dtype)[silent])
        if expected is None:
            for grad in grads:
                assert torch.equal(grad, torch.zeros_like(grad))
        else:
            for found, want in zip((out, *grads), expected, strict=True):
                close(found, want, limit)


@pytest.mark.parametrize("cell", ["gru", "rnn"])
def test_memory_update_reads_bfloat16_features_and_odd_widths(cell: str) -> None:
    case = MemoryCase(cell, [2, 0, 1, 1], D=7, F=5, T=3)
    case.features = case.features.bfloat16()
    expected = case.run(torch_cell_update, torch.float64)
    for found, want in zip(case.run(ops.memory_update, torch.float32), expected, strict=True):
        close(found, want, 2e-6)


@pytest.mark.parametrize("cell", ["gru", "rnn"])
def test_memory_update_gradients_against_finite_differences(cell: str) -> None:
    case = MemoryCase(cell, [0, 1, 2, 1], D=2, F=1, T=2)
    leaves = [p.requires_grad_() for p in case.parameters]
    assert torch.autograd.gradcheck(
        lambda *parameters: ops.memory_update(
            cell, case.memory, case.partner, case.mail, case.features, *parameters
        ),
        leaves,
    )


@pytest.mark.parametrize("cell", ["gru", "rnn"])
def test_parameters_get_gradients_of_their_own(cell: str) -> None:
    """Gradients that share memory would be scaled twice by clipping."""
    plain.test_parameters_get_gradients_of_their_own(cell)


def test_memory_update_passes_gradients_to_memory_that_wants_them() -> None:
    plain.test_memory_update_passes_gradients_to_memory_that_wants_them()


@pytest.mark.filterwarnings("ignore:overflow")  # exp(x) of the interpreter, infinite as on a GPU
@pytest.mark.parametrize("extreme", [0.0, 1e-3, 1.0, 20.0, 88.0, 1e6])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gates_equal_numpy_to_float32_precision(extreme: float, sign: float) -> None:
    plain.test_gates_equal_numpy_to_float32_precision(extreme, sign)


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gather_rows_equals_indexing(dtype: torch.dtype) -> None:
    plain.test_gather_rows_equals_indexing("triton", dtype)


def test_gather_rows_of_nothing() -> None:
    plain.test_gather_rows_of_nothing()


# ---------------------------------------------------------------- choice of backend


def not_interpreted(x_N: Tensor) -> None:
    """What `triton.jit` compiles where its interpreter is not asked for."""


def test_kernels_that_are_not_interpreted_refuse_tensors_on_a_cpu() -> None:
    compiled = triton.JITFunction(not_interpreted)
    with pytest.raises(SettingError, match=r"CUDA device.*TRITON_INTERPRET=1"):
        launch.launch(compiled, (1,), torch.zeros(1), warps=1)
    launch.launch(compiled, (0,), torch.zeros(1), warps=1)  # nothing to do, nothing refused


def test_the_reference_overrides() -> None:
    case = AttentionCase([1])
    with use_backend("reference"):
        out = ops.temporal_attention(
            case.query.requires_grad_(), case.table, case.hop, case.features, case.weight, case.bias
        )
    assert "TemporalAttention" not in type(out.grad_fn).__name__


def test_the_kernels_are_chosen_for_cuda_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is needed to ask: "auto" looks at where the tensor is."""
    from tidegraph.ops import functions

    class OnCuda:
        device = torch.device("cuda", 0)

    class OnCpu:
        device = torch.device("cpu")

    with use_backend("auto"):
        operators = functions._triton(OnCuda())  # type: ignore[arg-type]
        assert operators is triton_backend.load()
        assert functions._triton(OnCpu()) is None  # type: ignore[arg-type]
    for name in ("reference", "cpu"):
        with use_backend(name):
            assert functions._triton(OnCuda()) is None  # type: ignore[arg-type]
