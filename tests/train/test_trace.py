"""trace.json: what every thread did for every batch, in the format that Perfetto opens."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tidegraph.errors import SettingError
from tidegraph.train.stages import StageTimes
from tidegraph.train.trace import Trace
from training import StopAt, Stopped, chatter, fit, outcome

EVENTS = chatter()


def read(directory: Path) -> list[dict[str, Any]]:
    found = json.loads((directory / "trace.json").read_text())
    assert set(found) == {"traceEvents", "displayTimeUnit", "otherData"}
    events: list[dict[str, Any]] = found["traceEvents"]
    return events


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("staleness", [0, 1])
def test_every_stage_of_every_batch_is_a_slice(
    tmp_path: Path, threads: int, staleness: int
) -> None:
    run = fit(EVENTS, tmp_path, trace=True, prepare_threads=threads, staleness=staleness, epochs=2)
    events = read(tmp_path)
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
            slices[event["name"]].append(event["args"])
    for stage in ("prepare", "read", "forward", "backward", "optimizer", "write"):
        assert sorted(one["batch"] for one in slices[stage]) == sorted([0, 1, 2, 3] * 2), stage
    for one in slices["forward"]:
        assert one["version"] == max(0, one["batch"] - staleness)
    assert len(slices["validation"]) == 2
    assert bool(slices["wait"]) == (threads > 0)
    # Tracing is watching: the run is the same.
    assert outcome(run) == outcome(fit(EVENTS, staleness=staleness, epochs=2))


def test_threads_have_names_and_do_one_thing_at_a_time(tmp_path: Path) -> None:
    fit(EVENTS, tmp_path, trace=True, prepare_threads=2, staleness=1, batch_size=8)
    events = read(tmp_path)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(names.values()) == ["train", "load 1", "prepare 1", "prepare 2"]
    by_thread = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            by_thread[names[event["tid"]]].append(event)
    assert {e["name"] for e in by_thread["prepare 1"]} == {"prepare"}
    assert {e["name"] for e in by_thread["load 1"]} == {"read"}
    assert "forward" in {e["name"] for e in by_thread["train"]}
    for slices in by_thread.values():
        for one, other in itertools.pairwise(slices):
            assert one["ts"] + one["dur"] <= other["ts"] + 0.01


def test_arrows_lead_from_preparation_to_the_step(tmp_path: Path) -> None:
    """One begins and one ends for each batch of each epoch, at slices of that batch."""
    fit(EVENTS, tmp_path, trace=True, prepare_threads=2, epochs=2)
    events = read(tmp_path)
    for batch in range(4):
        arrows = [e for e in events if e.get("cat") == "batch" and e["id"] == batch]
        assert [arrow["ph"] for arrow in arrows] == ["s", "f"] * 2
        for arrow in arrows:
            stage = {"s": "prepare", "f": "forward"}[arrow["ph"]]
            assert any(
                e["ph"] == "X" and e["name"] == stage and e["tid"] == arrow["tid"]
                and e["ts"] == arrow["ts"] and e["args"]["batch"] == batch for e in events
            )  # fmt: skip


def test_a_run_that_is_cut_short_has_its_trace(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        fit(EVENTS, tmp_path, trace=True, prepare_threads=1, listener=StopAt(2))
    assert any(event["name"] == "forward" for event in read(tmp_path))


def test_without_it_nothing_is_kept(tmp_path: Path) -> None:
    fit(EVENTS, tmp_path)
    assert not (tmp_path / "trace.json").exists()
    assert StageTimes().trace is None


def test_a_trace_needs_a_place() -> None:
    with pytest.raises(SettingError, match="trace=True needs the directory"):
        fit(EVENTS, trace=True)


def test_a_long_run_keeps_the_first_slices_and_counts_the_others() -> None:
    trace = Trace(most=2)
    for number in range(5):
        trace.add("write", number, number + 0.5, batch=number, version=number)
    found = trace.to_dict()
    assert found["otherData"] == {"slices_not_kept": 3}
    assert [e["args"]["batch"] for e in found["traceEvents"] if e["ph"] == "X"] == [0, 1]
    assert Trace().to_dict()["traceEvents"][0]["args"] == {"name": "tidegraph"}
