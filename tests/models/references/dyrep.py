"""DyRep from its equations, in float64, one event and one node at a time."""

from __future__ import annotations

import numpy as np

from models.references.attention import attended
from models.references.memory import PlainMemory, Vector


class Reference(PlainMemory):
    """A partner sends its attention embedding just before the event."""

    def own(self, node: int) -> Vector:
        return self.current(node) + self.node_features(node)

    def attention(self, node: int, time: float, before: int | None) -> Vector:
        rows = [
            np.concatenate([self.own(u), self.features(event), self.time_code(time - t)])
            for u, event, t in self.neighbors(node, time, self.model.history.neighbors[0], before)
        ]
        return attended(self, "attention.", self.own(node), rows)

    def embed(self, node: int, time: float, before: int | None) -> Vector:
        if self.model.settings["embedding_module"] == "identity":
            return self.own(node)
        return self.attention(node, time, before)

    def sent(self, node: int, event: int, batch: list[int]) -> Vector:
        return self.attention(node, self.stream.time[event], self.bound(batch, event))
