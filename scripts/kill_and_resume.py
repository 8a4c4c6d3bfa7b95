"""Train, kill the process at random moments, resume, and compare with a run left in peace.

Every attempt is a process of its own that gets SIGKILL: while it trains, validates, tests or writes
a file. It is started again with `resume=True` until the run is complete; then weights, optimiser,
node state, cursor and metrics must equal the uninterrupted run's bit for bit. Runs are repeated
until the wanted number of kills is reached.

    python scripts/kill_and_resume.py --data uci --kills 20 --epochs 3
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tidegraph._jit import set_threads
from tidegraph.events import load_dataset
from tidegraph.models import build_model
from tidegraph.train import Listener, Trainer, TrainSettings
from tidegraph.train.checkpoint import load_checkpoint
from tidegraph.train.run_files import RunFiles, write_atomically

RESULT = "result.json"
TIMINGS = (
    "events_per_second", "seconds", "stages", "evaluation_seconds", "exposed", "staleness",
)  # fmt: skip


class Beat(Listener):
    """Tells the watching process about each batch, on a pipe."""

    def __init__(self, pipe: int) -> None:
        self.pipe, self.place, self.batch = pipe, "", 0

    def started(self, phase: str, epoch: int | None, events: int) -> None:
        self.place, self.batch = phase if epoch is None else f"{phase}, epoch {epoch + 1}", 0

    def advanced(self, events: int, loss: float | None) -> None:
        self.batch += 1
        os.write(self.pipe, f"{self.place}, {self.batch} batches on\n".encode())


@dataclass
class Attempt:
    """A child process that trains."""

    process: int
    pipe: int
    place: str = "before its first batch"

    def watch(self, seconds: float | None) -> bool:
        """Follow it for `seconds` (None: to its end); whether it has ended."""
        until = None if seconds is None else time.monotonic() + seconds
        while until is None or time.monotonic() < until:
            left = None if until is None else max(0.0, until - time.monotonic())
            if select.select([self.pipe], [], [], left)[0]:
                told = os.read(self.pipe, 1 << 16)
                if not told:
                    return True
                self.place = told.decode().strip().splitlines()[-1]
        return False

    def first_batch(self) -> bool:
        """Wait for its first batch; whether it has ended before."""
        told = os.read(self.pipe, 1 << 16)
        return not told

    def kill(self) -> bool:
        """SIGKILL; whether that is what ended it."""
        os.kill(self.process, signal.SIGKILL)
        return self.end() == -signal.SIGKILL

    def end(self) -> int:
        """Its exit status, negative for a signal."""
        _, status = os.waitpid(self.process, 0)
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(status)


def start(job: Callable[[int], object]) -> Attempt:
    """Fork a process for `job`, which gets a pipe to tell about its progress.

    This process only imports: it never runs a kernel, so there are no threads to lose in a fork.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if process:
        os.close(writing)
        return Attempt(process, reading)
    code = 1
    try:
        os.close(reading)
        job(writing)
        sys.stdout.flush()
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os._exit(code)


def training(options: argparse.Namespace, directory: Path) -> Attempt:
    """Start a process that trains in `directory`, going on from what is there."""
    return start(lambda pipe: train(options, directory, Beat(pipe)))


def train(options: argparse.Namespace, directory: Path, listener: Listener) -> None:
    """The whole job of one process: train (or go on), test, write the figures down."""
    set_threads(options.threads)
    events = load_dataset(options.data, scale=options.scale)
    part, val, test = events.split(val=0.15, test=0.15)
    settings = TrainSettings(
        epochs=options.epochs, batch_size=options.batch_size, candidates=10, seed=options.seed,
        patience=0, checkpoint_batches=options.checkpoint_batches, **json.loads(options.training),
    )  # fmt: skip
    model = build_model("tgn", events.schema, seed=options.seed, **json.loads(options.model))
    trainer = Trainer(model, settings, directory=directory, listener=listener)
    run = trainer.fit(part, val, resume=True)
    evaluation = run.evaluate(test, listener=listener, advance=True)
    figures = {
        "records": [without_timings(asdict(record)) for record in run.records],
        "best_epoch": run.best_epoch,
        "test": evaluation.metrics.values(),
        "state": run.state.checksum(),
    }
    write_atomically(directory / RESULT, json.dumps(figures))


