"""The history-bound half of a step: plans, negatives, preparation, and the prepared batch."""

from tidegraph.batches.plan import BatchPlan, Phase
from tidegraph.batches.prepare import History, Preparer
from tidegraph.batches.prepared import (
    Delivery,
    Ends,
    Hop,
    Mail,
    PreparedBatch,
    Seeds,
    Uses,
    Writes,
)

__all__ = [
    "BatchPlan",
    "Delivery",
    "Ends",
    "History",
    "Hop",
    "Mail",
    "Phase",
    "PreparedBatch",
    "Preparer",
    "Seeds",
    "Uses",
    "Writes",
]
