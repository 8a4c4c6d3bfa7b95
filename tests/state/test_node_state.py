"""Node state: versions, what is written, and that copies and growth keep the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import tiny
from tidegraph.batches import History, PreparedBatch, Writes
from tidegraph.state import Column, NodeState, RingPush, RowWrite, VersionError
from tidegraph.state.columns import partner_mean


def batches(message: str = "last", size: int = 4) -> tuple[tiny.Stream, list[PreparedBatch]]:
    stream = tiny.random_stream(0, 12, nodes=7)
    prep = tiny.preparer(stream, History(message=message), size)  # type: ignore[arg-type]
    return stream, [prep.prepare(b, tiny.negatives(prep, b)) for b in range(len(prep.plan))]


def test_a_new_state_is_zero_at_version_zero() -> None:
    state = NodeState(3, 2)
    assert not state.memory_ND.any()
    assert not state.mail_ND.any()
    assert (state.version, state.num_nodes, state.device.type) == (0, 3, "cpu")


def test_read_returns_the_batchs_rows() -> None:
    _, (batch, *_) = batches()
    state = NodeState(7, 3)
    state.memory_ND, state.mail_ND = torch.randn(7, 3), torch.randn(7, 3)
    memory_UD, mail_UD = state.read(batch)
    assert torch.equal(memory_UD, state.memory_ND[batch.node_U.long()])
    assert torch.equal(mail_UD, state.mail_ND[batch.node_U.long()])
    memory_UD += 1.0  # a copy: what a computation does to it stays there
    assert not torch.equal(memory_UD, state.memory_ND[batch.node_U.long()])


@pytest.mark.parametrize("message", ["last", "mean"])
def test_write_stores_endpoints_and_their_partners(message: str) -> None:
    stream, prepared = batches(message, size=12)
    batch = prepared[0]
    state = NodeState(7, 2)
    updated_UD = torch.randn(len(batch.node_U), 2)
    state.write(batch, updated_UD)
    row = {node: u for u, node in enumerate(batch.node_U.tolist())}
    sent: dict[int, list[int]] = {}
    for u, v in zip(stream.source, stream.target, strict=True):
        sent.setdefault(u, []).append(v)
        if u != v:
            sent.setdefault(v, []).append(u)
    for node in range(7):
        if node not in sent:
            assert not state.memory_ND[node].any()
            assert not state.mail_ND[node].any()
            continue
        assert torch.equal(state.memory_ND[node], updated_UD[row[node]])
        partners = sent[node][-1:] if message == "last" else sent[node]
        expected = torch.stack([updated_UD[row[p]] for p in partners]).double().mean(0)
        assert torch.allclose(state.mail_ND[node].double(), expected, rtol=0, atol=1e-6)


def test_partner_mean_with_unequal_numbers_of_partners() -> None:
    writes = Writes(
        node_W=torch.tensor([5, 9], dtype=torch.int32),
        row_W=torch.tensor([0, 1], dtype=torch.int32),
        indptr_W1=torch.tensor([0, 1, 4], dtype=torch.int32),
        partner_row_P=torch.tensor([2, 0, 2, 2], dtype=torch.int32),
    )
    updated_UD = torch.tensor([[3.0, 0.0], [9.0, 9.0], [6.0, 1.5]])
    assert partner_mean(writes, updated_UD).tolist() == [[6.0, 1.5], [5.0, 1.0]]


def test_write_keeps_no_graph() -> None:
    _, (batch, *_) = batches()
    state = NodeState(7, 2)
    state.write(batch, torch.randn(len(batch.node_U), 2, requires_grad=True) * 2)
    assert not state.memory_ND.requires_grad
    assert not state.mail_ND.requires_grad


def test_versions_only_grow_and_must_match() -> None:
    _, prepared = batches()
    state = NodeState(7, 2)
    for number, batch in enumerate(prepared):
        for other in prepared:
            if other is not batch:
                with pytest.raises(VersionError, match=f"needs state version {other.version}"):
                    state.read(other)
        memory_UD, _ = state.read(batch)
        state.write(batch, memory_UD)
        assert state.version == number + 1


def test_a_batch_that_writes_nothing_leaves_the_vectors() -> None:
    _, (batch, *_) = batches()
    state = NodeState(7, 2)
    before = state.memory_ND.clone()
    state.write(replace(batch, writes=None), torch.ones(len(batch.node_U), 2))
    assert torch.equal(state.memory_ND, before)


def test_reset_forgets_everything() -> None:
    _, (batch, *_) = batches()
    state = NodeState(7, 2)
    empty = state.checksum()
    state.write(batch, torch.randn(len(batch.node_U), 2))
    assert state.checksum() != empty
    state.reset()
    assert state.checksum() == empty
    state.read(batch)  # version 0 again


def test_clone_is_independent() -> None:
    _, prepared = batches()
    state = NodeState(7, 2)
    state.write(prepared[0], torch.randn(len(prepared[0].node_U), 2))
    copy = state.clone()
    assert (copy.version, copy.num_nodes) == (1, 7)
    assert copy.checksum() == state.checksum()
    state.write(prepared[1], torch.randn(len(prepared[1].node_U), 2))
    assert copy.version == 1
    assert copy.checksum() != state.checksum()


def test_checksum_sees_version_memory_and_mail() -> None:
    sums = set()
    for change in ("none", "version", "memory", "mail"):
        state = NodeState(2, 2)
        if change == "version":
            state.version = 1
        elif change == "memory":
            state.memory_ND[1, 1] = 1e-30
        elif change == "mail":
            state.mail_ND[1, 1] = 1e-30
        sums.add(state.checksum())
    assert len(sums) == 4


def test_grow_keeps_old_nodes_and_adds_zeros() -> None:
    state = NodeState(2, 3)
    state.memory_ND, state.mail_ND, state.version = torch.randn(2, 3), torch.randn(2, 3), 4
    before = state.clone()
    state.grow(5)
    assert (state.num_nodes, state.version) == (5, 4)
    assert torch.equal(state.memory_ND[:2], before.memory_ND)
    assert torch.equal(state.mail_ND[:2], before.mail_ND)
    assert not state.memory_ND[2:].any()
    state.grow(3)  # never shrinks
    assert state.num_nodes == 5


def test_to_moves_both_vectors() -> None:
    state = NodeState(2, 3).to("meta")
    assert state.device.type == state.mail_ND.device.type == "meta"


def test_one_row_belongs_to_one_node() -> None:
    """No two writes to one row: order of writing cannot matter (pitfall 12)."""
    for message in ("last", "mean"):
        for batch in batches(message)[1]:
            assert batch.writes is not None
            written = batch.writes.node_W.numpy()
            assert len(np.unique(written)) == len(written)


# ---------------------------------------------------------------- other columns

RING = (
    Column("memory", (2,)),
    Column("mail", (3, 2)),
    Column("mail_time", (3,), torch.int64),
    Column("mail_count", (), torch.int64),
)


def pushed(state: NodeState, batch: PreparedBatch, nodes: list[int], value: float) -> None:
    """One mail each: all of its numbers, and its time, are `value`."""
    node_W = torch.tensor(nodes, dtype=torch.int32)
    mail = {
        "mail": torch.full((len(nodes), 2), value),
        "mail_time": torch.full((len(nodes),), int(value)),
    }
    state.write(replace(batch, number=state.version), (RingPush("mail_count", node_W, mail),))


def test_a_ring_keeps_the_latest_entries() -> None:
    """Node 0 gets mails 1 to 5, node 2 mail 4 alone: three slots each, the oldest gives way."""
    _, (batch, *_) = batches()
    state = NodeState(3, RING)
    for value in (1, 2, 3, 4, 5):
        pushed(state, batch, [0, 2] if value == 4 else [0], float(value))
    assert state.tables["mail_time"].tolist() == [[4, 5, 3], [0, 0, 0], [4, 0, 0]]
    assert state.tables["mail"][:, :, 1].tolist() == [[4.0, 5.0, 3.0], [0.0] * 3, [4.0, 0.0, 0.0]]
    assert state.tables["mail_count"].tolist() == [5, 0, 1]
    assert state.version == 5


def test_every_column_is_read_copied_grown_and_forgotten() -> None:
    _, (batch, *_) = batches()
    state = NodeState(7, RING)
    empty = state.checksum()
    pushed(state, batch, [int(batch.node_U[0])], 9.0)
    state.version = batch.version
    rows = state.read(batch)
    assert [tuple(row.shape[1:]) for row in rows] == [column.shape for column in RING]
    assert rows[3].tolist() == [1] + [0] * (len(batch.node_U) - 1)
    copy = state.clone()
    copy.grow(9)
    assert (copy.num_nodes, copy.tables["mail"].shape) == (9, (9, 3, 2))
    assert torch.equal(copy.tables["mail_time"][:7], state.tables["mail_time"])
    state.reset()
    assert state.checksum() == empty
    assert copy.tables["mail_count"].sum() == 1


def test_row_writes_say_what_is_overwritten() -> None:
    """Whoever keeps old rows sees every entry of a ring at its slot, the counter included."""
    _, (batch, *_) = batches()
    state = NodeState(3, RING)
    for value in (1.0, 2.0, 3.0, 4.0):
        pushed(state, batch, [1], value)
    node_W = torch.tensor([1], dtype=torch.int32)
    push = RingPush("mail_count", node_W, {"mail_time": torch.tensor([5])})
    before = state.clone()
    time, count = rows = state.row_writes((push,))
    assert (time.column, count.column) == ("mail_time", "mail_count")
    assert time.slot_W is not None
    assert (time.slot_W.tolist(), count.value_W.tolist()) == ([1], [5])
    assert state.checksum() == before.checksum(), "nothing is written yet"
    old = state.tables["mail_time"][1, 1].clone()
    state.apply(rows)
    assert state.tables["mail_time"].tolist()[1] == [4, 5, 3]
    state.apply((replace(time, value_W=old.reshape(1)), replace(count, value_W=count.value_W - 1)))
    assert state.checksum() == before.checksum()


def test_a_state_without_width_is_empty() -> None:
    assert NodeState(3, 0).empty
    assert not NodeState(3, 2).empty
    assert not NodeState(0, RING).empty


def test_what_is_read_in_place_is_the_table_or_a_copy_of_its_version() -> None:
    """Without past versions the table itself; with them later writes must not show."""
    _, prepared = batches()
    columns = (replace(RING[0], in_place=True), *RING[1:])
    state = NodeState(7, columns)
    assert state.read(prepared[0])[0] is state.tables["memory"]
    state.keep_versions(2)
    versions = [state.clone()]
    read = []
    for number, batch in enumerate(prepared):
        read.append(state.read(batch))
        node_W = batch.writes.node_W if batch.writes is not None else batch.node_U[:0]
        row = RowWrite("memory", node_W, torch.full((len(node_W), 2), number + 1.0))
        state.write(batch, (row,))
        versions.append(state.clone())
    for number, rows in enumerate(read):
        assert torch.equal(rows[0], versions[number].tables["memory"])
    last = len(prepared)
    for stale in (1, 2):
        again = state.read(replace(prepared[0], number=last, version=last - stale))
        assert torch.equal(again[0], versions[last - stale].tables["memory"])
        assert len(again[1]) == len(prepared[0].node_U)
