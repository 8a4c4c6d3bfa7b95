"""Triton kernels of temporal attention: one program a seed, its neighbours' rows in registers.

A row x = [table row ; event features ; time code] is three tiles of K slots, loaded once from where
they lie and used by every head, forward and backward alike. Gradients by table row are gathered
over the transposed index: nothing is scattered, no atomics, every sum in one fixed order.

Shape legend: S seeds, K slots, R table rows, D table width, F event-feature width, T time-code
width, W = D + F + T, H heads, M used slots, B blocks of seeds; KP, DP, FP, TP: padded to powers of
two. A pointer is named as the tensor it points to, a tile by its axes (`row_KD` has padded ones).
Widths are compile-time constants: only so does the compiler see that rows start at multiples of
16 bytes and load four float32 at once.
"""

# No `from __future__ import annotations`: Triton reads the annotations themselves.

import triton
import triton.language as tl

from tidegraph.ops.triton_backend.time_kernels import (
    cosine_of_turns,
    load_parameters,
    slope_of_turns,
    turns_of,
)


@triton.jit
def load_rows(  # type: ignore[no-untyped-def]
    table_RD, neighbor_SK, event_SK, delta_SK, features_EF, weight_T, bias_T, s, slot, used,
    K: tl.constexpr, D: tl.constexpr, F: tl.constexpr, T: tl.constexpr,
    DP: tl.constexpr, FP: tl.constexpr, TP: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The slots' rows of seed s as three tiles; unused slots are not read, but finite."""
    d, f, t = tl.arange(0, DP), tl.arange(0, FP), tl.arange(0, TP)
    at = s * K + slot
    neighbor = tl.load(neighbor_SK + at, mask=used, other=0).to(tl.int64)
    event = tl.load(event_SK + at, mask=used, other=0).to(tl.int64)
    delta = tl.load(delta_SK + at, mask=used, other=0.0).to(tl.float64)
    row_KD = tl.load(
        table_RD + neighbor[:, None] * D + d[None, :],
        mask=used[:, None] & (d < D)[None, :],
        other=0.0,
    )
    row_KF = tl.load(
        features_EF + event[:, None] * F + f[None, :],
        mask=used[:, None] & (f < F)[None, :],
        other=0.0,
    )
    weight, bias = load_parameters(weight_T, bias_T, t, T)
    turns_KT = turns_of(delta[:, None], weight[None, :], bias[None, :])
    return row_KD.to(KIND), row_KF.to(KIND), cosine_of_turns(turns_KT, KIND)


@triton.jit
def load_vector(  # type: ignore[no-untyped-def]
    vector_HSW, at,
    D: tl.constexpr, F: tl.constexpr, T: tl.constexpr,
    DP: tl.constexpr, FP: tl.constexpr, TP: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """One head's vector of one seed, in the three parts of a row."""
    d, f, t = tl.arange(0, DP), tl.arange(0, FP), tl.arange(0, TP)
    start = vector_HSW + at * (D + F + T)
    part_D = tl.load(start + d, mask=d < D, other=0.0).to(KIND)
    part_F = tl.load(start + D + f, mask=f < F, other=0.0).to(KIND)
    part_T = tl.load(start + D + F + t, mask=t < T, other=0.0).to(KIND)
    return part_D, part_F, part_T


@triton.jit
def store_vector(  # type: ignore[no-untyped-def]
    vector_HSW, at, part_D, part_F, part_T,
    D: tl.constexpr, F: tl.constexpr, T: tl.constexpr,
    DP: tl.constexpr, FP: tl.constexpr, TP: tl.constexpr,
):  # fmt: skip
    """The reverse of `load_vector`."""
    d, f, t = tl.arange(0, DP), tl.arange(0, FP), tl.arange(0, TP)
    start = vector_HSW + at * (D + F + T)
    tl.store(start + d, part_D, mask=d < D)
    tl.store(start + D + f, part_F, mask=f < F)
    tl.store(start + D + F + t, part_T, mask=t < T)


@triton.jit
def dots(row_KD, row_KF, row_KT, part_D, part_F, part_T):  # type: ignore[no-untyped-def]
    """Each slot's row times one vector: [K]."""
    return (
        tl.sum(row_KD * part_D[None, :], axis=1)
        + tl.sum(row_KF * part_F[None, :], axis=1)
        + tl.sum(row_KT * part_T[None, :], axis=1)
    )


@triton.jit
def mix(weight_K, row_KD, row_KF, row_KT):  # type: ignore[no-untyped-def]
    """The weighted sum of the slots' rows, in three parts."""
    return (
        tl.sum(weight_K[:, None] * row_KD, axis=0),
        tl.sum(weight_K[:, None] * row_KF, axis=0),
        tl.sum(weight_K[:, None] * row_KT, axis=0),
    )


@triton.jit(do_not_specialize=["S"])
def attention_forward(  # type: ignore[no-untyped-def]
    query_HSW, table_RD, neighbor_SK, event_SK, delta_SK, count_S, features_EF, weight_T, bias_T,
    keep_SKH, attention_SKH, sum_HSW, S,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, F: tl.constexpr, T: tl.constexpr,
    KP: tl.constexpr, DP: tl.constexpr, FP: tl.constexpr, TP: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """Softmax weights (before dropout) and weighted sums of neighbour rows, all heads of a seed."""
    KIND: tl.constexpr = attention_SKH.dtype.element_ty
    s = tl.program_id(0).to(tl.int64)
    count = tl.load(count_S + s)
    slot = tl.arange(0, KP)
    used = slot < count
    row_KD, row_KF, row_KT = load_rows(
        table_RD, neighbor_SK, event_SK, delta_SK, features_EF, weight_T, bias_T, s, slot, used,
        K, D, F, T, DP, FP, TP, KIND,
    )  # fmt: skip
    for h in tl.static_range(H):
        at = (s * K + slot) * H + h
        q_D, q_F, q_T = load_vector(query_HSW, h * S + s, D, F, T, DP, FP, TP, KIND)
        score = tl.where(used, dots(row_KD, row_KF, row_KT, q_D, q_F, q_T), float("-inf"))
        # A seed without neighbours: no maximum to take away, no sum to divide by.
        largest = tl.where(count > 0, tl.max(score, axis=0), 0.0)
        weight = tl.exp(score - largest)
        weight = weight / tl.where(count > 0, tl.sum(weight, axis=0), 1.0)
        tl.store(attention_SKH + at, weight, mask=slot < K)
        if DROPOUT:
            weight = weight * tl.load(keep_SKH + at, mask=used, other=0.0)
        sum_D, sum_F, sum_T = mix(weight, row_KD, row_KF, row_KT)
        store_vector(sum_HSW, h * S + s, sum_D, sum_F, sum_T, D, F, T, DP, FP, TP)


@triton.jit(do_not_specialize=["S"])
def attention_backward(  # type: ignore[no-untyped-def]
    table_RD, neighbor_SK, event_SK, delta_SK, count_S, features_EF, weight_T, bias_T,
    keep_SKH, attention_SKH, grad_sum_HSW, grad_query_HSW, grad_score_SKH, S,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, F: tl.constexpr, T: tl.constexpr,
    KP: tl.constexpr, DP: tl.constexpr, FP: tl.constexpr, TP: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradients by seed: of the scores before the softmax, and of the queries."""
    KIND: tl.constexpr = attention_SKH.dtype.element_ty
    s = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, KP)
    used = slot < tl.load(count_S + s)
    row_KD, row_KF, row_KT = load_rows(
        table_RD, neighbor_SK, event_SK, delta_SK, features_EF, weight_T, bias_T, s, slot, used,
        K, D, F, T, DP, FP, TP, KIND,
    )  # fmt: skip
    for h in tl.static_range(H):
        at = (s * K + slot) * H + h
        g_D, g_F, g_T = load_vector(grad_sum_HSW, h * S + s, D, F, T, DP, FP, TP, KIND)
        value = dots(row_KD, row_KF, row_KT, g_D, g_F, g_T)
        if DROPOUT:
            value = value * tl.load(keep_SKH + at, mask=used, other=0.0)
        weight = tl.load(attention_SKH + at, mask=used, other=0.0)
        score = weight * (value - tl.sum(weight * value, axis=0))
        tl.store(grad_score_SKH + at, score, mask=slot < K)
        q_D, q_F, q_T = mix(score, row_KD, row_KF, row_KT)
        store_vector(grad_query_HSW, h * S + s, q_D, q_F, q_T, D, F, T, DP, FP, TP)


@triton.jit(do_not_specialize=["S"])
def attention_backward_table(  # type: ignore[no-untyped-def]
    query_HSW, grad_sum_HSW, attention_SKH, keep_SKH, grad_score_SKH, indptr_R1, position_M,
    grad_table_RD, S,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, W: tl.constexpr,
    DP: tl.constexpr, USES: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradient by table row: a gather over the slots that use the row, USES of them at a time."""
    KIND: tl.constexpr = attention_SKH.dtype.element_ty
    r = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DP)
    first, last = tl.load(indptr_R1 + r), tl.load(indptr_R1 + r + 1)
    total = tl.zeros((USES, DP), KIND)
    for m in range(first, last, USES):
        use = m + tl.arange(0, USES)
        valid = use < last
        slot = tl.load(position_M + use, mask=valid, other=0)
        s = (slot // K).to(tl.int64)
        inside = valid[:, None] & (d < D)[None, :]
        for h in tl.static_range(H):
            at = slot.to(tl.int64) * H + h
            score = tl.load(grad_score_SKH + at, mask=valid, other=0.0)
            weight = tl.load(attention_SKH + at, mask=valid, other=0.0)
            if DROPOUT:
                weight = weight * tl.load(keep_SKH + at, mask=valid, other=0.0)
            row = ((h * S + s) * W)[:, None] + d[None, :]
            query = tl.load(query_HSW + row, mask=inside, other=0.0).to(KIND)
            grad = tl.load(grad_sum_HSW + row, mask=inside, other=0.0).to(KIND)
            total += score[:, None] * query + weight[:, None] * grad
    tl.store(grad_table_RD + r * D + d, tl.sum(total, axis=0), mask=d < D)


@triton.jit(do_not_specialize=["S"])
def attention_time_gradient(  # type: ignore[no-untyped-def]
    query_HSW, grad_sum_HSW, delta_SK, count_S, weight_T, bias_T, keep_SKH, attention_SKH,
    grad_score_SKH, grad_weight_BT, grad_bias_BT, S,
    H: tl.constexpr, K: tl.constexpr, W: tl.constexpr, T: tl.constexpr,
    SLOTS: tl.constexpr, TP: tl.constexpr, SEEDS: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """The time code's gradients, one float64 row for every SEEDS seeds, SLOTS slots at a time."""
    KIND: tl.constexpr = attention_SKH.dtype.element_ty
    block = tl.program_id(0).to(tl.int64)
    t = tl.arange(0, TP)
    weight_w, bias_w = load_parameters(weight_T, bias_T, t, T)
    total_weight, total_bias = tl.zeros((TP,), tl.float64), tl.zeros((TP,), tl.float64)
    for i in range(SEEDS):
        s = block * SEEDS + i
        count = tl.load(count_S + s, mask=s < S, other=0)
        for first in range(0, count, SLOTS):
            slot = first + tl.arange(0, SLOTS)
            used = slot < count
            delta = tl.load(delta_SK + s * K + slot, mask=used, other=0.0).to(tl.float64)
            turns = turns_of(delta[:, None], weight_w[None, :], bias_w[None, :])
            code = tl.zeros((SLOTS, TP), KIND)
            for h in tl.static_range(H):
                at = (s * K + slot) * H + h
                score = tl.load(grad_score_SKH + at, mask=used, other=0.0)
                weight = tl.load(attention_SKH + at, mask=used, other=0.0)
                if DROPOUT:
                    weight = weight * tl.load(keep_SKH + at, mask=used, other=0.0)
                start = (h * S + s) * W + (W - T)
                query = tl.load(query_HSW + start + t, mask=t < T, other=0.0).to(KIND)
                grad = tl.load(grad_sum_HSW + start + t, mask=t < T, other=0.0).to(KIND)
                code += score[:, None] * query[None, :] + weight[:, None] * grad[None, :]
            step = (code * slope_of_turns(turns, KIND)).to(tl.float64)
            total_bias += tl.sum(step, axis=0)
            total_weight += tl.sum(step * delta[:, None], axis=0)
    tl.store(grad_weight_BT + block * T + t, total_weight, mask=t < T)
    tl.store(grad_bias_BT + block * T + t, total_bias, mask=t < T)
