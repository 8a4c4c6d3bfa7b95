"""A run on disk: config.yaml, metrics.jsonl, checkpoints/; every file replaced atomically."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
import yaml

import tidegraph
from tidegraph.errors import CheckpointError, SettingError, shown
from tidegraph.events.core import Events
from tidegraph.events.store import open_events
from tidegraph.train.checkpoint import remove_unfinished, temporary_of
from tidegraph.train.progress import EpochRecord
from tidegraph.train.run_config import check_config
from tidegraph.train.trace import Trace


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
        self.trace = directory / "trace.json"

    def clean(self) -> None:
        """Delete the half-written files of a process that was killed here."""
        remove_unfinished(self.directory)
        remove_unfinished(self.last.parent)

    def check_unused(self) -> None:
        """Refuse to start over a run that is already here.

        Raises:
            SettingError: there are checkpoints of a run.
        """
        if any(path.exists() for path in (self.last, self.best, self.stream)):
            raise SettingError(
                f"{self.directory} already holds a run: go on with it by fit(..., resume=True), "
                "or choose another directory, such as tidegraph.new_directory(...)"
            )

    def begin(self, config: dict[str, Any], records: Sequence[EpochRecord]) -> None:
        """Write the effective settings, and the metrics of epochs done before a resume."""
        make_directory(self.directory)
        versions = {
            "tidegraph": tidegraph.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        }
        text = yaml.safe_dump({**config, "versions": versions}, sort_keys=False)
        write_atomically(self.config, text)
        # A kill between a checkpoint and its line leaves too few lines, or half of one.
        lines = [_line(asdict(record)) for record in records]
        found = self._lines()
        whole = not self.metrics.exists() or self.metrics.read_bytes()[-1:] in (b"", b"\n")
        if not whole or lines != [_line(line) for _, line in found if "epoch" in line]:
            others = [_line(line) for _, line in found if "evaluation" in line]
            write_atomically(self.metrics, "".join(lines + others))

    def append(self, record: EpochRecord) -> None:
        """Add one epoch to metrics.jsonl."""
        self._append(asdict(record))

    def write_trace(self, trace: Trace) -> None:
        """Replace trace.json; before anything was trained there is nothing to write."""
        if trace.slices and self.directory.exists():
            write_atomically(self.trace, json.dumps(trace.to_dict()))

    def append_evaluation(self, part: str, figures: dict[str, Any]) -> None:
        """Add one evaluation to metrics.jsonl."""
        self._append({"evaluation": part, **figures})

    def read_records(self) -> tuple[EpochRecord, ...]:
        """The finished epochs, from metrics.jsonl.

        Raises:
            CheckpointError: a line that is none of a run's; names it. The last one may be cut
                short, by a kill, and is left out.
        """
        records = []
        for number, line in self._lines(strict=True):
            if "evaluation" in line:
                continue
            try:
                records.append(EpochRecord.from_dict(line))
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise self._damaged(number, _what_is_wrong(line, error)) from None
        return tuple(records)

    def _damaged(self, number: int, problem: str) -> CheckpointError:
        return CheckpointError(
            f"{self.metrics}, line {number}: {problem}. Put the file back, or have it written anew "
            f"from the checkpoint by `tidegraph train --resume {self.directory}`"
        )

    def _append(self, values: dict[str, Any]) -> None:
        try:
            with open(self.metrics, "a", encoding="utf-8") as file:
                file.write(_line(values))
        except OSError as error:
            raise _not_written(self.metrics, error) from error

    def _lines(self, strict: bool = False) -> list[tuple[int, dict[str, Any]]]:
        """Number (from 1) and content of the whole lines of metrics.jsonl.

        The last one, if a kill cut it short, is left out; so is any other that is no line of a
        run, unless `strict`, which raises.
        """
        if not self.metrics.exists():
            return []
        found = []
        lines = self.metrics.read_text(encoding="utf-8", errors="replace").split("\n")
        for number, line in enumerate(lines, 1):
            try:
                values = json.loads(line)
            except ValueError:
                values = None
            if isinstance(values, dict) and ("epoch" in values or "evaluation" in values):
                found.append((number, values))
            elif strict and line and number < len(lines):
                raise self._damaged(number, f"is {shown(line)}; expected a JSON object of an epoch")
        return found

    def read_config(self) -> dict[str, Any]:
        """The saved settings.

        Raises:
            CheckpointError: this is not the directory of a run, or the settings were changed to
                what they cannot be; names file, key and value.
        """
        if not self.config.exists():
            raise CheckpointError(
                f"{self.directory} is not the directory of a run: it has no config.yaml. "
                "Expected a directory that `tidegraph train` wrote, for example runs/<name>."
            )
        try:
            config = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{self.config} cannot be read as YAML: {error}") from error
        return check_config(self.config, config)

    def keep_events(self, events: Events) -> dict[str, str]:
        """Where to find the events again; saved into the run if they are nowhere on disk."""
        if events.path is not None:
            return {"store": str(Path(events.path).resolve())}
        target = self.directory / "events"
        if target.exists() and open_events(target).fingerprint != events.fingerprint:
            target = self.directory / f"events-{events.fingerprint[:12]}"
        if not target.exists():
            make_directory(self.directory)
            events.save(target)
        return {"store": str(target.resolve())}


def new_directory(directory: str | Path) -> Path:
    """Create `directory`, or where that is taken `directory-2`, `-3`, ...; two runs share none.

    Args:
        directory: where a run is wanted, such as "runs/trips".

    Returns:
        what was created.

    Raises:
        SettingError: it cannot be created.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     [new_directory(runs + "/trips").name for _ in range(3)]
    ['trips', 'trips-2', 'trips-3']
    """
    wanted = Path(directory)
    number = 1
    while True:
        found = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            found.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise SettingError(
                f"cannot create {found}: {error.strerror}; choose another place with --out"
            ) from None
        else:
            return found


def make_directory(directory: Path) -> None:
    """Create a directory, and those above it.

    Raises:
        CheckpointError: it cannot be created.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot create {directory}: {error.strerror}; choose another directory"
        ) from error


def write_atomically(path: Path, text: str) -> None:
    """Replace a small text file: what is there stays until the new content is on disk.

    Raises:
        CheckpointError: it could not be written; what was there is unchanged.
    """
    temporary = temporary_of(path)
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"could not write {path}: {error}. Free some space or choose another directory, then "
        "resume."
    )


def _what_is_wrong(line: dict[str, Any], error: Exception) -> str:
    """Why a line of metrics.jsonl makes no `EpochRecord`."""
    names = [field.name for field in fields(EpochRecord)]
    missing, extra = [n for n in names if n not in line], [n for n in line if n not in names]
    if missing:
        return f"key {missing[0]!r} is missing"
    return f"unknown key {shown(extra[0])}" if extra else f"a value of the wrong kind ({error})"


def _line(values: dict[str, Any]) -> str:
    return json.dumps(_plain(values)) + "\n"


def _plain(value: Any) -> Any:
    """JSON has no NaN: an undefined figure is null."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
