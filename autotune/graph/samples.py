"""① Independence: a proof on the definition of a node that no part of its result needs another.

    keeps_apart(graph, node, {"x": 0})      whether rows of the result are those of rows of x alone

Every tensor with parts is seen as (…, outer, n, inner, …): the part of an element is one of its
indices. A node keeps parts apart if each element of its result reads elements of its own part and
of constants alone, and in a way that names no part. The definition is looked at, at two numbers of
parts: what is true of one part must be the same at both. That no other number differs is concluded
from this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from autotune.errors import AutotuneError
from autotune.graph.ir import Graph, Node, Shape, TensorType
from autotune.graph.operators.definition import ViewKind
from autotune.graph.operators.table import view_of
from autotune.graph.tasks.subgraph import definition_of
from autotune.te.arith import Linear, bounds, linear, simplify
from autotune.te.dag import Compute, print_expr
from autotune.te.expr import (
    Axis,
    Expr,
    Load,
    Reduce,
    Select,
    Tensor,
    Var,
    add,
    children,
    idx,
    mul,
    rebuild,
    substitute,
    variables,
)

PROOF_EXTENTS = (11, 13)
"""Primes, so that multiples of both by chance are rare."""

_SAMPLE, _OUTER, _INNER = "sample", "outer", "inner"


@dataclass(frozen=True, slots=True)
class _Place:
    """Batch axis of a tensor: index `dim` is `(outer · n + sample) · inner + rest`."""

    dim: int
    inner: int

    def step(self, shape: Shape) -> int:
        """Elements between two samples of the dense tensor."""
        return self.inner * math.prod(shape[self.dim + 1 :])


def _place_of(step: int, shape: Shape, n: int) -> _Place | None:
    """Batch axis of a dense tensor of `shape` whose samples are `step` elements apart."""
    stride = math.prod(shape)
    if not stride:
        return None
    for dim, extent in enumerate(shape):
        stride //= extent
        if stride <= step < stride * extent and step % stride == 0:
            inner = step // stride
            return _Place(dim, inner) if extent % (inner * n) == 0 else None
    return None


Known = Mapping[str, int | None]
"""Elements between two samples of each tensor; None for one that is the same for all samples."""


def keeps_apart(graph: Graph, node: Node, own: Mapping[str, int], axis: int = 0) -> bool:
    """Whether a node computes parts of its result one by one, each of that part of its operands.

    The parts lie along dimension `axis` of the result and, of the operands `own`, along these
    dimensions; all others are the same for every part. `graph` has the types, for any number of
    parts. What is constant of `own` counts as data.
    """
    dims = {**own, node.output: axis}
    if len({graph.shape(x)[d] for x, d in dims.items()}) > 1:
        return False
    graphs = [
        replace(
            graph,
            nodes=(node,),
            inputs=tuple(own),
            outputs=node.outputs,
            constants={x: graph.constants[x] for x in node.inputs if _is_shared(graph, x, own)},
            types=graph.types | {x: _with_parts(graph.types[x], d, n) for x, d in dims.items()},
        )
        for n in PROOF_EXTENTS
    ]
    steps = {x: math.prod(graph.shape(x)[d + 1 :]) for x, d in dims.items()}
    known = dict.fromkeys(node.inputs) | {x: steps[x] for x in own}
    try:
        return _step_of(node, (graphs[0], graphs[1]), known) == steps[node.output]
    except AutotuneError:
        return False


def _is_shared(graph: Graph, name: str, own: Mapping[str, int]) -> bool:
    """Whether a tensor is a constant that is the same for all parts."""
    return name in graph.constants and name not in own


def _with_parts(kind: TensorType, dim: int, n: int) -> TensorType:
    return replace(kind, shape=(*kind.shape[:dim], n, *kind.shape[dim + 1 :]))


def _step_of(node: Node, graphs: tuple[Graph, Graph], operands: Known) -> int | None:
    """Elements between two samples of the result of a node; None where samples are not apart."""
    if view_of(node) is ViewKind.WHOLE:
        return operands[node.inputs[0]]
    (dag, names), (dag_b, names_b) = (definition_of(graph, node) for graph in graphs)
    if [op.name for op in dag.ops] != [op.name for op in dag_b.ops] or names != names_b:
        return None
    known = {own: operands[name] for own, name in names.items()}
    for one, other in zip(dag.computes, dag_b.computes, strict=True):
        found = list(_results(one, other, known))
        if not found:
            return None
        known[one.name] = found[0]
    return known[dag.outputs[0]]


def _dims(a: Shape, b: Shape) -> Iterator[tuple[int, int]]:
    """Dimensions that can hold the samples, and indices of one: all beside n, or fewer."""
    n, m = PROOF_EXTENTS
    if len(a) != len(b):
        return
    differ = [d for d, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    if len(differ) == 1 and a[differ[0]] % n == 0 and a[differ[0]] * m == b[differ[0]] * n:
        inner = a[differ[0]] // n
        yield differ[0], inner
        yield from ((differ[0], k) for k in range(inner // 2, 0, -1) if inner % k == 0)


# --- one computation ---------------------------------------------------------------------------


def _results(a: Compute, b: Compute, known: Known) -> Iterator[int | None]:
    """Layouts of the result of a computation in which samples are independent."""
    n, m = PROOF_EXTENTS
    if a.tensor.shape == b.tensor.shape:
        known = {**known, a.name: None}  # a scan reads itself
        one = _form(a, None, known, n)
        if one is not None and one == _form(b, None, known, m):
            yield None
        return
    for place in (_Place(*d) for d in _dims(a.tensor.shape, b.tensor.shape)):
        step = place.step(a.tensor.shape)
        known = {**known, a.name: step}
        one = _form(a, place, known, n)
        if one is not None and one == _form(b, place, known, m):
            yield step


class _Foreign(Exception):
    """An element reads another sample than its own, or knows the number of its own."""


def _form(op: Compute, place: _Place | None, known: Known, n: int) -> object:
    """Canonical form of one sample of a computation; None where it depends on others."""
    try:
        return _OneSample(op, place, known, n).form()
    except _Foreign:
        return None


class _OneSample:
    """A computation with the index of the sample apart from its other indices."""

    def __init__(self, op: Compute, place: _Place | None, known: Known, n: int) -> None:
        self.op, self.known, self.n = op, known, n
        self.ranges = {a.name: (0, a.extent - 1) for a in (*op.axes, *op.reduce_axes)}
        self.extents: list[object] = [a.extent for a in op.axes]
        self.split: dict[str, Expr] = {}
        if place is None:
            return
        axis = op.axes[place.dim]
        outer = axis.extent // (n * place.inner)
        parts = {_OUTER: outer, _SAMPLE: n, _INNER: place.inner}
        self.ranges |= {name: (0, extent - 1) for name, extent in parts.items()}
        strides = {_OUTER: n * place.inner, _SAMPLE: place.inner, _INNER: 1}
        index: Expr = idx(0)
        for name, extent in parts.items():
            if extent > 1:
                index = add(index, mul(Var(name), idx(strides[name])))
        self.split = {axis.name: index}
        self.extents[place.dim] = (outer, place.inner)

    def form(self) -> object:
        body = self.op.body
        reduced: tuple[object, ...] = ()
        if isinstance(body, Reduce):
            reduced = (body.op, *(self._axis(a) for a in body.axes))
            body = body.body
        return tuple(self.extents), reduced, print_expr(self._apart(body))

    def _axis(self, axis: Axis) -> object:
        limit = "" if axis.limit is None else print_expr(self._apart(axis.limit))
        return axis.name, axis.extent, limit

    def _apart(self, e: Expr) -> Expr:
        """`e` without the sample."""
        found = simplify(self._loads(substitute(e, self.split)), self.ranges)
        if _SAMPLE in variables(found):
            raise _Foreign
        return found

    def _loads(self, e: Expr) -> Expr:
        """`e` with every load one of the same sample, innermost first."""
        parts = tuple(self._loads(c) for c in children(e))
        if isinstance(e, Select):
            return simplify(rebuild(e, parts), self.ranges)
        if not isinstance(e, Load):
            return rebuild(e, parts) if parts else e
        indices = [simplify(p, self.ranges) for p in parts]
        shape = e.tensor.shape
        step = self.known[e.tensor.name]
        place = None if step is None else _place_of(step, shape, self.n)
        if step is not None and place is None:
            raise _Foreign
        extents: list[int] = list(shape)
        if place is not None:
            dim = place.dim
            outer, inner = self._own(linear(indices[dim], self.ranges), place.inner)
            indices[dim : dim + 1] = [outer, inner]
            extents[dim : dim + 1] = [shape[dim] // (self.n * place.inner), place.inner]
        if any(_SAMPLE in variables(i) for i in indices):
            raise _Foreign
        return Load(Tensor(e.tensor.name, tuple(extents), e.tensor.dtype), tuple(indices))

    def _own(self, index: Linear, inner: int) -> tuple[Expr, Expr]:
        """`(outer · n + sample) · inner + rest` as outer and rest; raises _Foreign for others."""
        if index.coefficient(_SAMPLE) != inner or index.is_opaque_in(_SAMPLE):
            raise _Foreign
        whole = self.n * inner
        others = [(a, c) for a, c in index.terms if a != Var(_SAMPLE)]
        outer = tuple((a, c // whole) for a, c in others if c % whole == 0)
        rest = Linear(tuple((a, c) for a, c in others if c % whole), index.const % whole)
        try:
            low, high = bounds(rest.expr, self.ranges)
        except KeyError:
            raise _Foreign from None
        if low < 0 or high >= inner:
            raise _Foreign
        return Linear(outer, index.const // whole).expr, rest.expr
