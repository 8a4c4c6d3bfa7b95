"""Temporal attention alone, forward and backward: folded and fused, beside the projected form.

    python benchmarks/attention.py
    python benchmarks/attention.py --shapes 1800x10 --time-code trainable --json

Every variant does the same work from the same numbers. In: a table of node vectors [R, 100], event
features [157474, 172], time differences, each seed's neighbours. Out: the heads' results [S, 100],
before any merge layer; then the gradients of the table, of the query, key and value projections
and, on request, of the time code (width 100). 2 heads, no dropout, float32.

    plain           as PyTorch code in this field has it: index_select and cat to [S k, 372], a
                    Linear for keys and one for values, masked softmax, sum
    tidegraph       projections folded, `ops.temporal_attention`
    plain_ragged    the projected form over the used edges alone, softmax and sum by scatter
    ragged          projections folded, `ops.segment_attention`

and, of the softmax alone over the same edges, `scatter_softmax` and `edge_softmax`. A hop's
transposed index comes with a prepared batch, so the time to make it is printed, not counted.

Before timing, each variant's outputs and gradients are compared with the plain form in float64 (the
plain form in float32 is compared too: it forms w * delta in float32, and its time code shows it).
Variants take turns, every other round backwards; medians, spread (the quartiles) and ratios of
medians are printed. Peak memory is that of a process which does nothing but one variant.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from tidegraph import ops  # first: it sets the threads up
from tidegraph.batches import Hop

import numba  # isort: skip
import numpy as np  # isort: skip
import torch  # isort: skip
from torch import Tensor  # isort: skip
from torch.nn import functional  # isort: skip

WIDTH, FEATURES, TIME, EMBEDDING, HEADS = 100, 172, 100, 100, 2
EVENTS = 157_474
VARIANTS = ("plain", "tidegraph", "plain_ragged", "ragged")
PAIRS = (("plain", "tidegraph"), ("plain_ragged", "ragged"), ("scatter_softmax", "edge_softmax"))


@dataclass(frozen=True, eq=False)
class Inputs:
    """One case; leaves are what gets a gradient. `value` is [E, W], as a Linear holds it."""

    hop: Hop
    ragged: ops.RaggedHop
    features_EF: Tensor
    table_RD: Tensor
    query_EX: Tensor  # [E, D + T]
    query_bias_E: Tensor
    key_EW: Tensor
    value_EW: Tensor
    time_weight_T: Tensor
    time_bias_T: Tensor
    upstream_SE: Tensor

    def leaves(self) -> dict[str, Tensor]:
        """What requires a gradient, by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value
            for name, value in named.items()
            if isinstance(value, Tensor) and value.requires_grad
        }

    def double(self) -> Inputs:
        """The same numbers in float64; event features and time differences stay as they are."""
        return self._each(lambda value: value.double())

    def with_grad(self, trained_time: bool) -> Inputs:
        """The same numbers as new leaves."""
        copy = self._each(lambda value: value.detach().clone().requires_grad_())
        if not trained_time:
            time = (self.time_weight_T.detach(), self.time_bias_T.detach())
            copy = replace(copy, time_weight_T=time[0], time_bias_T=time[1])
        return replace(copy, upstream_SE=copy.upstream_SE.detach())

    def _each(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        names = [f.name for f in fields(self) if f.name not in ("hop", "ragged", "features_EF")]
        return replace(self, **{name: change(getattr(self, name)) for name in names})


def draw_hop(rng: np.random.Generator, seeds: int, k: int, rows: int, events: int) -> Hop:
    """5% of the seeds have no neighbour, 10% fewer than k; a neighbour of rank r is drawn with
    probability proportional to 1 / r (Zipf); an event uniformly; differences are log-uniform from
    a second to a month."""
    share_R = np.cumsum(1.0 / np.arange(1, rows + 1))
    rank_SK = np.searchsorted(share_R / share_R[-1], rng.random((seeds, k)))
    kind_S = rng.random(seeds)
    count_S = np.where(kind_S < 0.15, rng.integers(1, k, seeds), k)
    count_S[kind_S < 0.05] = 0
    used_SK = np.arange(k) < count_S[:, None]
    neighbor_SK = np.where(used_SK, rng.permutation(rows)[rank_SK], -1).astype(np.int32)
    event_SK = np.where(used_SK, rng.integers(0, events, (seeds, k)), 0).astype(np.int32)
    delta_SK = np.where(used_SK, np.round(10 ** rng.uniform(0, 6.4, (seeds, k))), 0)
    self_S = torch.from_numpy(rng.integers(0, rows, seeds).astype(np.int32))
    return Hop(
        self_S=self_S,
        neighbor_SK=torch.from_numpy(np.maximum(neighbor_SK, 0)),
        event_SK=torch.from_numpy(event_SK),
        delta_SK=torch.from_numpy(delta_SK.astype(np.float32)),
        count_S=torch.from_numpy(count_S.astype(np.int32)),
        self_uses=ops.transpose(self_S, rows),
        neighbor_uses=ops.transpose(torch.from_numpy(neighbor_SK.reshape(-1)), rows),
    )


def make_inputs(
    seeds: int, k: int, trained_time: bool = False, events: int | None = None
) -> Inputs:
    """Two rows in the table for each seed; projections as a layer initialises them."""
    events = events or EVENTS
    rng = np.random.default_rng(3)
    hop = draw_hop(rng, seeds, k, 2 * seeds, events)
    row = WIDTH + FEATURES + TIME

    def uniform(out: int, width: int) -> Tensor:
        drawn = rng.uniform(-1, 1, (out, width)) / math.sqrt(width)
        return torch.from_numpy(drawn.astype(np.float32))

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape, np.float32))

    return Inputs(
        hop=hop,
        ragged=ops.ragged(hop),
        features_EF=normal(events, FEATURES),
        table_RD=normal(2 * seeds, WIDTH),
        query_EX=3 * uniform(EMBEDDING, WIDTH + TIME),  # scores of either sign, some large
        query_bias_E=uniform(1, EMBEDDING)[0],
        key_EW=3 * uniform(EMBEDDING, row),
        value_EW=uniform(EMBEDDING, row),
        time_weight_T=(10 ** torch.linspace(0, -9, TIME, dtype=torch.float64)).float(),
        time_bias_T=torch.zeros(TIME),
        upstream_SE=normal(seeds, EMBEDDING),
    ).with_grad(trained_time)


