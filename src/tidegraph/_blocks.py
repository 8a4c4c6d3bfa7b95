"""Running one kernel over blocks of rows on all threads, from inside another kernel.

`in_blocks` is what kernels have instead of `numba.prange`. A `prange` compiles its body three times
over (as a ufunc, its wrapper and its caller); here it is compiled once. Each thread begins with a
share of its own, where it finds in its cache what it wrote in the kernel before, and then helps the
others, so that one slow core does not hold up the rest. What a block writes depends on the block
alone: results do not depend on who takes it.
"""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped
from numba.extending import intrinsic

cgutils: Any = untyped
_WORD = ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()
_MOST_SHARES = 64
_LINE = 8  # words of a cache line: no two counters share one

# What the threads share: rows in all, rows a block, whether a block failed, how many shares there
# are, rows a share, the next row of each share, and the kernel's arguments.
_ROWS, _BLOCK, _FAILED, _SHARES, _SHARE, _NEXT, _ARGUMENTS = range(7)


def start_threads() -> None:
    """Start Numba's threads, whose functions the compiled code calls by name."""
    from numba.np.ufunc import parallel

    backend: Any = parallel
    backend._launch_threads()


@dataclass(frozen=True)
class _Needed:
    """A kernel that compiled code calls by a name of its own, for arguments of these types.

    Numba would put a copy of it into every kernel that calls it, and into those that call these,
    and optimise each copy again: a third of the time that all kernels take to compile. The name
    says nothing of when and where it was compiled, so code from the cache finds any compiled form.
    """

    module: str
    function: str
    arguments: tuple[Any, ...]

    @property
    def symbol(self) -> str:
        """Its name in compiled code."""
        text = f"{self.module}.{self.function}{self.arguments}"
        return f"tidegraph_{self.function}_{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    def __call__(self) -> Any:
        """Compile it, or read it from the cache, and make its name known; called also wherever code
        that needs it comes from the cache."""
        dispatcher = getattr(importlib.import_module(self.module), self.function)
        dispatcher.compile(self.arguments)
        compiled = dispatcher.overloads[self.arguments]
        name = compiled.fndesc.llvm_func_name
        place = compiled.library.get_pointer_to_function(name)
        assert place, f"{self.function} has no code"
        llvm.add_symbol(self.symbol, place)
        return compiled


