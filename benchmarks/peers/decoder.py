"""The link decoder of the field, for libraries that leave it to their users."""

from __future__ import annotations

from torch import Tensor, nn


class PairScore(nn.Module):
    """score(u, v) = o . relu(A z_u + B z_v): [B, D] and [B, D] to [B, 1]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.from_source = nn.Linear(width, width)
        self.from_target = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.score((self.from_source(source) + self.from_target(target)).relu())
