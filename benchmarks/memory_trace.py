"""Which index memory the sampler touches, and how often a cache would miss: exact and repeatable.

The trace comes from the sampler's own source: every kernel of `search_kernels` and `sample_kernels`
(and the helpers they take from `kernels`) is compiled once more with each access to an index array
written down.
Nothing of the search is repeated here, so a changed kernel changes its trace.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any

from tidegraph.history import Neighbors, TemporalIndex, sample_kernels, search_kernels
from tidegraph.history import kernels as helpers

import numba  # isort: skip  (after tidegraph, which sets the threading layer up)
import numpy as np  # isort: skip

ARRAYS = {"indptr_N1": 0, "place_Z": 1, "entries": 2, "time_L": 3}
"""The index's arrays by parameter name; the number is the high byte of a traced address."""

READERS = ("prefetch", "place_of", "_times_before")
"""They read the index array that they are given; the third within the lines prefetched before."""

TRACED_HELPERS = ("first_within",)
"""Functions of `kernels` that read index arrays themselves."""


@numba.njit
def touch(trace, array, index, size):  # type: ignore[no-untyped-def]
    """Write an access down (as long as there is room) and return the index."""
    at = trace[0]
    if at < len(trace):
        trace[at] = (np.int64(array) << 56) | (np.int64(index) * size)
        trace[0] = at + 1
    return index


class _Tracing(ast.NodeTransformer):
    """Give every function a last argument `trace`, and report each subscript of an index array."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if node.name in self.names:
            node.args.args.append(ast.arg("trace"))
            node.decorator_list = []
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in self.names:
            node.args.append(ast.Name("trace", ast.Load()))
        elif name in READERS:
            node.args[1] = self._reported(node.args[0], node.args[1])
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        traced = isinstance(node.value, ast.Name) and node.value.id in ARRAYS
        if traced and not isinstance(node.slice, ast.Slice):
            node.slice = self._reported(node.value, node.slice)
        return node

    def _reported(self, array: ast.expr, index: ast.expr) -> ast.expr:
        name = array.id if isinstance(array, ast.Name) else ""
        if name not in ARRAYS:
            raise ValueError(f"the kernels read an array that is not traced: {ast.unparse(array)}")
        call = ast.parse(f"touch(trace, {ARRAYS[name]}, 0, {name}.itemsize)")
        expression = call.body[0]
        assert isinstance(expression, ast.Expr)
        assert isinstance(expression.value, ast.Call)
        expression.value.args[2] = index
        return expression.value


def traced_functions() -> dict[str, Any]:
    """The sampler's kernels, compiled with tracing (in one thread)."""
    functions = [
        node
        for module in (helpers, search_kernels, sample_kernels)
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.FunctionDef) and node.decorator_list  # without one: no kernel
        if module is not helpers or node.name in TRACED_HELPERS
        if "in_blocks" not in ast.unparse(node)
    ]
    names = {node.name for node in functions}
    space = vars(helpers) | vars(search_kernels) | vars(sample_kernels) | {"touch": touch}
    for node in functions:
        space.pop(node.name, None)
    body: list[ast.stmt] = [_Tracing(names).visit(node) for node in functions]
    module = ast.fix_missing_locations(ast.Module(body, []))
    exec(compile(module, "<traced sampler>", "exec"), space)
    for name in names:
        space[name] = numba.njit(error_model="numpy")(space[name])
    return {name: space[name] for name in names}


_FUNCTIONS: dict[str, Any] = {}


def trace_calls(
    index: TemporalIndex, calls: list[tuple[np.ndarray, np.ndarray]], k: int, roots: int
) -> tuple[np.ndarray, int]:
    """([T] int64 addresses, roots answered) of `calls` in turn, stopping after `roots` roots.

    The calls run block by block as `TemporalIndex.sample` would run them in one thread. An address
    is the array's number (highest byte) and the offset in it.
    """
    if not _FUNCTIONS:
        _FUNCTIONS.update(traced_functions())
    traces, done = [], 0
    for nodes, times in calls:
        if done >= roots:
            break
        plain = index.sample(nodes, times, k, edge_times=False)
        traced = Neighbors.empty(
            len(nodes), k, plain.event_SK.dtype, index.entries.dtype["time"], edge_times=False
        )
        traces.append(_trace_call(index, nodes, times, k, traced))
        for name in ("neighbor_SK", "event_SK", "delta_SK", "count_S"):
            if not np.array_equal(getattr(plain, name), getattr(traced, name)):
                raise AssertionError(f"the traced kernels found another {name}")
        done += len(nodes)
    return np.concatenate(traces), done


def _trace_call(
    index: TemporalIndex, nodes: np.ndarray, times: np.ndarray, k: int, out: Neighbors
) -> np.ndarray:
    trace = np.zeros(400 * len(nodes) + 1, np.int64)
    trace[0] = 1
    before, slots = np.array([helpers.NO_LIMIT]), np.empty(0, np.uint64)
    _FUNCTIONS["sample_block"](
        index.indptr_N1, index.place_Z, index.entries, *index._levels, nodes, times, before, slots,
        0, len(nodes), k, np.uint64(0), 0, np.uint64(0), out.neighbor_SK, out.event_SK,
        out.delta_SK, out.time_SK, out.count_S, trace,
    )  # fmt: skip
    if trace[0] == len(trace):
        raise AssertionError("the trace is full: give it more room")
    return trace[1 : trace[0]]


@numba.njit
def lru_misses(trace, shift, sets, ways):  # type: ignore[no-untyped-def]
    """Misses of a set-associative LRU cache with lines of `1 << shift` bytes, filled at the start.

    The first third of the trace fills the cache and is not counted.
    """
    tag = np.full((sets, ways), -1, np.int64)
    misses = 0
    for t in range(len(trace)):
        line = trace[t] >> shift
        # Arrays start anywhere in memory; their number moves them apart.
        row = (line + (trace[t] >> 56) * 7919) % sets
        place = 0
        while (place < ways - 1) and (tag[row, place] != line):
            place += 1
        if (tag[row, place] != line) and (t >= len(trace) // 3):
            misses += 1
        for way in range(place, 0, -1):
            tag[row, way] = tag[row, way - 1]
        tag[row, 0] = line
    return misses


def count_misses(trace: np.ndarray) -> tuple[float, float]:
    """Misses of the last-level cache (32 MiB, 16 ways) and of a TLB (1024 pages of 4 KiB, 8 ways),
    scaled from the counted two thirds of the trace to all of it."""
    return 1.5 * lru_misses(trace, 6, 32768, 16), 1.5 * lru_misses(trace, 12, 128, 8)
