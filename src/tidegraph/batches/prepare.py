"""Preparation: the history-bound half of a step, from event ids and negatives to `PreparedBatch`.

It reads the index, the plan and the feature stores, never memory or parameters; two calls with the
same arguments give the same batch, in any order and on any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tidegraph.batches import kernels
from tidegraph.batches.beside import Asked, WalkPlan, list_encounters, share_nodes, take_walks
from tidegraph.batches.parts import (
    DeliveryArrays,
    HopArrays,
    MailArrays,
    Request,
    SeedArrays,
)
from tidegraph.batches.plan import BatchPlan
from tidegraph.batches.prepared import (
    Ends,
    PreparedBatch,
    Seeds,
    Uses,
    Writes,
)
from tidegraph.batches.rows import NO_USES, NONE, distinct, uses_of
from tidegraph.errors import SettingError
from tidegraph.events.core import Events
from tidegraph.features.store import FeatureStore
from tidegraph.history import Neighbors, TemporalIndex
from tidegraph.keys import Purpose, make_key


@dataclass(frozen=True)
class History:
    """What a model needs to know about the past; preparation delivers exactly this.

    Attributes:
        neighbors: fan-out per layer, outermost (the roots') first; empty for no neighbours.
        strategy: "recent" or "uniform" (without replacement).
        window: only neighbours of the last `window` time units, or None.
        inclusive: events at exactly the query time count as history (the event itself never).
        visibility: "event": neighbours up to the query time; "batch": earlier batches only.
        memory: the model keeps node memory, so pending mail is prepared.
        message: "last" or "mean" of a node's events in its last batch.
        memory_time: the memory update measures time up to the "mail", or up to the "query": then a
            node is updated once per query time (one layer of neighbours at most).
        seed_times: seeds carry their query times and the time since their last event.
        endpoints: the endpoints' seeds are prepared, for a state made of embeddings.
        delivery: None: mail waits at the endpoints. k: it is delivered at once, to the endpoints
            and their k latest neighbours, and none is pending.
        met_within: also list everyone each root met in the last so many time units, or None.
        shared: also count how often the nodes of a source's and a candidate's sequences occur in
            both; takes one layer of neighbours.
        walks: also walk back in time from each root, or None.
    """

    neighbors: tuple[int, ...] = (10,)
    strategy: Literal["recent", "uniform"] = "recent"
    window: float | None = None
    inclusive: bool = False
    visibility: Literal["event", "batch"] = "event"
    memory: bool = True
    message: Literal["last", "mean"] = "last"
    memory_time: Literal["mail", "query"] = "mail"
    seed_times: bool = False
    endpoints: bool = False
    delivery: int | None = None
    met_within: float | None = None
    shared: bool = False
    walks: WalkPlan | None = None


@dataclass(frozen=True, eq=False)
class Preparer:
    """Prepares batches of one stream for one model.

    Attributes:
        events: the stream.
        index: its temporal index; it may hold events after the plan's last one, never others that
            are not streamed.
        plan: batch borders.
        history: what the model needs.
        features: event features.
        node_features: node features, width 0 if none.
        seed: for uniform sampling and dropout.
        dedup: compute each distinct (node, time) once. Off only to test that it changes nothing.
        compact: gather the event features that the batch uses (for another device), instead of
            passing the whole store. Stores that kernels cannot read in place are gathered anyway.
        gather: with `compact`, copy the named rows now. Off, the batch is deferred: whoever moves
            it to a device fetches them.
        neighbor_index: index of the events that count as neighbours, where that is not all of
            them; mail follows from `index` all the same.
        transposes: list each row's uses, which gradients are summed by. Off, the lists are empty:
            the batch can be scored.
    """

    events: Events
    index: TemporalIndex
    plan: BatchPlan
    history: History
    features: FeatureStore
    node_features: FeatureStore
    seed: int = 0
    dedup: bool = True
    compact: bool = False
    gather: bool = True
    neighbor_index: TemporalIndex | None = None
    transposes: bool = True

    def __post_init__(self) -> None:
        if self.history.shared and len(self.history.neighbors) != 1:
            raise SettingError(
                f"shared nodes are counted in one layer of neighbours, and neighbors is "
                f"{self.history.neighbors}: give one number"
            )
        if self.history.memory and self.index.directed:
            raise SettingError(
                "the index is directed but the model keeps memory: mail reaches both ends of an "
                "event, and a directed index lists sources only. Build an undirected index."
            )
        if self.history.memory_time == "query" and self.history.endpoints:
            raise SettingError("memory_time='query' is not for a state made of embeddings")
        if self.history.memory_time == "query" and len(self.history.neighbors) > 1:
            raise SettingError(
                "memory_time='query' needs at most one layer of neighbours: a second is asked at "
                "the time of an event, which may be before its nodes' last updates"
            )

    def prepare(
        self,
        number: int,
        negative_BC: np.ndarray,
        *,
        epoch: int = 0,
        as_of: int | None = None,
    ) -> PreparedBatch:
        """Prepare batch `number` of the plan.

        Args:
            number: batch number; the batch will read the state version that the plan says.
            negative_BC: int32 [B, C], nodes to score beside the true targets (C may be 0).
            epoch: for random streams.
            as_of: freeze history at the start of this earlier batch: neighbours, mail and state
                version are its, and the batch writes nothing.

        Raises:
            SettingError: `negative_BC` has another number of rows than the batch has events.
        """
        event_B = self.plan.events(number)
        if negative_BC.ndim != 2 or len(negative_BC) != len(event_B):
            raise SettingError(
                f"negatives of shape {negative_BC.shape} for batch {number} of {len(event_B)} "
                "events: expected one row per event"
            )
        history_number = number if as_of is None else as_of
        version = int(self.plan.version_B[history_number])
        limit: int | None = int(self.plan.first_event_B[history_number])
        if as_of is None and self.history.visibility == "event":
            limit = None
        return self._assemble(
            Request(
                source_B=self.events.source[event_B],
                target_B=self.events.target[event_B],
                negative_BC=negative_BC,
                time_B=self.events.time[event_B],
                event_B=event_B,
                number=number,
                version=version,
                # Mail belongs to the version that is read; neighbours are history and never stale.
                mail_before=int(self.plan.first_event_B[version]),
                neighbors_before=limit,
                bound_B=self._bounds(event_B, limit) if self.history.inclusive else None,
                inclusive=self.history.inclusive,
                writes=as_of is None and self.history.memory,
                epoch=epoch,
            )
        )

    def _bounds(self, event_B: np.ndarray, limit: int | None) -> np.ndarray:
        """Per root, even under one limit for all: a hop-2 seed's own event must not come back."""
        return event_B if limit is None else np.full(len(event_B), limit, np.int64)

    def prepare_query(
        self, source_B: np.ndarray, candidate_BC: np.ndarray, time_B: np.ndarray
    ) -> PreparedBatch:
        """Prepare pairs that are not events: what would happen after everything streamed so far.

        All streamed events are visible, those at exactly the query time included. The batch reads
        the version after the plan's last batch and writes nothing.

        Args:
            source_B: int32 [B].
            candidate_BC: int32 [B, C] with C >= 1; the first is in the place of the true target.
            time_B: [B], in the stream's time type.
        """
        return self._assemble(
            Request(
                source_B=source_B,
                target_B=candidate_BC[:, 0],
                negative_BC=candidate_BC[:, 1:],
                time_B=time_B,
                event_B=np.full(len(source_B), -1, np.int64),
                number=len(self.plan),
                version=len(self.plan),
                # The index may hold events that are known but not streamed yet: for the node state
                # they have not happened, so they are neither mail nor neighbours.
                mail_before=self.plan.stop,
                neighbors_before=None,
                bound_B=np.full(len(source_B), self.plan.stop, np.int64),
                inclusive=True,
                writes=False,
                epoch=0,
            )
        )

    def _assemble(self, request: Request) -> PreparedBatch:
        source_B, target_B = request.source_B, request.target_B
        B, C = request.negative_BC.shape
        seeds, root_R = self._unique(request.seeds())
        roots, seed_count = seeds, len(seeds.node)
        history, asked = self.history, self._asked(seeds, request)
        met = walks = None
        if history.met_within is not None:
            met = list_encounters(asked, history.met_within)
        if history.walks is not None:
            key = make_key(self.seed, Purpose.WALK, request.epoch)
            walks = take_walks(asked, history.walks, key, seeds.slots(), seeds.node)

        hops: list[HopArrays] = []
        fanouts = self.history.neighbors
        for depth, fanout in enumerate(fanouts):
            neighbors = self._sample(seeds, fanout, request, depth)
            if depth + 1 < len(fanouts):
                next_seeds, row_X = self._unique(seeds.with_neighbors(neighbors))
                hops.append(HopArrays(neighbors, row_X, len(next_seeds.node)))
                seeds = next_seeds
        # The innermost table is the unique nodes: endpoints, seeds and neighbours.
        parts = [source_B, target_B, seeds.node]
        if fanouts:
            parts.append(neighbors.neighbor_SK.reshape(-1))
        stop = sum(len(part) for part in parts)
        parts += [found.nodes for found in (met, walks) if found is not None]
        node_X, time_X = np.concatenate(parts), NONE
        if self.history.memory_time == "query":
            times = [
                request.time_B,
                request.time_B,
                seeds.time,
                np.repeat(seeds.time, sum(fanouts)),
            ]
            time_X = np.concatenate(times)
        first_U, row_X = distinct(node_X, time_X.view(np.int64))
        node_U = node_X[first_U]
        row_X, beside_X = row_X[:stop], row_X[stop:]
        if fanouts:
            hops.append(HopArrays(neighbors, row_X[2 * B :], len(node_U)))
        elif walks is None and not self.history.seed_times:
            root_R, seed_count = row_X[2 * B :][root_R], len(node_U)
        hops.reverse()

        event_parts = [hop.neighbors.event_SK for hop in hops]
        if walks is not None:
            event_parts.append(walks.event_SML)
        mail = (
            self._mail(node_U, time_X[first_U] if len(time_X) else NONE, request)
            if self._mail_waits
            else None
        )
        delivery = self._delivery(request)
        if mail is not None:
            event_parts.append(mail.event)
        if delivery is not None:
            event_parts.append(request.event_B)
        features, event_rows, event_E = self._event_features(event_parts)
        writes = self._writes(row_X[:B], row_X[B : 2 * B], node_U) if request.writes else None
        return PreparedBatch(
            number=request.number,
            version=request.version,
            key=make_key(self.seed, Purpose.DROPOUT, request.epoch, request.number),
            event_B=torch.from_numpy(request.event_B),
            root_R=torch.from_numpy(root_R),
            root_uses=self._uses(root_R, seed_count),
            candidates=C,
            node_U=torch.from_numpy(node_U),
            hops=tuple(
                hop.build(rows, self._uses) for hop, rows in zip(hops, event_rows, strict=False)
            ),
            mail=None if mail is None else mail.build(event_rows[len(hops)]),
            writes=writes,
            features=features,
            node_features=self._node_features(node_U),
            event_E=event_E,
            # The roots' seeds are the first ones of every table that contains them.
            seeds=self._seeds(roots, row_X[2 * B : 2 * B + len(roots.node)], len(node_U), mail),
            ends=self._ends(writes, row_X[:B], row_X[B : 2 * B], root_R, len(node_U)),
            delivery=None if delivery is None else delivery.build(event_rows[-1]),
            met=None if met is None else met.build(beside_X[: len(met.nodes)], len(node_U)),
            shared=share_nodes(hops[-1].node_SJ(), root_R, B) if history.shared else None,
            walks=None if walks is None else walks.build(
                beside_X[len(beside_X) - len(walks.nodes) :], event_rows[len(hops)], root_R, B
            ),
        )  # fmt: skip

    @property
    def _neighbors(self) -> TemporalIndex:
        return self.index if self.neighbor_index is None else self.neighbor_index

    def _asked(self, seeds: SeedArrays, request: Request) -> Asked:
        before = request.neighbors_before if seeds.bound is None else seeds.bound
        return Asked(self._neighbors, seeds.node, seeds.time, before, request.inclusive)

    def _uses(self, index_P: np.ndarray, rows: int) -> Uses:
        return uses_of(index_P, rows) if self.transposes else NO_USES

    def _unique(self, seeds: SeedArrays) -> tuple[SeedArrays, np.ndarray]:
        """The distinct seeds and, for each of the given ones, its number (-1 for padding)."""
        if not self.dedup:
            real = np.flatnonzero(seeds.node >= 0)
            number = np.full(len(seeds.node), -1, np.int32)
            number[real] = np.arange(len(real), dtype=np.int32)
            return seeds.take(real), number
        bound = NONE if seeds.bound is None else seeds.bound
        first, number = distinct(seeds.node, seeds.time.view(np.int64), bound)
        return seeds.take(first), number

    def _sample(
        self,
        seeds: SeedArrays,
        fanout: int,
        request: Request,
        depth: int,
        *,
        recent: bool = False,
    ) -> Neighbors:
        history = self.history
        before_event: Any = seeds.bound
        if before_event is None:
            before_event = request.neighbors_before
        uniform = history.strategy == "uniform" and not recent
        return self._neighbors.sample(
            seeds.node,
            seeds.time,
            fanout,
            strategy="uniform" if uniform else "recent",
            window=history.window,
            inclusive=request.inclusive,
            before_event=before_event,
            key=make_key(self.seed, Purpose.NEIGHBOR, request.epoch, depth) if uniform else 0,
            # Random numbers belong to (node, time), not to the place in the batch: deduplication
            # and batch size must not change a sample.
            slot_S=seeds.slots() if uniform else None,
            edge_times=0 <= depth < len(history.neighbors) - 1,
        )

    @property
    def _mail_waits(self) -> bool:
        return self.history.memory and self.history.delivery is None

    def _mail(self, node_U: np.ndarray, now_U: np.ndarray, request: Request) -> MailArrays:
        """Pending mail; its age is measured up to `now_U` where that is given."""
        index = self.index
        begin_U, end_U, applied_U = (np.empty(len(node_U), np.int64) for _ in range(3))
        # Only borders of batches before this one matter, and later ones may not exist yet.
        kernels.find_mail(
            node_U, index.indptr_N1, index.place_Z, index.entries, request.mail_before,
            self.plan.first_event_B[: request.version + 1], self.plan.version_B,
            begin_U, end_U, applied_U,
        )  # fmt: skip
        only_last = self.history.message == "last"
        most = len(node_U) if only_last else int((end_U - begin_U).sum())
        row_M, indptr_M1 = np.empty(len(node_U), np.int32), np.empty(len(node_U) + 1, np.int32)
        event_L, delta_L = np.empty(most, np.int32), np.empty(most, np.float32)
        M, L = kernels.list_mail(
            node_U, index.indptr_N1, index.place_Z, index.entries, begin_U, end_U, applied_U,
            self.events.time[0], only_last, now_U, row_M, indptr_M1, event_L, delta_L,
        )  # fmt: skip
        return MailArrays(row_M[:M], indptr_M1[: M + 1], event_L[:L], delta_L[:L], begin_U, end_U)

    def _seeds(
        self, roots: SeedArrays, row_S: np.ndarray, nodes: int, mail: MailArrays | None
    ) -> Seeds | None:
        if not self.history.seed_times:
            return None
        elapsed_S = None
        if mail is not None:
            elapsed_S = np.empty(len(row_S), np.float32)
            kernels.elapsed(
                row_S, roots.time, mail.begin_U, mail.end_U, self.index.entries,
                self.events.time[0], elapsed_S,
            )  # fmt: skip
        return Seeds(
            row_S=torch.from_numpy(row_S),
            row_uses=self._uses(row_S, nodes),
            time_S=torch.from_numpy(roots.time),
            elapsed_S=None if elapsed_S is None else torch.from_numpy(elapsed_S),
        )

    def _ends(
        self,
        writes: Writes | None,
        source_row_B: np.ndarray,
        target_row_B: np.ndarray,
        root_R: np.ndarray,
        nodes: int,
    ) -> Ends | None:
        if writes is None or not self.history.endpoints:
            return None
        root_W = np.empty(len(writes.row_W), np.int32)
        partner_root_P = np.empty(len(writes.partner_row_P), np.int32)
        kernels.list_ends(
            source_row_B, target_row_B, self.history.message == "last", nodes,
            writes.row_W.numpy(), writes.indptr_W1.numpy(), root_W, partner_root_P,
        )  # fmt: skip
        return Ends(torch.from_numpy(root_R[root_W]), torch.from_numpy(root_R[partner_root_P]))

    def _delivery(self, request: Request) -> DeliveryArrays | None:
        count = self.history.delivery
        if count is None or not request.writes:
            return None
        B = len(request.source_B)
        parts = [request.source_B.reshape(B, 1), request.target_B.reshape(B, 1)]
        for node_B in (request.source_B, request.target_B) if count else ():
            seeds = SeedArrays(node_B.astype(np.int32, copy=False), request.time_B, request.bound_B)
            parts.append(self._sample(seeds, count, request, depth=-1, recent=True).neighbor_SK)
        node_BX = np.concatenate(parts, axis=1)
        first_V, row_X = distinct(node_BX.reshape(-1))
        indptr_V1 = np.empty(len(first_V) + 1, np.int32)
        event_X = np.empty(node_BX.size, np.int32)
        used = kernels.list_delivery(row_X.reshape(node_BX.shape), indptr_V1, event_X)
        return DeliveryArrays(
            node_BX.reshape(-1)[first_V], indptr_V1, event_X[:used],
            request.time_B[event_X[indptr_V1[1:] - 1]],
        )  # fmt: skip

    def _writes(self, source_row_B: np.ndarray, target_row_B: np.ndarray, node_U: Any) -> Writes:
        most = 2 * len(source_row_B)
        only_last = self.history.message == "last"
        row_W, indptr_W1 = np.empty(most, np.int32), np.empty(most + 1, np.int32)
        partner_row_P = np.empty(most, np.int32)
        source_B, target_B = source_row_B, target_row_B
        by_time = self.history.memory_time == "query"
        if by_time:  # rows of one node at several query times are one node to write
            end_BB = np.concatenate([source_row_B, target_row_B])
            source_B, target_B = np.split(distinct(node_U[end_BB])[1], 2)
        W, P = kernels.list_writes(
            source_B, target_B, only_last, len(node_U), row_W, indptr_W1, partner_row_P
        )
        row_W, indptr_W1, partner_row_P = row_W[:W], indptr_W1[: W + 1], partner_row_P[:P]
        if by_time:
            root_W, root_P = np.empty(W, np.int32), np.empty(P, np.int32)
            kernels.list_ends(
                source_B, target_B, only_last, len(node_U), row_W, indptr_W1, root_W, root_P
            )
            row_W, partner_row_P = end_BB[root_W], end_BB[root_P]
        return Writes(
            node_W=torch.from_numpy(node_U[row_W]),
            row_W=torch.from_numpy(row_W),
            indptr_W1=torch.from_numpy(indptr_W1),
            partner_row_P=torch.from_numpy(partner_row_P),
        )

    def _node_features(self, node_U: np.ndarray) -> Tensor | None:
        if not self.node_features.width:
            return None
        deferred = self.compact and not self.gather
        return self.node_features.rows(node_U[:0] if deferred else node_U)

    def _event_features(
        self, parts: list[np.ndarray]
    ) -> tuple[Tensor, list[np.ndarray], Tensor | None]:
        """The feature table, part by part the rows in it (padding: row 0), and whose they are."""
        in_place = self.features.in_place and not self.compact
        if in_place or not self.features.width:
            rows = [part.astype(np.int32, copy=False) for part in parts]
            return self.features.table, [np.maximum(part, 0) for part in rows], None
        event_X = np.concatenate([NONE, *(part.reshape(-1) for part in parts)]).astype(np.int32)
        first_E, row_X = distinct(event_X)
        # Padding refers to row 0, which must exist even where no event is used.
        event_E = event_X[first_E] if len(first_E) else np.zeros(1, np.int32)
        deferred = self.compact and not self.gather
        table = self.features.take(event_E[:0] if deferred else event_E)
        splits = np.cumsum([part.size for part in parts])
        pieces = np.split(np.maximum(row_X, 0), splits)
        rows = [piece.reshape(part.shape) for piece, part in zip(pieces, parts, strict=False)]
        return table, rows, torch.from_numpy(event_E) if self.compact else None
