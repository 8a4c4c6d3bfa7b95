"""One command for a machine with a GPU: is everything right there, and how fast is it?

    python benchmarks/gpu.py

From the source tree, without installing; needs PyTorch for CUDA, Triton and the package's other
dependencies. In under five minutes it compares every Triton operator and every executor with the
plain operators on the CPU, counts what a step starts on the device before and after recording, and
measures events per second of every model at batches of 200, 600 and 2000, eager and replayed, with
the share of time in which the device was idle. Sections stand alone: what fails is reported, and
the rest goes on. Tables at the end, the same as JSON beside them.

Exit code: 0 all right, 1 a check or a section failed, 2 no CUDA device (and none was named).

    python benchmarks/gpu.py --device cpu --quick    # the script itself, tried on a CPU
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

DATA = ("flights", "synthetic:wikipedia")
SIZES = (200, 600, 2000)


def main() -> int:
    """The exit code."""
    options = _parse()
    import torch
    from gpu_parts import operators, steps
    from gpu_parts.report import Report

    from tidegraph.models import MODELS

    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("gpu: PyTorch sees no CUDA device on this machine; nothing was checked.",
              file=sys.stderr)  # fmt: skip
        return 2
    quick = options.quick
    count = 4 if quick else 40
    data, sizes = (DATA[:1], SIZES[:1]) if quick else (DATA, SIZES)
    models = sorted(MODELS, key=lambda name: name != "tgn")
    report = Report(options.seconds)

    with report.section("executors"):
        kinds = ("eager", "cudagraph")
        for part in data:
            case = steps.Case.of(part, "tgn", 200, min(count, 8))
            report.check_time()
            report.checks += steps.correctness(case, device, kinds)

    def speeds(name: str, part: str, size: int) -> None:
        with report.section(f"{name} {part} batch {size}"):
            report.check_time(5.0)
            case = steps.Case.of(part, name, size, count if size < 2000 else max(2, count // 3))
            for kind in ("eager", "cudagraph"):
                report.speeds.append(steps.speed(report, case, kind, device))

    for size in sizes:
        for part in data[::-1]:
            speeds("tgn", part, size)
    with report.section("operators"):
        for found in operators.checks(device, quick):
            report.checks += found
            report.check_time()
    with report.section("operators' times"):
        for timing in _timings(operators, device, quick):
            report.check_time()
            report.timings.append(timing())
    if not quick:
        for name in models[1:]:
            for size in sizes:
                speeds(name, data[-1], size)
    with report.section("compile"):
        # Most of a minute for one template: the last to come, and only where there is time.
        report.check_time(0.0 if quick else 75.0)
        case = steps.Case.of(data[0], "tgn", 200, min(count, 4))
        report.checks += steps.correctness(case, device, ("eager", "compile"))
        if not quick:
            report.speeds.append(steps.speed(report, case, "compile", device))
    return _finish(report, device, options.json)


def _timings(operators: Any, device: Any, quick: bool) -> list[Callable[[], Any]]:
    if quick:
        return [lambda: operators.attention_timing(device, 60, 10)]
    return [
        lambda: operators.attention_timing(device, 1800, 10),
        lambda: operators.attention_timing(device, 12_600, 20),
        lambda: operators.memory_timing(device, 2000),
    ]


def _finish(report: Any, device: Any, path: Path) -> int:
    import importlib.util

    import torch

    report.show()
    triton = importlib.util.find_spec("triton")
    about = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "triton": None if triton is None else __import__("triton").__version__,
        "command": sys.argv,
    }
    path.write_text(json.dumps({**about, **report.as_json()}, indent=1) + "\n")
    verdict = "all right" if report.passed else "something FAILED"
    print(f"{verdict}, {report.seconds:.0f} s; written to {path}")
    return 0 if report.passed else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try the script")
    parser.add_argument("--quick", action="store_true", help="a little of everything")
    parser.add_argument("--seconds", type=float, default=270.0, help="nothing is begun after these")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="where results go")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
