"""DyGFormer from its equations: each pair's sequences alone, without a single padded token."""

from __future__ import annotations

import numpy as np

from models.references.plain import Plain, Vector, relu


class Reference(Plain):
    """See `Plain`."""

    def pair(
        self, source: int, candidate: int, time: float, before: int | None
    ) -> tuple[Vector, Vector]:
        sequences = [self.sequence(node, time, before) for node in (source, candidate)]
        patches = [self.patches(sequences[side], sequences[1 - side]) for side in range(2)]
        rows = patches[0] + patches[1]
        for number in range(len(self.model.blocks)):
            heads = self.model.blocks[number].heads
            rows = self.block(f"blocks.{number}", rows, rows, heads, norm_first=True)
        sides = rows[: len(patches[0])], rows[len(patches[0]) :]
        first, second = (self.linear("result", np.mean(side, axis=0)) for side in sides)
        return first, second

    def sequence(self, node: int, time: float, before: int | None) -> list[tuple]:
        """(node, event or None, difference), the node itself first."""
        k = self.model.history.neighbors[0]
        found = self.latest(node, time, k, before)
        return [(node, None, 0.0), *((partner, e, time - t) for partner, e, t in found)]

    def f(self, count: int) -> Vector:
        return self.linear("count_out", relu(self.linear("count_in", np.array([float(count)]))))

    def patches(self, own: list[tuple], other: list[tuple]) -> list[Vector]:
        """Each patch: every channel of its tokens side by side, projected."""
        nodes_own, nodes_other = [n for n, *_ in own], [n for n, *_ in other]
        tokens = [
            (
                self.node(node),
                self.event(event),
                self.code(delta),
                self.f(nodes_own.count(node)) + self.f(nodes_other.count(node)),
            )
            for node, event, delta in own
        ]
        size = self.model.patch
        result = []
        for first in range(0, len(tokens), size):
            part = tokens[first : first + size]
            channels = []
            for channel in range(4):
                width = len(tokens[0][channel])
                values = [token[channel] for token in part]
                values += [np.zeros(width)] * (size - len(part))
                if width:
                    channels.append(np.concatenate(values))
            names = [f"channels.{i}" for i in range(len(channels) - 1)] + ["count_channel"]
            result.append(
                np.concatenate([self.linear(n, x) for n, x in zip(names, channels, strict=True)])
            )
        return result
