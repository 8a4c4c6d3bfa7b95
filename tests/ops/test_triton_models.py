"""A whole model trains on the Triton kernels as it does on the CPU kernels."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

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
def test_a_step_on_a_device_touches_no_tensor_elsewhere(options: dict[str, Any]) -> None:
    """PyTorch's "meta" device holds nothing and refuses to meet the CPU, as a GPU would: a step
    through it, backward and state included, shows a tensor left behind. Kernels are not run; that
    they were asked for, with tensors of that device alone, is seen."""
    from tidegraph.ops.triton_backend import attention, memory, rows

    model = tiny.tgn(STREAM, **options)
    prep = tiny.preparer(STREAM, model.history, batch_size=3)
    batch = prep.prepare(0, tiny.negatives(prep, 0)).to("meta")
    state = tiny.empty_state(model, STREAM.num_nodes).to("meta")
    model.to("meta")
    started: list[str] = []

    def record(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        assert {x.device.type for x in arguments if isinstance(x, Tensor)} == {"meta"}
        started.append(kernel.fn.__name__)

    with (
        use_backend("triton"),
        mock.patch.object(attention, "launch", record),
        mock.patch.object(memory, "launch", record),
        mock.patch.object(rows, "launch", record),
    ):
        link_loss(tiny.step(model, state, batch)).backward()
    layers, cell = options["layers"], options["cell"]
    assert [name for name in started if name.endswith("forward")] == [
        f"{cell}_forward", *["attention_forward"] * layers
    ]  # fmt: skip
    assert (
        started.count("attention_backward") == started.count("attention_backward_table") == layers
    )
    assert started.count("gather_sum") == layers + 1  # each hop's own rows, and the roots
    assert {"build_inputs", f"{cell}_backward"} <= set(started)
    assert all(p.grad.device.type == "meta" for p in model.parameters() if p.requires_grad)
