"""Dot products, weighted sums and softmax of a few rows, written out for the vector registers.

As in `tiles`: addresses and strides in bytes, nothing is checked, and each number of a result is
one chain of operations that does not know what is computed beside it. Two queries, or two weights
a row, are taken at a time: each vector that is loaded then serves two multiply-adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped
from numba.extending import intrinsic

from tidegraph.ops.tiles import LANES, multiply_add, pointer, spread, word
from tidegraph.ops.vectors import Vectors, halves

cgutils: Any = untyped

WIDTH = 32
"""Rows are padded to a multiple of so many columns; of half as many would do for all of this."""

_FLOAT = ir.FloatType()
_ROWS = 4  # of one step of `dot_rows`
_MOST = 4  # vectors of a row that stay in registers, for each of two sums


def _add_sums(
    builder: Any, weights: list[Any], outs: list[Any], given: tuple[Any, ...], vectors: int
) -> None:
    """`vectors` vectors of weighted sums of the rows.

    Each weight is the address of as many numbers as there are rows; `given` are the rows' address,
    stride and count, the column (in bytes), and the address of a row to begin with, or None.
    """
    rows, row_bytes, count, column, base = given
    lanes = ir.VectorType(_FLOAT, LANES)
    size = 4 * LANES
    zero = ir.Constant(lanes, [0.0] * LANES)
    places = [
        [pointer(builder, lanes, out, column, word(size * v)) for v in range(vectors)]
        for out in outs
    ]
    sums = [[cgutils.alloca_once(builder, lanes) for _ in range(vectors)] for _ in outs]
    for v in range(vectors):
        begin = zero
        if base is not None:
            start = pointer(builder, lanes, base, column, word(size * v))
            begin = builder.load(start, align=4)
        for totals in sums:
            builder.store(begin, totals[v])
    with cgutils.for_range(builder, count) as loop:
        number_at = builder.mul(loop.index, word(4))
        start = builder.add(builder.mul(loop.index, row_bytes), column)
        row = [
            builder.load(pointer(builder, lanes, rows, start, word(size * v)), align=4)
            for v in range(vectors)
        ]
        for weight, totals in zip(weights, sums, strict=True):
            number = builder.load(pointer(builder, _FLOAT, weight, number_at))
            factor = spread(builder, lanes, number)
            for value, total in zip(row, totals, strict=True):
                added = multiply_add(builder, lanes, factor, value, builder.load(total))
                builder.store(added, total)
    for totals, to in zip(sums, places, strict=True):
        for total, place in zip(totals, to, strict=True):
            builder.store(builder.load(total), place, align=4)


def _over_columns(builder: Any, width: Any, add: Callable[[Any, int], None]) -> None:
    """add(column in bytes, vectors), as many vectors at a time as there are columns left for."""
    done, vectors = word(0), _MOST
    while vectors * LANES >= WIDTH // 2:
        chunk = 4 * LANES * vectors
        left = builder.sub(builder.mul(width, word(4)), done)
        chunks = builder.sdiv(left, word(chunk))
        with cgutils.for_range(builder, chunks) as loop:
            add(builder.add(done, builder.mul(loop.index, word(chunk))), vectors)
        done = builder.add(done, builder.mul(chunks, word(chunk)))
        vectors //= 2


@intrinsic
def _sum_rows(
    typing_context: Any, first: Any, second: Any, rows: Any, row_bytes: Any, count: Any, out: Any,
    out_row: Any, width: Any,
) -> Any:  # fmt: skip
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first, second, rows, row_bytes, count, out, out_row, width = args
        outs = [out, builder.add(out, out_row)]

        def add(column: Any, vectors: int) -> None:
            given = (rows, row_bytes, count, column, None)
            _add_sums(builder, [first, second], outs, given, vectors)

        _over_columns(builder, width, add)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), codegen


@intrinsic
def _sum_rows_from(
    typing_context: Any, base: Any, first: Any, second: Any, rows: Any, row_bytes: Any, count: Any,
    out: Any, out_row: Any, width: Any,
) -> Any:  # fmt: skip
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        base, first, second, rows, row_bytes, count, out, out_row, width = args
        outs = [out, builder.add(out, out_row)]

        def add(column: Any, vectors: int) -> None:
            given = (rows, row_bytes, count, column, base)
            _add_sums(builder, [first, second], outs, given, vectors)

        _over_columns(builder, width, add)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 9), codegen


def _turn(builder: Any, a: Any, b: Any, cosine: Any, slope: Any) -> Any:
    """a * cosine - b * slope."""
    lost = builder.fneg(builder.fmul(b, slope))
    return multiply_add(builder, a.type, a, cosine, lost)


@intrinsic
def _turned(
    typing_context: Any, a: Any, b: Any, cosine: Any, slope: Any, out: Any, width: Any
) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        *given, out, width = args
        lanes = ir.VectorType(_FLOAT, LANES)
        vectors = builder.sdiv(builder.add(width, word(LANES - 1)), word(LANES))
        with cgutils.for_range(builder, vectors) as loop:
            place = builder.mul(loop.index, word(4 * LANES))
            a, b, cosine, slope = (
                builder.load(pointer(builder, lanes, start, place), align=4) for start in given
            )
            kept = _turn(builder, a, b, cosine, slope)
            builder.store(kept, pointer(builder, lanes, out, place), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), codegen


_TURNED = 2  # vectors of both halves of a row, for each of two sums, that stay in registers


@intrinsic
def _sum_turned_rows(
    typing_context: Any, first: Any, second: Any, rows: Any, row_bytes: Any, count: Any,
    circle: Any, out: Any, out_row: Any, width: Any,
) -> Any:  # fmt: skip
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first, second, rows, row_bytes, count, circle, out, out_row, width = args
        lanes, size = ir.VectorType(_FLOAT, LANES), 4 * LANES
        zero = ir.Constant(lanes, [0.0] * LANES)
        outs = [out, builder.add(out, out_row)]
        half = builder.mul(width, word(4))

        def load(start: Any, place: Any, v: int) -> Any:
            return builder.load(pointer(builder, lanes, start, place, word(size * v)), align=4)

        def add(column: Any, vectors: int) -> None:
            places = [column, builder.add(column, half)]
            # By sum, half of the row, and vector.
            sums = [
                [[cgutils.alloca_once_value(builder, zero) for _ in range(vectors)] for _ in places]
                for _ in outs
            ]
            with cgutils.for_range(builder, count) as loop:
                number_at = builder.mul(loop.index, word(4))
                row = builder.add(rows, builder.mul(loop.index, row_bytes))
                factors = [
                    spread(builder, lanes, builder.load(pointer(builder, _FLOAT, w, number_at)))
                    for w in (first, second)
                ]
                for side, place in enumerate(places):
                    for v in range(vectors):
                        value = load(row, place, v)
                        for factor, totals in zip(factors, sums, strict=True):
                            total = totals[side][v]
                            added = multiply_add(builder, lanes, factor, value, builder.load(total))
                            builder.store(added, total)
            for v in reversed(range(vectors)):
                cosine, slope = (load(circle, place, v) for place in places)
                for totals, to in zip(sums, outs, strict=True):
                    a, b = (builder.load(side[v]) for side in totals)
                    place = pointer(builder, lanes, to, column, word(size * v))
                    builder.store(_turn(builder, a, b, cosine, slope), place, align=4)

        # From the last columns to the first: the second sum may begin within the first's padding.
        left = cgutils.alloca_once_value(builder, half)

        def add_before(chunks: Any, vectors: int) -> None:
            with cgutils.for_range(builder, chunks):
                column = builder.sub(builder.load(left), word(size * vectors))
                add(column, vectors)
                builder.store(column, left)

        vectors = builder.sdiv(width, word(LANES))
        add_before(builder.srem(vectors, word(_TURNED)), 1)
        add_before(builder.sdiv(vectors, word(_TURNED)), _TURNED)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 9), codegen


_EXACT = 2.0**24  # whole numbers from 0 up to it are exact in float32, and so are their differences


def _write_gap(v: Vectors, gap: Any, used: Any, apart: Any, whole: Any) -> Any:
    v.store_where(used, apart, *gap)
    return whole


def _compare_gap(v: Vectors, gap: Any, used: Any, apart: Any, whole: Any) -> Any:
    known = v.load_where(used, v.constant(0.0), *gap)
    return v.builder.and_(whole, v.builder.fcmp_ordered("==", apart, known))


def _gaps(look: Callable[[Vectors, Any, Any, Any, Any], Any]) -> Any:
    """An intrinsic (delta, count, gap): whether all time differences are whole, small and not
    negative, and all that `look` finds is true.

    It is given the place among the gaps, which lanes are in use, the differences from the last one,
    and which lanes hold whole numbers; it returns the lanes that are to be true.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        delta, count, gap = args
        v = Vectors(builder)
        vectors = builder.sdiv(builder.add(count, word(LANES - 1)), word(LANES))
        last_at = builder.mul(builder.sub(count, word(1)), word(4))
        last = v.spread(builder.load(pointer(builder, _FLOAT, delta, last_at)))
        bits = ir.IntType(LANES)
        found = cgutils.alloca_once_value(builder, ir.Constant(bits, -1))
        with cgutils.for_range(builder, vectors) as loop:
            place = builder.mul(loop.index, word(4 * LANES))
            used = v.first(builder.sub(count, builder.mul(loop.index, word(LANES))))
            value = v.load_where(used, last, delta, place)
            whole = builder.and_(
                builder.fcmp_ordered("<", value, v.constant(_EXACT)),
                builder.fcmp_ordered("==", value, v.nearest(value)),
            )
            whole = builder.and_(whole, builder.fcmp_ordered(">=", value, v.constant(0.0)))
            good = look(v, (gap, place), used, v.sub(value, last), whole)
            builder.store(builder.and_(builder.load(found), builder.bitcast(good, bits)), found)
        all_good = builder.icmp_signed("==", builder.load(found), ir.Constant(bits, -1))
        return builder.zext(all_good, ir.IntType(64))

    @intrinsic
    def gaps(typing_context: Any, delta: Any, count: Any, gap: Any) -> Any:
        return types.int64(*[types.int64] * 3), codegen

    return gaps


