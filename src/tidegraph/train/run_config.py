"""What a run's config.yaml must look like; people edit it by hand.

`RunFiles.read_config` checks every file against this before anything is done with it, so that a
slip of the editor is one message with the file, the key, the value and what was expected.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tidegraph.errors import CheckpointError, listed, shown
from tidegraph.train.settings import TrainSettings

_REMEDY = "put back what `tidegraph train` wrote"
Checked = TypeVar("Checked", bound=BaseModel)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Model(_Section):
    name: str
    settings: dict[str, Any]


class _Data(_Section):
    """Where the events are, and how they were divided.

    `columns`, `split` and `task` are read by the command line, which checks what is in them.
    """

    dataset: str | None = None
    scale: float = 1.0
    seed: int = 0
    store: str | None = None
    file: str | None = None
    columns: dict[str, Any] = {}
    split: dict[str, Any] = {}
    task: dict[str, Any] = {}
    test: list[int] | None = Field(None, min_length=2, max_length=2)
    fingerprint: str | None = None

    @model_validator(mode="after")
    def _somewhere(self) -> _Data:
        if self.dataset is None and self.store is None:
            raise ValueError("needs 'store' (a directory of events) or 'dataset' (a name)")
        return self

    @model_validator(mode="after")
    def _in_order(self) -> _Data:
        if self.test is not None and not 0 <= self.test[0] <= self.test[1]:
            raise ValueError(f"test={self.test}: expected a start and a stop that is not before it")
        return self


class _Part(_Section):
    name: str
    start: int
    stop: int
    batch_size: int
    hidden: bool = False
    staleness: int = 0


class _RunConfig(_Section):
    model: _Model
    training: dict[str, Any]
    data: _Data
    parts: list[_Part] = []
    versions: dict[str, Any] = {}


def check_config(path: Path, content: Any) -> dict[str, Any]:
    """The settings of a run as they were read, if they are what settings must be.

    Args:
        path: config.yaml, for messages.
        content: what YAML made of it.

    Raises:
        CheckpointError: a key that is missing or unknown, or a value of the wrong kind; names
            file, key and value.
    """
    if not isinstance(content, dict) or "model" not in content:
        raise CheckpointError(
            f"{path} is not the settings of a run: expected the sections "
            f"{listed(_RunConfig.model_fields)}; {_REMEDY}"
        )
    checked(_RunConfig, content, path)
    checked(TrainSettings, content["training"], path, "training")
    return content


def checked(cls: type[Checked], values: Any, path: Path, section: str = "") -> Checked:
    """`cls(**values)`, where `values` were read from `section` of the file at `path`.

    Raises:
        CheckpointError: names file, key, value and what was expected.
    """
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise CheckpointError(f"{path}: {_problem(cls, error, section)}; {_REMEDY}") from None


def _problem(cls: type[BaseModel], error: ValidationError, section: str) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in (section, *first["loc"]) if part != "")
    if first["type"] == "missing":
        return f"key {place!r} is missing"
    if first["type"] == "extra_forbidden":
        known = _fields_at(cls, first["loc"][:-1])
        close = difflib.get_close_matches(str(first["loc"][-1]), known, 1, cutoff=0.4)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        return f"unknown key {place!r}{hint}, expected one of {listed(known)}"
    found, message = shown(first["input"]), first["msg"]
    if first["type"] == "value_error":
        return f"{place or 'it'} {message.removeprefix('Value error, ')}, found {found}"
    if first["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = "expected keys and values"
    message = message.replace("Input should be", "expected")
    return f"{place}={found}: {message}"


def _fields_at(cls: type[BaseModel], place: tuple[Any, ...]) -> list[str]:
    """The known keys of the section at `place`."""
    fields = cls.model_fields
    for part in place:
        inner = fields[part].annotation if isinstance(part, str) else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return list(_Part.model_fields)
        fields = inner.model_fields
    return list(fields)
