"""② The values of the expression language: elements with Python's operators, tensors, axes.

Every operation checks its operands at once: dtypes, counts of indices, where a reduction stands.
`fail` raises with the line of the user's code.
"""

from __future__ import annotations

import itertools
import keyword
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np

from autotune.dtypes import DTYPES, is_float
from autotune.errors import DefinitionError
from autotune.te.dag import Op, print_expr
from autotune.te.expr import (
    BOOL,
    INDEX,
    Axis,
    Const,
    Expr,
    Load,
    Reduce,
    binary,
    call,
    cast,
    compare,
    distinct,
    dtype_of,
    idx,
    loads,
    maximum,
    minimum,
)
from autotune.te.lengths import n_elements
from autotune.te.reductions import BITWISE

Number: TypeAlias = float | int | bool
Operand: TypeAlias = "Expression | Number"
Indices: TypeAlias = "Operand | tuple[Operand, ...]"
_PACKAGE = str(Path(__file__).parents[1])
_MAX_ELEMENTS = 1 << 40
MAX_RAGGED = _MAX_ELEMENTS
"""Steps of a ragged axis, until the tensor that is read along it is known."""


class Expression:
    """The value of one element, or of one index. Immutable.

    `node`: the tree behind it. `reads`: the tensors that it reads, in order of appearance.
    """

    __slots__ = ("node", "reads")
    __array_ufunc__ = None  # np.float32(2) * e is e.__rmul__(np.float32(2))

    def __init__(self, node: Expr, reads: tuple[Tensor, ...] = ()) -> None:
        self.node = node
        self.reads = reads

    @property
    def dtype(self) -> str:
        """Element type: `float32`, …; `int64` for an index, `bool` for a comparison."""
        return dtype_of(self.node)

    def astype(self, dtype: str) -> Expression:
        """This value converted to `dtype`; floats are rounded towards zero to integers."""
        return Expression(cast(require_dtype(dtype), value_of(self)), self.reads)

    def __add__(self, other: Operand) -> Expression:
        return arithmetic("add", self, other)

    def __radd__(self, other: Operand) -> Expression:
        return arithmetic("add", other, self)

    def __sub__(self, other: Operand) -> Expression:
        return arithmetic("sub", self, other)

    def __rsub__(self, other: Operand) -> Expression:
        return arithmetic("sub", other, self)

    def __mul__(self, other: Operand) -> Expression:
        return arithmetic("mul", self, other)

    def __rmul__(self, other: Operand) -> Expression:
        return arithmetic("mul", other, self)

    def __truediv__(self, other: Operand) -> Expression:
        return arithmetic("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return arithmetic("div", other, self)

    def __floordiv__(self, other: Operand) -> Expression:
        return arithmetic("floordiv", self, other)

    def __rfloordiv__(self, other: Operand) -> Expression:
        return arithmetic("floordiv", other, self)

    def __mod__(self, other: Operand) -> Expression:
        return arithmetic("mod", self, other)

    def __rmod__(self, other: Operand) -> Expression:
        return arithmetic("mod", other, self)

    def __pow__(self, other: Operand) -> Expression:
        return arithmetic("pow", self, other)

    def __rpow__(self, other: Operand) -> Expression:
        return arithmetic("pow", other, self)

    def __neg__(self) -> Expression:
        if is_float(self.dtype):
            return Expression(call("neg", value_of(self)), self.reads)
        return arithmetic("sub", 0, self)

    def __abs__(self) -> Expression:
        return function_of("abs", self)

    def __lt__(self, other: Operand) -> Expression:
        return comparison("lt", self, other)

    def __le__(self, other: Operand) -> Expression:
        return comparison("le", self, other)

    def __gt__(self, other: Operand) -> Expression:
        return comparison("gt", self, other)

    def __ge__(self, other: Operand) -> Expression:
        return comparison("ge", self, other)

    def __eq__(self, other: Operand) -> Expression:  # type: ignore[override]  # as NumPy's
        return comparison("eq", self, other)

    def __ne__(self, other: Operand) -> Expression:  # type: ignore[override]
        return comparison("ne", self, other)

    def __and__(self, other: Operand) -> Expression:
        return logical("and", self, other)

    def __or__(self, other: Operand) -> Expression:
        return logical("or", self, other)

    def __xor__(self, other: Operand) -> Expression:
        return logical("xor", self, other)

    def __lshift__(self, other: Operand) -> Expression:
        return of_integers("shl", self, other)

    def __rshift__(self, other: Operand) -> Expression:
        return of_integers("shr", self, other)

    def __invert__(self) -> Expression:
        return function_of("not", self)

    def __bool__(self) -> NoReturn:
        fail(
            "an expression has no truth value while the computation is defined",
            "choose with te.where(condition, a, b), join conditions with & and |",
        )

    def __iter__(self) -> NoReturn:
        fail("an expression is one element, not several", "te.max, te.min and te.sum reduce axes")

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return print_expr(self.node)


class ReduceAxis(Expression):
    """An axis to reduce over; an index expression inside the reduction."""

    __slots__ = ("axis",)

    def __init__(
        self, axis: Axis, begin: Expression | None = None, reads: tuple[Tensor, ...] = ()
    ) -> None:
        first = idx(0) if begin is None else begin.node
        super().__init__(binary("add", first, axis.var), reads)
        self.axis = axis


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A placeholder or the result of a computation; indexing it gives an `Expression`."""

    op: Op
    reads: tuple[Tensor, ...] = ()

    @property
    def name(self) -> str:
        """Name in the DAG, in schedules and in printed text."""
        return self.op.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, outermost first."""
        return self.op.tensor.shape

    @property
    def dtype(self) -> str:
        """Element type."""
        return self.op.tensor.dtype

    def __getitem__(self, indices: Indices) -> Expression:
        parts = indices if isinstance(indices, tuple) else (indices,)
        if len(parts) != len(self.shape):
            fail(
                f"{self.name} has {len(self.shape)} dimensions and is read with {len(parts)} "
                "indices",
                f"its shape is {self.shape}",
            )
        found = [_index(part, self, dim) for dim, part in enumerate(parts)]
        reads = joined(self, *(t for e in found for t in e.reads))
        return Expression(Load(self.op.tensor, tuple(e.node for e in found)), reads)

    def __repr__(self) -> str:
        return f"te.Tensor({self.name}, shape={self.shape}, dtype={self.dtype})"


# --- building nodes ---------------------------------------------------------------------------


def as_expression(value: object, dtype: str = "") -> Expression:
    """`value` as an expression; a number becomes a constant of `dtype`, its own by default."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, Tensor):
        fail(f"{value.name} is a whole tensor", f"read an element: {value.name}[…]")
    value = _plain(value)
    if not isinstance(value, bool | int | float):
        fail(f"{value!r} is neither an expression nor a number", "use te.… functions on elements")
    own = BOOL if isinstance(value, bool) else INDEX if isinstance(value, int) else "float32"
    wanted = dtype or ("float32" if own == INDEX else own)
    if is_float(wanted) and not isinstance(value, bool):
        return Expression(Const(DTYPES[wanted].literal(_as_float(value)), wanted))
    is_whole = isinstance(value, int) or (math.isfinite(value) and value == int(value))
    if (wanted == BOOL) != isinstance(value, bool) or not is_whole or not _fits(value, wanted):
        fail(f"{value!r} is no {wanted}", "convert the other operand with .astype(dtype)")
    return Expression(Const(bool(value) if wanted == BOOL else int(value), wanted))


def _plain(value: object) -> object:
    """Numbers of NumPy as those of Python."""
    if isinstance(value, np.integer):
        return int(value)
    return float(value) if isinstance(value, np.floating) else value


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        fail("a whole number is too large for a float", "write a float, such as 1e30")


def _fits(value: float, dtype: str) -> bool:
    return DTYPES[dtype].low <= value <= DTYPES[dtype].high


def value_of(e: Expression) -> Expr:
    """The node of an operand, which holds no reduction."""
    if any(isinstance(n, Reduce) for n in distinct(e.node)):
        fail(
            "a reduction is used inside another expression",
            "a reduction is the whole value of a te.compute; read its result in another one",
        )
    return e.node


def aligned(a: object, b: object) -> tuple[Expression, Expression]:
    """Two operands of one dtype."""
    if isinstance(a, Expression):
        x, y = a, as_expression(b, a.dtype)
    else:
        y = as_expression(b)
        x = as_expression(a, y.dtype)
    if x.dtype != y.dtype:
        fail(
            f"{x.dtype} and {y.dtype} do not go together: {x!r} and {y!r}",
            f"convert one: .astype('{x.dtype}')",
        )
    return x, y


def arithmetic(op: str, a: object, b: object) -> Expression:
    """`a op b` of two numbers of one dtype."""
    x, y = aligned(a, b)
    of_floats = is_float(x.dtype)
    if x.dtype == BOOL:
        fail(f"'{op}' is no operation on conditions", "join them with & and |")
    if op in ("div", "pow") and not of_floats:
        fail(f"'{op}' is for floats, these are {x.dtype}", "use //, or .astype('float32')")
    if op in ("floordiv", "mod") and of_floats:
        fail(f"'{op}' is for whole numbers, these are {x.dtype}", "use te.floor(a / b)")
    if op in ("floordiv", "mod") and not (isinstance(y.node, Const) and y.node.value > 0):
        fail(f"'{op}' takes a positive number on its right, not {y!r}", "divide by a constant")
    return Expression(binary(op, value_of(x), value_of(y)), joined(*x.reads, *y.reads))


def comparison(op: str, a: object, b: object) -> Expression:
    """`a op b` as a condition."""
    x, y = aligned(a, b)
    return Expression(compare(op, value_of(x), value_of(y)), joined(*x.reads, *y.reads))


def logical(op: str, a: object, b: object) -> Expression:
    """`a op b` of two conditions, or of the bits of two integers."""
    x, y = aligned(a, b)
    if DTYPES[x.dtype].is_integer:
        return of_integers(f"bit{op}", x, y)
    if x.dtype != BOOL:
        fail(f"'{op}' joins conditions, these are {x.dtype}", "compare first: (i > 0) & (j > 0)")
    reads = joined(*x.reads, *y.reads)
    if op == "xor":
        return Expression(compare("ne", value_of(x), value_of(y)), reads)
    return Expression(binary(op, value_of(x), value_of(y)), reads)


def of_integers(op: str, a: object, b: object) -> Expression:
    """An operation of `te.integers` on two integers of one dtype."""
    x, y = aligned(a, b)
    if not DTYPES[x.dtype].is_integer:
        fail(f"'{op}' is for integers, these are {x.dtype}", "convert: .astype('int32')")
    return Expression(binary(op, value_of(x), value_of(y)), joined(*x.reads, *y.reads))


def function_of(name: str, x: object) -> Expression:
    """A function of one float or integer, or `not` of a condition."""
    value = as_expression(x)
    if name == "not":
        if value.dtype != BOOL:
            fail(f"~ is for conditions, not for {value.dtype}", "compare first: ~(i > 0)")
    elif name == "trailing_zeros":
        if is_float(value.dtype) or value.dtype == BOOL:
            fail(f"{name} is for integers, not for {value.dtype}", "convert: .astype('int32')")
    elif not is_float(value.dtype):
        fail(f"{name} is for floats, not for {value.dtype}", "convert: .astype('float32')")
    return Expression(call(name, value_of(value)), value.reads)


def reduction(op: str, value: object, axis: object) -> Expression:
    """`value` reduced over one axis or several."""
    body = as_expression(value)
    given = list(axis) if isinstance(axis, Sequence) else [axis]
    axes = [a.axis for a in given if isinstance(a, ReduceAxis)]
    if not axes or len(axes) != len(given):
        fail(f"te.{op} needs the axes to reduce over", "make one: k = te.reduce_axis(extent)")
    if body.dtype == BOOL:
        fail(f"te.{op} of conditions", "convert: te.sum(condition.astype('float32'), k)")
    if op in BITWISE and is_float(body.dtype):
        fail(f"bits of {body.dtype}", "reduce integers: .astype('int32')")
    if op in ("sum", "prod"):
        body = body.astype(DTYPES[body.dtype].accumulator)
    node = value_of(body)
    reads = joined(*body.reads, *(t for a in given if isinstance(a, ReduceAxis) for t in a.reads))
    return Expression(Reduce(op, node, tuple(_bounded(a, node) for a in axes)), reads)


def _bounded(axis: Axis, body: Expr) -> Axis:
    """`axis`; a ragged one has no more steps than the dimensions along it have elements."""
    if axis.limit is None:
        return axis
    extent = n_elements(body, axis)
    if extent is None:
        fail(f"nothing is read along {axis.name}", f"read an element: values[{axis.name}]")
    return replace(axis, extent=extent)


def _index(part: object, tensor: Tensor, dim: int) -> Expression:
    """One index of `tensor`; one that is itself read from a tensor is kept inside."""
    if isinstance(part, Axis):
        part = Expression(part.var)
    part = _plain(part)
    if isinstance(part, bool) or not isinstance(part, Expression | int):
        fail(f"{part!r} is no index of {tensor.name}", "an index is a whole number or an axis")
    extent = tensor.shape[dim]
    if isinstance(part, int):
        if not 0 <= part < extent:
            fail(
                f"{tensor.name}: index {part} of dimension {dim} is outside of its {extent} "
                "elements",
                "indices count from 0, not from the end",
            )
        return Expression(idx(part))
    if is_float(part.dtype) or part.dtype == BOOL:
        fail(f"{part!r} is a {part.dtype}, no index", "convert: .astype('int64')")
    node = cast(INDEX, value_of(part))
    if loads(node):
        node = minimum(maximum(node, idx(0)), idx(extent - 1))
    return Expression(node, part.reads)


def joined(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Each tensor once, in order of appearance."""
    return tuple(dict.fromkeys(tensors))


_NUMBERS = itertools.count()
_names: ContextVar[Iterator[int]] = ContextVar("names")


@contextmanager
def numbered() -> Iterator[None]:
    """Inside, tensors and axes without a name are numbered from 0: equal code, equal names."""
    token = _names.set(itertools.count())
    try:
        yield
    finally:
        _names.reset(token)


def require_shape(shape: object) -> tuple[int, ...]:
    """`shape` as a tuple of extents; raises DefinitionError."""
    parts = tuple(map(_plain, shape if isinstance(shape, Sequence) else (shape,)))
    sizes = [p for p in parts if isinstance(p, int) and not isinstance(p, bool) and p > 0]
    if len(sizes) != len(parts) or math.prod(sizes) > _MAX_ELEMENTS:
        fail(f"{shape!r} is no shape", "extents are whole numbers above 0")
    return tuple(sizes)


def require_name(name: object, kind: str) -> str:
    """`name`, or `kind` and a number where it is empty; raises DefinitionError."""
    if name == "":
        return f"{kind}{next(_names.get(_NUMBERS))}"
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        fail(f"{name!r} is no name", "letters, digits and _, as in Python")
    if name in DTYPES:
        fail(f"{name!r} is a dtype, and is given as a name", "te.placeholder(shape, name, dtype)")
    return name


def require_dtype(dtype: object) -> str:
    """`dtype`; raises DefinitionError for an unknown one."""
    if dtype not in DTYPES:
        fail(f"{dtype!r} is no dtype", f"use one of: {', '.join(DTYPES)}")
    return str(dtype)


def fail(message: str, hint: str) -> NoReturn:
    """Raise DefinitionError with the line of the user's code that led here."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    raise DefinitionError(f"{frame.f_code.co_filename}:{frame.f_lineno}: {message}", hint)
