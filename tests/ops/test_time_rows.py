"""Time codes as a matrix: the fast path for fixed codes equals the plain version."""

from __future__ import annotations

import pytest
import torch

from tidegraph import ops
from tidegraph.ops import reference

DELTAS = torch.tensor([[0.0, 1.0, 59.5], [3e6, 1e9, 1.5e11]])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", [1, 3, 100])
@pytest.mark.parametrize(("kind", "error"), [(torch.float32, 4e-7), (torch.float64, 1e-14)])
def test_rows_equal_the_plain_code(kind: torch.dtype, error: float, width: int, bias: bool) -> None:
    """Up to what rounding the argument w d in float64 takes: it grows with the difference."""
    weight_T = (10.0 ** torch.linspace(0, -9, width)).to(kind)
    bias_T = torch.linspace(-2, 2, width).to(kind) if bias else torch.zeros(width, dtype=kind)
    found = ops.time_code(DELTAS, weight_T, bias_T)
    assert (found.shape, found.dtype) == ((2, 3, width), kind)
    expected = reference.time_code(DELTAS, weight_T, bias_T)
    allowed = error + 4e-16 * DELTAS.double().unsqueeze(2)
    assert bool(((found.double() - expected.double()).abs() <= allowed).all())


def test_many_rows_and_none() -> None:
    weight_T, bias_T = torch.tensor([1.0, 0.1]), torch.zeros(2)
    many = torch.arange(5000.0).view(50, 100)
    found = ops.time_code(many, weight_T, bias_T)
    torch.testing.assert_close(
        found, reference.time_code(many, weight_T, bias_T), rtol=0, atol=4e-7
    )
    assert ops.time_code(many[:0], weight_T, bias_T).shape == (0, 100, 2)


def test_a_trainable_code_keeps_its_gradient() -> None:
    weight_T, bias_T = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    ops.time_code(DELTAS[:1], weight_T, bias_T).sum().backward()
    assert weight_T.grad is not None
    assert float(weight_T.grad.abs().max()) > 0
    with torch.no_grad():  # in evaluation the fast path serves it too
        assert ops.time_code(DELTAS, weight_T, bias_T).shape == (2, 3, 3)
