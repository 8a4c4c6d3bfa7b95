"""Whether a run fits in memory, told before anything is allocated.

A width of a million is a typing error more often than a plan: the estimate is what weights, their
optimiser and the node state take at least, so nothing that would fit is refused.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tidegraph.errors import SettingError
from tidegraph.events.core import Schema
from tidegraph.models import build_model
from tidegraph.train.settings import TrainSettings

_FLOAT = 4
_COPIES_OF_WEIGHTS = 4  # themselves, gradients, and Adam's two moments
_BYTES_OF_SLOT = 12  # neighbour, event and time difference
_OVERFLOW = re.compile(r"overflow", re.I)


def check_room(
    model: str,
    schema: Schema,
    values: Mapping[str, Any],
    training: TrainSettings,
    events: int,
    available: int | None = None,
) -> None:
    """Refuse settings that need more memory than there is.

    Args:
        model, values: its name and settings.
        schema: of the data.
        training: batch sizes and candidates.
        events: of the largest part of the split.
        available: bytes; None asks the machine.

    Raises:
        SettingError: says how much is needed for what, how much there is, and which settings
            decide it.
    """
    available = available_bytes() if available is None else available
    if available is None or torch.device(training.device).type != "cpu":
        return
    try:
        with torch.device("meta"):  # shapes alone: nothing is allocated
            built = build_model(model, schema, **values)
    except RuntimeError as error:
        if _OVERFLOW.search(str(error)) is None:
            raise
        raise SettingError(
            f"{_listed(values)}: the weights of {model} alone are more than 2^63 bytes; choose "
            "narrower vectors"
        ) from None
    weights = _FLOAT * _COPIES_OF_WEIGHTS * sum(p.numel() for p in built.parameters())
    per_node = sum(math.prod(c.shape) * c.dtype.itemsize for c in built.columns)
    state = schema.num_nodes * per_node
    needed = {
        "the weights and their optimiser": (weights, _widths(built.settings)),
        "the node state": (state, _widths(built.settings, ("memory",))),
        "the neighbours of a batch": _neighbors(built.history.neighbors, training, events),
        "the candidates of a batch": _candidates(training, events),
    }
    for what, (size, settings) in needed.items():
        if size > available:
            raise SettingError(
                f"{what} would need {in_words(size)} of memory, and {in_words(available)} are "
                f"free: choose smaller values of {settings}"
            )


def _neighbors(neighbors: tuple[int, ...], training: TrainSettings, events: int) -> tuple[int, str]:
    slots = 3 * min(training.batch_size, events)  # source, target and negative of each event
    total = 0
    for count in neighbors:
        slots *= count
        total += slots
    listed = ", ".join(str(count) for count in neighbors)
    return total * _BYTES_OF_SLOT, f"neighbors={listed} or batch_size={training.batch_size}"


def _candidates(training: TrainSettings, events: int) -> tuple[int, str]:
    batch = min(training.evaluation_batch_size, events)
    settings = f"candidates={training.candidates} or evaluation_batch_size="
    size = 2 * _FLOAT * batch * training.candidates
    return size, f"{settings}{training.evaluation_batch_size}"


def _widths(settings: Mapping[str, Any], names: tuple[str, ...] | None = None) -> str:
    chosen = {
        name: value
        for name, value in settings.items()
        if type(value) is int and (name in names if names else value > 16)
    }
    return _listed(chosen) or "the widths"


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def in_words(size: int) -> str:
    """Bytes in the unit that suits them.

    >>> in_words(3 * 2**30)
    '3.0 GiB'
    """
    amount = float(size)
    units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    unit = units[0]
    return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:,.1f} {unit}"


def available_bytes() -> int | None:
    """Memory that this process may still take, of the machine and of its control group."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit.isdigit():
            found.append(int(limit))  # what it uses now is mostly cached files, which give way
    except (OSError, ValueError):
        pass  # another kind of system: what there is is enough
    if not found:
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (OSError, ValueError, AttributeError):
            return None
    return max(min(found), 0)
