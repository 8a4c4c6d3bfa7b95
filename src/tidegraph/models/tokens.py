"""A seed's latest events as a row of tokens, newest first: what sequence models read.

Counted from the newest, a position means the same for every seed, however long its history.

Shape legend: S seeds, K slots, J = K + 1 places, T time-code width, F event-feature width,
G node-feature width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tidegraph.batches.prepared import Hop, PreparedBatch


@dataclass(frozen=True, eq=False)
class Tokens:
    """Which event, partner and time difference each token stands for; padding is row 0 and 0.

    Attributes:
        used_SK: bool, real tokens; they come first.
        event_SK: int64, rows of the event-feature table.
        neighbor_SK: int64, rows of the unique nodes.
        delta_SK: float32, query time minus event time.
    """

    used_SK: Tensor
    event_SK: Tensor
    neighbor_SK: Tensor
    delta_SK: Tensor


def newest_first(hop: Hop, fixed: bool = False) -> Tokens:
    """The hop's slots from the latest event back, as wide as the longest history needs.

    As wide as the hop on a GPU, where asking for the longest would wait for it, and where shapes
    are `fixed`, that is in a padded batch.
    """
    K = hop.neighbor_SK.shape[1]
    if not fixed and not hop.count_S.is_cuda and len(hop.count_S):
        K = min(K, max(int(hop.count_S.max()), 1))
    return take_tokens(hop, K)


def take_tokens(hop: Hop, width: int) -> Tokens:
    """The hop's latest `width` slots, newest first."""
    place_K = torch.arange(width, device=hop.count_S.device)
    slot_SK = hop.count_S.unsqueeze(1).long() - 1 - place_K
    used_SK = slot_SK >= 0
    slot_SK = slot_SK.clamp(0)

    def taken(value_SK: Tensor) -> Tensor:
        # Padding may hold anything, NaN included: it is replaced, not multiplied by zero.
        return value_SK.gather(1, slot_SK).masked_fill(~used_SK, 0)

    return Tokens(
        used_SK, taken(hop.event_SK).long(), taken(hop.neighbor_SK).long(), taken(hop.delta_SK)
    )


@dataclass(frozen=True, eq=False)
class Sequence:
    """The node itself, then its tokens: J = K + 1 places.

    Attributes:
        used_SJ: bool, real places; they come first.
        of_event_SJ: bool, those that stand for an event: all but the node itself.
        event_SJ: int64, rows of the event-feature table.
        row_SJ: int64, rows of the unique nodes.
        delta_SJ: float32, query time minus event time, 0 for the node itself.
    """

    used_SJ: Tensor
    of_event_SJ: Tensor
    event_SJ: Tensor
    row_SJ: Tensor
    delta_SJ: Tensor


def sequence_of(batch: PreparedBatch) -> Sequence:
    """Each seed's node and its latest events, newest first, over one layer of neighbours."""
    hop = batch.hops[0]
    found = newest_first(hop, batch.padding is not None)
    none_S1 = found.event_SK.new_zeros(len(found.event_SK), 1)

    def led(first_S1: Tensor, value_SK: Tensor) -> Tensor:
        return torch.cat([first_S1.to(value_SK.dtype), value_SK], dim=1)

    return Sequence(
        used_SJ=led(torch.ones_like(none_S1), found.used_SK),
        of_event_SJ=led(none_S1, found.used_SK),
        event_SJ=led(none_S1, found.event_SK),
        row_SJ=led(hop.self_S.unsqueeze(1), found.neighbor_SK),
        delta_SJ=led(none_S1, found.delta_SK),
    )


def event_rows(batch: PreparedBatch, event: Tensor, used: Tensor, like: Tensor) -> Tensor:
    """[..., F] event features of tokens, zeros where a token is not used; in `like`'s type."""
    if not batch.features.shape[1]:
        return like.new_empty(*event.shape, 0)
    return batch.features[event].to(like.dtype).masked_fill(~used.unsqueeze(-1), 0.0)


def node_rows(batch: PreparedBatch, like: Tensor) -> Tensor:
    """[U, G] features of the batch's nodes; G = 0 where the data has none."""
    if batch.node_features is None:
        return like.new_empty(len(batch.node_U), 0)
    return batch.node_features
