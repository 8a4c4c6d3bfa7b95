"""Delivered mails are the mean of what reaches each receiver, written out event by event."""

from __future__ import annotations

import pytest
import torch

from tidegraph import ops
from tidegraph.batches.prepared import Delivery
from tidegraph.ops import use_backend

# Of four events, the receivers get: the first; the last two; all; the third, twice as latest.
REACHED = [[0], [2, 3], [0, 1, 2, 3], [2]] * 40  # more receivers than a block has
ROOTS = [5, 0, 3, 3, 1, 2, 4, 0, 6, 6, 6, 6]  # sources, targets, negatives


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("width", [0, 3])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_mails_are_means(kind: torch.dtype, stored: torch.dtype, width: int, backend: str) -> None:
    generator = torch.Generator().manual_seed(8)
    seed_SD = torch.randn(7, 5, generator=generator).to(kind).requires_grad_()
    # Without features the table has no row for each event.
    features_EF = torch.randn(6 if width else 1, width, generator=generator).to(stored)
    row_B = [4, 0, 5, 1]
    sizes = torch.tensor([0, *map(len, REACHED)])
    delivery = Delivery(
        node_V=torch.arange(len(REACHED), dtype=torch.int32),
        indptr_V1=sizes.cumsum(0).int(),
        event_X=torch.tensor([e for events in REACHED for e in events], dtype=torch.int32),
        time_V=torch.zeros(len(REACHED), dtype=torch.int64),
        feature_B=torch.tensor(row_B, dtype=torch.int32),
    )
    with use_backend(backend):
        found = ops.delivered_mails(
            seed_SD, torch.tensor(ROOTS, dtype=torch.int32), features_EF, delivery
        )
    assert found.dtype == kind
    assert not found.requires_grad
    assert found.shape == (len(REACHED), 5 + width)
    for v, events in enumerate(REACHED):
        mails = []
        for e in events:
            both = seed_SD[ROOTS[e]].double() + seed_SD[ROOTS[4 + e]].double()
            own = features_EF[row_B[e]].double() if width else both[:0]
            mails.append(torch.cat([both, own]))
        torch.testing.assert_close(
            found[v].double(), torch.stack(mails).mean(0).detach(), rtol=1e-6, atol=1e-6
        )
