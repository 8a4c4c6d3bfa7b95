"""Templates: a few shapes hold every batch, and what stands in their padding changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import every
import tiny
from tidegraph.batches import PreparedBatch, TemplateSet, pad
from tidegraph.batches.padding import inert
from tidegraph.batches.templates import Template, sizes_of
from tidegraph.errors import SettingError
from tidegraph.models import MODELS as MODELS_BY_NAME
from tidegraph.models import TemporalModel
from tidegraph.ops import link_loss, use_backend
from tidegraph.state import NodeState, ScratchRows
from tidegraph.train.step import padded_loss

NAN = float("nan")
STREAM = tiny.random_stream(seed=1, count=23, nodes=7, node_feature_width=2)
MODELS: list[dict[str, Any]] = [
    {"layers": 1, "message": "last", "cell": "gru"},
    {"layers": 2, "message": "mean", "cell": "rnn"},
    {"layers": 2, "message": "last", "cell": "gru", "dropout": 0.4},
]


def prepared(stream: tiny.Stream, model: TemporalModel, size: int = 4, **options: Any):
    """Every batch of the stream, in order."""
    prep = tiny.preparer(stream, model.history, batch_size=size, **options)
    return [
        tiny.in_precision(prep.prepare(n, tiny.negatives(prep, n)), model)
        for n in range(len(prep.plan))
    ]


def fitted(batches: list[PreparedBatch], nodes: int, most: int = 3) -> TemplateSet:
    return TemplateSet.fit(batches, num_nodes=nodes, most=most)


# ---------------------------------------------------------------- choosing


@given(tiny.streams(), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=25)
def test_every_batch_that_was_looked_at_fits(stream: tiny.Stream, size: int, most: int) -> None:
    model = tiny.tgn(stream, message="mean", layers=2)
    batches = prepared(stream, model, size)
    found = fitted(batches, stream.num_nodes, most)
    assert 1 <= len(found.templates) <= most
    for batch in batches:
        template = found.choose(batch)
        assert template is not None
        room, has = template.sizes.vector(), sizes_of(batch).vector()
        # A whole store of features is no size class.
        assert all(a <= b for a, b in zip(has[:-1], room[:-1], strict=True))
        # One row of each table is left for padding to refer to.
        assert template.sizes.nodes > len(batch.node_U)
        assert all(b > len(h.self_S) for b, h in zip(template.sizes.seeds, batch.hops, strict=True))


def test_the_choice_depends_on_sizes_alone_and_not_on_their_order() -> None:
    batches = prepared(STREAM, tiny.tgn(STREAM))
    assert fitted(batches, 7) == fitted(batches[::-1], 7)


def test_more_templates_never_waste_more() -> None:
    #  sizes of 40 batches: growing neighbourhoods, as at the start of a stream
    batches = prepared(tiny.random_stream(seed=2, count=200, nodes=90), tiny.tgn(STREAM), 5)
    waste = [
        TemplateSet.fit(batches, num_nodes=90, most=most, waste=0.0).expected_waste
        for most in (1, 2, 4, 8)
    ]
    assert waste == sorted(waste, reverse=True)
    assert waste[-1] < waste[0]


def test_the_fewest_templates_that_keep_the_bound_are_taken() -> None:
    batches = prepared(tiny.random_stream(seed=2, count=200, nodes=90), tiny.tgn(STREAM), 5)
    loose = TemplateSet.fit(batches, num_nodes=90, waste=10.0)
    assert len(loose.templates) == 1
    tight = TemplateSet.fit(batches, num_nodes=90, waste=loose.expected_waste / 10.0)
    assert len(tight.templates) > 1


def test_a_batch_that_is_larger_or_of_another_form_fits_none() -> None:
    model = tiny.tgn(STREAM)
    found = fitted(prepared(STREAM, model, 2), 7)
    prep = tiny.preparer(STREAM, model.history, batch_size=20)
    assert found.choose(prep.prepare(0, tiny.negatives(prep, 0))) is None
    prep = tiny.preparer(STREAM, model.history, batch_size=2)
    assert found.choose(prep.prepare(3, tiny.negatives(prep, 3, count=2))) is None
    batch = tiny.in_precision(prep.prepare(3, tiny.negatives(prep, 3)), model)
    assert found.choose(batch) is not None
    assert found.choose(replace(batch, mail=None)) is None
    small = min(found.templates, key=lambda t: t.sizes.rows)
    larger = prepared(STREAM, model, 4)[3]
    with pytest.raises(SettingError, match="does not fit"):
        pad(larger, small)


def test_batches_of_two_forms_share_no_templates() -> None:
    one, two = (prepared(STREAM, tiny.tgn(STREAM, layers=layers))[0] for layers in (1, 2))
    with pytest.raises(SettingError, match="one form"):
        fitted([one, two], 7)


# ---------------------------------------------------------------- padding


def test_real_rows_stand_first_and_everything_lies_in_one_block() -> None:
    model = tiny.tgn(STREAM)
    batches = prepared(STREAM, model)
    template = fitted(batches, 7, most=1).templates[0]
    for batch in batches:
        block = torch.zeros(template.bytes, dtype=torch.uint8)
        padded = pad(batch, template, block)
        inside = range(block.data_ptr(), block.data_ptr() + block.numel())
        assert padded.node_U.data_ptr() in inside
        assert padded.hops[0].delta_SK.data_ptr() in inside
        B, room = batch.size, padded.size
        assert room == template.sizes.events
        assert torch.equal(padded.root_R[:B], batch.root_R[:B])
        assert torch.equal(padded.root_R[room : room + B], batch.root_R[B : 2 * B])
        assert torch.equal(padded.root_R[2 * room :][:B], batch.root_R[2 * B :])
        assert torch.equal(padded.node_U[: len(batch.node_U)], batch.node_U)
        # Padding reads and writes the row that is no node.
        assert set(padded.node_U[len(batch.node_U) :].tolist()) == {7}
        assert batch.writes is not None
        assert padded.writes is not None
        assert set(padded.writes.node_W[len(batch.writes.node_W) :].tolist()) == {7}
        same = template.on(block)
        assert int(same.key) & (2**64 - 1) == batch.key
        assert same.padding is not None
        assert int(same.padding.event_count) == B


@pytest.mark.parametrize("layers", [1, 2])
def test_transposes_list_the_real_uses_and_no_others(layers: int) -> None:
    model = tiny.tgn(STREAM, layers=layers)
    batches = prepared(STREAM, model)
    template = fitted(batches, 7, most=1).templates[0]
    for batch in batches:
        padded = pad(batch, template)
        B, room = batch.size, padded.size
        real = [*range(B), *range(room, room + B), *range(2 * room, 2 * room + B)]
        check_uses(padded.root_uses, padded.root_R, real)
        for hop, wide in zip(batch.hops, padded.hops, strict=True):
            S, K = wide.neighbor_SK.shape
            check_uses(wide.self_uses, wide.self_S, range(len(hop.self_S)))
            used = [s * K + i for s in range(S) for i in range(int(wide.count_S[s]))]
            check_uses(wide.neighbor_uses, wide.neighbor_SK.reshape(-1), used)


def check_uses(uses: Any, index: Tensor, real: Any) -> None:
    """For each row, exactly the real positions that name it, ascending."""
    for row in range(len(uses.indptr_R1) - 1):
        found = uses.position_M[uses.indptr_R1[row] : uses.indptr_R1[row + 1]].tolist()
        assert found == [p for p in real if int(index[p]) == row]


# ---------------------------------------------------------------- inert


def run(
    model: TemporalModel, batch: PreparedBatch, state: NodeState, rows: ScratchRows, garbage: bool
) -> tuple[list[Tensor], Tensor]:
    """Loss, gradients and state after one padded step; the state's dummy row at last."""
    if garbage:
        for table in rows.tables():
            table[-1] = NAN
    model.zero_grad()
    loss, changes = padded_loss(model, batch, *rows.read(batch))
    loss.backward()
    rows.write(batch, changes)
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    kept = [table.clone() for table in state.tables.values()]
    return [loss.detach(), *grads, *kept], rows.tables()[0]


