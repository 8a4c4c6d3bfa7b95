"""Tidegraph: temporal graph neural networks on streams of timestamped events."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public names, imported on first use: `import tidegraph` stays light.
_EXPORTS = {
    "Events": "tidegraph.events",
    "EventRange": "tidegraph.events",
    "Schema": "tidegraph.events",
    "read_table": "tidegraph.events",
    "open_events": "tidegraph.events",
    "load_dataset": "tidegraph.events",
    "from_temporal_data": "tidegraph.events",
    "TemporalIndex": "tidegraph.history",
    "Trainer": "tidegraph.train",
    "Run": "tidegraph.train",
    "load_run": "tidegraph.train",
    "new_directory": "tidegraph.train.run_files",
    "TidegraphError": "tidegraph.errors",
    "InputError": "tidegraph.errors",
}
_MODULES = (
    "events",
    "history",
    "features",
    "batches",
    "state",
    "ops",
    "models",
    "train",
    "report",
    "errors",
)

__all__ = ["__version__", *_EXPORTS, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"tidegraph.{name}")
    raise AttributeError(f"module 'tidegraph' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
