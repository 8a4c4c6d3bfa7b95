"""Operators, each with a plain PyTorch reference and fast backends that equal it."""

from tidegraph.ops.deferred import Deferred
from tidegraph.ops.functions import (
    gather_rows,
    memory_update,
    temporal_attention,
    time_code,
    use_backend,
)
from tidegraph.ops.layer import LayerWeights, attention_layer, attention_rows, mailbox_layer
from tidegraph.ops.links import link_loss, link_scores
from tidegraph.ops.mails import delivered_mails
from tidegraph.ops.products import linear, use_precision, use_scoring
from tidegraph.ops.projection import normalized_gaps, time_projection
from tidegraph.ops.segment import (
    RaggedHop,
    edge_softmax,
    ragged,
    segment_attention,
    segment_mean,
    segment_sum,
    transpose,
)

__all__ = [
    "Deferred",
    "LayerWeights",
    "RaggedHop",
    "attention_layer",
    "attention_rows",
    "delivered_mails",
    "edge_softmax",
    "gather_rows",
    "linear",
    "link_loss",
    "link_scores",
    "mailbox_layer",
    "memory_update",
    "normalized_gaps",
    "ragged",
    "segment_attention",
    "segment_mean",
    "segment_sum",
    "temporal_attention",
    "time_code",
    "time_projection",
    "transpose",
    "use_backend",
    "use_precision",
    "use_scoring",
]
