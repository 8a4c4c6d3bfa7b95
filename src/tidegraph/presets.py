"""Presets: named groups of settings that stand between the defaults and a YAML file.

`tidegraph train --preset NAME` takes one. Without one, `flights` is taken when the bundled data is
trained on and nothing else is said. A preset gives only what differs from the defaults.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any

from tidegraph.errors import SettingError


@dataclass(frozen=True)
class Preset:
    """Settings by section; each key must exist in its section.

    Attributes:
        about: one line for `--help` and for the list of presets.
        name: of the model it is for, which need not be given then; "" for any.
        model, training, split: what differs from the defaults.
    """

    about: str
    name: str = ""
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    split: dict[str, Any] = field(default_factory=dict)


PRESETS: dict[str, Preset] = {
    "defaults": Preset("the defaults alone, also for the bundled data"),
    "flights": Preset(
        "for the bundled flights data: a good model in minutes on two cores",
        training={"batch_size": 400, "epochs": 5, "learning_rate": 1e-3},
    ),
    "published": Preset(
        "TGN as published: batch 200, learning rate 1e-4, 10 recent neighbours, dropout 0.1",
        model={"memory": 100, "time": 100, "embedding": 100, "neighbors": 10, "layers": 1,
               "heads": 2, "dropout": 0.1, "message": "last", "cell": "gru",
               "strategy": "recent"},
        training={"batch_size": 200, "epochs": 50, "learning_rate": 1e-4, "patience": 5,
                  "evaluation_batch_size": 200},
        split={"val": 0.15, "test": 0.15},
    ),
}  # fmt: skip


def find_preset(name: str) -> Preset:
    """The preset called `name`.

    Raises:
        SettingError: no such preset; the message lists those there are.

    >>> find_preset("published").training["learning_rate"]
    0.0001
    """
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise SettingError(f"unknown preset {name!r}: expected one of {', '.join(PRESETS)}.{hint}")
    return PRESETS[name]
