"""Where a run's tables live: on the device, or on the host behind caches, as the settings say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from tidegraph.features import CacheSettings, FeatureStore, Frequent, SlimCache
from tidegraph.state import HostState, NodeState
from tidegraph.train.settings import TrainSettings
from tidegraph.train.stream import Stream
from tidegraph.train.transfer import Transfer

_FLOAT = 4  # bytes


def cache_settings(
    settings: TrainSettings, stream: Stream, memory_width: int
) -> CacheSettings | None:
    """The caches that the settings ask for, or None.

    A budget in bytes is divided so that the same share of every table's rows fits.
    """
    policy = settings.cache
    if policy is None:
        policy = "none" if torch.device(settings.device).type == "cpu" else "next-use"
    if policy == "none":
        return None
    share = settings.cache_budget
    if share > 1:
        schema = stream.events.schema
        per_node = schema.node_features + (2 * memory_width if settings.state == "host" else 0)
        floats = len(stream.events) * schema.event_features + schema.num_nodes * per_node
        share = min(1.0, share / max(_FLOAT * floats, 1))
    return CacheSettings(policy, share, settings.cache_window)


def with_caches(stream: Stream, caches: CacheSettings | None, device: str) -> Stream:
    """The stream with features fetched through caches; None leaves it as it is."""
    if caches is None:
        return stream
    preparer = replace(stream.preparer, compact=True, gather=False)
    events, schema = stream.events, stream.events.schema
    transfer = Transfer(
        torch.device(device),
        _cache(preparer.features, len(events), caches, device),
        _cache(preparer.node_features, schema.num_nodes, caches, device),
    )
    return replace(stream, preparer=preparer, transfer=transfer)


def _cache(store: FeatureStore, rows: int, caches: CacheSettings, device: str) -> SlimCache | None:
    if not store.width:
        return None
    return SlimCache(store, caches.residents(rows), torch.device(device))


def place_state(
    state: NodeState, settings: TrainSettings, caches: CacheSettings | None
) -> NodeState:
    """The state where the settings want it."""
    if settings.state == "device" or state.empty:
        return state.to(settings.device)
    kept = caches or CacheSettings("lru", share=0.0)
    return HostState(state, settings.device, kept.residents)


def choose_frequent(
    stream: Stream, state: NodeState, event_count_E: np.ndarray, node_count_N: np.ndarray
) -> None:
    """Tell caches of policy "frequency" how often each row is used."""
    counted: list[tuple[SlimCache | None, np.ndarray]] = []
    if stream.transfer is not None:
        counted += [(stream.transfer.events, event_count_E), (stream.transfer.nodes, node_count_N)]
    if isinstance(state, HostState):
        counted.append((state.cache, node_count_N))
    for cache, count in counted:
        if cache is not None and isinstance(cache.residents, Frequent):
            cache.residents.choose(count)
