"""Your own table: read it, train, keep the run, and score tomorrow's events from disk.

    python examples/own_table.py payments.csv

Without a file, the table is made up: customers pay shops, with an amount, and text ids. The
columns of yours are named in `COLUMNS`.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import tidegraph as tg

COLUMNS = {"source": "customer", "target": "shop", "time": "when", "features": ["amount"]}


def main(arguments: Sequence[str]) -> None:
    """Train on all but the last tenth of the rows, then predict these."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        table = Path(arguments[0]) if arguments else make_table(place / "payments.csv")
        known, tomorrow = cut(table, place)

        events = tg.read_table(known, **COLUMNS)
        train, val, test = events.split(val=0.2, test=0.2)
        model = tg.models.TGN(events.schema, memory=32, time=32, embedding=32)
        trainer = tg.Trainer(model, directory=place / "run", epochs=3, batch_size=50, candidates=5)
        run = trainer.fit(train, val)
        print(run.evaluate(test, advance=True).metrics["AP"])
        run.save()  # where the stream stands now: after the test events

        # Later, in another process: the run opens where it was saved and goes on from there.
        run = tg.load_run(place / "run", at="stream")
        later = tg.read_table(tomorrow, **COLUMNS)
        found = run.predict_events(later, candidates=5)
        for row in range(3):
            print(
                f"{found.source[row]} pays {found.target[row]}: probability {found.score[row]:.2f}"
            )
        print(f"mean reciprocal rank {np.mean(1 / found.rank):.3f}")


def make_table(path: Path, rows: int = 600) -> Path:
    """Customers who mostly return to their favourite shop."""
    rng = np.random.default_rng(0)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "shop", "when", "amount"])
        for second in range(rows):
            customer = int(rng.integers(20))
            shop = customer % 5 if rng.random() < 0.8 else int(rng.integers(8))
            moment = f"2024-01-01T00:{second // 60:02}:{second % 60:02}"
            writer.writerow([f"c{customer}", f"s{shop}", moment, round(rng.gamma(2.0), 2)])
    return path


def cut(table: Path, place: Path) -> tuple[Path, Path]:
    """The table as two files: the first nine tenths, and the rest."""
    header, *rows = table.read_text().splitlines()
    border = len(rows) * 9 // 10
    parts = place / "known.csv", place / "tomorrow.csv"
    for path, chosen in zip(parts, (rows[:border], rows[border:]), strict=True):
        path.write_text("\n".join([header, *chosen]) + "\n")
    return parts


if __name__ == "__main__":
    main(sys.argv[1:])
