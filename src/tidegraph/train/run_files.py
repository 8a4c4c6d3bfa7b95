"""A run on disk: config.yaml, metrics.jsonl, checkpoints/; every file replaced atomically."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml

import tidegraph
from tidegraph.errors import CheckpointError
from tidegraph.events.core import Events
from tidegraph.train.progress import EpochRecord


class RunFiles:
    """The files of one run directory.

    Attributes:
        directory: the run's directory; created when the run begins.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.last = directory / "checkpoints" / "last.safetensors"
        self.best = directory / "checkpoints" / "best.safetensors"
        self.stream = directory / "checkpoints" / "stream.safetensors"
        self.config = directory / "config.yaml"
        self.metrics = directory / "metrics.jsonl"

    def begin(self, config: dict[str, Any], records: Sequence[EpochRecord]) -> None:
        """Write the effective settings, and the metrics of epochs done before a resume."""
        self.directory.mkdir(parents=True, exist_ok=True)
        versions = {
            "tidegraph": tidegraph.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        }
        text = yaml.safe_dump({**config, "versions": versions}, sort_keys=False)
        write_atomically(self.config, text)
        write_atomically(self.metrics, "".join(_line(record) for record in records))

    def append(self, record: EpochRecord) -> None:
        """Add one epoch to metrics.jsonl."""
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(_line(record))

    def append_evaluation(self, part: str, figures: dict[str, Any]) -> None:
        """Add one evaluation to metrics.jsonl."""
        with open(self.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps({"evaluation": part, **figures}) + "\n")

    def read_config(self) -> dict[str, Any]:
        """The saved settings.

        Raises:
            CheckpointError: this is not the directory of a run.
        """
        if not self.config.exists():
            raise CheckpointError(
                f"{self.directory} is not the directory of a run: it has no config.yaml. "
                "Expected a directory that `tidegraph train` wrote, for example runs/<name>."
            )
        try:
            config = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise CheckpointError(f"{self.config} cannot be read as YAML: {error}") from error
        if not isinstance(config, dict) or "model" not in config:
            raise CheckpointError(f"{self.config} is not the settings of a run")
        return config

    def keep_events(self, events: Events) -> dict[str, str]:
        """Where to find the events again; saved into the run if they are nowhere on disk."""
        if events.path is not None:
            return {"store": str(Path(events.path).resolve())}
        target = self.directory / "events"
        if not target.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            events.save(target)
        return {"store": str(target.resolve())}


def write_atomically(path: Path, text: str) -> None:
    """Replace a small text file: what is there stays until the new content is on disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _line(record: EpochRecord) -> str:
    return json.dumps(asdict(record)) + "\n"
