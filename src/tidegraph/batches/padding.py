"""Padding: a batch put into a template, and what makes the rows that are not real inert.

Shape legend: as in `prepared`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tidegraph.batches.prepared import Hop, PreparedBatch, Uses
from tidegraph.batches.templates import Template, sizes_of
from tidegraph.errors import SettingError


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
