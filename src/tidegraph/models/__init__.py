"""Models, one file each, built from shared operators and state."""

from tidegraph.models.base import Encoded, TemporalModel
from tidegraph.models.cawn import CAWN
from tidegraph.models.dygformer import DyGFormer
from tidegraph.models.graphmixer import GraphMixer
from tidegraph.models.registry import MODELS, ModelSetting, build_model, model_class, model_settings
from tidegraph.models.tcl import TCL
from tidegraph.models.tgat import TGAT
from tidegraph.models.tgn import TGN

__all__ = [
    "CAWN",
    "MODELS",
    "TCL",
    "TGAT",
    "TGN",
    "DyGFormer",
    "Encoded",
    "GraphMixer",
    "ModelSetting",
    "TemporalModel",
    "build_model",
    "model_class",
    "model_settings",
]
