"""The operators as Triton kernels, for CUDA devices (and, interpreted, for tests on a CPU).

Nothing here imports Triton until `load` is called: on a machine without a GPU it need not be
installed, and where it is installed its import takes a second that training on a CPU never pays.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from importlib import import_module
from types import ModuleType

from tidegraph.errors import SettingError

_MISSING = "Triton is not installed (pip install triton; PyTorch's CUDA builds bring it)"


@functools.cache
def load(required: bool = False) -> ModuleType | None:
    """The module with the operators (`operators`), or None where Triton is not installed.

    Args:
        required: raise instead of returning None.

    Raises:
        SettingError: `required`, and Triton is not installed.

    Returns:
        None with one warning a process: the caller takes the plain operators, which are slower.

    >>> load().temporal_attention  # doctest: +SKIP
    <function temporal_attention at ...>
    """
    if importlib.util.find_spec("triton") is None:
        if required:
            raise SettingError(f"the 'triton' operator backend cannot be used: {_MISSING}")
        warnings.warn(
            f"{_MISSING}: operators on CUDA tensors run in plain PyTorch, with equal results but "
            "several times slower",
            RuntimeWarning,
            stacklevel=3,
        )
        return None
    return import_module("tidegraph.ops.triton_backend.operators")
