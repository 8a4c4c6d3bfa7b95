"""Memory and messages of JODIE, DyRep and TGN from their equations: one event, one node at a time.

State is dictionaries and messages are explicit vectors; nothing is batched, folded or shared. The
models' own files say how a node is embedded and what a partner sends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

import ledger
from tidegraph.models import TemporalModel
from tiny import Stream

Vector = np.ndarray


def sigmoid(x: Vector) -> Vector:
    return 1.0 / (1.0 + np.exp(-x))


@dataclass
class PlainModel:
    """What every oracle has: weights by name, features, time codes and the score of a pair."""

    stream: Stream
    model: TemporalModel
    kept: list[int]
    weights: dict[str, Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.read_weights()

    def read_weights(self) -> None:
        """Take the model's parameters as they are now."""
        self.weights = {
            name: p.detach().double().numpy().copy() for name, p in self.model.state_dict().items()
        }

    def features(self, event: int) -> Vector:
        table = self.stream.features
        return np.empty(0) if table is None else table[event].astype(np.float64)

    def node_features(self, node: int) -> Vector:
        table = self.stream.node_features
        if table is None:
            return np.zeros(self.model.memory_width)
        return self.weights["node_projection.weight"] @ table[node].astype(np.float64)

    def time_code(self, delta: float) -> Vector:
        w = self.weights
        return np.cos(w["time_code.weight"] * float(np.float32(delta)) + w["time_code.bias"])

    def linear(self, name: str, x: Vector) -> Vector:
        result = self.weights[f"{name}.weight"] @ x
        return result + self.weights.get(f"{name}.bias", 0.0)

    def neighbors(
        self, node: int, time: float, k: int, before: int | None
    ) -> list[tuple[int, int, float]]:
        """(partner, event, event time) of the last k, oldest first."""
        return ledger.neighbors(self.stream, self.kept, self.model.history, node, time, k, before)

    def bound(self, batch: list[int], event: int) -> int | None:
        """The event id from which on nothing is visible to a query about `event`."""
        history = self.model.history
        if history.visibility == "batch":
            return batch[0]
        return event if history.inclusive else None

    def embed(self, node: int, time: float, before: int | None) -> Vector:
        raise NotImplementedError

    def execute(self, batch: list[int]) -> None:
        raise NotImplementedError

    def tables(self) -> dict[str, np.ndarray]:
        """What the state must hold, by column."""
        raise NotImplementedError

    def score(self, source: int, candidate: int, time: float, before: int | None) -> float:
        z_u, z_v = self.embed(source, time, before), self.embed(candidate, time, before)
        hidden = self.linear("source_layer", z_u) + self.linear("target_layer", z_v)
        return float(self.linear("output_layer", np.maximum(hidden, 0))[0])

    def scores(self, batch: list[int], negative_BC: np.ndarray) -> np.ndarray:
        """[B, 1 + C], the true target first, before the batch is executed."""
        stream = self.stream
        return np.array(
            [
                [
                    self.score(
                        stream.source[event], node, stream.time[event], self.bound(batch, event)
                    )
                    for node in [stream.target[event], *negative_BC[b].tolist()]
                ]
                for b, event in enumerate(batch)
            ]
        )


@dataclass
class PlainMemory(PlainModel):
    """Memory with pending messages, kept as (what the partner sent, event)."""

    memory: dict[int, Vector] = field(default_factory=dict)
    pending: dict[int, list[tuple[Vector, int]]] = field(default_factory=dict)
    updated: dict[int, float] = field(default_factory=dict)

    def current(self, node: int, now: float | None = None) -> Vector:
        """Memory with pending messages applied; their age is measured up to `now` if given."""
        own = self.memory.get(node, np.zeros(self.model.memory_width))
        mails = self.pending.get(node, [])
        if not mails:
            return own
        last = self.updated.get(node, self.stream.time[0])
        messages = []
        for sent, event in mails:
            age = (self.stream.time[event] if now is None else now) - last
            messages.append(np.concatenate([own, sent, self.features(event), self.time_code(age)]))
        return self.cell(np.mean(messages, axis=0), own)

    def cell(self, x: Vector, m: Vector) -> Vector:
        w = self.weights
        gate_x = w["memory_cell.weight_ih"] @ x + w["memory_cell.bias_ih"]
        gate_m = w["memory_cell.weight_hh"] @ m + w["memory_cell.bias_hh"]
        if len(gate_x) == len(m):
            return np.tanh(gate_x + gate_m)
        (r_x, z_x, n_x), (r_m, z_m, n_m) = np.split(gate_x, 3), np.split(gate_m, 3)
        r, z = sigmoid(r_x + r_m), sigmoid(z_x + z_m)
        return (1 - z) * np.tanh(n_x + r * n_m) + z * m

    def last_event_time(self, node: int) -> float:
        """Of the node's last event before the batch; the stream's first time without one."""
        mails = self.pending.get(node)
        return self.stream.time[mails[-1][1]] if mails else self.stream.time[0]

    def fresh(self, node: int, batch: list[int]) -> Vector:
        """The memory that is stored for an endpoint of the batch."""
        return self.current(node)

    def sent(self, node: int, event: int, batch: list[int]) -> Vector:
        """What `node` sends to its partner in `event`."""
        return self.fresh(node, batch)

    def execute(self, batch: list[int]) -> None:
        """Store the endpoints' memories, then replace their messages by those of this batch."""
        stream = self.stream
        fresh: dict[int, Vector] = {}
        mail: dict[int, list[tuple[Vector, int]]] = {}
        for event in batch:
            u, v = stream.source[event], stream.target[event]
            for node, partner in {u: v, v: u}.items():
                fresh[node] = self.fresh(node, batch)
                mail.setdefault(node, []).append((self.sent(partner, event, batch), event))
        for node, mails in mail.items():
            if self.pending.get(node):
                self.updated[node] = self.last_event_time(node)
            self.memory[node] = fresh[node]
            self.pending[node] = mails[-1:] if self.model.history.message == "last" else mails

    def tables(self) -> dict[str, np.ndarray]:
        width = self.model.memory_width
        memory, mail = np.zeros((2, self.stream.num_nodes, width))
        for node, vector in self.memory.items():
            memory[node] = vector
            mail[node] = np.mean([sent for sent, _ in self.pending[node]], axis=0)
        return {"memory": memory, "mail": mail}
