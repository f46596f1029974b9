"""② Tensor expressions: the nodes of which every computation and every index is made.

    expr = Const(value, dtype) | Var(name)                       -- Var: an int64 loop index
         | Binary(op, a, b)    op ∈ add sub mul div floordiv mod min max pow fmod and or
                                    quot rem ipow shl shr bitand bitor bitxor bytedot
                                    -- see `integers`
         | Compare(op, a, b)   op ∈ lt le gt ge eq ne
         | Call(fn, (a,))      fn ∈ abs neg floor ceil round not sqrt rsqrt erf sigmoid
                                    exp log log1p sin cos tan asin acos atan sinh cosh tanh
                                    asinh acosh atanh bits_as_int32 …   -- see `intrinsics`
         | Select(cond, a, b)  -- `a` where cond holds, else `b`; see `is_guard`
         | Cast(dtype, a)
         | Load(tensor, indices)
         | Reduce(op, body, axes)   op ∈ sum max min prod bitand bitor; only as the whole body of a
                                    Compute
                                    -- an Axis may be ragged: its `limit` is an expression

Nodes are frozen; the functions `add`, `mul`, … fold constants, the classes do not. Integer `div`
does not exist: indices use `floordiv`/`mod`, which round towards minus infinity as in Python, by
positive constants; data have `quot`/`rem` by anything.
An index may hold Loads (of tensors of indices); its author keeps it within bounds.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from autotune.dtypes import DTYPES, dtype_bytes
from autotune.te.integers import INTEGER_OPS
from autotune.te.intrinsics import INTRINSICS

INDEX = "int64"
BOOL = "bool"


def _operator(op: str, is_reflected: bool = False) -> Callable[[PythonOperators, Value], Expr]:
    if is_reflected:
        return lambda own, other: binary(op, *_operands(other, own))
    return lambda own, other: binary(op, *_operands(own, other))


def _comparison(op: str) -> Callable[[PythonOperators, Value], Expr]:
    return lambda own, other: compare(op, *_operands(own, other))


class PythonOperators:
    """Python's operators on nodes and axes: `i * 2 + 1`, `x[i] / total[()]`, `(i < 3) & inside`.

    A number takes the type of the other operand. `==` and `!=` compare nodes themselves: an equal
    element is `compare("eq", a, b)`.
    """

    __slots__ = ()

    __add__, __radd__ = _operator("add"), _operator("add", True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", True)
    __floordiv__, __mod__ = _operator("floordiv"), _operator("mod")
    __and__, __or__ = _operator("and"), _operator("or")
    __lt__, __le__ = _comparison("lt"), _comparison("le")
    __gt__, __ge__ = _comparison("gt"), _comparison("ge")


@dataclass(frozen=True, slots=True)
class Const(PythonOperators):
    """A literal."""

    value: float | int | bool
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Var(PythonOperators):
    """A loop index of type int64, identified by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Binary(PythonOperators):
    """An arithmetic or logical operation on two operands of one type."""

    op: str
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Compare(PythonOperators):
    """A comparison; its value is a bool."""

    op: str
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Call(PythonOperators):
    """A one-argument function."""

    fn: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Select(PythonOperators):
    """`a` where `cond`, else `b`."""

    cond: Expr
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Cast(PythonOperators):
    """A conversion to `dtype`."""

    dtype: str
    a: Expr


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array: identity for loads. Shapes are static."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Bytes when stored densely."""
        return self.size * dtype_bytes(self.dtype)

    def __getitem__(self, indices: object) -> Load:
        parts = indices if isinstance(indices, tuple) else (indices,)
        if len(parts) != len(self.shape):
            raise ValueError(f"{self.name} has {len(self.shape)} dimensions, got {len(parts)}")
        return Load(self, tuple(as_index(p) for p in parts))


@dataclass(frozen=True, slots=True)
class Load(PythonOperators):
    """One element of a tensor."""

    tensor: Tensor
    indices: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Axis(PythonOperators):
    """An iteration dimension `0 ≤ name < extent` of a Compute.

    `limit`: a ragged reduction axis runs over `0 ≤ name < min(extent, limit)`, where `limit` is an
    expression of the spatial axes and of what is loaded with them, as in `p[i + 1] - p[i]`.
    Of a spatial axis, an expression of numbers that a call brings (`te.numbers`): elements at or
    behind it are nobody's. They may be computed, from anything, and are not read where it matters.
    """

    name: str
    extent: int
    limit: Expr | None = None

    @property
    def var(self) -> Var:
        """The index variable that ranges over this axis."""
        return Var(self.name)


@dataclass(frozen=True, slots=True)
class Reduce(PythonOperators):
    """A commutative reduction of `body` over `axes`."""

    op: str
    body: Expr
    axes: tuple[Axis, ...]


