"""What the executors of fixed shapes have in common: static buffers, counts, the eager way out.

A batch is padded straight into the buffers of its template, which stay where they are for good; so
a step that refers to them can be compiled or captured. A batch that fits no template runs eagerly,
and is counted.

Shape legend: U unique nodes, E rows of features, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tidegraph.batches.padding import pad
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.batches.template_sets import TemplateSet
from tidegraph.batches.templates import Template, sizes_of
from tidegraph.errors import TidegraphError
from tidegraph.models.base import TemporalModel
from tidegraph.state import HostState, NodeState, RingPush, RowWrite, ScratchRows, StateWrites
from tidegraph.train.adam import Adam
from tidegraph.train.executor import EagerExecutor, _in_precision
from tidegraph.train.loaded import Loaded
from tidegraph.train.stages import StageTimes
from tidegraph.train.step import TrainingStep
from tidegraph.train.transfer import Transfer


@dataclass
class TemplateUsage:
    """What became of the batches so far.

    Attributes:
        batches: executed in a template.
        misses: executed eagerly, since they fit none.
        real_rows, padding_rows: of those in a template.
        built: steps compiled or captured.
        replays: steps that were replayed rather than run.
    """

    batches: int = 0
    misses: int = 0
    real_rows: int = 0
    padding_rows: int = 0
    built: int = 0
    replays: int = 0

    @property
    def waste(self) -> float:
        """Padding rows per real row."""
        return self.padding_rows / max(self.real_rows, 1)

    def figures(self) -> dict[str, float]:
        """For metrics and reports."""
        return {**vars(self), "waste": self.waste}


class StaticBatch:
    """The buffers of one template on one device, and views of them as a batch.

    Args:
        template: the shapes.
        device: where steps run.
    """

    def __init__(self, template: Template, device: torch.device) -> None:
        self.template, self.device = template, device
        self.block = torch.zeros(template.bytes, dtype=torch.uint8, device=device)
        self.batch = template.on(self.block)
        form, sizes = template.form, template.sizes
        if form.deferred:
            self.batch = replace(
                self.batch,
                features=torch.zeros(
                    sizes.features, form.feature_width, dtype=form.feature_dtype, device=device
                ),
                node_features=torch.zeros(
                    sizes.nodes, form.node_width, dtype=form.node_dtype, device=device
                )
                if form.node_width
                else None,
            )
        self._vectors: tuple[Tensor, ...] | None = None

    def load(self, batch: PreparedBatch, transfer: Transfer | None) -> None:
        """Put a batch, which is on the host, into the buffers.

        On a GPU it crosses as one pinned block, while the host goes on.
        """
        template = self.template
        if self.device.type == "cpu":
            padded = pad(batch, template, self.block)
        else:
            pinned = torch.empty(
                template.bytes, dtype=torch.uint8, pin_memory=self.device.type == "cuda"
            )
            padded = pad(batch, template, pinned)
            self.block.copy_(pinned, non_blocking=True)
        if template.form.deferred:
            self._fetch(batch, transfer)
        elif template.form.table_rows is not None and self.batch.features is not padded.features:
            self.batch = replace(self.batch, features=padded.features)

    def _fetch(self, batch: PreparedBatch, transfer: Transfer | None) -> None:
        if transfer is None:
            raise TidegraphError(
                f"batch {batch.number} was prepared without its features: give the executor the "
                "Transfer that fetches them, or prepare with gather=True"
            )
        fetched = transfer.fetch(batch)
        for rows, into in zip(
            fetched, (self.batch.features, self.batch.node_features), strict=True
        ):
            if rows is not None and into is not None:
                into[: len(rows)].copy_(rows)

    def vectors(self, *columns: Tensor) -> tuple[Tensor, ...]:
        """Static copies of a batch's rows of the state; padding rows are zero."""
        if self._vectors is None:
            nodes = self.template.sizes.nodes
            self._vectors = tuple(rows.new_zeros(nodes, *rows.shape[1:]) for rows in columns)
        for rows, into in zip(columns, self._vectors, strict=True):
            into[: len(rows)].copy_(rows)
            into[len(rows) :].zero_()
        return self._vectors


class TemplateExecutor(EagerExecutor):
    """Trains batch by batch in the shapes of templates; everything else is eager.

    Subclasses say in `_step` how a step on static buffers runs.

    Args:
        model, state, optimizer, clip, times, transfer: see `EagerExecutor`; training needs an
            optimizer.
        templates: the shapes.
    """

    def __init__(
        self,
        model: TemporalModel,
        state: NodeState,
        optimizer: Adam,
        templates: TemplateSet,
        clip: float | None = None,
        times: StageTimes | None = None,
        transfer: Transfer | None = None,
    ) -> None:
        super().__init__(model, state, optimizer, clip, times, transfer)
        self.templates, self.usage = templates, TemplateUsage()
        # Vectors on the device are read and written by the step itself; others are copied.
        self.rows = ScratchRows(state) if type(state) is NodeState else None
        self.step = TrainingStep(model, optimizer, clip)
        self._static: dict[Template, StaticBatch] = {}

    def train(self, batch: PreparedBatch | Loaded) -> float:
        """One training step; returns the batch's mean loss over positives and negatives."""
        return float(self.submit(batch.host if isinstance(batch, Loaded) else batch))

    @_in_precision
    def submit(self, batch: PreparedBatch) -> Tensor:
        """`train` without waiting for the device: the loss as a tensor, until the next step."""
        template = self.templates.choose(batch)
        if template is None or template.scratch != self.state.num_nodes:
            self.usage.misses += 1
            return torch.tensor(super().train(batch))
        self.state.check_version(batch)
        self.staleness[0] += 1  # `executor_name` refuses any other
        static = self._static.get(template)
        if static is None:
            static = self._static[template] = StaticBatch(template, self.state.device)
        sizes = sizes_of(batch)
        features = 0 if template.form.table_rows is not None else sizes.features
        real = sizes.rows - sizes.features + features
        self.usage.batches += 1
        self.usage.real_rows += real
        self.usage.padding_rows += template.sizes.rows - real
        self._seed(batch)
        return self._step(batch, static)

    def _step(self, batch: PreparedBatch, static: StaticBatch) -> Tensor:
        raise NotImplementedError

    def _read_rows(self, batch: PreparedBatch) -> tuple[Tensor, ...]:
        """Rows of the state that the step does not read itself; a state on the host is asked for
        the nodes' numbers there, another for those on its device."""
        if not isinstance(self.state, HostState):
            batch = replace(batch, node_U=batch.node_U.to(self.state.device))
        return tuple(self.state.read(batch))

    def _publish(self, batch: PreparedBatch) -> None:
        """The step has written the state itself: only its next version is announced."""
        self.state.write(replace(batch, writes=None), ())

    def _write_rows(self, batch: PreparedBatch, changes: StateWrites) -> None:
        """Write (and publish) what a step made of rows that it did not read itself."""
        count = 0 if batch.writes is None else len(batch.writes.node_W)
        self.state.write(batch, tuple(_first_rows(change, count) for change in changes))


def _first_rows(change: RowWrite | RingPush, count: int) -> RowWrite | RingPush:
    """The real rows of a padded batch's write."""
    if isinstance(change, RingPush):
        values = {name: value_W[:count] for name, value_W in change.values.items()}
        return replace(change, node_W=change.node_W[:count], values=values)
    slot_W = None if change.slot_W is None else change.slot_W[:count]
    return replace(
        change, node_W=change.node_W[:count], value_W=change.value_W[:count], slot_W=slot_W
    )
