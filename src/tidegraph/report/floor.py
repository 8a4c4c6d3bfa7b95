"""The matrix-product floor of a TGN step: how long its bare matrix products take here.

Whatever an implementation does, it multiplies these matrices: those of the memory update, of the
attention layers with folded projections, and of the decoder; forward, and the two products of each
backward (one where no gradient flows on: stored memory has none). Everything else (gathers,
softmax, element-wise work, optimiser, preparation) is what a step can lose against its floor.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from tidegraph.batches.prepared import PreparedBatch
from tidegraph.models.layers import AttentionLayer
from tidegraph.models.tgn import TGN


@dataclass(frozen=True)
class Product:
    """`count` products of [rows, inner] by [inner, columns] in one call.

    Attributes:
        count, rows, inner, columns: sizes.
    """

    count: int
    rows: int
    inner: int
    columns: int

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.count * self.rows * self.inner * self.columns


def _with_backward(rows: int, inner: int, columns: int, count: int = 1) -> list[Product]:
    """y = x W, the gradient of x, the gradient of W."""
    return [
        Product(count, rows, inner, columns),
        Product(count, rows, columns, inner),
        Product(count, inner, rows, columns),
    ]


def training_products(model: TGN, batch: PreparedBatch) -> list[Product]:
    """The products of one training step on `batch` (a fixed time code)."""
    mails = 0 if batch.mail is None else len(batch.mail.row_M)
    gates, inputs = model.memory_cell.weight_ih.shape
    width = model.memory_width
    own = width if model.memory_cell.cell == "gru" else 0  # an RNN's two matrices are summed
    found = [Product(1, mails, inputs, gates), Product(1, inputs, mails, gates)]
    if own:
        found += [Product(1, mails, own, own), Product(1, own, mails, own)]
    for layer, hop in zip(model.attention, batch.hops, strict=True):
        assert isinstance(layer, AttentionLayer)
        S, (H, d, W) = len(hop.self_S), layer.key.shape
        E, D = H * d, layer.query.weight.shape[1]
        found += _with_backward(S, D, E)
        found += _with_backward(S, d, W, count=H)
        found += _with_backward(S, W, d, count=H)
        found += _with_backward(S, E + D, E)
        found += _with_backward(S, E, E)
    E = model.embedding_width
    found += _with_backward(batch.size, E, E)
    found += _with_backward(batch.size * (1 + batch.candidates), E, E)
    return [product for product in found if product.operations]


class Floor:
    """Multiplies matrices of given sizes, in buffers that exist beforehand."""

    def __init__(self, products: list[Product]) -> None:
        self._operands = [
            (
                torch.randn(p.count, p.rows, p.inner),
                torch.randn(p.count, p.inner, p.columns),
                torch.empty(p.count, p.rows, p.columns),
            )
            for p in products
        ]

    def run(self) -> float:
        """Seconds that the products take, one after the other."""
        started = time.perf_counter()
        for a, b, out in self._operands:
            if len(a) == 1:
                torch.mm(a[0], b[0], out=out[0])
            else:
                torch.bmm(a, b, out=out)
        return time.perf_counter() - started
