"""The step that is captured waits for no device and has no shape that depends on values.

PyTorch's fake tensors have shapes but no values: whatever would ask for one (`.item()`, `nonzero`,
a boolean mask as an index) raises. The "meta" device has no memory either and refuses to meet the
CPU, as a GPU would, so it shows a tensor that was copied to the host or left there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

import every
import tiny
from tidegraph.batches import PreparedBatch, TemplateSet
from tidegraph.models import MODELS as MODELS_BY_NAME
from tidegraph.models import TGN, TemporalModel
from tidegraph.models.base import Encoded
from tidegraph.ops import use_backend
from tidegraph.state import NodeState, ScratchRows
from tidegraph.train.adam import Adam
from tidegraph.train.step import TrainingStep
from tidegraph.train.template_executor import StaticBatch

STREAM = tiny.random_stream(seed=5, count=12, nodes=6, node_feature_width=2)
MODELS: list[dict[str, Any]] = [
    {"layers": 1, "message": "last", "cell": "gru", "dropout": 0.2, "time_code": "fixed"},
    {"layers": 2, "message": "mean", "cell": "rnn", "dropout": 0.2, "time_code": "trainable"},
]


@contextmanager
def recorded_kernels() -> Iterator[list[str]]:
    """The Triton operators, their launches written down instead of started."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from tidegraph.ops.triton_backend import attention, memory, rows, time_code

    started: list[str] = []

    def record(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        started.append(kernel.fn.__name__)

    with ExitStack() as stack:
        for module in (attention, memory, rows, time_code):
            stack.enter_context(mock.patch.object(module, "launch", record))
        yield started


@contextmanager
def backend(name: str) -> Iterator[list[str]]:
    with use_backend(name):
        if name == "triton":
            with recorded_kernels() as started:
                yield started
        else:
            yield []


def template_of(options: dict[str, Any]) -> Any:
    """The one template of all batches, whose features travel with them as to a GPU."""
    model = tiny.tgn(STREAM, **options)
    prep = tiny.preparer(STREAM, model.history, batch_size=4, compact=True)
    batches = [prep.prepare(n, tiny.negatives(prep, n)) for n in range(len(prep.plan))]
    return TemplateSet.fit(batches, num_nodes=STREAM.num_nodes, most=1).templates[0]


def whole_step(
    model: TemporalModel, template: Any, device: str, clip: float | None = 0.5
) -> Callable[[], Tensor]:
    """The step on static buffers of a template; nothing has been computed yet."""
    model.train()
    if device == "meta":
        model.to(device)
    state = NodeState(STREAM.num_nodes, model.columns).to(device)
    optimizer = Adam(model.named_parameters(), learning_rate=0.01)
    optimizer.make_capturable()
    batch: PreparedBatch = StaticBatch(template, torch.device(device)).batch
    step, rows = TrainingStep(model, optimizer, clip), ScratchRows(state)
    return lambda: step.on_state(batch, rows)


def small_tgn(options: dict[str, Any]) -> TGN:
    return tiny.tgn(STREAM, **options).float()


def without_values(model: TemporalModel, mode: FakeTensorMode) -> TemporalModel:
    """The model with fake parameters and buffers."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else mode.from_tensor(buffer)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                fake = mode.from_tensor(parameter.detach())
                module._parameters[name] = torch.nn.Parameter(fake, parameter.requires_grad)
    return model


@pytest.mark.parametrize("name", ["reference", "triton"])
@pytest.mark.parametrize("options", MODELS, ids=lambda o: f"{o['layers']}-{o['message']}")
def test_the_whole_step_runs_without_values(options: dict[str, Any], name: str) -> None:
    """State read, forward, backward, clipping, Adam and state write, on fake tensors."""
    template = template_of(options)
    mode = FakeTensorMode()
    model = without_values(small_tgn(options), mode)
    with backend(name) as started, mode:
        loss = whole_step(model, template, "cpu")()
        assert type(loss) is FakeTensor
        assert loss.shape == ()
    if name == "triton":
        assert "build_inputs" in started
        assert "attention_backward" in started


@pytest.mark.parametrize("name", ["reference", "triton"])
@pytest.mark.parametrize("options", MODELS, ids=lambda o: f"{o['layers']}-{o['message']}")
def test_nothing_of_the_step_meets_the_host(options: dict[str, Any], name: str) -> None:
    """The same on a device without memory, up to Adam's kernel, which that device lacks."""
    template = template_of(options)
    with backend(name), mock.patch.object(Adam, "step"):
        loss = whole_step(small_tgn(options), template, "meta")()
        assert loss.device.type == "meta"


PADDED = sorted(set(MODELS_BY_NAME) - {"apan"})  # APAN delivers mail, which no template knows


@pytest.mark.parametrize("name", PADDED)
def test_the_step_of_any_model_runs_without_values(name: str) -> None:
    # GraphMixer lists encounters where nodes have features, which no template knows either.
    stream = replace(STREAM, node_feature_width=0) if name == "graphmixer" else STREAM
    model = every.small(name, stream, **({"dropout": 0.2} if every.has(name, "dropout") else {}))
    prep = tiny.preparer(stream, model.history, batch_size=4, compact=True)
    batches = [prep.prepare(n, tiny.negatives(prep, n)) for n in range(len(prep.plan))]
    template = TemplateSet.fit(batches, num_nodes=STREAM.num_nodes, most=1).templates[0]
    mode = FakeTensorMode()
    without_values(model.float(), mode)
    with use_backend("reference"), mode:
        assert type(whole_step(model, template, "cpu")()) is FakeTensor


# ---------------------------------------------------------------- the tests above can fail


class Mutated(TGN):
    """A TGN that does one forbidden thing."""

    forbidden: Callable[[PreparedBatch, Tensor], Any]

    def encode(self, batch: PreparedBatch, memory_UD: Tensor, mail_UD: Tensor) -> Encoded:
        encoded = super().encode(batch, memory_UD, mail_UD)
        type(self).forbidden(batch, encoded.seed_SD)
        return encoded


FORBIDDEN: dict[str, Callable[[PreparedBatch, Tensor], Any]] = {
    "item": lambda batch, seed_SD: seed_SD.detach().sum().item(),
    "float": lambda batch, seed_SD: float(seed_SD.detach().sum()),
    "int of a count": lambda batch, seed_SD: int(batch.padding.event_count),  # type: ignore[union-attr]
    "truth of a tensor": lambda batch, seed_SD: bool((seed_SD > 0).any()),
    "tolist": lambda batch, seed_SD: batch.node_U.tolist(),
    "nonzero": lambda batch, seed_SD: batch.hops[0].count_S.nonzero(),
    "mask as an index": lambda batch, seed_SD: seed_SD[batch.hops[-1].count_S > 0],
    "unique": lambda batch, seed_SD: torch.unique(batch.node_U),
    "repeat": lambda batch, seed_SD: torch.repeat_interleave(batch.hops[0].count_S.long()),
    "numpy": lambda batch, seed_SD: seed_SD.detach().numpy(),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_step_that_waits_or_has_shapes_of_values_is_found(what: str) -> None:
    options = MODELS[0]
    template = template_of(options)
    model = small_tgn(options)
    model.__class__ = type("Forbidden", (Mutated,), {"forbidden": staticmethod(FORBIDDEN[what])})
    kinds = (DataDependentOutputException, DynamicOutputShapeException, RuntimeError)
    message = "numpy" if what == "numpy" else "aten"
    mode = FakeTensorMode()
    without_values(model, mode)
    with use_backend("reference"), mode:
        step = whole_step(model, template, "cpu")
        with pytest.raises(kinds, match=message):
            step()


def test_a_copy_to_the_host_is_found() -> None:
    options = MODELS[0]
    model = small_tgn(options)
    model.__class__ = type(
        "Forbidden", (Mutated,), {"forbidden": staticmethod(lambda batch, seed_SD: seed_SD.cpu())}
    )
    with use_backend("reference"), pytest.raises(NotImplementedError, match="meta"):
        whole_step(model, template_of(options), "meta")()


def test_a_key_that_is_a_number_would_be_baked_in() -> None:
    """Static batches have keys, counts and versions in tensors, or not at all."""
    batch = StaticBatch(template_of(MODELS[0]), torch.device("cpu")).batch
    assert isinstance(batch.key, Tensor)
    assert batch.padding is not None
    assert (batch.number, batch.version, batch.padding.size) == (0, 0, 0)
    assert replace(batch).event_E is not None
