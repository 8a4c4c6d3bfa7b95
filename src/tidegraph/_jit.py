"""How Tidegraph compiles its CPU kernels: one place for cache, threads and flags.

Numba kernels are cached on disk per machine. The cache lives outside the package (which may be
read-only): `NUMBA_CACHE_DIR` when set, else the user's cache directory, else a temporary one. The
directory name carries a fingerprint of the files that hold kernels, so an edited kernel (or one
inlined into another file) is never served stale.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# torch brings an OpenMP runtime. Loaded first, it is the one that Numba's OpenMP layer binds to,
# so both share one thread pool; two pools fight over few cores (measured: doubled step time).
import torch  # isort: skip

# OMP_NUM_THREADS is heard by PyTorch alone; kernels follow it. Set before Numba reads it: setting
# the number afterwards starts threads, and a process with OpenMP threads cannot fork.
if "numba" not in sys.modules and os.environ.get("OMP_NUM_THREADS", "").isdigit():
    os.environ.setdefault("NUMBA_NUM_THREADS", os.environ["OMP_NUM_THREADS"])
import numba  # isort: skip
from numba import types  # isort: skip
from numba.core import cgutils as untyped, lowering, typed_passes  # isort: skip
from numba.core.compiler import Compiler, DefaultPassBuilder  # isort: skip
from numba.core.compiler_machinery import register_pass  # isort: skip

from tidegraph.errors import SettingError  # isort: skip

cgutils: Any = untyped

_PACKAGE = Path(__file__).resolve().parent
_COMPILED = (b"import kernel", b"import intrinsic", b"llvmlite import ir")


def kernel_sources() -> list[tuple[Path, bytes]]:
    """The files that hold kernels or what is compiled into them, each with its content."""
    found = [(path, path.read_bytes()) for path in sorted(_PACKAGE.rglob("*.py"))]
    return [
        (path, source)
        for path, source in found
        if any(mark in source for mark in _COMPILED) or path.name == "_jit.py"
    ]


def _kernel_fingerprint() -> str:
    """Digest of the files that hold kernels: one kernel may be inlined into another file's."""
    digest = hashlib.sha256()
    for path, source in kernel_sources():
        digest.update(path.name.encode() + source)
    return digest.hexdigest()[:16]


def _writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _choose_cache_directory() -> Path:
    named = os.environ.get("NUMBA_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    candidates = [Path(named)] if named else []
    candidates += [
        Path(home) / "tidegraph" / "kernels",
        Path(tempfile.gettempdir()) / "tidegraph-kernels",
    ]
    for candidate in candidates:
        directory = candidate / f"numba-{numba.__version__}-{_kernel_fingerprint()}"
        if _writable(directory):
            return directory
    return Path(tempfile.mkdtemp(prefix="tidegraph-kernels-"))


CACHE_DIRECTORY: Path = _choose_cache_directory()
"""Where compiled kernels are kept on this machine."""

_config: Any = numba.config  # its attributes are made at run time
_config.CACHE_DIR = str(CACHE_DIRECTORY)
_config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]

# Reassociation lets LLVM vectorise sums; the order it picks is fixed in the compiled code, so two
# runs agree bit for bit. NaN and infinity keep their meaning (no `nnan`, no `ninf`).
SUM_FLAGS = {"reassoc", "contract", "nsz", "arcp"}

Kernel = Callable[..., Any]


def _may_hand_out(kind: Any) -> bool:
    """Whether a result of this type may be an array."""
    if isinstance(kind, types.Tuple | types.UniTuple):
        return any(map(_may_hand_out, kind.types))
    return not isinstance(kind, types.NoneType | types.Number | types.Boolean)


