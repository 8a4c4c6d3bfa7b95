"""Rows whose last matrix product waits for the next one, so that two matrices become one.

Scoring multiplies an embedding on into the decoder, and most embeddings are asked for nothing else:
the product that would make them is saved for every candidate.

Shape legend: S rows, J their width, D embedding width, E the next product's width.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tidegraph.ops.products import product


@dataclass(frozen=True, eq=False)
class Deferred:
    """The rows `row_SJ @ weight_DJ.T + bias_D`, not multiplied yet.

    >>> import torch
    >>> waiting = Deferred(torch.ones(2, 3), torch.eye(3), torch.zeros(3))
    >>> waiting.result().tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    row_SJ: Tensor
    weight_DJ: Tensor
    bias_D: Tensor

    def result(self) -> Tensor:
        """[S, D]."""
        return product(self.row_SJ, self.weight_DJ.t(), self.bias_D)

    def folded(self, weight_ED: Tensor) -> tuple[Tensor, Tensor]:
        """Matrix [E, J] and bias [E] that take `row_SJ` to `result() @ weight_ED.T`."""
        bias_1E = product(self.bias_D.unsqueeze(0), weight_ED.t())
        return product(weight_ED, self.weight_DJ), bias_1E[0]
