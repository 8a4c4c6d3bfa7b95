"""Locality: throughput and simulated cache misses of the sampler in plain and in locality order.

Two graphs of 20 million events and 2 million nodes, ids shuffled, times sorted uniform integers:

- "zipf": both endpoints drawn with probability proportional to 1 / rank; no other structure.
- "lives": nodes of heavy-tailed activity (Zipf weights, exponent 0.8, cut at 1/100,000 of all) are
  active for one stretch of 2% to 20% of the stream, in communities of 200 that live together; nine
  of ten events stay within a community.

The work, from the middle of the stream: training batches (source, target and one uniformly random
negative of consecutive events), their second hop, and ranking with 100 uniformly random
candidates. Both orders run the same kernels, in turns; 10 neighbours, no edge times. "plain" is by
node id. "one by one" is what the kernels' layout and order of work are worth: on the plain index,
each root by itself, a binary search over its node's entries, then the copy.

Misses come from a simulated last-level cache (LRU, 32 MiB, 16 ways, lines of 64 bytes; and LRU
TLBs of 1024 pages of 4 KiB) that is fed the addresses which the sampler's own kernels touch, see
`memory_trace.py`. It counts the index alone, in one thread; the count repeats.

    python benchmarks/locality.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass

from memory_trace import count_misses, trace_calls
from sampler import zipf_nodes

from tidegraph.history import Neighbors, TemporalIndex
from tidegraph.history.kernels import NO_LIMIT, count_before

import numba  # isort: skip  (after tidegraph, which sets the threading layer up)
import numpy as np  # isort: skip

WAYS = ("one by one", "plain", "locality")
Call = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Stream:
    source: np.ndarray
    target: np.ndarray
    time: np.ndarray
    num_nodes: int


def zipf_stream(num_nodes: int, events: int) -> Stream:
    rng = np.random.default_rng(20)
    source = zipf_nodes(rng, num_nodes, events)
    target = zipf_nodes(rng, num_nodes, events)
    return Stream(source, target, np.sort(rng.integers(0, 2 * events, events)), num_nodes)


def lives_stream(num_nodes: int, events: int, community: int = 200) -> Stream:
    rng = np.random.default_rng(21)
    groups = num_nodes // community
    length = rng.uniform(0.02, 0.2, groups)
    birth = rng.uniform(0, 1 - length)
    weight = np.arange(1, num_nodes + 1) ** -0.8
    weight = np.minimum(weight / weight.sum(), 1e-5)
    rng.shuffle(weight)  # position g * community + i is member i of community g
    running = np.cumsum(weight)
    source = np.searchsorted(running / running[-1], rng.random(events)).astype(np.int64)
    group = np.minimum(source // community, groups - 1)
    inside = group * community
    before = np.where(inside > 0, running[np.maximum(inside - 1, 0)], 0.0)
    share = running[np.minimum(inside + community, num_nodes) - 1] - before
    target = np.searchsorted(running, before + rng.random(events) * share)
    moment = birth[group] + rng.random(events) * length[group]
    at = np.argsort(moment, kind="stable")
    source, target = source[at], np.minimum(target[at], num_nodes - 1)
    # One event in ten leaves its community: its target is that of an event close in time.
    away = np.flatnonzero(rng.random(events) < 0.1)
    target[away] = target[np.minimum(away + rng.integers(1, 20_000, len(away)), events - 1)]
    shuffled = rng.permutation(num_nodes).astype(np.int32)
    times = np.sort(rng.integers(0, 2 * events, events))
    return Stream(shuffled[source], shuffled[target], times, num_nodes)


def batches(stream: Stream, size: int, negatives: int, roots: int) -> list[Call]:
    """Calls of consecutive batches: sources, targets, negatives, at the events' times."""
    rng = np.random.default_rng(22)
    first, calls = len(stream.time) // 2, []
    width = 2 + negatives
    for begin in range(first, first + max(roots // width, size), size):
        part = slice(begin, begin + size)
        drawn = rng.integers(0, stream.num_nodes, size * negatives).astype(np.int32)
        nodes = np.concatenate([stream.source[part], stream.target[part], drawn])
        when = stream.time[part]
        calls.append((nodes, np.concatenate([when, when, np.repeat(when, negatives)])))
    return calls


def second_hop(index: TemporalIndex, calls: list[Call]) -> list[Call]:
    found = [index.sample(nodes, times, 10) for nodes, times in calls]
    return [(f.neighbor_SK[f.mask_SK], f.time_SK[f.mask_SK]) for f in found]


def make_work(index: TemporalIndex, stream: Stream, roots: int) -> dict[str, list[Call]]:
    hop = batches(stream, 6000, 1, 18_000)
    return {
        "train, batch 200": batches(stream, 200, 1, roots // 4),
        "train, batch 6,000": batches(stream, 6000, 1, roots),
        "train, batch 60,000": batches(stream, 60_000, 1, roots),
        "second hop of 6,000": second_hop(index, hop) * 3,
        "ranking, 1,000 x 100": batches(stream, 1000, 100, roots),
    }


@numba.njit(parallel=True, error_model="numpy")
def sample_one_by_one(indptr_N1, entries, nodes_S, times_S, k, neighbor_SK, event_SK, delta_SK):  # type: ignore[no-untyped-def]
    """What `TemporalIndex.sample` finds, by a search of its own for each root."""
    for s in numba.prange(len(nodes_S)):
        lo, hi = indptr_N1[nodes_S[s]], indptr_N1[nodes_S[s] + 1]
        end = count_before(entries, lo, hi, times_S[s], NO_LIMIT, False)
        start = max(lo, end - k)
        for i in range(k):
            found = start + i < end
            entry = entries[start + i if found else 0]
            neighbor_SK[s, i] = entry.neighbor if found else -1
            event_SK[s, i] = entry.event if found else -1
            delta_SK[s, i] = np.float32(times_S[s] - entry.time) if found else 0


def million_per_second(index: TemporalIndex, calls: list[Call], one_by_one: bool) -> float:
    kind = index.entries.dtype
    most = max(len(nodes) for nodes, _ in calls)
    room = Neighbors.empty(most, 10, kind["event"], kind["time"], edge_times=False)
    room.neighbor_SK.fill(0), room.event_SK.fill(0), room.delta_SK.fill(0)
    total, start = 0, time.perf_counter()
    for nodes, times in calls:
        n = len(nodes)
        out = Neighbors(
            room.neighbor_SK[:n],
            room.event_SK[:n],
            room.delta_SK[:n],
            room.time_SK[:n],
            room.count_S[:n],
        )
        if one_by_one:
            rows = (out.neighbor_SK, out.event_SK, out.delta_SK)
            sample_one_by_one(index.indptr_N1, index.entries, nodes, times, 10, *rows)
        else:
            index.sample(nodes, times, 10, edge_times=False, out=out)
        total += n
    return total / (time.perf_counter() - start) / 1e6


def check_one_by_one(index: TemporalIndex, nodes: np.ndarray, times: np.ndarray) -> None:
    """Both ways must find the same."""
    fast, plain = (index.sample(nodes, times, 10, edge_times=False) for _ in range(2))
    rows = (plain.neighbor_SK, plain.event_SK, plain.delta_SK)
    for row in rows:
        row.fill(7)
    sample_one_by_one(index.indptr_N1, index.entries, nodes, times, 10, *rows)
    for name in ("neighbor_SK", "event_SK", "delta_SK"):
        if not np.array_equal(getattr(fast, name), getattr(plain, name)):
            raise AssertionError(f"the two ways found another {name}")


def measure(name: str, stream: Stream, arguments: argparse.Namespace) -> list[dict[str, object]]:
    indexes, built = {}, {}
    for order in ("plain", "locality"):
        start = time.perf_counter()
        indexes[order] = TemporalIndex.build(
            stream.source, stream.target, stream.time, stream.num_nodes, order=order
        )
        built[order] = time.perf_counter() - start
    indexes["one by one"], built["one by one"] = indexes["plain"], built["plain"]
    rows = []
    for work, calls in make_work(indexes["plain"], stream, arguments.roots).items():
        check_one_by_one(indexes["plain"], *calls[0])
        rates: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(arguments.repeats):
            for way in WAYS if number % 2 else WAYS[::-1]:
                rates[way].append(million_per_second(indexes[way], calls, way == "one by one"))
        for way in WAYS:
            pairs = zip(rates[way], rates["plain"], strict=True)
            row = {
                "graph": name,
                "work": work,
                "roots_per_call": len(calls[0][0]),
                "order": way,
                "build_s": round(built[way], 2),
                "median": round(statistics.median(rates[way]), 2),
                "best": round(max(rates[way]), 2),
                "gain": round(statistics.median(fast / slow for fast, slow in pairs), 2),
            }
            if arguments.misses and way != "one by one":
                row |= simulate(indexes[way], calls)
            rows.append(row)
            print(line(row), flush=True)
    return rows


def simulate(index: TemporalIndex, calls: list[Call], most: int = 360_000) -> dict[str, object]:
    """Misses per root after a first call (or third of the roots) that fills the cache."""
    total = sum(len(nodes) for nodes, _ in calls)
    calls = calls * max(1, -(-most // 4 // total)) if len(calls) == 1 else calls
    trace, roots = trace_calls(index, calls, 10, most)
    lines, pages = count_misses(trace)
    return {
        "touches_per_root": round(len(trace) / roots, 2),
        "misses_per_root": round(lines / roots, 3),
        "tlb_misses_per_root": round(pages / roots, 3),
    }


def line(row: dict[str, object]) -> str:
    cells = [f"{row['graph']:6} {row['work']:20} {row['roots_per_call']:>8} {row['order']:>10}"]
    cells += [f"{row['median']:>8} {row['best']:>8} {row['gain']:>6} {row['build_s']:>8}"]
    if "misses_per_root" in row:
        cells.append(
            f"{row['touches_per_root']:>8} {row['misses_per_root']:>8} "
            f"{row['tlb_misses_per_root']:>8}"
        )
    return " ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--events", type=int, default=20_000_000)
    parser.add_argument("--roots", type=int, default=360_000, help="roots per measurement, about")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=numba.config.NUMBA_NUM_THREADS)
    parser.add_argument("--graphs", nargs="+", default=["zipf", "lives"])
    parser.add_argument("--no-misses", dest="misses", action="store_false")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    arguments = parser.parse_args()
    numba.set_num_threads(arguments.threads)
    print(
        f"{'graph':6} {'work':20} {'roots':>8} {'order':>10} {'M/s':>8} {'best':>8} {'gain':>6} "
        f"{'build s':>8} {'touches':>8} {'misses':>8} {'TLB':>8}   (the last three per root)"
    )
    makers = {"zipf": zipf_stream, "lives": lives_stream}
    rows = []
    for name in arguments.graphs:
        rows += measure(name, makers[name](arguments.nodes, arguments.events), arguments)
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
