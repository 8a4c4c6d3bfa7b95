"""The side-by-side benchmark: its order, data and figures, and each adapter on a tiny stream."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from peers.contract import STAGES, Settings, StageClock  # noqa: E402
from peers.rounds import WorkerError, measure, plan  # noqa: E402
from peers.stream import Stream, StreamSizes, read_stream, write_stream  # noqa: E402
from peers.summary import Ratio, ratio_to, summarise  # noqa: E402
from peers.worker import Request, average_precision, batch_ranges, load_adapter  # noqa: E402

SIZES = StreamSizes("tiny", num_nodes=40, first_target=30, train_stop=280, val_stop=340)


def tiny_stream(directory: Path, epochs: int = 2) -> Stream:
    """400 events: each of 30 users keeps going back to one of 10 items, at distinct times."""
    source_E = np.random.default_rng(1).integers(0, 30, 400)
    target_E = 30 + source_E % 10
    features_EF = np.random.default_rng(2).normal(size=(400, 6))
    time_E = np.arange(400) * 7
    write_stream(directory, source_E, target_E, time_E, features_EF, SIZES, epochs=epochs, seed=3)
    return read_stream(directory)


def test_every_other_round_goes_backwards() -> None:
    turns = plan(["a", "b", "c"], [200], 3)
    assert [turn.library for turn in turns] == ["a", "b", "c", "c", "b", "a", "a", "b", "c"]
    assert [turn.round for turn in turns] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_batches_cover_every_event_once() -> None:
    ranges = batch_ranges(5, 18, 4)
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(5, 18))
    assert {stop - start for start, stop in ranges[:-1]} == {4}


def test_stream_comes_back_as_written(tmp_path: Path) -> None:
    stream = tiny_stream(tmp_path)
    assert stream.sizes == SIZES
    assert stream.train_negative.shape == (2, 400)
    assert (stream.target == 30 + stream.source % 10).all()


def test_negatives_are_destinations_that_differ_by_epoch_and_not_by_call(tmp_path: Path) -> None:
    first, second = tiny_stream(tmp_path), tiny_stream(tmp_path)
    for drawn in (first.train_negative, first.val_negative):
        assert drawn.min() == 30
        assert drawn.max() == 39
    assert (first.train_negative == second.train_negative).all()
    assert (first.train_negative[0] != first.train_negative[1]).any()
    assert (first.val_negative != first.train_negative[0]).any()


def test_shortened_stream_keeps_the_parts_adjacent(tmp_path: Path) -> None:
    short = tiny_stream(tmp_path).shortened(140)
    assert (short.sizes.train_stop, short.sizes.val_stop) == (140, 170)
    whole = tiny_stream(tmp_path).shortened(10_000)
    assert whole.sizes == SIZES


def test_average_precision_names_two_different_means() -> None:
    easy = (np.array([9.0, 8.0]), np.array([7.0, 6.0]))
    shifted = (np.array([5.0, 4.0]), np.array([3.0, 2.0]))
    of_batches, of_all = average_precision([easy, shifted])
    assert of_batches == 1.0
    assert of_all == pytest.approx((1 + 1 + 3 / 5 + 4 / 6) / 4)


def make_run(library: str, number: int, speed: float) -> dict[str, object]:
    epoch = {
        "events_per_second": speed,
        "seconds": 2.0,
        "batches": 4,
        "stage_seconds": dict.fromkeys(STAGES, 0.1),
        "loss_first": 1.4,
        "loss_last": 1.0,
        "ap_batches": 0.9,
        "ap_all": 0.8,
    }
    memory = {"peak_training": 2**21, "peak_total": 2**22}
    keys = {"library": library, "batch_size": 200, "round": number, "parameters": 7}
    return {**keys, **memory, "epochs": [epoch]}


def test_ratio_pairs_runs_of_the_same_round() -> None:
    runs = [make_run("x", 0, 30.0), make_run("x", 1, 20.0), make_run("x", 2, 90.0)]
    reference = [make_run("y", 1, 10.0), make_run("y", 0, 10.0)]
    assert ratio_to(runs, reference) == Ratio(2.5, 2.0, 3.0)
    assert ratio_to(runs, []) is None


def test_summary_has_one_row_for_each_library_and_batch_size() -> None:
    runs = [make_run("x", 0, 30.0), make_run("y", 0, 10.0), make_run("x", 1, 50.0)]
    first, second = summarise(runs, "y")
    assert (first.library, first.events_per_second, first.ratio) == ("x", 40.0, Ratio(3, 3, 3))
    assert (second.library, second.batch_ms, second.peak_total_mib) == ("y", 500.0, 4.0)


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    request = Request("pyg", str(tmp_path / "nowhere"), Settings(), 1, None, 0)
    with pytest.raises(WorkerError, match=r"pyg at batch 200 .*nowhere"):
        measure(request, tmp_path)


def test_command_line_refuses_what_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("peers_script", BENCHMARKS / "peers.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.parse_arguments(["--batch", "50"]).batch == [50]
    with pytest.raises(SystemExit):
        script.parse_arguments(["--repeats", "0"])
    assert "--repeats is 0" in capsys.readouterr().err


def adapter_or_skip(library: str) -> type:
    try:
        return load_adapter(library)
    except ImportError as error:
        pytest.skip(f"{library} is not importable here: {error}")


@pytest.mark.parametrize("library", ["tidegraph", "pyg", "tgm", "tglite"])
def test_adapter_learns_and_scores_every_validation_event(library: str, tmp_path: Path) -> None:
    peer_class = adapter_or_skip(library)
    stream = tiny_stream(tmp_path, epochs=8)
    settings = replace(Settings(), batch_size=32, learning_rate=3e-3, threads=1)
    peer, clock, losses = peer_class(stream, settings), StageClock(), []
    for negative_E in stream.train_negative:
        losses.append(list(peer.train_epoch(negative_E, clock)))
        scores = list(peer.validate(stream.val_negative))
    assert {len(epoch) for epoch in losses} == {9}
    assert np.mean(losses[-1]) < np.mean(losses[0])
    assert [len(positive) for positive, _negative in scores] == [32, 28]
    assert all(positive.shape == negative.shape for positive, negative in scores)
    assert min(clock.seconds.values()) > 0
    assert peer.parameter_count() > 0
    assert peer_class.versions()
