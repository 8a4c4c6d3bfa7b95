"""Who met whom before t: the temporal index and its samplers."""

from tidegraph.history.index import TemporalIndex
from tidegraph.history.neighbors import Neighbors

__all__ = ["Neighbors", "TemporalIndex"]
