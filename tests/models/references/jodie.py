"""JODIE from its equations, in float64, one event and one node at a time."""

from __future__ import annotations

import numpy as np

from models.references.memory import PlainMemory, Vector


def drifted(plain: PlainMemory, own: Vector, node: int, time: float) -> Vector:
    """(1 + w dt') o m; dt' is normalised by the gaps of the node's side, as found in training."""
    first_target = plain.model.schema.first_target
    side = int(plain.model.schema.bipartite and node >= first_target)
    mean = plain.weights["projection.gap_mean"][side]
    scale = plain.weights["projection.gap_scale"][side]
    elapsed = float(np.float32(time - plain.last_event_time(node)))
    age = np.clip((elapsed - mean) / scale, -10, 10)
    return (1 + plain.weights["projection.weight"] * age) * own


class Reference(PlainMemory):
    """A node's embedding is where its memory has drifted to."""

    def embed(self, node: int, time: float, before: int | None) -> Vector:
        return drifted(self, self.current(node) + self.node_features(node), node, time)
