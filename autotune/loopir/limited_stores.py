"""④ Nothing behind a limit is written: for results in memory that is not theirs alone.

    for i in unroll 4: y[4·j + i] = …    ─►    for i in unroll 4: if 4·j + i < n[0]: y[4·j + i] = …

The last tile of a kernel is computed whole, and what lies behind the limit of an axis is nobody's
(`te.expr.Axis`). New rows of a state are another thing: behind the last place of a buffer are
other heads, or nothing. Lanes along such an axis are stored one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from autotune.loopir.nodes import Body, For, If, Program, Stmt, Store
from autotune.loopir.visitor import kernel_ranges, map_statements
from autotune.te.arith import Ranges, simplify
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Const, Expr, both, compare, loads, variables


def limited(program: Program, dag: ComputeDAG, names: tuple[str, ...]) -> Program:
    """`program` of `dag`, whose results `names` are written in front of limits alone.

    Its kernels take the numbers; their bodies are to become those of `with_limited_stores`.
    """
    numbers = {name: _numbers(_ends(dag, name)) for name in names}
    if not any(numbers.values()):
        return program
    kernels = []
    for kernel in program.kernels:
        told = [n for name in names if name in kernel.buffers for n in numbers[name]]
        kernels.append(replace(kernel, buffers=tuple(dict.fromkeys((*kernel.buffers, *told)))))
    return replace(program, kernels=tuple(kernels), limited=names)


def with_limited_stores(program: Program, dag: ComputeDAG) -> Program:
    """A program that is `limited` with the bodies that it is to have."""
    ends = {name: _ends(dag, name) for name in program.limited}
    if not ends:
        return program

    def one(stmt: Stmt, ranges: Ranges) -> Body | None:
        match stmt:
            case Store():
                cond = _condition(stmt, ends, ranges)
                return None if cond is None else (If(cond, (stmt,), ()),)
            case For(var=var, extent=extent, kind="vectorize", body=body):
                inside = {**ranges, var: (0, extent - 1)}
                stores = [s for s in body if isinstance(s, Store)]
                conds = [_condition(s, ends, inside) for s in stores]
                if any(cond is not None and var in variables(cond) for cond in conds):
                    return map_statements((replace(stmt, kind="unroll"),), one, ranges)
                if any(cond is not None for cond in conds):
                    return tuple(map(partial(_guarded, stmt), stores, conds))
        return None

    program = limited(program, dag, program.limited)
    kernels = (
        replace(k, body=map_statements(k.body, one, kernel_ranges(k))) for k in program.kernels
    )
    return replace(program, kernels=tuple(kernels))


def _numbers(ends: Sequence[Expr | None]) -> list[str]:
    return [load.tensor.name for end in ends if end is not None for load in loads(end)]


def _ends(dag: ComputeDAG, name: str) -> tuple[Expr | None, ...]:
    op = dag[name]
    assert isinstance(op, Compute)
    return tuple(axis.limit for axis in op.axes)


def _condition(
    store: Store, ends: Mapping[str, tuple[Expr | None, ...]], ranges: Ranges
) -> Expr | None:
    """The condition under which a store is in front of all limits; None for any other store."""
    limits = ends.get(store.tensor.name, ())
    pairs = (
        simplify(compare("lt", index, limit), ranges)
        for index, limit in zip(store.indices, limits, strict=False)
        if limit is not None
    )
    found: Expr = Const(True, "bool")
    for one in pairs:
        found = both(found, one)
    return None if isinstance(found, Const) and found.value else found


def _guarded(loop: For, store: Store, cond: Expr | None) -> Stmt:
    """A vector loop over one of its stores, where the condition of that holds."""
    made = replace(loop, body=(store,))
    return made if cond is None else If(cond, (made,), ())
