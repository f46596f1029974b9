"""④ Buffer aliasing within a program: results that may overwrite an operand, y[i] = f(…, x[i], …).

This is legal where every element of x is read only by the statement that stores the same element of
y, and each element of y is stored once; overlapping tiles would read elements that they have
overwritten. Every element is stored at least once, so counting the stores decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import TypeAlias

from autotune.loopir.nodes import Alloc, Body, Buffer, For, If, Instruction, Let, Program, Store
from autotune.loopir.visitor import body_loads, statements
from autotune.te.evaluate import n_points
from autotune.te.expr import Expr, Load, both, call, loads, substitute, variables

_MAX_COUNTED = 1 << 22


Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""An input and an output each."""


def replaceable(program: Program, pairs: Pairs | None = None) -> Pairs:
    """Pairs of an input and an output that may be the same memory while the program runs.

    `pairs`: results of `read_in_place` for it, at any strides of its buffers.
    """
    strides = {b.name: b.strides for b in program.buffers}
    pairs = read_in_place(program) if pairs is None else pairs
    return tuple((x, y) for x, y in pairs if strides[x] == strides[y])


def read_in_place(program: Program) -> Pairs:
    """Pairs that may be the same memory wherever both have the same strides."""
    stores = [s for k in program.kernels for s in statements(k.body) if isinstance(s, Store)]
    reads = [x for k in program.kernels for x in body_loads(k.body)]
    inputs = [b for b in program.buffers if b.role == "input"]
    return tuple(
        (x.name, y.name)
        for y in program.buffers
        if y.role == "output" and any(_is_like(x, y) for x in inputs)
        if _is_stored_once(y, program, reads)
        for x in inputs
        if _is_like(x, y) and _is_read_in_place(x, y, stores, reads)
    )


def _is_like(x: Buffer, y: Buffer) -> bool:
    return (x.tensor.shape, x.tensor.dtype) == (y.tensor.shape, y.tensor.dtype)


def _is_stored_once(y: Buffer, program: Program, reads: Sequence[Load]) -> bool:
    """Whether no element is stored twice, or read back."""
    if any(x.tensor.name == y.name for x in reads):
        return False
    stored = (_n_stored(k.body, y.name, _Path({k.var: k.extent}, {})) for k in program.kernels)
    return sum(stored) == y.tensor.size


@dataclass(frozen=True, slots=True)
class _Path:
    """The context of a statement: extents of loops, bound variables, and conditions."""

    extents: Mapping[str, int]
    bound: dict[str, Expr]
    conditions: tuple[Expr, ...] = ()

    def under(self, cond: Expr) -> _Path:
        return replace(self, conditions=(*self.conditions, substitute(cond, self.bound)))

    def n_runs(self) -> int:
        """Executions of a statement there; an upper bound where there are too many points."""
        total = prod(self.extents.values())
        if not self.conditions:
            return total
        cond = reduce(both, self.conditions)
        seen = prod(n for name, n in self.extents.items() if name in variables(cond))
        return n_points(cond, self.extents) if seen <= _MAX_COUNTED else total


def _n_stored(body: Body, name: str, path: _Path) -> int:
    """Executed stores to tensor `name`; an upper bound where data decide."""
    total = 0
    for stmt in body:
        match stmt:
            case For(var=var, extent=extent, body=inner):
                inside = replace(path, extents={**path.extents, var: extent})
                total += _n_stored(inner, name, inside)
            case If(cond=cond, then=then, orelse=orelse) if loads(substitute(cond, path.bound)):
                total += max(_n_stored(branch, name, path) for branch in (then, orelse))
            case If(cond=cond, then=then, orelse=orelse):
                total += _n_stored(then, name, path.under(cond))
                total += _n_stored(orelse, name, path.under(call("not", cond)))
            case Let(var=var, value=value):
                bound = {**path.bound, var: substitute(value, path.bound)}
                path = replace(path, bound=bound)
            case Alloc(body=inner) | Instruction(body=inner):
                total += _n_stored(inner, name, path)
            case Store(tensor=tensor) if tensor.name == name:
                total += path.n_runs()
    return total


def _is_read_in_place(x: Buffer, y: Buffer, stores: Sequence[Store], reads: Sequence[Load]) -> bool:
    here = [
        load
        for s in stores
        if s.tensor.name == y.name
        for load in loads(s.value)
        if load.tensor.name == x.name and load.indices == s.indices
    ]
    return bool(here) and len(here) == sum(load.tensor.name == x.name for load in reads)
