"""Write a large, seeded CSV of events with text ids, to measure reading.

    python scripts/make_csv.py /tmp/events.csv --rows 20000000 --users 2000000 --items 200000

Columns: user, item, ts, f0, f1. Users and items are drawn with a heavy tail; times grow by 0 to 2
seconds a row, and one row in a thousand is late by up to an hour.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

CHUNK = 1_000_000
START = 1_700_000_000


def skewed(generator: np.random.Generator, bound: int, count: int) -> np.ndarray:
    """Integers in [0, bound), most of them from a small part; every one is reachable."""
    exponent = np.where(generator.random(count) < 0.5, 3.0, 1.0)
    return (bound * generator.random(count) ** exponent).astype(np.int64)


def text_ids(prefix: str, number: np.ndarray) -> pa.Array:
    """`prefix` and the number scrambled, so that sorted text differs from first appearance."""
    scrambled = (number * 2_654_435_761) % (1 << 40)
    return pc.binary_join_element_wise(prefix, pa.array(scrambled).cast(pa.string()), "")


def chunks(rows: int, users: int, items: int, seed: int):  # type: ignore[no-untyped-def]
    """Tables of up to a million rows."""
    generator = np.random.default_rng(seed)
    clock = START
    for first in range(0, rows, CHUNK):
        count = min(CHUNK, rows - first)
        time = clock + np.cumsum(generator.integers(0, 3, count))
        clock = int(time[-1])
        late = generator.random(count) < 0.001
        time[late] -= generator.integers(1, 3600, int(late.sum()))
        yield pa.table(
            {
                "user": text_ids("user_", skewed(generator, users, count)),
                "item": text_ids("item_", skewed(generator, items, count)),
                "ts": time,
                "f0": generator.standard_normal(count).round(4),
                "f1": generator.random(count).round(4),
            }
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--users", type=int, default=2_000_000)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    writer = None
    for table in chunks(options.rows, options.users, options.items, options.seed):
        if writer is None:
            style = pyarrow.csv.WriteOptions(quoting_style="none")
            writer = pyarrow.csv.CSVWriter(options.path, table.schema, write_options=style)
        writer.write_table(table)
    if writer is not None:
        writer.close()
    size = options.path.stat().st_size / 1e6
    print(f"wrote {options.rows:,} rows, {size:,.0f} MB to {options.path}")


if __name__ == "__main__":
    main()
