"""① The definition of one group at a few numbers -> its definition for all of them.

    y[r<512·32, o] = Σ x[r, i] · w[i, o]  and 11·13, …   y[b<32 and #b, s<512 and #s, o] = Σ …

Axes that join lengths are split, so that memory has the shape of the most and each axis a limit.
Which way they are split is tried: that of the operands first. Where a way makes all definitions one
expression, the definition at each number is that at the most with other strides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.graph.ir import Array
from autotune.graph.lengths.constants import LengthConstant, forms_of
from autotune.graph.lengths.layouts import Dim, Dims, LengthLayout, dims_of, layout_of, splits_of
from autotune.graph.lengths.merging import Merger, NotFollowed, at_most
from autotune.graph.lengths.numbers import AffineExtent, Points, Vector, told, uneven
from autotune.te.arith import Ranges, bounds, linear, simplify
from autotune.te.dag import Compute, ComputeDAG, Op, Placeholder
from autotune.te.expr import (
    INDEX,
    Axis,
    Const,
    Expr,
    Load,
    Reduce,
    Tensor,
    Var,
    add,
    both,
    children,
    compare,
    dtype_of,
    floordiv,
    idx,
    loads,
    map_expr,
    mod,
    mul,
    rebuild,
    select,
    substitute,
    variables,
)
from autotune.te.numbers import number_of, variable
from autotune.te.reductions import identity

_MOST_TRIED = 64
"""Ways of splitting the axes of one computation."""


@dataclass(frozen=True)
class Lifted:
    """A definition that follows numbers: `numbers` are the inputs that hold them, by placeholder.

    `layout`: of its result. `constants`: those that take the place of others.
    """

    dag: ComputeDAG
    layout: LengthLayout
    numbers: Mapping[str, str]
    constants: Mapping[str, Array]


@dataclass(frozen=True)
class GroupDefinitions:
    """A group's `dags` at the points, the `layouts` of its inputs, and its `constants` there."""

    points: Points
    atoms: Sequence[AffineExtent]
    dags: Sequence[ComputeDAG]
    layouts: Mapping[str, LengthLayout]
    constants: Sequence[Mapping[str, Array]]

    def lifted(self) -> Lifted:
        """The one for all numbers. Raises NotFollowed."""
        first, *others = self.dags
        if any([o.name for o in d.ops] != [o.name for o in first.ops] for d in others):
            raise NotFollowed("it is defined in another way at other lengths")
        reasons: list[str] = []
        for constants in self._constants():
            lifting = _Lifting(self, dict(constants))
            try:
                return lifting.run()
            except NotFollowed as error:
                reasons.append(str(error))
        raise NotFollowed(reasons[0])

    def _constants(self) -> Iterator[tuple[tuple[str, LengthConstant], ...]]:
        options = {
            p.name: list(self._forms(p.name)) for p in self.dags[0].placeholders if p.constant
        }
        found = itertools.product(*options.values())
        return (tuple(zip(options, way, strict=True)) for way in itertools.islice(found, 8))

    def _forms(self, name: str) -> Iterator[LengthConstant]:
        """What a constant may be at all numbers."""
        arrays = [c[name] for c in self.constants]
        found = list(forms_of(arrays, self._shape(name), self.atoms, self.points))
        if not found:
            raise NotFollowed(
                f"constant '{name}' depends on {told(self.points)} in a way that is not affine"
            )
        yield from found

    def _shape(self, name: str) -> list[Vector]:
        return list(zip(*(d[name].tensor.shape for d in self.dags), strict=True))


