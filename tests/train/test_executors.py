"""Executors of fixed shapes train as the eager one does, whatever template a batch is in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tiny
import training
from tidegraph.batches import PreparedBatch, TemplateSet
from tidegraph.errors import SettingError
from tidegraph.models import TGN
from tidegraph.state import NodeState, VersionError
from tidegraph.train import EagerExecutor, TrainSettings
from tidegraph.train.adam import Adam
from tidegraph.train.compiled_executor import CompiledExecutor, check_compiler
from tidegraph.train.executors import executor_name, make_executor, spread
from tidegraph.train.graph_executor import GraphExecutor
from tidegraph.train.template_executor import TemplateExecutor

STREAM = tiny.random_stream(seed=4, count=61, nodes=9, node_feature_width=2)
MODELS: list[dict[str, Any]] = [
    {"layers": 1, "message": "last", "cell": "gru", "dropout": 0.3, "time_code": "fixed"},
    {"layers": 2, "message": "mean", "cell": "rnn", "dropout": 0.3, "time_code": "trainable"},
]


def small_tgn(**options: Any) -> TGN:
    """In float32, as trained."""
    return tiny.tgn(STREAM, **options).float()


def batches_of(model: TGN, size: int = 4) -> list[PreparedBatch]:
    prep = tiny.preparer(STREAM, model.history, batch_size=size)
    return [
        tiny.in_precision(prep.prepare(n, tiny.negatives(prep, n)), model)
        for n in range(len(prep.plan))
    ]


def trained(
    kind: str, options: dict[str, Any], dtype: torch.dtype, clip: float = 0.5
) -> tuple[Any, ...]:
    """Executor, losses, then weights and state, after two epochs over the stream."""
    model = tiny.tgn(STREAM, **options).to(dtype).train()
    batches = batches_of(model)
    state = tiny.empty_state(model, STREAM.num_nodes)
    optimizer = Adam(model.named_parameters(), learning_rate=0.01)
    if kind == "eager":
        executor: EagerExecutor = EagerExecutor(model, state, optimizer, clip)
    else:
        templates = TemplateSet.fit(batches, num_nodes=STREAM.num_nodes, most=3, waste=0.0)
        assert len(templates.templates) >= 2
        if kind == "graph":
            executor = GraphExecutor(model, state, optimizer, templates, clip, record=False)
        else:
            executor = CompiledExecutor(model, state, optimizer, templates, clip)
    losses = []
    for epoch in range(2):
        state.reset()
        optimizer.learning_rate = 0.01 / (1 + epoch)
        losses += [executor.train(replace(b, key=b.key ^ epoch)) for b in batches]
    return executor, losses, [p.detach().clone() for p in model.parameters()], state


def check_equal(kind: str, options: dict[str, Any], dtype: torch.dtype, most: float) -> Any:
    """Losses, memory, and in float64 weights as well.

    In float32 Adam divides gradients that are nothing but rounding by their own size, so single
    weights move by a share of the learning rate, whoever computes them.
    """
    _, losses, weights, state = trained("eager", options, dtype)
    executor, found, found_weights, found_state = trained(kind, options, dtype)
    assert executor.usage.batches == len(found) > 20
    assert executor.usage.misses == 0
    assert len(executor._static) >= 2  # the templates took turns
    assert found == pytest.approx(losses, abs=most)
    assert torch.allclose(found_state.memory_ND, state.memory_ND, rtol=0, atol=most)
    assert found_state.version == state.version
    if dtype == torch.float64:
        for a, b in zip(found_weights, weights, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=most)
    return executor


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-6), (torch.float64, 1e-9)])
@pytest.mark.parametrize("options", MODELS, ids=lambda o: f"{o['layers']}-{o['message']}")
def test_the_step_that_is_captured_equals_eager_with_dropout(
    options: dict[str, Any], dtype: torch.dtype, most: float
) -> None:
    """Static buffers, tensors for keys, counts and rate: all that a replay does, as calls."""
    check_equal("graph", options, dtype, most)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
@pytest.mark.parametrize("options", MODELS, ids=lambda o: f"{o['layers']}-{o['message']}")
def test_the_compiled_step_equals_eager(
    options: dict[str, Any], dtype: torch.dtype, most: float
) -> None:
    executor = check_equal("compile", options, dtype, most)
    assert executor.usage.built == len(executor._static)


def graph_executor(batches: list[PreparedBatch], model: TGN) -> GraphExecutor:
    state = NodeState(STREAM.num_nodes, model.memory_width)
    optimizer = Adam(model.named_parameters(), learning_rate=0.01)
    templates = TemplateSet.fit(batches, num_nodes=STREAM.num_nodes, most=1)
    return GraphExecutor(model, state, optimizer, templates, record=False)


def test_a_batch_that_fits_no_template_runs_eagerly_and_is_counted() -> None:
    model = small_tgn().eval()
    batches, prep = batches_of(model), tiny.preparer(STREAM, model.history, batch_size=4)
    executor = graph_executor(batches, model)
    executor.train(batches[0])
    executor.train(prep.prepare(1, tiny.negatives(prep, 1, count=3)))
    executor.train(batches[2])
    assert (executor.usage.batches, executor.usage.misses) == (2, 1)
    assert executor.state.version == 3
    assert 0 < executor.usage.waste < 5


def test_a_wrong_version_is_refused_before_anything_happens() -> None:
    model = small_tgn()
    batches = batches_of(model)
    executor = graph_executor(batches, model)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(VersionError):
        executor.train(batches[1])
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_state_keeps_its_rows_and_its_checksum() -> None:
    model = small_tgn().eval()
    batches = batches_of(model)
    executor = graph_executor(batches, model)
    for batch in batches[:3]:
        executor.train(batch)
    state = executor.state
    assert tuple(state.memory_ND.shape) == (STREAM.num_nodes, model.memory_width)
    copy = state.clone()
    assert copy.checksum() == state.checksum()
    executor.score(batches[3])  # evaluation goes on from the same tables, eagerly
    assert state.version == 4


def test_the_learning_rate_is_read_where_it_lies() -> None:
    """What a replay reads is the tensor: changing the rate must change it in place."""
    layers = [torch.nn.Linear(3, 2) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    plain, capturable = (Adam(layer.named_parameters(), 0.1, 0.01) for layer in layers)
    capturable.make_capturable()
    tensor = capturable._rate
    for rate in (0.1, 0.03, 0.2):
        for layer, optimizer in zip(layers, (plain, capturable), strict=True):
            optimizer.learning_rate = rate
            optimizer.zero_grad()
            layer(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
        assert capturable._rate is tensor
        for a, b in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
            assert torch.equal(a, b)


# ---------------------------------------------------------------- choosing


def test_settings_choose_the_executor() -> None:
    assert executor_name(TrainSettings()) == "eager"
    assert executor_name(TrainSettings(executor="auto")) == "eager"
    assert executor_name(TrainSettings(executor="auto", device="cuda")) == "cudagraph"
    assert executor_name(TrainSettings(executor="compile")) == "compile"
    with pytest.raises(SettingError, match="device='cuda'"):
        executor_name(TrainSettings(executor="cudagraph"))


def test_nothing_is_sampled_for_an_eager_executor() -> None:
    def never() -> Any:
        raise AssertionError
        yield

    model = small_tgn()
    optimizer = Adam(model.named_parameters(), 0.01)
    executor = make_executor(TrainSettings(), model, NodeState(9, 4), optimizer, never())
    assert type(executor) is EagerExecutor


def test_the_sample_is_spread_over_all_batches() -> None:
    assert spread(range(3), 5) == [0, 1, 2]
    found = spread(range(1000), 100)
    assert (found[0], found[-1], len(found)) == (0, 999, 100)
    assert np.diff(found).min() > 8


def test_without_a_compiler_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SettingError, match=r"no g\+\+ or clang\+\+ on this machine: install one"):
        check_compiler(torch.device("cpu"))


# ---------------------------------------------------------------- whole runs


def recorded_as_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting `compile` trains with the step that would be captured, for tests of whole runs."""
    from tidegraph.train import compiled_executor

    def without_recording(*args: Any, **kwargs: Any) -> TemplateExecutor:
        return GraphExecutor(*args, **kwargs, record=False)

    monkeypatch.setattr(compiled_executor, "CompiledExecutor", without_recording)


