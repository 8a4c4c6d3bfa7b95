"""Sampler throughput: roots per second, by call size, strategy and threads, and seconds to build.

The set-up: 1 million nodes, 5 million events; both endpoints of every event are drawn with
probability proportional to 1 / rank over a random ranking of the nodes (Zipf, exponent 1); times
are sorted uniform integers. The undirected index has 10 million entries. Roots are the two
endpoints of each event at its own time, in the order of the stream, strictly before; 10 neighbours
each. A call takes 600 or 60,000 consecutive roots and writes into preallocated arrays. Each
measurement walks the same stretch from the middle of the stream; the median and the best of several
repeats are printed, strategies and threads interleaved.

    python benchmarks/sampler.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

from tidegraph.history import Neighbors, TemporalIndex
from tidegraph.keys import Purpose, make_key

import numba  # isort: skip  (after tidegraph, which sets the threading layer up)
import numpy as np  # isort: skip


def zipf_nodes(rng: np.random.Generator, num_nodes: int, count: int) -> np.ndarray:
    """`count` nodes, node of rank r with probability proportional to 1 / r."""
    share = np.cumsum(1.0 / np.arange(1, num_nodes + 1))
    rank = np.searchsorted(share / share[-1], rng.random(count))
    ranked: np.ndarray = rng.permutation(num_nodes).astype(np.int32)[rank]
    return ranked


def make_stream(num_nodes: int, events: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(20)
    source = zipf_nodes(rng, num_nodes, events)
    target = zipf_nodes(rng, num_nodes, events)
    return source, target, np.sort(rng.integers(0, 2 * events, events))


def build_seconds(stream: tuple[np.ndarray, ...], num_nodes: int, repeats: int) -> list[float]:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        TemporalIndex.build(*stream, num_nodes)
        seconds.append(time.perf_counter() - start)
    return seconds


def roots_per_second(
    index: TemporalIndex, nodes: np.ndarray, times: np.ndarray, size: int, strategy: str
) -> float:
    """One walk over the roots in calls of `size`."""
    kind = index.entries.dtype
    out = Neighbors.empty(size, 10, kind["event"], kind["time"], edge_times=False)
    key = make_key(0, Purpose.NEIGHBOR)
    last = len(nodes) - size + 1
    start = time.perf_counter()
    for first in range(0, last, size):
        stop = first + size
        index.sample(
            nodes[first:stop],
            times[first:stop],
            10,
            strategy=strategy,
            key=key,
            edge_times=False,
            out=out,
        )
    return (last + size - 1) // size * size / (time.perf_counter() - start)


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    source, target, at = make_stream(arguments.nodes, arguments.events)
    index = TemporalIndex.build(source, target, at, arguments.nodes)  # compiles
    most = min(arguments.threads, numba.config.NUMBA_NUM_THREADS)
    result: dict[str, object] = {
        "nodes": arguments.nodes,
        "events": arguments.events,
        "cpus": os.cpu_count(),
        "load_before": os.getloadavg()[0],
    }
    for threads in sorted({1, most}):
        numba.set_num_threads(threads)
        built = build_seconds((source, target, at), arguments.nodes, arguments.repeats)
        result[f"build_seconds_{threads}_threads"] = round(statistics.median(built), 3)

    middle = arguments.events // 2
    stretch = slice(middle, middle + arguments.roots // 2)
    nodes = np.column_stack([source[stretch], target[stretch]]).ravel()
    times = np.repeat(at[stretch], 2)
    rates: dict[tuple[int, str, int], list[float]] = {}
    for repeat in range(arguments.repeats + 1):
        for size in (600, 60_000):
            for strategy in ("recent", "uniform"):
                for threads in sorted({1, most}):
                    numba.set_num_threads(threads)
                    rate = roots_per_second(index, nodes, times, size, strategy)
                    if repeat:  # the first round compiles and warms up
                        rates.setdefault((size, strategy, threads), []).append(rate / 1e6)
    result["million_roots_per_second"] = [
        {
            "roots_per_call": size,
            "strategy": strategy,
            "threads": threads,
            "median": round(statistics.median(found), 2),
            "best": round(max(found), 2),
        }
        for (size, strategy, threads), found in rates.items()
    ]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--roots", type=int, default=1_200_000, help="roots per measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=numba.config.NUMBA_NUM_THREADS)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    arguments = parser.parse_args()
    result = measure(arguments)
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        if name != "million_roots_per_second":
            print(f"{name:24} {value}")
    print(f"\n{'roots/call':>10} {'strategy':>9} {'threads':>7} {'median M/s':>11} {'best M/s':>9}")
    for row in result["million_roots_per_second"]:
        print(
            f"{row['roots_per_call']:>10} {row['strategy']:>9} {row['threads']:>7} "
            f"{row['median']:>11} {row['best']:>9}"
        )


if __name__ == "__main__":
    main()
