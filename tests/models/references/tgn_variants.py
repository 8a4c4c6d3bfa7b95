"""TGN's other embeddings and memory inputs, in float64, one event and one node at a time."""

from __future__ import annotations

import numpy as np

from models.references.attention import attended
from models.references.jodie import drifted
from models.references.memory import PlainMemory, Vector


class PlainTGN1(PlainMemory):
    """One layer (or none); a message's age is measured up to its event or up to the query."""

    def own(self, node: int, time: float) -> Vector:
        static = self.weights.get("static_NQ")
        result = self.at(node, time) + self.node_features(node)
        if static is not None:
            result = result + self.weights["static_projection.weight"] @ static[node]
        return result

    def at(self, node: int, time: float) -> Vector:
        query = self.model.settings["memory_time"] == "query"
        return self.current(node, time if query else None)

    def embed(self, node: int, time: float, before: int | None) -> Vector:
        module, own = self.model.settings["embedding_module"], self.own(node, time)
        if module == "identity":
            return own
        if module == "time":
            return drifted(self, own, node, time)
        rows = [
            np.concatenate([self.own(u, time), self.features(event), self.time_code(time - t)])
            for u, event, t in self.neighbors(node, time, self.model.history.neighbors[0], before)
        ]
        if module == "attention":
            return attended(self, "attention.0.", own, rows)
        around = sum(
            (self.linear("attention.0.neighbor", x) for x in rows),
            np.zeros(self.model.settings["embedding"]),
        )
        return self.linear("attention.0.merge", np.concatenate([own, np.maximum(around, 0)]))

    def fresh(self, node: int, batch: list[int]) -> Vector:
        stream = self.stream
        last = max(e for e in batch if node in (stream.source[e], stream.target[e]))
        return self.at(node, stream.time[last])

    def sent(self, node: int, event: int, batch: list[int]) -> Vector:
        return self.at(node, self.stream.time[event])
