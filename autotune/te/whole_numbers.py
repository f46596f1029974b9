"""② Sums of floats that have to be whole numbers, because they are read as integers.

s = sum(x[m, k] * w[k, n], k);  int32(s)     ->  whole_sums: s, whole_factors: x, w

A rounding error far below 1 changes such a sum by 1.
"""

from __future__ import annotations

from functools import lru_cache

from autotune.dtypes import DTYPES, is_float
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Cast, Const, Expr, Load, Reduce, Select, distinct, dtype_of, loads


@lru_cache(maxsize=256)
def whole_sums(dag: ComputeDAG) -> frozenset[str]:
    """Names of sums of floats that a cast reads as they are, as integers."""
    casts = (e for op in dag.computes for e in distinct(op.body) if isinstance(e, Cast))
    wholes = (e.a for e in casts if DTYPES[e.dtype].is_integer)
    read = {a.tensor.name for a in wholes if isinstance(a, Load)}
    sums = (op for op in dag.computes if op.name in read and is_float(op.tensor.dtype))
    return frozenset(op.name for op in sums if isinstance(op.body, Reduce) and op.body.op == "sum")


@lru_cache(maxsize=256)
def whole_factors(dag: ComputeDAG) -> frozenset[str]:
    """Names of the placeholders whose elements, moved and converted, are factors of such sums."""
    found: set[str] = set()
    sums = whole_sums(dag)
    left = [x.tensor.name for op in dag.computes if op.name in sums for x in op.reads]
    while left:
        name = left.pop()
        op = dag[name]
        if not isinstance(op, Compute):
            found.add(name)
        elif _moves(op.body):
            left += [x.tensor.name for x in op.reads]
    return frozenset(found)


def _moves(e: Expr) -> bool:
    """Whether an element is one that was read, or a literal."""
    match e:
        case Load():
            return not any(map(loads, e.indices))
        case Cast(a=a):
            return is_float(dtype_of(e)) and _moves(a)
        case Select(a=a, b=b):
            return _moves(a) and _moves(b)
        case Const():
            return True
    return False
