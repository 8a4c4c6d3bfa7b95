"""What some models ask of history beside hops: windows, shared nodes, walks.

Each is listed from the index first (so that its nodes and events join the batch's tables) and
becomes tensors once their rows there are known.

Shape legend: S seeds, K slots, J = K + 1, P = B (1 + C) pairs, M walks, L steps, I = L + 1
positions, X encounters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tidegraph.batches import pair_kernels
from tidegraph.batches.prepared import Encounters, Shared, WalkSets
from tidegraph.batches.rows import uses_of
from tidegraph.history import TemporalIndex
from tidegraph.history.walks import Walks, encounters, walk


@dataclass(frozen=True)
class WalkPlan:
    """Walks that a model asks for.

    Attributes:
        count: M, walks per seed.
        length: L, steps per walk.
        bias: an event of age a is drawn with probability proportional to exp(-bias a).
    """

    count: int
    length: int
    bias: float = 0.0


@dataclass(frozen=True, eq=False)
class Asked:
    """The roots' distinct (node, time) seeds and which history they may see.

    Attributes:
        index: who met whom.
        node_S, time_S: the seeds.
        before: only events with a smaller id, None, one for all or one each.
        inclusive: whether events at exactly the seed's time count.
    """

    index: TemporalIndex
    node_S: np.ndarray
    time_S: np.ndarray
    before: Any
    inclusive: bool


@dataclass(frozen=True, eq=False)
class EncounterList:
    """`Encounters` by nodes of the graph."""

    indptr_S1: np.ndarray
    nodes: np.ndarray

    def build(self, row_X: np.ndarray, rows: int) -> Encounters:
        """With the nodes' rows among `rows` unique ones."""
        return Encounters(
            torch.from_numpy(self.indptr_S1.astype(np.int32)),
            torch.from_numpy(row_X),
            uses_of(row_X, rows),
        )


def list_encounters(asked: Asked, window: float) -> EncounterList:
    """Everyone the seeds met in the last `window` time units."""
    return EncounterList(
        *encounters(
            asked.index,
            asked.node_S,
            asked.time_S,
            window,
            inclusive=asked.inclusive,
            before_event=asked.before,
        )
    )


@dataclass(frozen=True, eq=False)
class WalkList:
    """`WalkSets` by nodes and events of the graph."""

    found: Walks
    self_S: np.ndarray

    @property
    def nodes(self) -> np.ndarray:
        """The seeds' nodes, then all steps'."""
        return np.concatenate([self.self_S, self.found.node_SML.reshape(-1)])

    @property
    def event_SML(self) -> np.ndarray:
        """[S, M, L] event ids."""
        return self.found.event_SML

    def build(
        self, row_X: np.ndarray, event_SML: np.ndarray, root_R: np.ndarray, B: int
    ) -> WalkSets:
        """With rows of the nodes (as `nodes`) and of the events; pairs come from `root_R`."""
        S, M, L = self.found.node_SML.shape
        self_S, node_SML = row_X[:S], row_X[S:].reshape(S, M, L)
        node_SMI = np.concatenate([np.repeat(self_S[:, None, None], M, axis=1), node_SML], axis=2)
        source_P, target_P = pairs_of(root_R, B)
        own_SMII = np.empty((S, M, L + 1, L + 1), np.float32)
        across_P2MII = np.empty((len(source_P), 2, M, L + 1, L + 1), np.float32)
        pair_kernels.places_own(node_SMI, own_SMII)
        pair_kernels.places_across(node_SMI, source_P, target_P, across_P2MII)
        return WalkSets(
            self_S=torch.from_numpy(self_S),
            node_SML=torch.from_numpy(np.maximum(node_SML, 0)),
            event_SML=torch.from_numpy(event_SML),
            delta_SML=torch.from_numpy(self.found.delta_SML),
            length_SM=torch.from_numpy((node_SML >= 0).sum(2, dtype=np.int32)),
            own_SMII=torch.from_numpy(own_SMII),
            across_P2MII=torch.from_numpy(across_P2MII),
        )


def take_walks(
    asked: Asked, plan: WalkPlan, key: int, slot_S: np.ndarray, node_S: np.ndarray
) -> WalkList:
    """Walk back from the seeds; `slot_S` are the numbers that their random draws belong to."""
    found = walk(
        asked.index,
        asked.node_S,
        asked.time_S,
        plan.count,
        plan.length,
        bias=plan.bias,
        inclusive=asked.inclusive,
        before_event=asked.before,
        key=key,
        slot_S=slot_S,
    )
    return WalkList(found, node_S)


def share_nodes(node_SJ: np.ndarray, root_R: np.ndarray, B: int) -> Shared:
    """Occurrences within the sequences `node_SJ` (padding -1) and across each pair of them."""
    source_P, target_P = pairs_of(root_R, B)
    used_S = (node_SJ >= 0).sum(1, dtype=np.int32)
    own_SJ = np.empty(node_SJ.shape, np.int32)
    across_P2J = np.empty((len(source_P), 2, node_SJ.shape[1]), np.int32)
    pair_kernels.count_own(node_SJ, used_S, own_SJ)
    pair_kernels.count_across(node_SJ, used_S, source_P, target_P, across_P2J)
    return Shared(torch.from_numpy(own_SJ), torch.from_numpy(across_P2J))


def pairs_of(root_R: np.ndarray, B: int) -> tuple[np.ndarray, np.ndarray]:
    """Seeds of each pair's source and candidate, event by event, the true target first.

    >>> pairs_of(np.array([7, 8, 1, 2, 5, 6]), 2)
    (array([7, 7, 8, 8]), array([1, 5, 2, 6]))
    """
    C = len(root_R) // max(B, 1) - 2
    candidate_BX = np.concatenate(
        [root_R[B : 2 * B, None], root_R[2 * B :].reshape(B, max(C, 0))], axis=1
    )
    return np.repeat(root_R[:B], candidate_BX.shape[1]), candidate_BX.reshape(-1)