def _need(library: Any, function: Any, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """The symbol and the descriptor of a kernel that code of a library is going to call."""
    python = function.dispatcher.py_func
    needed = _Needed(python.__module__, python.__name__, arguments)
    compiled = needed()
    library._reload_init.add(needed)  # which does the same for what it needs itself
    return needed.symbol, compiled.fndesc


def _declared(context: Any, builder: Any, symbol: str, descriptor: Any) -> Any:
    kind = context.call_conv.get_function_type(descriptor.restype, descriptor.argtypes)
    return cgutils.get_or_insert_function(builder.module, kind, symbol)


def _word(number: int) -> ir.Constant:
    return ir.Constant(_WORD, number)


def _least(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def _ceiling(builder: Any, a: Any, b: Any) -> Any:
    """a / b, rounded up."""
    return builder.sdiv(builder.sub(builder.add(a, b), _word(1)), b)


def _counter(builder: Any, shared: Any, share: Any) -> Any:
    counters = cgutils.gep_inbounds(builder, shared, 0, _NEXT)
    place = builder.mul(share, _word(_LINE))
    return builder.gep(counters, [ir.Constant(ir.IntType(32), 0), place])


class _Body:
    """void body(shares, dimensions, steps, shared): what a thread runs until no row is left.

    Its parameters are those of a ufunc's inner loop, which Numba's threads call. The first is the
    address of a number that is not read: it is the thread's first share itself.

    Args:
        context, module: where it is built.
        record: the type of `shared`.
        symbol, callee: of the compiled kernel.
    """

    def __init__(
        self, context: Any, module: Any, record: ir.Type, symbol: str, callee: Any
    ) -> None:
        self.context, self.symbol, self.callee = context, symbol, callee
        words = _WORD.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [_BYTES.as_pointer(), words, words, _BYTES])
        self.function = ir.Function(module, kind, module.get_unique_name("run_blocks"))
        self.function.linkage = "internal"
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.shared = self.builder.bitcast(self.function.args[3], record.as_pointer())
        self._build()

    def _field(self, place: int) -> Any:
        return self.builder.load(cgutils.gep_inbounds(self.builder, self.shared, 0, place))

    def _build(self) -> None:
        builder = self.builder
        rows, block, shares, size = map(self._field, (_ROWS, _BLOCK, _SHARES, _SHARE))
        packed = self._field(_ARGUMENTS)
        given = [builder.extract_value(packed, i) for i in range(len(self.callee.argtypes) - 2)]
        own = builder.ptrtoint(builder.load(self.function.args[0]), _WORD)
        with cgutils.for_range(builder, shares) as loop:
            share = builder.urem(builder.add(own, loop.index), shares)
            stop = _least(builder, builder.mul(builder.add(share, _word(1)), size), rows)
            counter = _counter(builder, self.shared, share)
            head, run, after = map(self.function.append_basic_block, ("head", "run", "after"))
            builder.branch(head)
            builder.position_at_end(head)
            first = builder.atomic_rmw("add", counter, block, "monotonic")
            builder.cbranch(builder.icmp_signed("<", first, stop), run, after)
            builder.position_at_end(run)
            self._call([first, _least(builder, builder.add(first, block), stop)], given)
            builder.branch(head)
            builder.position_at_end(after)
        builder.ret_void()

    def _call(self, bounds: list[Any], given: list[Any]) -> None:
        builder, callee = self.builder, self.callee
        # Rows are never negative: without that, each index is tested and no loop is vectorised.
        bounds = [builder.and_(row, _word(2**63 - 1)) for row in bounds]
        target = _declared(self.context, builder, self.symbol, callee)
        status, _ = self.context.call_conv.call_function(
            builder, target, callee.restype, callee.argtypes, [*bounds, *given]
        )
        with cgutils.if_unlikely(builder, status.is_error):
            builder.store(_word(1), cgutils.gep_inbounds(builder, self.shared, 0, _FAILED))


@intrinsic
def _in_blocks(typing_context: Any, function: Any, rows: Any, block: Any, arguments: Any) -> Any:
    inner = (types.int64, types.int64, *map(types.unliteral, arguments))
    function.dispatcher.compile(inner)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        library = context.active_code_library
        symbol, callee = _need(library, function, inner)
        start_threads()
        library._reload_init.add(start_threads)  # where the caller is read from the cache

        _, total, size, packed = values
        counters = ir.ArrayType(_WORD, _LINE * _MOST_SHARES)
        record = ir.LiteralStructType([_WORD] * 5 + [counters, packed.type])
        body = _Body(context, builder.module, record, symbol, callee)
        shared = cgutils.alloca_once(builder, record)
        for place, value in (
            (_ROWS, total), (_BLOCK, size), (_FAILED, _word(0)), (_ARGUMENTS, packed)
        ):  # fmt: skip
            builder.store(value, cgutils.gep_inbounds(builder, shared, 0, place))
        _run(builder, body.function, shared, total, size)
        failed = builder.load(cgutils.gep_inbounds(builder, shared, 0, _FAILED))
        with cgutils.if_unlikely(builder, builder.icmp_signed("!=", failed, _word(0))):
            # Nothing else can fail in a kernel: no bounds are checked, division has no errors.
            context.call_conv.return_user_exc(builder, MemoryError, ("no memory for a kernel",))
        return context.get_dummy_value()

    return types.void(function, types.int64, types.int64, arguments), codegen


def _run(builder: Any, body: Any, shared: Any, rows: Any, size: Any) -> None:
    """Deal out the shares and call the body on as many threads as there are blocks for."""
    module = builder.module
    count = cgutils.get_or_insert_function(module, ir.FunctionType(_WORD, []), "get_num_threads")
    blocks = _ceiling(builder, rows, size)
    threads = _least(builder, blocks, builder.call(count, []))
    shares = _least(builder, threads, _word(_MOST_SHARES))
    shares = builder.select(builder.icmp_signed("<", shares, _word(1)), _word(1), shares)
    share = builder.mul(_ceiling(builder, blocks, shares), size)
    for place, value in ((_SHARES, shares), (_SHARE, share)):
        builder.store(value, cgutils.gep_inbounds(builder, shared, 0, place))
    with cgutils.for_range(builder, shares) as loop:
        builder.store(builder.mul(loop.index, share), _counter(builder, shared, loop.index))

    # Element i of an array at address 0 with steps of one byte: its address is i.
    first = cgutils.alloca_once_value(builder, ir.Constant(_BYTES, None))
    step = cgutils.alloca_once_value(builder, _word(1))
    dimension = cgutils.alloca_once(builder, _WORD)
    builder.store(threads, dimension)
    data = builder.bitcast(shared, _BYTES)
    with builder.if_else(builder.icmp_signed(">", threads, _word(1))) as (many, one):
        with many:
            kind = ir.FunctionType(ir.VoidType(), [_BYTES] * 5 + [_WORD] * 3)
            spread = cgutils.get_or_insert_function(module, kind, "numba_parallel_for")
            handed = [builder.bitcast(x, _BYTES) for x in (body, first, dimension, step)]
            builder.call(spread, [*handed, data, _word(0), _word(1), threads])
        with one:
            builder.call(body, [first, dimension, step, data])


in_blocks: Any = _in_blocks
"""in_blocks(function, rows, block, arguments): call function(first, last, *arguments) for the rows
[0, rows) in blocks of `block`, on as many threads as Numba is set to use.

Args:
    function: a kernel declared with `block=True`; it writes nothing that another block reads or
        writes, and returns nothing.
    rows: how many there are.
    block: rows a call; the first of a block is a multiple of it.
    arguments: a tuple of two or more.

Raises:
    MemoryError: a block could not allocate its scratch memory.
"""


@intrinsic
def _apart(typing_context: Any, function: Any, arguments: Any) -> Any:
    inner = tuple(map(types.unliteral, arguments))
    function.dispatcher.compile(inner)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        symbol, callee = _need(context.active_code_library, function, inner)
        target = _declared(context, builder, symbol, callee)
        given = [
            context.cast(builder, builder.extract_value(values[1], i), kind, wanted)
            for i, (kind, wanted) in enumerate(zip(arguments, inner, strict=True))
        ]
        status, _ = context.call_conv.call_function(
            builder, target, callee.restype, callee.argtypes, given
        )
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.void(function, arguments), codegen


apart: Any = _apart
"""apart(function, arguments): a call that stays one, of a kernel that is compiled once.

Otherwise the compiler takes what a kernel calls into it, to optimise it there again.

Args:
    function: a kernel that returns nothing.
    arguments: a tuple of two or more.
"""
