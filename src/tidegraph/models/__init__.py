"""Models, one file each, built from shared operators and state."""

from tidegraph.models.base import Encoded, TemporalModel
from tidegraph.models.tgn import TGN

__all__ = ["TGN", "Encoded", "TemporalModel"]
