"""Small versions of every model in the registry, and probes that any of them must pass.

A model that joins the registry is tested without a line here: settings are found by their names.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tiny
from tidegraph.batches import Hop, PreparedBatch
from tidegraph.batches.prepared import Shared, WalkSets
from tidegraph.models import TemporalModel, build_model, model_class, model_settings

SMALL: dict[str, Any] = {
    "memory": 4, "time": 3, "embedding": 6, "neighbors": 3, "dropout": 0.0, "channel": 4,
    "length": 4, "patch": 2, "place": 3, "hidden": 4, "walks": 4, "steps": 2, "bias": 0.1,
    "node_window": 6.0, "mails": 3,
}  # fmt: skip
"""Small values by the name of the setting, whatever the model."""


def small_settings(name: str, **options: Any) -> dict[str, Any]:
    """What the model has of `SMALL`, and `options`."""
    known = {setting.name for setting in model_settings(model_class(name))}
    return {**{key: value for key, value in SMALL.items() if key in known}, **options}


def small(name: str, stream: tiny.Stream, seed: int = 0, **options: Any) -> TemporalModel:
    """A small model in float64, its weights large enough that everything in it matters."""
    settings = small_settings(name, **options)
    model = build_model(name, stream.events().schema, seed=seed, **settings).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.5)
    return model.eval()


def has(name: str, setting: str) -> bool:
    """Whether the model has a setting of that name."""
    return any(one.name == setting for one in model_settings(model_class(name)))


def reference(name: str, stream: tiny.Stream, model: TemporalModel, kept: list[int]) -> Any:
    """The event-by-event reference of a model: `tests/models/references/<name>.py`."""
    return importlib.import_module(f"models.references.{name}").Reference(stream, model, kept)


def candidate_scores(
    stream: tiny.Stream, model: TemporalModel, batch_size: int, event: int
) -> Tensor:
    """[1 + N]: the scores that `event`'s source gives its true target, then every node."""
    prep = tiny.preparer(stream, model.history, batch_size)
    last = event // batch_size
    state = tiny.empty_state(model, stream.num_nodes)
    every = np.arange(stream.num_nodes, dtype=np.int32)
    with torch.no_grad():
        for number in range(last + 1):
            drawn = np.tile(every, (len(prep.plan.events(number)), 1))
            logit_BC = tiny.step(model, state, prep.prepare(number, drawn))
    return logit_BC[event - last * batch_size]


def rewrite(
    stream: tiny.Stream, draw: np.random.Generator, event: int, batch_size: int, inclusive: bool
) -> tuple[tiny.Stream, int]:
    """The stream with everything that `event` must not see made up anew: what follows it, and
    (where history is strict) events of its own batch at its own time. Returns its new position."""
    start = event - event % batch_size
    now = stream.time[event]
    rows = list(zip(stream.source, stream.target, stream.time, strict=True))

    def any_pair(time: float) -> tuple[int, int, float]:
        u, v = draw.integers(0, stream.num_nodes, 2).tolist()
        return (u, v, time)

    kept = []
    for position in range(event):
        tied = position >= start and rows[position][2] == now and not inclusive
        if not tied:
            kept.append(rows[position])
        elif draw.random() < 0.7:  # altered, else deleted
            kept.append(any_pair(now))
    after = [
        any_pair(now + int(step)) for step in np.sort(draw.integers(0, 4, draw.integers(0, 9)))
    ]
    rows = [*kept, rows[event], *after]
    columns = [list(column) for column in zip(*rows, strict=True)]
    # No features: column 0 of a stream's features counts events, and positions have moved.
    other = replace(stream, source=columns[0], target=columns[1], time=columns[2], feature_width=0)
    return other, len(kept)


def spoiled(batch: PreparedBatch) -> PreparedBatch:
    """The batch with something else in every slot of padding: other rows, no numbers as times."""
    shared, walks = batch.shared, batch.walks
    if shared is not None:
        hop = batch.hops[-1]
        padding_SJ = torch.arange(shared.own_SJ.shape[1]) > hop.count_S.unsqueeze(1)
        shared = Shared(shared.own_SJ.masked_fill(padding_SJ, 1), shared.across_P2J)
    if walks is not None:
        walks = _spoiled_walks(walks)
    hops = tuple(_spoiled_hop(hop) for hop in batch.hops)
    return replace(batch, hops=hops, shared=shared, walks=walks)


def _spoiled_hop(hop: Hop) -> Hop:
    padding_SK = torch.arange(hop.neighbor_SK.shape[1]) >= hop.count_S.unsqueeze(1)
    largest = int(hop.neighbor_SK.max())
    return replace(
        hop,
        neighbor_SK=hop.neighbor_SK.masked_fill(padding_SK, largest),
        event_SK=hop.event_SK.masked_fill(padding_SK, int(hop.event_SK.max())),
        delta_SK=hop.delta_SK.masked_fill(padding_SK, float("nan")),
    )


def _spoiled_walks(walks: WalkSets) -> WalkSets:
    padding_SML = torch.arange(walks.node_SML.shape[2]) >= walks.length_SM.unsqueeze(2)
    padding_SMI = torch.cat([torch.zeros_like(padding_SML[..., :1]), padding_SML], dim=2)
    return replace(
        walks,
        node_SML=walks.node_SML.masked_fill(padding_SML, int(walks.node_SML.max())),
        event_SML=walks.event_SML.masked_fill(padding_SML, int(walks.event_SML.max())),
        delta_SML=walks.delta_SML.masked_fill(padding_SML, float("nan")),
        own_SMII=walks.own_SMII.masked_fill(padding_SMI.unsqueeze(3), 0.5),
    )


def equations_are_cited(name: str) -> bool:
    """The class says which paper it follows, in its own words or its module's."""
    cls = model_class(name)
    text = f"{inspect.getmodule(cls).__doc__} {cls.__doc__}"
    return "et al." in text
