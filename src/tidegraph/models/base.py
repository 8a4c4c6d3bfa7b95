"""What every trainable model is: what history it needs, how memory changes, how to embed.

A model sees a `PreparedBatch` and the vectors read from the state, and nothing else: no index, no
sampler, no training loop. Batching, sampling, evaluation and checkpoints come with it for free.

Shape legend: B events, C candidates per event, R = B (2 + C) roots, S seeds, U unique nodes,
D width.
"""

from __future__ import annotations

import functools
import inspect
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from tidegraph import ops
from tidegraph.batches.prepare import History
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.errors import SettingError
from tidegraph.events.core import Schema
from tidegraph.keys import Purpose, make_key
from tidegraph.state.columns import Column, StateWrites, memory_columns, memory_writes


@dataclass(frozen=True)
class Encoded:
    """What a model makes of a batch.

    Attributes:
        seeds: embeddings of the roots' distinct (node, time) seeds, whose last product may still
            wait; `seed_SD` has them.
        memory_UD: updated memory of the unique nodes, to be persisted for the endpoints; None for
            a model without memory, or whose memory is made of embeddings.
        sent_SD: what each seed sends to its partner in an event; by default a node's updated
            memory is sent.
    """

    seeds: Tensor | ops.Deferred
    memory_UD: Tensor | None = None
    sent_SD: Tensor | None = None

    @functools.cached_property
    def seed_SD(self) -> Tensor:
        """[S, D] embeddings of the seeds."""
        return self.seeds.result() if isinstance(self.seeds, ops.Deferred) else self.seeds


@dataclass(frozen=True, eq=False)
class TrainingEvents:
    """The events a model is trained on, for what it learns before training.

    Attributes:
        source_E, target_E: int32 [E], nodes.
        time_E: [E], in the stream's time type, ascending.
        seed: of whatever is drawn.
    """

    source_E: np.ndarray
    target_E: np.ndarray
    time_E: np.ndarray
    seed: int = 0


def check_counts(**settings: int) -> None:
    """Refuse a width or a number of things below 1, by the setting's name.

    Raises:
        SettingError: the first that is.
    """
    for name, value in settings.items():
        if value < 1:
            raise SettingError(f"{name}={value}: expected 1 or more")


def check_dropout(dropout: float) -> None:
    """Refuse what is no probability of dropping.

    Raises:
        SettingError: says what was expected.
    """
    if not 0 <= dropout < 1:
        raise SettingError(f"dropout={dropout}: expected a probability from 0 to below 1")


INITIAL_SEED: ContextVar[int] = ContextVar("INITIAL_SEED", default=0)
"""The seed that a model's initial weights derive from while it is built; see `build_model`."""


class TemporalModel(nn.Module):
    """Base class of models.

    A subclass sets `history` and `memory_width` in its constructor and writes `encode`. The
    default `decode` scores a pair as o . relu(A z_u + B z_v + c).

    Initial weights derive from a seed, never from PyTorch's global generator: a model built by its
    class starts from the weights of seed 0, `tidegraph.models.build_model` takes another seed.

    Attributes:
        name: how the command line calls the model.
        schema: sizes of the data it was built for.
        history: what preparation must deliver.
        memory_width: D of the node state; 0 for no memory.
        columns: of the node state; memory and mail vectors of width `memory_width`, unless a model
            says otherwise.
        memory_from_embeddings: what the state becomes depends on the embeddings, so the state
            cannot move on before the batch's endpoints are embedded.
        settings: the constructor's arguments (without `schema`), defaults filled in; what a
            checkpoint needs to build the model again.
        rows_alone: while scoring, `encode` treats each row by itself to the bit: it uses operators
            of `tidegraph.ops` (`ops.linear` for `nn.Linear`), else works element by element.
        precision: "fp32", or "bf16" for matrix products of rounded factors.
    """

    name: ClassVar[str] = ""
    memory_from_embeddings: ClassVar[bool] = False
    settings: dict[str, Any]
    rows_alone: bool = False
    precision: str = "fp32"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        construct = cls.__init__
        signature = inspect.signature(construct)

        @functools.wraps(construct)
        def recorded(self: TemporalModel, *args: Any, **arguments: Any) -> None:
            if type(self) is not cls:
                construct(self, *args, **arguments)
            else:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(make_key(INITIAL_SEED.get(), Purpose.INITIAL_WEIGHTS) >> 1)
                    construct(self, *args, **arguments)
                bound = signature.bind(self, *args, **arguments)
                bound.apply_defaults()
                self.settings = dict(list(bound.arguments.items())[2:])

        cls.__init__ = recorded  # type: ignore[method-assign]

    def __init__(self, schema: Schema, embedding: int) -> None:
        super().__init__()
        check_counts(embedding=embedding)
        self.schema = schema
        self.history = History()
        self.memory_width = 0
        self.embedding_width = embedding
        self.source_layer = nn.Linear(embedding, embedding)
        self.target_layer = nn.Linear(embedding, embedding, bias=False)
        self.output_layer = nn.Linear(embedding, 1)

    @property
    def columns(self) -> tuple[Column, ...]:
        """What the model keeps about each node."""
        return memory_columns(self.memory_width)

    def fit_statistics(self, train: TrainingEvents) -> None:
        """Learn from the training events what gradients do not: called once, before training.

        For example the scale of time differences. Whatever is learned belongs into buffers, which
        checkpoints keep. By default nothing is.
        """

    def encode(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Encoded:
        """Embed the batch's seeds from the state's rows of its unique nodes, column by column."""
        raise NotImplementedError

    def state_writes(self, batch: PreparedBatch, encoded: Encoded) -> StateWrites:
        """What an executed batch leaves in the state: by default, updated memory and new mail."""
        sent_PD = None
        if encoded.sent_SD is not None and batch.ends is not None:
            sent_PD = encoded.sent_SD.index_select(0, batch.ends.partner_seed_P)
        return memory_writes(batch.writes, encoded.memory_UD, sent_PD)

    def evolve(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Tensor:
        """[U, D] updated memory alone, as `encode` makes it; `batch` may come without hops.

        A model that has it, and whose rows stand alone, is evaluated many batches at once: memory
        goes ahead, aggregation follows for all of them. A model without memory needs none.
        """
        raise NotImplementedError

    def decode(self, batch: PreparedBatch, seed_SD: Tensor) -> Tensor:
        """Logits [B, 1 + C] of each source with its candidates, the true target first."""
        return self._link_scores(batch, seed_SD)

    def _link_scores(self, batch: PreparedBatch, seeds: Tensor | ops.Deferred) -> Tensor:
        return ops.link_scores(
            seeds,
            self.source_layer.weight,
            self.source_layer.bias,
            self.target_layer.weight,
            self.output_layer.weight,
            self.output_layer.bias,
            batch.root_R,
            batch.root_uses,
            batch.size,
        )

    def forward(self, batch: PreparedBatch, *state: Tensor) -> tuple[Tensor, Encoded]:
        """Logits [B, 1 + C] and what was encoded."""
        encoded = self.encode(batch, *state)
        if type(self).decode is TemporalModel.decode:
            return self._link_scores(batch, encoded.seeds), encoded
        return self.decode(batch, encoded.seed_SD), encoded
