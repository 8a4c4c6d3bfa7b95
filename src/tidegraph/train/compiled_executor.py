"""`CompiledExecutor`: the model's part of a step compiled by `torch.compile`, once per template.

Forward and backward become generated code of fixed shapes; reading and writing the state, clipping
and the optimiser stay as they are. On a CPU the compiler sees the plain operators, which it fuses.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from tidegraph.batches.prepared import PreparedBatch
from tidegraph.batches.templates import Template
from tidegraph.errors import SettingError
from tidegraph.ops import use_backend
from tidegraph.state import StateWrites
from tidegraph.train.step import padded_loss
from tidegraph.train.template_executor import StaticBatch, TemplateExecutor


def check_compiler(device: torch.device) -> None:
    """A CPU's generated code is C++.

    Raises:
        SettingError: this machine has no compiler for it.
    """
    named = os.environ.get("CXX")
    candidates = [named] if named else ["g++", "clang++"]
    if device.type == "cpu" and not any(shutil.which(name) for name in candidates):
        raise SettingError(
            f"executor 'compile' needs a C++ compiler on a CPU, and there is no "
            f"{' or '.join(candidates)} on this machine: install one (for example the package "
            "g++), name it in the environment variable CXX, or take executor 'eager'"
        )


class CompiledExecutor(TemplateExecutor):
    """Runs compiled training steps; arguments as `TemplateExecutor`.

    Raises:
        SettingError: no C++ compiler where one is needed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_compiler(self.state.device)
        self._compiled: dict[Template, Callable[..., Any]] = {}

    def _step(self, batch: PreparedBatch, static: StaticBatch) -> Tensor:
        optimizer = self.step.optimizer
        with self.times("load"):
            static.load(batch, self.transfer)
            if self.rows is None:
                vectors = static.vectors(*self._read_rows(batch))
            else:
                vectors = self.rows.read(static.batch)
        with self.times("forward"):
            loss, changes = self._forward(static, *vectors)
        with self.times("backward"):
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        with self.times("optimizer"):
            if self.clip is not None:
                clip_grad_norm_(self.model.parameters(), self.clip)
            optimizer.step()
        with self.times("write"):
            if self.rows is None:
                self._write_rows(batch, changes)
            else:
                self.rows.write(static.batch, changes)
                self._publish(batch)
        return loss.detach()

    def _forward(self, static: StaticBatch, *vectors: Tensor) -> tuple[Tensor, StateWrites]:
        compiled = self._compiled.get(static.template)
        if compiled is None:
            compiled = self._compiled[static.template] = _compile()
            self.usage.built += 1
        backend = "reference" if self.state.device.type == "cpu" else "auto"
        with use_backend(backend), _many_shapes(len(self.templates.templates)):
            loss, changes = compiled(self.model, static.batch, *vectors)
        return loss, changes


def _compile() -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(
        padded_loss,
        dynamic=False,
        fullgraph=True,
        # PyTorch's own random numbers (`nn.Dropout`), not ones of the generated code.
        options={"fallback_random": True},
    )
    return compiled


def _many_shapes(templates: int) -> Any:
    """Allow one version of the code for each template: the compiler gives up after eight."""
    import torch._dynamo

    return torch._dynamo.config.patch(recompile_limit=4 * templates + 8)
