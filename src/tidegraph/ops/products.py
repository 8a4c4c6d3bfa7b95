"""Matrix products of the fused operators, in the precision asked for.

`fp32` multiplies float32 numbers. `bf16` rounds both factors to bfloat16 and sums in float32: what
tensor cores compute. On a GPU those do it; on a CPU it brings no speed, but shows the accuracy that
a run on such hardware will have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tidegraph.errors import SettingError

PRECISIONS = ("fp32", "bf16")
_precision = "fp32"


@contextmanager
def use_precision(name: str) -> Iterator[None]:
    """Multiply in "fp32" or "bf16" inside a `with` block (gradients included).

    Raises:
        SettingError: the name is neither.

    >>> with use_precision("bf16"):
    ...     pass
    """
    global _precision
    if name not in PRECISIONS:
        raise SettingError(f"precision={name!r}: expected one of {PRECISIONS}")
    previous, _precision = _precision, name
    try:
        yield
    finally:
        _precision = previous


def precision() -> str:
    """The precision in force."""
    return _precision


def factor(matrix: Tensor) -> Tensor:
    """`matrix` as it enters products: itself, or rounded to bfloat16."""
    if _precision == "fp32" or matrix.dtype == torch.float64:
        return matrix
    return matrix.bfloat16().to(matrix.dtype)


def product(a: Tensor, b: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """a @ b (+ bias per column), into `out` where it is given; any strides.

    Args:
        a: [I, J].
        b: [J, K].
        bias: [K] or None; never rounded.
        out: [I, K] with rows of unit stride, or None.
    """
    if _on_tensor_cores(a):
        found = _rounded(a, b)
        found = found if bias is None else found + bias
        return found if out is None else out.copy_(found)
    a, b = factor(a), factor(b)
    if bias is None:
        return torch.mm(a, b, out=out) if out is not None else torch.mm(a, b)
    return torch.addmm(bias, a, b, out=out) if out is not None else torch.addmm(bias, a, b)


def batched_product(a: Tensor, b: Tensor) -> Tensor:
    """[N, I, K] = a[n] @ b[n] of [N, I, J] and [N, J, K]."""
    return _rounded(a, b) if _on_tensor_cores(a) else torch.bmm(factor(a), factor(b))


def _on_tensor_cores(a: Tensor) -> bool:
    return _precision == "bf16" and a.is_cuda and a.dtype == torch.float32


def _rounded(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a.bfloat16(), b.bfloat16()).float()
