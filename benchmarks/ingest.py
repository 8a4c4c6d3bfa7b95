"""Measure reading: seconds, rows a second, peak resident memory, and how fast the store reopens.

    python scripts/make_csv.py /tmp/events.csv --rows 20000000 --users 2000000 --items 200000
    python benchmarks/ingest.py /tmp/events.csv --source user --target item --time ts

Prints one JSON object. The store is written beside the file and removed afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

_REOPEN = """
import json, sys, time
import tidegraph.events as events
begin = time.perf_counter()
opened = events.open_events(sys.argv[1])
first = opened.ids.to_original(opened.source[:1])[0]
found = time.perf_counter()
assert opened.ids.to_internal([first], side="source" if opened.schema.bipartite else None)[0] == (
    opened.source[0]
)
print(json.dumps({"open": found - begin, "first_lookup": time.perf_counter() - found}))
"""


def reopen(directory: Path) -> dict[str, float]:
    """Seconds to open the store and to look one id up, in a fresh process, after imports."""
    command = [sys.executable, "-c", _REOPEN, str(directory)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds: dict[str, float] = json.loads(result.stdout)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--source", default="user")
    parser.add_argument("--target", default="item")
    parser.add_argument("--time", default="ts")
    parser.add_argument("--features", default="rest")
    parser.add_argument("--memory-limit", default=None)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--keep", action="store_true", help="do not remove the store")
    options = parser.parse_args()

    from tidegraph.events import read_table

    store = options.path.with_suffix(".events")
    begin = time.perf_counter()
    events = read_table(
        options.path,
        source=options.source,
        target=options.target,
        time=options.time,
        features=options.features,
        store=store,
        memory_limit=options.memory_limit,
        threads=options.threads,
    )
    seconds = time.perf_counter() - begin
    usage = resource.getrusage(resource.RUSAGE_SELF)
    opened = reopen(store)
    figures = {
        "rows": len(events),
        "nodes": events.schema.num_nodes,
        "seconds": round(seconds, 2),
        "rows_per_second": round(len(events) / seconds),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_resident_gib": round(usage.ru_maxrss / 2**20, 3),
        "file_mb": round(options.path.stat().st_size / 1e6),
        "store_mb": round(sum(file.stat().st_size for file in store.iterdir()) / 1e6),
        "reopen_seconds": round(opened["open"], 4),
        "first_lookup_seconds": round(opened["first_lookup"], 4),
        "cpus": os.cpu_count(),
    }
    print(json.dumps(figures, indent=1))
    if not options.keep:
        shutil.rmtree(store)


if __name__ == "__main__":
    main()
