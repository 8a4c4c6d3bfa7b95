"""A feature table far larger than the memory a process may have trains from its mapped file.

The process is limited by the operating system (RLIMIT_DATA counts all private writable memory, not
mapped files), and shows that the limit holds: it cannot allocate the table.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WIDTH = 4096  # a row is 16 KiB
PROGRAM = """
import resource, sys
from dataclasses import replace
from pathlib import Path

import numpy as np

import tidegraph as tg

place, dtypes = Path(sys.argv[1]), sys.argv[2].split(",")
rows, width, allowed = map(int, sys.argv[3:])
batch = 100


def status(name):
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024


def stream(count, name):
    table = np.lib.format.open_memmap(place / name, "w+", np.float32, (count, width))
    table[::997] = np.linspace(-1, 1, width, dtype=np.float32)  # the rest stays a hole in the file
    del table
    mapped = np.asarray(np.load(place / name, mmap_mode="r"))
    event = np.arange(count)
    events = tg.Events.from_arrays(event % 97, 97 + event * 7 % 89, event)
    names = tuple(f"f{n}" for n in range(width))
    schema = replace(events.schema, event_features=width, feature_names=names)
    return replace(events, features=mapped, schema=schema, fingerprint=name)


class Watch(tg.train.Listener):
    peak = 0

    def advanced(self, events, loss):
        self.peak = max(self.peak, status("RssAnon"))


def train(events, dtype):
    watch = Watch()
    train, val, _ = events.split(val=0.2, test=0.1)
    model = tg.models.TGN(events.schema, memory=8, time=8, embedding=8, neighbors=1, heads=1)
    run = tg.Trainer(model, epochs=1, batch_size=batch, evaluation_batch_size=batch, candidates=0,
                     feature_type=dtype, listener=watch).fit(train, val)
    assert np.isfinite(run.records[0].loss)
    return watch.peak, run


small = stream(400, "small.npy")
for dtype in dtypes:
    train(small, dtype)  # kernels are compiled before memory is limited
big = stream(rows, "big.npy")
limit = status("VmData") + allowed
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.ones((rows, width), np.float32)
except MemoryError:
    pass
else:
    sys.exit("the limit does not hold: the table could be allocated")
before = status("RssAnon")
for dtype in dtypes:
    peak, run = train(big, dtype)
    table = run.stream.preparer.features.table
    print(f"{rows * width * 4} table, {peak - before} more anonymous memory, {table.dtype}")
    assert peak - before < allowed
"""


def check(place: Path, rows: int, dtypes: list[str], allowed: int) -> None:
    arguments = [str(place), ",".join(dtypes), str(rows), str(WIDTH), str(allowed)]
    try:
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "TIDEGRAPH_CACHE": str(place / "cache")},
            check=False,
        )
        assert result.returncode == 0, result.stderr
        print(result.stdout)
        encoded = list((place / "cache").rglob("codes.npy"))
        assert len(encoded) == len(set(dtypes) - {"float32"})
    finally:
        for path in place.rglob("*.npy"):
            path.unlink()


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and needs RLIMIT_DATA")


@linux
def test_268_megabytes_under_96(tmp_path: Path) -> None:
    check(tmp_path, 16_384, ["float32", "int8"], 96 << 20)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_3_gigabytes_under_128_megabytes(tmp_path: Path, dtype: str) -> None:
    """On disk the float32 file is mostly a hole; the encoded one is written out: 1.6 GB at most."""
    check(tmp_path, 196_608, [dtype], 128 << 20)
