"""Tiny graphs for tests: streams small enough to draw, and everything needed to run a step on them.

Feature column 0 of a `stream` is the event's id + 1, so a test can tell which event a row of any
feature table belongs to, wherever preparation has moved it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from tidegraph.batches import BatchPlan, History, Hop, PreparedBatch, Preparer, Uses
from tidegraph.events import Events
from tidegraph.features import FeatureStore
from tidegraph.history import TemporalIndex
from tidegraph.models import TGN, TemporalModel, build_model, model_class, model_settings
from tidegraph.models.base import TrainingEvents
from tidegraph.state import NodeState


@dataclass(frozen=True, eq=False)
class Stream:
    """Events as plain lists, the way the oracles want them."""

    source: list[int]
    target: list[int]
    time: list[float]
    num_nodes: int
    feature_width: int = 2
    node_feature_width: int = 0
    float_time: bool = False

    def __len__(self) -> int:
        return len(self.time)

    @property
    def features(self) -> np.ndarray | None:
        """[E, F]: column 0 is id + 1, the others are reproducible noise."""
        if not self.feature_width:
            return None
        noise = np.random.default_rng(5).normal(size=(len(self), self.feature_width))
        noise[:, 0] = np.arange(len(self)) + 1
        return noise.astype(np.float32)

    @property
    def node_features(self) -> np.ndarray | None:
        """[N, G] reproducible noise."""
        if not self.node_feature_width:
            return None
        noise = np.random.default_rng(6).normal(size=(self.num_nodes, self.node_feature_width))
        return noise.astype(np.float32)

    def events(self) -> Events:
        """The same as `Events`."""
        return Events.from_arrays(
            self.source,
            self.target,
            np.asarray(self.time, np.float64 if self.float_time else np.int64),
            features=self.features,
            node_features=self.node_features,
            num_nodes=self.num_nodes,
            bipartite=False,
        )


@st.composite
def streams(draw: st.DrawFn, most_events: int = 24) -> Stream:
    """Few nodes and few distinct times: ties, repeats and self-loops are the rule."""
    nodes = draw(st.integers(1, 6))
    count = draw(st.integers(1, most_events))
    node = st.integers(0, nodes - 1)
    ends = draw(st.lists(st.tuples(node, node), min_size=count, max_size=count))
    times = draw(st.lists(st.integers(-3, 12), min_size=count, max_size=count))
    float_time = draw(st.booleans())
    scale = 0.5 if float_time else 1
    return Stream(
        source=[u for u, _ in ends],
        target=[v for _, v in ends],
        time=sorted(t * scale for t in times),
        num_nodes=nodes,
        float_time=float_time,
    )


def random_stream(seed: int, count: int, nodes: int = 6, **kwargs: Any) -> Stream:
    """A reproducible stream with ties, repeats and self-loops."""
    rng = np.random.default_rng(seed)
    return Stream(
        source=rng.integers(0, nodes, count).tolist(),
        target=rng.integers(0, nodes, count).tolist(),
        time=np.sort(rng.integers(0, 2 * count, count)).tolist(),
        num_nodes=nodes,
        **kwargs,
    )


def preparer(
    stream: Stream | Events,
    history: History,
    batch_size: int,
    *,
    kept: Sequence[int] | None = None,
    dedup: bool = True,
    compact: bool = False,
    seed: int = 0,
    staleness: int = 0,
) -> Preparer:
    """One phase over the whole stream, or over the `kept` event ids only."""
    events = stream.events() if isinstance(stream, Stream) else stream
    keep, ids = None, np.arange(len(events))
    if kept is not None:
        ids = np.asarray(kept, np.int64)
        keep = np.isin(np.arange(len(events)), ids)
    return Preparer(
        events=events,
        index=TemporalIndex.from_events(events, keep=keep),
        plan=BatchPlan.build([("train", ids, batch_size)], {"train": staleness}),
        history=history,
        features=FeatureStore.of(events.features),
        node_features=FeatureStore.of(events.node_features),
        seed=seed,
        dedup=dedup,
        compact=compact,
    )


def negatives(prep: Preparer, number: int, count: int = 1) -> np.ndarray:
    """[B, count] int32, reproducible, any node."""
    rng = np.random.default_rng((7, number))
    shape = (len(prep.plan.events(number)), count)
    return rng.integers(0, prep.events.schema.num_nodes, shape).astype(np.int32)


def tgn(stream: Stream, seed: int = 0, **options: Any) -> TGN:
    """A small TGN in float64, its weights large enough that everything in it matters."""
    sizes: dict[str, Any] = {
        "memory": 4, "time": 3, "embedding": 6, "neighbors": 3, "dropout": 0.0,
        "time_code": "trainable",
    }  # fmt: skip
    torch.manual_seed(seed)
    model = TGN(stream.events().schema, **{**sizes, **options}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
        model.time_code.bias.uniform_(-1, 1)
    return model


def small_model(name: str, stream: Stream, seed: int = 0, **options: Any) -> TemporalModel:
    """A small model in float64, its weights large enough that everything in it matters."""
    sizes = {"memory": 4, "time": 3, "embedding": 6, "neighbors": 3, "dropout": 0.0,
             "time_code": "trainable", **options}  # fmt: skip
    known = {setting.name for setting in model_settings(model_class(name))}
    model = build_model(
        name, stream.events().schema, seed, **{k: v for k, v in sizes.items() if k in known}
    ).double()
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(torch.empty_like(parameter).uniform_(-0.2, 0.2))
    events = stream.events()
    model.fit_statistics(TrainingEvents(events.source, events.target, events.time))
    return model


def empty_state(model: TemporalModel, num_nodes: int) -> NodeState:
    """An empty state in the precision of the model's parameters."""
    state = NodeState(num_nodes, model.columns)
    kind = next(model.parameters()).dtype
    for name, table in state.tables.items():
        if table.is_floating_point():
            state.tables[name] = table.to(kind)
    return state


