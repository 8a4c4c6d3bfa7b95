"""How few shapes hold a plan's batches, and how much of them is padding.

For each stream and batch size, templates are chosen as training chooses them (from at most 512
batches of the first epoch); then every batch of the second epoch, which has other negatives, is put
into one. Printed are the number of templates, the padding rows per real row, that of the class that
wastes most, the batches that fit none, and the time that choosing and padding take.

    python benchmarks/templates.py
    python benchmarks/templates.py --data wikipedia uci --batch 200 --json

Rows are those of a TGN with ten neighbours: events, seeds, nodes, nodes with mail, mails, endpoints
written and their partners.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass

import numpy as np

from tidegraph.batches import PreparedBatch, TemplateSet, pad
from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
from tidegraph.batches.templates import sizes_of
from tidegraph.events import load_dataset
from tidegraph.models import build_model
from tidegraph.train import Stream
from tidegraph.train.executors import spread
from tidegraph.train.stream import Part

TRAIN = 0.7


@dataclass(frozen=True)
class Found:
    """One row of the table; waste is padding rows per real row."""

    data: str
    batch: int
    batches: int
    templates: int
    waste: float
    worst_class: float
    misses: int
    choose_seconds: float
    pad_ms: float


def measure(data: str, size: int) -> Found:
    """Choose on epoch 0, count on epoch 1."""
    events = load_dataset(data)
    model = build_model("tgn", events.schema)
    part = Part("train", 0, int(len(events) * TRAIN), size)
    stream = Stream.open(events, (part,), model.history)
    sampler = NegativeSampler(events, NegativeSettings(seed=0))

    def prepare(number: int, epoch: int) -> PreparedBatch:
        drawn = sampler.draw_at(stream.plan.events(number), epoch=epoch)
        return stream.preparer.prepare(number, drawn, epoch=epoch)

    numbers = stream.phase("train").batches
    prepare(0, 0)  # kernels are loaded
    began = time.perf_counter()
    chosen = TemplateSet.fit(
        (prepare(number, 0) for number in spread(numbers)), num_nodes=events.schema.num_nodes
    )
    seconds = time.perf_counter() - began
    real_d, room_d, misses, padding = 0, 0, 0, []
    for number in numbers:
        batch = prepare(number, 1)
        began = time.perf_counter()
        template = chosen.choose(batch)
        if template is None:
            misses += 1
            continue
        pad(batch, template)
        padding.append(time.perf_counter() - began)
        real_d = real_d + np.array(sizes_of(batch).vector())
        room_d = room_d + np.array(template.sizes.vector())
    real_d, room_d = np.asarray(real_d)[:-1], np.asarray(room_d)[:-1]  # the store is no class
    return Found(
        data=data,
        batch=size,
        batches=len(numbers),
        templates=len(chosen.templates),
        waste=float(room_d.sum() / real_d.sum() - 1),
        worst_class=float((room_d / real_d).max() - 1),
        misses=misses,
        choose_seconds=seconds,
        pad_ms=1e3 * float(np.median(padding)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--data", nargs="+", default=["wikipedia", "flights", "uci", "mathoverflow"]
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[200, 600, 2000])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    print("| data | batch | batches | templates | padding | worst | fit none | chosen in | pad |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows = []
    for data in options.data:
        for size in options.batch:
            row = measure(data, size)
            rows.append(asdict(row))
            print(
                f"| {data} | {size:,} | {row.batches:,} | {row.templates} | {row.waste:.1%} | "
                f"{row.worst_class:.1%} | {row.misses} | {row.choose_seconds:.2f} s | "
                f"{row.pad_ms:.2f} ms |",
                flush=True,
            )
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