@dataclass
class _Lifting:
    """One attempt, with one form of each constant."""

    of: GroupDefinitions
    constants: Mapping[str, LengthConstant]
    dims: dict[str, Dims] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)

    def run(self) -> Lifted:
        dag, points = self.of.dags[0], self.of.points
        for p in dag.placeholders:
            self._placeholder(p)
        for n in range(len(dag.ops)):
            if isinstance(dag.ops[n], Compute):
                ops = [d.ops[n] for d in self.of.dags]
                self.ops.append(self._lifted([op for op in ops if isinstance(op, Compute)]))
        (output,) = dag.outputs
        result, numbers = _with_numbers(tuple(self.ops), output, points)
        every = ((name, c.array) for name, c in self.constants.items())
        constants = {name: array for name, array in every if array is not None}
        return Lifted(result, layout_of(self.dims[output]), numbers, constants)

    def _placeholder(self, p: Placeholder) -> None:
        constant = self.constants.get(p.name)
        if constant is not None and constant.dims is None:
            return
        if constant is not None:
            dims = constant.dims
        else:
            shape = self.of._shape(p.name)
            dims = dims_of(self.of.layouts[p.name], shape, self.of.points)
        if dims is None:
            raise NotFollowed(f"'{p.name}' joins lengths in another order than they lie in memory")
        self.dims[p.name] = dims
        tensor = at_most(p.name, dims, p.tensor.dtype, self.of.points)
        if constant is not None and constant.array is not None:
            tensor = replace(tensor, shape=constant.array.shape)
        self.ops.append(Placeholder(tensor, p.constant))

    def _lifted(self, ops: Sequence[Compute]) -> Compute:
        """One computation for all numbers."""
        ops = [self._without_constants(op, n) for n, op in enumerate(ops)]
        first = ops[0]
        shape = [[a.extent for a in (*op.axes, *op.reduce_axes)] for op in ops]
        names = [a.name for a in (*first.axes, *first.reduce_axes)]
        if any([a.name for a in (*op.axes, *op.reduce_axes)] != names for op in ops):
            raise NotFollowed("it is defined over other axes at other lengths")
        extents = dict(zip(names, zip(*shape, strict=True), strict=True))
        hints = self._hints(first, extents)
        options = [self._options(name, extents[name], hints) for name in names]
        reasons = []
        ways = [*itertools.islice(itertools.product(*options), _MOST_TRIED)]
        has_products = self.of.points.has_products
        is_alone = len(self.of.dags[0].computes) == 1 and not first.reduce_axes
        again = not has_products and is_alone
        for is_divided, way in itertools.product((has_products, True)[: 1 + again], ways):
            try:
                return _Split(self, dict(zip(names, way, strict=True)), is_divided).lifted(ops)
            except NotFollowed as error:
                reasons.append(str(error))
        if reasons:
            raise NotFollowed(reasons[0])
        moving = next(extents[n] for n, ways in zip(names, options, strict=True) if not ways)
        raise NotFollowed(uneven(moving, self.of.points))

    def _options(self, name: str, extent: Vector, hints: Mapping[str, list[Dim]]) -> list[Dim]:
        every = splits_of(extent, self.of.atoms, self.of.points)
        return list(dict.fromkeys([*hints.get(name, ()), *every]))

    def _hints(self, op: Compute, extents: Mapping[str, Vector]) -> dict[str, list[Dim]]:
        """How operands are split along axes that go through all of a dimension."""
        found: dict[str, list[Dim]] = {}
        for load in (x for x in op.reads if x.tensor.name != op.name):
            for index, dim in zip(load.indices, self.dims[load.tensor.name], strict=True):
                if isinstance(index, Var) and index.name in extents:
                    whole = [self.of.points.vector(part) for part in dim]
                    product = tuple(np.prod(whole, axis=0, dtype=object).tolist())
                    if product == extents[index.name]:
                        found.setdefault(index.name, []).append(dim)
        return found

    def _without_constants(self, op: Compute, n: int) -> Compute:
        """`op` with constants of one number as this number."""

        def one(e: Expr) -> Expr | None:
            if not isinstance(e, Load) or e.tensor.name not in self.constants:
                return None
            constant = self.constants[e.tensor.name]
            return Const(constant.values[n], e.tensor.dtype) if constant.dims is None else None

        return replace(op, body=map_expr(op.body, one))


