"""What may be drawn as a negative, and what may not: tables made once from a stream's columns.

Shape legend: E events, N nodes, P distinct (source, target) pairs, L nodes in the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tidegraph.errors import SettingError
from tidegraph.events.core import Events

Pool = Literal["destinations", "all"]


def make_pool(events: Events, pool: Pool, nodes: np.ndarray | None) -> np.ndarray:
    """[L] int32, ascending: the internal nodes that may be a negative."""
    schema = events.schema
    if nodes is not None:
        chosen = np.unique(np.asarray(nodes)).astype(np.int32)
        if len(chosen) and not (chosen[0] >= 0 and chosen[-1] < schema.num_nodes):
            raise SettingError(
                f"negatives: nodes must lie in 0..{schema.num_nodes - 1}; found "
                f"{chosen[0]}..{chosen[-1]}."
            )
    elif schema.bipartite or pool == "all":
        if schema.bipartite and pool == "all":
            raise SettingError(
                "negatives: pool='all' would draw sources as destinations; this data is bipartite. "
                "Use pool='destinations'."
            )
        chosen = np.arange(schema.first_target, schema.num_nodes, dtype=np.int32)
    else:
        is_target = np.zeros(schema.num_nodes, np.bool_)
        is_target[events.target] = True
        chosen = np.flatnonzero(is_target).astype(np.int32)
    if len(chosen) == 0:
        raise SettingError("negatives: there is no destination to draw from; the pool is empty.")
    return chosen


def order_by_first_seen(events: Events, pool_L: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pool's nodes that are ever a target by first position, then the rest; their times."""
    target, first = np.unique(events.target, return_index=True)
    order = np.argsort(first, kind="stable")
    target, first = target[order].astype(np.int32), first[order]
    inside = np.isin(target, pool_L)
    never = np.setdiff1d(pool_L, target)
    return np.concatenate([target[inside], never]), np.asarray(events.time)[first[inside]]


@dataclass(frozen=True, eq=False)
class TrueRanks:
    """The true destinations of each (source, time), as ascending ranks in the pool.

    Attributes:
        group_E: [E] the (source, time) each event belongs to.
        offset: [groups + 1] where each group's ranks begin.
        rank: int64 places in the pool.
    """

    group_E: np.ndarray
    offset: np.ndarray
    rank: np.ndarray

    @staticmethod
    def none() -> TrueRanks:
        return TrueRanks(np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64))


def true_ranks(events: Events, rank_N: np.ndarray) -> TrueRanks:
    """The table of `TrueRanks` for a whole stream.

    Args:
        events: the stream.
        rank_N: [N] place of each node in the pool, -1 where it is not in it.
    """
    time = np.asarray(events.time)
    tie_E = np.zeros(len(time), np.int64)
    np.cumsum(time[1:] != time[:-1], out=tie_E[1:])
    ties = int(tie_E[-1]) + 1 if len(time) else 1
    group_E, groups = _number(np.asarray(events.source, np.int64) * ties + tie_E)
    width = len(rank_N) + 1
    member = np.sort(group_E * width + (rank_N[events.target].astype(np.int64) + 1))
    distinct = np.ones(len(member), np.bool_)
    distinct[1:] = member[1:] != member[:-1]
    # Remainder 0: a true destination that is not in the pool.
    member = member[distinct & (member % width > 0)]
    offset = np.searchsorted(member, np.arange(groups + 1) * width)
    return TrueRanks(group_E, offset.astype(np.int64), member % width - 1)


def _number(key_E: np.ndarray) -> tuple[np.ndarray, int]:
    """Each key's place among the distinct keys, and how many there are.

    By sorting: `np.unique` hashes integers, which took 20 s on five million of these keys.
    """
    order = np.argsort(key_E, kind="stable")
    sorted_E = key_E[order]
    number_E = np.empty(len(key_E), np.int64)
    number_E[order] = np.cumsum(np.append(False, sorted_E[1:] != sorted_E[:-1])[: len(key_E)])
    return number_E, int(number_E[order[-1]]) + 1 if len(key_E) else 0


@dataclass(frozen=True, eq=False)
class PairTable:
    """Distinct (source, target) pairs, numbered by (source, first position).

    Attributes:
        pair_E: [E] each event's pair.
        source_P, target_P: [P] int32 the pair's nodes.
        first_P: [P] position of the pair's first event; ascending within a source.
        offset_N: [N + 1] where each source's pairs begin.
        by_first_P: [P] all pairs in the order they were first seen.
        place_P: [P] each pair's place in that order.
        ordered_first_P: [P] `first_P` in that order.
        sources: the nodes that are a source.
    """

    pair_E: np.ndarray
    source_P: np.ndarray
    target_P: np.ndarray
    first_P: np.ndarray
    offset_N: np.ndarray
    by_first_P: np.ndarray
    place_P: np.ndarray
    ordered_first_P: np.ndarray
    sources: np.ndarray


def pair_table(events: Events) -> PairTable:
    """The table of `PairTable` for a whole stream."""
    nodes = events.schema.num_nodes
    key_E = np.asarray(events.source, np.int64) * nodes + events.target
    keys, first, inverse = np.unique(key_E, return_index=True, return_inverse=True)
    order = np.lexsort((first, keys // nodes))
    number = _inverse(order)
    keys, first = keys[order], first[order].astype(np.int64)
    source_P = (keys // nodes).astype(np.int32)
    offset_N = np.searchsorted(source_P, np.arange(nodes + 1)).astype(np.int64)
    by_first_P = np.argsort(first, kind="stable")
    return PairTable(
        pair_E=number[inverse],
        source_P=source_P,
        target_P=(keys % nodes).astype(np.int32),
        first_P=first,
        offset_N=offset_N,
        by_first_P=by_first_P,
        place_P=_inverse(by_first_P),
        ordered_first_P=first[by_first_P],
        sources=np.flatnonzero(np.diff(offset_N)).astype(np.int32),
    )


def _inverse(order: np.ndarray) -> np.ndarray:
    """The permutation that undoes `order`."""
    inverse = np.empty(len(order), np.int64)
    inverse[order] = np.arange(len(order))
    return inverse


def rank_in_pool(pool_L: np.ndarray, num_nodes: int) -> np.ndarray:
    """[N] int32: each node's place in the pool, -1 where it is not in it."""
    rank_N = np.full(num_nodes, -1, np.int32)
    rank_N[pool_L] = np.arange(len(pool_L), dtype=np.int32)
    return rank_N
