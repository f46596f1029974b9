"""⑥ Vector instructions per point of a stage, without address arithmetic and loads."""

from __future__ import annotations

from functools import lru_cache

from autotune.dtypes import DTYPES, holds, is_float
from autotune.target.isa import MultiplyAdd
from autotune.te.dag import Compute
from autotune.te.expr import (
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
    children,
    distinct,
    dtype_of,
    is_guard,
    variables,
)
from autotune.te.integers import INTEGER_OPS
from autotune.te.intrinsics import INTRINSICS, quarters_of

_LOOKUPS = {"uint8": 4, "int32": 2}
"""Instructions that look up bytes in a table of all bytes, by 4 bits in one of 16 floats."""
_FROM_BITS = 2
"""Instructions that make a float of some bits of a word."""
_EXTREMUM = 3
"""Instructions of a minimum or maximum whose operands may both be NaN."""
_BINARIES = {"div": 8, "pow": 130, "fmod": 160}
"""Cost of operations in additions, by the time that they occupy the ports."""
ADDED = 1.5
"""Instructions of a multiply-add whose sum is an instruction of its own: additions have more ports
than products have."""
_WIDENED_HALF = 2
"""Instructions that make float32 of a vector, or of one element in all lanes, of 16 bits."""
_WIDENED, _WIDENED_SPLAT = 1, 2
"""Instructions that widen an operand: of a vector while it is loaded, of one group of terms before
it is in all lanes."""


@lru_cache(maxsize=256)
def operations(op: Compute) -> int:
    """Vector instructions per point: a multiply-add is one; a common subexpression counts once."""
    body = op.body.body if isinstance(op.body, Reduce) else op.body
    total = _work(body, set()) + (_combining(op.body) if isinstance(op.body, Reduce) else 0)
    fused = op.reduce_axes and isinstance(body, Binary) and body.op == "mul"
    return total - 1 if fused else total


@lru_cache(maxsize=256)
def lookups(op: Compute) -> tuple[tuple[int, frozenset[str]], ...]:
    """Instructions of each look-up in a small table, of each float that is made of bits and of what
    bytes are made from, and the axes that what they yield depends on.

    Those are part of `operations`; along all other axes one look-up serves all points.
    """
    body = op.body.body if isinstance(op.body, Reduce) else op.body
    found = [(_lookup_cost(e), e) for e in distinct(body)]
    operands = dict.fromkeys(e for x in distinct(body) for e in _byte_operands(x))
    found += [(_work(e, set()), e) for e in operands]
    return tuple((cost, variables(e)) for cost, e in found if cost)


def widening(form: MultiplyAdd | None, dtype: str, uses_lanes: bool) -> int:
    """Instructions that make an operand of `form`, a float32 without one, of a `dtype` loaded."""
    if form is None:
        return _WIDENED_HALF if is_float(dtype) and DTYPES[dtype].n_bytes == 2 else 0
    if dtype in form.operands or not any(holds(o, dtype) for o in form.operands):
        return 0
    return _WIDENED if uses_lanes else _WIDENED_SPLAT


def work(e: Expr) -> int:
    """Vector instructions of an expression; a common subexpression counts once."""
    return _work(e, set())


def _byte_operands(e: Expr) -> tuple[Expr, ...]:
    """Sources of the bytes that `e` multiplies."""
    return (e.a, e.b) if isinstance(e, Binary) and e.op == "bytedot" else ()


def _lookup_cost(e: Expr) -> int:
    match e:
        case Call(fn="bits_as_float32"):
            return _FROM_BITS
        case Load(indices=(Cast(a=a),)):
            return _LOOKUPS.get(dtype_of(a), 0)
    return 0


def _combining(reduction: Reduce) -> int:
    return _EXTREMUM if reduction.op in ("min", "max") and _is_float(reduction) else 1


def _work(e: Expr, seen: set[Expr]) -> int:
    if e in seen:
        return 0
    seen.add(e)
    match e:
        case Load(indices=(Cast(a=a),)) if cost := _lookup_cost(e):
            return cost + _work(a, seen)
        case Load():
            return 0
        case Select(cond=Compare(op="eq", a=Var(), b=Const()), a=a, b=b) if dtype_of(e) != "bool":
            return max(_work(a, seen), _work(b, seen))  # by the number of an unrolled loop
        case Select(a=Load(), b=Const(value=0)) if is_guard(e):
            return 0  # an address is chosen, not a value
        case Binary(op="add", a=a, b=Binary(op="mul") as b) if _is_float(e):
            return _work(a, seen) + _work(b, seen)
        case Binary(op="add", a=Binary(op="mul") as a, b=b) if _is_float(e):
            return _work(a, seen) + _work(b, seen)
        case _:
            return _cost(e) + sum(_work(c, seen) for c in children(e))


def _is_float(e: Expr) -> bool:
    return is_float(dtype_of(e))


def _cost(e: Expr) -> int:
    match e:
        case Binary(op="pow", b=Const(value=y)) if (quarters := quarters_of(float(y))) is not None:
            roots = (quarters % 4 > 0) + quarters % 2
            return quarters // 4 + (roots + (y < 0)) * _BINARIES["div"]
        case Binary(op="min" | "max", a=a, b=b) if _is_float(e):
            return 1 if isinstance(a, Const) or isinstance(b, Const) else _EXTREMUM
        case Binary(op="shl" | "shr", b=Const()):
            return 1
        case Binary(op=op) if op in INTEGER_OPS:
            return INTEGER_OPS[op].cost
        case Binary(op=op):
            return _BINARIES.get(op, 1) if _is_float(e) else 0
        case Call(fn=fn):
            return INTRINSICS[fn].cost
        case Select():
            return 1
        case _:
            return 0
