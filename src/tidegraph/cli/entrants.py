"""What `tidegraph compare --models` names: models, variants, presets, baselines, own classes.

`tgn`, `tgn:layers=2,memory=50`, `preset:tgat`, `edgebank`, `file.py:Class` and
`file.py:Class:width=8` are all names of entrants.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegraph.cli.settings import Settings, merge
from tidegraph.errors import SettingError, shown
from tidegraph.models import BASELINES, MODELS
from tidegraph.models.own import is_own
from tidegraph.presets import PRESETS

_PRESET = "preset:"


@dataclass(frozen=True)
class Entrant:
    """One row to be.

    Attributes:
        name: as it was asked for.
        settings: effective ones; of a baseline, those that data, split and evaluation take.
        baseline: its name among the baselines, or None.
    """

    name: str
    settings: Settings
    baseline: str | None = None


def find_entrants(
    names: Sequence[str], flags: Mapping[str, Mapping[str, Any]], config: Path | None
) -> tuple[Entrant, ...]:
    """Settings of every entrant; all mistakes are found before anything is trained.

    Args:
        names: see above.
        flags: section -> key -> value, for all entrants.
        config: a YAML file for all of them.

    Raises:
        SettingError: an unknown name or setting, or a name that comes twice.
    """
    if not names:
        raise SettingError("--models: name what to compare, such as --models tgn tgat edgebank")
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"--models names {shown(name)} twice; leave one out")
    return tuple(_entrant(name, flags, config) for name in names)


def _entrant(name: str, flags: Mapping[str, Mapping[str, Any]], config: Path | None) -> Entrant:
    if name in BASELINES:
        return Entrant(name, merge(flags, config=config), name)
    if name.startswith(_PRESET):
        preset = name.removeprefix(_PRESET)
        return Entrant(name, merge(flags, preset=preset, config=config))
    model, values = _parsed(name)
    if model not in MODELS and not is_own(model):
        known = [*MODELS, *BASELINES, *(_PRESET + preset for preset in PRESETS)]
        close = difflib.get_close_matches(model, known, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise SettingError(
            f"--models: there is no model {shown(model)}: expected one of {', '.join(MODELS)}; a "
            f"baseline, {', '.join(BASELINES)}; a preset, {_PRESET}NAME; or a class of your own, "
            f"file.py:Class.{hint}"
        )
    if not values:
        return Entrant(name, merge(flags, model=model, config=config))
    both = {**flags, "model": {**flags.get("model", {}), **values}}
    return Entrant(name, merge(both, model=model, config=config))


def _parsed(name: str) -> tuple[str, dict[str, str]]:
    """Model and settings of `model:key=value,key=value`.

    >>> _parsed("tgn:layers=2,memory=50")
    ('tgn', {'layers': '2', 'memory': '50'})
    >>> _parsed("mine.py:Model")
    ('mine.py:Model', {})
    """
    head, colon, tail = name.rpartition(":")
    if not colon or "=" not in tail:
        return name, {}
    values: dict[str, str] = {}
    for part in tail.split(","):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise SettingError(
                f"--models {shown(name)}: expected settings as in tgn:layers=2,memory=50; found "
                f"{shown(part)}"
            )
        values[key.strip().replace("-", "_")] = value.strip()
    return head, values
