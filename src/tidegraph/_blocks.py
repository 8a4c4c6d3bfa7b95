"""Running one kernel over blocks of rows on all threads, from inside another kernel.

`in_blocks` is what kernels have instead of `numba.prange`. A `prange` compiles its body three times
over (as a ufunc, its wrapper and its caller) and gives each thread one share in advance; here the
body is compiled once, and threads take the next block when they are free, so that one slow core
does not hold up the others. What a block writes depends on the block alone: results do not depend
on who takes it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_WORD = ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()
# A shared record: total, block size, the next row to take, whether a block failed, the arguments.
_TOTAL, _BLOCK, _NEXT, _FAILED, _ARGUMENTS = range(5)


def start_threads() -> None:
    """Start Numba's threads, whose functions the compiled code calls by name."""
    from numba.np.ufunc.parallel import _launch_threads

    _launch_threads()


def _body(context: Any, builder: Any, record: ir.Type, callee: Any, signature: Any) -> Any:
    """void body(arguments, dimensions, steps, record): what each thread runs until no row is left.

    Its parameters are those of a ufunc's inner loop, which Numba's threads call.
    """
    words = _WORD.as_pointer()
    module = builder.module
    name = module.get_unique_name("run_blocks")
    function_type = ir.FunctionType(ir.VoidType(), [_BYTES.as_pointer(), words, words, _BYTES])
    body = ir.Function(module, function_type, name)
    body.linkage = "internal"
    build = ir.IRBuilder(body.append_basic_block("entry"))
    shared = build.bitcast(body.args[3], record.as_pointer())
    total = build.load(cgutils.gep_inbounds(build, shared, 0, _TOTAL))
    block = build.load(cgutils.gep_inbounds(build, shared, 0, _BLOCK))
    following = cgutils.gep_inbounds(build, shared, 0, _NEXT)
    packed = build.load(cgutils.gep_inbounds(build, shared, 0, _ARGUMENTS))
    given = [build.extract_value(packed, i) for i in range(len(signature.args) - 2)]
    head, run, end = (body.append_basic_block(part) for part in ("head", "run", "end"))
    build.branch(head)
    build.position_at_end(head)
    first = build.atomic_rmw("add", following, block, "monotonic")
    build.cbranch(build.icmp_signed("<", first, total), run, end)
    build.position_at_end(run)
    last = build.add(first, block)
    last = build.select(build.icmp_signed("<", last, total), last, total)
    target = context.declare_function(module, callee.fndesc)
    status, _ = context.call_conv.call_function(
        build, target, callee.fndesc.restype, callee.fndesc.argtypes, [first, last, *given]
    )
    with cgutils.if_unlikely(build, status.is_error):
        build.store(ir.Constant(_WORD, 1), cgutils.gep_inbounds(build, shared, 0, _FAILED))
    build.branch(head)
    build.position_at_end(end)
    build.ret_void()
    return body


@intrinsic
def _in_blocks(typing_context: Any, function: Any, total: Any, block: Any, arguments: Any) -> Any:
    inner = (types.int64, types.int64, *arguments)
    function.get_call_type(typing_context, inner, {})  # compiles it

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> None:
        call = function.get_call_type(context.typing_context, inner, {})
        callee = function.dispatcher.get_compile_result(call)
        library = context.active_code_library
        library.add_linking_library(callee.library)
        start_threads()
        library._reload_init.add(start_threads)

        _, rows, size, packed = values
        record = ir.LiteralStructType([_WORD, _WORD, _WORD, _WORD, packed.type])
        body = _body(context, builder, record, callee, call)
        shared = cgutils.alloca_once(builder, record)
        for place, value in ((_TOTAL, rows), (_BLOCK, size), (_ARGUMENTS, packed)):
            builder.store(value, cgutils.gep_inbounds(builder, shared, 0, place))
        for place in (_NEXT, _FAILED):
            builder.store(ir.Constant(_WORD, 0), cgutils.gep_inbounds(builder, shared, 0, place))
        _run(builder, body, builder.bitcast(shared, _BYTES), rows, size)
        failed = builder.load(cgutils.gep_inbounds(builder, shared, 0, _FAILED))
        with cgutils.if_unlikely(builder, builder.icmp_signed("!=", failed, failed.type(0))):
            # Nothing else can fail in a kernel: no bounds are checked, division has no errors.
            context.call_conv.return_user_exc(builder, MemoryError, ("no memory for a kernel",))
        return context.get_dummy_value()

    return types.void(function, types.int64, types.int64, arguments), codegen


def _run(builder: Any, body: Any, shared: Any, rows: Any, size: Any) -> None:
    """Call the body on as many threads as there are blocks for; here, where that is one."""
    words = _WORD.as_pointer()
    module, one = builder.module, ir.Constant(_WORD, 1)
    count = cgutils.get_or_insert_function(module, ir.FunctionType(_WORD, []), "get_num_threads")
    blocks = builder.sdiv(builder.sub(builder.add(rows, size), one), size)
    threads = builder.call(count, [])
    threads = builder.select(builder.icmp_signed("<", blocks, threads), blocks, threads)
    many = builder.icmp_signed(">", threads, one)
    dimensions = cgutils.alloca_once(builder, _WORD)
    builder.store(threads, dimensions)
    no_arguments, no_steps = ir.Constant(_BYTES.as_pointer(), None), ir.Constant(words, None)
    with builder.if_else(many) as (then, otherwise):
        with then:
            kind = ir.FunctionType(ir.VoidType(), [_BYTES] * 5 + [_WORD] * 3)
            spread = cgutils.get_or_insert_function(module, kind, "numba_parallel_for")
            nothing = ir.Constant(_BYTES, None)
            handed = [builder.bitcast(value, _BYTES) for value in (body, dimensions)]
            counts = [ir.Constant(_WORD, 0), ir.Constant(_WORD, 0), threads]
            builder.call(spread, [handed[0], nothing, handed[1], nothing, shared, *counts])
        with otherwise:
            builder.call(body, [no_arguments, dimensions, no_steps, shared])


in_blocks: Any = _in_blocks
"""in_blocks(function, total, block, arguments): call function(first, last, *arguments) for the rows
[0, total) in blocks of `block`, on as many threads as Numba is set to use.

Args:
    function: a kernel; it writes nothing that another block reads or writes.
    total: rows.
    block: rows a call; the first of a block is a multiple of it.
    arguments: a tuple.

Raises:
    MemoryError: a block could not allocate its scratch memory.
"""
