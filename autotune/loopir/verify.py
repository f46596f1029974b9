"""④ Well-formedness of loop IR, checked without running it.

`verify(program)` holds after every lowering. What it proves:

- every variable is bound, and by one loop at a time; every tensor is a buffer in scope, with the
  shape and dtype of the buffer, and only workspaces, outputs and local buffers are stored to;
- extents are at least 1; a vector loop holds stores and unrolled loops alone, and each of its
  stores goes to another element in every lane;
- every store and load is inside its buffer: by intervals, else by looking at every point of the
  loops that the index and the conditions around it depend on, up to a limit of points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

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
from autotune.loopir.printer import print_body
from autotune.loopir.visitor import statements
from autotune.schedule.steps import LAUNCH_INDICES
from autotune.te.access import index_values
from autotune.te.arith import bounds, linear
from autotune.te.dag import print_expr
from autotune.te.expr import (
    BOOL,
    INDEX,
    Binary,
    Call,
    Expr,
    Load,
    Reduce,
    Select,
    Tensor,
    Var,
    children,
    dtype_of,
    loads,
    variables,
)
from autotune.te.products import added

_KINDS = ("serial", "unroll", "vectorize", "dot", "tile", *LAUNCH_INDICES)
MAX_POINTS = 1 << 17
"""Accesses that depend on more points than this, and that intervals do not prove, are trusted."""


class MalformedProgram(Exception):
    """A bug of lowering: the program is not one that code generation may be given."""


def verify(program: Program) -> None:
    """Raise MalformedProgram, with the offending statement, unless `program` is well formed."""
    buffers = {b.name: b for b in program.buffers}
    if len(buffers) != len(program.buffers):
        raise MalformedProgram("two buffers have one name")
    for packing in program.packs:
        _verify_packing(packing, buffers)
    for kernel in program.kernels:
        _verify_kernel(kernel, buffers)


def _verify_packing(packing: Packing, buffers: Mapping[str, Buffer]) -> None:
    name = packing.packed.name
    bound = {a.name for a in packing.axes}
    if name not in buffers or buffers[name].role != "constant":
        raise MalformedProgram(f"{name} is packed, but no constant buffer")
    if packing.packed.shape != tuple(a.extent for a in packing.axes):
        raise MalformedProgram(f"the axes of {name} do not have its shape")
    if any(variables(i) - bound for i in packing.indices):
        raise MalformedProgram(f"{name} is packed by more than its axes")


def _verify_kernel(kernel: Kernel, buffers: Mapping[str, Buffer]) -> None:
    missing = set(kernel.buffers) - set(buffers)
    if missing or len(set(kernel.buffers)) != len(kernel.buffers):
        raise MalformedProgram(f"{kernel.name}: wrong arguments {kernel.buffers}")
    if kernel.extent < 1:
        raise MalformedProgram(f"{kernel.name}: extent {kernel.extent}")
    scope = _Scope(
        {n: buffers[n] for n in kernel.buffers}, {kernel.var: (0, kernel.extent - 1)}, (), ()
    )
    if kernel.live is not None:
        _value(kernel.live, scope)
    _body(kernel.head, scope)
    _body(kernel.body, scope)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Context of a statement."""

    buffers: Mapping[str, Buffer]
    ranges: Mapping[str, tuple[int, int]]
    conditions: tuple[Expr, ...]
    lets: tuple[tuple[str, Expr], ...]
    lanes: str = ""

    def bind(self, var: str, limits: tuple[int, int]) -> _Scope:
        """A scope in which `var` has a value between `limits`."""
        if var in self.ranges:
            raise MalformedProgram(f"{var} is bound twice")
        return replace(self, ranges={**self.ranges, var: limits})

    def under(self, *conditions: Expr) -> _Scope:
        """A scope in which all `conditions` hold too."""
        return replace(self, conditions=self.conditions + conditions)


def _body(body: Body, scope: _Scope) -> None:
    for stmt in body:
        try:
            _check(stmt, scope)
        except MalformedProgram as error:
            if "\n" in str(error):
                raise
            raise MalformedProgram(f"{error}\n{print_body((stmt,))}") from None
        if isinstance(stmt, Let):
            limits = bounds(stmt.value, scope.ranges)
            scope = scope.bind(stmt.var, limits)
            scope = replace(scope, lets=(*scope.lets, (stmt.var, stmt.value)))


def _check(stmt: Stmt, scope: _Scope) -> None:
    match stmt:
        case For():
            _check_loop(stmt, scope)
        case If(cond=cond, then=then, orelse=orelse):
            _value(cond, scope)
            if dtype_of(cond) != BOOL or scope.lanes in variables(cond):
                raise MalformedProgram("the condition is not one bool")
            _body(then, scope.under(cond))
            _body(orelse, scope.under(Call("not", (cond,))))
        case Let(value=value):
            _value(value, scope)
        case Alloc(buffer=buffer, body=body):
            is_own = buffer.role in ("local", "shared", "registers")
            if buffer.name in scope.buffers or not is_own or not buffer.tensor.size:
                raise MalformedProgram(f"{buffer.name} cannot be allocated")
            _body(body, replace(scope, buffers={**scope.buffers, buffer.name: buffer}))
        case Store():
            _check_store(stmt, scope)
        case PrefetchLine(tensor=tensor, indices=indices, offset=offset):
            _access(tensor, indices, scope)
            _value(offset, scope)
        case Instruction(body=body):
            if stmt.is_product and not added(stmt.store.value)[1]:
                raise MalformedProgram(f"{stmt.operation} adds no products up")
            _body(body, scope)
        case Barrier():
            pass
        case _:
            assert_never(stmt)