def in_precision(batch: PreparedBatch, model: TemporalModel) -> PreparedBatch:
    """The batch with node features in the precision of the model's parameters."""
    if batch.node_features is None:
        return batch
    kind = next(model.parameters()).dtype
    return replace(batch, node_features=batch.node_features.to(kind))


def step(model: TemporalModel, state: NodeState, batch: PreparedBatch) -> torch.Tensor:
    """Read, score, write; returns the logits [B, 1 + C] with their graph."""
    batch = in_precision(batch, model)
    logit_BC, encoded = model(batch, *state.read(batch))
    state.write(batch, model.state_writes(batch, encoded))
    return logit_BC


def scores(
    model: TemporalModel, prep: Preparer, negative: Sequence[np.ndarray] | None = None
) -> list[torch.Tensor]:
    """Logits of every batch in order, from an empty state, without gradients."""
    state = empty_state(model, prep.events.schema.num_nodes)
    model.eval()
    result = []
    with torch.no_grad():
        for number in range(len(prep.plan)):
            drawn = negatives(prep, number) if negative is None else negative[number]
            result.append(step(model, state, prep.prepare(number, drawn)))
    return result


def uses_of(index: np.ndarray, rows: int) -> Uses:
    """The transpose of an index, by brute force; negative entries are left out."""
    flat = index.reshape(-1).tolist()
    positions = [[p for p, value in enumerate(flat) if value == row] for row in range(rows)]
    indptr = np.cumsum([0, *map(len, positions)])
    return Uses(
        torch.tensor(indptr, dtype=torch.int32),
        torch.tensor([p for part in positions for p in part], dtype=torch.int32),
    )


def random_hop(
    seed: int,
    counts: Sequence[int],
    K: int,
    rows: int,
    events: int,
    largest_delta: float = 10.0,
) -> Hop:
    """Random neighbourhoods with the given numbers of neighbours; padding holds zeros."""
    rng = np.random.default_rng(seed)
    S = len(counts)
    used_SK = np.arange(K) < np.asarray(counts)[:, None]
    self_S = rng.integers(0, rows, S).astype(np.int32)
    neighbor_SK = rng.integers(0, rows, (S, K)).astype(np.int32)
    event_SK = np.where(used_SK, rng.integers(0, events, (S, K)), 0).astype(np.int32)
    delta_SK = np.where(used_SK, rng.uniform(0, largest_delta, (S, K)), 0).astype(np.float32)
    return Hop(
        self_S=torch.from_numpy(self_S),
        neighbor_SK=torch.from_numpy(np.where(used_SK, neighbor_SK, 0).astype(np.int32)),
        event_SK=torch.from_numpy(event_SK),
        delta_SK=torch.from_numpy(delta_SK),
        count_S=torch.tensor(counts, dtype=torch.int32),
        self_uses=uses_of(self_S, rows),
        neighbor_uses=uses_of(np.where(used_SK, neighbor_SK, -1), rows),
    )


def assert_equal_batches(first: object, second: object) -> None:
    """All fields, recursively, bit for bit."""
    assert type(first) is type(second)
    if isinstance(first, Tensor):
        assert isinstance(second, Tensor)
        assert first.dtype == second.dtype
        assert torch.equal(first, second)
    elif is_dataclass(first):
        for field in fields(first):
            assert_equal_batches(getattr(first, field.name), getattr(second, field.name))
    elif isinstance(first, tuple):
        assert isinstance(second, tuple)
        for one, other in zip(first, second, strict=True):
            assert_equal_batches(one, other)
    else:
        assert first == second
