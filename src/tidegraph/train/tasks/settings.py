"""Task settings: what is learned from embeddings beside link prediction, declared once, here."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tidegraph.train.settings import validated

TASKS = {
    "link": "which pairs meet next: link prediction and ranking",
    "node-classification": "the label of each event's source at that time, as 0 or 1 or a class",
    "event-classification": "a class of the event, from both of its nodes",
    "event-regression": "a number of the event, from both of its nodes",
    "node-property": "a vector per node and time, from a table of its own",
}
"""Every task by name, with a line on it."""


class TaskSettings(BaseModel):
    """What to learn once the encoder is trained by link prediction, and how.

    >>> TaskSettings(task="node-classification").encoder
    'frozen'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Literal[
        "link", "node-classification", "event-classification", "event-regression", "node-property"
    ] = Field("link", description="; ".join(f"{name}: {text}" for name, text in TASKS.items()))
    encoder: Literal["frozen", "tuned"] = Field(
        "frozen",
        description="as link prediction left it, or trained on by the task once its decoder is",
    )
    target: str | None = Field(
        None, description="event feature to predict, instead of the label column"
    )
    unlabelled: float | None = Field(
        None, allow_inf_nan=False, description="label value of events that have no label"
    )
    known: tuple[str, ...] = Field(
        (),
        description="event features that are known before the event, for the decoder to see "
        "(a categorical column by its name)",
    )
    balance: Literal["auto", "none", "weight", "sampling"] = Field(
        "auto",
        description="rare classes: left alone, weighted, or drawn as often as common ones; auto: "
        "whichever is best on validation",
    )
    properties: str | None = Field(
        None, description="table of node properties with the columns node, time, item, weight"
    )
    task_epochs: int = Field(30, ge=1, description="passes of the decoder over its rows, at most")
    task_patience: int = Field(
        5, ge=0, description="passes without a better validation; 0: no stopping"
    )
    task_batch_size: int = Field(500, ge=1, lt=2**31, description="rows per step of the decoder")
    task_learning_rate: float = Field(
        1e-3, gt=0, allow_inf_nan=False, description="Adam's step size for the decoder"
    )
    task_width: int = Field(80, ge=1, description="hidden units of the decoder's two layers")
    task_dropout: float = Field(0.1, ge=0, lt=1, description="of the decoder's hidden units")
    tune_epochs: int = Field(3, ge=1, description="passes of a tuned encoder over the events")
    tune_learning_rate: float = Field(
        1e-4, gt=0, allow_inf_nan=False, description="Adam's step size for a tuned encoder"
    )

    @classmethod
    def of(cls, values: dict[str, Any]) -> TaskSettings:
        """Validate `values`.

        Raises:
            SettingError: an unknown setting or a value out of range, named.
        """
        return validated(cls, values, "task")
