"""APAN from its equations, in float64, one event and one node at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from models.references.attention import weighted
from models.references.memory import PlainModel, Vector


@dataclass
class Reference(PlainModel):
    """Memories are embeddings; a mailbox is a list of (mail, time), the latest ones are read."""

    memory: dict[int, Vector] = field(default_factory=dict)
    box: dict[int, list[tuple[Vector, float]]] = field(default_factory=dict)

    def embed(self, node: int, time: float, before: int | None) -> Vector:
        w, heads = self.weights, self.model.settings["heads"]
        own = self.memory.get(node, np.zeros(self.model.memory_width)) + self.node_features(node)
        mails = self.box.get(node, [])[-self.model.settings["mails"] :]
        rows = [np.concatenate([mail, self.time_code(time - t)]) for mail, t in mails]
        query = self.linear("query", own).reshape(heads, -1)
        x = weighted(query, w["key"], w["value"], rows) + own
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w["norm.weight"] + w["norm.bias"]
        return self.linear("out", np.maximum(self.linear("hidden", x), 0))

    def execute(self, batch: list[int]) -> None:
        stream = self.stream
        memory: dict[int, Vector] = {}
        sent: dict[int, list[tuple[Vector, float]]] = {}
        for event in batch:
            u, v, t = stream.source[event], stream.target[event], stream.time[event]
            before = self.bound(batch, event)
            memory[u], memory[v] = self.embed(u, t, before), self.embed(v, t, before)
            mail = np.concatenate([memory[u] + memory[v], self.features(event)])
            receivers = {u, v}
            for node in (u, v):
                for partner, _, _ in (
                    self.neighbors(node, t, self.model.settings["neighbors"], before)
                    if self.model.settings["neighbors"]
                    else ()
                ):
                    receivers.add(partner)
            for node in receivers:
                sent.setdefault(node, []).append((mail, t))
        self.memory.update(memory)
        for node, mails in sent.items():
            mean = np.mean([mail for mail, _ in mails], axis=0)
            self.box.setdefault(node, []).append((mean, mails[-1][1]))

    def tables(self) -> dict[str, np.ndarray]:
        N, M = self.stream.num_nodes, self.model.settings["mails"]
        memory = np.zeros((N, self.model.memory_width))
        width = self.model.memory_width + self.stream.feature_width
        mail = np.zeros((N, M, width))
        time = np.zeros((N, M), np.float64 if self.stream.float_time else np.int64)
        count = np.zeros(N, np.int64)
        for node, vector in self.memory.items():
            memory[node] = vector
        for node, mails in self.box.items():
            count[node] = len(mails)
            for place, (vector, t) in enumerate(mails):
                mail[node, place % M], time[node, place % M] = vector, t
        return {
            "memory": memory, "mail": mail, "mail_time": time.view(np.int64), "mail_count": count
        }  # fmt: skip
