"""The history-bound half of a step: plans, negatives, preparation, and the prepared batch."""

from tidegraph.batches.padding import pad
from tidegraph.batches.plan import BatchPlan, Phase
from tidegraph.batches.prepare import History, Preparer
from tidegraph.batches.prepared import (
    Delivery,
    Ends,
    Hop,
    Mail,
    Padding,
    PreparedBatch,
    Seeds,
    Uses,
    Writes,
)
from tidegraph.batches.template_sets import TemplateSet
from tidegraph.batches.templates import Template

__all__ = [
    "BatchPlan",
    "Delivery",
    "Ends",
    "History",
    "Hop",
    "Mail",
    "Padding",
    "Phase",
    "PreparedBatch",
    "Preparer",
    "Seeds",
    "Template",
    "TemplateSet",
    "Uses",
    "Writes",
    "pad",
]
