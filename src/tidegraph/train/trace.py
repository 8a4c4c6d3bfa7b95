"""`Trace`: the stages of every batch on a timeline, as a file that opens in Perfetto.

Each thread is a track, each stage of a batch a slice with the batch's number and state version;
arrows lead from a batch's preparation through its way to the device to its execution.
"""

from __future__ import annotations

import threading
from typing import Any

_ARROWS = ("prepare", "copy", "forward")  # the slices of a batch that arrows connect, in order


class Trace:
    """Slices in the order they ended.

    Args:
        most: slices kept; those after it are counted only, so that a long run stays readable.

    Attributes:
        slices: (thread, stage, start, stop, batch, version).
        lost: how many are counted only.

    >>> trace = Trace()
    >>> trace.add("prepare", 10.0, 10.5, batch=3, version=2)
    >>> [event["name"] for event in trace.to_dict()["traceEvents"] if event["ph"] == "X"]
    ['prepare']
    """

    def __init__(self, most: int = 500_000) -> None:
        self.most, self.lost = most, 0
        self.slices: list[tuple[str, str, float, float, int | None, int | None]] = []

    def add(
        self, stage: str, start: float, stop: float, *, batch: int | None, version: int | None
    ) -> None:
        """One stage of a batch in the current thread.

        Args:
            stage: its name.
            start, stop: by `time.perf_counter`, in seconds.
            batch: its number, None where it belongs to no batch.
            version: of the state that the batch reads, where it is known.
        """
        if len(self.slices) >= self.most:
            self.lost += 1
            return
        thread = threading.current_thread().name
        self.slices.append((thread, stage, start, stop, batch, version))

    def to_dict(self) -> dict[str, Any]:
        """Chrome's trace-event format: times in microseconds from the first slice."""
        slices = sorted(self.slices, key=lambda one: one[2])
        threads = sorted({one[0] for one in slices}, key=_track)
        number = {name: place for place, name in enumerate(threads, 1)}
        begun = slices[0][2] if slices else 0.0
        events: list[dict[str, Any]] = [_named("process_name", "tidegraph", None)]
        events += [_named("thread_name", name, number[name]) for name in threads]
        waiting: dict[int, int] = {}  # batch -> the place of its last slice among _ARROWS
        for thread, stage, start, stop, batch, version in slices:
            where = {"pid": 1, "tid": number[thread], "ts": round(1e6 * (start - begun), 3)}
            args = {k: v for k, v in (("batch", batch), ("version", version)) if v is not None}
            length = round(1e6 * (stop - start), 3)
            events.append({"ph": "X", "name": stage, "dur": length, "args": args, **where})
            if batch is not None and stage in _ARROWS:
                arrow = {"name": "batch", "cat": "batch", "id": batch, **where}
                events += _arrows(arrow, batch, _ARROWS.index(stage), waiting)
        return {
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {"slices_not_kept": self.lost},
        }


def _arrows(
    arrow: dict[str, Any], batch: int, place: int, waiting: dict[int, int]
) -> list[dict[str, Any]]:
    """The end of the arrow from the batch's slice before, and the start of the next one."""
    before = waiting.get(batch, len(_ARROWS))
    found = []
    if before < place:
        last = place == len(_ARROWS) - 1
        found.append({**arrow, "ph": "f" if last else "t", "bp": "e"})
    elif place < len(_ARROWS) - 1:
        found.append({**arrow, "ph": "s"})
    waiting[batch] = place
    return found


def _track(name: str) -> tuple[bool, str]:
    """Tracks from top to bottom: the training loop, then the others by name."""
    return name != threading.main_thread().name, name


def _named(kind: str, name: str, thread: int | None) -> dict[str, Any]:
    shown = "train" if name == threading.main_thread().name else name
    event: dict[str, Any] = {"ph": "M", "name": kind, "pid": 1, "args": {"name": shown}}
    return event if thread is None else {**event, "tid": thread}
