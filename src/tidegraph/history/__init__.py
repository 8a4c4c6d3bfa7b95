"""Who met whom before t: the temporal index and its samplers."""

from tidegraph.history.build import entry_type
from tidegraph.history.hops import sample_hops
from tidegraph.history.index import TemporalIndex
from tidegraph.history.neighbors import Neighbors

__all__ = ["Neighbors", "TemporalIndex", "entry_type", "sample_hops"]
