"""Temporal attention over neighbourhoods too large for one program's registers.

One program a seed and head reads the neighbours' rows tile by tile, with a running maximum and a
running sum (the softmax need not see all scores at once). Everything else is as in
`attention_kernels`, legend included.
"""

# No `from __future__ import annotations`: Triton reads the annotations themselves.

import triton
import triton.language as tl

from tidegraph.ops.triton_backend.attention_kernels import (
    dots,
    load_rows,
    load_vector,
    mix,
    store_vector,
)


@triton.jit(do_not_specialize=["S"])
def attention_forward_long(  # type: ignore[no-untyped-def]
    query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S, features_EF, weight_T, bias_T,
    keep_SKH, attention_SKH, sum_HSW, S,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, F: tl.constexpr, T: tl.constexpr,
    KP: tl.constexpr, DP: tl.constexpr, FP: tl.constexpr, TP: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """As `attention_forward`, for one head, KP slots at a time."""
    KIND: tl.constexpr = attention_SKH.dtype.element_ty
    s, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count = tl.load(count_S + s)
    q_D, q_F, q_T = load_vector(query_HSW, h * S + s, D, F, T, DP, FP, TP, KIND)
    largest, total = tl.full((), float("-inf"), KIND), tl.full((), 0.0, KIND)
    sum_D, sum_F, sum_T = tl.zeros((DP,), KIND), tl.zeros((FP,), KIND), tl.zeros((TP,), KIND)
    for first in range(0, count, KP):
        slot = first + tl.arange(0, KP)
        used = slot < count
        at = (s * K + slot) * H + h
        row_KD, row_KF, row_KT = load_rows(
            table_RD, neighbor_SK, event_SK, delta_SK, features_EF, weight_T, bias_T, s, slot,
            used, K, D, F, T, DP, FP, TP, KIND,
        )  # fmt: skip
        score = tl.where(used, dots(row_KD, row_KF, row_KT, q_D, q_F, q_T), float("-inf"))
        tl.store(attention_SKH + at, score, mask=used)
        new_largest = tl.maximum(largest, tl.max(score, axis=0))
        weight = tl.exp(score - new_largest)
        scale = tl.exp(largest - new_largest)
        total = total * scale + tl.sum(weight, axis=0)
        if DROPOUT:
            weight = weight * tl.load(keep_SKH + at, mask=used, other=0.0)
        more_D, more_F, more_T = mix(weight, row_KD, row_KF, row_KT)
        sum_D, sum_F, sum_T = sum_D * scale + more_D, sum_F * scale + more_F, sum_T * scale + more_T
        largest = new_largest
    # A seed without neighbours: no maximum to take away, no sum to divide by.
    largest, total = tl.where(count > 0, largest, 0.0), tl.where(count > 0, total, 1.0)
    store_vector(
        sum_HSW, h * S + s, sum_D / total, sum_F / total, sum_T / total, D, F, T, DP, FP, TP
    )
    tl.debug_barrier()  # the scores were written by other threads of this program
    for first in range(0, K, KP):
        slot = first + tl.arange(0, KP)
        at = (s * K + slot) * H + h
        score = tl.load(attention_SKH + at, mask=slot < count, other=float("-inf"))
        tl.debug_barrier()  # a slot's score is read by several threads, and overwritten by one
        tl.store(attention_SKH + at, tl.exp(score - largest) / total, mask=slot < K)


@triton.jit(do_not_specialize=["S"])
def attention_backward_long(  # type: ignore[no-untyped-def]
    table_RD, neighbor_SK, event_SK, delta_SK, count_S, features_EF, weight_T, bias_T,
    keep_SKH, attention_SKH, grad_sum_HSW, grad_query_HSW, grad_score_SKH, S,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, F: tl.constexpr, T: tl.constexpr,
    KP: tl.constexpr, DP: tl.constexpr, FP: tl.constexpr, TP: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """As `attention_backward`, for one head, KP slots at a time.

    Rows are read twice, for the mean and for the sum: in one pass the query's gradient would be a
    difference of two sums, and lose its digits where upstream gradients are large.
    """
    KIND: tl.constexpr = attention_SKH.dtype.element_ty
    s, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count = tl.load(count_S + s)
    g_D, g_F, g_T = load_vector(grad_sum_HSW, h * S + s, D, F, T, DP, FP, TP, KIND)
    mean = tl.full((), 0.0, KIND)
    for first in range(0, count, KP):
        slot = first + tl.arange(0, KP)
        used = slot < count
        at = (s * K + slot) * H + h
        row_KD, row_KF, row_KT = load_rows(
            table_RD, neighbor_SK, event_SK, delta_SK, features_EF, weight_T, bias_T, s, slot,
            used, K, D, F, T, DP, FP, TP, KIND,
        )  # fmt: skip
        value = dots(row_KD, row_KF, row_KT, g_D, g_F, g_T)
        if DROPOUT:
            value = value * tl.load(keep_SKH + at, mask=used, other=0.0)
        tl.store(grad_score_SKH + at, value, mask=used)
        mean += tl.sum(value * tl.load(attention_SKH + at, mask=used, other=0.0), axis=0)
    tl.debug_barrier()  # the values were written by other threads of this program
    q_D, q_F, q_T = tl.zeros((DP,), KIND), tl.zeros((FP,), KIND), tl.zeros((TP,), KIND)
    for first in range(0, K, KP):
        slot = first + tl.arange(0, KP)
        used = slot < count
        at = (s * K + slot) * H + h
        row_KD, row_KF, row_KT = load_rows(
            table_RD, neighbor_SK, event_SK, delta_SK, features_EF, weight_T, bias_T, s, slot,
            used, K, D, F, T, DP, FP, TP, KIND,
        )  # fmt: skip
        value = tl.load(grad_score_SKH + at, mask=used, other=0.0)
        score = tl.load(attention_SKH + at, mask=used, other=0.0) * (value - mean)
        tl.debug_barrier()  # a slot's value is read by several threads, and overwritten by one
        tl.store(grad_score_SKH + at, score, mask=slot < K)
        more_D, more_F, more_T = mix(score, row_KD, row_KF, row_KT)
        q_D, q_F, q_T = q_D + more_D, q_F + more_F, q_T + more_T
    store_vector(grad_query_HSW, h * S + s, q_D, q_F, q_T, D, F, T, DP, FP, TP)
