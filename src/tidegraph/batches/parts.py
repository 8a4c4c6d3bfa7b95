"""What preparation works on between its steps: requests, seeds, and parts of a batch as arrays.

Shape legend: as in `prepared`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from tidegraph.batches.prepared import Delivery, Hop, Mail, Uses
from tidegraph.history import Neighbors


@dataclass(frozen=True, eq=False)
class Request:
    """What one batch asks of history.

    `neighbors_before`: only events with a smaller id are neighbours (None: time alone decides).
    `bound_B`: each root sees only events with a smaller id than its own bound (inclusive history).
    """

    source_B: np.ndarray
    target_B: np.ndarray
    negative_BC: np.ndarray
    time_B: np.ndarray
    event_B: np.ndarray
    number: int
    version: int
    mail_before: int
    neighbors_before: int | None
    bound_B: np.ndarray | None
    inclusive: bool
    writes: bool
    epoch: int

    def seeds(self) -> SeedArrays:
        C = self.negative_BC.shape[1]

        def per_root(value_B: np.ndarray) -> np.ndarray:
            return np.concatenate([value_B, value_B, np.repeat(value_B, C)])

        node_R = np.concatenate([self.source_B, self.target_B, self.negative_BC.reshape(-1)])
        return SeedArrays(
            node_R.astype(np.int32, copy=False),
            per_root(self.time_B),
            None if self.bound_B is None else per_root(self.bound_B),
        )


@dataclass(frozen=True, eq=False)
class SeedArrays:
    """(node, query time, event bound) triples; `bound` None where none applies."""

    node: np.ndarray
    time: np.ndarray
    bound: np.ndarray | None

    def take(self, index: np.ndarray) -> SeedArrays:
        bound = None if self.bound is None else self.bound[index]
        return SeedArrays(self.node[index], self.time[index], bound)

    def with_neighbors(self, neighbors: Neighbors) -> SeedArrays:
        """These seeds, then every slot as a seed of its own: its node at its event's time."""
        bound = self.bound
        if bound is not None:
            event_X = neighbors.event_SK.reshape(-1).astype(np.int64)
            bound = np.concatenate([bound, event_X])
        return SeedArrays(
            np.concatenate([self.node, neighbors.neighbor_SK.reshape(-1)]),
            np.concatenate([self.time, neighbors.time_SK.reshape(-1)]),
            bound,
        )

    def slots(self) -> np.ndarray:
        """A number for each seed that depends on its node and time alone."""
        with np.errstate(over="ignore"):
            time = self.time.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            return time ^ (self.node.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F))


@dataclass(frozen=True, eq=False)
class HopArrays:
    """A sampled hop with the rows (in the table below) of its seeds, then of its slots."""

    neighbors: Neighbors
    row_X: np.ndarray
    table_rows: int

    def node_SJ(self) -> np.ndarray:
        """[S, K + 1] rows of each seed's node and its neighbours, newest first; padding -1."""
        S, K = self.neighbors.neighbor_SK.shape
        slot_SK = self.neighbors.count_S[:, None] - 1 - np.arange(K)
        row_SK = np.take_along_axis(self.row_X[S:].reshape(S, K), np.maximum(slot_SK, 0), axis=1)
        row_SK = np.where(slot_SK >= 0, row_SK, -1)
        return np.concatenate([self.row_X[:S, None], row_SK], axis=1).astype(np.int32)

    def build(self, event_SK: np.ndarray, uses: Callable[[np.ndarray, int], Uses]) -> Hop:
        S, K = self.neighbors.neighbor_SK.shape
        self_S, neighbor_X = self.row_X[:S], self.row_X[S:]
        return Hop(
            self_S=torch.from_numpy(self_S),
            neighbor_SK=torch.from_numpy(np.maximum(neighbor_X, 0).reshape(S, K)),
            event_SK=torch.from_numpy(event_SK),
            delta_SK=torch.from_numpy(self.neighbors.delta_SK),
            count_S=torch.from_numpy(self.neighbors.count_S),
            self_uses=uses(self_S, self.table_rows),
            neighbor_uses=uses(neighbor_X, self.table_rows),
        )


@dataclass(frozen=True, eq=False)
class MailArrays:
    row: np.ndarray
    indptr: np.ndarray
    event: np.ndarray
    delta: np.ndarray
    begin_U: np.ndarray
    end_U: np.ndarray

    def build(self, event_L: np.ndarray) -> Mail:
        return Mail(
            row_M=torch.from_numpy(self.row),
            indptr_M1=torch.from_numpy(self.indptr),
            event_L=torch.from_numpy(event_L),
            delta_L=torch.from_numpy(self.delta),
        )


@dataclass(frozen=True, eq=False)
class DeliveryArrays:
    node: np.ndarray
    indptr: np.ndarray
    event: np.ndarray
    time: np.ndarray

    def build(self, feature_B: np.ndarray) -> Delivery:
        return Delivery(
            node_V=torch.from_numpy(self.node),
            indptr_V1=torch.from_numpy(self.indptr),
            event_X=torch.from_numpy(self.event),
            time_V=torch.from_numpy(self.time),
            feature_B=torch.from_numpy(feature_B),
        )
