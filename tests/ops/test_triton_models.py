"""A whole model trains on the Triton kernels as it does on the CPU kernels."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import tiny
from tidegraph.ops import use_backend
from tidegraph.train.adam import Adam
from tidegraph.train.executor import link_loss

triton = pytest.importorskip("triton", reason="Triton is not installed")
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
INTERPRETED = VERSION >= (3, 9) or np.lib.NumpyVersion(np.__version__) < "2.4.0"

STREAM = tiny.random_stream(seed=3, count=9, nodes=4)
MODELS: list[dict[str, Any]] = [
    {"cell": "gru", "message": "last", "layers": 1, "time_code": "trainable"},
    {"cell": "rnn", "message": "mean", "layers": 2, "time_code": "fixed", "dropout": 0.3},
]


def faked(value: Any, mode: FakeTensorMode) -> Any:
    """A batch's dataclasses with every tensor a fake one on "cuda"."""
    if isinstance(value, Tensor):
        return mode.from_tensor(value).to("cuda")
    if isinstance(value, tuple):
        return tuple(faked(item, mode) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return replace(value, **{name: faked(getattr(value, name), mode) for name in names})
    return value


def train_two_steps(backend: str, options: dict[str, Any]) -> tuple[list[float], list[Tensor]]:
    """Losses, then every weight and the memory, after a state with mail exists."""
    model = tiny.tgn(STREAM, **options)
    prep = tiny.preparer(STREAM, model.history, batch_size=3)
    state = tiny.empty_state(model, STREAM.num_nodes)
    optimizer = Adam(model.named_parameters(), learning_rate=0.01)
    losses = []
    with use_backend(backend):
        for number in range(3):
            loss = link_loss(
                tiny.step(model, state, prep.prepare(number, tiny.negatives(prep, number)))
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses, [*(p.detach().clone() for p in model.parameters()), state.memory_ND]


@pytest.mark.skipif(not INTERPRETED, reason=f"Triton {triton.__version__} on NumPy >= 2.4")
@pytest.mark.parametrize("options", MODELS, ids=lambda o: f"{o['cell']}-{o['message']}")
def test_training_equals_the_cpu_kernels(options: dict[str, Any]) -> None:
    losses, tensors = train_two_steps("triton", options)
    expected_losses, expected = train_two_steps("cpu", options)
    assert losses == pytest.approx(expected_losses, rel=1e-10)
    for found, want in zip(tensors, expected, strict=True):
        assert torch.allclose(found, want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("options", MODELS, ids=lambda o: f"{o['cell']}-{o['message']}")
def test_a_step_on_cuda_never_mixes_devices(options: dict[str, Any]) -> None:
    """PyTorch's fake tensors say "cuda" and hold nothing: whatever would meet a tensor left on the
    CPU fails, as on a GPU. Kernels are not run: that they were asked for shows the choice."""
    from tidegraph.ops.triton_backend import attention, memory

    model = tiny.tgn(STREAM, **options)
    prep = tiny.preparer(STREAM, model.history, batch_size=3)
    batch = prep.prepare(1, tiny.negatives(prep, 1))
    started: list[str] = []

    def record(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        assert {x.device.type for x in arguments if isinstance(x, Tensor)} == {"cuda"}
        started.append(kernel.fn.__name__)

    with (
        FakeTensorMode(allow_non_fake_inputs=False) as mode,
        mock.patch.object(attention, "launch", record),
        mock.patch.object(memory, "launch", record),
    ):
        on_cuda = {
            name: torch.nn.Parameter(mode.from_tensor(p.detach()).to("cuda"))
            for name, p in model.named_parameters()
        }
        fake = faked(batch, mode)
        vectors = torch.empty(len(batch.node_U), model.memory_width, dtype=torch.float64)
        logit_BC, encoded = torch.func.functional_call(
            model, on_cuda, (fake, vectors.to("cuda"), vectors.to("cuda"))
        )
    assert logit_BC.device.type == "cuda"
    assert encoded.memory_UD.device.type == "cuda"
    attentions = ["attention_forward"] * options["layers"]
    assert started == ["build_inputs", f"{options['cell']}_forward", *attentions]
