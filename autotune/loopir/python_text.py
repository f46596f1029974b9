"""④ Loop IR as plain Python: for `explain --stage python`, and for the interpreter.

    def k0_c(a, b_packed, c, begin, end):
        for t in range(begin, end):
            acc = empty((4, 16), "float32")
            for c_i in range(4):  # unroll
                …

The text runs as it is over NumPy arrays. A kernel for a GPU is what one thread does; it yields at
barriers, and `launch` runs the threads of a block from one to the next. Names that Python does not
allow are written with `_`.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from textwrap import wrap
from typing import assert_never

from autotune.dtypes import DTYPES, DType, is_float
from autotune.loopir.launch import launch_of
from autotune.loopir.nodes import (
    Alloc,
    Barrier,
    Body,
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
from autotune.schedule.steps import BLOCK_INDICES, LAUNCH_INDICES, THREAD_INDICES
from autotune.te.dag import Compute
from autotune.te.expr import (
    INDEX,
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    Var,
    dtype_of,
)
from autotune.te.integers import INTEGER_OPS, WITHIN
from autotune.te.intrinsics import BITS_AS, INTRINSICS

_TAB = "    "
_INFIX = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}
_INFIX |= {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_INFIX |= {"and": "and", "or": "or"}
_INFIX |= {op.name: op.infix for op in INTEGER_OPS.values() if op.infix}
_NAMED = {"div": "divide", "pow": "power"}
"""NumPy's, where Python's would raise for zeros."""
_PRELUDE = """\
from numpy import divide, empty, float_power as power, fmod, inf, nan, zeros


def max(a, b):
    return a if a > b or a != a else b


def min(a, b):
    return a if a < b or a != a else b
"""


_LAUNCH = """\
def launch(kernel, grid, block, *arrays):
    for b in ndindex(grid):
        held = {}

        def shared(name, shape, dtype):
            if (name, shape) not in held:
                held[name, shape] = empty(shape, dtype)
            return held[name, shape]

        threads = [kernel(*arrays, *b, shared, *t) for t in ndindex(block)]
        while threads:
            threads = [t for t in threads if next(t, "done") != "done"]
"""


def print_python(program: Program) -> str:
    """One function per constant made and per kernel, and `run`, which calls them in order."""
    names = PythonNames()
    definitions = [f.python for f in INTRINSICS.values() if f.python.startswith("def")]
    parts = [_derived_text(op, names) for op in program.derived]
    parts += [packing_text(p, names) for p in program.packs]
    parts += [kernel_text(k, names) for k in program.kernels]
    parts.append(_run_text(program, names))
    used = "\n\n".join(parts)
    own = {op.name: op.python for op in INTEGER_OPS.values()}
    own |= {"within": WITHIN, "bits_as": BITS_AS}
    definitions += [text for name, text in own.items() if f"{name}(" in used]
    prelude = _imports() + _PRELUDE
    if any(launch_of(k) for k in program.kernels):
        definitions.insert(0, _LAUNCH)
        prelude = f"from numpy import ndindex\n{prelude}"
    return "\n\n".join([prelude, *definitions, used])


def _imports() -> str:
    """Import of element types and of functions, from the library that has each."""
    homes: dict[str, list[str]] = {}
    for record in DTYPES.values():
        homes.setdefault(record.numpy.type.__module__, []).append(record.name)
    functions = (f for f in INTRINSICS.values() if f.numpy)
    homes["numpy"] += [
        f.name if f.numpy == f.name else f"{f.numpy}\u00a0as\u00a0{f.name}" for f in functions
    ]
    lines = [f.python for f in INTRINSICS.values() if f.python.startswith("from")]
    for home, names in homes.items():
        rows = wrap(", ".join(sorted(names)), 80, break_on_hyphens=False)
        lines += [f"from {home} import {row.removesuffix(',')}\n" for row in rows]
    return "".join(lines).replace("\u00a0", " ")  # which lines are not broken at


class PythonNames:
    """Python identifiers for the names of tensors and of loop variables, no two alike."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], str] = {}

    def tensor(self, name: str) -> str:
        """The identifier of a tensor."""
        return self._identifier("tensor", name)

    def var(self, name: str) -> str:
        """The identifier of an index variable."""
        return self._identifier("variable", name)

    def _identifier(self, kind: str, name: str) -> str:
        if (kind, name) not in self._taken:
            plain = "".join(c if c.isalnum() else "_" for c in name)
            if not plain.isidentifier() or keyword.iskeyword(plain) or plain in _RESERVED:
                plain = f"{'' if plain[:1].isalpha() else 'x'}{plain}_"
            while plain in self._taken.values():
                plain += "_"
            self._taken[kind, name] = plain
        return self._taken[kind, name]


