"""The first events of real data sets, for tests that must not depend on made-up regularities."""

from __future__ import annotations

import os

import pytest

import tidegraph as tg
from tidegraph.events import Events


def first_events(name: str, count: int = 4000) -> Events:
    """The first events of "flights" or "wikipedia"; skips where the data is not at hand."""
    if name != "flights" and "TIDEGRAPH_DATA" not in os.environ:
        pytest.skip(f"needs {name} in the directory that TIDEGRAPH_DATA names")
    events = tg.load_dataset(name, download=False)
    features = events.features
    return Events.from_arrays(
        events.source[:count],
        events.target[:count],
        events.time[:count],
        features=None if features is None else features[:count],
        num_nodes=events.schema.num_nodes,
        num_sources=events.schema.num_sources,
        bipartite=events.schema.bipartite,
    )