@dataclass
class _Split:
    """One way of splitting the axes of a computation."""

    lifting: _Lifting
    parts: Mapping[str, Dim]
    is_divided: bool

    def __post_init__(self) -> None:
        self.points = self.lifting.of.points
        self.names = {
            name: (name,) if len(dim) == 1 else tuple(f"{name}_{n}" for n in range(len(dim)))
            for name, dim in self.parts.items()
        }

    def lifted(self, ops: Sequence[Compute]) -> Compute:
        """The computation for all numbers. Raises NotFollowed."""
        first, dims = ops[0], self.lifting.dims
        own = dims[first.name] = tuple(self.parts[a.name] for a in first.axes)
        tensor = at_most(first.name, own, first.tensor.dtype, self.points)
        is_split = any(len(dim) > 1 for dim in self.parts.values()) or any(
            len(dim) > 1 for op in ops[:1] for x in op.reads for dim in dims[x.tensor.name]
        )
        apart = self._apart if is_split else (lambda e, n: e)
        tensors = {op.name: op.tensor for op in self.lifting.ops} | {first.name: tensor}
        merger = Merger(self.points, self.lifting.of.atoms, tensors)
        axes = tuple(a for axis in first.axes for a in self._axes(axis))
        body = first.body
        if not isinstance(body, Reduce):
            found = merger.merged([apart(op.body, n) for n, op in enumerate(ops)])
            result: Expr = merger.inside(self._elements(found), axes)
        else:
            result = self._reduced(ops, merger, apart, axes)
        ends = {a.name: a.limit for a in first.axes if all(a in op.axes for op in ops)}
        limited = tuple(
            replace(a, limit=ends.get(a.name) if part.is_static else part.expr)
            for a, part in zip(axes, (p for dim in own for p in dim), strict=True)
        )
        return Compute(tensor, limited, result)

    def _reduced(
        self,
        ops: Sequence[Compute],
        merger: Merger,
        apart: Callable[[Expr, int], Expr],
        axes: tuple[Axis, ...],
    ) -> Reduce:
        bodies = [op.body for op in ops if isinstance(op.body, Reduce)]
        first = bodies[0]
        if any(b.op != first.op for b in bodies):
            raise NotFollowed("it reduces in another way at other lengths")
        term = merger.merged([apart(b.body, n) for n, b in enumerate(bodies)])
        reduced: list[Axis] = []
        used: Expr = Const(True, "bool")
        for k, axis in enumerate(first.axes):
            limits = [b.axes[k].limit for b in bodies]
            new = list(self._axes(axis))
            known = [apart(e, n) for n, e in enumerate(limits) if e is not None]
            if known:
                if len(known) < len(bodies) or len(new) > 1:
                    raise NotFollowed("an axis of it is ragged")
                new = [replace(new[0], limit=merger.merged(known))]
            for a, part in zip(new, self.parts[axis.name], strict=True):
                if not part.is_static:
                    used = both(used, compare("lt", a.var, part.expr))
            reduced += new
        term = merger.inside(self._elements(term), (*axes, *reduced))
        return Reduce(
            first.op, select(used, term, identity(first.op, dtype_of(term))), tuple(reduced)
        )

    def _axes(self, axis: Axis) -> Iterator[Axis]:
        for name, part in zip(self.names[axis.name], self.parts[axis.name], strict=True):
            if any(factor < 0 for _, factor in part.factors):
                raise NotFollowed(f"an extent of it is {part}")
            yield Axis(name, part.at(self.points.most))

    def _elements(self, e: Expr) -> Expr:
        """`e` with elements of constants as they follow the numbers."""
        constants = self.lifting.constants

        def one(x: Expr) -> Expr | None:
            if not isinstance(x, Load):
                return None
            load = Load(x.tensor, tuple(map_expr(i, one) for i in x.indices))
            constant = constants.get(x.tensor.name)
            return load if constant is None else constant.element(load)

        return map_expr(e, one)

    # --- at one point ---

    def _apart(self, e: Expr, n: int) -> Expr:
        """`e` at a point with the parts of axes and of dimensions apart."""
        ranges: dict[str, tuple[int, int]] = {}
        whole: dict[str, Expr] = {}
        for name, dim in self.parts.items():
            extents = [part.at(self.points.at[n]) for part in dim]
            index: Expr = idx(0)
            for own, extent in zip(self.names[name], extents, strict=True):
                ranges[own] = 0, extent - 1
                index = add(mul(index, idx(extent)), Var(own))
            if len(dim) > 1:
                whole[name] = index
        e = simplify(substitute(e, whole), ranges)
        return simplify(self._loads(e, n, ranges), ranges)

    def _loads(self, e: Expr, n: int, ranges: Ranges) -> Expr:
        parts = tuple(self._loads(c, n, ranges) for c in children(e))
        if not isinstance(e, Load):
            return rebuild(e, parts) if parts else e
        dims, numbers = self.lifting.dims[e.tensor.name], self.points.at[n]
        indices: list[Expr] = []
        for index, dim in zip(parts, dims, strict=True):
            extents = [part.at(numbers) for part in dim]
            indices += [index] if len(dim) == 1 else digits(index, extents, ranges, self.is_divided)
        shape = tuple(part.at(numbers) for dim in dims for part in dim)
        return Load(Tensor(e.tensor.name, shape, e.tensor.dtype), tuple(indices))


