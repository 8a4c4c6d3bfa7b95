"""Models, one file each, built from shared operators and state."""

from tidegraph.models.apan import APAN
from tidegraph.models.base import Encoded, TemporalModel
from tidegraph.models.baselines import BASELINES, build_baseline
from tidegraph.models.cawn import CAWN
from tidegraph.models.dygformer import DyGFormer
from tidegraph.models.dyrep import DyRep
from tidegraph.models.edgebank import EdgeBank
from tidegraph.models.graphmixer import GraphMixer
from tidegraph.models.jodie import JODIE
from tidegraph.models.popularity import Popularity
from tidegraph.models.recency import Recency
from tidegraph.models.registry import (
    MODELS,
    ModelSetting,
    about_model,
    build_model,
    model_class,
    model_settings,
)
from tidegraph.models.tcl import TCL
from tidegraph.models.tgat import TGAT
from tidegraph.models.tgn import TGN

__all__ = [
    "APAN",
    "BASELINES",
    "CAWN",
    "JODIE",
    "MODELS",
    "TCL",
    "TGAT",
    "TGN",
    "DyGFormer",
    "DyRep",
    "EdgeBank",
    "Encoded",
    "GraphMixer",
    "ModelSetting",
    "Popularity",
    "Recency",
    "TemporalModel",
    "about_model",
    "build_baseline",
    "build_model",
    "model_class",
    "model_settings",
]
