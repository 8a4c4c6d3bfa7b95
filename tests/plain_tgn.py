"""TGN from its equations, in float64, one event and one node at a time: the oracle of the model.

State is dictionaries; messages are explicit vectors; attention projects every neighbour through
W_k and W_v (nothing folded, nothing batched, nothing shared between seeds). Weights are read from
a model's parameters by name. Slow, and meant to be read beside the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

import ledger
from tidegraph.models import TGN
from tiny import Stream

Vector = np.ndarray


def _sigmoid(x: Vector) -> Vector:
    return 1.0 / (1.0 + np.exp(-x))


@dataclass
class PlainTGN:
    """State and scores of one stream; `weights` may be replaced between batches.

    A node's pending messages are kept as (partner's memory when it was sent, event). When they are
    applied, m_v <- cell(mean of [m_v ; partner ; x ; Phi(mail time - last update)], m_v).
    """

    stream: Stream
    model: TGN
    kept: list[int]
    memory: dict[int, Vector] = field(default_factory=dict)
    pending: dict[int, list[tuple[Vector, int]]] = field(default_factory=dict)
    updated: dict[int, float] = field(default_factory=dict)
    weights: dict[str, Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.read_weights()

    def read_weights(self) -> None:
        """Take the model's parameters as they are now."""
        self.weights = {
            name: p.detach().double().numpy().copy() for name, p in self.model.named_parameters()
        }

    # ------------------------------------------------------------ memory (eq. 1-4)

    def time_code(self, delta: float) -> Vector:
        w = self.weights
        return np.cos(w["time_code.weight"] * float(np.float32(delta)) + w["time_code.bias"])

    def features(self, event: int) -> Vector:
        table = self.stream.features
        return np.empty(0) if table is None else table[event].astype(np.float64)

    def stored(self, node: int) -> Vector:
        return self.memory.get(node, np.zeros(self.model.memory_width))

    def current(self, node: int) -> Vector:
        """Memory with pending messages applied; without any it is the stored memory."""
        own, mails = self.stored(node), self.pending.get(node, [])
        if not mails:
            return own
        last = self.updated.get(node, self.stream.time[0])
        messages = [
            np.concatenate(
                [
                    own,
                    partner,
                    self.features(event),
                    self.time_code(self.stream.time[event] - last),
                ]
            )
            for partner, event in mails
        ]
        return self.cell(np.mean(messages, axis=0), own)

    def cell(self, x: Vector, m: Vector) -> Vector:
        w = {n: self.weights[f"memory_cell.{n}"] for n in ("weight_ih", "weight_hh")}
        gate_x = w["weight_ih"] @ x + self.weights["memory_cell.bias_ih"]
        gate_m = w["weight_hh"] @ m + self.weights["memory_cell.bias_hh"]
        if self.model.memory_cell.cell == "rnn":
            return np.tanh(gate_x + gate_m)
        (r_x, z_x, n_x), (r_m, z_m, n_m) = np.split(gate_x, 3), np.split(gate_m, 3)
        r, z = _sigmoid(r_x + r_m), _sigmoid(z_x + z_m)
        n = np.tanh(n_x + r * n_m)
        return (1 - z) * n + z * m

    def execute(self, batch: list[int]) -> None:
        """Persist the endpoints, then replace their messages by those of this batch."""
        stream = self.stream
        ends = {n for event in batch for n in (stream.source[event], stream.target[event])}
        fresh = {node: self.current(node) for node in ends}
        sent: dict[int, list[tuple[Vector, int]]] = {node: [] for node in ends}
        for event in batch:
            u, v = stream.source[event], stream.target[event]
            sent[u].append((fresh[v], event))
            if u != v:
                sent[v].append((fresh[u], event))
        for node in ends:
            if self.pending.get(node):
                self.updated[node] = stream.time[self.pending[node][-1][1]]
            self.memory[node] = fresh[node]
            only_last = self.model.history.message == "last"
            self.pending[node] = sent[node][-1:] if only_last else sent[node]

    # ------------------------------------------------------------ embedding (eq. 9-11)

    def embed(self, node: int, time: float, depth: int, before: int | None) -> Vector:
        if depth == 0:
            own = self.current(node)
            if self.stream.node_features is not None:
                own = own + self.weights["node_projection.weight"] @ self.stream.node_features[node]
            return own
        history = self.model.history
        h = self.embed(node, time, depth - 1, before)
        rows = []
        for partner, event, t in ledger.neighbors(
            self.stream, self.kept, history, node, time, history.neighbors[-depth], before
        ):
            limit = event if history.inclusive else before
            rows.append(
                np.concatenate(
                    [
                        self.embed(partner, t, depth - 1, limit),
                        self.features(event),
                        self.time_code(time - t),
                    ]
                )
            )
        return self.layer(depth - 1, h, rows)

    def layer(self, number: int, h: Vector, rows: list[Vector]) -> Vector:
        prefix = f"attention.{number}."
        w = {n[len(prefix) :]: p for n, p in self.weights.items() if n.startswith(prefix)}
        heads, width = w["key"].shape[:2]
        query = w["query.weight"] @ h + w["query.bias"] + w["query_time"] @ self.time_code(0.0)
        result = np.zeros((heads, width))
        for head, q in enumerate(query.reshape(heads, width)):
            if not rows:
                continue  # no neighbours: r = 0
            logits = np.array([q @ (w["key"][head] @ x) / math.sqrt(width) for x in rows])
            weight = np.exp(logits - logits.max())
            weight /= weight.sum()
            result[head] = sum(
                a * (x @ w["value"][head]) for a, x in zip(weight, rows, strict=True)
            )
        hidden = np.concatenate([result.reshape(-1), h])
        hidden = np.maximum(w["merge_in.weight"] @ hidden + w["merge_in.bias"], 0)
        return w["merge_out.weight"] @ hidden + w["merge_out.bias"]

    # ------------------------------------------------------------ scores

    def score(self, source: int, candidate: int, time: float, before: int | None) -> float:
        w, depth = self.weights, len(self.model.history.neighbors)
        z_u = self.embed(source, time, depth, before)
        z_v = self.embed(candidate, time, depth, before)
        hidden = (
            w["source_layer.weight"] @ z_u + w["source_layer.bias"] + w["target_layer.weight"] @ z_v
        )
        return float((w["output_layer.weight"] @ np.maximum(hidden, 0) + w["output_layer.bias"])[0])

    def scores(self, batch: list[int], negative_BC: np.ndarray) -> np.ndarray:
        """[B, 1 + C], the true target first, before the batch is executed."""
        history, result = self.model.history, []
        for b, event in enumerate(batch):
            before: int | None = None
            if history.visibility == "batch":
                before = batch[0]
            elif history.inclusive:
                before = event
            candidates = [self.stream.target[event], *negative_BC[b].tolist()]
            result.append(
                [
                    self.score(self.stream.source[event], c, self.stream.time[event], before)
                    for c in candidates
                ]
            )
        return np.array(result)
