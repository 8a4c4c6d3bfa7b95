"""How threads of one step wait for each other: spinning, or asleep while others use the cores.

OpenMP's threads spin at the end of every parallel loop: a step has a hundred of them, and sleeping
would cost a third of its speed. But where another program takes one of the cores, the thread that
everybody waits for may itself wait for a core that a spinning thread occupies, a scheduler's slice
at a time: measured on two cores beside one busy program, a step of 19 ms took 600. GNU's runtime
stops spinning once it manages more threads than there are cores, which is what `Waiting` makes use
of: while the kernel keeps taking cores away from this process, it holds a team of idle threads. The
same step then takes 28 ms. Results are the same bits: nobody computes anything else.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

import torch

_WINDOW = 0.25  # seconds over which switches are counted
_TAKEN = 120.0  # a second: cores taken away from this process; a free machine has some 30
_WINDOWS = 2  # so many in a row decide


class Waiting:
    """Watches whether the cores are this process's own; `watch` is called once a step."""

    def __init__(self) -> None:
        self._team: _IdleTeam | None = None
        self._library: ctypes.CDLL | None = None
        self._looked = False
        self._next = 0.0
        self._started, self._switches, self._agreeing = 0.0, 0, 0

    @property
    def asleep(self) -> bool:
        """Threads sleep while they wait."""
        return self._team is not None

    def watch(self) -> None:
        """Count switches since the last window, and change over where two windows agree."""
        now = time.monotonic()
        if now < self._next or torch.get_num_threads() == 1:
            return
        if not self._looked:
            self._library, self._looked = None if _is_chosen() else _gnu_runtime(), True
        if self._library is None:
            self._next = float("inf")
            return
        switches = _involuntary_switches()
        rate = (switches - self._switches) / max(now - self._started, 1e-9)
        self._started, self._switches, self._next = now, switches, now + _WINDOW
        changing = (rate > _TAKEN) != self.asleep
        self._agreeing = self._agreeing + 1 if changing else 0
        if self._agreeing == _WINDOWS:
            self._agreeing = 0
            self.wake() if self.asleep else self.sleep()

    def sleep(self) -> None:
        """From now on threads sleep while they wait (where the runtime is GNU's)."""
        if self._team is None and self._library is not None:
            self._team = _IdleTeam(self._library)

    def wake(self) -> None:
        """From now on threads spin while they wait."""
        if self._team is not None:
            self._team.dissolve()
            self._team = None


class _IdleTeam:
    """So many OpenMP threads that, with the step's, they are more than the machine has cores.

    They sleep until they are dissolved. No more than needed: the runtime ends the process when a
    thread cannot be created.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._formed, self._over = threading.Event(), threading.Event()
        self._holder = threading.Thread(target=self._hold, name="idle team", daemon=True)
        self._holder.start()
        self._formed.wait()

    def _hold(self) -> None:
        # Each thread of the team calls `free(NULL)`, which does nothing; a callback into Python
        # would need the interpreter. The team belongs to this thread and goes when it ends.
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        # It counts the step's threads and, of this team, all but the first.
        threads = max(2, (os.cpu_count() or 1) - torch.get_num_threads() + 2)
        self._library.GOMP_parallel(nothing, None, ctypes.c_uint(threads), ctypes.c_uint(0))
        self._formed.set()
        self._over.wait()

    def dissolve(self) -> None:
        self._over.set()
        self._holder.join()


def _is_chosen() -> bool:
    """The user has said how threads wait."""
    return bool({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys())


def _gnu_runtime() -> ctypes.CDLL | None:
    """The OpenMP runtime that PyTorch brought, if it is GNU's; compiled kernels run on it too.

    Other packages load runtimes of their own (scikit-learn, Numba): those are not meant.
    """
    if sys.platform != "linux":
        return None
    brought = str(Path(torch.__file__).parent.parent / "torch")  # and torch.libs beside it
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            paths = {line.split()[-1] for line in maps if "libgomp" in line}
        mine = sorted(path for path in paths if path.startswith(brought)) or sorted(paths)
        library = ctypes.CDLL(mine[0]) if mine else None
    except OSError:
        return None
    return library if hasattr(library, "GOMP_parallel") else None


def _involuntary_switches() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


WAITING = Waiting()
"""Of this process."""