def spoil(batch: PreparedBatch, real: PreparedBatch, draw: np.random.Generator) -> PreparedBatch:
    """NaN in every floating-point number of the padding, and other legal rows in its indices."""
    U, room_U = len(real.node_U), len(batch.node_U)

    def floats(table: Tensor | None, count: int) -> Tensor | None:
        if table is None:
            return None
        table = table.clone()
        table[count:] = NAN
        return table

    def indices(index: Tensor, count: int, low: int, high: int) -> Tensor:
        index = index.clone()
        index[count:] = torch.from_numpy(draw.integers(low, high, index[count:].shape)).int()
        return index

    hops, below, real_below = [], room_U, U
    for hop, own in zip(batch.hops, real.hops, strict=True):
        S = len(own.self_S)
        used = torch.arange(hop.neighbor_SK.shape[1]) < hop.count_S.unsqueeze(1)
        hops.append(
            replace(
                hop,
                # Padding seeds name padding rows, whichever.
                self_S=indices(hop.self_S, S, real_below, below),
                neighbor_SK=torch.where(used, hop.neighbor_SK, below - 1),
                event_SK=torch.where(used, hop.event_SK, len(batch.features) - 1),
                delta_SK=torch.where(used, hop.delta_SK, NAN),
            )
        )
        below, real_below = len(hop.self_S), S
    mail = batch.mail
    if mail is not None and real.mail is not None:
        L = len(real.mail.event_L)
        mail = replace(
            mail,
            row_M=indices(mail.row_M, len(real.mail.row_M), U, room_U),
            event_L=indices(mail.event_L, L, 0, len(batch.features)),
            delta_L=floats(mail.delta_L, L),
        )
    S = len(real.root_uses.indptr_R1) - 1
    seeds, walks = batch.seeds, batch.walks
    if seeds is not None:
        seeds = replace(seeds, elapsed_S=floats(seeds.elapsed_S, S))
    if walks is not None and real.walks is not None:
        walks = replace(
            walks,
            delta_SML=floats(walks.delta_SML, S),
            own_SMII=floats(walks.own_SMII, S),
            across_P2MII=floats(walks.across_P2MII, len(real.walks.across_P2MII)),
        )
    packed = batch.padding is not None and batch.padding.feature_count is not None
    return replace(
        batch,
        seeds=seeds,
        walks=walks,
        hops=tuple(hops),
        mail=mail,
        features=floats(batch.features, len(real.features)) if packed else batch.features,
        node_features=floats(batch.node_features, U),
    )


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("options", MODELS, ids=lambda o: f"{o['layers']}-{o['message']}")
@pytest.mark.parametrize("whole_key", [False, True])
def test_nan_in_all_padding_changes_nothing_bit_for_bit(
    options: dict[str, Any], compact: bool, backend: str, whole_key: bool
) -> None:
    model = tiny.tgn(STREAM, **options)
    batches = prepared(STREAM, model, compact=compact)
    found = fitted(batches, 7, most=2)
    (clean, clean_rows), (dirty, dirty_rows) = (
        (state, ScratchRows(state)) for state in (tiny.empty_state(model, 7) for _ in range(2))
    )
    draw = np.random.default_rng(0)
    with use_backend(backend):
        for batch in batches:
            template = found.choose(batch)
            assert template is not None
            padded = pad(batch, template)
            if whole_key:  # the fused CPU layer takes a number
                padded = replace(padded, key=batch.key)
            expected, _ = run(model, padded, clean, clean_rows, garbage=False)
            spoiled = spoil(padded, batch, draw)
            assert torch.isnan(spoiled.hops[-1].delta_SK).any()
            results, scratch = run(model, spoiled, dirty, dirty_rows, garbage=True)
            for want, found_ in zip(expected, results, strict=True):
                assert torch.isfinite(want).all()
                assert torch.equal(want, found_)
            assert scratch.shape[0] == 8


