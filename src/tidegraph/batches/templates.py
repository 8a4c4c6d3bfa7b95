"""Templates: a few fixed shapes that every batch of a plan is padded to.

A step of fixed shapes can be compiled once and captured once. `TemplateSet.fit` chooses the shapes
from the batches of a plan (`template_sets.py`), `pad` puts a batch into one (`padding.py`). Padding
stands at the end of every axis and is inert by construction: nothing real refers to it, transposes
do not list it, its writes go to a row of the state that is no node, and what it computes stays out
of the loss.

Shape legend: as in `prepared`; n batches of a sample, d size classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tidegraph.batches.prepared import (
    Ends,
    Hop,
    Mail,
    Padding,
    PreparedBatch,
    Seeds,
    Shared,
    Uses,
    WalkSets,
    Writes,
)

_ALIGNMENT = 16  # bytes, as for the block of `move_as_one`


@dataclass(frozen=True)
class Sizes:
    """Rows of a batch along each axis; every one is a size class of a template.

    Attributes:
        events: B.
        seeds: S of each hop, innermost first; without hops, of the roots where they have seeds.
        nodes: U.
        mail_nodes, mails: M and L.
        writes, partners: W and P.
        features: E where the batch brings its rows of features, 0 where it refers to the store.
    """

    events: int
    seeds: tuple[int, ...]
    nodes: int
    mail_nodes: int
    mails: int
    writes: int
    partners: int
    features: int

    @property
    def rows(self) -> int:
        """All of them together: what padding is measured against."""
        return sum(self.vector())

    def vector(self) -> list[int]:
        """One number a size class."""
        return [
            self.events, *self.seeds, self.nodes, self.mail_nodes, self.mails, self.writes,
            self.partners, self.features,
        ]  # fmt: skip

    @classmethod
    def of_vector(cls, values: Iterable[int]) -> Sizes:
        """The reverse of `vector`."""
        events, *seeds, nodes, mail_nodes, mails, writes, partners, features = map(int, values)
        return cls(events, tuple(seeds), nodes, mail_nodes, mails, writes, partners, features)


@dataclass(frozen=True)
class Form:
    """What batches must have in common to share a template.

    Attributes:
        candidates: C.
        fanouts: K of each hop, innermost first.
        mail, writes: present or not.
        feature_width, feature_dtype: of `features`.
        table_rows: rows of `features` where they are the whole store; None where they are the
            batch's own.
        node_width, node_dtype: of `node_features`; width 0 for none.
        deferred: rows of features are fetched when the batch is executed.
        seed_time: type of the seeds' query times, None where seeds have none.
        elapsed: they have the time since their last event too.
        ends, shared: present or not.
        walks: M and L, None for none.
    """

    candidates: int
    fanouts: tuple[int, ...]
    mail: bool
    writes: bool
    feature_width: int
    feature_dtype: torch.dtype
    table_rows: int | None
    node_width: int
    node_dtype: torch.dtype
    deferred: bool
    seed_time: torch.dtype | None
    elapsed: bool
    ends: bool
    shared: bool
    walks: tuple[int, int] | None


def form_of(batch: PreparedBatch) -> Form:
    """The form of a batch; its features count as its own where it names them."""
    node = batch.node_features
    own = batch.event_E is not None
    walks = batch.event_B if batch.walks is None else batch.walks.node_SML
    return Form(
        candidates=batch.candidates,
        fanouts=tuple(int(hop.neighbor_SK.shape[1]) for hop in batch.hops),
        mail=batch.mail is not None,
        writes=batch.writes is not None,
        feature_width=int(batch.features.shape[1]),
        feature_dtype=batch.features.dtype,
        table_rows=None if own else len(batch.features),
        node_width=0 if node is None else int(node.shape[1]),
        node_dtype=torch.float32 if node is None else node.dtype,
        deferred=own and batch.deferred,
        seed_time=None if batch.seeds is None else batch.seeds.time_S.dtype,
        elapsed=batch.seeds is not None and batch.seeds.elapsed_S is not None,
        ends=batch.ends is not None,
        shared=batch.shared is not None,
        walks=None if batch.walks is None else (walks.shape[1], walks.shape[2]),
    )


def sizes_of(batch: PreparedBatch) -> Sizes:
    """The real sizes of a batch that is not padded."""
    mail, writes = batch.mail, batch.writes
    own = batch.features if batch.event_E is None else batch.event_E
    seeds = [len(hop.self_S) for hop in batch.hops]
    if not seeds and (batch.seeds is not None or batch.walks is not None):
        seeds = [len(batch.root_uses.indptr_R1) - 1]
    return Sizes(
        events=batch.size,
        seeds=tuple(seeds),
        nodes=len(batch.node_U),
        mail_nodes=0 if mail is None else len(mail.row_M),
        mails=0 if mail is None else len(mail.event_L),
        writes=0 if writes is None else len(writes.node_W),
        partners=0 if writes is None else len(writes.partner_row_P),
        features=len(own),
    )


Take = Callable[..., Tensor]


@dataclass(frozen=True)
class Template:
    """One fixed shape.

    Attributes:
        form: what must be equal.
        sizes: rows of each axis, padding included. The last row of seeds, nodes, mail nodes and
            writes is never real: it is what padding refers to.
        scratch: the row of the state that padding reads and writes, N.
    """

    form: Form
    sizes: Sizes
    scratch: int

    @cached_property
    def bytes(self) -> int:
        """Of the block that holds a batch of this shape."""
        total = 0

        def count(dtype: torch.dtype, *shape: int) -> Tensor:
            nonlocal total
            total += _aligned(math.prod(shape) * dtype.itemsize)
            return torch.empty(shape, dtype=dtype, device="meta")

        self._shell(count)
        return total

    def on(self, block: Tensor) -> PreparedBatch:
        """A batch whose tensors are views of `block` (uint8, `bytes` long), on any device.

        `features` (and `node_features`) of deferred batches and of whole stores have no rows: they
        do not travel in the block.
        """
        start = 0

        def cut(dtype: torch.dtype, *shape: int) -> Tensor:
            nonlocal start
            length = math.prod(shape) * dtype.itemsize
            view = block[start : start + length].view(dtype).view(shape)
            start += _aligned(length)
            return view

        return self._shell(cut)

    def _shell(self, take: Take) -> PreparedBatch:
        form, sizes, index = self.form, self.sizes, torch.int32
        of_hops = sizes.seeds[: len(form.fanouts)]
        tables = [sizes.nodes, *of_hops][: len(of_hops)]  # rows below each hop
        pairs = sizes.events * (1 + form.candidates)
        roots = sizes.events * (2 + form.candidates)
        last = sizes.seeds[-1] if sizes.seeds else sizes.nodes
        own = form.table_rows is None
        packed = own and not form.deferred
        nothing = torch.empty(0, form.feature_width, dtype=form.feature_dtype)
        node_rows = 0 if form.deferred else sizes.nodes
        return PreparedBatch(
            number=0,
            version=0,
            key=take(torch.int64),
            event_B=take(torch.int64, sizes.events),
            root_R=take(index, roots),
            root_uses=Uses(take(index, last + 1), take(index, roots)),
            candidates=form.candidates,
            node_U=take(index, sizes.nodes),
            hops=tuple(
                _hop_shell(take, S, K, rows)
                for S, K, rows in zip(of_hops, form.fanouts, tables, strict=True)
            ),
            mail=_mail_shell(take, sizes) if form.mail else None,
            writes=_writes_shell(take, sizes) if form.writes else None,
            features=(
                take(form.feature_dtype, sizes.features, form.feature_width) if packed else nothing
            ),
            node_features=(
                take(form.node_dtype, node_rows, form.node_width) if form.node_width else None
            ),
            event_E=take(index, sizes.features) if own else None,
            padding=Padding(0, take(index), take(index), take(index), take(index) if own else None),
            seeds=_seeds_shell(take, form, last, sizes.nodes),
            ends=Ends(take(index, sizes.writes), take(index, sizes.partners))
            if form.ends
            else None,
            shared=Shared(
                take(index, last, form.fanouts[-1] + 1),
                take(index, pairs, 2, form.fanouts[-1] + 1),
            )
            if form.shared
            else None,
            walks=_walks_shell(take, form.walks, last, pairs) if form.walks else None,
        )

    def fits(self, sizes: Sizes) -> bool:
        """A batch of these sizes (and of this form) can be padded to this template."""
        has, room = sizes, self.sizes
        one_each = room.partners == room.writes
        return (
            has.events <= room.events
            and all(a < b for a, b in zip(has.seeds, room.seeds, strict=True))
            and has.nodes < room.nodes
            and (has.mail_nodes < room.mail_nodes or not self.form.mail)
            and has.mails <= room.mails
            and (has.writes < room.writes or not self.form.writes)
            and has.partners <= room.partners
            and (has.partners == has.writes or not one_each)
            and (has.features <= room.features or self.form.table_rows is not None)
        )


def _aligned(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def _hop_shell(take: Take, S: int, K: int, rows: int) -> Hop:
    index = torch.int32
    return Hop(
        self_S=take(index, S),
        neighbor_SK=take(index, S, K),
        event_SK=take(index, S, K),
        delta_SK=take(torch.float32, S, K),
        count_S=take(index, S),
        self_uses=Uses(take(index, rows + 1), take(index, S)),
        neighbor_uses=Uses(take(index, rows + 1), take(index, S * K)),
    )


def _mail_shell(take: Take, sizes: Sizes) -> Mail:
    index = torch.int32
    return Mail(
        row_M=take(index, sizes.mail_nodes),
        indptr_M1=take(index, sizes.mail_nodes + 1),
        event_L=take(index, sizes.mails),
        delta_L=take(torch.float32, sizes.mails),
    )


def _writes_shell(take: Take, sizes: Sizes) -> Writes:
    index = torch.int32
    return Writes(
        node_W=take(index, sizes.writes),
        row_W=take(index, sizes.writes),
        indptr_W1=take(index, sizes.writes + 1),
        partner_row_P=take(index, sizes.partners),
    )


def _seeds_shell(take: Take, form: Form, S: int, nodes: int) -> Seeds | None:
    if form.seed_time is None:
        return None
    return Seeds(
        row_S=take(torch.int32, S),
        row_uses=Uses(take(torch.int32, nodes + 1), take(torch.int32, S)),
        time_S=take(form.seed_time, S),
        elapsed_S=take(torch.float32, S) if form.elapsed else None,
    )


def _walks_shell(take: Take, walks: tuple[int, int], S: int, pairs: int) -> WalkSets:
    M, L = walks
    index, number = torch.int32, torch.float32
    return WalkSets(
        self_S=take(index, S),
        node_SML=take(index, S, M, L),
        event_SML=take(index, S, M, L),
        delta_SML=take(number, S, M, L),
        length_SM=take(index, S, M),
        own_SMII=take(number, S, M, L + 1, L + 1),
        across_P2MII=take(number, pairs, 2, M, L + 1, L + 1),
    )
