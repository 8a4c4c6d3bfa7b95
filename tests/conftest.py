"""Settings that every test runs under; read before any test file is imported."""

import os
import signal

# A shell without job control starts background jobs with Ctrl-C ignored, and their children inherit
# it: the tests that send one would wait for nothing.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Idle threads sleep instead of spinning. The tests make thousands of tiny parallel calls, and on a
# machine with other work (or two cores) spinning threads take the time of those that compute:
# measured, a third of the time. Results do not depend on it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Triton's kernels run through its interpreter, so that they are tested without a GPU. It takes over
# a kernel when it is defined, and Triton's own library when that is first imported, by anything.
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
from hypothesis import settings

# A kernel's first call compiles or loads it: times of single examples say nothing.
settings.register_profile("tidegraph", deadline=None)
settings.load_profile("tidegraph")

_LONG = (
    "test_triton_compile.py", "test_triton.py", "test_resume.py", "test_import.py",
    "test_blocks.py", "test_benchmarks_gpu.py", "test_larger_than_memory.py",
    "test_prepared_epochs.py", "test_line_ends.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest begin: at the end, one process would wait for the other's last."""
    items.sort(key=lambda item: item.path.name not in _LONG)