PADDED = sorted(set(MODELS_BY_NAME) - {"apan"})  # APAN delivers mail, which no template knows


def stream_for(name: str) -> tiny.Stream:
    """GraphMixer lists encounters where nodes have features, which no template knows either."""
    return replace(STREAM, node_feature_width=0) if name == "graphmixer" else STREAM


@pytest.mark.parametrize("name", PADDED)
def test_nan_in_the_padding_changes_nothing_for_any_model(name: str) -> None:
    stream = stream_for(name)
    model = every.small(name, stream).train()
    batches = prepared(stream, model, compact=True)
    found = fitted(batches, 7, most=2)
    states = [tiny.empty_state(model, 7) for _ in range(2)]
    rows = [ScratchRows(state) for state in states]
    draw = np.random.default_rng(0)
    for batch in batches:
        padded = pad(batch, _choose(found, batch))
        expected, _ = run(model, padded, states[0], rows[0], garbage=False)
        results, _ = run(model, spoil(padded, batch, draw), states[1], rows[1], garbage=True)
        for want, result in zip(expected, results, strict=True):
            assert torch.isfinite(want).all()
            assert torch.equal(want, result)


@pytest.mark.parametrize("name", PADDED)
def test_a_padded_step_of_any_model_is_the_step(name: str) -> None:
    stream = stream_for(name)
    model = every.small(name, stream).train()
    batches = prepared(stream, model)
    check_padded_steps(model, batches, [fitted(batches, 7, most=3)])


