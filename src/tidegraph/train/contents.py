"""What a checkpoint contains (weights, optimiser, node state) and what it must agree on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tidegraph.errors import CheckpointError, SettingError
from tidegraph.events.core import Schema
from tidegraph.models.base import TemporalModel
from tidegraph.state import Column, NodeState, Replaced, RowWrite
from tidegraph.train.adam import Adam
from tidegraph.train.checkpoint import Checkpoint
from tidegraph.train.settings import TrainSettings
from tidegraph.train.stream import Stream

# A run may be continued with more epochs or another patience, however often it is saved, whatever
# is cached where and however steps are executed: nothing computed so far depends on them.
FREE_SETTINGS = ("epochs", "patience", "checkpoint_seconds", "checkpoint_batches", "executor",
                 "state", "cache", "cache_budget", "cache_window", "prepared_budget",
                 "prepare_threads", "queue_depth", "trace")  # fmt: skip


def about_run(model: TemporalModel, stream: Stream, settings: TrainSettings) -> dict[str, Any]:
    """What a checkpoint must agree on to be resumed."""
    return {
        "model": {"name": model.name or type(model).__name__, "settings": model.settings},
        "schema": asdict(model.schema),
        "training": settings.model_dump(exclude=set(FREE_SETTINGS)),
        "parts": [asdict(part) for part in stream.parts],
        "hidden": _digest(stream.hidden_nodes),
        "fingerprint": stream.events.fingerprint,
    }


def check_same(path: Path, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Refuse a checkpoint that belongs to something else, saying what differs."""
    for name, label in (
        ("model", "another model"),
        ("schema", "data of another shape"),
        ("fingerprint", "other data"),
        ("training", "other training settings"),
        ("parts", "another split"),
        ("hidden", "another split (other hidden nodes)"),
    ):
        theirs, ours = found.get(name), as_json(expected[name])
        if theirs != ours:
            theirs, ours = _difference(theirs, ours)
            raise CheckpointError(
                f"{path} belongs to {label}: it has {name}={theirs!r}, this run has {ours!r}. "
                "Start a new run, or repeat the settings it was started with."
            )


def as_json(value: Any) -> Any:
    """`value` as it comes back from a file: tuples as lists."""
    return json.loads(json.dumps(value))


def check_settings(model: TemporalModel) -> None:
    """Refuse a model whose settings could not be written down to build it again.

    Raises:
        SettingError: a constructor argument that is no plain value.
    """
    for name, value in model.settings.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise SettingError(
                f"{type(model).__name__} was built with {name}={value!r}: a run that is kept on "
                "disk needs settings of numbers, text, lists and None. Give the plain value, and "
                "make the rest of it in the constructor."
            ) from None


def _difference(theirs: Any, ours: Any) -> tuple[Any, Any]:
    """What differs of two equally named things: their unequal keys, where they have keys."""
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        return theirs, ours
    names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    return {n: theirs.get(n) for n in names}, {n: ours.get(n) for n in names}


def _digest(hidden_nodes: np.ndarray | None) -> str | None:
    if hidden_nodes is None:
        return None
    return hashlib.sha256(np.packbits(hidden_nodes).tobytes()).hexdigest()


def state_tensors(state: NodeState) -> dict[str, torch.Tensor]:
    """The node state as checkpoint tensors."""
    tensors = {
        **{f"state.{name}": table for name, table in state.tables.items()},
        "state.version": torch.tensor([state.version]),
    }
    for place, replaced in enumerate(state.past.replaced):
        for part, row in enumerate(replaced.rows):
            name = f"replaced.{place:04d}.{part}.{row.column}"
            tensors |= {f"{name}.node": row.node_W, f"{name}.value": row.value_W}
            if row.slot_W is not None:
                tensors[f"{name}.slot"] = row.slot_W
    if state.past.replaced:
        tensors["replaced.count"] = torch.tensor([len(state.past.replaced)])
    return tensors


def state_from(checkpoint: Checkpoint, columns: Sequence[Column]) -> NodeState:
    """The node state of a checkpoint.

    Args:
        checkpoint: that holds one.
        columns: as the model declares them.

    Raises:
        CheckpointError: the checkpoint has other columns.
    """
    tensors = checkpoint.group("state")
    version = tensors.pop("version")
    found = {name: (tuple(t.shape[1:]), t.dtype) for name, t in tensors.items()}
    expected = {column.name: (column.shape, column.dtype) for column in columns}
    if found != expected:
        raise CheckpointError(
            f"the checkpoint's node state has {found}, the model's is {expected}: it is of another "
            "model"
        )
    state = NodeState(0, columns)
    state.tables, state.version = tensors, int(version[0])
    return state


def replaced_from(checkpoint: Checkpoint, device: torch.device) -> tuple[Replaced, ...]:
    """What makes the versions before the checkpoint's readable, oldest first."""
    tensors = checkpoint.group("replaced")
    count = int(tensors.pop("count")[0]) if tensors else 0
    rows: list[list[RowWrite]] = [[] for _ in range(count)]
    for name in sorted(name for name in tensors if name.endswith(".node")):
        place, _, column, _ = name.split(".")
        found = [tensors.get(name.removesuffix("node") + end) for end in ("value", "slot")]
        value_W, slot_W = (None if tensor is None else tensor.to(device) for tensor in found)
        assert value_W is not None
        rows[int(place)].append(RowWrite(column, tensors[name].to(device), value_W, slot_W))
    return tuple(Replaced(tuple(one)) for one in rows)


def weight_tensors(model: TemporalModel) -> dict[str, torch.Tensor]:
    """The model's weights as checkpoint tensors."""
    return {f"weights.{name}": tensor for name, tensor in model.state_dict().items()}


def optimizer_tensors(optimizer: Adam) -> dict[str, torch.Tensor]:
    """The optimiser's moments and step counts as checkpoint tensors."""
    return {f"optimizer.{name}": tensor for name, tensor in optimizer.tensors().items()}


def check_schema(built: Schema, found: Schema) -> None:
    """Refuse data that a model was not built for.

    Raises:
        SettingError: another width of features.
    """
    for name, label in (
        ("event_features", "event features"),
        ("node_features", "node features"),
    ):
        if getattr(built, name) != getattr(found, name):
            raise SettingError(
                f"the model was built for {getattr(built, name)} {label}, the data has "
                f"{getattr(found, name)}: build it from this data's events.schema"
            )
