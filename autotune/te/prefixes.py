"""② Conditions that hold for the first places of an axis alone, as many as data tell.

    select(j < n[0], x[j], 0)        the terms of a sum up to a length that is given at run time

In loops over j = 16·j0 + j1 such a condition is a limit of j0: (n[0] + 15) // 16.
"""

from __future__ import annotations

from collections.abc import Collection

from autotune.te.arith import linear
from autotune.te.expr import (
    INDEX,
    Binary,
    Compare,
    Expr,
    Load,
    Var,
    add,
    conjuncts,
    dtype_of,
    floordiv,
    idx,
    loads,
    mul,
    variables,
)
from autotune.te.numbers import number_of


def is_prefix(cond: Expr) -> bool:
    """Whether `cond` compares an index with a number that is the same in all loops."""
    if not isinstance(cond, Compare) or cond.op != "lt" or dtype_of(cond.a) != INDEX:
        return False
    found = [*loads(cond.a), *loads(cond.b)]
    is_bound = any(number_of(v) is not None for v in variables(cond))
    return (bool(found) or is_bound) and not any(variables(i) for x in found for i in x.indices)


def prefixes(cond: Expr) -> list[Expr]:
    """The parts of a condition that are such."""
    return [c for c in conjuncts(cond) if is_prefix(c)]


def limit_of(cond: Expr, var: str, inner: Collection[str]) -> Expr | None:
    """Iterations of loop `var` in which `cond` may hold; None where it does not tell.

    `inner`: loops inside, of which some iteration has to satisfy it.
    """
    assert isinstance(cond, Compare)
    form = linear(Binary("sub", cond.a, cond.b))
    step = form.coefficient(var)
    if step <= 0:
        return None
    rest: Expr = idx(-form.const)
    for atom, factor in form.terms:
        if isinstance(atom, Var) and atom.name == var:
            continue
        if isinstance(atom, Var) and atom.name in inner:
            if factor < 0:
                return None
            continue  # its first iteration comes closest
        if not isinstance(atom, Var | Load) and variables(atom) & {var, *inner}:
            return None
        rest = add(rest, mul(atom, idx(-factor)))
    return rest if step == 1 else floordiv(add(rest, idx(step - 1)), idx(step))
