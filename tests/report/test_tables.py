"""Tables: every figure has its protocol, the best is marked, what is undefined says why."""

from __future__ import annotations

import io
import math

import numpy as np
from rich.console import Console

import tidegraph as tg
from tidegraph.models import build_model
from tidegraph.report.comparison import Scored, evaluate_baselines
from tidegraph.report.plain import metric_values
from tidegraph.report.tables import comparison_tables
from tidegraph.train.metrics import Metric, Metrics


def shown(rows: list[Scored]) -> list[str]:
    console = Console(file=io.StringIO(), width=140)
    for one in comparison_tables(rows, "test"):
        console.print(one)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def metrics(protocol: str, **values: float) -> Metrics:
    return Metrics(tuple(Metric(name, value, protocol, 7) for name, value in values.items()))


def test_a_column_taken_alike_is_marked_at_its_head() -> None:
    lines = shown([Scored("TGN", metrics("P", AP=0.9)), Scored("Bank", metrics("P", AP=0.8))])
    assert "AP [1]" in lines[2]
    assert "0.9000 *" in lines[4]
    assert "0.8000" in lines[5]
    assert "*" not in lines[5]
    assert "[1] P" in lines
    assert "over 7 events; * best of the column" in lines


def test_figures_taken_otherwise_are_marked_themselves() -> None:
    lines = shown([Scored("TGN", metrics("P", AP=0.9)), Scored("Bank", metrics("Q", AP=0.8))])
    assert "AP [" not in lines[2]
    assert "0.9000 [1]" in lines[4]
    assert "0.8000 [2]" in lines[5]
    assert {"[1] P", "[2] Q"} <= set(lines)


def test_equal_best_figures_are_both_marked() -> None:
    lines = shown([Scored("TGN", metrics("P", AP=0.9)), Scored("Bank", metrics("P", AP=0.9))])
    assert "0.9000 *" in lines[4]
    assert "0.9000 *" in lines[5]


def test_an_undefined_figure_says_why() -> None:
    undefined = Metrics((Metric("AP", math.nan, "P", 3, "all 3 labels are positive"),))
    lines = shown([Scored("TGN", undefined), Scored("Bank", metrics("P", AP=0.8))])
    assert "undefined" in lines[4]
    assert "TGN: AP undefined: all 3 labels are positive" in lines
    assert metric_values(undefined) == [
        {"name": "AP", "value": None, "protocol": "P", "count": 3,
         "undefined": "all 3 labels are positive"}
    ]  # fmt: skip


def test_unseen_nodes_get_a_table_of_their_own() -> None:
    lines = shown([Scored("TGN", metrics("P", AP=0.9), metrics("P, inductive", AP=0.7))])
    assert lines[0] == "test, all events"
    assert "test, events with an unseen node" in lines
    assert "over 7 events" in lines  # alone, nothing is the best
    assert "[1] P, inductive" in lines


def test_baselines_know_no_hidden_training_event() -> None:
    """One hidden node, whose only pair occurs in training: a bank that was fed it scores it 1.

    0 - 4, 1 - 5 repeat;  3 - 6 in training and test, 3 hidden
    """
    place = np.arange(60)
    source, target = place % 2, 4 + place % 2
    source[[10, 55]], target[[10, 55]] = 3, 6
    events = tg.Events.from_arrays(
        source, target, place, num_nodes=7, bipartite=True, num_sources=4
    )
    hidden_N = np.zeros(7, bool)
    hidden_N[3] = True
    train = tg.EventRange(events, 0, 40, "train", hidden_N)
    val, test = events.range(40, 50, "val"), events.range(50, 60, "test")
    model = build_model("tgn", events.schema, memory=4, time=4, embedding=4, neighbors=2)
    run = tg.Trainer(model, epochs=1, batch_size=20, evaluation_batch_size=5, candidates=2).fit(
        train, val
    )
    bank, _ = evaluate_baselines(run, test)
    assert bank.inductive is not None
    assert bank.inductive["AP"].count == 1
    # Fed with the hidden event, the bank would know the pair: a rank of 1.
    assert bank.inductive["MRR"].value < 1
    assert "inductive" in bank.inductive["MRR"].protocol
    model_figures = run.evaluate(test)
    assert model_figures.inductive is not None
    for name in ("AP", "AUC", "MRR", "Hits@10"):
        assert bank.metrics[name].protocol == model_figures.metrics[name].protocol
        assert bank.inductive[name].protocol == model_figures.inductive[name].protocol
