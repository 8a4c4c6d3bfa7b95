"""Figures as plain values: the parts of the documented JSON objects (docs/json.md)."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from tidegraph.report.comparison import Scored
from tidegraph.train.metrics import Metrics


def metric_values(metrics: Metrics | None) -> list[dict[str, Any]] | None:
    """Name, value (null where undefined), protocol, count."""
    if metrics is None:
        return None
    found = []
    for metric in metrics:
        entry = {
            "name": metric.name,
            "value": finite(metric.value),
            "protocol": metric.protocol,
            "count": metric.count,
        }
        found.append(entry | ({"undefined": metric.undefined} if metric.undefined else {}))
    return found


def scored_values(row: Scored) -> dict[str, Any]:
    """One row of a comparison."""
    return {
        "name": row.name,
        "metrics": metric_values(row.metrics),
        "inductive": metric_values(row.inductive),
    }


def add_seconds(stages: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Seconds by stage, summed over epochs."""
    total: dict[str, float] = {}
    for one in stages:
        for name, seconds in one.items():
            total[name] = total.get(name, 0.0) + seconds
    return total


def plain(value: Any) -> Any:
    """Nested values as JSON can hold them: undefined figures are null."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return finite(value) if isinstance(value, float) else value


def finite(value: float) -> float | None:
    """JSON has no NaN."""
    return float(value) if math.isfinite(value) else None


def print_json(values: Mapping[str, Any]) -> None:
    """One object on one line of stdout, the last thing a command prints."""
    sys.stdout.write(json.dumps(values, allow_nan=False) + "\n")
    sys.stdout.flush()
