"""The models by name, and their settings read from their constructors.

A setting is declared once: as a constructor argument with a type and a default, described by its
line in the docstring's `Args`. The command line, YAML files and checkpoints all read it from there.
"""

from __future__ import annotations

import difflib
import inspect
import re
import typing
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tidegraph.errors import SettingError, shown
from tidegraph.events.core import Schema
from tidegraph.models.apan import APAN
from tidegraph.models.base import INITIAL_SEED, TemporalModel
from tidegraph.models.cawn import CAWN
from tidegraph.models.dygformer import DyGFormer
from tidegraph.models.dyrep import DyRep
from tidegraph.models.graphmixer import GraphMixer
from tidegraph.models.jodie import JODIE
from tidegraph.models.own import is_own, own_class
from tidegraph.models.tcl import TCL
from tidegraph.models.tgat import TGAT
from tidegraph.models.tgn import TGN

_TOO_LARGE = 2**31
MODELS: dict[str, type[TemporalModel]] = {
    "tgn": TGN,
    "jodie": JODIE,
    "dyrep": DyRep,
    "apan": APAN,
    "tgat": TGAT,
    "graphmixer": GraphMixer,
    "dygformer": DyGFormer,
    "tcl": TCL,
    "cawn": CAWN,
}
"""Trainable models by the name the command line uses."""


@dataclass(frozen=True)
class ModelSetting:
    """One constructor argument of a model.

    Attributes:
        name, type, default: as declared.
        help: its line of the docstring.
    """

    name: str
    type: Any
    default: Any
    help: str


def model_class(name: str) -> type[TemporalModel]:
    """The class called `name`, or a class of one's own file, `path/to/file.py:Class`.

    Raises:
        SettingError: no such model; the message lists those there are.

    >>> model_class("tgn").__name__
    'TGN'
    """
    if is_own(name):
        return own_class(name)
    if name not in MODELS:
        close = difflib.get_close_matches(name, MODELS, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise SettingError(f"unknown model {name!r}: expected one of {', '.join(MODELS)}.{hint}")
    return MODELS[name]


def model_settings(model: type[TemporalModel]) -> tuple[ModelSetting, ...]:
    """The settings of a model class, in the order of its constructor.

    >>> [setting.name for setting in model_settings(TGN)][:3]
    ['memory', 'time', 'embedding']
    """
    hints = typing.get_type_hints(model.__init__)
    described = _described_arguments(inspect.getdoc(model) or "")
    parameters = list(inspect.signature(model.__init__).parameters.values())[2:]
    return tuple(
        ModelSetting(p.name, hints.get(p.name, Any), p.default, described.get(p.name, ""))
        for p in parameters
    )


def about_model(model: type[TemporalModel]) -> str:
    """What a model is, in a line: the first one of its module's docstring, without its name.

    >>> about_model(TGN)
    'memory updated by messages, temporal attention over the most recent neighbours'
    """
    first = (inspect.getdoc(inspect.getmodule(model)) or "").partition("\n")[0].rstrip(".")
    return first.partition(": ")[2] or first


def build_model(name: str, schema: Schema, seed: int = 0, **settings: Any) -> TemporalModel:
    """Build a model whose initial weights depend on `seed` alone.

    Args:
        name: see `MODELS`.
        schema: sizes of the data.
        seed: of the initial weights.
        **settings: the model's own settings.

    Raises:
        SettingError: a setting the model does not have, or a value of the wrong type.

    >>> model = build_model("tgn", Schema(4, 4, False), memory=8, embedding=8, time=8)
    >>> model.settings["memory"]
    8
    """
    cls = model_class(name)
    known = {setting.name: setting for setting in model_settings(cls)}
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise SettingError(f"{name} has no setting {key!r}: it has {', '.join(known)}.{hint}")
        try:
            values[key] = TypeAdapter(known[key].type).validate_python(value)
        except ValidationError as error:
            raise SettingError(
                f"{name} setting {key}={shown(value)}: {error.errors()[0]['msg']}"
            ) from None
        if type(values[key]) is int and abs(values[key]) >= _TOO_LARGE:
            raise SettingError(f"{name} setting {key}={value}: expected less than {_TOO_LARGE:,}")
    token = INITIAL_SEED.set(seed)
    try:
        return cls(schema, **values)
    finally:
        INITIAL_SEED.reset(token)


def _described_arguments(docstring: str) -> dict[str, str]:
    """The `Args` section of a docstring: name -> description (names may share a line)."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", docstring, re.S | re.M)
    found: dict[str, str] = {}
    if section:
        for names, text in re.findall(
            r"^ {4}(\w[\w, ]*): (.*?)(?=^ {4}\w|\Z)", section.group(1), re.S | re.M
        ):
            for name in names.split(","):
                found[name.strip()] = " ".join(text.split()).rstrip(".")
    return found
