"""Feature stores: event and node features, in memory or mapped from disk."""

from tidegraph.features.store import FeatureStore

__all__ = ["FeatureStore"]