def kernel_text(kernel: Kernel, names: PythonNames) -> str:
    """`def kernel(buffers…, begin, end)` over part of the parallel range, or one GPU thread."""
    if launch_of(kernel):
        return _thread_text(kernel, names)
    arguments = [*(names.tensor(b) for b in kernel.buffers), "begin", "end"]
    lines = [f"def {kernel.name}({', '.join(arguments)}):"]
    if kernel.live is not None:
        lines.append(f"{_TAB}live = {_expr(kernel.live, names)}")
        shares = (f"{x} * live // {kernel.extent}" for x in ("begin", "end"))
        lines.append(f"{_TAB}begin, end = {', '.join(shares)}")
    if kernel.head:
        lines.append(f"{_TAB}{names.var(kernel.var)} = begin")
        lines += _body(kernel.head, _TAB, names)
    lines.append(f"{_TAB}for {names.var(kernel.var)} in range(begin, end):  # parallel")
    lines += _body(kernel.body, _TAB * 2, names)
    return "\n".join(lines) + "\n"


def _thread_text(kernel: Kernel, names: PythonNames) -> str:
    """`def kernel(buffers…, indices of the block, shared, indices of the thread)`."""
    given = [*(names.tensor(b) for b in kernel.buffers), *map(_index, BLOCK_INDICES), "shared"]
    head = f"def {kernel.name}({', '.join([*given, *map(_index, THREAD_INDICES)])}):"
    return "\n".join([head, *_body(kernel.body, _TAB, names), f'{_TAB}yield "done"']) + "\n"


def _derived_text(op: Compute, names: PythonNames) -> str:
    """`def derive_x(sources…)` that returns a constant made out of others."""
    target = names.tensor(op.name)
    where: tuple[Expr, ...] = tuple(a.var for a in op.axes)
    body: Body = (Store(op.tensor, where, op.body),)
    for axis in reversed(op.axes):
        body = (For(axis.name, axis.extent, "serial", body),)
    lines = [f"def derive_{target}({', '.join(map(names.tensor, _sources(op)))}):"]
    lines.append(f"{_TAB}{target} = empty({op.tensor.shape}, {op.tensor.dtype!r})")
    lines += _body(body, _TAB, names)
    return "\n".join([*lines, f"{_TAB}return {target}"]) + "\n"


def _sources(op: Compute) -> list[str]:
    return list(dict.fromkeys(x.tensor.name for x in op.reads))


def packing_text(packing: Packing, names: PythonNames) -> str:
    """`def pack_x(source)` that returns the packed constant."""
    source, packed = names.tensor(packing.source.name), names.tensor(packing.packed.name)
    lines = [f"def pack_{packed}({source}):"]
    lines.append(f"{_TAB}{packed} = zeros({packing.packed.shape}, {packing.packed.dtype!r})")
    indent = _TAB
    for axis in packing.axes:
        lines.append(f"{indent}for {names.var(axis.name)} in range({axis.extent}):")
        indent += _TAB
    where = [_expr(i, names) for i in packing.indices]
    inside = [f"0 <= {i} < {n}" for i, n in zip(where, packing.source.shape, strict=True)]
    value = f"{source}[{_tuple(where)}]"
    target = f"{packed}[{_tuple([names.var(a.name) for a in packing.axes])}]"
    lines.append(f"{indent}if {' and '.join(inside) or 'True'}:")
    lines.append(f"{indent}{_TAB}{target} = {value}")
    lines.append(f"{_TAB}return {packed}")
    return "\n".join(lines) + "\n"


