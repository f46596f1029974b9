"""④ Pass `terms-outside`: sums that a point writes out are added up term by term over the tile.

    unroll p in 3: unroll v in 4: vectorize c in 16:
      acc[p, v, c] += float32(((s[p] + t0) + t1) + t2)·f
    ->  local part[3, 4, 16]
        unroll p, v: vectorize c: part[p, v, c] = s[p] + t0
        unroll p, v: vectorize c: part[p, v, c] = part[p, v, c] + t1
        unroll p, v: vectorize c: part[p, v, c] = part[p, v, c] + t2
        unroll p, v: vectorize c: acc[p, v, c] += float32(part[p, v, c])·f

In a point each term waits for the one before it. With the points inside as many additions are under
way as the tile has points, and what a term makes of its operands is live for that term alone. Sums
of integers only: those of floats are written as trees (`weight_only`). Where no point reads the
vectors of another one, nothing is live for long, and loads keep the order of the points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.loopir.lowering import Lowering
from autotune.loopir.nodes import Alloc, Body, Buffer, For, Program, Stmt, Store, nested
from autotune.loopir.visitor import kernel_ranges, map_statements
from autotune.strides import dense
from autotune.te.arith import Ranges
from autotune.te.expr import Binary, Expr, Load, Tensor, Var, loads, map_expr, variables
from autotune.te.sums import written_out


def put_terms_outside(program: Program, _: Lowering) -> Program:
    """Every written-out sum of a register tile, term by term."""
    kernels = (
        replace(k, body=map_statements(k.body, _apart, kernel_ranges(k))) for k in program.kernels
    )
    return replace(program, kernels=tuple(kernels))


def _apart(stmt: Stmt, _: Ranges) -> Body | None:
    loops = nested((stmt,))
    if not _is_tile(loops):
        return None
    (store,) = loops[-1].body
    assert isinstance(store, Store)
    found = written_out(store.value)
    if found is None or not _is_shared(found.terms, loops):
        return None
    shape = tuple(loop.extent for loop in loops)
    part = Tensor(f"{store.tensor.name}.part", shape, found.dtype)
    at = tuple(Var(loop.var) for loop in loops)
    total = Load(part, at)
    begun, *terms = found.terms
    steps = [Binary("add", begun, terms[0]), *(Binary("add", total, t) for t in terms[1:])]
    value = map_expr(store.value, lambda e: total if e is found.whole else None)
    stores = (*(Store(part, at, step) for step in steps), replace(store, value=value))
    body = tuple(_around(loops, each) for each in stores)
    return (Alloc(Buffer(part, "local", dense(shape)), body),)


def _around(loops: Sequence[For], store: Store) -> Stmt:
    body: Body = (store,)
    for loop in reversed(loops):
        body = (replace(loop, body=body),)
    return body[0]


def _is_shared(terms: Sequence[Expr], loops: Sequence[For]) -> bool:
    """Whether several points of the tile read the same vectors."""
    *unrolled, vector = loops
    lanes = [{v for i in load.indices for v in variables(i)} for e in terms for load in loads(e)]
    read = set().union(*(names for names in lanes if vector.var in names))
    return any(loop.extent > 1 and loop.var not in read for loop in unrolled)


def _is_tile(loops: Sequence[For]) -> bool:
    """Whether nested loops are a register tile of one statement."""
    if not loops or not isinstance(loops[-1].body[0], Store) or len(loops[-1].body) > 1:
        return False
    *unrolled, vector = loops
    return vector.kind == "vectorize" and all(loop.kind == "unroll" for loop in unrolled)
