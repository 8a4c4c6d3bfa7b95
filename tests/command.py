"""The command line run inside the test's process, and the table that its tests use.

u0..u9 --(amount, hour, kind)--> a..e     one event a minute; user i prefers item i mod 5
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegraph.cli import main

COLUMNS = ["--source", "user", "--target", "item", "--time", "ts"]
FEATURES = ["--features", "amount", "hour"]
SMALL = ["--memory", "8", "--model-time", "8", "--embedding", "8", "--neighbors", "3",
         "--batch-size", "20", "--evaluation-batch-size", "10", "--candidates", "3",
         "--epochs", "2"]  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> Any:
        """The JSON object in the last line of stdout."""
        return json.loads(self.out.strip().splitlines()[-1])

    @property
    def rows(self) -> list[dict[str, str]]:
        """Stdout as CSV."""
        return list(csv.DictReader(io.StringIO(self.out)))


def cli(*arguments: object) -> Result:
    """Run `tidegraph arguments`."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        main([str(argument) for argument in arguments])
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.stdout, sys.stderr = kept
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return Result(code, *texts)


def write_table(
    path: Path, first: int = 0, rows: int = 120, **changes: Callable[[int], Any]
) -> Path:
    """Rows `first` to `first + rows`; `changes` replace a column by a function of the row."""
    make = {
        "user": lambda i: f"u{i % 10}",
        "item": lambda i: "abcde"[i % 5] if i % 7 else "abcde"[(i * i) % 5],
        "ts": lambda i: 60 * i,
        "amount": lambda i: f"{(i % 13) / 4}",
        "hour": lambda i: i % 24,
        "kind": lambda i: "xyz"[i % 3],
        "is_fraud": lambda i: int(i % 11 == 0),
    } | changes
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(make)
        for i in range(first, first + rows):
            writer.writerow([column(i) for column in make.values()])
    return path
