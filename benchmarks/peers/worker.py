"""One measured run of one library, alone in its process: `python -m peers.worker REQUEST RESULT`.

A process of its own gives each library its own peak memory and its own thread pools. The request
and the result are JSON files.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from peers.contract import Adapter, Settings, StageClock
from peers.stream import Stream, read_stream


@dataclass(frozen=True)
class Request:
    """What to run.

    Attributes:
        library: one of `peers.LIBRARIES`.
        directory: of the stream.
        settings: model and optimiser.
        epochs: how many.
        max_batches: train on the first so many batches only; None for all.
        warm_up: batches run and thrown away first, so that compilation is not measured.
    """

    library: str
    directory: str
    settings: Settings
    epochs: int
    max_batches: int | None
    warm_up: int


@dataclass(frozen=True)
class EpochResult:
    """One epoch: speed of its training part, accuracy on the validation part after it.

    Attributes:
        events_per_second, seconds: of the training part.
        stage_seconds: per batch, by stage.
        loss_first, loss_last: mean over the first and the last tenth of the batches.
        ap_batches, ap_all: average precision as a mean over batches, and over all scores at once.
    """

    events_per_second: float
    seconds: float
    batches: int
    stage_seconds: dict[str, float]
    loss_first: float
    loss_last: float
    ap_batches: float
    ap_all: float


@dataclass(frozen=True)
class RunResult:
    """What one process measured; memory in bytes, peaks of resident memory.

    Attributes:
        resident_ready: resident when events and model are there and nothing has run yet.
        peak_training: peak up to the end of the first epoch's training part.
        peak_total: peak up to the end, validation included.
    """

    library: str
    batch_size: int
    epochs: tuple[EpochResult, ...]
    parameters: int
    resident_ready: int
    peak_training: int
    peak_total: int
    versions: dict[str, str]


def load_adapter(library: str) -> type[Adapter]:
    """The class `Peer` of the library's adapter file.

    Raises:
        ImportError: the library is not installed or cannot be loaded.
    """
    adapter: type[Adapter] = importlib.import_module(f"peers.{library}").Peer
    return adapter


def resident_bytes(field: str) -> int:
    """`VmRSS` (now) or `VmHWM` (peak) of this process, in bytes.

    `getrusage` is the fallback only: its peak includes what the parent held when it started us.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def run(request: Request) -> RunResult:
    """Train and validate as asked, and measure."""
    settings = request.settings
    stream = read_stream(Path(request.directory))
    if request.max_batches is not None:
        stream = stream.shortened(request.max_batches * settings.batch_size)
    peer_class = load_adapter(request.library)
    _set_threads(settings.threads)
    _warm_up(peer_class, stream, settings, request.warm_up)
    _seed(settings.seed)
    peer = peer_class(stream, settings)
    ready = resident_bytes("VmRSS")
    epochs, peak_training = [], 0
    for epoch in range(request.epochs):
        trained = _train(peer, stream, stream.train_negative[epoch])
        peak_training = peak_training or resident_bytes("VmHWM")
        ap_batches, ap_all = _validate(peer, stream.val_negative)
        epochs.append(EpochResult(**trained, ap_batches=ap_batches, ap_all=ap_all))
    return RunResult(
        library=request.library,
        batch_size=settings.batch_size,
        epochs=tuple(epochs),
        parameters=peer.parameter_count(),
        resident_ready=ready,
        peak_training=peak_training,
        peak_total=resident_bytes("VmHWM"),
        versions=peer_class.versions(),
    )


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _seed(seed: int) -> None:
    import torch

    torch.manual_seed(seed)


def _warm_up(peer_class: type[Adapter], stream: Stream, settings: Settings, batches: int) -> None:
    """Run a throw-away model for a few batches."""
    if batches <= 0:
        return
    short = stream.shortened(batches * settings.batch_size)
    peer = peer_class(short, settings)
    for _loss in peer.train_epoch(stream.train_negative[0], StageClock()):
        pass
    del peer
    gc.collect()


def _train(peer: Adapter, stream: Stream, negative_E: np.ndarray) -> dict[str, object]:
    clock, losses = StageClock(), []
    start = time.perf_counter()
    losses = list(peer.train_epoch(negative_E, clock))
    seconds = time.perf_counter() - start
    if not np.isfinite(losses).all():
        raise FloatingPointError(f"batch {int(np.argmin(np.isfinite(losses)))}: loss is not finite")
    tenth = max(1, len(losses) // 10)
    return {
        "events_per_second": stream.sizes.train_stop / seconds,
        "seconds": seconds,
        "batches": len(losses),
        "stage_seconds": {name: total / len(losses) for name, total in clock.seconds.items()},
        "loss_first": float(np.mean(losses[:tenth])),
        "loss_last": float(np.mean(losses[-tenth:])),
    }


def _validate(peer: Adapter, negative_E: np.ndarray) -> tuple[float, float]:
    return average_precision(list(peer.validate(negative_E)))


def average_precision(scores: list[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    """AP as the mean over batches, and AP over all scores at once.

    Args:
        scores: for each batch, the scores of the positives and of the negatives.

    >>> average_precision([(np.array([1.0]), np.array([0.0])), (np.array([0.0]), np.array([1.0]))])
    (0.75, 0.5)
    """
    from sklearn.metrics import average_precision_score

    def of(positive: np.ndarray, negative: np.ndarray) -> float:
        label = np.repeat([1, 0], [len(positive), len(negative)])
        return float(average_precision_score(label, np.concatenate([positive, negative])))

    positive, negative = (np.concatenate(side) for side in zip(*scores, strict=True))
    return float(np.mean([of(*batch) for batch in scores])), of(positive, negative)


def batch_ranges(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Borders of the batches of events `start .. stop - 1`.

    >>> batch_ranges(0, 5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    borders = [*range(start, stop, size), stop]
    return list(itertools.pairwise(borders))


def main(arguments: list[str]) -> int:
    """Read the request, run it, write the result. `probe LIBRARY` only tries the import."""
    if arguments[0] == "probe":
        print(json.dumps(load_adapter(arguments[1]).versions()))
        return 0
    fields = json.loads(Path(arguments[0]).read_text())
    request = Request(**{**fields, "settings": Settings(**fields["settings"])})
    Path(arguments[1]).write_text(json.dumps(asdict(run(request))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
