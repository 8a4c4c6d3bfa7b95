"""Training with kept batches: what is computed does not change, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidegraph.batches import Preparer
from tidegraph.batches.negatives import NegativeSampler
from training import Forgetful, StopAt, Stopped, chatter, fit, outcome, small_tgn

EVENTS = chatter()


def prepared_anew(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the batches that were really prepared, as they come."""
    numbers: list[int] = []
    real = Preparer.prepare

    def watch(self: Preparer, number: int, *arguments: Any, **named: Any) -> Any:
        numbers.append(number)
        return real(self, number, *arguments, **named)

    monkeypatch.setattr(Preparer, "prepare", watch)
    return numbers


@pytest.mark.parametrize("metric", ["AP", "MRR"])
@pytest.mark.parametrize("options", [{}, {"strategy": "uniform"}, {"layers": 2}])
def test_the_budget_changes_no_bit(metric: str, options: dict[str, Any]) -> None:
    """Training, and validation with its fixed negatives."""
    results = [
        outcome(fit(EVENTS, model=small_tgn(EVENTS, **options), metric=metric, prepared_budget=n))
        for n in (0, 3000, 1 << 24)
    ]
    assert results[0] == results[1] == results[2]


def test_groups_are_the_negatives_of_earlier_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to a sampler that draws with epoch mod groups; another run than without groups."""
    grouped = outcome(fit(EVENTS, epochs=5, negative_groups=2))
    assert grouped == outcome(fit(EVENTS, epochs=5, negative_groups=2, prepared_budget=0))
    free = outcome(fit(EVENTS, epochs=5))
    assert free["weights"] != grouped["weights"]
    real = NegativeSampler.draw_at

    def repeated(
        self: NegativeSampler, position_B: np.ndarray, *, epoch: int = 0, **named: Any
    ) -> Any:
        return real(self, position_B, epoch=epoch % 2, **named)

    monkeypatch.setattr(NegativeSampler, "draw_at", repeated)
    assert outcome(fit(EVENTS, epochs=5)) == grouped


def test_with_groups_later_epochs_prepare_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    anew = prepared_anew(monkeypatch)
    fit(EVENTS, epochs=1, negative_groups=1)
    once = len(anew)
    anew.clear()
    fit(EVENTS, epochs=4, negative_groups=1)
    assert len(anew) == once


def test_a_killed_run_resumes_with_groups(tmp_path: Path) -> None:
    common: dict[str, Any] = {"epochs": 4, "negative_groups": 2, "checkpoint_batches": 1}
    whole = outcome(fit(EVENTS, tmp_path / "whole", **common))
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path / "killed", listener=StopAt(15), **common)
    resumed = fit(EVENTS, tmp_path / "killed", resume=True, prepared_budget=0, **common)
    assert outcome(resumed) == whole


def test_a_run_does_not_hold_on_to_prepared_batches() -> None:
    run = fit(EVENTS, negative_groups=1)
    assert type(run.stream.preparer) is Preparer


def test_models_without_memory_and_caches_keep_batches_too() -> None:
    for options in ({}, {"cache": "lru", "cache_budget": 0.5}):
        results = [
            outcome(
                fit(
                    EVENTS, model=Forgetful(EVENTS.schema), negative_groups=1,
                    prepared_budget=budget, **options,
                )
            )
            for budget in (0, 1 << 24)
        ]  # fmt: skip
        assert results[0] == results[1]
