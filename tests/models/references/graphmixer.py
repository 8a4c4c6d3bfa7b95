"""GraphMixer from its equations: tokens as rows, mixed one column and one row at a time."""

from __future__ import annotations

import numpy as np

from models.references.plain import Plain, Vector, gelu


class Reference(Plain):
    """See `Plain`."""

    def pair(
        self, source: int, candidate: int, time: float, before: int | None
    ) -> tuple[Vector, Vector]:
        return self.embed(source, time, before), self.embed(candidate, time, before)

    def embed(self, node: int, time: float, before: int | None) -> Vector:
        K = self.model.history.neighbors[0]
        found = self.latest(node, time, K, before)
        rows = [np.concatenate([self.code(time - t), self.event(e)]) for _, e, t in found]
        width = len(self.w["time_code.weight"]) + len(self.event(None))
        rows += [np.zeros(width)] * (K - len(rows))
        H = np.stack([self.linear("token_layer", row) for row in rows])
        for number in range(len(self.model.mixers)):
            H = self.mix(f"mixers.{number}", H)
        parts = [H.mean(0)]
        if self.stream.node_features is not None:
            parts.append(self.node(node) + self.met(node, time, before))
        return self.linear("merge_layer", np.concatenate(parts))

    def mix(self, name: str, H: Vector) -> Vector:
        normed = np.stack([self.norm(f"{name}.token_norm", row) for row in H])
        columns = [
            self.linear(f"{name}.token_out", gelu(self.linear(f"{name}.token_in", column)))
            for column in normed.T
        ]
        H = H + np.stack(columns, axis=1)
        rows = []
        for row in H:
            hidden = gelu(self.linear(f"{name}.channel_in", self.norm(f"{name}.channel_norm", row)))
            rows.append(row + self.linear(f"{name}.channel_out", hidden))
        return np.stack(rows)

    def met(self, node: int, time: float, before: int | None) -> Vector:
        """Mean features of everyone met in the window, however many."""
        window = self.model.history.met_within
        if window is None:
            return np.zeros_like(self.node(node))
        everyone = self.latest(node, time, 10**6, before)
        theirs = [self.node(partner) for partner, _, t in everyone if time - t <= window]
        return np.mean(theirs, axis=0) if theirs else np.zeros_like(self.node(node))