def _halved(builder: Any, vector: Any) -> Any:
    """Its lower and its upper half, added."""
    return builder.fadd(*halves(builder, vector))


def _picked(builder: Any, a: Any, b: Any, numbers: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(numbers)), numbers)
    return builder.shuffle_vector(a, b, mask)


# Within each half of two vectors of eight: what is added to what, so that a sum of pairs of the
# first stands before one of pairs of the second.
_LEFT, _RIGHT = [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]
_EVEN, _ODD = [0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]


def _totals(builder: Any, vectors: list[Any]) -> Any:
    """Of eight vectors, the sums of each one's numbers: a vector of eight."""
    while vectors[0].type.count > 8:
        vectors = [_halved(builder, vector) for vector in vectors]
    for left, right in ((_LEFT, _RIGHT), (_EVEN, _ODD)):
        vectors = [
            builder.fadd(
                _picked(builder, vectors[i], vectors[i + 1], left),
                _picked(builder, vectors[i], vectors[i + 1], right),
            )
            for i in range(0, len(vectors), 2)
        ]
    a, b = vectors
    lower = _picked(builder, a, b, [0, 1, 2, 3, 8, 9, 10, 11])
    upper = _picked(builder, a, b, [4, 5, 6, 7, 12, 13, 14, 15])
    return builder.fadd(lower, upper)