def _check_loop(loop: For, scope: _Scope) -> None:
    if loop.extent < 1 or loop.kind not in _KINDS:
        raise MalformedProgram(f"loop {loop.var} cannot be {loop.kind} in {loop.extent}")
    if loop.limit is not None:
        _value(loop.limit, scope)
        if loop.kind != "serial" or dtype_of(loop.limit) != INDEX:
            raise MalformedProgram(f"loop {loop.var} cannot have a limit")
    inside = scope.bind(loop.var, (0, loop.extent - 1))
    if loop.kind == "vectorize":
        nested = [s for s in statements(loop.body) if not isinstance(s, Store | Instruction)]
        if scope.lanes or any(
            not isinstance(s, For) or s.kind not in ("unroll", "dot") for s in nested
        ):
            raise MalformedProgram(f"vector loop {loop.var} holds more than stores")
        inside = replace(inside, lanes=loop.var)
    _body(loop.body, inside)


def _check_store(store: Store, scope: _Scope) -> None:
    _access(store.tensor, store.indices, scope)
    _value(store.value, scope)
    if scope.buffers[store.tensor.name].role in ("input", "constant"):
        raise MalformedProgram(f"{store.tensor.name} is not to be written")
    if dtype_of(store.value) != store.tensor.dtype:
        raise MalformedProgram(f"a {dtype_of(store.value)} goes into {store.tensor.dtype}")
    if scope.lanes and not any(scope.lanes in variables(i) for i in store.indices):
        raise MalformedProgram(f"all lanes of {scope.lanes} go to one element")


def _value(e: Expr, scope: _Scope) -> None:
    """Check all loads of `e`, each under the conditions of the Selects around it."""
    match e:
        case Reduce():
            raise MalformedProgram("a reduction has no loops")
        case Var(name=name) if name not in scope.ranges:
            raise MalformedProgram(f"{name} is not bound")
        case Select(cond=cond, a=a, b=b):
            _value(cond, scope)
            _value(a, scope.under(cond))
            _value(b, scope.under(Call("not", (cond,))))
        case Load(tensor=tensor, indices=indices):
            _access(tensor, indices, scope)
        case _:
            for part in children(e):
                _value(part, scope)


def _access(tensor: Tensor, indices: tuple[Expr, ...], scope: _Scope) -> None:
    buffer = scope.buffers.get(tensor.name)
    if buffer is None:
        raise MalformedProgram(f"{tensor.name} is not in scope")
    if buffer.tensor != tensor or len(indices) != len(tensor.shape):
        raise MalformedProgram(f"{tensor.name} does not have the shape or dtype of its buffer")
    for index, extent in zip(indices, tensor.shape, strict=True):
        _value(index, scope)
        if not _inside(index, extent, scope):
            text = f"index {print_expr(index)} of {tensor.name} leaves 0 ≤ … < {extent}"
            raise MalformedProgram(text)


# --- is an index inside? ------------------------------------------------------------------------


def _inside(index: Expr, extent: int, scope: _Scope) -> bool:
    if loads(index):
        return True  # the value comes from memory: nothing is known of it
    low, high = bounds(index, scope.ranges)
    if low >= 0 and high < extent:
        return True
    index = linear(index, scope.ranges).expr
    relevant = [c for c in _conjuncts(scope.conditions) if not loads(c)]
    close = [c for c in relevant if variables(c) & variables(index)]
    for conditions in (close, relevant):
        verdict = _enumerate(index, extent, conditions, scope)
        if verdict is not False:
            return True
    return False


def _conjuncts(conditions: tuple[Expr, ...]) -> Iterator[Expr]:
    for c in conditions:
        if isinstance(c, Binary) and c.op == "and":
            yield from _conjuncts((c.a, c.b))
        else:
            yield c


def _enumerate(index: Expr, extent: int, conditions: list[Expr], scope: _Scope) -> bool | None:
    """Whether `index` is inside at every point where `conditions` hold; None: too many points."""
    names = sorted(variables(index).union(*map(variables, conditions)))
    derived = {v: e for v, e in scope.lets if v in names and not loads(e)}
    for value in derived.values():
        names = sorted({*names, *variables(value)})
    free = [n for n in names if n not in derived]
    spans = [scope.ranges[n] for n in free]
    if math.prod(high - low + 1 for low, high in spans) > MAX_POINTS:
        return None
    env: dict[str, Grid] = {}
    for axis, (name, (low, high)) in enumerate(zip(free, spans, strict=True)):
        shape = [1] * len(free)
        shape[axis] = -1
        env[name] = np.arange(low, high + 1).reshape(shape)
    for name, value in scope.lets:
        if name in derived:
            env[name] = _evaluate(value, env)
    outside = ~((_evaluate(index, env) >= 0) & (_evaluate(index, env) < extent))
    for c in conditions:
        outside = outside & _evaluate(c, env)
    return not outside.any()


Grid = NDArray[Any]


def _evaluate(e: Expr, env: Mapping[str, Grid]) -> Grid:
    try:
        return index_values(e, env)
    except TypeError as error:
        raise MalformedProgram(str(error)) from error
