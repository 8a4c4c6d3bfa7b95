"""Operators, each with a plain PyTorch reference and fast backends that equal it."""

from tidegraph.ops.functions import gather_rows, memory_update, temporal_attention, use_backend
from tidegraph.ops.reference import time_code

__all__ = ["gather_rows", "memory_update", "temporal_attention", "time_code", "use_backend"]