@pytest.mark.parametrize("settings", [{}, {"cache": "next-use", "cache_budget": 0.5},
                                      {"cache": "lru", "state": "host"}], ids=str)  # fmt: skip
def test_a_whole_run_in_templates_equals_an_eager_one(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features and state through caches included; two learning epochs, validation between."""
    recorded_as_calls(monkeypatch)
    events = training.chatter()
    diary = training.Diary()
    plain = training.fit(events, epochs=2, **settings)
    run = training.fit(events, epochs=2, executor="compile", listener=diary, **settings)
    for a, b in zip(run.records, plain.records, strict=True):
        assert a.loss == pytest.approx(b.loss, abs=1e-5)
        assert a.metrics == pytest.approx(b.metrics, abs=1e-3)
    figures = run.records[-1].templates
    assert figures["batches"] == 8
    assert figures["misses"] == 0
    assert not plain.records[-1].templates
    assert any(line.startswith("templates ") for line in diary.said)


def test_a_run_may_go_on_with_another_executor(tmp_path: Any, monkeypatch: Any) -> None:
    recorded_as_calls(monkeypatch)
    events = training.chatter()
    training.fit(events, tmp_path, epochs=1)
    run = training.fit(events, tmp_path, epochs=2, executor="compile", resume=True)
    assert len(run.records) == 2
    assert run.records[1].templates["batches"] == 4


def test_fixed_shapes_read_the_newest_state_only() -> None:
    with pytest.raises(SettingError, match="staleness=2 with executor='compile'"):
        executor_name(TrainSettings(executor="compile", staleness=2))
    assert executor_name(TrainSettings(executor="auto", staleness=2)) == "eager"
