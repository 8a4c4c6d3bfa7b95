"""`tidegraph bench`: this machine's figures for the parts of a training step, as a table.

One generated stream, the published sizes (10 neighbours, 2 heads, widths 100, 172 features). The
median of repeats is shown; nothing is kept.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Annotated, Any

import numpy as np
import torch
import typer

from tidegraph import ops
from tidegraph._jit import set_threads
from tidegraph.batches.negatives import NegativeSampler, NegativeSettings
from tidegraph.cli.warm_up import warm_up
from tidegraph.events import Events, load_dataset
from tidegraph.models import TGN, build_model
from tidegraph.models.layers import AttentionLayer
from tidegraph.report.console import Printer
from tidegraph.report.floor import Floor, training_products
from tidegraph.report.plain import print_json
from tidegraph.report.usage import peak_resident_bytes, versions
from tidegraph.state import NodeState
from tidegraph.train import EagerExecutor, Stream, TrainSettings
from tidegraph.train.adam import Adam
from tidegraph.train.stream import Part

_REPEATS = 15
_SECONDS = 3.0  # most time for the repeats of one figure


@dataclass(frozen=True)
class Figure:
    """One measured part.

    Attributes:
        name: of the part.
        milliseconds: median of one call.
        per_second: of what, and how many of them a second, or None.
    """

    name: str
    milliseconds: float
    unit: str = ""
    per_second: float | None = None


def command() -> Callable[..., Any]:
    """The command."""
    return bench


def bench(
    batch: Annotated[int, typer.Option(min=1, help="events per batch")] = 200,
    scale: Annotated[
        float, typer.Option(min=0.02, help="size of the generated stream; 1: 157,474 events")
    ] = 0.25,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all)")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="print only the result")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="print one JSON object as the last line of stdout")
    ] = False,
) -> None:
    """Measure sampling, preparation, attention, memory update and a whole training step."""
    if threads is not None:
        set_threads(threads)
    printer = Printer(quiet=quiet, results_only=json)
    name = f"synthetic:wikipedia:{scale:g}"
    events = load_dataset(name)
    settings = TrainSettings.of({"batch_size": batch, "candidates": 0})
    warm_up(events, "tgn", {}, settings, False, printer)
    figures = measure(events, batch)
    if not (quiet and json):
        title = f"{name}, batch {batch}, {torch.get_num_threads()} threads"
        printer.results.print(_table(figures, title))
    if json:
        print_json(
            {
                "command": "bench",
                "data": name,
                "batch_size": batch,
                "threads": torch.get_num_threads(),
                "figures": [vars(figure) for figure in figures],
                "peak_resident_bytes": peak_resident_bytes(),
                "versions": versions(),
            }
        )


def measure(events: Events, batch_size: int) -> list[Figure]:
    """Figures of every part, on batches from the middle of the stream."""
    model = build_model("tgn", events.schema)
    assert isinstance(model, TGN)
    part = Part("train", 0, len(events), batch_size)
    stream = Stream.open(events, (part,), model.history)
    step = _Step(model, stream, len(stream.plan) // 2)
    roots = 3 * batch_size
    found = [
        _timed("sample 10 recent neighbours", step.sample, "roots", roots),
        _timed("prepare a batch", step.prepare, "events", batch_size),
        _timed("attention, forward and backward", step.attention),
        _timed("memory update, forward and backward", step.memory_update),
        _timed("score a batch", step.score, "events", batch_size),
    ]
    train = _timed("training step", step.train, "events", batch_size)
    prepared = next(one for one in found if one.name == "prepare a batch")
    whole = (train.milliseconds + prepared.milliseconds) / 1e3
    found += [train, Figure("prepare and train", 1e3 * whole, "events", batch_size / whole)]
    floor = _timed("its bare matrix products (floor)", step.floor)
    return [*found, floor]


class _Step:
    """The parts of a step, each callable any number of times.

    Sampling and preparation take another batch each time, since the same one would be answered
    from the processor's cache; the rest repeats one batch.
    """

    def __init__(self, model: TGN, stream: Stream, number: int) -> None:
        self.model, self.stream, self.number = model, stream, number
        self.negatives = NegativeSampler(stream.events, NegativeSettings(seed=0))
        self.state = NodeState(stream.events.schema.num_nodes, model.columns)
        self.state.version = number
        optimizer = Adam(model.named_parameters(), learning_rate=1e-3)
        self.executor = EagerExecutor(model, self.state, optimizer)
        event_B = stream.plan.events(number)
        self.batch = stream.preparer.prepare(number, self.negatives.draw_at(event_B))
        self._floor: Floor | None = None
        self.numbers = cycle(range(number, len(stream.plan) - 1))
        self.roots = cycle([self._roots(one) for one in range(number, len(stream.plan) - 1)])

    def _roots(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        event_B, events = self.stream.plan.events(number), self.stream.events
        ends = (
            events.source[event_B], events.target[event_B], self.negatives.draw_at(event_B)[:, 0]
        )  # fmt: skip
        return np.concatenate(ends), np.tile(events.time[event_B], 3)

    def sample(self) -> None:
        self.stream.index.sample(*next(self.roots), 10)

    def prepare(self) -> None:
        number = next(self.numbers)
        negative_BC = self.negatives.draw_at(self.stream.plan.events(number))
        self.stream.preparer.prepare(number, negative_BC)

    def attention(self) -> None:
        layer, code, hop = self.model.attention[0], self.model.time_code, self.batch.hops[0]
        assert isinstance(layer, AttentionLayer)
        heads, rows = layer.heads, hop.neighbor_SK.shape[0]
        query_HSW = torch.randn(heads, rows, layer.key.shape[2], requires_grad=True)
        table_RD = torch.randn(len(self.batch.node_U), self.model.memory_width, requires_grad=True)
        result_HSW = ops.temporal_attention(
            query_HSW, table_RD, hop, self.batch.features, code.weight, code.bias
        )
        result_HSW.sum().backward()  # type: ignore[no-untyped-call]

    def memory_update(self) -> None:
        mail = self.batch.mail
        assert mail is not None
        memory_UD, mail_UD = self.state.read(self.batch)
        updated_UD = self.model.memory_cell(
            memory_UD, mail_UD, mail, self.batch.features, self.model.time_code
        )
        updated_UD.sum().backward()

    def floor(self) -> None:
        if self._floor is None:
            self._floor = Floor(training_products(self.model, self.batch))
        self._floor.run()

    def score(self) -> None:
        self.model.eval()
        self.executor.score(self.batch, write=False)

    def train(self) -> None:
        self.model.train()
        self.state.version = self.number  # the same batch again
        self.executor.train(self.batch)


def _timed(name: str, call: Callable[[], None], unit: str = "", count: int = 0) -> Figure:
    call()
    call()
    seconds: list[float] = []
    begun = time.perf_counter()
    while len(seconds) < _REPEATS and time.perf_counter() - begun < _SECONDS:
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds)
    return Figure(name, 1e3 * median, unit, count / median if count else None)


def _table(figures: list[Figure], title: str) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("part of a step")
    table.add_column("ms", justify="right")
    table.add_column("a second", justify="right")
    for figure in figures:
        rate = "" if figure.per_second is None else f"{figure.per_second:,.0f} {figure.unit}"
        table.add_row(figure.name, f"{figure.milliseconds:.3f}", rate)
    return table
