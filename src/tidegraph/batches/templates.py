"""Templates: a few fixed shapes that every batch of a plan is padded to.

A step of fixed shapes can be compiled once and captured once. `TemplateSet.fit` chooses the shapes
from the batches of a plan, `pad` puts a batch into one. Padding stands at the end of every axis and
is inert by construction: nothing real refers to it, transposes do not list it, its writes go to a
row of the state that is no node, and what it computes is left out of the loss.

Shape legend: as in `prepared`; n batches of a sample, d size classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
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
from tidegraph.errors import SettingError

_ALIGNMENT = 16  # bytes, as for the block of `move_as_one`
_STEP = 8  # sizes are multiples of it
_MARGIN = 0.02  # room above the largest sampled size: other epochs draw other negatives
_HEADROOM = 0.8  # of the bound on waste, for batches that were not sampled
_KNOWN = {
    "number", "version", "key", "event_B", "root_R", "root_uses", "candidates", "node_U", "hops",
    "mail", "writes", "features", "node_features", "event_E", "padding", "seeds", "ends", "shared",
    "walks",
}  # fmt: skip


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


# ---------------------------------------------------------------- padding


def pad(batch: PreparedBatch, template: Template, block: Tensor | None = None) -> PreparedBatch:
    """The batch in the shapes of `template`: real rows first, then padding.

    Args:
        batch: on the host, not padded; it fits the template (`TemplateSet.choose`).
        template: the shape.
        block: where to put it, uint8 of `template.bytes`; a new one by default. It crosses to a
            device in one copy (`Template.on` gives the same views there).

    Returns:
        A batch whose tensors are views of the block, but for features that are the whole store or
        are fetched later.

    Raises:
        SettingError: the batch does not fit.
    """
    sizes = sizes_of(batch)
    if not template.fits(sizes) or batch.padding is not None:
        raise SettingError(f"a batch of {sizes} does not fit the template of {template.sizes}")
    if block is None:
        block = torch.empty(template.bytes, dtype=torch.uint8)
    out = template.on(block)
    nodes, last = template.sizes.nodes, len(out.root_uses.indptr_R1) - 1
    assert isinstance(out.key, Tensor)
    assert out.padding is not None
    key = int(batch.key)
    out.key.fill_(key - ((key & 1 << 63) << 1))  # the same 64 bits, signed
    _fill(out.event_B, batch.event_B, -1)
    _pad_roots(batch, out, last)
    # Padding reads and writes a row of the state that is no node.
    _fill(out.node_U, batch.node_U, template.scratch)
    rows = nodes
    for hop, padded_hop in zip(batch.hops, out.hops, strict=True):
        _pad_hop(hop, padded_hop, rows)
        rows = len(padded_hop.self_S)
    if batch.mail is not None and out.mail is not None:
        _fill(out.mail.row_M, batch.mail.row_M, nodes - 1)
        _fill_indptr(out.mail.indptr_M1, batch.mail.indptr_M1)
        _fill(out.mail.event_L, batch.mail.event_L, 0)
        _fill(out.mail.delta_L, batch.mail.delta_L, 0)
    if batch.writes is not None and out.writes is not None:
        _fill(out.writes.node_W, batch.writes.node_W, template.scratch)
        _fill(out.writes.row_W, batch.writes.row_W, nodes - 1)
        _fill_indptr(out.writes.indptr_W1, batch.writes.indptr_W1)
        _fill(out.writes.partner_row_P, batch.writes.partner_row_P, nodes - 1)
    _pad_beside(batch, out, last)
    out.padding.event_count.fill_(sizes.events)
    out.padding.seed_count.fill_(len(batch.root_uses.indptr_R1) - 1)
    out.padding.node_count.fill_(sizes.nodes)
    if out.padding.feature_count is not None:
        out.padding.feature_count.fill_(sizes.features)
    return replace(
        out,
        number=batch.number,
        version=batch.version,
        features=_pad_features(batch, out, template),
        node_features=_pad_node_features(batch, out, template),
        padding=replace(out.padding, size=sizes.events),
    )


def _fill(out: Tensor, real: Tensor, padding: int) -> None:
    count = len(real)
    out[:count].copy_(real)
    out[count:].fill_(padding)


def _fill_indptr(out_R1: Tensor, real_R1: Tensor) -> None:
    """Padding rows have no uses: their borders are all the last one."""
    count = len(real_R1)
    out_R1[:count].copy_(real_R1)
    out_R1[count:].copy_(real_R1[-1:].expand(len(out_R1) - count))


def _pad_uses(real: Uses, out: Uses) -> None:
    _fill_indptr(out.indptr_R1, real.indptr_R1)
    _fill(out.position_M, real.position_M, 0)


def _pad_hop(real: Hop, out: Hop, rows: int) -> None:
    """`rows`: of the table below, its last one being no real row."""
    _fill(out.self_S, real.self_S, rows - 1)
    for value, wide in (
        (real.neighbor_SK, out.neighbor_SK),
        (real.event_SK, out.event_SK),
        (real.delta_SK, out.delta_SK),
        (real.count_S, out.count_S),
    ):
        _fill(wide, value, 0)
    _pad_uses(real.self_uses, out.self_uses)
    _pad_uses(real.neighbor_uses, out.neighbor_uses)


def _pad_roots(real: PreparedBatch, out: PreparedBatch, seeds: int) -> None:
    """Roots are three groups (sources, targets, negatives), and each is padded at its end."""
    B, room, C = real.size, out.size, real.candidates
    for start, wide_start, count, wide in (
        (0, 0, B, room),
        (B, room, B, room),
        (2 * B, 2 * room, B * C, room * C),
    ):
        _fill(
            out.root_R[wide_start : wide_start + wide],
            real.root_R[start : start + count],
            seeds - 1,
        )
    _fill_indptr(out.root_uses.indptr_R1, real.root_uses.indptr_R1)
    position_M, more = real.root_uses.position_M, room - B
    if more:
        position_M = position_M + more * (position_M >= B) + more * (position_M >= 2 * B)
    _fill(out.root_uses.position_M, position_M, 0)


def _pad_beside(real: PreparedBatch, out: PreparedBatch, seeds: int) -> None:
    """What some models ask for beside hops; `seeds`: of the roots, the last one never real."""
    nodes = len(out.node_U)
    if real.seeds is not None and out.seeds is not None:
        _fill(out.seeds.row_S, real.seeds.row_S, nodes - 1)
        _pad_uses(real.seeds.row_uses, out.seeds.row_uses)
        _fill(out.seeds.time_S, real.seeds.time_S, 0)
        if real.seeds.elapsed_S is not None and out.seeds.elapsed_S is not None:
            _fill(out.seeds.elapsed_S, real.seeds.elapsed_S, 0)
    if real.ends is not None and out.ends is not None:
        _fill(out.ends.seed_W, real.ends.seed_W, seeds - 1)
        _fill(out.ends.partner_seed_P, real.ends.partner_seed_P, seeds - 1)
    if real.shared is not None and out.shared is not None:
        _fill(out.shared.own_SJ, real.shared.own_SJ, 0)
        _fill(out.shared.across_P2J, real.shared.across_P2J, 0)
    if real.walks is not None and out.walks is not None:
        _fill(out.walks.self_S, real.walks.self_S, nodes - 1)
        for name in ("node_SML", "event_SML", "delta_SML", "length_SM", "own_SMII", "across_P2MII"):
            _fill(getattr(out.walks, name), getattr(real.walks, name), 0)


def _pad_features(batch: PreparedBatch, out: PreparedBatch, template: Template) -> Tensor:
    if template.form.table_rows is not None:
        return batch.features
    if out.event_E is not None:
        if batch.event_E is not None:
            _fill(out.event_E, batch.event_E, 0)
        else:
            out.event_E.fill_(0)  # rows that a store decoded for this batch have no names
    if template.form.deferred:
        return batch.features
    _fill(out.features, batch.features, 0)
    return out.features


def _pad_node_features(
    batch: PreparedBatch, out: PreparedBatch, template: Template
) -> Tensor | None:
    if out.node_features is None or batch.node_features is None:
        return None
    if template.form.deferred:
        return batch.node_features
    _fill(out.node_features, batch.node_features, 0)
    return out.node_features


def inert(batch: PreparedBatch) -> PreparedBatch:
    """The batch with zeros in the padding rows of its numbers, whatever they held.

    A row that nothing refers to still meets the gradient of a product over the whole table: zero
    times NaN is NaN. So padding is replaced rather than trusted. (Times of slots and of mails are
    replaced by the operators that read them.)
    """
    padding = batch.padding
    if padding is None:
        return batch
    features, node_features = batch.features, batch.node_features
    if padding.feature_count is not None:
        features = real_rows(features, padding.feature_count)
    if node_features is not None:
        node_features = real_rows(node_features, padding.node_count)
    seeds, walks = batch.seeds, batch.walks
    if seeds is not None:
        elapsed_S = seeds.elapsed_S
        if elapsed_S is not None:
            elapsed_S = real_rows(elapsed_S, padding.seed_count)
        time_S = real_rows(seeds.time_S, padding.seed_count)
        seeds = replace(seeds, time_S=time_S, elapsed_S=elapsed_S)
    if walks is not None:
        pair_count = padding.event_count * (1 + batch.candidates)
        walks = replace(
            walks,
            delta_SML=real_rows(walks.delta_SML, padding.seed_count),
            own_SMII=real_rows(walks.own_SMII, padding.seed_count),
            across_P2MII=real_rows(walks.across_P2MII, pair_count),
        )
    return replace(batch, features=features, node_features=node_features, seeds=seeds, walks=walks)


def real_rows(rows_X: Tensor, count: Tensor) -> Tensor:
    """The first `count` rows of [X, ...] as they are, zeros after them."""
    real_X = torch.arange(len(rows_X), dtype=torch.int32, device=rows_X.device) < count
    return rows_X.masked_fill(~real_X.view(-1, *[1] * (rows_X.ndim - 1)), 0)


# ---------------------------------------------------------------- choosing


@dataclass(frozen=True)
class TemplateSet:
    """The templates of a plan, smallest first.

    Attributes:
        templates: by number of rows, ascending.
        expected_waste: padding rows per real row over the batches that they were chosen from.
    """

    templates: tuple[Template, ...]
    expected_waste: float

    @classmethod
    def fit(
        cls,
        batches: Iterable[PreparedBatch],
        *,
        num_nodes: int,
        most: int = 12,
        waste: float = 0.15,
    ) -> TemplateSet:
        """Choose as few templates as keep padding below a bound, for batches such as these.

        The sampled batches are put in order of their rows and cut into runs; a run's template holds
        the largest of each of its sizes, and a little more. The cuts are the best there are
        (dynamic programming), so the choice depends on nothing but the sizes.

        Args:
            batches: not padded, of one form; only their sizes are kept.
            num_nodes: N of the node state.
            most: how many templates at most.
            waste: padding rows per real row to stay below; with `most` templates more may be left.

        Raises:
            SettingError: no batches, or batches that can share no template.

        >>> TemplateSet.fit([], num_nodes=3)
        Traceback (most recent call last):
        tidegraph.errors.SettingError: templates are chosen from prepared batches: there are none
        """
        forms, found = set(), []
        for batch in batches:
            forms.add(form_of(batch))
            found.append(sizes_of(batch))
        if not found:
            raise SettingError("templates are chosen from prepared batches: there are none")
        form, whole = _common_form(forms)
        vectors_nd = np.array([sizes.vector() for sizes in found], np.int64)
        if whole:
            vectors_nd[:, -1] = 0
        order_n = np.lexsort([*vectors_nd.T, vectors_nd.sum(1)])
        vectors_nd = vectors_nd[order_n]
        room = _Room(np.array([True, *[True] * len(found[0].seeds), True, form.mail, form.mail,
                               form.writes, form.writes, not whole]))  # fmt: skip
        cuts, spent = _best_cuts(vectors_nd, room, most, _HEADROOM * waste)
        one_each = bool((vectors_nd[:, -2] == vectors_nd[:, -3]).all())
        chosen = {
            Template(form, room.sizes(vectors_nd[first:last].max(0), one_each), num_nodes)
            for first, last in pairwise(cuts)
        }
        ordered = sorted(chosen, key=lambda t: (t.sizes.rows, t.sizes.vector()))
        return cls(tuple(ordered), spent / max(int(vectors_nd.sum()), 1))

    def choose(self, batch: PreparedBatch) -> Template | None:
        """The smallest template that the batch fits, None if there is none."""
        if batch.padding is not None or not _paddable(batch):
            return None
        form, sizes = form_of(batch), sizes_of(batch)
        for template in self.templates:
            own = template.form
            if own.table_rows is None and form.table_rows is not None:
                form = replace(form, table_rows=None)  # decoded for this batch
            if own == form and template.fits(sizes):
                return template
        return None


def _paddable(batch: PreparedBatch) -> bool:
    """Everything in the batch is known here; what another model adds is not."""
    return all(
        field.name in _KNOWN or getattr(batch, field.name) in (None, ()) for field in fields(batch)
    )


def _common_form(forms: set[Form]) -> tuple[Form, bool]:
    """The one form of all batches, and whether their features are the whole store."""
    if len(forms) > 1 and len({replace(form, table_rows=None) for form in forms}) == 1:
        # Stores that kernels cannot read in place are decoded for each batch.
        forms = {replace(form, table_rows=None) for form in forms}
    if len(forms) > 1:
        raise SettingError(
            f"templates need batches of one form, and there are {len(forms)}: prepare them with "
            "the same model, candidates and features"
        )
    (form,) = forms
    return form, form.table_rows is not None


@dataclass(frozen=True, eq=False)
class _Room:
    """How large a template must be for batches up to some size.

    Attributes:
        present_d: [d] bool, size classes that the batches have.
    """

    present_d: np.ndarray

    def of(self, largest_d: np.ndarray) -> np.ndarray:
        """A dummy row, some room, a round number: [..., d] from [..., d]."""
        most_d = np.ceil(largest_d * (1 + _MARGIN)) + 1
        room_d: np.ndarray = (-(-most_d // _STEP) * _STEP).astype(np.int64) * self.present_d
        room_d[..., 0] = largest_d[..., 0]  # a plan's batch size is its largest
        return room_d

    def sizes(self, largest_d: np.ndarray, one_each: bool) -> Sizes:
        """The same for one run of batches."""
        sizes = Sizes.of_vector(self.of(largest_d))
        if one_each:
            return sizes
        # As many partners as writes would read as one partner each.
        return replace(sizes, partners=max(sizes.partners, sizes.writes + _STEP))


def _best_cuts(
    vectors_nd: np.ndarray, room: _Room, most: int, waste: float
) -> tuple[list[int], int]:
    """Borders of the runs, and the padding rows that they cost.

    The fewest runs with at most `waste` padding rows per real one; if none do, the best of `most`.
    """
    n = len(vectors_nd)
    real_n1 = np.concatenate([[0], vectors_nd.sum(1).cumsum()])
    cost = np.full((n + 1, n + 1), np.inf)  # of the run [first, last)
    for first in range(n):
        rows = room.of(np.maximum.accumulate(vectors_nd[first:], axis=0)).sum(1)
        count = np.arange(1, n - first + 1)
        cost[first, first + 1 :] = rows * count - (real_n1[first + 1 :] - real_n1[first])
    best = np.where(np.arange(n + 1) == 0, 0.0, np.inf)
    came: list[np.ndarray] = []
    for _ in range(min(most, n)):
        total = best[:, None] + cost
        came.append(total.argmin(0))
        best = total.min(0)
        if best[n] <= waste * real_n1[n]:
            break
    cuts = [n]
    for origin in reversed(came):
        cuts.append(int(origin[cuts[-1]]))
    return cuts[::-1], int(best[n])
