"""`PairModel`: models that embed a node beside the one it is scored with.

What belongs to a node alone is computed once per (node, time) seed; what depends on the partner,
once per pair. Scores of many candidates are computed block by block, so memory stays bounded.

Shape legend: B events, C candidates per event, P = B (1 + C) pairs, S seeds, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tidegraph.batches.prepared import PreparedBatch
from tidegraph.models.base import Encoded, TemporalModel
from tidegraph.ops.products import product

_BLOCK = 1024  # pairs at once, where no gradients are needed


@dataclass(frozen=True, eq=False)
class Pairing:
    """Some pairs of seeds, by their rows.

    Attributes:
        first_P, second_P: int64 [P], rows of the two seeds.
        place_P: int64 [P], each pair's row in what preparation counted per pair; None where both
            sides are the same seed, whose own counts apply.
        key: random stream of the pairs' dropout.
    """

    first_P: Tensor
    second_P: Tensor
    place_P: Tensor | None
    key: int | Tensor


class PairModel(TemporalModel):
    """Base class of models whose embedding of a node depends on its partner.

    A subclass writes `alone`, what it computes per seed, and `beside`, the embeddings of both sides
    of some pairs. `encode` embeds each seed beside itself, so that embeddings can be asked for
    without a partner.
    """

    def alone(self, batch: PreparedBatch) -> Any:
        """Whatever depends on one seed only; handed to `beside`."""
        raise NotImplementedError

    def beside(self, batch: PreparedBatch, alone: Any, pairing: Pairing) -> Tensor:
        """[P, 2, D] embeddings of both sides of the pairs."""
        raise NotImplementedError

    def encode(self, batch: PreparedBatch, *state: Tensor) -> Encoded:
        """Each seed's embedding beside itself."""
        alone = self.alone(batch)
        parts = [
            self.beside(batch, alone, Pairing(row_P, row_P, None, batch.key))[:, 0]
            for row_P in _blocks(seed_count(batch), batch.root_R.device)
        ]
        return Encoded(torch.cat(parts) if parts else self.source_layer.weight[:0])

    def forward(self, batch: PreparedBatch, *state: Tensor) -> tuple[Tensor, Encoded]:
        """Logits [B, 1 + C]; embeddings belong to pairs, so none are encoded."""
        B, alone = batch.size, self.alone(batch)
        first_P, second_P = pair_rows(batch)
        parts = []
        for place_P in _blocks(len(first_P), first_P.device):
            pairing = Pairing(first_P[place_P], second_P[place_P], place_P, batch.key)
            parts.append(self._scores(self.beside(batch, alone, pairing)))
        logit_P = torch.cat(parts) if parts else self.output_layer.weight.new_empty(0)
        return logit_P.view(B, 1 + batch.candidates), Encoded(self.output_layer.weight[:0])

    def _scores(self, side_P2D: Tensor) -> Tensor:
        """o . relu(A z_u + B z_v + c) of each pair."""
        source, target, output = self.source_layer, self.target_layer, self.output_layer
        hidden_PD = product(side_P2D[:, 0], source.weight.t(), source.bias)
        hidden_PD = torch.relu(hidden_PD + product(side_P2D[:, 1], target.weight.t()))
        return (hidden_PD @ output.weight[0]) + output.bias


def _blocks(rows: int, device: torch.device) -> list[Tensor]:
    """Row numbers, block by block; one block where gradients are kept anyway."""
    size = max(rows, 1) if torch.is_grad_enabled() else _BLOCK
    return [
        torch.arange(first, min(first + size, rows), device=device)
        for first in range(0, rows, size)
    ]


def seed_count(batch: PreparedBatch) -> int:
    """S, distinct (node, time) seeds of the roots."""
    return len(batch.root_uses.indptr_R1) - 1


def pair_rows(batch: PreparedBatch) -> tuple[Tensor, Tensor]:
    """Seeds of each pair's source and candidate, event by event, the true target first."""
    B, C = batch.size, batch.candidates
    root_R = batch.root_R.long()
    candidate_BX = torch.cat([root_R[B : 2 * B, None], root_R[2 * B :].view(B, C)], dim=1)
    return root_R[:B].repeat_interleave(1 + C), candidate_BX.reshape(-1)


def counts_of(own_S: Tensor, across_P2: Tensor, pairing: Pairing) -> tuple[Tensor, Tensor]:
    """[P, 2, ...] counts of each side's entries in its own history and in the partner's."""
    own_P2 = torch.stack([own_S[pairing.first_P], own_S[pairing.second_P]], dim=1)
    return own_P2, own_P2 if pairing.place_P is None else across_P2[pairing.place_P]
