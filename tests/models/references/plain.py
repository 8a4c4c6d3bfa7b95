"""What the references of models without memory have in common: lists, loops, float64.

A reference embeds one pair at one time from the list of events, with nothing batched, shared or
padded, and reads the model's weights by name. It has the interface of `plain_tgn.PlainTGN`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

import ledger
from tidegraph.models import TemporalModel
from tiny import Stream

Vector = np.ndarray


def relu(x: Vector) -> Vector:
    return np.maximum(x, 0.0)


def gelu(x: Vector) -> Vector:
    from math import erf, sqrt

    return np.array([v * 0.5 * (1.0 + erf(v / sqrt(2.0))) for v in x.reshape(-1)]).reshape(x.shape)


def softmax(x: Vector) -> Vector:
    e = np.exp(x - x.max())
    return e / e.sum()


@dataclass
class Plain:
    """Scores pairs of one stream; a subclass writes `pair`."""

    stream: Stream
    model: TemporalModel
    kept: list[int]
    w: dict[str, Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.read_weights()

    def read_weights(self) -> None:
        self.w = {n: p.detach().double().numpy().copy() for n, p in self.model.named_parameters()}

    def execute(self, batch: list[int]) -> None:
        """Nothing is remembered."""

    # ------------------------------------------------------------ pieces

    def linear(self, name: str, x: Vector) -> Vector:
        y = self.w[f"{name}.weight"] @ x
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def norm(self, name: str, x: Vector) -> Vector:
        scaled = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def code(self, delta: float) -> Vector:
        angle = self.w["time_code.weight"] * float(np.float32(delta)) + self.w["time_code.bias"]
        return np.cos(angle)

    def event(self, number: int | None) -> Vector:
        """Features of an event, zeros for none."""
        table = self.stream.features
        if table is None:
            return np.empty(0)
        return np.zeros(table.shape[1]) if number is None else table[number].astype(np.float64)

    def node(self, node: int) -> Vector:
        table = self.stream.node_features
        return np.empty(0) if table is None else table[node].astype(np.float64)

    def latest(self, node: int, time: float, k: int, before: int | None) -> list[tuple]:
        """(partner, event, event time), newest first."""
        history = self.model.history
        return ledger.neighbors(self.stream, self.kept, history, node, time, k, before)[::-1]

    def block(
        self, name: str, asking: list[Vector], asked: list[Vector], heads: int, norm_first: bool
    ) -> list[Vector]:
        """A transformer block, token by token and head by head."""
        first = [self.norm(f"{name}.attention_norm", x) if norm_first else x for x in asking]
        other = [self.norm(f"{name}.attention_norm", x) if norm_first else x for x in asked]
        keys, values = [], []
        for x in other:
            k, v = np.split(self.linear(f"{name}.key_value", x), 2)
            keys.append(np.split(k, heads))
            values.append(np.split(v, heads))
        result = []
        for x, normed in zip(asking, first, strict=True):
            queries = np.split(self.linear(f"{name}.query", normed), heads)
            seen = []
            for h, q in enumerate(queries):
                weights = softmax(np.array([q @ k[h] / np.sqrt(len(q)) for k in keys]))
                seen.append(sum(a * v[h] for a, v in zip(weights, values, strict=True)))
            x = x + self.linear(f"{name}.output", np.concatenate(seen))
            if not norm_first:
                x = self.norm(f"{name}.attention_norm", x)
            y = self.norm(f"{name}.hidden_norm", x) if norm_first else x
            y = self.linear(f"{name}.hidden_out", gelu(self.linear(f"{name}.hidden_in", y)))
            x = x + y
            result.append(x if norm_first else self.norm(f"{name}.hidden_norm", x))
        return result

    # ------------------------------------------------------------ scores

    def pair(
        self, source: int, candidate: int, time: float, before: int | None
    ) -> tuple[Vector, Vector]:
        """Embeddings of both sides."""
        raise NotImplementedError

    def score(self, source: int, candidate: int, time: float, before: int | None) -> float:
        z_u, z_v = self.pair(source, candidate, time, before)
        hidden = relu(self.linear("source_layer", z_u) + self.linear("target_layer", z_v))
        return float(self.linear("output_layer", hidden)[0])

    def scores(self, batch: list[int], negative_BC: np.ndarray) -> np.ndarray:
        """[B, 1 + C], the true target first."""
        history, stream, result = self.model.history, self.stream, []
        for b, event in enumerate(batch):
            before: int | None = None
            if history.visibility == "batch":
                before = batch[0]
            elif history.inclusive:
                before = event
            candidates = [stream.target[event], *negative_BC[b].tolist()]
            source, time = stream.source[event], stream.time[event]
            result.append([self.score(source, c, time, before) for c in candidates])
        return np.array(result)
