"""`plan_staleness`: the smallest staleness, and the fewest threads, that leave the step no stalls.

Without staleness the state of a batch is read between the write of the batch before and its own
forward pass: nothing else can happen meanwhile. With staleness k it may be read while k steps go
on. Everything else of a batch (preparation, copying features) depends on no version, so for that
staleness does nothing, and threads do all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_STEP = ("forward", "backward", "optimizer", "write")  # what no other thread can do


@dataclass(frozen=True)
class StalenessPlan:
    """What is proposed, and why.

    Attributes:
        staleness: smallest k with which no step waits for its state; 0 where it hardly waits.
        threads: fewest preparation threads that keep up with the steps.
        stall_seconds: a batch waits for its state without staleness.
        step_seconds: of a step without that wait.
        bound: the stage that steps have to wait for whatever the staleness, or None.
    """

    staleness: int
    threads: int
    stall_seconds: float
    step_seconds: float
    bound: str | None = None


def plan_staleness(
    stages: Mapping[str, float], batches: int, threads: int, *, tolerance: float = 0.02
) -> StalenessPlan:
    """Propose a staleness from measured stage times.

    Args:
        stages: stage -> seconds over all batches, as in `EpochRecord.stages`.
        batches: how many batches that were.
        threads: preparation threads there are.
        tolerance: waits below this share of a step are not worth staleness.

    >>> plan_staleness({"prepare": 2.0, "read": 3.0, "forward": 2.0}, batches=1, threads=1)
    StalenessPlan(staleness=2, threads=1, stall_seconds=3.0, step_seconds=2.0, bound='read')
    >>> plan_staleness({"prepare": 9.0, "read": 0.0, "forward": 2.0}, 1, 1).bound
    'prepare'
    """

    def per_batch(*names: str) -> float:
        return sum(stages.get(name, 0.0) for name in names) / max(batches, 1)

    step, read, copy = per_batch(*_STEP), per_batch("read"), per_batch("copy")
    prepare = per_batch("prepare")
    if step <= 0:
        return StalenessPlan(0, max(threads, 1), read, step)
    needed = max(1, math.ceil(prepare / (step * (1 + tolerance))))
    staleness = 0
    if read > tolerance * step:
        staleness = math.ceil(read / step * (1 - 1e-9))
    # One thread reads and copies, batch after batch: if that takes longer than a step, steps wait
    # for it however early it may begin.
    bound = None
    if prepare / max(threads, 1) > (1 + tolerance) * (step + (0.0 if staleness else read)):
        bound = "prepare"
    elif copy + (read if staleness else 0.0) > (1 + tolerance) * step:
        bound = "read" if read >= copy else "copy"
    return StalenessPlan(staleness, needed, read, step, bound)


def staleness_note(plan: StalenessPlan, asked: int, *, free: bool) -> str | None:
    """What is worth saying after a run, or None.

    Args:
        plan: of the run's stage times.
        asked: the run's staleness.
        free: a thread could read ahead without taking a processor from the step.

    >>> plan = plan_staleness({"read": 3.0, "forward": 10.0}, batches=1, threads=1)
    >>> staleness_note(plan, asked=0, free=True)
    'staleness 1 would hide reading the state (30% of a step)'
    >>> staleness_note(plan, asked=1, free=True), staleness_note(plan, asked=0, free=False)
    (None, None)
    """
    proposed = plan.staleness if free else 0
    if proposed > asked:
        return describe_plan(plan)
    if proposed < asked:
        share = plan.stall_seconds / max(plan.step_seconds, 1e-12)
        return (
            f"staleness {asked} gains nothing over {proposed} here: reading the state takes "
            f"{share:.1%} of a step" + ("" if free else ", and no processor is free to do it")
        )
    return None


def describe_plan(plan: StalenessPlan) -> str:
    """One line for people.

    >>> describe_plan(plan_staleness({"read": 0.1, "forward": 10.0}, batches=1, threads=1))
    'staleness 0: reading the state takes 1.0% of a step, which staleness would not hide usefully'
    """
    share = plan.stall_seconds / max(plan.step_seconds, 1e-12)
    if plan.staleness == 0:
        line = (
            f"staleness 0: reading the state takes {share:.1%} of a step, which staleness would "
            "not hide usefully"
        )
    else:
        line = f"staleness {plan.staleness} would hide reading the state ({share:.0%} of a step)"
    if plan.bound == "prepare":
        line += f"; preparation is slower than the step: {plan.threads} threads would keep up"
    elif plan.bound is not None:
        line += f"; {plan.bound} takes longer than a step, so steps wait for it at any staleness"
    return line