Expr: TypeAlias = Const | Var | Binary | Compare | Call | Select | Cast | Load | Reduce
Value: TypeAlias = PythonOperators | float
"""An expression, an axis, or a number."""


def as_index(x: object) -> Expr:
    """Turn an int, an Axis or an expression into an index expression."""
    if isinstance(x, Axis):
        return x.var
    if isinstance(x, bool) or not isinstance(x, int | _EXPR_TYPES):
        raise TypeError(f"not an index: {x!r}")
    return Const(x, INDEX) if isinstance(x, int) else x


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct operands of a node."""
    return _CHILDREN[type(e)](e)


def rebuild(e: Expr, parts: tuple[Expr, ...]) -> Expr:
    """The node `e` with other operands; folds constants like the constructor functions."""
    return _REBUILD[type(e)](e, parts)


def map_expr(e: Expr, f: Callable[[Expr], Expr | None]) -> Expr:
    """Rewrite top-down: where `f` gives an expression it replaces the node, else recurse.

    What occurs several times is rewritten once: as a tree, a sine is 25 times as large.
    """
    return _mapped(e, f, {})


def _mapped(e: Expr, f: Callable[[Expr], Expr | None], done: dict[int, Expr]) -> Expr:
    known = done.get(id(e))
    if known is not None:
        return known
    new = f(e)
    if new is None:
        old = children(e)
        parts = tuple(_mapped(c, f, done) for c in old)
        same = all(p is c for p, c in zip(parts, old, strict=True))
        new = e if same else rebuild(e, parts)
    done[id(e)] = new
    return new


def substitute(e: Expr, values: dict[str, Expr]) -> Expr:
    """Replace variables by name."""

    def one(x: Expr) -> Expr | None:
        return values.get(x.name) if isinstance(x, Var) else None

    return map_expr(e, one)


def walk(e: Expr) -> Iterator[Expr]:
    """All nodes, parents before operands."""
    yield e
    for c in children(e):
        yield from walk(c)


def distinct(e: Expr) -> Iterator[Expr]:
    """All nodes, each object once: far fewer than a tree has where operands are shared."""
    seen: set[int] = set()
    todo = [e]
    while todo:
        node = todo.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            todo += children(node)


def loads(e: Expr) -> list[Load]:
    """Every load in `e`, in order of appearance."""
    return [x for x in walk(e) if isinstance(x, Load)]


@lru_cache(maxsize=4096)
def variables(e: Expr) -> frozenset[str]:
    """Names of the index variables in `e`."""
    return frozenset(x.name for x in walk(e) if isinstance(x, Var))


def is_guard(e: Expr) -> bool:
    """Whether `e` is a Select by loop indices alone: a Load that it does not select is not made.

    Where data decide, both sides are inside their tensors and are read, in whole vectors and once.
    """
    return isinstance(e, Select) and not loads(e.cond)


def conjuncts(cond: Expr) -> frozenset[Expr]:
    """The conditions that must all hold for `cond` to hold."""
    if isinstance(cond, Binary) and cond.op == "and":
        return conjuncts(cond.a) | conjuncts(cond.b)
    return frozenset((cond,))


def dtype_of(e: Expr) -> str:
    """Element type of the value of `e`."""
    return _DTYPES[type(e)](e)


def _dtype_of_binary(e: Binary) -> str:
    return BOOL if e.op in ("and", "or") else dtype_of(e.a)


_DTYPES: dict[type[Expr], Callable[..., str]] = {
    Const: lambda e: e.dtype,
    Cast: lambda e: e.dtype,
    Var: lambda e: INDEX,
    Compare: lambda e: BOOL,
    Load: lambda e: e.tensor.dtype,
    Select: lambda e: dtype_of(e.a),
    Reduce: lambda e: dtype_of(e.body),
    Binary: _dtype_of_binary,
    Call: lambda e: INTRINSICS[e.fn].result or dtype_of(e.args[0]),
}


# --- constructors that fold ------------------------------------------------------------------


def idx(value: int) -> Const:
    """An integer index constant."""
    return Const(value, INDEX)


def f32(value: float) -> Const:
    """A float32 constant."""
    return Const(float(value), "float32")


def binary(op: str, a: Expr, b: Expr) -> Expr:
    """`a op b`, folded when both are index constants or one is neutral."""
    if op in INTEGER_OPS:
        return Binary(op, a, b)
    if isinstance(a, Const) and isinstance(b, Const) and a.dtype in (INDEX, BOOL):
        return Const(_FOLD[op](a.value, b.value), a.dtype)
    if dtype_of(a) == INDEX:
        return _simplify_index(op, a, b)
    if dtype_of(a) == BOOL:
        return _simplify_bool(op, a, b)
    return Binary(op, a, b)


def add(a: Expr, b: Expr) -> Expr:
    """Sum."""
    return binary("add", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    """Difference."""
    return binary("sub", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    """Product."""
    return binary("mul", a, b)


def div(a: Expr, b: Expr) -> Expr:
    """Float quotient."""
    return binary("div", a, b)


def floordiv(a: Expr, b: Expr) -> Expr:
    """Index quotient, rounded down."""
    return binary("floordiv", a, b)


def mod(a: Expr, b: Expr) -> Expr:
    """Index remainder with the sign of `b`."""
    return binary("mod", a, b)


def minimum(a: Expr, b: Expr) -> Expr:
    """The smaller operand, NaN when either is."""
    return binary("min", a, b)


def maximum(a: Expr, b: Expr) -> Expr:
    """The larger operand, NaN when either is."""
    return binary("max", a, b)


def _operands(a: Value, b: Value) -> tuple[Expr, Expr]:
    """Two operands of one type: a number has that of the other one."""
    if isinstance(a, PythonOperators):
        x = _node(a)
        return x, _node(b) if isinstance(b, PythonOperators) else number(b, dtype_of(x))
    y = _node(b)
    return number(a, dtype_of(y)), y


def _node(value: Value) -> Expr:
    assert isinstance(value, Axis | _EXPR_TYPES)
    return value.var if isinstance(value, Axis) else value


def number(value: float, dtype: str) -> Const:
    """A literal: the nearest number of a type."""
    record = DTYPES[dtype]
    return Const(record.rounded(value) if record.is_float else record.literal(value), dtype)


def compare(op: str, a: Expr, b: Expr) -> Expr:
    """`a op b`, folded when both are constants."""
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(bool(_COMPARE[op](a.value, b.value)), BOOL)
    return Compare(op, a, b)


def both(a: Expr, b: Expr) -> Expr:
    """Logical and."""
    return binary("and", a, b)


def either(a: Expr, b: Expr) -> Expr:
    """Logical or."""
    return binary("or", a, b)


def call(fn: str, a: Expr) -> Expr:
    """Apply a one-argument function."""
    return Call(fn, (a,))


def cast(dtype: str, a: Expr) -> Expr:
    """`a` as a `dtype`."""
    return a if dtype_of(a) == dtype else Cast(dtype, a)


def select(cond: Expr, a: Expr, b: Expr) -> Expr:
    """`a` where `cond`, else `b`; folded when `cond` is constant."""
    if isinstance(cond, Const):
        return a if cond.value else b
    return Select(cond, a, b)


def _limited(axes: tuple[Axis, ...], limits: tuple[Expr, ...]) -> tuple[Axis, ...]:
    """`axes` with other limits, one for each that has one."""
    new = iter(limits)
    return tuple(a if a.limit is None else Axis(a.name, a.extent, next(new)) for a in axes)


def _simplify_index(op: str, a: Expr, b: Expr) -> Expr:
    zero_a = isinstance(a, Const) and a.value == 0
    value_b = b.value if isinstance(b, Const) else None
    match op:
        case "add":
            return b if zero_a else a if value_b == 0 else Binary(op, a, b)
        case "sub":
            return a if value_b == 0 else Binary(op, a, b)
        case "mul":
            if zero_a or value_b == 0:
                return idx(0)
            if isinstance(a, Const) and a.value == 1:
                return b
            return a if value_b == 1 else Binary(op, a, b)
        case "floordiv":
            return a if value_b == 1 else idx(0) if zero_a else Binary(op, a, b)
        case "mod":
            return idx(0) if value_b == 1 or zero_a else Binary(op, a, b)
        case _:
            return a if a == b else Binary(op, a, b)


def _simplify_bool(op: str, a: Expr, b: Expr) -> Expr:
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const) and op in ("and", "or"):
            return y if bool(x.value) is (op == "and") else x
    return Binary(op, a, b)


_FOLD: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b),
}
_COMPARE = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
_EXPR_TYPES = Const | Var | Binary | Compare | Call | Select | Cast | Load | Reduce
_CHILDREN: dict[type, Callable[..., tuple[Expr, ...]]] = {
    Const: lambda e: (),
    Var: lambda e: (),
    Binary: lambda e: (e.a, e.b),
    Compare: lambda e: (e.a, e.b),
    Call: lambda e: e.args,
    Select: lambda e: (e.cond, e.a, e.b),
    Cast: lambda e: (e.a,),
    Load: lambda e: e.indices,
    Reduce: lambda e: (e.body, *(a.limit for a in e.axes if a.limit is not None)),
}
_REBUILD: dict[type, Callable[..., Expr]] = {
    Binary: lambda e, p: binary(e.op, *p),
    Compare: lambda e, p: compare(e.op, *p),
    Call: lambda e, p: Call(e.fn, p),
    Select: lambda e, p: select(*p),
    Cast: lambda e, p: Cast(e.dtype, p[0]),
    Load: lambda e, p: Load(e.tensor, p),
    Reduce: lambda e, p: Reduce(e.op, p[0], _limited(e.axes, p[1:])),
}
