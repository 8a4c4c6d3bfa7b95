"""A state on the host behind a cache reads and writes what a plain state does, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from tidegraph.batches import History
from tidegraph.features import CacheSettings
from tidegraph.state import HostState, NodeState, VersionError

POLICIES = ("next-use", "lru", "frequency")


def host_state(nodes: int, policy: str = "lru", share: float = 0.3, window: int = 2) -> HostState:
    kept = CacheSettings(policy, share, window)  # type: ignore[arg-type]
    state = HostState(NodeState(nodes, 2), "cpu", kept.residents)
    if policy == "frequency":
        state.cache.residents.choose(np.arange(nodes))  # type: ignore[attr-defined]
    return state


@settings(deadline=None)
@given(
    stream=tiny.streams(),
    policy=st.sampled_from(POLICIES),
    share=st.floats(0, 1),
    message=st.sampled_from(["last", "mean"]),
)
def test_it_equals_a_state_on_the_device(
    stream: tiny.Stream, policy: str, share: float, message: str
) -> None:
    prep = tiny.preparer(stream, History(message=message), 3)  # type: ignore[arg-type]
    prepared = [prep.prepare(b, tiny.negatives(prep, b)) for b in range(len(prep.plan))]
    plain, host = NodeState(stream.num_nodes, 2), host_state(stream.num_nodes, policy, share)
    announced = 0
    for number, batch in enumerate(prepared):
        while announced < min(len(prepared), number + 3):
            host.cache.announce(prepared[announced].node_U)
            announced += 1
        for one, other in zip(plain.read(batch), host.read(batch), strict=True):
            assert torch.equal(one, other)
        updated_UD = torch.randn(len(batch.node_U), 2)
        plain.write(batch, updated_UD)
        host.write(batch, updated_UD)
        assert plain.checksum() == host.checksum()
    if share >= 1.0 and policy != "frequency":
        assert host.cache.total.misses == 0  # the device wrote all there is to read


def test_nodes_never_written_do_not_cross() -> None:
    stream = tiny.random_stream(0, 12, nodes=7)
    prep = tiny.preparer(stream, History(), 4)
    state = host_state(7, share=0.0)
    for number in range(len(prep.plan)):
        batch = prep.prepare(number, tiny.negatives(prep, number))
        memory_UD, _ = state.read(batch)
        seen = set(stream.source[: 4 * number] + stream.target[: 4 * number])
        known = [node in seen for node in batch.node_U.tolist()]
        assert (state.cache.step.misses, state.cache.step.zeros) == (sum(known), known.count(False))
        state.write(batch, memory_UD + 1.0)


def test_what_was_written_before_is_found_out() -> None:
    """A state from a checkpoint, with rows that are zero but for a sign or a NaN."""
    plain = NodeState(5, 2)
    plain.memory_ND[1, 0], plain.mail_ND[2, 1], plain.memory_ND[3, 1] = 2.0, -0.0, float("nan")
    state = HostState(plain, "cpu", CacheSettings("lru", 0.5).residents)
    assert state.written_N.tolist() == [False, True, True, True, False]


def test_another_version_is_refused() -> None:
    prep = tiny.preparer(tiny.random_stream(0, 12, nodes=7), History(), 4)
    with pytest.raises(VersionError, match="needs state version 1"):
        host_state(7).read(prep.prepare(1, tiny.negatives(prep, 1)))


def test_reset_clone_and_growth() -> None:
    prep = tiny.preparer(tiny.random_stream(0, 12, nodes=7), History(), 4)
    batch = prep.prepare(0, tiny.negatives(prep, 0))
    state = host_state(7, share=1.0)
    empty = state.checksum()
    state.read(batch)
    state.write(batch, torch.ones(len(batch.node_U), 2))
    copy = state.clone()
    assert isinstance(copy, HostState)
    assert copy.checksum() == state.checksum()
    following = prep.prepare(1, tiny.negatives(prep, 1))
    for one, other in zip(copy.read(following), state.read(following), strict=True):
        assert torch.equal(one, other)
    state.grow(9)
    assert (state.num_nodes, copy.num_nodes) == (9, 7)
    for one, other in zip(copy.read(following), state.read(following), strict=True):
        assert torch.equal(one, other)
    copy.reset()
    assert copy.checksum() == empty
    assert not copy.read(batch)[0].any()
