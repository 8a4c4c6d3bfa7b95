"""What this process has used so far: seconds since it was started, memory, versions."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from pathlib import Path

_IMPORTED = time.time()


def process_started() -> float:
    """When the process was started, in seconds since 1970; as exact as the system tells."""
    try:
        # Field 22 of /proc/self/stat is the start in clock ticks after boot; the command name
        # (field 2) may hold blanks, so count from its closing bracket.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        age = uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return _IMPORTED
    return time.time() - age


def peak_resident_bytes() -> int:
    """The most memory this process has had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def forget_peak() -> bool:
    """Start measuring the peak anew, where the system can; see `peak_since`."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_since() -> int:
    """The most memory resident since `forget_peak`, or since the start where it has no effect."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return peak_resident_bytes()


def versions() -> dict[str, str]:
    """Of what figures depend on."""
    import numba
    import numpy
    import torch

    import tidegraph

    return {
        "tidegraph": tidegraph.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "numba": numba.__version__,
    }
