"""Any version that is kept can be read at any time, from any thread, and is whole."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from tidegraph.batches import History, PreparedBatch
from tidegraph.features import CacheSettings
from tidegraph.state import Column, HostState, NodeState, RingPush, VersionError


def prepared(stream: tiny.Stream, size: int, staleness: int) -> list[PreparedBatch]:
    prep = tiny.preparer(stream, History(), size, staleness=staleness)
    return [prep.prepare(b, tiny.negatives(prep, b)) for b in range(len(prep.plan))]


@given(
    stream=tiny.streams(),
    staleness=st.integers(0, 4),
    size=st.integers(1, 4),
    on_host=st.booleans(),
    lead=st.lists(st.integers(0, 4), max_size=24),
)
@settings(max_examples=80, deadline=None)
def test_reads_equal_whole_copies(
    stream: tiny.Stream, staleness: int, size: int, on_host: bool, lead: list[int]
) -> None:
    """A batch is read at some point between its version and its own turn; copies say what of it."""
    state = NodeState(stream.num_nodes, 3)
    if on_host:
        state = HostState(state, "cpu", CacheSettings("lru", 0.4, 0).residents)
    state.keep_versions(staleness)
    batches = prepared(stream, size, staleness)
    copies = [(state.memory_ND.clone(), state.mail_ND.clone())]
    read = 0
    for number, batch in enumerate(batches):
        early = lead[number] if number < len(lead) else 0
        while read < len(batches) and (
            read <= number or (read <= number + early and batches[read].version <= state.version)
        ):
            memory_ND, mail_ND = copies[batches[read].version]
            node_U = batches[read].node_U.long()
            memory_UD, mail_UD = state.read(batches[read])
            assert torch.equal(memory_UD, memory_ND[node_U])
            assert torch.equal(mail_UD, mail_ND[node_U])
            read += 1
        state.write(batch, torch.randn(len(batch.node_U), 3))
        copies.append((state.memory_ND.clone(), state.mail_ND.clone()))
    assert len(state.past) == min(staleness, len(batches))


def test_kept_rows_do_not_grow_with_the_graph() -> None:
    """Two writes' worth, whatever came before and however many nodes there are."""
    stream = tiny.random_stream(0, 60, nodes=50)
    state = NodeState(50, 3)
    state.keep_versions(2)
    for batch in prepared(stream, 4, 2):
        state.write(batch, torch.randn(len(batch.node_U), 3))
        rows = [row for one in state.past.replaced for row in one.rows]
        assert {row.column for row in rows} == {"memory", "mail"}
        assert sum(len(row.node_W) for row in rows) <= 2 * 2 * 8


def test_rings_go_back_too() -> None:
    """Three mails into rings of two slots: the version before each of them is read afterwards."""
    columns = (Column("mail", (2, 1)), Column("count", (), torch.int64))
    state = NodeState(4, columns)
    state.keep_versions(3)
    batches = prepared(tiny.Stream([0] * 4, [1] * 4, [1, 2, 3, 4], 4), 1, 3)
    copies = []
    for number, batch in enumerate(batches[:3]):
        copies.append([table.clone() for table in state.tables.values()])
        nodes = torch.tensor([0, 3] if number != 1 else [0], dtype=torch.int32)
        mail_W1 = torch.full((len(nodes), 1), number + 1.0)
        state.write(batch, (RingPush("count", nodes, {"mail": mail_W1}),))
    assert state.tables["mail"][0].tolist() == [[3.0], [2.0]]
    assert state.tables["count"].tolist() == [3, 0, 0, 2]
    node_U = torch.tensor([3, 1, 0], dtype=torch.int32)
    for version, tables in enumerate(copies):
        found = state.read(replace(batches[3], version=version, node_U=node_U))
        for rows, table in zip(found, tables, strict=True):
            assert torch.equal(rows, table[node_U.long()])


