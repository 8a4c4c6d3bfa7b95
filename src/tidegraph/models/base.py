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

import torch
from torch import Tensor, nn

from tidegraph import ops
from tidegraph.batches.prepare import History
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.errors import SettingError
from tidegraph.events.core import Schema
from tidegraph.keys import Purpose, make_key


@dataclass(frozen=True)
class Encoded:
    """What a model makes of a batch.

    Attributes:
        seed_SD: embeddings of the roots' distinct (node, time) seeds.
        memory_UD: updated memory of the unique nodes, to be persisted for the endpoints; None for
            a model without memory.
    """

    seed_SD: Tensor
    memory_UD: Tensor | None = None


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
        settings: the constructor's arguments (without `schema`), defaults filled in; what a
            checkpoint needs to build the model again.
        precision: "fp32", or "bf16" for matrix products of rounded factors.
    """

    name: ClassVar[str] = ""
    settings: dict[str, Any]
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
        if embedding < 1:
            raise SettingError(f"embedding={embedding}: expected 1 or more")
        self.schema = schema
        self.history = History()
        self.memory_width = 0
        self.embedding_width = embedding
        self.source_layer = nn.Linear(embedding, embedding)
        self.target_layer = nn.Linear(embedding, embedding, bias=False)
        self.output_layer = nn.Linear(embedding, 1)

    def encode(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Encoded:
        """Embed the batch's seeds from the vectors of its unique nodes."""
        raise NotImplementedError

    def decode(self, batch: PreparedBatch, seed_SD: Tensor) -> Tensor:
        """Logits [B, 1 + C] of each source with its candidates, the true target first."""
        return ops.link_scores(
            seed_SD,
            self.source_layer.weight,
            self.source_layer.bias,
            self.target_layer.weight,
            self.output_layer.weight,
            self.output_layer.bias,
            batch.root_R,
            batch.root_uses,
            batch.size,
        )

    def forward(
        self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor
    ) -> tuple[Tensor, Encoded]:
        """Logits [B, 1 + C] and what was encoded."""
        encoded = self.encode(batch, memory_UD, mail_UD)
        return self.decode(batch, encoded.seed_SD), encoded
