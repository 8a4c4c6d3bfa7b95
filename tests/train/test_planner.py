"""The planner proposes what a simulated pipeline needs: no less, and no more."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegraph.train.planner import describe_plan, plan_staleness


def simulate(step: float, read: float, staleness: int, batches: int = 200) -> float:
    """Mean time a step waits for its state, at most one read at a time, batches in a row.

    Batch b's read begins when version b - k is there and the read before it is done, its step when
    the read and the step before it are done.
    """
    read_done, waited = 0.0, 0.0
    step_done: list[float] = []
    for b in range(batches):
        version = max(0, b - staleness)
        published = step_done[version - 1] if version else 0.0
        read_done = max(read_done, published) + read
        before = step_done[-1] if step_done else 0.0
        if b >= batches // 2:
            waited += max(0.0, read_done - before)
        step_done.append(max(read_done, before) + step)
    return waited / (batches - batches // 2)


@given(step=st.floats(0.5, 2.0), share=st.floats(0.0, 1.0))
@settings(deadline=None)
def test_the_staleness_proposed_is_the_smallest_without_stalls(step: float, share: float) -> None:
    read = share * step
    stages = {"read": 10 * read, "forward": 4 * step, "backward": 6 * step}
    plan = plan_staleness(stages, batches=10, threads=1)
    if share <= 0.02:
        assert plan.staleness == 0
        return
    assert plan.staleness == 1
    assert simulate(step, read, 0) > 0.99 * read
    assert simulate(step, read, plan.staleness) < 0.021 * step
    assert plan.bound is None


@given(step=st.floats(0.5, 2.0), share=st.floats(1.1, 6.0))
@settings(deadline=None)
def test_a_read_longer_than_a_step_is_named_as_the_bound(step: float, share: float) -> None:
    """One thread reads: beyond the smallest k that lets it go on without a break, k is no help."""
    read = share * step
    plan = plan_staleness({"read": read, "forward": step}, batches=1, threads=1)
    assert plan.bound == "read"
    best = min(simulate(step, read, k) for k in range(1, 12))
    assert simulate(step, read, plan.staleness) <= best + 1e-6 * step
    assert best > 0.05 * step


@given(prepare=st.floats(0.1, 8.0))
def test_threads_that_keep_up(prepare: float) -> None:
    plan = plan_staleness({"prepare": prepare, "forward": 1.0}, batches=1, threads=1)
    assert plan.staleness == 0  # preparation needs no version: staleness does nothing for it
    assert plan.threads == max(1, math.ceil(prepare / 1.02))
    assert (plan.bound == "prepare") == (prepare > 1.02)
    enough = plan_staleness({"prepare": prepare, "forward": 1.0}, 1, plan.threads)
    assert enough.bound is None


def test_what_is_said() -> None:
    hidden = {"prepare": 5.0, "read": 0.05, "forward": 10.0}
    assert describe_plan(plan_staleness(hidden, 1, 1)).startswith("staleness 0: reading the state")
    slow = {"prepare": 30.0, "read": 1.0, "forward": 10.0}
    assert describe_plan(plan_staleness(slow, 1, 1)) == (
        "staleness 1 would hide reading the state (10% of a step); preparation is slower than the "
        "step: 3 threads would keep up"
    )
    assert plan_staleness({}, 0, 0).staleness == 0
