"""③ The rewrite behind the `winograd` step: a convolution by minimal filtering.

    y[h] = Σ_c Σ_kh x[s·h + kh, c]·w[kh, c]          h = m·tile + j

Each tile of m outputs is Aᵀ [(G w) ⊙ (Bᵀ x)] along each window axis (`schedule/filtering.py`).
Everything else that a convolution sums over stays inside ⊙, which becomes one matrix product per
point. G is applied to the weights at compile time.

Factors narrower than the sum are transformed in float32 and multiplied narrow: what is transformed
is rounded to their type.

Where taps are d elements apart, rows h = d·i + p of one phase p are a convolution whose taps are
neighbours: the results of all phases are computed one beside the other, and then put in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce

from autotune.dtypes import is_float
from autotune.errors import ScheduleError
from autotune.schedule.filtering import Filtering, combine, filtering
from autotune.schedule.state import Rewritten, Transformed
from autotune.te.arith import linear
from autotune.te.dag import Compute, ComputeDAG, Op, Placeholder, compute
from autotune.te.expr import (
    Axis,
    Binary,
    Cast,
    Expr,
    Load,
    Reduce,
    Tensor,
    Var,
    add,
    both,
    cast,
    compare,
    floordiv,
    idx,
    mod,
    mul,
    select,
    variables,
)
from autotune.te.reductions import identity

_WIDE = "float32"
"""The type of sums, and of the constants of the transforms."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A window axis: x is read at `stride`·`axis` + `dilation`·`tap` + `start`.

    `tap` is reduced over. `dimension`: of x. One of stride and dilation is 1.
    """

    axis: Axis
    tap: Axis
    dimension: int
    start: int
    stride: int
    dilation: int

    @property
    def n_taps(self) -> int:
        """Most taps of one phase of the data."""
        return -(-self.tap.extent // self.stride)

    @property
    def n_results(self) -> int:
        """Most results of one phase of them."""
        return -(-self.axis.extent // self.dilation)


@dataclass(frozen=True, slots=True)
class Convolution:
    """A sum of products of data and constant weights over windows that overlap.

    Both are of one type, float32 or narrower floats that are widened.
    """

    op: Compute
    data: Load
    weight: Load
    pairs: tuple[Pair, ...]

    @property
    def channels(self) -> tuple[Axis, ...]:
        """Reduction axes that are no window."""
        taps = {p.tap.name for p in self.pairs}
        return tuple(a for a in self.op.reduce_axes if a.name not in taps)

    @property
    def outputs(self) -> tuple[Axis, ...]:
        """Axes along which the weights change and the data do not."""
        data, weight = variables(self.data), variables(self.weight)
        return tuple(a for a in self.op.axes if a.name in weight - data)


def convolution(dag: ComputeDAG, name: str) -> Convolution | None:
    """Windows of convolution `name`, from its definition; None where it is no such sum."""
    op = dag[name]
    if not isinstance(op, Compute) or not isinstance(op.body, Reduce) or op.body.op != "sum":
        return None
    if op.tensor.dtype != _WIDE:
        return None
    product = op.body.body
    if not isinstance(product, Binary) or product.op != "mul":
        return None
    a, b = _narrow(product.a), _narrow(product.b)
    if not isinstance(a, Load) or not isinstance(b, Load):
        return None
    if a.tensor.dtype != b.tensor.dtype or not is_float(a.tensor.dtype):
        return None
    data, weight = (b, a) if dag.is_constant(a.tensor.name) else (a, b)
    if not dag.is_constant(weight.tensor.name) or dag.is_constant(data.tensor.name):
        return None
    pairs = tuple(p for t in op.reduce_axes if (p := _pair(op, data, weight, t)) is not None)
    found = Convolution(op, data, weight, pairs)
    return found if pairs and found.channels else None


def _narrow(factor: Expr) -> Expr:
    """A factor before it is widened."""
    return factor.a if isinstance(factor, Cast) else factor


def _pair(op: Compute, data: Load, weight: Load, tap: Axis) -> Pair | None:
    """The axis that slides with `tap`, if `tap` is a window wider than the stride."""
    where = [d for d, i in enumerate(data.indices) if tap.name in variables(i)]
    if tap.extent < 2 or len(where) != 1 or weight.indices.count(tap.var) != 1:
        return None
    form = linear(data.indices[where[0]])
    steps = dict(form.terms)
    dilation = steps.pop(tap.var, 0)
    for axis in op.axes:
        if set(steps) != {axis.var}:
            continue
        pair = Pair(axis, tap, where[0], form.const, steps[axis.var], dilation)
        if axis.limit is not None and dilation > 1:
            continue  # each of its phases would end elsewhere
        if _overlaps(pair) and not _elsewhere(axis, data, weight, where[0]):
            return pair
    return None


def _overlaps(pair: Pair) -> bool:
    """Whether neighbouring results of a phase read the same data."""
    if min(pair.stride, pair.dilation) != 1:
        return False
    return pair.n_taps > 1 and (pair.dilation == 1 or pair.n_results > 1)


def _elsewhere(axis: Axis, data: Load, weight: Load, dimension: int) -> bool:
    others = [i for d, i in enumerate(data.indices) if d != dimension]
    return any(axis.name in variables(i) for i in (*others, *weight.indices))


@lru_cache(maxsize=64)
def rewrite(dag: ComputeDAG, name: str, taps: tuple[str, ...], m: int) -> Rewritten:
    """Replace convolution `name` by F(m, ·) along the window axes `taps`.

    With two of them, c being what is left of the reduction:

        name.x1[u, t, p, q, c]      = Bᵀ x[s·m·p + ·, s·m·q + t, c]
        name.x2[u, v, p, q, c]      = Bᵀ name.x1[u, ·, p, q, c]
        name.products[u, v, p, q, o] = Σ_c name.x2[u, v, p, q, c]·w.points[u, v, c, o]
        name.y1[j, v, p, q, o]      = Aᵀ name.products[·, v, p, q, o]
        name[h, w, o]               = Aᵀ name.y1[h mod m, ·, h div m, w div m, o]

    Raises ScheduleError when `name` is not a convolution along all of `taps`.
    """
    found = convolution(dag, name)
    pairs = tuple(p for p in found.pairs if p.tap.name in taps) if found else ()
    if found is None or len(pairs) != len(taps) or not pairs:
        raise ScheduleError(f"{name} is no convolution along {', '.join(taps)}")
    maker = _Rewriter(dag, Convolution(found.op, found.data, found.weight, pairs), m)
    return maker.rewritten()


def products_left(dag: ComputeDAG, name: str, taps: tuple[str, ...], m: int) -> Compute:
    """Of what `rewrite` makes of convolution `name`, the products: all that is left of its sums."""
    op = rewrite(dag, name, taps, m).dag[_products_of(name)]
    assert isinstance(op, Compute)
    return op


def _products_of(name: str) -> str:
    return f"{name}.products"


class _Rewriter:
    def __init__(self, dag: ComputeDAG, conv: Convolution, m: int) -> None:
        self.dag, self.conv, self.m = dag, conv, m
        self.name = conv.op.name
        self.dtype = conv.data.tensor.dtype
        self.filters = [filtering(m, p.tap.extent, p.stride) for p in conv.pairs]
        self.points = [
            Axis(f"{p.axis.name}_point", len(f.data))
            for p, f in zip(conv.pairs, self.filters, strict=True)
        ]
        apart = [p for p in conv.pairs if p.dilation > 1]
        self.phases = {p.axis.name: Axis(f"{p.axis.name}_phase", p.dilation) for p in apart}
        self.results = {p.axis.name: Axis(f"{p.axis.name}_result", p.n_results) for p in apart}
        self.tiles = {p.axis.name: self._tile(p) for p in conv.pairs}

    def _count(self, p: Pair) -> int:
        return -(-p.n_results // self.m)

    def _tile(self, p: Pair) -> Axis:
        """The tiles along an axis, as many as reach its limit."""
        limit = None if p.axis.limit is None else self._limit(p.axis.limit)
        return Axis(f"{p.axis.name}_tile", self._count(p), limit)

    def _limit(self, results: Expr) -> Expr:
        return floordiv(add(results, idx(self.m - 1)), idx(self.m))

    def _read(self, p: Pair, results: Expr) -> Expr:
        """Elements along the data up to the last one that the first `results` read."""
        return add(mul(results, idx(p.stride)), idx(p.start + p.tap.extent - p.stride))

    def _in_phases(self, axes: Iterable[Axis], inner: Mapping[str, Axis]) -> tuple[Axis, ...]:
        """`axes` with their phases, and their replacements in `inner`."""
        pairs = ((self.phases.get(a.name), inner.get(a.name, a)) for a in axes)
        return tuple(a for pair in pairs for a in pair if a is not None)

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
        points = zip(self.points, self.filters, strict=True)
        watched = tuple((a.name, f.watched) for a, f in points)
        transformed = Transformed(self.name, data[-1].name, watched)
        return Rewritten(ComputeDAG(tuple(ops), self.dag.outputs), derived, (transformed,))

    # --- data ---------------------------------------------------------------------------------

    def _widened(self) -> tuple[Tensor, list[Op]]:
        """The data, with zeros behind where the last tile reaches beyond its end.

        What lies behind a limit is garbage, which a transform would mix with what counts.
        """
        x = self.conv.data.tensor
        shape = list(x.shape)
        for p in self.conv.pairs:
            last = (self._count(p) * self.m - 1) * p.stride + p.tap.extent - 1
            reach = p.start + last * p.dilation + p.dilation
            shape[p.dimension] = max(shape[p.dimension], reach)
        ends = {p.dimension: (p, p.axis.limit) for p in self.conv.pairs if p.axis.limit is not None}
        if tuple(shape) == x.shape and not ends:
            return x, []
        known: dict[int, Expr] = {d: self._read(p, limit) for d, (p, limit) in ends.items()}
        reached = {d: mul(self._limit(limit), idx(self.m)) for d, (_, limit) in ends.items()}
        limits = {d: self._read(p, reached[d]) for d, (p, _) in ends.items()}
        axes = tuple(Axis(f"d{n}", e, limits.get(n)) for n, e in enumerate(shape))
        known |= {n: idx(e) for n, e in enumerate(x.shape) if n not in ends and shape[n] > e}
        tests = [compare("lt", axes[n].var, known[n]) for n in sorted(known)]
        zero = identity("sum", self.dtype)
        body = select(reduce(both, tests), Load(x, tuple(a.var for a in axes)), zero)
        wide = compute(f"{self.name}.wide", axes, body)
        return wide.tensor, [wide]

    def _data(self, source: Tensor) -> list[Op]:
        """Bᵀ along one window axis after the other."""
        out: list[Op] = []
        tensor = source
        rest = self._data_axes()
        for n, f in enumerate(self.filters):
            point = self.points[n]
            behind = [Axis(f"{q.axis.name}_in", len(g.data[0])) for q, g in self._after(n)]
            axes = (*self.points[:n], point, *behind, *rest)
            read = self._reader(tensor, n, behind)
            body = self._rounded(combine(f.data, point.var, read), n)
            out.append(compute(f"{self.name}.x{n + 1}", axes, body))
            tensor = out[-1].tensor
        return out

    def _rounded(self, body: Expr, n: int) -> Expr:
        """The n-th transform of a factor: of the last one, what is multiplied."""
        return cast(self.dtype, body) if n == len(self.filters) - 1 else body

    def _after(self, n: int) -> list[tuple[Pair, Filtering]]:
        return list(zip(self.conv.pairs, self.filters, strict=True))[n + 1 :]

    def _data_axes(self) -> tuple[Axis, ...]:
        """Axes of the data: those of the result that it depends on, tiles for windows, channels."""
        used = {v for i in self.conv.data.indices for v in variables(i)}
        spatial = [a for a in self.conv.op.axes if a.name in used]
        return (*self._in_phases(spatial, self.tiles), *self.conv.channels)

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
                step = idx(self.m * p.stride * p.dilation)
                start = add(mul(self.tiles[p.axis.name].var, step), idx(p.start))
                if p.axis.name in self.phases:
                    start = add(start, self.phases[p.axis.name].var)
                at[p.dimension] = add(start, mul(i, idx(p.dilation)))
            return cast(_WIDE, Load(tensor, tuple(at)))

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
            read = _along(tensor, at, n, taps, axes)
            body = self._rounded(combine(f.weight, self.points[n].var, read), n)
            derived.append(compute(f"{load.tensor.name}.points{n + 1}", out, body))
            tensor, at = derived[-1].tensor, [a.var for a in out]
        return tensor, tuple(derived)

    # --- products and inverse -----------------------------------------------------------------

    def _products(self, data: Tensor, weight: Tensor) -> Compute:
        taps = {p.tap.name for p in self.conv.pairs}
        points = tuple(a.var for a in self.points)
        x = Load(data, (*points, *(a.var for a in self._data_axes())))
        rest = (i for i in self.conv.weight.indices if not (isinstance(i, Var) and i.name in taps))
        w = Load(weight, (*points, *rest))
        product = mul(cast(_WIDE, x), cast(_WIDE, w))
        axes = (*self.points, *self._in_phases(self.conv.op.axes, self.tiles))
        body = Reduce("sum", product, self.conv.channels)
        return compute(_products_of(self.name), axes, body)

    def _inverse(self, products: Tensor) -> list[Op]:
        """Aᵀ along one window axis after the other, the last one into the convolution itself."""
        out: list[Op] = []
        op = self.conv.op
        spatial = self._in_phases(op.axes, self.tiles)
        inner = [Axis(f"{p.axis.name}_out", self.m) for p in self.conv.pairs]
        tensor, last = products, len(self.filters) - 1
        for n in range(last):
            axes = (*inner[: n + 1], *self.points[n + 1 :], *spatial)
            before, after = inner[:n], (*self.points[n + 1 :], *spatial)
            read = _between(tensor, tuple(a.var for a in before), tuple(a.var for a in after))
            body = combine(self.filters[n].inverse, inner[n].var, read)
            out.append(compute(f"{self.name}.y{n + 1}", axes, body))
            tensor = out[-1].tensor
        results = [self.results.get(p.axis.name, p.axis) for p in self.conv.pairs]
        whole = {a.name: floordiv(a.var, idx(self.m)) for a in results}
        places = [mod(a.var, idx(self.m)) for a in results]
        axes = self._in_phases(op.axes, self.results)
        at = tuple(whole.get(a.name, a.var) for a in axes)
        read = _between(tensor, tuple(places[:last]), at)
        body = combine(self.filters[last].inverse, places[last], read)
        if not self.phases:
            return [*out, Compute(op.tensor, op.axes, body)]
        phased = compute(f"{self.name}.phases", axes, body)
        return [*out, phased, Compute(op.tensor, op.axes, self._in_order(phased.tensor))]

    def _in_order(self, phased: Tensor) -> Load:
        at: list[Expr] = []
        for a in self.conv.op.axes:
            if phase := self.phases.get(a.name):
                at += [mod(a.var, idx(phase.extent)), floordiv(a.var, idx(phase.extent))]
            else:
                at.append(a.var)
        return Load(phased, tuple(at))


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
        return cast(_WIDE, Load(tensor, tuple(index)))

    return one
