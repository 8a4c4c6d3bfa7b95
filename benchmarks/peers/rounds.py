"""The order of the runs, and the process that each of them gets.

Libraries take turns, and every other round goes backwards (A B C, C B A, ...), so that a machine
that slows down or speeds up meanwhile favours nobody.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from peers.worker import Request

_HERE = Path(__file__).resolve().parent.parent
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class WorkerError(RuntimeError):
    """A process that ended without a result; the message is the end of what it printed."""


@dataclass(frozen=True)
class Turn:
    """One run: which library, at which batch size, in which round."""

    library: str
    batch_size: int
    round: int


def plan(libraries: list[str], batch_sizes: list[int], repeats: int) -> list[Turn]:
    """All turns, in order.

    >>> [turn.library for turn in plan(["a", "b"], [200], 2)]
    ['a', 'b', 'b', 'a']
    """
    turns = []
    for batch_size in batch_sizes:
        for number in range(repeats):
            order = libraries if number % 2 == 0 else libraries[::-1]
            turns += [Turn(library, batch_size, number) for library in order]
    return turns


def probe(library: str) -> tuple[dict[str, str] | None, str]:
    """The library's versions, or None and the reason why it cannot be imported."""
    done = _python(["probe", library], threads=1)
    if done.returncode == 0:
        versions: dict[str, str] = json.loads(done.stdout)
        return versions, ""
    return None, _last_line(done.stderr)


def measure(request: Request, scratch: Path) -> dict[str, Any]:
    """Run `request` in a fresh process; its `RunResult` as a dictionary.

    Raises:
        WorkerError: the process failed.
    """
    asked, answered = scratch / "request.json", scratch / "result.json"
    asked.write_text(json.dumps(asdict(request)))
    answered.unlink(missing_ok=True)
    done = _python([str(asked), str(answered)], threads=request.settings.threads)
    if done.returncode != 0 or not answered.exists():
        raise WorkerError(
            f"{request.library} at batch {request.settings.batch_size} ended with code "
            f"{done.returncode}: {_last_line(done.stderr)}"
        )
    result: dict[str, Any] = json.loads(answered.read_text())
    return result


def _python(arguments: list[str], threads: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "peers.worker", *arguments],
        cwd=_HERE,
        env={**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(threads))},
        capture_output=True,
        text=True,
        check=False,
    )


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
