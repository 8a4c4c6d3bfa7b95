"""Operators, each with a plain PyTorch reference and fast backends that equal it."""

from tidegraph.ops.attention_layer import LayerWeights, attention_layer
from tidegraph.ops.functions import gather_rows, memory_update, temporal_attention, use_backend
from tidegraph.ops.links import link_loss, link_scores
from tidegraph.ops.products import use_precision
from tidegraph.ops.reference import time_code

__all__ = [
    "LayerWeights",
    "attention_layer",
    "gather_rows",
    "link_loss",
    "link_scores",
    "memory_update",
    "temporal_attention",
    "time_code",
    "use_backend",
    "use_precision",
]
