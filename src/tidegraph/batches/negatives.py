"""Negatives: the destinations that a positive event is compared with.

Every draw is a pure function of (seed, purpose, epoch, group, event position, slot), so any batch
of any epoch can be reproduced alone, whatever the batch size. Negatives replace the destination
only: row i's negatives belong to source i. This is stage N of the history-bound half of a step.

Shape legend: E events, N nodes, P distinct (source, target) pairs, B rows, C candidates per row,
L candidates a sampler may draw from (its pool).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from tidegraph.batches import negative_kernels as kernels
from tidegraph.batches.candidates import Candidates
from tidegraph.batches.fixed_negatives import FixedNegatives
from tidegraph.batches.negative_pools import (
    PairTable,
    Pool,
    TrueRanks,
    make_pool,
    order_by_first_seen,
    pair_table,
    rank_in_pool,
    true_ranks,
)
from tidegraph.errors import NoLegalNegativeError, SettingError
from tidegraph.events.core import Events
from tidegraph.keys import Purpose, make_key

__all__ = [
    "CandidateSource",
    "Candidates",
    "EveryDestination",
    "FixedNegatives",
    "NegativeEdges",
    "NegativeSampler",
    "NegativeSettings",
]

Strategy = Literal["random", "seen", "historical", "inductive"]
Collisions = Literal["allow", "check"]
WhenUnseen = Literal["random", "error"]

_LARGEST_FULL_BATCH = 1 << 28


@dataclass(frozen=True)
class NegativeSettings:
    """How negatives are drawn.

    Attributes:
        strategy: `random`: any destination of the pool. `seen`: only destinations that some event
            had strictly before the positive's time. `historical`: past partners of the row's
            source, seen before the batch and absent from it. `inductive`: as historical, but first
            seen after training ended. Where history runs out, the last two are topped up with
            random destinations that the source does not have in the batch.
        pool: `destinations`: for bipartite data the target side, otherwise every node that is a
            target anywhere in the stream (the field's protocol). `all`: every node, where the
            data is not bipartite.
        collisions: `allow`: a negative may happen to be a true destination of the same source at
            the same time, as in the field's AP protocol. `check`: never.
        unseen: what `seen` does while no legal destination has been seen yet (at the latest the
            first events of a stream): draw from the whole pool, or stop with an error.
        seed: the seed all draws derive from.
    """

    strategy: Strategy = "random"
    pool: Pool = "destinations"
    collisions: Collisions = "allow"
    unseen: WhenUnseen = "random"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("strategy", Strategy),
            ("pool", Pool),
            ("collisions", Collisions),
            ("unseen", WhenUnseen),
        ):
            found = getattr(self, name)
            if found not in get_args(allowed):
                raise SettingError(
                    f"negatives: {name} is {found!r}; expected one of "
                    f"{', '.join(get_args(allowed))}."
                )
        if self.unseen == "error" and self.strategy != "seen":
            raise SettingError(
                f"negatives: unseen='error' has no effect with strategy={self.strategy!r}; "
                "it belongs to strategy='seen'."
            )

    def describe(self, count: int) -> str:
        """The words a metric's protocol uses, e.g. "1 random destination per positive"."""
        plural = "" if count == 1 else "s"
        checked = ", collisions checked" if self.collisions == "check" else ""
        return f"{count} {self.strategy} destination{plural} per positive{checked}"


@dataclass(frozen=True, eq=False)
class NegativeEdges:
    """Negative edges whose source is not the positive's: the published pair protocol.

    Attributes:
        source_BC: [B, C] int32 internal nodes.
        target_BC: [B, C] int32 internal nodes.
    """

    source_BC: np.ndarray
    target_BC: np.ndarray


class CandidateSource(Protocol):
    """What ranking needs: candidates for the events at [start, stop), and a name for them."""

    def candidates(self, start: int, stop: int, *, count: int) -> Candidates: ...

    def describe(self, count: int) -> str: ...


class NegativeSampler:
    """Draws negatives for the events of one stream.

    Args:
        events: the stream. Only its columns and schema are used.
        settings: how to draw.
        nodes: draw from these internal nodes only, instead of the pool the settings name. An
            inductive set-up passes the destinations of its training events here.
        train_stop: position at which training ended; needed by strategy `inductive`.

    Raises:
        SettingError: a combination that would have no effect, or an empty pool.

    Examples:
        >>> from tidegraph.events.core import Events
        >>> events = Events.from_arrays([0, 1, 0], [2, 3, 4], [1, 2, 3])
        >>> sampler = NegativeSampler(events)
        >>> negative_BC = sampler.draw(0, 3, epoch=1, count=2)
        >>> negative_BC.shape, bool((negative_BC >= 2).all())
        ((3, 2), True)
        >>> bool((sampler.draw(1, 2, epoch=1, count=2) == negative_BC[1:2]).all())
        True
    """

    def __init__(
        self,
        events: Events,
        settings: NegativeSettings | None = None,
        *,
        nodes: np.ndarray | None = None,
        train_stop: int | None = None,
    ) -> None:
        self.settings = settings = settings if settings is not None else NegativeSettings()
        if (settings.strategy == "inductive") != (train_stop is not None):
            raise SettingError(
                "negatives: strategy='inductive' needs train_stop, the position at which training "
                f"ended, and only it uses it; found strategy={settings.strategy!r}, "
                f"train_stop={train_stop}."
            )
        self.events = events
        self.train_stop = train_stop or 0
        self.pool_L = make_pool(events, settings.pool, nodes)
        self._limit_E: np.ndarray | None = None
        if settings.strategy == "seen":
            self.pool_L, first_L = order_by_first_seen(events, self.pool_L)
            # One binary search per distinct time would do; one per event is as fast to read.
            self._limit_E = np.searchsorted(first_L, events.time, side="left").astype(np.int64)
        self._rank_N = rank_in_pool(self.pool_L, events.schema.num_nodes)
        wants_groups = settings.collisions == "check" and settings.strategy in ("random", "seen")
        self._true = true_ranks(events, self._rank_N) if wants_groups else None
        self._pairs = (
            pair_table(events) if settings.strategy in ("historical", "inductive") else None
        )

    def draw(
        self,
        start: int,
        stop: int,
        *,
        epoch: int = 0,
        count: int = 1,
        purpose: Purpose = Purpose.NEGATIVE,
        group: int = 0,
    ) -> np.ndarray:
        """Negatives of the events at positions [start, stop).

        Args:
            start, stop: positions in the stream. For `historical` and `inductive` they are also
                the batch: what counts as seen before it, and absent from it.
            epoch: the training epoch. Ignored for evaluation, whose negatives never change.
            count: C, negatives per event.
            purpose: `Purpose.NEGATIVE` while training, `Purpose.EVALUATION_NEGATIVE` otherwise.
            group: an independent set of negatives for the same epoch (epoch parallelism).

        Returns:
            [B, C] int32 internal nodes.

        Raises:
            NoLegalNegativeError: an event for which no destination of the pool is legal.
        """
        return self.draw_at(
            np.arange(start, stop), epoch=epoch, count=count, purpose=purpose, group=group
        )

    def draw_at(
        self,
        position_B: np.ndarray,
        *,
        epoch: int = 0,
        count: int = 1,
        purpose: Purpose = Purpose.NEGATIVE,
        group: int = 0,
    ) -> np.ndarray:
        """As `draw`, for the events at ascending positions `position_B` ([B] int64)."""
        key = self._key(purpose, epoch, group)
        negative_BC = np.empty((len(position_B), count), np.int32)
        if self._pairs is not None:
            self._draw_past_partners(key, position_B, negative_BC)
        elif self._limit_E is None and self._true is None:
            kernels.draw_from_pool(key, position_B, self.pool_L, negative_BC)
        else:
            self._draw_legal(key, position_B, negative_BC)
        return negative_BC

    def candidates(self, start: int, stop: int, *, count: int) -> Candidates:
        """`count` evaluation negatives per event: the same in every epoch and every call."""
        purpose = Purpose.EVALUATION_NEGATIVE
        return Candidates(self.draw(start, stop, count=count, purpose=purpose))

    def describe(self, count: int) -> str:
        """How these negatives are named in a metric's protocol."""
        return self.settings.describe(count)

    def draw_edges(
        self,
        start: int,
        stop: int,
        *,
        epoch: int = 0,
        count: int = 1,
        purpose: Purpose = Purpose.EVALUATION_NEGATIVE,
    ) -> NegativeEdges:
        """Past edges as negatives, sources included: historical and inductive as published.

        All distinct edges seen before the batch (`inductive`: first seen after training ended)
        and absent from it are drawn from without replacement, whatever their source; where there
        are too few, all of them are used and random edges absent from the batch are added. Use
        `draw` where row i's negatives must belong to source i.

        Args:
            start, stop: the batch, as positions in the stream.
            epoch: ignored for evaluation.
            count: C, negatives per positive.
            purpose: training or evaluation.

        Raises:
            NoLegalNegativeError: every edge between a source and a destination is in the batch.
        """
        if self._pairs is None:
            raise SettingError(
                "negatives: draw_edges belongs to strategy='historical' or 'inductive'; this "
                f"sampler has strategy={self.settings.strategy!r}."
            )
        key = np.uint64(make_key(int(self._key(purpose, epoch, 0)), purpose, start))
        return _draw_past_edges(self, self._pairs, key, start, stop, count)

    def _key(self, purpose: Purpose, epoch: int, group: int) -> np.uint64:
        if purpose == Purpose.EVALUATION_NEGATIVE:
            epoch = 0
        return np.uint64(make_key(self.settings.seed, purpose, epoch, group))

    def _draw_legal(self, key: np.uint64, position_B: np.ndarray, negative_BC: np.ndarray) -> None:
        true = self._true or TrueRanks.none()
        limit_E = self._limit_E if self._limit_E is not None else np.zeros(0, np.int64)
        fall_back = self.settings.unseen == "random"
        failed = kernels.draw_legal_ranks(
            key,
            position_B,
            limit_E,
            true.group_E,
            true.offset,
            true.rank,
            self.pool_L,
            fall_back,
            negative_BC,
        )
        if failed >= 0:
            raise self._no_legal(int(position_B[failed]))

    def _draw_past_partners(
        self, key: np.uint64, position_B: np.ndarray, negative_BC: np.ndarray
    ) -> None:
        if len(position_B) == 0:
            return
        pairs = self._pairs
        assert pairs is not None
        failed = kernels.draw_past_partners(
            key,
            position_B,
            self.events.source,
            pairs.offset_N,
            pairs.first_P,
            pairs.target_P,
            self._absent_pairs(position_B),
            self.train_stop,
            int(position_B[0]),
            self._rank_N,
            self.pool_L,
            negative_BC,
        )
        if failed >= 0:
            raise self._no_legal(int(position_B[failed]))

    def _absent_pairs(self, position_B: np.ndarray) -> np.ndarray:
        """Sorted pairs of the batch; none of them may be drawn.

        With collisions checked the batch is widened by the events that share its first or last
        time, so that no true destination of the same source and time can be drawn either.
        """
        assert self._pairs is not None
        pair_E = self._pairs.pair_E
        parts = [pair_E[position_B]]
        if self.settings.collisions == "check":
            time = self.events.time
            first, last = int(position_B[0]), int(position_B[-1])
            parts.append(pair_E[int(np.searchsorted(time, time[first], "left")) : first])
            parts.append(pair_E[last + 1 : int(np.searchsorted(time, time[last], "right"))])
            if len(position_B) < last - first + 1:
                # Left-out events in between may share a time with a batch event too.
                between = np.setdiff1d(np.arange(first, last + 1), position_B)
                parts.append(pair_E[between[np.isin(time[between], time[position_B])]])
        return np.unique(np.concatenate(parts))

    def _no_legal(self, position: int) -> NoLegalNegativeError:
        source = self.events.ids.to_original(self.events.source[position])[0]
        time = self.events.time[position]
        return NoLegalNegativeError(
            f"Event {position} (source {source}, time {time}) has no "
            f"legal negative: each of the {len(self.pool_L)} candidate destinations is a true "
            "destination of that source there, or none has been seen yet. Expected at least one "
            "other. Use collisions='allow', pool='all', or strategy='random'."
        )


class EveryDestination:
    """All destinations except the true one: exact ranking where there are few of them.

    Args:
        events: the stream.
        pool: as in `NegativeSettings`.
        filtered: also leave out the other true destinations of the same source and time.

    Examples:
        >>> from tidegraph.events.core import Events
        >>> events = Events.from_arrays([0, 1, 0], [2, 3, 4], [1, 2, 3])
        >>> EveryDestination(events).candidates(0, 2).node_BC.tolist()
        [[3, 4], [2, 4]]
    """

    def __init__(
        self, events: Events, *, pool: Pool = "destinations", filtered: bool = False
    ) -> None:
        self.events = events
        self.filtered = filtered
        self.pool_L = make_pool(events, pool, None)
        self._rank_N = rank_in_pool(self.pool_L, events.schema.num_nodes)
        self._true = true_ranks(events, self._rank_N) if filtered else None

    def candidates(self, start: int, stop: int, *, count: int = 0) -> Candidates:
        """[B, L - 1] candidates of the events at [start, stop); `count` is not used.

        Raises:
            SettingError: B x L is too large to hold; draw a sample instead.
        """
        rows, size = stop - start, len(self.pool_L)
        if rows * size > _LARGEST_FULL_BATCH:
            raise SettingError(
                f"Ranking {rows} events against all {size} destinations would need "
                f"{rows * size:,} scores at once; expected at most {_LARGEST_FULL_BATCH:,}. Use a "
                "smaller batch, or draw a number of negatives instead of all."
            )
        rank_B = self._rank_N[self.events.target[start:stop]]
        column = np.arange(size - 1, dtype=np.int32)
        rank_BC = column[None, :] + (column[None, :] >= rank_B[:, None])
        mask_BC = None
        if self._true is not None:
            mask_BC = np.ones(rank_BC.shape, np.bool_)
            group_B = self._true.group_E[start:stop]
            kernels.mask_true(rank_B, group_B, self._true.offset, self._true.rank, mask_BC)
        return Candidates(self.pool_L[rank_BC], mask_BC)

    def describe(self, count: int = 0) -> str:
        """How these negatives are named in a metric's protocol."""
        rule = "other true destinations at the same time left out" if self.filtered else "all"
        return f"{len(self.pool_L) - 1} destinations per positive ({rule})"


def _draw_past_edges(
    sampler: NegativeSampler, pairs: PairTable, key: np.uint64, start: int, stop: int, count: int
) -> NegativeEdges:
    absent = sampler._absent_pairs(np.arange(start, stop)) if stop > start else np.zeros(0, int)
    low, high = np.searchsorted(pairs.ordered_first_P, [sampler.train_stop, start])
    skipped = np.sort(pairs.place_P[absent]) - low
    skipped = skipped[(skipped >= 0) & (skipped < high - low)]
    needed = (stop - start) * count
    legal = max(int(high - low), 0) - len(skipped)
    chosen = np.empty(min(needed, legal), np.int64)
    kernels.choose_places(key, legal, skipped, chosen)
    pair = pairs.by_first_P[low + chosen]
    missing = needed - len(chosen)
    extra_source, extra_target = _random_edges(sampler, pairs, key, absent, missing, start)
    source = np.concatenate([pairs.source_P[pair], extra_source])
    target = np.concatenate([pairs.target_P[pair], extra_target])
    shape = (stop - start, count)
    return NegativeEdges(source.reshape(shape), target.reshape(shape))


def _random_edges(
    sampler: NegativeSampler,
    pairs: PairTable,
    key: np.uint64,
    absent: np.ndarray,
    missing: int,
    position: int,
) -> tuple[np.ndarray, np.ndarray]:
    """`missing` edges of any source to any destination, none of them in the batch."""
    if missing == 0:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    source = pairs.sources
    width = len(sampler.pool_L)
    rank = sampler._rank_N[pairs.target_P[absent]].astype(np.int64)
    taken = np.searchsorted(source, pairs.source_P[absent]) * width + rank
    taken = np.sort(taken[rank >= 0])
    legal = len(source) * width - len(taken)
    if legal <= 0:
        raise sampler._no_legal(position)
    edge = np.empty(missing, np.int64)
    kernels.draw_places(key ^ np.uint64(1), legal, taken, edge)
    return source[edge // width], sampler.pool_L[edge % width]
