"""Feature stores: event and node features, in memory or mapped from disk, in one of four types;
caches in front of a device."""

from tidegraph.features.cache_settings import CacheSettings
from tidegraph.features.encode import FEATURE_TYPES, FeatureType
from tidegraph.features.open import open_stores
from tidegraph.features.residents import Frequent, NextUse, Residents
from tidegraph.features.slim_cache import RowSource, SlimCache, Traffic
from tidegraph.features.store import FeatureStore

__all__ = [
    "FEATURE_TYPES",
    "CacheSettings",
    "FeatureStore",
    "FeatureType",
    "Frequent",
    "NextUse",
    "Residents",
    "RowSource",
    "SlimCache",
    "Traffic",
    "open_stores",
]
