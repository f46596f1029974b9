"""① Batch independence: a proof on the graph that no sample of a batch depends on another.

    sample_axes((graph at batch 11, graph at batch 13), "batch", {"ids": 0})   {"logits": (0, 1)}

Every tensor with samples is seen as (…, outer, n, inner, …): the sample of an element is a part of
one of its indices. A node keeps samples apart if each element of its result reads elements of its
own sample and of constants alone, and in a way that names no sample. The definitions of all nodes
are looked at, at two extents: what is true of one sample must be the same at both. That no other
extent differs is concluded from this; `compile` checks one against the oracle as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from autotune.errors import AutotuneError, UsageError
from autotune.graph.ir import Array, Graph, Node, Shape, TensorType
from autotune.graph.subgraph import definition_of
from autotune.te.arith import Linear, bounds, linear, simplify
from autotune.te.dag import Compute, print_expr
from autotune.te.expr import (
    Axis,
    Const,
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
from autotune.wording import arguments

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


@dataclass(frozen=True, slots=True)
class _Samples:
    """A tensor whose samples are `step` elements apart.

    `first`, `slope`: those of a constant of integers that counts samples, as `arange(batch)` does:
    sample k of it is `first + k · slope`, both of shape (outer, step).
    """

    step: int
    first: Array | None = None
    slope: Array | None = None


Known = Mapping[str, _Samples | None]
"""Layout of samples of each tensor; None for one that is the same for all samples."""


Axes = dict[str, tuple[int, int]]
"""The batch axis of each tensor, and its number of indices per sample."""


def sample_axes(graphs: tuple[Graph, Graph], dimension: str, inputs: Mapping[str, int]) -> Axes:
    """Batch axes of the outputs, if no sample depends on another.

    `graphs`: the prepared model at the two `PROOF_EXTENTS` of `dimension`; `inputs`: the axis that
    this dimension is of each input that has it. Outputs that are the same for all samples are
    missing. Raises UsageError, with the node, where samples are not apart.
    """
    proof = _Proof(graphs, dimension)
    for name, axis in inputs.items():
        proof.known[name] = _Samples(math.prod(graphs[0].shape(name)[axis + 1 :]))
    return proof.axes()


def keeps_apart(graph: Graph, node: Node, own: Mapping[str, int], axis: int = 0) -> bool:
    """Whether a node computes parts of its result one by one, each of that part of its operands.

    The parts lie along dimension `axis` of the result and, of the operands `own`, along these
    dimensions; all others are the same for every part. `graph` has the types, for any number of
    parts. What is constant of `own` counts as data.
    """
    dims = {**own, node.output: axis}
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
    proof = _Proof((graphs[0], graphs[1]), "")
    steps = {x: math.prod(graph.shape(x)[d + 1 :]) for x, d in dims.items()}
    proof.known = dict.fromkeys(node.inputs) | {x: _Samples(steps[x]) for x in own}
    try:
        proof.node(node, node)
    except AutotuneError:
        return False
    return proof.known[node.output] == _Samples(steps[node.output])


def _is_shared(graph: Graph, name: str, own: Mapping[str, int]) -> bool:
    """Whether a tensor is a constant that is the same for all parts."""
    return name in graph.constants and name not in own


def _with_parts(kind: TensorType, dim: int, n: int) -> TensorType:
    return replace(kind, shape=(*kind.shape[:dim], n, *kind.shape[dim + 1 :]))


class _Proof:
    """Samples of all tensors by their names in the first graph; the second runs beside it."""

    def __init__(self, graphs: tuple[Graph, Graph], dimension: str) -> None:
        self.graphs, self.dimension = graphs, dimension
        self.known: dict[str, _Samples | None] = dict.fromkeys(graphs[0].inputs)
        self.second = dict(zip(graphs[0].inputs, graphs[1].inputs, strict=True))

    def axes(self) -> Axes:
        first, second = self.graphs
        if [n.op for n in first.nodes] != [n.op for n in second.nodes]:
            raise self._mixed("the model", "it has other operators for other extents")
        for pair in zip(first.nodes, second.nodes, strict=True):
            self.node(*pair)
        found: Axes = {}
        for name in first.outputs:
            samples = self._samples(name, self.second.get(name, name))
            if samples is None:
                continue
            place = _place_of(samples.step, first.shape(name), PROOF_EXTENTS[0])
            if place is None or first.shape(name)[place.dim] != PROOF_EXTENTS[0] * place.inner:
                raise self._mixed(f"output '{name}'", "its samples do not lie one after the other")
            found[name] = place.dim, place.inner
        return found

    def node(self, a: Node, b: Node) -> None:
        """See which layout of samples the result of a node has. Raises UsageError."""
        for x, y in zip(a.inputs, b.inputs, strict=True):
            if x:
                self.known[x] = self._samples(x, y)
                self.second[x] = y
        self.second[a.output] = b.output
        if a.op == "Reshape":
            self.known[a.output] = self.known[a.inputs[0]]
            return
        (dag, names), (dag_b, names_b) = (
            definition_of(g, n) for g, n in zip(self.graphs, (a, b), strict=True)
        )
        if [op.name for op in dag.ops] != [op.name for op in dag_b.ops]:
            raise self._mixed(_named(a), "it is defined in another way for other extents")
        known = {own: self.known[name] for own, name in names.items()}
        if any(self.second[name] != names_b[own] for own, name in names.items()):
            raise self._mixed(_named(a), "its operands differ")
        for one, other in zip(dag.computes, dag_b.computes, strict=True):
            found = list(_results(one, other, known))
            if not found:
                raise self._mixed(_named(a), "its result for one sample depends on others")
            known[one.name] = found[0]
        self.known[a.output] = known[dag.outputs[0]]

    def _samples(self, a: str, b: str) -> _Samples | None:
        """Layout of samples of a tensor: a constant may repeat or count them."""
        if a in self.known and self.second.get(a, b) == b:
            return self.known[a]
        first, second = (g.constants.get(n) for g, n in zip(self.graphs, (a, b), strict=True))
        if first is None or second is None:
            raise self._mixed(f"constant '{a}'", "it is none for other extents")
        if first.shape == second.shape and first.tobytes() == second.tobytes():
            return None
        for found in _samples_of(first, second):
            return found
        raise self._mixed(f"constant '{a}'", f"it depends on '{self.dimension}'")

    def _mixed(self, what: str, why: str) -> UsageError:
        return UsageError(
            f"'{self.dimension}' cannot be any: {what}: {why}",
            f"give the extents that you use: {arguments(dims={self.dimension: [1, 4, 8]})}",
        )


def _named(node: Node) -> str:
    return f"{node.op} '{node.name}'"


def _samples_of(a: Array, b: Array) -> Iterator[_Samples]:
    """Layouts of samples that a constant may have, from its values at both extents."""
    for dim, inner in _dims(a.shape, b.shape):
        step = _Place(dim, inner).step(a.shape)
        one, other = (_counted(x, step, n) for x, n in zip((a, b), PROOF_EXTENTS, strict=True))
        if one is None or other is None:
            continue
        if all(x.tobytes() == y.tobytes() for x, y in zip(one, other, strict=True)):
            yield _Samples(step, *one) if one[1].any() else _Samples(step)


def _counted(array: Array, step: int, n: int) -> tuple[Array, Array] | None:
    """The first of `n` samples, and the slope from one to the next; None for others."""
    parts = array.reshape(-1, n, step)
    first = np.ascontiguousarray(parts[:, 0])
    if array.dtype == np.int64:
        slope = parts[:, 1] - first
        numbers = np.arange(n, dtype=np.int64)[:, None]
        is_counted = np.array_equal(parts, first[:, None] + numbers * slope[:, None])
        return (first, slope) if is_counted else None
    repeated = np.broadcast_to(first[:, None], parts.shape)
    is_same = np.ascontiguousarray(parts).tobytes() == np.ascontiguousarray(repeated).tobytes()
    return (first, np.zeros(1, np.int64)) if is_same else None


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


def _results(a: Compute, b: Compute, known: Known) -> Iterator[_Samples | None]:
    """Layouts of the result of a computation in which samples are independent."""
    n, m = PROOF_EXTENTS
    if a.tensor.shape == b.tensor.shape:
        one = _form(a, None, known, n)
        if one is not None and one == _form(b, None, known, m):
            yield None
        return
    for place in (_Place(*d) for d in _dims(a.tensor.shape, b.tensor.shape)):
        one = _form(a, place, known, n)
        if one is not None and one == _form(b, place, known, m):
            yield _Samples(place.step(a.tensor.shape))


class _Foreign(Exception):
    """An element reads another sample than its own, or knows which one it is of."""


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
        samples = self.known[e.tensor.name]
        place = None if samples is None else _place_of(samples.step, shape, self.n)
        if samples is not None and place is None:
            raise _Foreign
        extents: list[int] = list(shape)
        if place is not None:
            dim = place.dim
            outer, inner = self._own(linear(indices[dim], self.ranges), place.inner)
            indices[dim : dim + 1] = [outer, inner]
            extents[dim : dim + 1] = [shape[dim] // (self.n * place.inner), place.inner]
        if any(_SAMPLE in variables(i) for i in indices):
            raise _Foreign
        own = Load(Tensor(e.tensor.name, tuple(extents), e.tensor.dtype), tuple(indices))
        return own if samples is None or samples.slope is None else _count(own, samples)

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


def _count(own: Load, samples: _Samples) -> Expr:
    """Element of a constant that counts samples: base + slope · number of the sample."""
    assert samples.first is not None
    assert samples.slope is not None
    at = tuple(int(i.value) if isinstance(i, Const) else slice(None) for i in own.indices)
    first, slope = (
        np.unique(x.reshape(own.tensor.shape)[at]) for x in (samples.first, samples.slope)
    )
    if slope.size > 1:
        raise _Foreign
    base: Expr = idx(int(first[0])) if first.size == 1 else own
    return add(base, mul(Var(_SAMPLE), idx(int(slope[0]))))
