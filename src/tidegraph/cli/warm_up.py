"""Compiling kernels, once per machine and kind of data, with a line that says so.

Kernels compile at their first call and are then read from the cache directory. A tiny training run
calls them all, after a second process has compiled a training step's share of them beside the rest;
a marker in the cache directory remembers that it was done.
"""

from __future__ import annotations

import copy
import hashlib
import json
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tidegraph._jit import CACHE_DIRECTORY, kernel_sources
from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
from tidegraph.cli import warm_operators
from tidegraph.events import Events
from tidegraph.events.core import EventRange
from tidegraph.models import build_model
from tidegraph.models.base import TemporalModel
from tidegraph.report.comparison import evaluate_baselines
from tidegraph.report.console import Printer
from tidegraph.train import Trainer, TrainSettings
from tidegraph.train.stream import Stream, part_of

_ABOUT_SECONDS = 60
_SAID_AFTER = 1.5
# More roots a batch than one thread is given: the parallel variants are compiled too.
_EVENTS = 400


def warm_up(
    events: Events,
    model: str,
    values: Mapping[str, Any],
    training: TrainSettings,
    hidden_nodes: bool,
    printer: Printer,
) -> float:
    """Compile what a run on these events will call, unless that was done before.

    Returns:
        seconds it took; 0 where nothing had to be done.
    """
    marker = CACHE_DIRECTORY / f"compiled-{_kind(events, model, values, training, hidden_nodes)}"
    if marker.exists():
        return 0.0
    started = time.perf_counter()
    text = f"Compiling kernels for this machine (once, about {_ABOUT_SECONDS} s)..."
    # Kernels that another kind of data has compiled already are only read: nothing to announce.
    announcement = threading.Timer(_SAID_AFTER, printer.warn, [text])
    announcement.start()
    try:
        _call_all(events, model, values, training, hidden_nodes)
    finally:
        announcement.cancel()
        announcement.join()
    seconds = time.perf_counter() - started
    with suppress(OSError):
        marker.touch()
    if seconds > _SAID_AFTER:
        printer.warn(f"Compiled in {seconds:.0f} s.")
    return seconds


def _call_all(
    events: Events, model: str, values: Mapping[str, Any], training: TrainSettings, hidden: bool
) -> None:
    """A tiny run of the same kind, from describing to baselines."""
    with tempfile.TemporaryDirectory(prefix="tidegraph-warm-up-") as directory:
        tiny, beside = _tiny(events), None
        if events.path is not None:
            # Kernels are compiled anew for read-only memory, which is what opened events are.
            place = Path(directory) / "events"
            tiny = tiny.save(place)
            beside = warm_operators.start(place, model, values, training.feature_type)
        str(tiny.describe())
        train, val, test = tiny.split(val=0.2, test=0.2, hidden_nodes=0.3 if hidden else 0.0)
        settings = training.model_copy(
            update={
                "epochs": 1,
                "batch_size": 80,
                "evaluation_batch_size": 40,
                "candidates": min(training.candidates, 5),
                "neighbor_types": (),  # a tiny stream has none, and kernels do not know of them
                "trace": False,  # it has no directory to write to
            }
        )
        built = build_model(model, tiny.schema, **values)
        _prepare_one(built, train, settings)
        if beside is not None:
            # Models whose batches cannot be made by hand score in the tiny run.
            with suppress(Exception):
                warm_operators.score_one(copy.deepcopy(built), tiny, settings.feature_type)
            warm_operators.wait(beside)
        run = Trainer(built, settings).fit(train, val)
        run.evaluate(test)
        evaluate_baselines(run, test)


def _prepare_one(model: TemporalModel, train: EventRange, settings: TrainSettings) -> None:
    """Compile what preparation calls, while operators compile elsewhere."""
    stream = Stream.open(
        train.events,
        (part_of(train, settings.batch_size, hide=True),),
        model.history,
        hidden_nodes=train.hidden_nodes,
        feature_type=settings.feature_type,
    )
    negatives = NegativeSampler(train.events, NegativeSettings(seed=settings.seed))
    stream.preparer.prepare(0, negatives.draw_at(stream.plan.events(0), epoch=0), epoch=0)


def _kind(
    events: Events, model: str, values: Mapping[str, Any], training: TrainSettings, hidden: bool
) -> str:
    """What decides which kernels, for which types, are called."""
    import llvmlite.binding as llvm

    schema = events.schema
    named = [
        model, sorted((k, v) for k, v in values.items() if isinstance(v, str)), training.negatives,
        training.candidates > 0, training.history, training.metric, training.feature_type, hidden,
        str(events.time.dtype), events.path is not None, schema.event_features > 0,
        schema.node_features > 0, schema.bipartite, llvm.get_host_cpu_name(), _sources(),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]


def _sources() -> list[tuple[str, int]]:
    """Where the kernels' sources are and when they were written: what the compiled ones belong to.

    The same code installed elsewhere, or anew, is compiled anew.
    """
    return [(str(path), path.stat().st_mtime_ns) for path, _ in kernel_sources()]


def _tiny(events: Events) -> Events:
    """A few events of the same kind: types, widths and sides."""
    schema = events.schema
    place = np.arange(_EVENTS)
    source, target = place % 7, 7 + place * place % 5
    return Events.from_arrays(
        source,
        target,
        place.astype(events.time.dtype),
        features=_ones(schema.event_features, _EVENTS),
        node_features=_ones(schema.node_features, 12),
        num_nodes=12,
        bipartite=schema.bipartite,
        num_sources=7 if schema.bipartite else None,
        time_unit=schema.time_unit,
    )


def _ones(width: int, rows: int) -> np.ndarray | None:
    return np.ones((rows, width), np.float32) if width else None