def without_timings(record: dict[str, Any]) -> dict[str, Any]:
    """What of an epoch must be equal: all but how long it took."""
    return {name: value for name, value in record.items() if name not in TIMINGS}


def differences(directory: Path, expected: Path) -> list[str]:
    """How two complete runs differ; empty where they are equal bit for bit."""
    found = []
    ours, theirs = (json.loads((d / RESULT).read_text()) for d in (directory, expected))
    found += [
        f"{name}: {ours[name]} != {theirs[name]}" for name in ours if ours[name] != theirs[name]
    ]
    for which in ("best", "last"):
        one, other = (load_checkpoint(getattr(RunFiles(d), which)) for d in (directory, expected))
        if one.tensors.keys() != other.tensors.keys():
            found.append(f"{which}: other tensors: {one.tensors.keys() ^ other.tensors.keys()}")
            continue
        for name, tensor in one.tensors.items():
            same = tensor.dtype == other.tensors[name].dtype and torch.equal(
                tensor.reshape(-1).view(torch.uint8),
                other.tensors[name].reshape(-1).view(torch.uint8),
            )
            if not same:
                found.append(f"{which}: {name} differs")
        for about in (one.about, other.about):
            about["cursor"]["records"] = [without_timings(r) for r in about["cursor"]["records"]]
        if one.about != other.about:
            found.append(f"{which}: {one.about} != {other.about}")
    left = [path for path in directory.rglob(".*") if path.is_file()]
    return found + [f"left behind: {path}" for path in left]


def equal(directory: Path, expected: Path) -> bool:
    """Compare two complete runs (in a process of its own) and print how they differ."""

    def compare(_: int) -> None:
        found = differences(directory, expected)
        if found:
            raise SystemExit("\n".join(found))

    return start(compare).end() == 0


def uninterrupted(options: argparse.Namespace, directory: Path) -> float:
    """Train in peace; returns the seconds from the first batch to the end."""
    attempt = training(options, directory)
    attempt.first_batch()
    started = time.monotonic()
    attempt.watch(None)
    if attempt.end() != 0:
        raise SystemExit("the uninterrupted run failed")
    return time.monotonic() - started


def interrupted(
    options: argparse.Namespace, directory: Path, wanted: int, mean: float, draw: random.Random
) -> int:
    """Train to the end with at most `wanted` kills, `mean` seconds apart; returns how many."""
    kills = 0
    while True:
        attempt = training(options, directory)
        ended = attempt.first_batch()
        if not ended:
            ended = attempt.watch(draw.uniform(0, 2 * mean) if kills < wanted else None)
        if ended:
            if attempt.end() != 0:
                raise SystemExit("a resumed run failed")
            return kills
        if attempt.kill():
            kills += 1
            print(f"killed {kills}: {attempt.place}", flush=True)


def main() -> int:
    """Run it; 1 where anything differs."""
    options = parse()
    draw = random.Random(options.kill_seed)
    root = Path(tempfile.mkdtemp(prefix="kill-and-resume-"))
    try:
        seconds = uninterrupted(options, root / "peace")
        print(f"uninterrupted: {seconds:.1f} s from the first batch to the end", flush=True)
        kills = runs = 0
        same = True
        while kills < options.kills and same:
            runs += 1
            directory = root / f"killed-{runs}"
            left = options.kills - kills
            kills += interrupted(options, directory, left, seconds / (left + 1), draw)
            same = equal(directory, root / "peace")
    finally:
        shutil.rmtree(root, ignore_errors=True)
    verdict = "weights, optimiser, state and metrics equal bit for bit" if same else "DIFFERENT"
    print(f"{options.data}: {kills} kills in {runs} runs of {options.epochs} epochs: {verdict}")
    return 0 if same else 1


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="uci", help="name of a data set")
    parser.add_argument("--scale", type=float, default=1.0, help="of a synthetic data set")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--checkpoint-batches", type=int, default=10)
    parser.add_argument("--model", default="{}", help="settings of the TGN as JSON")
    parser.add_argument("--training", default="{}", help="more settings of training as JSON")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--kill-seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