# ---------------------------------------------------------------- the projected forms


def projected_query(x: Inputs) -> Tensor:
    """[S, E], scaled."""
    own_SD = x.table_RD.index_select(0, x.hop.self_S)
    at_zero_ST = torch.cos(x.time_bias_T).expand(len(own_SD), -1)
    query_SE = functional.linear(torch.cat([own_SD, at_zero_ST], 1), x.query_EX, x.query_bias_E)
    return query_SE / math.sqrt(EMBEDDING // HEADS)


def projected_rows(
    x: Inputs, neighbor_M: Tensor, event_M: Tensor, delta_M: Tensor
) -> tuple[Tensor, Tensor]:
    """Keys and values, [M, E] each."""
    code_MT = torch.cos(
        delta_M.to(x.time_weight_T.dtype).unsqueeze(1) * x.time_weight_T + x.time_bias_T
    )
    row_MW = torch.cat(
        [
            x.table_RD.index_select(0, neighbor_M),
            x.features_EF.index_select(0, event_M).to(x.table_RD.dtype),
            code_MT,
        ],
        dim=1,
    )
    return functional.linear(row_MW, x.key_EW), functional.linear(row_MW, x.value_EW)


def plain(x: Inputs) -> Tensor:
    """Dense: padded slots are projected too and masked in the softmax."""
    S, K = x.hop.neighbor_SK.shape
    key_PE, value_PE = projected_rows(
        x, x.hop.neighbor_SK.view(-1), x.hop.event_SK.view(-1), x.hop.delta_SK.view(-1)
    )
    query_SHd = projected_query(x).view(S, HEADS, -1)
    key_SKHd, value_SKHd = key_PE.view(S, K, HEADS, -1), value_PE.view(S, K, HEADS, -1)
    score_SKH = (query_SHd.unsqueeze(1) * key_SKHd).sum(3)
    unused_SK1 = (torch.arange(K) >= x.hop.count_S.unsqueeze(1)).unsqueeze(2)
    weight_SKH = torch.softmax(score_SKH.masked_fill(unused_SK1, -1e10), dim=1)
    out_SE = (weight_SKH.unsqueeze(3) * value_SKHd).sum(1).reshape(S, EMBEDDING)
    return out_SE.masked_fill((x.hop.count_S == 0).unsqueeze(1), 0.0)


def scatter_softmax(score_MH: Tensor, seed_M: Tensor, seeds: int) -> Tensor:
    """Softmax by scatter: maximum, exponential, sum, division."""
    index_MH = seed_M.unsqueeze(1).expand_as(score_MH)
    empty_SH = score_MH.new_zeros(seeds, score_MH.shape[1])
    largest_SH = empty_SH.scatter_reduce(0, index_MH, score_MH.detach(), "amax", include_self=False)
    term_MH = torch.exp(score_MH - largest_SH.index_select(0, seed_M))
    total_SH = empty_SH.scatter_add(0, index_MH, term_MH)
    return term_MH / total_SH.index_select(0, seed_M)


def seeds_of(hop: ops.RaggedHop) -> Tensor:
    """[M], each edge's seed: an edge list is what the scatter forms start from."""
    return torch.repeat_interleave(torch.diff(hop.indptr_S1).long())


def plain_ragged(x: Inputs) -> Tensor:
    """As graph libraries do it: one row per edge, then scatter."""
    S = len(x.hop.self_S)
    seed_M = seeds_of(x.ragged)
    key_ME, value_ME = projected_rows(x, x.ragged.neighbor_M, x.ragged.event_M, x.ragged.delta_M)
    query_MHd = projected_query(x).index_select(0, seed_M).view(len(seed_M), HEADS, -1)
    score_MH = (query_MHd * key_ME.view(len(seed_M), HEADS, -1)).sum(2)
    weight_MH1 = scatter_softmax(score_MH, seed_M, S).unsqueeze(2)
    part_ME = (weight_MH1 * value_ME.view(len(seed_M), HEADS, -1)).view(len(seed_M), EMBEDDING)
    return part_ME.new_zeros(S, EMBEDDING).index_add(0, seed_M, part_ME)


# ---------------------------------------------------------------- the folded forms


def folded(x: Inputs, attend: Callable[[Tensor], Tensor]) -> Tensor:
    """Key projection into the query, value projection onto the sum, attention between."""
    S = len(x.hop.self_S)
    head = EMBEDDING // HEADS
    own_SD = ops.gather_rows(x.table_RD, x.hop.self_S, x.hop.self_uses)
    at_zero_E = x.query_EX[:, WIDTH:] @ torch.cos(x.time_bias_T)
    query_SE = torch.addmm(x.query_bias_E + at_zero_E, own_SD, x.query_EX[:, :WIDTH].t())
    key_HdW = x.key_EW.view(HEADS, head, -1) / math.sqrt(head)
    query_HSW = torch.bmm(query_SE.view(S, HEADS, head).transpose(0, 1), key_HdW)
    value_HWd = x.value_EW.view(HEADS, head, -1).transpose(1, 2)
    return torch.bmm(attend(query_HSW), value_HWd).transpose(0, 1).reshape(S, EMBEDDING)


def tidegraph(x: Inputs) -> Tensor:
    """The fixed fan-out operator."""
    return folded(
        x,
        lambda query: ops.temporal_attention(
            query, x.table_RD, x.hop, x.features_EF, x.time_weight_T, x.time_bias_T
        ),
    )


def ragged(x: Inputs) -> Tensor:
    """The segment operator."""
    return folded(
        x,
        lambda query: ops.segment_attention(
            query, x.table_RD, x.ragged, x.features_EF, x.time_weight_T, x.time_bias_T
        ),
    )


RUN: dict[str, Callable[[Inputs], Tensor]] = {
    "plain": plain,
    "tidegraph": tidegraph,
    "plain_ragged": plain_ragged,
    "ragged": ragged,
}


# ---------------------------------------------------------------- measuring


def step(x: Inputs, variant: str) -> dict[str, Tensor]:
    """One forward and backward pass: the output and every gradient."""
    leaves = x.leaves()
    for leaf in leaves.values():
        leaf.grad = None
    out_SE = RUN[variant](x)
    out_SE.backward(x.upstream_SE)
    grads = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return {"output": out_SE.detach(), **grads}


def softmax_step(x: Inputs, variant: str) -> None:
    """Softmax alone over the case's edges, forward and backward."""
    M = len(x.ragged.delta_M)
    generator = torch.Generator().manual_seed(0)
    score_MH = torch.randn(M, HEADS, generator=generator, requires_grad=True)
    seed_M = seeds_of(x.ragged)
    start = time.perf_counter()
    if variant == "scatter_softmax":
        weight_MH = scatter_softmax(score_MH, seed_M, len(x.hop.self_S))
    else:
        weight_MH = ops.edge_softmax(score_MH, x.ragged.indptr_S1)
    weight_MH.backward(score_MH.detach())
    SECONDS[variant].append(time.perf_counter() - start)


SECONDS: dict[str, list[float]] = {}


def differences(x: Inputs, trained_time: bool) -> dict[str, float]:
    """Largest difference from the plain form in float64, relative to the largest entry of each
    output or gradient; the largest of these, for each variant."""
    expected = step(x.double().with_grad(trained_time), "plain")
    result = {}
    for variant in VARIANTS:
        found = step(x, variant)
        assert found.keys() == expected.keys()
        result[variant] = max(
            float((found[name] - want).abs().max() / want.abs().max())
            for name, want in expected.items()
        )
    return result


def timings(x: Inputs, repeats: int) -> dict[str, list[float]]:
    """Seconds of each variant, in turns; the first two rounds warm up."""
    SECONDS.clear()
    names = [*VARIANTS, "scatter_softmax", "edge_softmax"]
    SECONDS.update({name: [] for name in names})
    for turn in range(repeats + 2):
        if turn == 2:
            for name in names:
                SECONDS[name].clear()
        for name in names if turn % 2 else reversed(names):
            if name not in RUN:
                softmax_step(x, name)
                continue
            start = time.perf_counter()
            step(x, name)
            SECONDS[name].append(time.perf_counter() - start)
    return dict(SECONDS)


def transpose_seconds(x: Inputs) -> float:
    index = torch.where(
        torch.arange(x.hop.neighbor_SK.shape[1]) < x.hop.count_S.unsqueeze(1), x.hop.neighbor_SK, -1
    ).view(-1)
    start = time.perf_counter()
    for _ in range(5):
        ops.transpose(index, len(x.table_RD))
    return (time.perf_counter() - start) / 5


def resident(line: str) -> int:
    """Bytes: VmRSS now, or VmHWM at most since the start or the last reset. (`ru_maxrss` begins at
    what the parent process held.)"""
    with open("/proc/self/status") as file:
        found = next(text for text in file if text.startswith(line))
    return int(found.split()[1]) * 1024


def child(variant: str, seeds: int, k: int, trained_time: bool) -> dict[str, float]:
    """Peak memory of this process, in bytes: all of it, and above what stood before the steps."""
    x = make_inputs(seeds, k, trained_time)
    step(make_inputs(64, k, trained_time, events=64), variant)  # compiles, starts threads
    earlier = resident("VmHWM")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak
    before = resident("VmRSS")
    for _ in range(3):
        step(x, variant)
    peak = resident("VmHWM")
    return {"peak": max(earlier, peak), "above_inputs": peak - before}


def in_child(command: list[str]) -> Any:
    done = subprocess.run(
        [sys.executable, __file__, *command], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def measure(seeds: int, k: int, trained_time: bool, repeats: int) -> dict[str, Any]:
    """Everything about one shape."""
    shape = [f"{seeds}x{k}", "--time-code", "trainable" if trained_time else "fixed"]
    memory = {v: in_child(["--child", v, "--shapes", *shape]) for v in VARIANTS}
    found = in_child(["--child", "differences", "--shapes", *shape])
    x = make_inputs(seeds, k, trained_time)
    seconds = timings(x, repeats)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    rows = {}
    for name, values in seconds.items():
        low, _, high = statistics.quantiles(values, n=4)
        rows[name] = {"milliseconds": 1e3 * median[name], "quartiles": [1e3 * low, 1e3 * high]}
        if name in VARIANTS:
            rows[name] |= {"difference": found[name], "memory": memory[name]}
    ratios = {}
    for slow, fast in PAIRS:
        turns = [a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)]
        ratios[f"{fast} over {slow}"] = {
            "of_medians": median[slow] / median[fast],
            "least": min(turns),
            "most": max(turns),
        }
    return {
        "seeds": seeds,
        "neighbors": k,
        "edges": len(x.ragged.delta_M),
        "rows": len(x.table_RD),
        "time_code": shape[2],
        "repeats": repeats,
        "threads": [torch.get_num_threads(), numba.get_num_threads()],
        "transpose_milliseconds": 1e3 * transpose_seconds(x),
        "variants": rows,
        "ratios": ratios,
    }


def show(result: dict[str, Any]) -> None:
    print(
        f"\n[{result['seeds']} seeds, k = {result['neighbors']}]: {result['edges']} edges over "
        f"{result['rows']} rows; {result['time_code']} time code; {result['repeats']} rounds; "
        f"threads {result['threads']}; transposed index {result['transpose_milliseconds']:.2f} ms"
    )
    print(
        f"{'':16} {'ms':>8} {'quartiles':>17} {'difference':>11} {'peak MB':>8} "
        f"{'above inputs':>13}"
    )
    for name, row in result["variants"].items():
        low, high = row["quartiles"]
        line = f"{name:16} {row['milliseconds']:8.2f} {low:8.2f} {high:8.2f}"
        if "memory" in row:
            memory = row["memory"]
            line += (
                f" {row['difference']:11.1e} {memory['peak'] / 1e6:8.0f}"
                f" {memory['above_inputs'] / 1e6:13.0f}"
            )
        print(line)
    for name, ratio in result["ratios"].items():
        print(
            f"{name}: {ratio['of_medians']:.2f}x (by round {ratio['least']:.2f} to "
            f"{ratio['most']:.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["1800x10", "12600x20"], metavar="SEEDSxK")
    parser.add_argument("--time-code", choices=["fixed", "trainable"], default="fixed")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--json", action="store_true", help="print one JSON array only")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    shapes = [tuple(map(int, shape.split("x"))) for shape in arguments.shapes]
    trained_time = arguments.time_code == "trainable"
    if arguments.child == "differences":
        print(json.dumps(differences(make_inputs(*shapes[0], trained_time), trained_time)))
    elif arguments.child:
        print(json.dumps(child(arguments.child, *shapes[0], trained_time)))
    else:
        results = []
        for seeds, k in shapes:
            results.append(measure(seeds, k, trained_time, arguments.repeats))
            if not arguments.json:
                show(results[-1])
        if arguments.json:
            print(json.dumps(results))


if __name__ == "__main__":
    main()
