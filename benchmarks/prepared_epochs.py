"""Epochs with and without kept batches: what preparation costs, and what keeping saves.

Trains TGN on the first 70% of the events and validates on the next 15%, epoch by epoch:

- anew: every batch of every epoch is prepared anew (budget 0);
- kept: what comes again is kept in memory: whole batches with negative groups and in validation,
  the positives' neighbourhoods where negatives are fresh (`--groups 0`).

Ways take turns in both orders; every run does the same computations, which is checked by the losses
and the validation's figures. Seconds are of the training pass (`EpochRecord.seconds`) and of the
validation; shares are of preparation in it, stage by stage.

    python benchmarks/prepared_epochs.py --groups 1
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

from tidegraph.events import Events, load_dataset, read_table
from tidegraph.models import build_model
from tidegraph.train import Trainer


def load(name: str) -> Events:
    """A data set by name; "wikipedia" is read from the directory in TIDEGRAPH_DATA."""
    if name != "wikipedia":
        return load_dataset(name)
    path = Path(os.environ["TIDEGRAPH_DATA"]) / "wikipedia.csv"
    return read_table(path, source="u", target="i", time="ts", bipartite=True)


def run(events: Events, arguments: argparse.Namespace, budget: int) -> list[dict[str, Any]]:
    """Train; what each epoch took and found."""
    train, val, _ = events.split(val=0.15, test=0.15)
    if arguments.events:
        train, val = (
            events.range(0, arguments.events),
            events.range(arguments.events, arguments.events + arguments.events // 5),
        )
    trainer = Trainer(
        build_model("tgn", events.schema),
        epochs=arguments.epochs, batch_size=arguments.batch, patience=0,
        metric=arguments.metric, negative_groups=arguments.groups, prepared_budget=budget,
    )  # fmt: skip
    return [
        {
            "seconds": record.seconds,
            "prepare": record.stages.get("prepare", 0.0),
            "evaluation": record.evaluation_seconds,
            "found": (record.loss, sorted(record.metrics.items())),
        }
        for record in trainer.fit(train, val).records
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", default="wikipedia")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--metric", default="AP")
    parser.add_argument("--events", type=int, default=0, help="train on so many; 0: 70%%")
    parser.add_argument("--repeats", type=int, default=2, help="each in both orders")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    events = load(arguments.data)
    found: dict[str, list[list[dict[str, Any]]]] = {"anew": [], "kept": []}
    for turn in range(2 * arguments.repeats):
        for name in ("anew", "kept") if turn % 2 == 0 else ("kept", "anew"):
            budget = 0 if name == "anew" else 4 << 30
            found[name].append(run(events, arguments, budget))
    values = {repr([epoch["found"] for epoch in one]) for runs in found.values() for one in runs}
    result: dict[str, Any] = {"equal": len(values) == 1}
    for name, runs in found.items():
        later = [epoch for one in runs for epoch in one[1:]]
        first = [one[0] for one in runs]
        for label, part in (("first", first), ("later", later)):
            for stage in ("seconds", "prepare", "evaluation"):
                result[f"{name}, {label} epochs, {stage}"] = statistics.median(
                    epoch[stage] for epoch in part
                )
    share = result["anew, first epochs, prepare"] / result["anew, first epochs, seconds"]
    result["share of preparation in a first epoch"] = share
    for stage in ("seconds", "evaluation"):
        kept, anew = (result[f"{name}, later epochs, {stage}"] for name in ("kept", "anew"))
        result[f"later epochs, {stage}: kept / anew"] = kept / anew
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:42} {value:.4f}" if isinstance(value, float) else f"{name:42} {value}")


if __name__ == "__main__":
    main()
