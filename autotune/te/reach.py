"""② How far tensors are read: limits of axes whose every reader has one.

    p[i, j<512] = …                            p[i, j<512 and n[0]] = …
    y[i, j<512 and n[0]] = exp(p[i, j])   ─►   y[i, j<512 and n[0]] = exp(p[i, j])

What nobody reads is nobody's, as what lies behind a limit is (`te.expr.Axis`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from autotune.te.dag import Compute, ComputeDAG, Op
from autotune.te.expr import (
    Binary,
    Compare,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    Var,
    conjuncts,
    dtype_of,
    identity,
    loads,
)
from autotune.te.numbers import follows_numbers

K = TypeVar("K")

Reach: TypeAlias = Mapping[int, Expr]
"""By dimension of a tensor the number that it is read up to; others are read to their end."""


def limited(
    dag: ComputeDAG, outputs: Mapping[str, Reach]
) -> tuple[ComputeDAG, Mapping[str, Reach]]:
    """`dag` with limits where all readers have them, and how far it reads its inputs.

    `outputs`: how far its outputs are read.
    """
    found: dict[str, list[Reach]] = defaultdict(list)
    made: list[Op] = []
    for op in reversed(dag.ops):
        if isinstance(op, Compute):
            read = [outputs.get(op.name, {})] if op.name in dag.outputs else []
            op = _ending(op, common([*read, *found[op.name]]))
            for load, reach in _read(op):
                found[load.tensor.name].append(reach)
        made.append(op)
    inputs = {p.name: common(found[p.name]) for p in dag.placeholders}
    made.reverse()
    ends = {x.tensor.name for op in made if isinstance(op, Compute) for x in _of_limits(op)}
    made.sort(key=lambda op: op.name not in ends)
    return ComputeDAG(tuple(made), dag.outputs), inputs


def common(reaches: Sequence[Mapping[K, Expr]]) -> dict[K, Expr]:
    """What several readers have in common; nothing where there are none."""
    first, *others = reaches or [{}]
    return {d: e for d, e in first.items() if all(r.get(d) == e for r in others)}


def _ending(op: Compute, reach: Reach) -> Compute:
    axes = (
        replace(a, limit=reach[d]) if d in reach and a.limit is None else a
        for d, a in enumerate(op.axes)
    )
    return replace(op, axes=tuple(axes))


def _read(op: Compute) -> Iterator[tuple[Load, Reach]]:
    """Every load with how far it goes."""
    ends = {a.name: a.limit for a in op.axes if a.limit is not None}
    for load, known in _counted(*_term(op.body), ends):
        pairs = ((d, known.get(i.name)) for d, i in enumerate(load.indices) if isinstance(i, Var))
        yield load, {d: e for d, e in pairs if e is not None and follows_numbers(e)}
    yield from ((load, {}) for load in _of_limits(op))


def _of_limits(op: Compute) -> list[Load]:
    return [load for limit in op.limits.values() for load in loads(limit)]


def _term(body: Expr) -> tuple[Expr, Const | None]:
    """The term of a reduction and what changes nothing in it; a body that is none, and None."""
    if not isinstance(body, Reduce):
        return body, None
    return body.body, identity(body.op, dtype_of(body.body))


def _counted(
    e: Expr, neutral: Const | None, ends: Mapping[str, Expr]
) -> Iterator[tuple[Load, Mapping[str, Expr]]]:
    """The loads of a term with the ends of the loops in which they count; elsewhere they are not
    selected."""
    match e:
        case Select(cond=cond, a=a, b=b) if neutral is not None and b == neutral:
            yield from ((load, ends) for load in loads(cond))
            yield from _counted(a, neutral, {**ends, **_ends(cond)})
        case Binary(op="mul", a=a, b=b) if neutral is not None and neutral.value == 0:
            yield from _counted(a, neutral, ends)
            yield from _counted(b, neutral, ends)
        case _:
            yield from ((load, ends) for load in loads(e))


def _ends(cond: Expr) -> dict[str, Expr]:
    """By axis the number that a condition counts up to."""
    return {
        c.a.name: c.b
        for c in conjuncts(cond)
        if isinstance(c, Compare) and c.op == "lt" and isinstance(c.a, Var)
    }
