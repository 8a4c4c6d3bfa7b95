"""Adam is `torch.optim.Adam`, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tidegraph.train.adam import Adam


def _train(layer: nn.Module, optimizer: object, steps: int) -> list[torch.Tensor]:
    data = torch.randn(steps, 8, 5, generator=torch.Generator().manual_seed(1))
    for batch in data:
        optimizer.zero_grad()  # type: ignore[attr-defined]
        layer(batch).square().mean().backward()
        optimizer.step()  # type: ignore[attr-defined]
    return [parameter.detach().clone() for parameter in layer.parameters()]


def _layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_equal_to_the_library_bit_for_bit(decay: float) -> None:
    ours, theirs = _layer(), _layer()
    found = _train(ours, Adam(ours.named_parameters(), 0.01, decay), 20)
    expected = _train(
        theirs, torch.optim.Adam(theirs.parameters(), lr=0.01, weight_decay=decay, fused=True), 20
    )
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_a_parameter_without_gradient_stays_and_does_not_count_a_step() -> None:
    used, unused = nn.Linear(2, 1), nn.Linear(2, 1)
    model = nn.ModuleDict({"used": used, "unused": unused})
    before = unused.weight.detach().clone()
    optimizer = Adam(model.named_parameters(), 0.1)
    used(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.equal(unused.weight, before)
    assert float(optimizer.steps["unused.weight"]) == 0
    assert float(optimizer.steps["used.weight"]) == 1


def test_tensors_put_back_continue_as_if_never_interrupted() -> None:
    whole, first = _layer(), _layer()
    _train(whole, Adam(whole.named_parameters(), 0.01), 6)
    optimizer = Adam(first.named_parameters(), 0.01)
    _train(first, optimizer, 6)
    second = _layer()
    second.load_state_dict(first.state_dict())
    resumed = Adam(second.named_parameters(), 0.01)
    resumed.load(optimizer.tensors())
    found = _train(second, resumed, 3)
    expected = _train(first, optimizer, 3)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
