"""③ Minimal filtering: the rewrite behind the `winograd` step.

    y[h] = Σ_kh x[h + kh]·w[kh]          h = m·tile + j,  kh < r

A tile of m outputs needs α = m + r - 1 inputs. Toom and Cook: evaluate both factors at α points,
multiply point by point, interpolate. As matrices (S. Winograd, 1980; A. Lavin, S. Gray, 2016):

    y = Aᵀ [(G w) ⊙ (Bᵀ x)]

so r·m products become α, along each window axis. Everything else that a convolution sums over stays
inside ⊙, which becomes one matrix product per point. G is applied to the weights at compile time.

The points are 0, ±1, ±2, ±1/2, … and ∞: the fewer and the nearer to 1, the smaller the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from math import lcm, prod

from autotune.errors import ScheduleError
from autotune.te.arith import linear
from autotune.te.dag import Compute, ComputeDAG, Op, Placeholder, compute
from autotune.te.expr import (
    Axis,
    Binary,
    Expr,
    Load,
    Reduce,
    Tensor,
    Var,
    add,
    both,
    compare,
    f32,
    floordiv,
    idx,
    mod,
    mul,
    select,
    sub,
    variables,
)

Matrix = tuple[tuple[Fraction, ...], ...]
_POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2", "4", "-4")))


@dataclass(frozen=True, slots=True)
class Filtering:
    """F(m, r): `inverse` [m, α], `data` [α, α] and `weight` [α, r] are Aᵀ, Bᵀ and G."""

    inverse: Matrix
    data: Matrix
    weight: Matrix


def filtering(m: int, r: int) -> Filtering:
    """The matrices of F(m, r), Bᵀ in integers where the points allow.

    Raises ScheduleError when there are too few points.
    """
    n = m + r - 2
    if n > len(_POINTS) or min(m, r) < 2:
        raise ScheduleError(f"there is no minimal filtering F({m}, {r})")
    points = _POINTS[:n]
    inverse = [[p**k for p in points] + [Fraction(k == m - 1)] for k in range(m)]
    # G scales row i by 1/Π(aᵢ - aⱼ); Bᵀ holds the coefficients of Π_{j≠i}(x - aⱼ)
    scale = [prod((a - b for b in points if b != a), start=Fraction(1)) for a in points]
    weight = [[p**k / s for k in range(r)] for p, s in zip(points, scale, strict=True)]
    weight.append([Fraction(k == r - 1) for k in range(r)])
    data = [[*_polynomial([b for b in points if b != a]), Fraction(0)] for a in points]
    data.append(_polynomial(list(points)))
    for i in range(n):  # integers in Bᵀ: move the factors into G
        unit = lcm(*(c.denominator for c in data[i]))
        data[i] = [c * unit for c in data[i]]
        weight[i] = [c / unit for c in weight[i]]
    return Filtering(_matrix(inverse), _matrix(data), _matrix(weight))


def _polynomial(roots: list[Fraction]) -> list[Fraction]:
    """Coefficients of Π(x - root), lowest first."""
    out = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *out]
        out = [s - root * c for s, c in zip(shifted, [*out, Fraction(0)], strict=True)]
    return out


def _matrix(rows: list[list[Fraction]]) -> Matrix:
    return tuple(tuple(row) for row in rows)


# --- a matrix times a vector, as the body of a computation ------------------------------------


def combine(matrix: Matrix, row: Expr, value: Callable[[int], Expr]) -> Expr:
    """Element `row` of `matrix`·x, where `value(k)` is x[k]: a choice among written-out sums.

    Rows and columns of a minimal filtering come in pairs that differ in signs only. Their sums are
    written so that the common parts of a pair are equal expressions, to be computed once.
    """
    rows = [_row(matrix, n, value) for n in range(len(matrix))]
    return reduce(
        lambda rest, n: select(compare("eq", row, idx(n)), rows[n], rest),
        range(len(rows) - 2, -1, -1),
        rows[-1],
    )


def _row(matrix: Matrix, n: int, value: Callable[[int], Expr]) -> Expr:
    partner = _partner(matrix, n)
    if partner is not None:
        same = [k for k, c in enumerate(matrix[n]) if c and c == matrix[partner][k]]
        other = [k for k, c in enumerate(matrix[n]) if c and c != matrix[partner][k]]
        if same and other:
            first = matrix[min(n, partner)]
            parts = (_terms(first, same, value), _terms(first, other, value))
            return add(*parts) if n < partner else sub(*parts)
    return _paired_sum(matrix, n, value)


def _partner(matrix: Matrix, n: int) -> int | None:
    """The row that differs from row `n` in signs alone."""
    size = [abs(c) for c in matrix[n]]
    same = (k for k, row in enumerate(matrix) if k != n and [abs(c) for c in row] == size)
    return next(same, None)


def _paired_sum(matrix: Matrix, n: int, value: Callable[[int], Expr]) -> Expr:
    """Row `n` as a sum in which columns that are alike but for signs are added up first."""
    columns: Matrix = tuple(zip(*matrix, strict=True))
    todo = [k for k, c in enumerate(matrix[n]) if c]
    terms: list[tuple[Fraction, Expr]] = []
    while todo:
        k = todo.pop(0)
        c, partner = matrix[n][k], _partner(columns, k)
        if partner not in todo:
            terms.append((c, value(k)))
            continue
        todo.remove(partner)
        join = add if matrix[n][partner] == c else sub
        terms.append((c, join(value(k), value(partner))))
    return _weighted(terms)


def _terms(row: Sequence[Fraction], columns: Sequence[int], value: Callable[[int], Expr]) -> Expr:
    return _weighted([(row[k], value(k)) for k in columns])


def _weighted(terms: list[tuple[Fraction, Expr]]) -> Expr:
    """Σ c·x, one multiply-add for each c that is not 1, starting from one that is."""
    ordered = sorted(terms, key=lambda t: t[0] != 1)
    total: Expr | None = None
    for c, x in ordered:
        if total is None:
            total = x if c == 1 else mul(f32(float(c)), x)
        elif c == 1:
            total = add(total, x)
        elif c == -1:
            total = sub(total, x)
        else:
            total = add(mul(f32(float(c)), x), total)
    assert total is not None
    return total


# --- the rewrite ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """A window axis: `axis` slides, `tap` is reduced over, and x is read at axis + tap + `start`.

    `dimension`: of x.
    """

    axis: Axis
    tap: Axis
    dimension: int
    start: int


@dataclass(frozen=True, slots=True)
class Convolution:
    """A sum of products of data and constant weights over windows of unit stride."""

    op: Compute
    data: Load
    weight: Load
    pairs: tuple[Pair, ...]

    @property
    def channels(self) -> tuple[Axis, ...]:
        """Reduction axes that are no window."""
        taps = {p.tap.name for p in self.pairs}
        return tuple(a for a in self.op.reduce_axes if a.name not in taps)


def convolution(dag: ComputeDAG, name: str) -> Convolution | None:
    """What the definition of `name` says of its windows; None where it is no such sum."""
    op = dag[name]
    if not isinstance(op, Compute) or not isinstance(op.body, Reduce) or op.body.op != "sum":
        return None
    if op.tensor.dtype != "float32":  # what the constants of the transforms are
        return None
    product = op.body.body
    if not isinstance(product, Binary) or product.op != "mul":
        return None
    a, b = product.a, product.b
    if not isinstance(a, Load) or not isinstance(b, Load):
        return None
    data, weight = (b, a) if _is_constant(dag, a) else (a, b)
    if not _is_constant(dag, weight) or _is_constant(dag, data):
        return None
    pairs = tuple(p for t in op.reduce_axes if (p := _pair(op, data, weight, t)) is not None)
    found = Convolution(op, data, weight, pairs)
    return found if pairs and found.channels else None


def _is_constant(dag: ComputeDAG, load: Load) -> bool:
    op = dag[load.tensor.name]
    return isinstance(op, Placeholder) and op.constant


def _pair(op: Compute, data: Load, weight: Load, tap: Axis) -> Pair | None:
    """The axis that slides with `tap`, if `tap` is a window of unit stride and more than 1 wide."""
    where = [d for d, i in enumerate(data.indices) if tap.name in variables(i)]
    if tap.extent < 2 or len(where) != 1 or weight.indices.count(tap.var) != 1:
        return None
    form = linear(data.indices[where[0]])
    for axis in op.axes:
        if set(form.terms) == {(axis.var, 1), (tap.var, 1)} and not _elsewhere(
            axis, data, weight, where[0]
        ):
            return Pair(axis, tap, where[0], form.const)
    return None


def _elsewhere(axis: Axis, data: Load, weight: Load, dimension: int) -> bool:
    others = [i for d, i in enumerate(data.indices) if d != dimension]
    return any(axis.name in variables(i) for i in (*others, *weight.indices))


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A DAG with one convolution replaced, and what makes the new constant out of the old one."""

    dag: ComputeDAG
    derived: tuple[Compute, ...]


