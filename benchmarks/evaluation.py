"""One-against-many evaluation: many batches at once, batch by batch, and event by event.

Three ways to rank each event of the test split among 100 candidates, from the same state, with the
same batch borders of the state:

- joint: what `evaluate` does: memory goes ahead, many batches are aggregated together;
- batches: one batch after the other, by the operators of training ("plain" scoring);
- one by one: each event with its candidates alone, over a stated number of events.

Ranks are compared event by event, scores bit by bit where the way promises it. Times are medians of
several rounds in turns.

    python benchmarks/evaluation.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tidegraph.batches.negatives import NegativeSampler
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.events import Events, load_dataset, read_table
from tidegraph.models import TemporalModel, build_model
from tidegraph.ops import use_scoring
from tidegraph.train import Stream, Trainer, TrainSettings
from tidegraph.train.evaluate import ranking_negatives
from tidegraph.train.executor import EagerExecutor
from tidegraph.train.joint import JointScorer, Piece, SingleScorer
from tidegraph.train.metrics import lead, rank
from tidegraph.train.run import load_run
from tidegraph.train.stages import StageTimes
from tidegraph.train.stream import Part


def load(name: str) -> Events:
    """A data set by name; "wikipedia" is read from the directory in TIDEGRAPH_DATA."""
    if name != "wikipedia":
        return load_dataset(name)
    path = Path(os.environ["TIDEGRAPH_DATA"]) / "wikipedia.csv"
    return read_table(path, source="u", target="i", time="ts", bipartite=True)


class Bench:
    """A trained model at the start of the test split."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        events = load(arguments.data)
        train, val, test = events.split(val=0.15, test=0.15)
        settings: dict[str, Any] = {"layers": arguments.layers, "message": arguments.message}
        self.model: TemporalModel = build_model("tgn", events.schema, **settings)
        size = arguments.batch
        if arguments.run is not None and arguments.run.exists():
            run = load_run(arguments.run, events=events)
        else:
            trainer = Trainer(
                self.model, epochs=arguments.epochs, batch_size=size, evaluation_batch_size=size,
                candidates=0, directory=arguments.run,
            )  # fmt: skip
            run = trainer.fit(train, val)
        self.stream = run.stream.with_part(Part("test", test.start, test.stop, size))
        self.state, self.candidates = run.state, arguments.candidates
        self.model = run.model.eval()
        self.ranking: NegativeSampler = ranking_negatives(events, TrainSettings())
        self.numbers = self.stream.phase("test").batches
        if arguments.batches:
            self.numbers = self.numbers[: arguments.batches]
        self.events = sum(len(self.stream.plan.events(number)) for number in self.numbers)

    def negatives(self, event_B: np.ndarray) -> np.ndarray:
        """[B, C]."""
        first, last = int(event_B[0]), int(event_B[-1])
        return self.ranking.candidates(first, last + 1, count=self.candidates).node_BC

    def pieces(self, stream: Stream) -> Iterator[Piece[None]]:
        """Every batch of the test split with its candidates."""
        for number in self.numbers:
            negative_BC = self.negatives(self.stream.plan.events(number))
            yield Piece(stream.preparer.prepare(number, negative_BC), True, None)

    def joint(self) -> np.ndarray:
        """Logits [E, 1 + C] of the test split, many batches at once."""
        stream = self.stream.for_scoring()
        scorer = JointScorer(self.model, self.state.clone(), self.stream, StageTimes())
        return np.concatenate([logit_BC for _, logit_BC in scorer.run(self.pieces(stream))])

    def batches(self, scoring: str) -> np.ndarray:
        """The same, batch after batch."""
        scorer = SingleScorer(EagerExecutor(self.model, self.state.clone()))
        with use_scoring(scoring):
            return np.concatenate(
                [logit_BC for _, logit_BC in scorer.run(self.pieces(self.stream))]
            )

    def one_by_one(self, scoring: str, batches: int) -> np.ndarray:
        """Each event of the first batches alone; the state moves at the batches' borders."""
        executor, found = EagerExecutor(self.model, self.state.clone()), []
        with use_scoring(scoring):
            for number in self.numbers[:batches]:
                event_B = self.stream.plan.events(number)
                found += [
                    executor.score(self.alone(number, int(event)), write=False) for event in event_B
                ]
                nothing_BC = np.empty((len(event_B), 0), np.int32)
                executor.advance(self.stream.preparer.prepare(number, nothing_BC))
        return np.concatenate(found)

    def alone(self, number: int, event: int) -> PreparedBatch:
        """One event of a batch as a batch of its own, reading the same version of the state."""
        return prepare_alone(self.stream, number, event, self.negatives(np.array([event])))


