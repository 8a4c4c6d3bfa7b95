"""The attention benchmark: every variant computes the same thing, and the report names them all."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

PATH = Path(__file__).resolve().parents[1] / "benchmarks" / "attention.py"


@pytest.fixture(scope="module")
def attention() -> ModuleType:
    spec = importlib.util.spec_from_file_location("attention_benchmark", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("trained_time", [False, True])
def test_variants_agree_in_output_and_every_gradient(
    attention: ModuleType, trained_time: bool
) -> None:
    x = attention.make_inputs(40, 5, trained_time, events=50)
    leaves = {"table_RD", "query_EX", "query_bias_E", "key_EW", "value_EW"}
    time = {"time_weight_T", "time_bias_T"}
    assert set(x.leaves()) == (leaves | time if trained_time else leaves)
    expected = attention.step(x.double().with_grad(trained_time), "plain")
    assert set(expected) == {"output", *x.leaves()}
    for variant in attention.VARIANTS:
        found = attention.step(x.double().with_grad(trained_time), variant)
        for name, want in expected.items():
            # A month in seconds times a slope that is exact to 1e-10: hence the looser one.
            limit = 1e-7 if name in time else 1e-9
            off = float((found[name] - want).abs().max() / want.abs().max())
            assert off < limit, (variant, name)
    for variant, difference in attention.differences(x, trained_time).items():
        if not variant.startswith("plain"):  # those form w * delta in float32
            assert difference < 1e-5, variant


def test_neighbourhoods_are_realistic(attention: ModuleType) -> None:
    hop = attention.make_inputs(4000, 10, events=50).hop
    count_S = hop.count_S
    assert 0.04 < float((count_S == 0).float().mean()) < 0.06
    assert 0.83 < float((count_S == 10).float().mean()) < 0.87
    uses_R = torch.diff(hop.neighbor_uses.indptr_R1)
    assert int(uses_R.sum()) == int(count_S.sum())
    assert int(uses_R.max()) > 50 * float(uses_R.float().mean())


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from Linux")
def test_what_is_printed(
    attention: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def in_child(command: list[str]) -> object:
        if "differences" in command:
            return dict.fromkeys(attention.VARIANTS, 1e-7)
        return attention.child(command[1], 30, 4, False)

    monkeypatch.setattr(attention, "EVENTS", 100)
    monkeypatch.setattr(attention, "in_child", in_child)
    monkeypatch.setattr(
        "sys.argv", ["attention.py", "--shapes", "30x4", "--repeats", "2", "--json"]
    )
    attention.main()
    printed = capsys.readouterr().out
    (result,) = json.loads(printed)
    assert set(result["variants"]) == {*attention.VARIANTS, "scatter_softmax", "edge_softmax"}
    assert set(result["ratios"]) == {f"{fast} over {slow}" for slow, fast in attention.PAIRS}
    for name in attention.VARIANTS:
        row = result["variants"][name]
        assert row["quartiles"][0] <= row["milliseconds"] <= row["quartiles"][1]
        assert row["memory"]["peak"] > row["memory"]["above_inputs"]
    attention.show(result)
    assert "tidegraph over plain" in capsys.readouterr().out
