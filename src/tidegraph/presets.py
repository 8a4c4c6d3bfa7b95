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

_AS_PUBLISHED: dict[str, Any] = {
    "training": {"batch_size": 200, "epochs": 50, "learning_rate": 1e-4, "patience": 5,
                 "evaluation_batch_size": 200},
    "split": {"val": 0.15, "test": 0.15, "hidden_nodes": 0.1},
}  # fmt: skip
"""How the field's comparisons train models without memory, whatever the data."""


def _published(model: str, about: str, **settings: Any) -> Preset:
    return Preset(about, name=model, model=settings, **_AS_PUBLISHED)


def _patient(model: str, about: str, **settings: Any) -> Preset:
    """Longer: JODIE's best validation epochs on CollegeMsg were 58, 69 and 76 (three seeds)."""
    training = {**_AS_PUBLISHED["training"], "epochs": 80, "patience": 20}
    return Preset(about, model, settings, training, _AS_PUBLISHED["split"])


def _quick(model: str, about: str, **settings: Any) -> Preset:
    """1e-3 instead of 1e-4, for fewer epochs."""
    training = {**_AS_PUBLISHED["training"], "learning_rate": 1e-3}
    return Preset(about, model, settings, training, _AS_PUBLISHED["split"])


_TGAT: dict[str, Any] = {"neighbors": 20, "layers": 2, "heads": 2, "strategy": "recent"}
_MIXER: dict[str, Any] = {"layers": 2, "token_factor": 0.5, "channel_factor": 4.0}
_DYG: dict[str, Any] = {"channel": 50, "layers": 2, "heads": 2}
PRESETS |= {
    "tgat": _published("tgat", "TGAT as published", dropout=0.1, **_TGAT),
    "tgat-enron": _published("tgat", "TGAT as published for Enron", dropout=0.2, **_TGAT),
    "graphmixer": _published(
        "graphmixer", "GraphMixer as published", neighbors=30, dropout=0.5, **_MIXER
    ),
    "graphmixer-uci": _published(
        "graphmixer", "for CollegeMsg", neighbors=20, dropout=0.4, **_MIXER
    ),
    "graphmixer-enron": _published("graphmixer", "for Enron", neighbors=20, dropout=0.5, **_MIXER),
    "dygformer": _published(
        "dygformer", "DyGFormer as published", length=32, patch=1, dropout=0.1, **_DYG
    ),
    "dygformer-enron": _published(
        "dygformer", "for Enron", length=256, patch=8, dropout=0.0, **_DYG
    ),
    "tcl": _published("tcl", "TCL as published", neighbors=20, layers=2, heads=2, dropout=0.1),
    "cawn": _published("cawn", "CAWN as published", walks=64, steps=2, bias=1e-6, dropout=0.1),
    "jodie": _patient(
        "jodie", "JODIE, with the published learning rate and patience", memory=100, time=100
    ),
    "jodie-enron": _patient(
        "jodie",
        "JODIE for Enron: with dropout, and the published time code and start of the projection",
        memory=100,
        time=100,
        projection="normal",
        dropout=0.1,
        time_code="trainable",
    ),
    "dyrep-memory": _patient(
        "dyrep",
        "DyRep as published, scored from its memories",
        neighbors=10,
        heads=2,
        dropout=0.0,
        time_code="trainable",
    ),
    "dyrep": _published(
        "dyrep",
        "DyRep, scored from the embeddings that its messages carry",
        neighbors=10,
        heads=2,
        dropout=0.1,
        embedding_module="attention",
    ),
    "apan": _quick(
        "apan", "APAN: 10 mails, 10 neighbours", mails=10, neighbors=10, heads=2, dropout=0.1
    ),
}


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
