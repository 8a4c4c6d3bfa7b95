"""TCL from its equations: two lists of tokens that attend to themselves and to each other."""

from __future__ import annotations

import numpy as np

from models.references.plain import Plain, Vector


class Reference(Plain):
    """See `Plain`."""

    def pair(
        self, source: int, candidate: int, time: float, before: int | None
    ) -> tuple[Vector, Vector]:
        u, v = (self.sequence(node, time, before) for node in (source, candidate))
        for number in range(len(self.model.self_blocks)):
            heads = self.model.self_blocks[number].heads
            u = self.block(f"self_blocks.{number}", u, u, heads, norm_first=False)
            v = self.block(f"self_blocks.{number}", v, v, heads, norm_first=False)
            u, v = (
                self.block(f"cross_blocks.{number}", u, v, heads, norm_first=False),
                self.block(f"cross_blocks.{number}", v, u, heads, norm_first=False),
            )
        return self.linear("result", u[0]), self.linear("result", v[0])

    def sequence(self, node: int, time: float, before: int | None) -> list[Vector]:
        found = self.latest(node, time, self.model.history.neighbors[0], before)
        rows = [(node, None, 0.0), *((partner, e, time - t) for partner, e, t in found)]
        return [
            self.linear("token_layer", np.concatenate([self.node(n), self.event(e), self.code(d)]))
            + self.w["place.weight"][place]
            for place, (n, e, d) in enumerate(rows)
        ]