@pytest.mark.parametrize("options", MODELS, ids=lambda o: f"{o['layers']}-{o['message']}")
def test_a_padded_step_is_the_step(options: dict[str, Any]) -> None:
    """Loss, gradients and state as without padding; padding more changes nothing either."""
    model = tiny.tgn(STREAM, **options).double()
    batches = prepared(STREAM, model)
    sets = [fitted(batches, 7, most=3), fitted(prepared(STREAM, model, 8), 7, most=1)]
    check_padded_steps(model, batches, sets)


def check_padded_steps(
    model: TemporalModel, batches: list[PreparedBatch], sets: list[TemplateSet]
) -> None:
    plain = tiny.empty_state(model, 7)
    states = [tiny.empty_state(model, 7) for _ in sets]
    rows = [ScratchRows(state) for state in states]
    for batch in batches:
        model.zero_grad()
        logit, encoded = model(batch, *plain.read(batch))
        loss = link_loss(logit)
        loss.backward()
        plain.write(batch, model.state_writes(batch, encoded))
        expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        for templates, state, scratch in zip(sets, states, rows, strict=True):
            padded = pad(batch, _choose(templates, batch))
            results, _ = run(model, padded, state, scratch, garbage=False)
            assert torch.allclose(results[0], loss, rtol=0, atol=1e-12)
            kept = results[len(results) - len(state.tables) :]
            for want, found in zip(expected, results[1 : -len(kept)], strict=True):
                assert torch.allclose(found, want, rtol=0, atol=1e-10)
            for table, want in zip(kept, plain.tables.values(), strict=True):
                assert torch.allclose(table, want, rtol=0, atol=1e-12)


def _choose(templates: TemplateSet, batch: PreparedBatch) -> Template:
    template = templates.choose(batch)
    assert template is not None
    return template


def test_a_store_that_is_decoded_for_each_batch_is_padded_too() -> None:
    """Two batches bring 5 and 9 rows of features: a size class, though none is named."""
    model = tiny.tgn(STREAM)
    batches = [
        replace(batch, features=batch.features[: 20 + number].clone())
        for number, batch in enumerate(prepared(STREAM, model))
    ]
    template = fitted(batches, 7, most=1).templates[0]
    padded = pad(batches[0], template)
    assert template.form.table_rows is None
    assert len(padded.features) == template.sizes.features > len(batches[0].features)
    assert fitted(batches, 7, most=1).choose(batches[-1]) == template
    cleaned = inert(replace(padded, features=torch.full_like(padded.features, NAN)))
    assert torch.isnan(cleaned.features[: len(batches[0].features)]).all()
    assert not cleaned.features[len(batches[0].features) :].any()
