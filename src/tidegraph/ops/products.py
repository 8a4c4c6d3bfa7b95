"""Matrix products of the fused operators, in the precision asked for.

`fp32` multiplies float32 numbers. `bf16` rounds both factors to bfloat16 and sums in float32: what
tensor cores compute. On a GPU those do it; on a CPU it brings no speed, but shows the accuracy that
a run on such hardware will have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tidegraph.errors import SettingError
from tidegraph.ops.row_products import row_product

PRECISIONS = ("fp32", "bf16")
_precision = "fp32"
_scoring = "exact"


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


@contextmanager
def use_scoring(name: str) -> Iterator[None]:
    """How scoring (inference mode, float32, on a CPU) multiplies inside a `with` block.

    "exact", the default: a row's result does not depend on the rows beside it, to the bit, and what
    seeds share is computed once. "plain": the operators of training.

    Raises:
        SettingError: the name is neither.

    >>> with use_scoring("plain"):
    ...     pass
    """
    global _scoring
    if name not in ("exact", "plain"):
        raise SettingError(f"scoring={name!r}: expected 'exact' or 'plain'")
    previous, _scoring = _scoring, name
    try:
        yield
    finally:
        _scoring = previous


def scores_exactly(like: Tensor) -> bool:
    """This product is part of scoring, where rows must not depend on the rows beside them."""
    return (
        not torch.is_grad_enabled()  # asked first: a compiler cannot trace the next question
        and torch.is_inference_mode_enabled()
        and _scoring == "exact"
        and like.dtype == torch.float32
        and like.device.type == "cpu"
    )


def in_float32(like: Tensor) -> bool:
    """Products of this tensor are float32 products of its numbers as they are: what kernels that
    multiply by themselves can do."""
    return like.dtype == torch.float32 and _precision == "fp32"


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
    if scores_exactly(a):
        return row_product(a, b, bias, out)
    if bias is None:
        return torch.mm(a, b, out=out) if out is not None else torch.mm(a, b)
    return torch.addmm(bias, a, b, out=out) if out is not None else torch.addmm(bias, a, b)


def linear(rows: Tensor, layer: nn.Linear) -> Tensor:
    """`layer(rows)` for a matrix of rows; while scoring, each row by itself (`use_scoring`)."""
    if not scores_exactly(rows):
        result: Tensor = layer(rows)
        return result
    return row_product(rows, layer.weight.t(), layer.bias)


def batched_product(a: Tensor, b: Tensor) -> Tensor:
    """[N, I, K] = a[n] @ b[n] of [N, I, J] and [N, J, K]."""
    if scores_exactly(a):
        return torch.stack([product(a_IJ, b_JK) for a_IJ, b_JK in zip(a, b, strict=True)])
    return _rounded(a, b) if _on_tensor_cores(a) else torch.bmm(factor(a), factor(b))


def _on_tensor_cores(a: Tensor) -> bool:
    return _precision == "bf16" and a.is_cuda and a.dtype == torch.float32


def _rounded(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a.bfloat16(), b.bfloat16()).float()
