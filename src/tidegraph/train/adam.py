"""Adam over PyTorch's own fused kernel.

`torch.optim` loads PyTorch's compiler on first use: seconds of start-up and 70 MB that a training
loop has no need of (measured). The arithmetic is the same operator, so results are bit-identical
to `torch.optim.Adam(..., fused=True)`. Made `capturable`, nothing of a step depends on a number of
the host: step counts and the learning rate lie on the device, where a captured step reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Adam:
    """Adam (Kingma and Ba, 2015) with L2 weight decay.

    Args:
        named_parameters: (name, parameter) pairs; those without gradients stay as they are.
        learning_rate: step size.
        weight_decay: L2 penalty added to the gradient.

    >>> layer = nn.Linear(2, 1)
    >>> optimizer = Adam(layer.named_parameters(), learning_rate=0.1)
    >>> layer(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        learning_rate: float,
        weight_decay: float = 0.0,
    ) -> None:
        self._learning_rate, self.weight_decay = learning_rate, weight_decay
        self._rate: Tensor | None = None
        self.parameters = {name: p for name, p in named_parameters if p.requires_grad}
        self.first = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        # One vector, of which each parameter's count is a view: all advance in one addition.
        device = next((p.device for p in self.parameters.values()), torch.device("cpu"))
        self._steps = torch.zeros(len(self.parameters), device=device)
        self.steps = dict(zip(self.parameters, self._steps.unbind(), strict=True))

    @property
    def learning_rate(self) -> float:
        """The step size; may be changed between steps, captured ones included."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._learning_rate = value
        if self._rate is not None:
            self._rate.fill_(value)

    def make_capturable(self) -> None:
        """Keep the learning rate in a tensor from now on (float32, as CUDA's kernel reads it)."""
        if self._rate is None:
            device = self._steps.device
            kind = torch.float32 if device.type == "cuda" else torch.float64
            self._rate = torch.full((), self._learning_rate, dtype=kind, device=device)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        gradients = {n: p.grad for n, p in self.parameters.items() if p.grad is not None}
        names = list(gradients)
        steps = [self.steps[name] for name in names]
        if len(names) == len(self.parameters):
            self._steps += 1
        else:
            torch._foreach_add_(steps, 1)
        # Two overloads: a number of the host, or a tensor that is read on the device.
        rate: Any = self._learning_rate if self._rate is None else self._rate
        torch._fused_adam_(
            [self.parameters[name] for name in names],
            list(gradients.values()),
            [self.first[name] for name in names],
            [self.second[name] for name in names],
            [],
            steps,
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=self.weight_decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Moments and step counts, for a checkpoint."""
        found: dict[str, Tensor] = {}
        for name in self.parameters:
            found[f"{name}.first"] = self.first[name]
            found[f"{name}.second"] = self.second[name]
            found[f"{name}.step"] = self.steps[name]
        return found

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Put `tensors` back.

        Raises:
            KeyError: one is missing.
        """
        for name, own in self.tensors().items():
            own.copy_(tensors[name])
