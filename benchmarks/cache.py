"""Bytes from host to device in a training epoch: without compression, with it, with a cache.

The set-up: one epoch of TGN's training part (70%), its batches prepared as in training (one random
negative per event, the 10 most recent neighbours), rows of features, memory and mail on the host.
Counted are the rows that cross to the device, at four bytes a number: per node memory and mail
(2 x 100), per event its features (wikipedia: the 172 that the publisher's file has, also where the
file at hand has none; flights: 21; mathoverflow and talk have none, so nodes alone cross).

    uncompressed   a node row for every root and every neighbour, an event row for every neighbour
                   (events of pending messages left out, though all that follows counts them)
    compressed     each batch's distinct rows once
    cached         of those, the ones that are neither on the device nor known to be zero

A budget is a share of the distinct rows that the epoch touches, of each table. Rows written back
are the same in every case and listed apart. Accesses are replayed through the caches without
vectors; `--verify` trains one epoch through the same caches and compares the counts.

    python benchmarks/cache.py
    python benchmarks/cache.py --verify
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
from tidegraph.batches.prepare import History
from tidegraph.batches.prepared import PreparedBatch
from tidegraph.events import EventRange, Events, load_dataset
from tidegraph.features import Frequent, NextUse, Residents, SlimCache, Traffic
from tidegraph.models import build_model
from tidegraph.train import Stream, Trainer
from tidegraph.train.stream import part_of
from tidegraph.train.transfer import look_ahead

BUDGETS = (0.01, 0.05, 0.10, 0.25, 0.50)
POLICIES = ("lru", "frequency", "next-use")
WINDOWS = (4, 16, 256, 1024)
NODE_BYTES = 2 * 100 * 4
WIKIPEDIA_FEATURES = 172


@dataclass(frozen=True)
class Options:
    """What is varied on a data set."""

    scale: float
    window: int
    budgets: list[float]
    windows: list[int]


@dataclass(frozen=True, eq=False)
class Step:
    """What one batch uses: distinct rows, and the nodes it writes."""

    node_U: Tensor
    event_E: Tensor
    node_W: np.ndarray


@dataclass(frozen=True, eq=False)
class Epoch:
    """One epoch's accesses.

    Attributes:
        steps: batch by batch.
        events, nodes: rows of the tables.
        event_bytes: of an event's features; 0 for none.
        uncompressed: bytes.
    """

    steps: list[Step]
    events: int
    nodes: int
    event_bytes: int
    uncompressed: int

    @property
    def compressed(self) -> int:
        """Bytes of each batch's distinct rows."""
        return sum(
            len(step.node_U) * NODE_BYTES + len(step.event_E) * self.event_bytes
            for step in self.steps
        )


def training_part(events: Events) -> EventRange:
    """The 70% that `tidegraph train` trains on."""
    return events.split(val=0.15, test=0.15).train


def prepared(train: EventRange, batch_size: int, layers: int) -> Iterator[PreparedBatch]:
    """The batches of the first epoch, as `Trainer` prepares them."""
    events = train.events
    stream = Stream.open(events, (part_of(train, batch_size),), History(neighbors=(10,) * layers))
    seen = np.zeros(events.schema.num_nodes, bool)
    seen[events.target[train.kept()]] = True
    negatives = NegativeSampler(events, NegativeSettings(seed=0), nodes=np.flatnonzero(seen))
    for number in stream.phase(stream.parts[0].name).batches:
        yield stream.preparer.prepare(number, negatives.draw_at(stream.plan.events(number)))


def accesses(name: str, events: Events, batch_size: int, layers: int) -> Epoch:
    """Prepare an epoch and keep the names of what it uses."""
    features = events.schema.event_features
    if name == "wikipedia":
        features = WIKIPEDIA_FEATURES
    steps, node_uses, event_uses = [], 0, 0
    for batch in prepared(training_part(events), batch_size, layers):
        roots, slots = uncompressed_rows(batch)
        node_uses, event_uses = node_uses + roots + slots, event_uses + slots
        assert batch.writes is not None
        used = used_events(batch) if features else np.empty(0, np.int32)
        steps.append(Step(batch.node_U, torch.from_numpy(used), batch.writes.node_W.numpy()))
    uncompressed = node_uses * NODE_BYTES + event_uses * 4 * features
    return Epoch(steps, len(events), events.schema.num_nodes, 4 * features, uncompressed)


