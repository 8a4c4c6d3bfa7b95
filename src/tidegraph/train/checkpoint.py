"""Checkpoints: one file each, written atomically, checksummed, without pickle.

A checkpoint is a safetensors file whose metadata is JSON text with a SHA-256 digest over every
tensor. It is written beside its destination, synced, and renamed: a kill or a full disk at any
moment leaves the previous one as it was. What a kill leaves half-written is a hidden `.tmp` file
that `remove_unfinished` deletes at the next start.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tidegraph.errors import CheckpointError
from tidegraph.events.files import sync_directory

FORMAT = 1
Kind = Literal["last", "best", "stream"]
_PURPOSE = {
    "last": " to resume from",
    "best": ", the best epoch's weights and state",
    "stream": ", the state that a run was left at",
}
_ABOUT = ("model", "schema", "training", "parts", "fingerprint")


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
    tensors = _separate(checkpoint.tensors)
    about = json.dumps(checkpoint.about)
    metadata = {"format": str(FORMAT), "about": about, "sha256": _digest(tensors, about)}
    temporary = temporary_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        mode = temporary.stat().st_mode
        save_file(tensors, temporary, metadata)
        os.chmod(temporary, mode)  # safetensors makes files for their owner alone
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        kept = "the previous checkpoint is unchanged" if path.exists() else "none was kept"
        raise CheckpointError(
            f"could not write checkpoint {path}: {error}; {kept}. Free some space or choose "
            "another directory, then resume."
        ) from error


def load_checkpoint(path: Path, kind: Kind | None = None) -> Checkpoint:
    """Read and verify a checkpoint.

    Args:
        path: the file.
        kind: what it must be: "last" to resume from, "best" of the epochs, or "stream", where
            `Run.save` left off; None takes any.

    Raises:
        CheckpointError: missing, truncated, damaged, of another format or of another kind.
    """
    if not path.exists():
        raise CheckpointError(f"no checkpoint at {path}")
    try:
        metadata, tensors = _read(path)
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
    about = metadata.get("about", "")
    if metadata.get("sha256") != _digest(tensors, about):
        raise CheckpointError(
            f"checkpoint {path} is damaged: its checksum does not match its content. Delete it "
            "and resume from an earlier one, or train again."
        )
    checkpoint = Checkpoint(tensors, json.loads(about))
    if kind is not None:
        _check_kind(path, checkpoint, kind)
    return checkpoint


def _read(path: Path) -> tuple[Mapping[str, str], dict[str, Tensor]]:
    """Metadata and tensors of one and the same file.

    safetensors opens a path twice, for the header and for the data. A writer that puts another file
    in place in between would mix two, so the file is read again until it stayed the same.
    """
    while True:
        before = _identity(path)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError):
            if _identity(path) == before:
                raise
        else:
            if _identity(path) == before:
                return metadata, tensors


def _identity(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def kind_of(checkpoint: Checkpoint) -> Kind | None:
    """What kind of a run's checkpoints this is, from what it holds; None if it is none of them."""
    about = checkpoint.about
    if not isinstance(about, dict) or not set(_ABOUT) <= about.keys():
        return None
    if "cursor" not in about:
        return "stream" if "best_epoch" in about and checkpoint.group("state") else None
    if checkpoint.group("optimizer"):
        return "last"
    return "best" if checkpoint.group("state") else None


def _check_kind(path: Path, checkpoint: Checkpoint, kind: Kind) -> None:
    found = kind_of(checkpoint)
    if found != kind:
        what = f"is a {found!r} checkpoint" if found else "is no checkpoint of a run"
        raise CheckpointError(
            f"{path} {what}, expected a {kind!r} one{_PURPOSE[kind]}: another file was put in its "
            "place. Put it back, or train again"
        )


def temporary_of(path: Path) -> Path:
    """Where `path` is written before it is put in place: beside it, hidden, one per process."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def remove_unfinished(directory: Path) -> None:
    """Delete what a killed process left half-written in a directory."""
    for pattern in (".*.tmp", ".tmp*"):  # ours, and those of safetensors inside `save_file`
        for left in directory.glob(pattern):
            with suppress(OSError):
                left.unlink()


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, contiguous, no two in the same memory (tied weights, which files refuse)."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        address = own.untyped_storage().data_ptr()
        found[name] = own.clone() if address in seen else own
        seen.add(address)
    return found


def _digest(tensors: Mapping[str, Tensor], about: str) -> str:
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
