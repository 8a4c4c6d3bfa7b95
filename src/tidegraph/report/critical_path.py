"""Where the time of training went: what the loop did or waited for, and what threads hid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegraph.report.plain import add_seconds

AHEAD = ("prepare", "copy", "read")  # stages that other threads can take over
_LEAST = 0.005  # of the whole; shares below it are not worth a word


@dataclass(frozen=True)
class StageShare:
    """One stage of training.

    Attributes:
        name: of the stage.
        exposed: seconds of the loop that it took, or that the loop waited for it.
        hidden: seconds that other threads spent on it while the loop went on.
    """

    name: str
    exposed: float
    hidden: float


def stage_shares(epochs: Iterable[Mapping[str, Any]]) -> list[StageShare]:
    """Every stage of the critical path, in order; what is left over comes last, as "other".

    Args:
        epochs: records of epochs as plain values; those without `exposed` are left out.
    """
    kept = [epoch for epoch in epochs if epoch.get("exposed")]
    exposed = add_seconds(epoch["exposed"] for epoch in kept)
    spent = add_seconds(epoch["stages"] for epoch in kept)
    shares = [
        StageShare(name, seconds, max(0.0, spent.get(name, 0.0) - seconds))
        for name, seconds in exposed.items()
    ]
    left = sum(epoch["seconds"] for epoch in kept) - sum(exposed.values())
    return [*shares, StageShare("other", left, 0.0)] if kept and left > 0 else shares


def exposed_words(share: StageShare, whole: float) -> str:
    """How much of the loop a stage took.

    >>> exposed_words(StageShare("prepare", exposed=1.0, hidden=2.0), whole=10.0)
    'prepare 10% exposed (20% hidden)'
    >>> exposed_words(StageShare("forward", exposed=4.0, hidden=0.0), whole=10.0)
    'forward 40%'
    """
    words = f"{share.name} {share.exposed / whole:.0%}"
    if share.name in AHEAD:
        words += " exposed"
    return words + (f" ({share.hidden / whole:.0%} hidden)" if share.hidden > 0 else "")


def critical_path_line(epochs: Iterable[Mapping[str, Any]]) -> str | None:
    """One line, the longest stage first; None where nothing was measured."""
    shares = stage_shares(epochs)
    whole = sum(share.exposed for share in shares)
    if whole <= 0:
        return None
    worth = [s for s in shares if max(s.exposed, s.hidden) >= _LEAST * whole]
    worth.sort(key=lambda share: -share.exposed)
    return ", ".join(exposed_words(share, whole) for share in worth)
