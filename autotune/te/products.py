"""② Sums of products whose factors are narrower than the sum: the work of a dot instruction.

s = sum(cast(int32, x[m, k]) * cast(int32, w[k, n]), k)      uint8 · int8 -> int32
s = sum(cast(float32, x[m, k]) * cast(float32, w[k, n]), k)  bfloat16 · bfloat16 -> float32

A term may be several such products, which then go to one accumulator one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from autotune.dtypes import holds
from autotune.strides import dense
from autotune.target.isa import INSTRUCTIONS, MultiplyAdd, TileUnit
from autotune.te.arith import linear, offset
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Axis, Binary, Cast, Expr, Load, Reduce, dtype_of, loads, variables

_LEAST_GROUPS = 4
"""Groups of terms in a matrix; with fewer its registers are all but empty."""
_LEAST_COLUMNS = 8

Factors: TypeAlias = tuple[Expr, Expr]
"""The two factors of a product, as they are before they are widened."""


def products(term: Expr) -> tuple[Factors, ...]:
    """The products of narrow factors that `term` adds up, in order; none where it is no such sum.

    All are of one pair of types, so that one form of multiply-add takes them all.
    """
    found = _products(term)
    types = {tuple(dtype_of(e) for e in pair) for pair in found}
    return found if len(types) == 1 else ()


def _products(term: Expr) -> tuple[Factors, ...]:
    match term:
        case Binary(op="mul", a=Cast(a=a), b=Cast(a=b)):
            return ((a, b),)
        case Binary(op="add", a=a, b=b):
            left, right = _products(a), _products(b)
            return (*left, *right) if left and right else ()
    return ()


def added(value: Expr) -> tuple[Expr, tuple[Factors, ...]]:
    """`total + products` in its parts; no products where it is no such sum."""
    match value:
        case Binary(op="add", a=total, b=term):
            return total, products(term)
    return value, ()


def exchanged(term: Expr) -> Expr:
    """A sum of products with the factors of each of them exchanged."""
    assert isinstance(term, Binary)
    if term.op == "mul":
        return Binary("mul", term.b, term.a)
    return Binary("add", exchanged(term.a), exchanged(term.b))


def in_order(form: MultiplyAdd, a: Expr, b: Expr) -> Factors | None:
    """The factors in the order in which `form` takes them; None where it takes no such types.

    What is narrower than an operand of a form on vectors is widened in registers. Matrices are read
    as they are: which factor is rows is not for the types to say, so their order stays.
    """
    if form.unit:
        return (a, b) if (dtype_of(a), dtype_of(b)) == form.operands else None
    for pair in ((a, b), (b, a)):
        if all(holds(o, dtype_of(e)) for o, e in zip(form.operands, pair, strict=True)):
            return pair
    return None


def forms_of(
    pairs: tuple[Factors, ...], accumulator: str, forms: Iterable[MultiplyAdd] = INSTRUCTIONS
) -> Iterator[MultiplyAdd]:
    """The multiply-adds among `forms` that add several such products to an accumulator at once.

    No two of them on vectors, nor two of them on matrices, add up equally many terms: how many an
    annotated loop has says which one it is.
    """
    for form in forms if pairs else ():
        if form.terms > 1 and form.accumulator == accumulator and in_order(form, *pairs[0]):
            yield form


def dot_form(op: Compute, terms: int) -> MultiplyAdd | None:
    """The instruction on vectors that adds up `terms` terms of sum `op` at once."""
    found = forms_of(products_of(op), op.tensor.dtype)
    return next((f for f in found if f.terms == terms and f.unit is None), None)


def products_of(op: Compute) -> tuple[Factors, ...]:
    """The products of narrow factors that a term of sum `op` adds up; none where it is none."""
    body = op.body
    return products(body.body) if isinstance(body, Reduce) and body.op == "sum" else ()


def dot_forms(op: Compute, forms: tuple[MultiplyAdd, ...]) -> tuple[MultiplyAdd, ...]:
    """The forms on vectors that add up several terms of the last reduction axis of `op` at once.

    The terms are of one length, and they move a factor or the other.
    """
    found = forms_of(_along_last(op), op.tensor.dtype, forms)
    return tuple(f for f in found if f.unit is None and op.reduce_axes[-1].extent % f.terms == 0)


def instructions_of(op: Compute, forms: tuple[MultiplyAdd, ...]) -> tuple[MultiplyAdd, ...]:
    """The forms, on vectors and on matrices, that add up several terms of `op` at once."""
    matrices = as_matrices(op, forms)
    return (*dot_forms(op, forms), *([matrices.form] if matrices else []))


def _along_last(op: Compute) -> tuple[Factors, ...]:
    """The products of a sum along whose last axis terms can be added up at once."""
    pairs = products_of(op)
    last = op.reduce_axes[-1] if pairs else None
    return pairs if last and last.limit is None and last.name in variables(op.body) else ()


@dataclass(frozen=True, slots=True)
class Matrices:
    """A sum as products of matrices by `form`: c[rows, columns] += a[rows, k] · b[k, columns].

    `factors`: `a` and `b` of each product. `rows`: the position of the axis that moves `a` alone;
    columns are the last axis, k the last one of the reduction, of which an instruction takes
    `groups` groups of the terms of `form`. Where the last one is as long as a group (`is_pair`), k
    is the last two: taps of a window whose channels are neighbours, say.
    """

    form: MultiplyAdd
    factors: tuple[tuple[Load, Load], ...]
    rows: int
    groups: int
    is_pair: bool = False

    @property
    def unit(self) -> TileUnit:
        """The registers."""
        assert self.form.unit is not None
        return self.form.unit


def as_matrices(op: Compute, forms: tuple[MultiplyAdd, ...]) -> Matrices | None:
    """`op` by one of `forms` that multiply matrices; None where it is no such product.

    A row of `a` is contiguous along k; all rows of it are equally far apart. Factors are not
    widened in between: they are of the very types of the form.
    """
    pairs = _along_last(op)
    if not pairs or len(op.axes) < 2 or op.axes[-1].extent < _LEAST_COLUMNS:
        return None
    for ordered in (pairs, tuple((b, a) for a, b in pairs)):
        loaded = tuple((a, b) for a, b in ordered if isinstance(a, Load) and isinstance(b, Load))
        rows = _rows(op, loaded) if len(loaded) == len(pairs) else None
        if rows is None or not all(_fits(op, *pair) for pair in loaded):
            continue
        for form in forms_of(loaded, op.tensor.dtype, forms):
            if form.unit:
                is_pair = op.reduce_axes[-1].extent == form.terms and len(op.reduce_axes) > 1
                groups = _groups(op, loaded, form, is_pair)
                if groups >= _LEAST_GROUPS:
                    return Matrices(form, loaded, op.axes.index(rows), groups, is_pair)
    return None


def _fits(op: Compute, a: Load, b: Load) -> bool:
    """Whether columns move `b` alone, and rows of `a` are contiguous along the reduction."""
    columns = op.axes[-1].name
    is_split = columns not in _moving(a) and columns in _moving(b)
    return is_split and _is_contiguous(a, op.reduce_axes[-1])


def _moving(load: Load) -> frozenset[str]:
    return frozenset[str]().union(*map(variables, load.indices))


def _rows(op: Compute, factors: tuple[tuple[Load, Load], ...]) -> Axis | None:
    """The axis of most rows, up to those of a register, that moves each `a` evenly and no `b`."""
    found = [
        x
        for x in op.axes[:-1]
        if x.extent > 1
        and all(x.name in _moving(a) - _moving(b) for a, b in factors)
        and not any(linear(i).is_opaque_in(x.name) for a, _ in factors for i in a.indices)
    ]
    return max(reversed(found), key=lambda x: min(x.extent, 16), default=None)


def _is_contiguous(a: Load, last: Axis) -> bool:
    """Whether neighbours along `last` are neighbours in memory."""
    *others, index = map(linear, a.indices)
    if any(map(loads, a.indices)) or index.is_opaque_in(last.name):
        return False
    apart = any(i.is_opaque_in(last.name) or i.coefficient(last.name) for i in others)
    return index.coefficient(last.name) == 1 and not apart


def _groups(
    op: Compute, pairs: tuple[tuple[Load, Load], ...], form: MultiplyAdd, is_pair: bool
) -> int:
    """Most groups of terms, up to the rows of a register, that divide the reduction; 0: none."""
    most = form.unit.rows if form.unit else 0
    n, rest = divmod(op.reduce_axes[-1].extent, form.terms)
    if is_pair:
        n = op.reduce_axes[-2].extent
        follows = (_step(a, op.reduce_axes[-2]) == form.terms for a, _ in pairs)
        rest = 0 if op.reduce_axes[-2].limit is None and all(follows) else 1
    return 0 if rest else max((g for g in range(1, most + 1) if n % g == 0), default=0)


def _step(load: Load, axis: Axis) -> int | None:
    """Elements between neighbours along `axis` in a dense tensor; None where they vary."""
    form = offset(load.indices, dense(load.tensor.shape))
    return None if form.is_opaque_in(axis.name) else form.coefficient(axis.name)


_PRECISIONS = {"bfloat16": "bf16", "float16": "f16", "uint8": "int8", "int8": "int8"}


def precision_of(dag: ComputeDAG) -> str:
    """Precision of the factors of products, for people: "f32", "bf16", "f16" or "int8".

    The first narrow one where several sums differ; "f32" where a factor is wide or nothing is
    multiplied.
    """
    found = (_narrow_factors(op) for op in dag.computes)
    return next((name for name in found if name), "f32")


def _narrow_factors(op: Compute) -> str:
    names = {_PRECISIONS.get(dtype_of(e), "") for pair in products_of(op) for e in pair}
    return names.pop() if len(names) == 1 else ""
