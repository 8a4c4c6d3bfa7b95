"""TGN by several libraries, side by side, on the same events, negatives, widths and threads.

    pip install -c constraints.txt -r benchmarks/peers-requirements.txt
    python benchmarks/peers.py --batch 200 600 --repeats 3 --json peers.json

Each run has a process of its own and libraries take turns, so ratios hold where absolute figures
do not. A library that cannot be imported is reported with the reason and left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers import LIBRARIES
from peers.contract import Settings
from peers.rounds import Turn, WorkerError, measure, plan, probe
from peers.stream import StreamSizes, write_stream
from peers.summary import machine_facts, print_table, speed, summarise
from peers.worker import Request
from rich.console import Console


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Train TGN with several libraries, side by side.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--data", default="synthetic:wikipedia", help="data set of the catalog")
    parser.add_argument("--batch", type=int, nargs="+", default=[200, 600], help="events a batch")
    parser.add_argument("--epochs", type=int, default=1, help="training epochs of each run")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, every other backwards")
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--reference", choices=LIBRARIES, default="pyg", help="ratios are to it")
    parser.add_argument("--max-batches", type=int, help="train on the first so many batches only")
    parser.add_argument("--warm-up", type=int, default=3, help="batches thrown away before timing")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of each run")
    parser.add_argument("--seed", type=int, default=0, help="of weights, dropout and negatives")
    parser.add_argument("--json", type=Path, help="write every run and the summary to this file")
    chosen = parser.parse_args(arguments)
    for name in ("epochs", "repeats", "threads"):
        if getattr(chosen, name) < 1:
            parser.error(f"--{name} is {getattr(chosen, name)}; expected 1 or more")
    if min(chosen.batch) < 1 or (chosen.max_batches or 1) < 1:
        parser.error("--batch and --max-batches must be 1 or more")
    return chosen


def write_events(name: str, directory: Path, epochs: int, seed: int) -> StreamSizes:
    """Load data set `name`, split it 70/15/15 in time, and write it for the workers."""
    from tidegraph.events import load_dataset

    events = load_dataset(name)
    if events.features is None or not events.schema.bipartite:
        raise SystemExit(f"{name}: this comparison needs event features and a bipartite data set")
    train, val, _test = events.split(val=0.15, test=0.15)
    sizes = StreamSizes(
        name=name,
        num_nodes=events.schema.num_nodes,
        first_target=events.schema.first_target,
        train_stop=train.stop,
        val_stop=val.stop,
    )
    columns = (events.source, events.target, events.time, events.features)
    write_stream(directory, *columns, sizes, epochs=epochs, seed=seed)
    return sizes


def run_turns(
    turns: list[Turn], chosen: argparse.Namespace, directory: Path, console: Console
) -> tuple[list[dict[str, Any]], list[str]]:
    """All runs that succeeded, and the messages of those that did not."""
    runs, failures = [], []
    for number, turn in enumerate(turns, 1):
        settings = Settings(
            batch_size=turn.batch_size, threads=chosen.threads, seed=chosen.seed + turn.round
        )
        limits = (chosen.epochs, chosen.max_batches, chosen.warm_up)
        request = Request(turn.library, str(directory), settings, *limits)
        try:
            run = measure(request, directory)
        except WorkerError as error:
            failures.append(str(error))
            console.print(f"[{number}/{len(turns)}] {error}", markup=False)
            continue
        runs.append({**run, "round": turn.round})
        console.print(
            f"[{number}/{len(turns)}] {turn.library} batch {turn.batch_size}: "
            f"{speed(run):,.0f} events/s, AP {run['epochs'][-1]['ap_batches']:.4f}",
            markup=False,
        )
    return runs, failures


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write JSON where asked; 1 if any run failed."""
    chosen = parse_arguments(arguments)
    # Off a terminal rich would assume 80 columns and fold the table.
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    facts = machine_facts(chosen.threads)
    console.print(", ".join(f"{name} {value}" for name, value in facts.items()))
    versions, missing = {}, {}
    for library in chosen.libraries:
        found, reason = probe(library)
        if found is None:
            missing[library] = reason
            console.print(f"{library}: not importable here ({reason})", markup=False)
        else:
            versions[library] = found
    with tempfile.TemporaryDirectory(prefix="tidegraph-peers-") as scratch:
        directory = Path(scratch)
        sizes = write_events(chosen.data, directory, chosen.epochs, chosen.seed)
        turns = plan(list(versions), chosen.batch, chosen.repeats)
        runs, failures = run_turns(turns, chosen, directory, console)
    rows = summarise(runs, chosen.reference)
    print_table(rows, chosen.reference, console)
    if chosen.json:
        report = {
            "machine": facts,
            "versions": versions,
            "not_importable": missing,
            "failures": failures,
            "data": asdict(sizes),
            "options": {**vars(chosen), "json": str(chosen.json)},
            "summary": [asdict(row) for row in rows],
            "runs": runs,
        }
        chosen.json.write_text(json.dumps(report, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