class _Lower(lowering.Lower):
    """Takes array arguments without their owners.

    The caller holds the arrays while the call lasts. Numba counts a reference all the same wherever
    one is handed on, also in inner loops: two calls and two atomic additions each time. Where no
    owner is known there is nothing to count, and the compiler strikes it out.
    """

    def extract_function_arguments(self) -> Any:
        values = super().extract_function_arguments()  # type: ignore[no-untyped-call]
        kinds = self.fndesc.argtypes
        if not _may_hand_out(self.fndesc.restype):
            values = [self._borrowed(k, v) for k, v in zip(kinds, values, strict=True)]
        self.fnargs = values
        return values

    def _borrowed(self, kind: Any, value: Any) -> Any:
        if not isinstance(kind, types.Array):
            return value
        array = self.context.make_array(kind)(self.context, self.builder, value)
        for owner in ("meminfo", "parent"):
            setattr(array, owner, cgutils.get_null_value(getattr(array, owner).type))
        return array._getvalue()


@register_pass(mutates_CFG=True, analysis_only=False)  # type: ignore[no-untyped-call]
class _Lowering(typed_passes.NativeLowering):
    _name = "tidegraph_lowering"

    @property
    def lowering_class(self) -> type:
        return _Lower


class _Compiler(Compiler):
    def define_pipelines(self) -> Any:
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)  # type: ignore[no-untyped-call]
        pipeline.passes = [
            (_Lowering if step is typed_passes.NativeLowering else step, name)
            for step, name in pipeline.passes
        ]
        pipeline.finalize()
        return [pipeline]


class _Apart(_Compiler):
    """Compiles functions whose array arguments do not overlap: their loops can be vectorised."""

    def define_pipelines(self) -> Any:
        self.state.flags.noalias = True
        return super().define_pipelines()


def kernel(
    *,
    sums: bool = False,
    contract: bool = False,
    inline: bool = False,
    inner: bool = False,
    block: bool = False,
) -> Callable[[Kernel], Kernel]:
    """Decorate a CPU kernel: compiled, cached on disk, GIL released.

    One that runs on several threads hands blocks of rows to another by `_blocks.in_blocks`.

    Args:
        sums: floating-point sums may be reordered by the compiler (once, when it compiles).
        contract: a product and a sum may become one fused multiply-add, nothing else.
        inline: always inline into the caller (for helpers of a few lines).
        inner: only other kernels call it: it gets no entry for Python, which takes as long to
            compile as a small kernel itself.
        block: it is what `in_blocks` runs: an inner kernel, and no array that it writes overlaps
            another of its arguments.
    """
    flags: set[str] | bool = SUM_FLAGS if sums else {"contract"} if contract else False
    decorate: Any = numba.njit  # its types do not know all of these
    compiled: Callable[[Kernel], Any] = decorate(
        cache=True,
        nogil=True,
        fastmath=flags,
        error_model="numpy",
        boundscheck=False,
        no_cpython_wrapper=inner or block,
        no_cfunc_wrapper=True,
        inline="always" if inline else "never",
        pipeline_class=_Apart if block else _Compiler,
    )

    def decorated(function: Kernel) -> Kernel:
        dispatcher: Kernel = compiled(function)
        if not _config.DISABLE_JIT:  # then it is the function itself
            _keep_needs(dispatcher)
        return dispatcher

    return decorated


def _keep_needs(dispatcher: Any) -> None:
    """Let a kernel from the cache tell those that take it in what its code calls by name.

    Numba runs what a cached kernel needs before it is loaded (`_blocks._Needed`), and a kernel
    hands its needs to those that are compiled over it, but only where it was compiled itself.
    """
    cache = dispatcher._cache._impl
    rebuild = cache.rebuild

    def rebuild_with_needs(target_context: Any, payload: Any) -> Any:
        result = rebuild(target_context, payload)
        result.library._reload_init.update(result.reload_init or ())
        return result

    cache.rebuild = rebuild_with_needs


def set_threads(count: int) -> None:
    """Use `count` threads in PyTorch and in Tidegraph's kernels alike.

    Raises:
        SettingError: below 1, or far more than the machine has processors.
    """
    most = 16 * (os.cpu_count() or 1)
    if not 1 <= count <= most:
        raise SettingError(f"threads={count}: expected 1 to {most} on this machine")
    torch.set_num_threads(count)
    numba.set_num_threads(min(count, _config.NUMBA_NUM_THREADS))
