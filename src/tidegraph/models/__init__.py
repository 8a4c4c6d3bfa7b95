"""Models, one file each, built from shared operators and state."""

from tidegraph.models.base import Encoded, TemporalModel
from tidegraph.models.jodie import JODIE
from tidegraph.models.registry import MODELS, ModelSetting, build_model, model_class, model_settings
from tidegraph.models.tgn import TGN

__all__ = [
    "JODIE",
    "MODELS",
    "TGN",
    "Encoded",
    "ModelSetting",
    "TemporalModel",
    "build_model",
    "model_class",
    "model_settings",
]