def _run_text(program: Program, names: PythonNames) -> str:
    given = [b.name for b in program.buffers if b.role == "input"]
    packed = {p.packed.name: p for p in program.packs}
    constants = [b.name for b in program.buffers if b.role == "constant" and b.name not in packed]
    derived = {op.name for op in program.derived}
    sources = [*(s for op in program.derived for s in _sources(op))]
    sources += [p.source.name for p in program.packs]
    arguments = dict.fromkeys(n for n in (*given, *constants, *sources) if n not in derived)
    lines = [f"def run({', '.join(names.tensor(a) for a in arguments)}):"]
    for op in program.derived:
        target = names.tensor(op.name)
        call = f"derive_{target}({', '.join(map(names.tensor, _sources(op)))})"
        lines.append(f"{_TAB}{target} = {call}")
    for p in program.packs:
        target = names.tensor(p.packed.name)
        lines.append(f"{_TAB}{target} = pack_{target}({names.tensor(p.source.name)})")
    lines += [
        f"{_TAB}{names.tensor(b.name)} = empty({b.tensor.shape}, {b.tensor.dtype!r})"
        for b in program.buffers
        if b.role in ("workspace", "output")
    ]
    for k in program.kernels:
        buffers, launch = ", ".join(map(names.tensor, k.buffers)), launch_of(k)
        how = f"launch({k.name}, {launch.grid}, {launch.block}, {buffers})" if launch else ""
        lines.append(f"{_TAB}{how or f'{k.name}({buffers}, 0, {k.extent})'}")
    results = [names.tensor(b.name) for b in program.buffers if b.role == "output"]
    lines.append(f"{_TAB}return {', '.join(results)}")
    return "\n".join(lines) + "\n"


def _body(body: Body, indent: str, names: PythonNames) -> Iterator[str]:
    for stmt in body:
        yield from _stmt(stmt, indent, names)


def _stmt(stmt: Stmt, indent: str, names: PythonNames) -> Iterator[str]:
    match stmt:
        case For(var=var, extent=extent, kind=kind, body=body, limit=limit):
            mark = "" if kind == "serial" else f"  # {kind}"
            count = f"{extent}" if limit is None else f"min({extent}, {_expr(limit, names)})"
            if kind in LAUNCH_INDICES:
                count = f"{_index(kind)}, min({_index(kind)} + 1, {extent})"
            yield f"{indent}for {names.var(var)} in range({count}):{mark}"
            yield from _body(body, indent + _TAB, names)
        case If(cond=cond, then=then, orelse=orelse):
            yield f"{indent}if {_expr(cond, names)}:"
            yield from _body(then, indent + _TAB, names)
            if orelse:
                yield f"{indent}else:"
                yield from _body(orelse, indent + _TAB, names)
        case Alloc(buffer=buffer, body=body):
            shape, dtype = buffer.tensor.shape, buffer.tensor.dtype
            made = f"empty({shape}, {dtype!r})"
            if buffer.role == "shared":
                made = f"shared({buffer.name!r}, {shape}, {dtype!r})"
            yield f"{indent}{names.tensor(buffer.name)} = {made}"
            yield from _body(body, indent, names)
        case Let(var=var, value=value):
            yield f"{indent}{names.var(var)} = {_expr(value, names)}"
        case Store(tensor=tensor, indices=indices, value=value):
            where = _tuple([_expr(i, names) for i in indices])
            yield f"{indent}{names.tensor(tensor.name)}[{where}] = {_expr(value, names)}"
        case PrefetchLine(tensor=tensor, indices=indices, offset=offset, level=level):
            where = f"{names.tensor(tensor.name)}[{_tuple([_expr(i, names) for i in indices])}]"
            yield f"{indent}pass  # prefetch {where} + {_expr(offset, names)} bytes into L{level}"
        case Instruction(body=body):
            yield from _body(body, indent, names)
        case Barrier():
            yield f'{indent}yield "barrier"'
        case _:
            assert_never(stmt)


