"""Mails as they are delivered: for each receiver the mean over the events that reach it (APAN).

Shape legend: S seeds, D embedding width, R roots, B events, E rows of the feature table, F feature
width, V receivers, X pairs of receiver and event, M = D + F mail width.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel
from tidegraph.batches.prepared import Delivery
from tidegraph.ops import functions
from tidegraph.ops.arrays import array_of
from tidegraph.ops.feature_rows import add_features, feature_array
from tidegraph.ops.segment import segment_mean

_BLOCK = 64


@kernel(block=True, contract=True)
def _mail_block(  # type: ignore[no-untyped-def]
    first, last, seed_SD, root_R, features_EF, feature_B, indptr_V1, event_X, mail_VM
):
    D, B = seed_SD.shape[1], feature_B.shape[0]
    for v in range(first, last):
        for j in range(mail_VM.shape[1]):
            mail_VM[v, j] = 0
        begin, stop = indptr_V1[v], indptr_V1[v + 1]
        share = np.float32(1) / np.float32(stop - begin)
        for x in range(begin, stop):
            source, target = root_R[event_X[x]], root_R[B + event_X[x]]
            for j in range(D):
                mail_VM[v, j] += share * (seed_SD[source, j] + seed_SD[target, j])
            if features_EF.shape[1] > 0:
                add_features(mail_VM[v, D:], share, features_EF, feature_B[event_X[x]])


@kernel()
def deliver(seed_SD, root_R, features_EF, feature_B, indptr_V1, event_X, mail_VM):  # type: ignore[no-untyped-def]
    """mail[v] = the mean of [seed of source + seed of target ; features] over the events of v."""
    in_blocks(
        _mail_block, mail_VM.shape[0], _BLOCK,
        (seed_SD, root_R, features_EF, feature_B, indptr_V1, event_X, mail_VM),
    )  # fmt: skip


def delivered_mails(
    seed_SD: Tensor, root_R: Tensor, features_EF: Tensor, delivery: Delivery
) -> Tensor:
    """The mails [z_u + z_v ; x] of a batch's events, averaged by receiver (APAN).

    Args:
        seed_SD: [S, D] embeddings; no gradients flow through a mail.
        root_R: int32 [R], the seed of each root: the B sources, the B targets, and others.
        features_EF: [E, F] event features.
        delivery: who receives which event's mail.

    Returns:
        [V, D + F].
    """
    seed_SD = seed_SD.detach()
    if not functions._fast(seed_SD) or seed_SD.dtype != torch.float32:
        return composed_mails(seed_SD, root_R, features_EF, delivery)
    V, width = len(delivery.node_V), seed_SD.shape[1] + features_EF.shape[1]
    mail_VM = np.empty((V, width), np.float32)
    deliver(
        array_of(seed_SD), root_R.numpy(), feature_array(features_EF), delivery.feature_B.numpy(),
        delivery.indptr_V1.numpy(), delivery.event_X.numpy(), mail_VM,
    )  # fmt: skip
    return torch.from_numpy(mail_VM)


def composed_mails(
    seed_SD: Tensor, root_R: Tensor, features_EF: Tensor, delivery: Delivery
) -> Tensor:
    """`delivered_mails` from single operators."""
    B = len(delivery.feature_B)
    sum_BD = seed_SD[root_R[:B].long()] + seed_SD[root_R[B : 2 * B].long()]
    feature_BF = seed_SD.new_empty(B, 0)
    if features_EF.shape[1]:  # without features the table has no row for each event
        feature_BF = features_EF.index_select(0, delivery.feature_B).to(seed_SD.dtype)
    mail_BM = torch.cat([sum_BD, feature_BF], dim=1)
    return segment_mean(mail_BM, delivery.event_X, delivery.indptr_V1)