@lru_cache(maxsize=64)
def rewrite(dag: ComputeDAG, name: str, taps: tuple[str, ...], m: int) -> Rewritten:
    """Replace convolution `name` by F(m, ·) along the window axes `taps`.

    With two of them, c being what is left of the reduction:

        name.x1[u, t, p, q, c]      = Bᵀ x[m·p + ·, m·q + t, c]
        name.x2[u, v, p, q, c]      = Bᵀ name.x1[u, ·, p, q, c]
        name.products[u, v, p, q, o] = Σ_c name.x2[u, v, p, q, c]·w.points[u, v, c, o]
        name.y1[j, v, p, q, o]      = Aᵀ name.products[·, v, p, q, o]
        name[h, w, o]               = Aᵀ name.y1[h mod m, ·, h div m, w div m, o]

    Raises ScheduleError when `name` is not a convolution along all of `taps`.
    """
    found = convolution(dag, name)
    pairs = tuple(p for p in found.pairs if p.tap.name in taps) if found else ()
    if found is None or len(pairs) != len(taps) or not pairs:
        raise ScheduleError(f"{name} is no convolution of unit stride along {', '.join(taps)}")
    maker = _Rewriter(dag, Convolution(found.op, found.data, found.weight, pairs), m)
    return maker.rewritten()


