"""JODIE from its equations, in float64, one event and one node at a time."""

from __future__ import annotations

import numpy as np

from models.references.memory import PlainMemory, Vector


def drifted(plain: PlainMemory, own: Vector, node: int, time: float) -> Vector:
    """(1 + b + w dt') o m; dt' is normalised by the training gaps of the node's side."""
    first_target = plain.model.schema.first_target
    side = int(plain.model.schema.bipartite and node >= first_target)
    mean = plain.weights["projection.gap_mean"][side]
    scale = plain.weights["projection.gap_scale"][side]
    elapsed = float(np.float32(time - plain.last_event_time(node)))
    age = np.clip((elapsed - mean) / scale, -1e4, 1e4)
    offset = plain.weights.get("projection.offset", 0.0)
    return (1 + offset + plain.weights["projection.weight"] * age) * own


class Reference(PlainMemory):
    """A node's embedding is where its memory has drifted to."""

    def embed(self, node: int, time: float, before: int | None) -> Vector:
        return drifted(self, self.current(node) + self.node_features(node), node, time)
