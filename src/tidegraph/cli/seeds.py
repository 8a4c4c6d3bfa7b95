"""`tidegraph train --seeds N`: runs that differ in their seed, and their mean and deviation.

The directory holds a run per seed, `settings.yaml` (how each is trained) and `seeds.json` (what is
finished), so that an interrupted series goes on with the seed it was stopped in.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tidegraph.cli.app import Interrupted
from tidegraph.errors import CheckpointError
from tidegraph.report.console import Printer
from tidegraph.report.plain import print_json
from tidegraph.report.spread import spread_rows, spread_tables, spread_values
from tidegraph.train.run_files import write_atomically

_FILE = "seeds.json"


def several_seeds(directory: Path) -> bool:
    """Whether a directory holds runs of several seeds."""
    return (directory / _FILE).exists()


@dataclass(frozen=True)
class SeedRuns:
    """Runs of several seeds in one directory.

    Attributes:
        directory: of all.
        seeds: in order.
        done: seed -> the run's JSON object, of those that are finished.
    """

    directory: Path
    seeds: tuple[int, ...]
    done: dict[int, dict[str, Any]]

    @classmethod
    def new(cls, directory: Path, seeds: Sequence[int], settings: dict[str, Any]) -> SeedRuns:
        """Begin in an empty directory."""
        runs = cls(directory, tuple(seeds), {})
        write_atomically(runs.settings, yaml.safe_dump(_plain(settings), sort_keys=False))
        runs._write()
        return runs

    @classmethod
    def open(cls, directory: Path) -> SeedRuns:
        """What was begun in a directory.

        Raises:
            CheckpointError: its file is damaged.
        """
        path = directory / _FILE
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            done = {int(seed): values for seed, values in found["runs"].items()}
            seeds = tuple(int(seed) for seed in found["seeds"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}): train again, or use the single runs beside it"
            ) from None
        return cls(directory, seeds, done)

    @property
    def settings(self) -> Path:
        """How each is trained, as a file for --config."""
        return self.directory / "settings.yaml"

    def directory_of(self, seed: int) -> Path:
        """Of one run."""
        return self.directory / f"seed-{seed}"

    def run(
        self, run_one: Callable[[int], dict[str, Any]], printer: Printer, as_json: bool
    ) -> None:
        """Train what is missing, then print means and deviations.

        Args:
            run_one: trains and tests one seed's run; returns its JSON object.
            printer: where to.
            as_json: print one JSON object as the last line.
        """
        for seed in self.seeds:
            if seed in self.done:
                continue
            printer.say(f"seed      {seed} ({self.seeds.index(seed) + 1} of {len(self.seeds)})")
            try:
                self.done[seed] = run_one(seed)
            except BaseException as error:
                started = self.done or self.directory_of(seed).exists()
                if not started:
                    shutil.rmtree(self.directory, ignore_errors=True)
                if isinstance(error, KeyboardInterrupt):
                    place = shlex.quote(str(self.directory))
                    advice = f"go on with: tidegraph train --resume {place}"
                    raise Interrupted(advice if started else "nothing was kept") from None
                raise
            self._write()
        values = self._values()
        for line in spread_tables(values["summary"], self.seeds, "test"):
            if not (as_json and printer.quiet):
                printer.result(line)
        if as_json:
            print_json(values)
            return
        printer.say()
        printer.say(f"runs      {self.directory} ({self.directory / _FILE} has every figure)")

    def _values(self) -> dict[str, Any]:
        runs = [self.done[seed] for seed in self.seeds if seed in self.done]
        return {
            "command": "train",
            "seeds": list(self.seeds),
            "summary": spread_values(spread_rows(runs)),
            "runs": {str(seed): self.done[seed] for seed in self.seeds if seed in self.done},
            "paths": {"runs": str(self.directory)},
        }

    def _write(self) -> None:
        write_atomically(self.directory / _FILE, json.dumps(self._values(), indent=1) + "\n")


def _plain(value: Any) -> Any:
    """Tuples as lists, as YAML has them."""
    return json.loads(json.dumps(value))