def test_a_version_that_is_not_kept_is_refused() -> None:
    """Neither older than what is kept nor newer than what there is."""
    stream = tiny.random_stream(0, 24, nodes=7)
    batches = prepared(stream, 4, 2)
    state = NodeState(7, 3)
    state.keep_versions(1)
    for batch in batches[:2]:
        state.write(batch, torch.randn(len(batch.node_U), 3))
    with pytest.raises(VersionError, match=r"version 0.*at version 2 and keeps the 1 before it"):
        state.read(batches[2])
    with pytest.raises(VersionError, match="needs state version 3"):
        state.read(batches[5])
    state.keep_versions(0)
    with pytest.raises(VersionError, match="needs state version 1, the state is at version 2:"):
        state.read(batches[3])


def test_writes_follow_the_order_of_the_batches() -> None:
    batches = prepared(tiny.random_stream(0, 24, nodes=7), 4, 2)
    state = NodeState(7, 3)
    with pytest.raises(VersionError, match="batch 1 would publish version 2, the state is at"):
        state.write(batches[1], torch.zeros(len(batches[1].node_U), 3))
    state.write(batches[0], torch.zeros(len(batches[0].node_U), 3))
    with pytest.raises(VersionError, match="in order, once each"):
        state.write(batches[0], torch.zeros(len(batches[0].node_U), 3))


def test_reset_and_clone_forget_older_versions() -> None:
    batches = prepared(tiny.random_stream(0, 24, nodes=7), 4, 1)
    state = NodeState(7, 3)
    state.keep_versions(1)
    state.write(batches[0], torch.randn(len(batches[0].node_U), 3))
    copy = state.clone()
    assert (len(state.past), len(copy.past), copy.past.keep) == (1, 0, 0)
    state.reset()
    assert (len(state.past), state.past.keep) == (0, 1)


def test_no_read_sees_half_a_write() -> None:
    """A writer makes every row of version v equal to v; readers check that theirs are all one.

    All nodes are written each time, so a read between two writes' halves would mix two numbers.
    """
    nodes, staleness, batches = 400, 3, 150
    order = np.arange(nodes)
    stream = tiny.Stream(
        source=np.tile(order, batches).tolist(),
        target=np.tile(np.roll(order, 1), batches).tolist(),
        time=list(range(nodes * batches)),
        num_nodes=nodes,
        feature_width=0,
    )
    prep = tiny.preparer(stream, History(neighbors=()), nodes, staleness=staleness)
    made = [prep.prepare(b, np.empty((nodes, 0), np.int32)) for b in range(batches)]
    state = NodeState(nodes, 16)
    state.keep_versions(staleness)
    wrong: list[str] = []
    turn = threading.Semaphore(0)

    def read() -> None:
        for batch in made:
            if not state.wait_for(batch.version):
                wrong.append(f"batch {batch.number} did not wait")
            found = {float(value) for rows in state.read(batch) for value in rows.unique()}
            if found != {float(batch.version)}:
                wrong.append(f"batch {batch.number} read {found}")
            turn.release()

    reader = threading.Thread(target=read)
    reader.start()
    for batch in made:
        turn.acquire()  # the writer stays behind the reader, as a step stays behind its read
        state.write(batch, torch.full((len(batch.node_U), 16), batch.number + 1.0))
    reader.join()
    assert wrong == []


def test_waiting_ends_when_the_version_comes_or_it_is_told_to() -> None:
    batches = prepared(tiny.random_stream(0, 24, nodes=7), 4, 0)
    state = NodeState(7, 3)
    found: list[bool] = []
    stopped = threading.Event()
    threads = [
        threading.Thread(target=lambda v=v: found.append(state.wait_for(v, stopped.is_set)))  # type: ignore[misc]
        for v in (1, 5)
    ]
    for thread in threads:
        thread.start()
    state.write(batches[0], torch.zeros(len(batches[0].node_U), 3))
    threads[0].join()
    assert found == [True]
    assert threads[1].is_alive()
    stopped.set()
    state.wake()
    threads[1].join()
    assert found == [True, False]
