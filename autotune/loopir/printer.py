"""④ Loop IR as text for people: `explain --stage loopir`, golden tests, failure messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from autotune.loopir.nodes import (
    Alloc,
    Barrier,
    Body,
    Buffer,
    For,
    If,
    Instruction,
    Kernel,
    Let,
    Packing,
    PrefetchLine,
    Program,
    Stmt,
    Store,
)
from autotune.strides import dense
from autotune.te.dag import print_compute, print_expr
from autotune.te.expr import Expr, Tensor

_TAB = "  "


def print_program(program: Program) -> str:
    """Buffers, packings and kernels, one statement per line.

    Strides, in elements, are shown where a buffer is not dense.
    """
    lines = [f"{b.role} {_buffer(b)}" for b in program.buffers]
    lines += [f"derive {print_compute(op)}" for op in program.derived]
    lines += [_packing(p) for p in program.packs]
    for kernel in program.kernels:
        lines += ["", *_kernel(kernel)]
    return "\n".join(lines) + "\n"


def print_body(body: Body, indent: str = "") -> str:
    """Statements alone, each line after `indent`."""
    return "\n".join(_body(body, indent))


def _kernel(kernel: Kernel) -> Iterator[str]:
    head = f"kernel {kernel.name}({', '.join(kernel.buffers)})"
    live = "" if kernel.live is None else f" and {_bare(kernel.live)}"
    yield f"{head}: parallel {kernel.var} in {kernel.extent}{live}"
    if kernel.head:
        yield f"{_TAB}first"
        yield from _body(kernel.head, _TAB * 2)
    yield from _body(kernel.body, _TAB)


def _body(body: Body, indent: str) -> Iterator[str]:
    for stmt in body:
        yield from _stmt(stmt, indent)


def _stmt(stmt: Stmt, indent: str) -> Iterator[str]:
    match stmt:
        case For(var=var, extent=extent, kind=kind, body=body, limit=limit):
            most = "" if limit is None else f" and {_bare(limit)}"
            yield f"{indent}{'for' if kind == 'serial' else kind} {var} in {extent}{most}"
            yield from _body(body, indent + _TAB)
        case If(cond=cond, then=then, orelse=orelse):
            yield f"{indent}if {_bare(cond)}"
            yield from _body(then, indent + _TAB)
            if orelse:
                yield f"{indent}else"
                yield from _body(orelse, indent + _TAB)
        case Alloc(buffer=buffer, body=body):
            yield f"{indent}{buffer.role} {_buffer(buffer)}"
            yield from _body(body, indent)
        case Let(var=var, value=value):
            yield f"{indent}{var} = {_bare(value)}"
        case Store(tensor=tensor, indices=indices, value=value):
            yield f"{indent}{_element(tensor, indices)} = {_bare(value)}"
        case PrefetchLine(tensor=tensor, indices=indices, offset=offset, level=level):
            where = f"{_element(tensor, indices)} + {print_expr(offset)} bytes"
            yield f"{indent}prefetch {where} into L{level}"
        case Instruction(operation=operation, body=body):
            yield f"{indent}{operation}"
            yield from _body(body, indent + _TAB)
        case Barrier():
            yield f"{indent}barrier"
        case _:
            assert_never(stmt)


def _buffer(buffer: Buffer) -> str:
    shape = buffer.tensor.shape
    text = f"{buffer.name}({', '.join(map(str, shape))}) {buffer.tensor.dtype}"
    if buffer.strides == dense(shape):
        return text
    return f"{text} strides ({', '.join(map(str, buffer.strides))})"


def _packing(packing: Packing) -> str:
    axes = ", ".join(f"{a.name}<{a.extent}" for a in packing.axes)
    return f"pack {packing.packed.name}[{axes}] = {_element(packing.source, packing.indices)}"


def _element(tensor: Tensor, indices: tuple[Expr, ...]) -> str:
    return f"{tensor.name}[{', '.join(map(_bare, indices))}]"


def _bare(e: Expr) -> str:
    """Text of `e` without the outermost parentheses."""
    text = print_expr(e)
    return text[1:-1] if text.startswith("(") else text
