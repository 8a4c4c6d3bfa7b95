"""What happened: reading tables, checking them, ids, time units, splits, the catalog of data sets.

This is the only place to import from; the modules behind it may be rearranged.
"""

from __future__ import annotations

import importlib
from typing import Any

from tidegraph.events.core import EventRange, Events, ReadReport, Schema, Split
from tidegraph.events.ids import NodeIds

# Imported on first use, so that building events in memory needs no reader.
_LAZY = {
    "read_table": "tidegraph.events.table",
    "open_events": "tidegraph.events.store",
    "concatenate": "tidegraph.events.append",
    "merge_types": "tidegraph.events.types",
    "read_node_labels": "tidegraph.events.node_labels",
    "from_temporal_data": "tidegraph.events.temporal_data",
    "to_temporal_data": "tidegraph.events.temporal_data",
    "Description": "tidegraph.events.describe",
    "Snapshot": "tidegraph.events.snapshots",
    "load_dataset": "tidegraph.events.catalog",
    "list_datasets": "tidegraph.events.catalog",
}

__all__ = ["EventRange", "Events", "NodeIds", "ReadReport", "Schema", "Split", *_LAZY]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'tidegraph.events' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