@intrinsic
def _dot_rows(
    typing_context: Any, first: Any, second: Any, rows: Any, row_bytes: Any, count: Any, out: Any,
    out_row: Any, width: Any,
) -> Any:  # fmt: skip
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first, second, rows, row_bytes, count, out, out_row, width = args
        lanes = ir.VectorType(_FLOAT, LANES)
        zero = ir.Constant(lanes, [0.0] * LANES)
        steps = builder.sdiv(width, word(LANES))
        groups = builder.sdiv(builder.add(count, word(_ROWS - 1)), word(_ROWS))
        with cgutils.for_range(builder, groups) as group:
            start = builder.mul(group.index, word(_ROWS))
            last = builder.sub(builder.sub(count, start), word(1))
            sums = [cgutils.alloca_once(builder, lanes) for _ in range(2 * _ROWS)]
            for total in sums:
                builder.store(zero, total)
            places = []
            for r in range(_ROWS):
                # Behind the last row it is read again: nothing else is known to be there.
                row = builder.select(builder.icmp_signed("<", word(r), last), word(r), last)
                row = builder.mul(builder.add(start, row), row_bytes)
                places.append(builder.add(rows, row))
            with cgutils.for_range(builder, steps) as loop:
                column = builder.mul(loop.index, word(4 * LANES))
                asked = [
                    builder.load(pointer(builder, lanes, query, column), align=4)
                    for query in (first, second)
                ]
                for r, place in enumerate(places):
                    value = builder.load(pointer(builder, lanes, place, column), align=4)
                    for q, query in enumerate(asked):
                        total = sums[q * _ROWS + r]
                        added = multiply_add(builder, lanes, query, value, builder.load(total))
                        builder.store(added, total)
            found = _totals(builder, [builder.load(total) for total in sums])
            to = builder.add(out, builder.mul(start, word(4)))
            few = ir.VectorType(_FLOAT, _ROWS)
            outs = list(enumerate((to, builder.add(to, out_row))))
            whole = builder.icmp_signed(">=", last, word(_ROWS - 1))
            with builder.if_else(whole) as (all_rows, some_rows):
                with all_rows:
                    for q, place in outs:
                        part = _picked(builder, found, found, [_ROWS * q + r for r in range(_ROWS)])
                        builder.store(part, pointer(builder, few, place), align=4)
                with some_rows:
                    for r in range(_ROWS - 1):
                        with builder.if_then(builder.icmp_signed("<=", word(r), last)):
                            for q, place in outs:
                                which = ir.Constant(ir.IntType(32), _ROWS * q + r)
                                number = builder.extract_element(found, which)
                                builder.store(number, pointer(builder, _FLOAT, place, word(4 * r)))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), codegen