def prepare_alone(
    stream: Stream, number: int, event: int, negative_BC: np.ndarray
) -> PreparedBatch:
    """Event `event` of batch `number` by itself: its own roots, the batch's state and mail."""
    plan = stream.plan
    # The batch's border stays where it is, for mail; only the events in it are others.
    border_B1 = np.concatenate([plan.border_B1[: number + 1], plan.border_B1[number : number + 1]])
    event_P = np.concatenate([plan.event_P[: plan.border_B1[number]], [event]])
    border_B1[-1] += 1
    single = replace(
        plan,
        event_P=event_P,
        border_B1=border_B1,
        first_event_B=plan.first_event_B[: number + 1],
    )
    return replace(stream.preparer, plan=single).prepare(number, negative_BC)


def mrr(logit_EC: np.ndarray) -> float:
    """Mean reciprocal rank of column 0, ties as the metrics count them."""
    lead_EC = lead(logit_EC)
    return float(np.mean(1 / rank(np.zeros(len(lead_EC), np.float32), lead_EC)))


def timed(function: Any, *arguments: Any) -> tuple[float, np.ndarray]:
    started = time.perf_counter()
    found: np.ndarray = function(*arguments)
    return time.perf_counter() - started, found


def compare(bench: Bench, rounds: int, single: int) -> dict[str, Any]:
    """Measure the three ways in turns and compare what they find."""
    seconds: dict[str, list[float]] = {"joint": [], "batches": [], "one by one": []}
    bench.joint()  # loads kernels
    for _ in range(rounds):
        taken, joint_EC = timed(bench.joint)
        seconds["joint"].append(taken)
        taken, plain_EC = timed(bench.batches, "plain")
        seconds["batches"].append(taken)
        if single:
            taken, alone_EC = timed(bench.one_by_one, "plain", single)
            seconds["one by one"].append(taken)
    result: dict[str, Any] = {
        "events": bench.events,
        "events/s joint": bench.events / statistics.median(seconds["joint"]),
        "events/s batches": bench.events / statistics.median(seconds["batches"]),
        "seconds": seconds,
        "MRR joint": mrr(joint_EC),
        "MRR batches": mrr(plain_EC),
        "largest difference to plain scores": float(np.abs(joint_EC - plain_EC).max()),
        "differing ranks to plain scores": int(
            (lead_signs(joint_EC) != lead_signs(plain_EC)).sum()
        ),
    }
    result["faster than batches"] = result["events/s joint"] / result["events/s batches"]
    if single:
        exact_EC = bench.one_by_one("exact", single)
        count = len(alone_EC)
        result |= {
            "events one by one": count,
            "events/s one by one": count / statistics.median(seconds["one by one"]),
            "bits equal one by one": bool((exact_EC == joint_EC[:count]).all()),
            "MRR of those, one by one": mrr(exact_EC),
            "MRR of those, joint": mrr(joint_EC[:count]),
            "MRR of those, one by one, plain": mrr(alone_EC),
        }
        rate = result["events/s one by one"]
        result["faster than one by one"] = result["events/s joint"] / rate
    return result


def lead_signs(logit_EC: np.ndarray) -> np.ndarray:
    """Ranks by event."""
    lead_EC = lead(logit_EC)
    return rank(np.zeros(len(lead_EC), np.float32), lead_EC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", default="wikipedia")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--message", default="last")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=0, help="of the test split; 0: all")
    parser.add_argument("--single", type=int, default=2, help="batches scored event by event")
    parser.add_argument(
        "--run", type=Path, help="keep the trained run there, or take it from there"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = compare(Bench(arguments), arguments.rounds, arguments.single)
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:38} {value:.6g}" if isinstance(value, float) else f"{name:38} {value}")


if __name__ == "__main__":
    main()
