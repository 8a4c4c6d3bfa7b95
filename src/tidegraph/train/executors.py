"""Which executor trains: the one place where the setting `executor` is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch

from tidegraph.batches.prepared import PreparedBatch
from tidegraph.batches.template_sets import TemplateSet
from tidegraph.errors import SettingError
from tidegraph.models.base import TemporalModel
from tidegraph.state import NodeState
from tidegraph.train.adam import Adam
from tidegraph.train.executor import EagerExecutor
from tidegraph.train.settings import TrainSettings
from tidegraph.train.stages import StageTimes
from tidegraph.train.template_executor import TemplateExecutor
from tidegraph.train.transfer import Transfer

_T = TypeVar("_T")
SAMPLE = 512
"""Batches that templates are chosen from, at most."""

_COMPILED = 4  # templates: each is compiled for most of a minute on a CPU


def executor_name(settings: TrainSettings) -> str:
    """One of "eager", "compile" and "cudagraph": what the settings come to on their device.

    Raises:
        SettingError: CUDA graphs are asked for, and steps do not run on CUDA; or fixed shapes with
            a staleness: a recorded step reads the newest version.

    >>> executor_name(TrainSettings(executor="auto"))
    'eager'
    """
    on_cuda = torch.device(settings.device).type == "cuda"
    if settings.staleness:
        if settings.executor in ("compile", "cudagraph"):
            raise SettingError(
                f"staleness={settings.staleness} with executor={settings.executor!r}: steps of "
                "fixed shapes read the newest state; take executor='eager', or staleness=0"
            )
        return "eager"
    if settings.executor == "auto":
        return "cudagraph" if on_cuda else "eager"
    if settings.executor == "cudagraph" and not on_cuda:
        raise SettingError(
            f"executor='cudagraph' records steps of a CUDA device, and device={settings.device!r}: "
            "take device='cuda', or executor='eager' or 'compile'"
        )
    return settings.executor


def spread(items: Sequence[_T], most: int = SAMPLE) -> list[_T]:
    """At most `most` of the items, evenly, the first and the last among them.

    >>> spread(range(10), 4)
    [0, 3, 6, 9]
    """
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def make_executor(
    settings: TrainSettings,
    model: TemporalModel,
    state: NodeState,
    optimizer: Adam,
    sample: Iterable[PreparedBatch],
    times: StageTimes | None = None,
    transfer: Transfer | None = None,
) -> EagerExecutor:
    """The executor that the settings ask for.

    Args:
        sample: batches such as will be trained on, to choose templates from; not looked at where
            none are needed.
        settings, model, state, optimizer, times, transfer: see `EagerExecutor`.

    Raises:
        SettingError: an executor that this machine cannot run.
    """
    name = executor_name(settings)
    if name == "eager":
        return EagerExecutor(model, state, optimizer, settings.clip, times, transfer)
    # The compiler's and the recorder's code is loaded by those who use it.
    from tidegraph.train.compiled_executor import CompiledExecutor
    from tidegraph.train.graph_executor import GraphExecutor

    kind = CompiledExecutor if name == "compile" else GraphExecutor
    templates = TemplateSet.fit(
        sample, num_nodes=state.num_nodes, most=_COMPILED if name == "compile" else 12
    )
    return kind(model, state, optimizer, templates, settings.clip, times, transfer)


def about_executor(executor: TemplateExecutor) -> str:
    """One line on templates and what became of them, for whoever watches."""
    usage, templates = executor.usage, executor.templates.templates
    return (
        f"templates {len(templates)}, {100 * usage.waste:.1f}% of rows padding; "
        f"{usage.batches} batches in them, {usage.misses} fitted none; "
        f"{usage.built} built, {usage.replays} replays"
    )