def used_slots(batch: PreparedBatch) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Per hop, outermost first: which slots are in use [S, K], and their number per seed [S]."""
    for hop in reversed(batch.hops):
        count_S = hop.count_S.numpy()
        yield np.arange(hop.event_SK.shape[1]) < count_S[:, None], count_S


def used_events(batch: PreparedBatch) -> np.ndarray:
    """Distinct events of neighbours and of pending messages, in the order of preparation."""
    assert batch.mail is not None
    parts = [batch.mail.event_L.numpy()]
    for hop, (used_SK, _) in zip(reversed(batch.hops), used_slots(batch), strict=True):
        parts.insert(0, hop.event_SK.numpy()[used_SK])
    event_X = np.concatenate(parts)
    # The order decides which of equally recent rows is kept.
    event_E = event_X[np.sort(np.unique(event_X, return_index=True)[1])].astype(np.int32)
    # A batch without any event names row 0, for its padding.
    return event_E if len(event_E) else np.zeros(1, np.int32)


def uncompressed_rows(batch: PreparedBatch) -> tuple[int, int]:
    """Roots, and neighbours at all hops, each counted as often as it is used."""
    outer = batch.hops[::-1]
    weight_S = np.bincount(batch.root_R.numpy(), minlength=len(outer[0].count_S))
    roots, slots = int(weight_S.sum()), 0
    for depth, (used_SK, count_S) in enumerate(used_slots(batch)):
        slots += int(weight_S @ count_S)
        if depth + 1 < len(outer):
            hop, below = outer[depth], len(outer[depth + 1].count_S)
            neighbor_X = hop.neighbor_SK.numpy()[used_SK]
            # A seed's own neighbours at the layer below are those it has here: counted once.
            inner_S = np.bincount(neighbor_X, np.repeat(weight_S, count_S), below)
            weight_S = inner_S.astype(np.int64)
    return roots, slots


class NoVectors:
    """A table of no width: a cache in front of it decides and counts, and moves nothing."""

    width = 0

    def rows(self, index: np.ndarray) -> Tensor:
        return torch.empty(len(index), 0)


def replay(
    epoch: Epoch, policy: str, window: int, node_slots: int, event_slots: int
) -> tuple[Traffic, float]:
    """The traffic of an epoch, and the seconds the caches took to decide it."""
    nodes = cache_of(policy, window, epoch.nodes, node_slots, [s.node_U for s in epoch.steps])
    events = cache_of(policy, window, epoch.events, event_slots, [s.event_E for s in epoch.steps])
    written_N = np.zeros(epoch.nodes, bool)

    def announce(step: Step) -> None:
        nodes.announce(step.node_U)
        if epoch.event_bytes:
            events.announce(step.event_E)

    started = time.perf_counter()
    for step in look_ahead(epoch.steps, nodes.residents.window, announce):
        if epoch.event_bytes:
            events.fetch(step.event_E)
        nodes.fetch(step.node_U, ~written_N[step.node_U.numpy()])
        nodes.put(step.node_W, torch.empty(len(step.node_W), 0))
        written_N[step.node_W] = True
    seconds = time.perf_counter() - started
    written = sum(len(step.node_W) for step in epoch.steps) * NODE_BYTES
    of_nodes = with_bytes(nodes.total, NODE_BYTES, written)
    return of_nodes + with_bytes(events.total, epoch.event_bytes, 0), seconds


def cache_of(policy: str, window: int, rows: int, slots: int, parts: list[Tensor]) -> SlimCache:
    """A cache that moves nothing; for "frequency", chosen from all that the epoch uses."""
    residents: Residents
    if policy == "frequency":
        frequent = residents = Frequent(rows, slots)
        frequent.choose(np.bincount(torch.cat(parts).numpy(), minlength=rows))
    else:
        residents = NextUse(rows, slots, window if policy == "next-use" else 0)
    return SlimCache(NoVectors(), residents, torch.device("cpu"))


def with_bytes(total: Traffic, row_bytes: int, written: int) -> Traffic:
    """Counts of rows as bytes."""
    moved, saved = total.misses * row_bytes, (total.hits + total.zeros) * row_bytes
    return replace(total, moved=moved, saved=saved, written=written)


def touched(epoch: Epoch) -> tuple[int, int]:
    """Distinct nodes and events of the whole epoch."""
    nodes = np.zeros(epoch.nodes, bool)
    events = np.zeros(epoch.events, bool)
    for step in epoch.steps:
        nodes[step.node_U.numpy()] = True
        events[step.event_E.numpy()] = True
    return int(nodes.sum()), int(events.sum())


def measure(name: str, batch_size: int, layers: int, options: Options) -> dict[str, object]:
    """All budgets and policies on one data set, and other windows at a budget of 10%."""
    generated = name.startswith("synthetic:")
    events = load_dataset(name, scale=options.scale if generated else 1.0)
    epoch = accesses(name, events, batch_size, layers)
    nodes, edges = touched(epoch)
    rows = []
    plans = [(one, policy, options.window) for one in options.budgets for policy in POLICIES]
    plans += [(0.10, "next-use", other) for other in options.windows]
    for budget, policy, ahead in plans:
        slots = int(budget * nodes), int(budget * edges)
        traffic, seconds = replay(epoch, policy, ahead, *slots)
        rows.append(
            {
                "budget": budget,
                "policy": policy,
                "window": ahead if policy == "next-use" else None,
                "moved_MB": round(traffic.moved / 1e6, 1),
                "less_than_uncompressed": round(1 - traffic.moved / epoch.uncompressed, 3),
                "less_than_compressed": round(1 - traffic.moved / epoch.compressed, 3),
                "hit_rate": round(traffic.hit_rate, 3),
                "decide_ms": round(1e3 * seconds / len(epoch.steps), 3),
            }
        )
    U = sum(len(step.node_U) for step in epoch.steps)
    return {
        "data": f"{name} (scale {options.scale:g})" if generated else name,
        "batch": batch_size,
        "layers": layers,
        "batches": len(epoch.steps),
        "rows_touched": {"nodes": nodes, "events": edges},
        "rows_per_batch": {
            "nodes": round(U / len(epoch.steps)),
            "events": round(sum(len(step.event_E) for step in epoch.steps) / len(epoch.steps)),
        },
        "uncompressed_MB": round(epoch.uncompressed / 1e6, 1),
        "compressed_MB": round(epoch.compressed / 1e6, 1),
        "known_zero_MB": round(traffic.zeros * NODE_BYTES / 1e6, 1),
        "written_MB": round(traffic.written / 1e6, 1),
        "cached": rows,
    }


def verify(name: str, scale: float, batch_size: int, layers: int, window: int) -> bool:
    """Train one epoch through the caches: its counters against those of the replay."""
    events = load_dataset(name, scale=scale)
    train, val, _ = events.split(val=0.15, test=0.15)
    epoch = accesses(name, events, batch_size, layers)
    same = True
    for policy in POLICIES:
        model = build_model("tgn", events.schema, layers=layers)
        trainer = Trainer(
            model, epochs=1, batch_size=batch_size, candidates=0, state="host", cache=policy,
            cache_budget=0.1, cache_window=window,
        )  # fmt: skip
        found = trainer.fit(train, val).records[0].traffic
        slots = int(0.1 * epoch.nodes), int(0.1 * epoch.events)
        expected = asdict(replay(epoch, policy, window, *slots)[0])
        same &= found == expected
        print(f"{name}, {policy}: trained {found}")
        print(f"{name}, {policy}: replayed {'the same' if found == expected else expected}")
    return same


def show(result: dict[str, object]) -> None:
    """One data set as text."""
    heading = {key: value for key, value in result.items() if key != "cached"}
    print("\n" + ", ".join(f"{key} {value}" for key, value in heading.items()))
    print(
        f"{'budget':>7} {'policy':>10} {'window':>6} {'moved MB':>9} {'vs uncompressed':>15} "
        f"{'vs compressed':>13} {'hit rate':>8} {'decide ms':>9}"
    )
    for row in result["cached"]:  # type: ignore[attr-defined]
        window = "-" if row["window"] is None else row["window"]
        print(
            f"{row['budget']:>7.0%} {row['policy']:>10} {window:>6} "
            f"{row['moved_MB']:>9} {-row['less_than_uncompressed']:>15.1%} "
            f"{-row['less_than_compressed']:>13.1%} {row['hit_rate']:>8} {row['decide_ms']:>9}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--data", nargs="+", default=["wikipedia", "flights", "mathoverflow", "synthetic:talk"]
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[200])
    parser.add_argument("--layers", type=int, nargs="+", default=[1])
    parser.add_argument("--scale", type=float, default=1.0, help="of generated data")
    parser.add_argument("--window", type=int, default=64, help="batches announced ahead")
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS)
    parser.add_argument(
        "--windows", type=int, nargs="*", default=WINDOWS, help="others to compare, at 10%%"
    )
    parser.add_argument("--verify", action="store_true", help="train on generated data and compare")
    parser.add_argument("--json", action="store_true", help="print JSON lines only")
    arguments = parser.parse_args()
    if arguments.verify:
        size, layers = arguments.batch[0], arguments.layers[0]
        sys.exit(not verify("synthetic:wikipedia", 0.1, size, layers, arguments.window))
    options = Options(arguments.scale, arguments.window, arguments.budgets, arguments.windows)
    for name in arguments.data:
        for batch_size in arguments.batch:
            for layers in arguments.layers:
                result = measure(name, batch_size, layers, options)
                if arguments.json:
                    print(json.dumps(result), flush=True)
                else:
                    show(result)


if __name__ == "__main__":
    main()