def _index(name: str) -> str:
    """The identifier of an index of a launch."""
    return name.replace(".", "_")


def _expr(e: Expr, names: PythonNames) -> str:
    text = _nested(e, names)
    return text[1:-1] if text.startswith("(") and isinstance(e, Binary | Compare) else text


def _nested(e: Expr, names: PythonNames) -> str:
    match e:
        case Const(value=value, dtype=dtype):
            text = repr(float(value) if is_float(dtype) else value)
            return f"({text})" if text.startswith("-") else text
        case Var(name=name):
            return names.var(name)
        case Binary(op=op, a=a, b=b) | Compare(op=op, a=a, b=b):
            x, y = _nested(a, names), _nested(b, names)
            if op in INTEGER_OPS and op not in _INFIX:
                return _integer(op, DTYPES[dtype_of(a)], x, y)
            text = _binary(op, x, y, b)
            return _wrapped(dtype_of(e), text)
        case Call(fn=fn, args=args) if INTRINSICS[fn].takes == "bits":
            kinds = f"{dtype_of(args[0])!r}, {dtype_of(e)!r}"
            return f"bits_as({_expr(args[0], names)}, {kinds})"
        case Call(fn=fn, args=args) if INTRINSICS[fn].takes == "integers":
            return f"{fn}({_expr(args[0], names)}, {DTYPES[dtype_of(e)].bits})"
        case Call(fn=fn, args=args):
            return _wrapped(dtype_of(e), _call(fn, _expr(args[0], names)))
        case Select(cond=cond, a=a, b=b):
            x, c, y = (_nested(p, names) for p in (a, cond, b))
            return f"({x} if {c} else {y})"
        case Cast(dtype=dtype, a=a):
            return _widened(dtype, f"{dtype}({_expr(a, names)})")
        case Load(tensor=tensor, indices=indices):
            where = _tuple([_expr(i, names) for i in indices])
            return _widened(tensor.dtype, f"{names.tensor(tensor.name)}[{where}]")
        case Reduce():
            raise ValueError("a reduction has no loops yet")
        case _:
            assert_never(e)


def _binary(op: str, x: str, y: str, b: Expr) -> str:
    if op == "div" and isinstance(b, Const) and b.value:
        return f"({x} / {y})"
    return f"({x} {_INFIX[op]} {y})" if op in _INFIX else f"{_NAMED.get(op, op)}({x}, {y})"


def _integer(op: str, dtype: DType, x: str, y: str) -> str:
    """An operation that Python has not, wrapped to its type; indices do not take part in any."""
    return f"{dtype.name}(within({op}({x}, {y}, {dtype.bits}), {dtype.low}, {dtype.bits}))"


def _wrapped(dtype: str, text: str) -> str:
    """The result of integer arithmetic modulo 2^bits; indices do not overflow."""
    wraps = DTYPES[dtype].is_integer and dtype != INDEX
    if not wraps:
        return text
    return f"{dtype}{text}" if text.startswith("(") else f"{dtype}({text})"


def _widened(dtype: str, text: str) -> str:
    """An element as it is computed with."""
    record = DTYPES[dtype]
    return f"{record.compute}({text})" if record.is_narrow else text


def _call(fn: str, argument: str) -> str:
    return (
        f"(-({argument}))"
        if fn == "neg"
        else f"(not ({argument}))"
        if fn == "not"
        else (f"{fn}({argument})")
    )


def _tuple(parts: list[str]) -> str:
    return ", ".join(parts) or "()"


_RESERVED = {"begin", "end", "live", "run", "range", "min", "max", "inf", "nan", "empty", "zeros"}
_RESERVED |= {"launch", "ndindex", "shared", *map(_index, LAUNCH_INDICES)}
_RESERVED |= {"divide", "power", "fmod", "within", "bits_as", *INTEGER_OPS, *INTRINSICS, *DTYPES}