class _Rewriter:
    def __init__(self, dag: ComputeDAG, conv: Convolution, m: int) -> None:
        self.dag, self.conv, self.m = dag, conv, m
        self.name = conv.op.name
        self.filters = [filtering(m, p.tap.extent) for p in conv.pairs]
        self.points = [
            Axis(f"{p.axis.name}_point", len(f.data))
            for p, f in zip(conv.pairs, self.filters, strict=True)
        ]
        self.tiles = {p.axis.name: Axis(f"{p.axis.name}_tile", self._count(p)) for p in conv.pairs}

    def _count(self, p: Pair) -> int:
        return -(-p.axis.extent // self.m)

    def rewritten(self) -> Rewritten:
        source, new = self._widened()
        data = self._data(source)
        weight, derived = self._weight()
        products = self._products(data[-1].tensor, weight)
        inverse = self._inverse(products.tensor)
        new += [*data, Placeholder(weight, constant=True), products, *inverse]
        ops: list[Op] = []
        for op in self.dag.ops:
            ops += new if op.name == self.name else [op]
        return Rewritten(ComputeDAG(tuple(ops), self.dag.outputs), derived)

    # --- data ---------------------------------------------------------------------------------

    def _widened(self) -> tuple[Tensor, list[Op]]:
        """The data, with zeros behind where the last tile reaches beyond its end."""
        x = self.conv.data.tensor
        shape = list(x.shape)
        for p in self.conv.pairs:
            reach = p.start + self._count(p) * self.m + p.tap.extent - 1
            shape[p.dimension] = max(shape[p.dimension], reach)
        if tuple(shape) == x.shape:
            return x, []
        axes = tuple(Axis(f"d{n}", e) for n, e in enumerate(shape))
        tests = [
            compare("lt", a.var, idx(n)) for a, n in zip(axes, x.shape, strict=True) if a.extent > n
        ]
        body = select(reduce(both, tests), Load(x, tuple(a.var for a in axes)), f32(0.0))
        wide = compute(f"{self.name}.wide", axes, body)
        return wide.tensor, [wide]

    def _data(self, source: Tensor) -> list[Op]:
        """Bᵀ along one window axis after the other."""
        out: list[Op] = []
        tensor = source
        rest = self._data_axes()
        for n, f in enumerate(self.filters):
            point = self.points[n]
            behind = [Axis(f"{q.axis.name}_in", a.extent) for q, a in self._after(n)]
            axes = (*self.points[:n], point, *behind, *rest)
            read = self._reader(tensor, n, behind)
            body = combine(f.data, point.var, read)
            out.append(compute(f"{self.name}.x{n + 1}", axes, body))
            tensor = out[-1].tensor
        return out

    def _after(self, n: int) -> list[tuple[Pair, Axis]]:
        return list(zip(self.conv.pairs, self.points, strict=True))[n + 1 :]

    def _data_axes(self) -> tuple[Axis, ...]:
        """Axes of the data: those of the result that it depends on, tiles for windows, channels."""
        used = {v for i in self.conv.data.indices for v in variables(i)}
        spatial = [a for a in self.conv.op.axes if a.name in used]
        return (*(self.tiles.get(a.name, a) for a in spatial), *self.conv.channels)

    def _reader(self, tensor: Tensor, n: int, behind: list[Axis]) -> Callable[[int], Expr]:
        """x[k] of the n-th transform: from the source, or from the transform before."""
        if n:
            after = (*behind, *self._data_axes())
            before = tuple(a.var for a in self.points[:n])
            return _between(tensor, before, tuple(a.var for a in after))

        def first(k: int) -> Expr:
            at = list(self.conv.data.indices)
            inside: list[Expr] = [idx(k), *(a.var for a in behind)]
            for p, i in zip(self.conv.pairs, inside, strict=True):
                start = add(mul(self.tiles[p.axis.name].var, idx(self.m)), idx(p.start))
                at[p.dimension] = add(start, i)
            return Load(tensor, tuple(at))

        return first

    # --- weight -------------------------------------------------------------------------------

    def _weight(self) -> tuple[Tensor, tuple[Compute, ...]]:
        """G along one window axis after the other: dimensions (points…, all others of w)."""
        load = self.conv.weight
        derived: list[Compute] = []
        axes = [Axis(f"w{d}", e) for d, e in enumerate(load.tensor.shape)]
        tensor, at = load.tensor, [a.var for a in axes]
        taps = [load.indices.index(p.tap.var) for p in self.conv.pairs]
        for n, f in enumerate(self.filters):
            left = [a for d, a in enumerate(axes) if d not in taps[: n + 1]]
            out = (*self.points[: n + 1], *left)
            body = combine(f.weight, self.points[n].var, _along(tensor, at, n, taps, axes))
            derived.append(compute(f"{load.tensor.name}.points{n + 1}", out, body))
            tensor, at = derived[-1].tensor, [a.var for a in out]
        return tensor, tuple(derived)

    # --- products and inverse -----------------------------------------------------------------

    def _products(self, data: Tensor, weight: Tensor) -> Compute:
        taps = {p.tap.name for p in self.conv.pairs}
        points = tuple(a.var for a in self.points)
        x = Load(data, (*points, *(a.var for a in self._data_axes())))
        rest = (i for i in self.conv.weight.indices if not (isinstance(i, Var) and i.name in taps))
        product = mul(x, Load(weight, (*points, *rest)))
        axes = (*self.points, *(self.tiles.get(a.name, a) for a in self.conv.op.axes))
        body = Reduce("sum", product, self.conv.channels)
        return compute(f"{self.name}.products", axes, body)

    def _inverse(self, products: Tensor) -> list[Op]:
        """Aᵀ along one window axis after the other, the last one into the convolution itself."""
        out: list[Op] = []
        spatial = tuple(self.tiles.get(a.name, a) for a in self.conv.op.axes)
        inner = [Axis(f"{p.axis.name}_out", self.m) for p in self.conv.pairs]
        tensor, last = products, len(self.filters) - 1
        for n in range(last):
            axes = (*inner[: n + 1], *self.points[n + 1 :], *spatial)
            before, after = inner[:n], (*self.points[n + 1 :], *spatial)
            read = _between(tensor, tuple(a.var for a in before), tuple(a.var for a in after))
            body = combine(self.filters[n].inverse, inner[n].var, read)
            out.append(compute(f"{self.name}.y{n + 1}", axes, body))
            tensor = out[-1].tensor
        whole, part = dict[str, Expr](), dict[str, Expr]()
        for p in self.conv.pairs:
            whole[p.axis.name] = floordiv(p.axis.var, idx(self.m))
            part[p.axis.name] = mod(p.axis.var, idx(self.m))
        places = [part[p.axis.name] for p in self.conv.pairs]
        at = tuple(whole.get(a.name, a.var) for a in self.conv.op.axes)
        read = _between(tensor, tuple(places[:last]), at)
        body = combine(self.filters[last].inverse, places[last], read)
        return [*out, Compute(self.conv.op.tensor, self.conv.op.axes, body)]


def _between(
    tensor: Tensor, before: tuple[Expr, ...], after: tuple[Expr, ...]
) -> Callable[[int], Expr]:
    return lambda k: Load(tensor, (*before, idx(k), *after))


def _along(
    tensor: Tensor, at: list[Var], n: int, taps: list[int], axes: list[Axis]
) -> Callable[[int], Expr]:
    """w[…, k, …] for the n-th tap, whose dimension the taps before have left."""
    names = [a.name for a in at]
    position = names.index(axes[taps[n]].name)

    def one(k: int) -> Expr:
        index: list[Expr] = list(at)
        index[position] = idx(k)
        return Load(tensor, tuple(index))

    return one
