"""What the Triton backend offers: the operators of `tidegraph.ops.reference`, same signatures."""

from tidegraph.ops.triton_backend.attention import temporal_attention
from tidegraph.ops.triton_backend.memory import memory_update
from tidegraph.ops.triton_backend.rows import gather_rows
from tidegraph.ops.triton_backend.time_code import time_code

__all__ = ["gather_rows", "memory_update", "temporal_attention", "time_code"]
