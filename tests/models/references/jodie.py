"""JODIE from its equations, in float64, one event and one node at a time."""

from __future__ import annotations

import numpy as np

from models.references.memory import PlainMemory, Vector


class PlainJODIE(PlainMemory):
    """z_v(t) = (1 + w dt') o m_v; dt' is normalised by all gaps between a node's events."""

    def gaps(self, second: bool) -> list[float]:
        """Times between consecutive events of a node; a self-loop is two ends at one time."""
        found, last = [], {}
        for event in range(len(self.stream)):
            t = self.stream.time[event]
            for node in (self.stream.source[event], self.stream.target[event]):
                if node in last and not second:
                    found.append(t - last[node])
                last[node] = t
        return found

    def embed(self, node: int, time: float, before: int | None) -> Vector:
        gaps = self.gaps(second=False)
        mean, scale = (np.mean(gaps), np.std(gaps) or np.mean(gaps) or 1.0) if gaps else (0.0, 1.0)
        elapsed = float(np.float32(time - self.last_event_time(node)))
        age = np.clip((elapsed - mean) / scale, -10, 10)
        drift = 1 + self.weights["projection.weight"] * age
        return drift * (self.current(node) + self.node_features(node))