def digits(
    index: Expr, extents: Sequence[int], ranges: Ranges, is_divided: bool = False
) -> list[Expr]:
    """An index into `extents` joined as one into each of them; by dividing it, where it may be
    `is_divided` or data decide it. Raises NotFollowed."""
    strides = [int(np.prod(extents[n + 1 :], dtype=object)) for n in range(len(extents))]
    form = linear(index, ranges)
    found: list[Expr] = [idx(0)] * len(extents)
    for atom, c in form.terms:
        at = next(n for n, stride in enumerate(strides) if c % stride == 0)
        found[at] = add(found[at], mul(atom, idx(c // strides[at])))
    left = form.const
    for n, stride in enumerate(strides):
        found[n] = add(found[n], idx(left // stride))
        left %= stride
    if any(not _is_inside(d, n, ranges) for d, n in zip(found[1:], extents[1:], strict=True)):
        if not is_divided and not loads(index):
            raise NotFollowed("it reads across lengths that lie one behind the other")
        found = [floordiv(index, idx(strides[0]))]
        found += [
            floordiv(mod(index, idx(n * stride)), idx(stride))
            for n, stride in zip(extents[1:], strides[1:], strict=True)
        ]
    return [simplify(digit, ranges) for digit in found]


def _is_inside(digit: Expr, extent: int, ranges: Ranges) -> bool:
    try:
        low, high = bounds(digit, ranges)
    except KeyError:
        return False
    return low >= 0 and high < extent


def _with_numbers(
    ops: Sequence[Op], output: str, points: Points
) -> tuple[ComputeDAG, dict[str, str]]:
    """The DAG with an input for each number that it follows, and the numbers of these inputs."""
    used = {v for op in ops if isinstance(op, Compute) for v in _variables(op)}
    names = [name for name in points.most if variable(name).name in used]
    taken = {op.name for op in ops}
    inputs: dict[str, Tensor] = {}
    for name in names:
        own = next(n for n in _names("length") if n not in taken)
        taken.add(own)
        inputs[name] = Tensor(own, (1,), INDEX)
    values = {variable(name).name: t[idx(0)] for name, t in inputs.items()}

    def one(op: Op) -> Op:
        if not isinstance(op, Compute):
            return op
        axes = tuple(
            a if a.limit is None else replace(a, limit=substitute(a.limit, dict(values)))
            for a in op.axes
        )
        return Compute(op.tensor, axes, substitute(op.body, dict(values)))

    read = {x.tensor.name for op in ops if isinstance(op, Compute) for x in op.reads}
    kept = [op for op in ops if isinstance(op, Placeholder) and op.name in read]
    numbers = [Placeholder(t) for t in inputs.values()]
    computes = [one(op) for op in ops if isinstance(op, Compute)]
    dag = ComputeDAG((*kept, *numbers, *computes), (output,))
    return dag, {t.name: name for name, t in inputs.items()}


def _names(stem: str) -> Iterator[str]:
    yield stem
    yield from (f"{stem}{n}" for n in itertools.count(2))


def _variables(op: Compute) -> Iterator[str]:
    for e in (op.body, *(a.limit for a in op.axes if a.limit is not None)):
        yield from (v for v in variables(e) if number_of(v) is not None)
