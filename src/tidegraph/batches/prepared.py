"""`PreparedBatch`: everything of a step that depends on past events only.

It is the one contract between preparation (history-bound, any number of batches ahead) and
execution (state-consuming). All fields are immutable tensors; nothing here depends on memory or on
parameters, and nothing in execution looks at the index.

Shape legend: B positive events, C negatives per event, S seeds (unique (node, time) pairs) of a
hop, K slots per seed, R rows of the table a hop reads, U unique nodes, M nodes with pending mail,
L mails, W nodes written, P partners or pairs (B (1 + C)), V nodes that mail is delivered to, E rows
of the event-feature table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Uses:
    """The transpose of an index: for each row, the positions that use it, in ascending order.

    With it, the backward pass of a gather is itself a gather: parallel, deterministic, no atomics.

    Attributes:
        indptr_R1: [R + 1] int32.
        position_M: int32 positions into the flattened index.
    """

    indptr_R1: Tensor
    position_M: Tensor


@dataclass(frozen=True, eq=False)
class Hop:
    """One attention layer's neighbourhoods, dense and of fixed fan-out.

    Rows refer to the table of the layer below: for the innermost hop the unique nodes, for an
    outer hop the seeds of the hop below. Slots are in chronological order from slot 0; slots at
    and beyond `count_S` are padding and hold row 0, event 0, difference 0.

    Attributes:
        self_S: int32 [S], the seed's own row in the table below.
        neighbor_SK: int32 [S, K], rows in the table below.
        event_SK: int32 [S, K], rows in the batch's event-feature table.
        delta_SK: float32 [S, K], query time minus event time, subtracted exactly.
        count_S: int32 [S], slots in use.
        self_uses, neighbor_uses: transposes of `self_S` and of the used slots of `neighbor_SK`.
    """

    self_S: Tensor
    neighbor_SK: Tensor
    event_SK: Tensor
    delta_SK: Tensor
    count_S: Tensor
    self_uses: Uses
    neighbor_uses: Uses


@dataclass(frozen=True, eq=False)
class Mail:
    """Which pending messages wait for the batch's nodes; the vectors are state, the rest is here.

    Attributes:
        row_M: int32 [M], rows (among the U unique nodes) with pending mail.
        indptr_M1: int32 [M + 1], each node's mails: one for message "last". Mails beyond the last
            border are padding.
        event_L: int32 [L], rows in the batch's event-feature table.
        delta_L: float32 [L], mail time minus the node's previous update time.
    """

    row_M: Tensor
    indptr_M1: Tensor
    event_L: Tensor
    delta_L: Tensor


@dataclass(frozen=True, eq=False)
class Writes:
    """What the step leaves behind: for each endpoint of the batch, whose memory is its new mail.

    Attributes:
        node_W: int32 [W], nodes of the graph, in order of first appearance.
        row_W: int32 [W], their rows among the U unique nodes.
        indptr_W1: int32 [W + 1] and partner_row_P: int32, rows of the partners whose (updated)
            memories form the new mail: one for message "last", all of the batch for "mean".
    """

    node_W: Tensor
    row_W: Tensor
    indptr_W1: Tensor
    partner_row_P: Tensor


@dataclass(frozen=True, eq=False)
class Seeds:
    """The roots' distinct (node, time) pairs, for models that read their times.

    Attributes:
        row_S: int32 [S], their rows among the U unique nodes.
        row_uses: transpose of `row_S`.
        time_S: [S] in the stream's time type, query times.
        elapsed_S: float32 [S], query time minus the time of the node's last event before the batch
            (of the stream's first event, where it has none); None where no mail is pending.
    """

    row_S: Tensor
    row_uses: Uses
    time_S: Tensor
    elapsed_S: Tensor | None


@dataclass(frozen=True, eq=False)
class Ends:
    """The seeds of the batch's endpoints, for models whose state is made of embeddings.

    Attributes:
        seed_W: int32 [W], of each written node (see `Writes`) at its last event of the batch.
        partner_seed_P: int32 [P], of the partners that form the new mail, each at its event.
    """

    seed_W: Tensor
    partner_seed_P: Tensor


@dataclass(frozen=True, eq=False)
class Delivery:
    """Who receives the batch's mail: the endpoints of its events and their latest neighbours.

    Attributes:
        node_V: int32 [V], nodes of the graph, distinct.
        indptr_V1: int32 [V + 1] and event_X: int32, positions among the batch's B events: the
            events whose mail reaches each node, ascending.
        time_V: [V] in the stream's time type, of the latest of them.
        feature_B: int32 [B], the events' rows in the batch's event-feature table.
    """

    node_V: Tensor
    indptr_V1: Tensor
    event_X: Tensor
    time_V: Tensor
    feature_B: Tensor


@dataclass(frozen=True, eq=False)
class Encounters:
    """Everyone each root met within a window of time, however many (`History.met_within`).

    Attributes:
        indptr_S1: int32 [S + 1], borders of the seeds of the last hop.
        neighbor_X: int32 [X], rows among the U unique nodes, oldest first, once per event.
        uses: transpose of `neighbor_X`.
    """

    indptr_S1: Tensor
    neighbor_X: Tensor
    uses: Uses


@dataclass(frozen=True, eq=False)
class Shared:
    """How often the nodes of a seed's sequence occur in its own and in a partner's sequence.

    A sequence is the seed's node, then its K neighbours, newest first: K + 1 places. A pair is a
    source with one of its candidates, event by event, the true target first. Padding counts 0.

    Attributes:
        own_SJ: int32 [S, K + 1], occurrences in the sequence itself.
        across_P2J: int32 [P, 2, K + 1], of the source's nodes in the candidate's sequence, and of
            the candidate's in the source's.
    """

    own_SJ: Tensor
    across_P2J: Tensor


@dataclass(frozen=True, eq=False)
class WalkSets:
    """Walks back in time from each seed, and where their nodes stand in them (`History.walks`).

    A walk is the seed's node (position 0) and up to L steps. Padding after a walk's end holds row
    0, event 0, difference 0 and counts 0.

    Attributes:
        self_S: int32 [S], the seeds' rows among the U unique nodes.
        node_SML: int32 [S, M, L], rows among the U unique nodes.
        event_SML: int32 [S, M, L], rows in the batch's event-feature table.
        delta_SML: float32 [S, M, L], time since a step's event, from where the step began.
        length_SM: int32 [S, M], steps of each walk.
        own_SMII: float32 [S, M, L + 1, L + 1], for a walk's position, the share of the seed's walks
            that have its node in each position.
        across_P2MII: float32 [P, 2, M, L + 1, L + 1], the same share among the partner's walks, for
            both sides of each pair (as in `Shared`).
    """

    self_S: Tensor
    node_SML: Tensor
    event_SML: Tensor
    delta_SML: Tensor
    length_SM: Tensor
    own_SMII: Tensor
    across_P2MII: Tensor


@dataclass(frozen=True, eq=False)
class Padding:
    """How many rows of a batch in fixed shapes are real; those after them are padding.

    The counts are tensors, so that one captured or compiled step serves every batch of a template.

    Attributes:
        size: the number of real events as a plain number, 0 where only the tensor knows it.
        event_count: int32 [], real events.
        node_count: int32 [], real unique nodes.
        seed_count: int32 [], real seeds of the roots.
        feature_count: int32 [], real rows of `features`; None where they are the whole store.
    """

    size: int
    event_count: Tensor
    node_count: Tensor
    seed_count: Tensor
    feature_count: Tensor | None


@dataclass(frozen=True, eq=False)
class PreparedBatch:
    """One batch, ready to execute against state version `version`.

    Attributes:
        number: position of the batch in its plan.
        version: state version this batch reads; executing it publishes `number + 1`.
        key: 64-bit key of the batch's random streams (dropout); a tensor (int64 []) in fixed
            shapes, where a number would be baked into the captured step.
        event_B: int64 [B], event ids (positions in the stream).
        root_R: int32 [B * (2 + C)], seeds of the last hop: sources, then targets, then negatives
            (event by event).
        root_uses: transpose of `root_R`.
        candidates: C.
        node_U: int32 [U], nodes of the graph (one row per node and query time, where the memory
            update takes the query time).
        hops: innermost first; the last one's seeds are the roots.
        mail, writes: None for models without memory.
        features: [E, F] float32 or bfloat16, table of event features (the whole store, or the
            unique rows).
        node_features: [U, G] float32 or None.
        seeds, ends, delivery: None for models whose `History` does not ask for them.
        event_E: int32 [E], ids of the events whose features the batch uses, where only those are
            in `features`; None where `features` is the whole store.
        met, shared, walks: what `History` asks for beside hops, or None.
        padding: what is real in a batch of fixed shapes (`batches.templates`), else None.

    A batch may be *deferred*: its rows of features are named, not copied (`features` and
    `node_features` have no rows), because a device may hold some of them already.
    """

    number: int
    version: int
    key: int | Tensor
    event_B: Tensor
    root_R: Tensor
    root_uses: Uses
    candidates: int
    node_U: Tensor
    hops: tuple[Hop, ...]
    mail: Mail | None
    writes: Writes | None
    features: Tensor
    node_features: Tensor | None
    event_E: Tensor | None = None
    seeds: Seeds | None = None
    ends: Ends | None = None
    delivery: Delivery | None = None
    met: Encounters | None = None
    shared: Shared | None = None
    walks: WalkSets | None = None
    padding: Padding | None = None

    @property
    def size(self) -> int:
        """Number of positive events, B (padding included)."""
        return int(self.event_B.shape[0])

    @property
    def deferred(self) -> bool:
        """Rows of features are missing until they are fetched by `event_E` and `node_U`."""
        return not len(self.features) or (
            self.node_features is not None and len(self.node_features) < len(self.node_U)
        )

    def to(self, device: torch.device | str) -> PreparedBatch:
        """The same batch with every tensor on `device`; to a GPU they cross as one block."""
        device = torch.device(device)
        tensors = tensors_of(self)
        if device.type == "cpu":
            moved = [tensor.to(device) for tensor in tensors]
        else:
            moved = move_as_one(tensors, device)
        return _rebuild(self, iter(moved))


def tensors_of(batch: PreparedBatch) -> list[Tensor]:
    """Every tensor of a batch, in a fixed order."""
    tensors: list[Tensor] = []
    _collect(batch, tensors)
    return tensors


_T = TypeVar("_T")
_ALIGNMENT = 16  # bytes; what vectorised loads of a GPU want


def move_as_one(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy tensors to `device` in a single transfer: a batch has thirty, most of them small.

    On a GPU the block is pinned, so that the copy runs while the host goes on; PyTorch's pinned
    allocator does not hand it out again before the copy is done.
    """
    starts, size = [], 0
    for tensor in tensors:
        starts.append(size)
        size += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
    block = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for start, tensor in zip(starts, tensors, strict=True):
        _part(block, start, tensor).copy_(tensor)
    moved = block.to(device, non_blocking=True)
    return [_part(moved, start, tensor) for start, tensor in zip(starts, tensors, strict=True)]


def _part(block: Tensor, start: int, like: Tensor) -> Tensor:
    stop = start + like.numel() * like.element_size()
    return block[start:stop].view(like.dtype).view(like.shape)


def _collect(value: object, tensors: list[Tensor]) -> None:
    for field in vars(value).values():
        if isinstance(field, Tensor):
            tensors.append(field)
        elif isinstance(field, tuple):
            for item in field:
                _collect(item, tensors)
        elif hasattr(field, "__dataclass_fields__"):
            _collect(field, tensors)


def _rebuild(value: _T, tensors: Iterator[Tensor]) -> _T:
    """`value` with its tensors replaced, in the order of `_collect`."""
    changes: dict[str, object] = {}
    for name, field in vars(value).items():
        if isinstance(field, Tensor):
            changes[name] = next(tensors)
        elif isinstance(field, tuple):
            changes[name] = tuple(_rebuild(item, tensors) for item in field)
        elif hasattr(field, "__dataclass_fields__"):
            changes[name] = _rebuild(field, tensors)
    return replace(value, **changes)  # type: ignore[type-var]
