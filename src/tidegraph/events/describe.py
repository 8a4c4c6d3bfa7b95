"""What was understood of the data, in a few lines: `events.describe()`, `tidegraph describe`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tidegraph._jit import kernel
from tidegraph.events.core import Events
from tidegraph.events.units import NANOSECONDS, date_of, span_in_words


@dataclass(frozen=True)
class Description:
    """Counts and shares of a stream of events; `str()` gives the lines that `describe` prints.

    Attributes:
        source_name: file or "memory".
        events, nodes, sources, targets: counts; nodes that appear on both sides count on both.
        bipartite: no node is on both sides.
        idle_nodes: nodes without events.
        time_type: "int64" or "float64".
        time_unit: unit of time, or None where it is not known.
        first_time, last_time: None where there are no events.
        span: last minus first, in words where the unit is known.
        tied_events: events that share their time with another one.
        largest_tie: most events at one time.
        exact_repeats: events equal to an earlier one in source, target and time.
        repeated_pairs: share of events whose (source, target) pair occurred before.
        self_loops: events from a node to itself.
        rows_moved: rows of the input that were earlier than the row before them.
        degree: events a node: min, median, mean, p99 and max over nodes with events.
        event_features, node_features: widths.
        label: "none", or what the label column holds.
        weight: "none", or the range of the weights.
        notes: what reading wants known.
    """

    source_name: str
    events: int
    nodes: int
    sources: int
    targets: int
    bipartite: bool
    idle_nodes: int
    time_type: str
    time_unit: str | None
    first_time: int | float | None
    last_time: int | float | None
    span: str
    tied_events: int
    largest_tie: int
    exact_repeats: int
    repeated_pairs: float
    self_loops: int
    rows_moved: int
    degree: dict[str, float]
    event_features: int
    node_features: int
    label: str
    weight: str
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {**asdict(self), "notes": list(self.notes)}

    def __str__(self) -> str:
        kind = f"bipartite: {self.sources:,} sources, {self.targets:,} targets"
        if not self.bipartite:
            kind = f"one set of nodes: {self.sources:,} act as source, {self.targets:,} as target"
        idle = f", {self.idle_nodes:,} without events" if self.idle_nodes else ""
        unit = f"unit {self.time_unit}" if self.time_unit else "no unit given"
        lines = [
            f"{self.source_name}: {self.events:,} events, {self.nodes:,} nodes{idle} ({kind})",
            f"time      {self._times(unit)}; span {self.span}",
            f"order     {self.rows_moved:,} rows were out of order; {self.tied_events:,} events "
            f"share a time (largest tie {self.largest_tie:,})",
            f"repeats   {self.repeated_pairs:.1%} of events repeat an earlier pair; "
            f"{self.exact_repeats:,} exact repeats; {self.self_loops:,} self-loops",
            "degree    " + ", ".join(f"{name} {value:,.6g}" for name, value in self.degree.items()),
            f"features  {self.event_features} an event, {self.node_features} a node; "
            f"label {self.label}; weight {self.weight}",
        ]
        return "\n".join([*lines, *(f"note      {note}" for note in self.notes)])

    def _times(self, unit: str) -> str:
        first, last = self.first_time, self.last_time
        numbers = f"{_shown(first)} to {_shown(last)}, {self.time_type}, {unit}"
        if first is None or last is None:
            return numbers
        dates = date_of(first, self.time_unit), date_of(last, self.time_unit)
        return numbers if None in dates else f"{dates[0]} to {dates[1]} UTC ({numbers})"


def describe_events(events: Events) -> Description:
    """Count and summarise; ten million events take a few seconds.

    >>> describe_events(Events.from_arrays([0, 0, 1], [2, 2, 3], [1, 1, 5])).exact_repeats
    1
    """
    source_E, target_E = np.asarray(events.source), np.asarray(events.target)
    size = events.schema.num_nodes
    out_N = np.bincount(source_E, minlength=size)
    in_N = np.bincount(target_E, minlength=size)
    loops = int((source_E == target_E).sum())
    degree_N = out_N + in_N
    np.subtract.at(degree_N, source_E[source_E == target_E], 1)
    tied, largest, exact = _ties(events)
    first, last = (events.time[0].item(), events.time[-1].item()) if len(events) else (None, None)
    return Description(
        source_name=events.report.source_name,
        events=len(events),
        nodes=size,
        sources=int((out_N > 0).sum()),
        targets=int((in_N > 0).sum()),
        bipartite=events.schema.bipartite,
        idle_nodes=int((degree_N == 0).sum()),
        time_type=str(events.time.dtype),
        time_unit=events.schema.time_unit,
        first_time=first,
        last_time=last,
        span=_span(first, last, events.schema.time_unit),
        tied_events=tied,
        largest_tie=largest,
        exact_repeats=exact,
        repeated_pairs=_repeated_pairs(source_E, target_E),
        self_loops=loops,
        rows_moved=events.report.rows_moved,
        degree=_degrees(degree_N[degree_N > 0]),
        event_features=events.schema.event_features,
        node_features=events.schema.node_features,
        label=_label(events.label),
        weight=_range(events.weight),
        notes=events.report.notes,
    )


def _shown(time: int | float | None) -> str:
    return "-" if time is None else str(time)


def _span(first: int | float | None, last: int | float | None, unit: str | None) -> str:
    if first is None or last is None:
        return "none"
    if unit in NANOSECONDS:
        return span_in_words(last - first, unit)
    return str(last - first)


def _pair_keys(source_E: np.ndarray, target_E: np.ndarray) -> np.ndarray:
    keys: np.ndarray = (source_E.astype(np.int64) << 32) | target_E
    return keys


def _repeated_pairs(source_E: np.ndarray, target_E: np.ndarray) -> float:
    if len(source_E) == 0:
        return 0.0
    key_E = _pair_keys(source_E, target_E)
    key_E.sort()
    return float((key_E[1:] == key_E[:-1]).sum()) / len(key_E)


def _ties(events: Events) -> tuple[int, int, int]:
    if len(events) == 0:
        return 0, 0, 0
    time_E = np.asarray(events.time)
    border = np.flatnonzero(time_E[1:] != time_E[:-1]) + 1
    start_T = np.concatenate([[0], border, [len(time_E)]]).astype(np.int64)
    size_T = np.diff(start_T)
    key_E = _pair_keys(np.asarray(events.source), np.asarray(events.target))
    exact = int(_repeats_within(key_E, start_T))
    return int(size_T[size_T > 1].sum()), int(size_T.max()), exact


@kernel()
def _repeats_within(key, start):  # type: ignore[no-untyped-def]
    """Equal keys within each group; sorts `key` in place, group by group."""
    repeats = 0
    for group in range(len(start) - 1):
        if start[group + 1] - start[group] > 1:
            part = key[start[group] : start[group + 1]]
            part.sort()
            for position in range(1, len(part)):
                if part[position] == part[position - 1]:
                    repeats += 1
    return repeats


def _degrees(degree: np.ndarray) -> dict[str, float]:
    if len(degree) == 0:
        return {"min": 0, "median": 0, "mean": 0, "p99": 0, "max": 0}
    return {
        "min": int(degree.min()),
        "median": float(np.median(degree)),
        "mean": float(degree.mean()),
        "p99": float(np.quantile(degree, 0.99)),
        "max": int(degree.max()),
    }


def _label(label_E: np.ndarray | None) -> str:
    if label_E is None or len(label_E) == 0:
        return "none"
    value, count = np.unique(label_E, return_counts=True)
    if len(value) > 5:
        return f"{len(value):,} values from {value[0]:g} to {value[-1]:g}"
    return ", ".join(f"{v:g} x {c:,}" for v, c in zip(value, count, strict=True))


def _range(weight_E: np.ndarray | None) -> str:
    if weight_E is None or len(weight_E) == 0:
        return "none"
    return f"{weight_E.min():g} to {weight_E.max():g}"
