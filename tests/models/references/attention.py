"""One attention layer with its merge, every neighbour projected through W_k and W_v."""

from __future__ import annotations

import math

import numpy as np

from models.references.memory import PlainModel, Vector


def attended(plain: PlainModel, prefix: str, h: Vector, rows: list[Vector]) -> Vector:
    """z = W_2 relu(W_1 [r ; h]); `rows` are [h_u ; x ; Phi(t - tau)] of the neighbours."""
    w = {n[len(prefix) :]: p for n, p in plain.weights.items() if n.startswith(prefix)}
    heads, width = w["key"].shape[:2]
    query = w["query.weight"] @ h + w["query.bias"] + w["query_time"] @ plain.time_code(0.0)
    result = weighted(query.reshape(heads, width), w["key"], w["value"], rows)
    hidden = np.concatenate([result, h])
    hidden = np.maximum(w["merge_in.weight"] @ hidden + w["merge_in.bias"], 0)
    return w["merge_out.weight"] @ hidden + w["merge_out.bias"]


def weighted(query_Hd: Vector, key: Vector, value: Vector, rows: list[Vector]) -> Vector:
    """The heads' sums side by side; zero without rows."""
    result = np.zeros(query_Hd.shape)
    for head, q in enumerate(query_Hd):
        if rows:
            logits = np.array([q @ (key[head] @ x) / math.sqrt(len(q)) for x in rows])
            weight = np.exp(logits - logits.max())
            weight /= weight.sum()
            result[head] = sum(a * (x @ value[head]) for a, x in zip(weight, rows, strict=True))
    return result.reshape(-1)