@intrinsic
def _softmax_row(typing_context: Any, score: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        score, count = args
        v = Vectors(builder)
        with builder.if_else(builder.icmp_signed("<=", count, word(LANES))) as (short, long):
            with short:
                used = v.first(count)
                weight, total = _exponentials(v, score, used)
                v.store_where(used, builder.fdiv(weight, total), score)
            with long:
                _softmax_long(v, score, count)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _exponentials(v: Vectors, score: Any, used: Any) -> tuple[Any, Any]:
    """Of one vector of scores, and their sum."""
    lowest = v.constant(float("-inf"))
    scores = v.load_where(used, lowest, score)
    peak = v.spread(v.largest(scores))
    weight = v.builder.select(used, v.exponential(v.sub(scores, peak)), v.constant(0.0))
    return weight, v.spread(v.total(weight))


def _softmax_long(v: Vectors, score: Any, count: Any) -> None:
    """The same over any number of vectors, whose exponentials lie where the scores were."""
    builder = v.builder
    vectors = builder.sdiv(builder.add(count, word(LANES - 1)), word(LANES))
    lowest, zero = v.constant(float("-inf")), v.constant(0.0)
    largest = cgutils.alloca_once_value(builder, lowest)
    sums = cgutils.alloca_once_value(builder, zero)

    def each() -> Iterator[tuple[Any, Any, Any]]:
        with cgutils.for_range(builder, vectors) as loop:
            place = builder.mul(loop.index, word(4 * LANES))
            used = v.first(builder.sub(count, builder.mul(loop.index, word(LANES))))
            yield place, used, v.load_where(used, lowest, score, place)

    for _, _, scores in each():
        builder.store(v.larger(builder.load(largest), scores), largest)
    peak = v.spread(v.largest(builder.load(largest)))
    for place, used, scores in each():
        weight = v.exponential(v.sub(scores, peak))
        weight = builder.select(used, weight, zero)
        builder.store(v.add(builder.load(sums), weight), sums)
        v.store_where(used, weight, score, place)
    total = v.spread(v.total(builder.load(sums)))
    for place, used, weight in each():
        v.store_where(used, builder.fdiv(weight, total), score, place)


sum_rows: Any = _sum_rows
"""sum_rows(first, second, rows, row_bytes, count, out, out_row, width): two weighted sums of rows.

The weights lie one after the other from `first` and from `second` on; the sums go to `out` and
`out_row` bytes further. Each is a chain of fused multiply-adds over the rows in order. `width`
columns, a multiple of half a `WIDTH`."""

sum_rows_from: Any = _sum_rows_from
"""sum_rows_from(base, first, second, rows, row_bytes, count, out, out_row, width): as `sum_rows`;
both chains begin with the row at `base`."""

sum_turned_rows: Any = _sum_turned_rows
"""sum_turned_rows(first, second, rows, row_bytes, count, circle, out, out_row, width): two weighted
sums of circles (cosines, and from column `width` on slopes), each turned by another circle.

`turned` applied to the two halves of `sum_rows`, which are not stored between. `width` columns, a
multiple of half a `WIDTH`, are written; the second result may begin within the first one."""

whole_gaps: Any = _gaps(_write_gap)
"""whole_gaps(delta, count, gap): write the differences between `count` (1 or more) time differences
and the last of them; 1 where float32 holds them exactly, otherwise 0.

It does where all are whole numbers from 0 up to 2**24: a matter of the seed's own differences, so
that a seed is computed in the same way whatever is beside it."""

same_gaps: Any = _gaps(_compare_gap)
"""same_gaps(delta, count, gap): 1 where `whole_gaps` would return it and write what is there."""

softmax_row: Any = _softmax_row
"""softmax_row(score, count): of `count` numbers, in place."""

turned: Any = _turned
"""turned(a, b, cosine, slope, out, width): out = a * cosine - b * slope, number by number.

Whole vectors: up to `LANES` - 1 numbers more than `width` are read and written."""

dot_rows: Any = _dot_rows
"""dot_rows(first, second, rows, row_bytes, count, out, out_row, width): rows times two queries.

The queries begin at `first` and `second`; the first `count` rows' products with them go to `out`
and `out_row` bytes further, and nothing is written behind them. `width` columns, a multiple of half
a `WIDTH`."""
