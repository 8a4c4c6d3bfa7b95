"""CAWN from its equations: each walk read alone, positions counted by going through all walks.

Where walks lead is the sampler's business (tested in `tests/history`); it is asked here root by
root.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from models.references.plain import Plain, Vector, relu
from tidegraph.history import TemporalIndex
from tidegraph.history.walks import walk
from tidegraph.keys import Purpose, make_key

Step = tuple  # (node, event or None, difference)


def sigmoid(x: Vector) -> Vector:
    return 1.0 / (1.0 + np.exp(-x))


class Reference(Plain):
    """See `Plain`."""

    def pair(
        self, source: int, candidate: int, time: float, before: int | None
    ) -> tuple[Vector, Vector]:
        walks = [self.walks(node, time, before) for node in (source, candidate)]
        first, second = (
            np.mean([self.read(one, walks[side], walks[1 - side]) for one in walks[side]], axis=0)
            for side in range(2)
        )
        return self.linear("result", first), self.linear("result", second)

    def walks(self, node: int, time: float, before: int | None) -> list[list[Step]]:
        """Each walk without padding: the root, then its steps."""
        plan, events = self.model.history.walks, self.stream.events()
        keep = np.isin(np.arange(len(events)), self.kept)
        times = np.array([time], events.time.dtype)
        mixed = int(times.view(np.uint64)[0]) * 0x9E3779B97F4A7C15 ^ node * 0xC2B2AE3D27D4EB4F
        limit: Any = None if before is None else np.array([before])
        found = walk(
            TemporalIndex.from_events(events, keep=keep), [node], times, plan.count, plan.length,
            bias=plan.bias, inclusive=self.model.history.inclusive, before_event=limit,
            key=make_key(0, Purpose.WALK, 0), slot_S=np.array([mixed % 2**64], np.uint64),
        )  # fmt: skip
        result: list[list[Step]] = []
        for m in range(plan.count):
            steps: list[Step] = [(node, None, 0.0)]
            steps += [
                (
                    int(found.node_SML[0, m, step]),
                    int(found.event_SML[0, m, step]),
                    float(found.delta_SML[0, m, step]),
                )
                for step in range(plan.length)
                if found.node_SML[0, m, step] >= 0
            ]
            result.append(steps)
        return result

    def places(self, node: int, walks: list[list[Step]]) -> Vector:
        """g(w, S): the share of walks that have the node in each position."""
        length = self.model.history.walks.length
        counts = np.zeros(length + 1)
        for one in walks:
            for place, (there, _, _) in enumerate(one):
                counts[place] += there == node
        return counts / len(walks)

    def f(self, share: Vector) -> Vector:
        return self.linear("place_out", relu(self.linear("place_in", share)))

    def read(self, steps: list[Step], own: list[list[Step]], other: list[list[Step]]) -> Vector:
        """Both ends of the LSTM over one walk."""
        gates = []
        for node, event, delta in steps:
            x = np.concatenate([self.node(node), self.event(event), self.code(delta)])
            place = self.f(self.places(node, own)) + self.f(self.places(node, other))
            gates.append(self.linear("feature_gates", x) + self.linear("place_gates", place))
        H = self.w["recurrent"].shape[1]
        ends = []
        for direction in range(2):
            hidden, cell = np.zeros(H), np.zeros(H)
            for gate in gates if direction == 0 else gates[::-1]:
                part = gate[4 * H * direction : 4 * H * (direction + 1)]
                part = part + hidden @ self.w["recurrent"][direction]
                keep, take, give = np.split(sigmoid(part[: 3 * H]), 3)
                cell = keep * cell + take * np.tanh(part[3 * H :])
                hidden = give * np.tanh(cell)
            ends.append(hidden)
        return np.concatenate(ends)
