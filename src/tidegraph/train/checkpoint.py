"""Checkpoints: one file each, written atomically, checksummed, without pickle.

A checkpoint is a safetensors file whose metadata is JSON text with a SHA-256 digest over every
tensor. It is written beside its destination, synced, and renamed: a kill or a full disk at any
moment leaves the previous one as it was.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tidegraph.errors import CheckpointError

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Tensors by name ("weights.…", "optimizer.…", "state.…") and what they mean.

    Attributes:
        tensors: on the CPU.
        about: JSON-serialisable description: model, settings, cursor, data fingerprint.
    """

    tensors: dict[str, Tensor]
    about: dict[str, Any]

    def group(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names start with `prefix.`, without it."""
        start = prefix + "."
        return {
            name[len(start) :]: tensor
            for name, tensor in self.tensors.items()
            if name.startswith(start)
        }


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` to `path`, replacing what is there only when all is on disk.

    Raises:
        CheckpointError: it could not be written (for example a full disk); the previous
            checkpoint is untouched.
    """
    tensors = {
        name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()
    }
    about = json.dumps(checkpoint.about, sort_keys=True)
    metadata = {"format": str(FORMAT), "about": about, "sha256": _digest(tensors, about)}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(tensors, temporary, metadata)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        kept = "the previous checkpoint is unchanged" if path.exists() else "none was kept"
        raise CheckpointError(
            f"could not write checkpoint {path}: {error}; {kept}. Free some space or choose "
            "another directory, then resume."
        ) from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and verify a checkpoint.

    Raises:
        CheckpointError: missing, truncated, damaged, or of another format.
    """
    if not path.exists():
        raise CheckpointError(f"no checkpoint at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata: Mapping[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint {path} is truncated or damaged ({error}): delete it and resume from an "
            "earlier one, or train again"
        ) from error
    if metadata.get("format") != str(FORMAT):
        raise CheckpointError(
            f"{path} is not a checkpoint this version reads: format "
            f"{metadata.get('format', 'none')!r}, expected '{FORMAT}'"
        )
    if metadata.get("sha256") != _digest(tensors, metadata["about"]):
        raise CheckpointError(
            f"checkpoint {path} is damaged: its checksum does not match its content. Delete it "
            "and resume from an earlier one, or train again."
        )
    return Checkpoint(tensors, json.loads(metadata["about"]))


def _digest(tensors: Mapping[str, Tensor], about: str) -> str:
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
