"""Blocks of rows on all threads: each row once, whoever takes it, and failures reach the caller."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegraph import _jit
from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel


@kernel(block=True)
def _count(first, last, block, seen, whole):  # type: ignore[no-untyped-def]
    whole[first] = (first % block == 0) and last - first <= block
    for i in range(first, last):
        seen[i] += 1


@kernel()
def count_rows(rows, block, seen, whole):  # type: ignore[no-untyped-def]
    in_blocks(_count, rows, block, (block, seen, whole))


@kernel(block=True)
def _allocate(first, last, elements, out):  # type: ignore[no-untyped-def]
    out[first] = np.empty(elements, np.int64).shape[0]


@kernel()
def allocate(rows, elements, out):  # type: ignore[no-untyped-def]
    in_blocks(_allocate, rows, 1, (elements, out))


@pytest.fixture(autouse=True)
def all_threads():
    threads = numba.get_num_threads()
    yield
    numba.set_num_threads(threads)


def counted(rows: int, block: int, threads: int) -> tuple[np.ndarray, np.ndarray]:
    numba.set_num_threads(threads)
    seen, whole = np.zeros(rows, np.int64), np.full(rows, -1, np.int64)
    count_rows(rows, block, seen, whole)
    return seen, whole


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 400), st.integers(1, 70), st.data())
def test_every_row_is_in_one_block(rows, block, data):
    threads = data.draw(st.integers(1, numba.config.NUMBA_NUM_THREADS))
    seen, whole = counted(rows, block, threads)
    assert (seen == 1).all()
    # A block begins at a multiple of its size, and there is one for each.
    assert (whole[::block] == 1).all()
    assert (np.delete(whole, np.arange(0, rows, block)) == -1).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_block_without_memory_is_an_error(threads):
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    with pytest.raises(MemoryError):
        allocate(4, 1 << 58, np.zeros(4, np.int64))
    out = np.zeros(4, np.int64)
    allocate(4, 3, out)  # the threads are fit for more
    assert (out == 3).all()


def test_several_callers_at_once():
    found: list[bool] = []

    def call() -> None:
        for _ in range(200):
            seen, whole = np.zeros(300, np.int64), np.full(300, -1, np.int64)
            count_rows(300, 7, seen, whole)
            found.append(bool((seen == 1).all()))

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(found) == 600
    assert all(found)


@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_more_threads_than_shares(layer):
    """In a process of its own: which threads there are is settled when Numba is loaded."""
    code = (
        "from tests.test_blocks import counted\n"
        "for rows in (50, 65, 700, 5000):\n"
        "    assert (counted(rows, 3, 70)[0] == 1).all(), rows\n"
        f"import numba; assert numba.threading_layer() == {layer!r}\n"
    )
    root = Path(__file__).resolve().parents[1]
    environment = os.environ | {"NUMBA_NUM_THREADS": "70", "OMP_WAIT_POLICY": "passive"}
    environment["NUMBA_THREADING_LAYER"] = layer
    environment.pop("OMP_NUM_THREADS", None)
    environment["PYTHONPATH"] = os.pathsep.join([str(root), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


_KERNELS = """
from tidegraph import _jit
from tidegraph._blocks import in_blocks
from tidegraph._jit import kernel

@kernel(block=True)
def body(first, last, add, out):
    for i in range(first, last):
        out[i] += add

@kernel(inner=True)
def middle(add, out):
    in_blocks(body, out.shape[0], 4, (add, out))

@kernel()
def one(add, out):
    middle(add, out)

@kernel()
def other(add, out):
    middle(add + add, out)
"""


def test_a_kernel_of_cached_kernels_comes_from_the_cache_itself(tmp_path):
    """Three processes: the second compiles over what it read, the third reads that."""
    (tmp_path / "some_kernels.py").write_text(_KERNELS)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    for name, hits in (("one", 0), ("other", 0), ("other", 1)):
        code = (
            "import numpy as np, some_kernels\n"
            "out = np.zeros(9, np.int64)\n"
            f"some_kernels.{name}(1, out)\n"
            f"assert (out == {1 if name == 'one' else 2}).all(), out\n"
            f"assert len(some_kernels.{name}.stats.cache_hits) == {hits}\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, (name, hits, done.returncode, done.stderr)


def test_whatever_builds_code_counts_for_the_cache() -> None:
    """A file missing here could be edited, and its old code would still come from the cache."""
    counted = {path for path, _ in _jit.kernel_sources()}
    package = Path(_jit.__file__).parent
    builds = re.compile(r"@kernel|@intrinsic|@overload|\bcgutils\.|\bir\.[A-Z]")
    building = {path for path in package.rglob("*.py") if builds.search(path.read_text("utf-8"))}
    triton = {path for path in building if "triton_backend" in path.parts}
    assert len(building) > 30
    assert building - triton <= counted
