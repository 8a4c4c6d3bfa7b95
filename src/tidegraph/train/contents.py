"""What a checkpoint contains (weights, optimiser, node state) and what it must agree on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tidegraph.errors import CheckpointError, SettingError
from tidegraph.events.core import Schema
from tidegraph.models.base import TemporalModel
from tidegraph.state import NodeState
from tidegraph.train.adam import Adam
from tidegraph.train.checkpoint import Checkpoint
from tidegraph.train.settings import TrainSettings
from tidegraph.train.stream import Stream


def about_run(model: TemporalModel, stream: Stream, settings: TrainSettings) -> dict[str, Any]:
    """What a checkpoint must agree on to be resumed."""
    return {
        "model": {"name": model.name or type(model).__name__, "settings": model.settings},
        "schema": asdict(model.schema),
        "training": settings.model_dump(exclude={"checkpoint_seconds", "checkpoint_batches"}),
        "parts": [asdict(part) for part in stream.parts],
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
    ):
        wanted = json.loads(json.dumps(expected[name]))
        if found.get(name) != wanted:
            raise CheckpointError(
                f"{path} belongs to {label}: it has {name}={found.get(name)!r}, this run has "
                f"{wanted!r}. Start a new run, or repeat the settings it was started with."
            )


def state_tensors(state: NodeState) -> dict[str, torch.Tensor]:
    """The node state as checkpoint tensors."""
    return {
        "state.memory": state.memory_ND,
        "state.mail": state.mail_ND,
        "state.version": torch.tensor([state.version]),
    }


def state_from(checkpoint: Checkpoint) -> NodeState:
    """The node state of a checkpoint."""
    tensors = checkpoint.group("state")
    state = NodeState(0, 0)
    state.memory_ND, state.mail_ND = tensors["memory"], tensors["mail"]
    state.version = int(tensors["version"][0])
    return state


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
