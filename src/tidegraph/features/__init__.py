"""Feature stores: event and node features, in memory or mapped; caches in front of a device."""

from tidegraph.features.cache_settings import CacheSettings
from tidegraph.features.residents import Frequent, NextUse, Residents
from tidegraph.features.slim_cache import RowSource, SlimCache, Traffic
from tidegraph.features.store import FeatureStore

__all__ = [
    "CacheSettings",
    "FeatureStore",
    "Frequent",
    "NextUse",
    "Residents",
    "RowSource",
    "SlimCache",
    "Traffic",
]
