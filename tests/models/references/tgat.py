"""TGAT from its equations: every neighbour's own embedding is computed anew."""

from __future__ import annotations

import math

import numpy as np

from models.references.plain import Plain, Vector, relu, softmax


class Reference(Plain):
    """See `Plain`."""

    def pair(
        self, source: int, candidate: int, time: float, before: int | None
    ) -> tuple[Vector, Vector]:
        layers = len(self.model.history.neighbors)
        return (
            self.embed(source, time, layers, before),
            self.embed(candidate, time, layers, before),
        )

    def embed(self, node: int, time: float, depth: int, before: int | None) -> Vector:
        if depth == 0:
            return self.node(node)
        history, name = self.model.history, f"attention.{depth - 1}"
        own = self.embed(node, time, depth - 1, before)
        rows = []
        for partner, event, t in self.latest(node, time, history.neighbors[-depth], before):
            limit = event if history.inclusive else before
            theirs = self.embed(partner, t, depth - 1, limit)
            rows.append(np.concatenate([theirs, self.event(event), self.code(time - t)]))
        query = self.linear(f"{name}.query", own) + self.w[f"{name}.query_time"] @ self.code(0.0)
        key, value = self.w[f"{name}.key"], self.w[f"{name}.value"]
        heads, width = key.shape[:2]
        result = np.zeros((heads, width))
        for h, q in enumerate(query.reshape(heads, width)):
            if rows:
                a = softmax(np.array([q @ (key[h] @ x) / math.sqrt(width) for x in rows]))
                result[h] = sum(a_i * (x @ value[h]) for a_i, x in zip(a, rows, strict=True))
        hidden = relu(self.linear(f"{name}.merge_in", np.concatenate([result.reshape(-1), own])))
        return self.linear(f"{name}.merge_out", hidden)
