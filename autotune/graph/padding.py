"""① Whether a longer input computes the same: a proof on the graph, as `samples` is for batches.

    padding_of((graph at 11, graph at 13), "sequence", {"ids": 1, "mask": 1}, {"ids": 0, "mask": 1})

The places of an input at `dimension` are real up to its length, and padded behind it. The graph at
13 with 11 real places is compared with the graph at 11: at the real places, each element of each
tensor has to be the same expression of the same elements. What is reduced over all places must be
neutral at the padded ones, whatever the data: 0 in a sum, no more than another element in a
maximum. That follows from intervals of values (`te.value_ranges`), one for each combination of real
and padded places of a tensor. What holds for one pair of lengths is concluded for others.

A softmax without its padded keys needs a key that is not masked. It is taken to be at one place,
the *anchor*: the first or the last real one. There, masks are 1; or they are 1 at all real places.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from autotune.errors import UsageError
from autotune.graph.ir import Array, Graph, Node, Shape
from autotune.graph.partition import Group
from autotune.graph.row_facts import NONE, Facts, Rows
from autotune.graph.subgraph import definition_of, form_of
from autotune.te.arith import bounds, linear, simplify
from autotune.te.dag import Compute, ComputeDAG, print_expr
from autotune.te.expr import (
    Axis,
    Binary,
    Compare,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    Tensor,
    Var,
    add,
    children,
    dtype_of,
    idx,
    map_expr,
    mul,
    rebuild,
    substitute,
)
from autotune.te.value_ranges import (
    ANYTHING,
    Values,
    join,
    product,
    total,
    unknown,
    values_of,
)

Anchor: TypeAlias = Literal["first", "last", "all"]
"""Which real places are known not to be masked."""
Region: TypeAlias = Literal["anchor", "real", "padded"]
Regions: TypeAlias = tuple[Region, ...]
"""Where an element is along each axis of lengths of its tensor; `real` includes the anchor."""

REGIONS: tuple[Region, ...] = ("anchor", "real", "padded")
_REAL: Region = "real"
_MOST_AXES = 3
"""Axes of lengths of one tensor, at most: 27 combinations of regions."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A tensor with axes of lengths, and the values that it has in each combination of regions.

    `layout`: the dense tensor is `layout[0] × n × layout[1] × n × …` elements, however it is
    shaped. `(size,)` without lengths.
    """

    layout: tuple[int, ...]
    values: Mapping[Regions, Values]

    @property
    def n_axes(self) -> int:
        """Number of axes of lengths."""
        return len(self.layout) - 1


Places: TypeAlias = tuple[int | None, ...]
"""For each dimension that is `outer × n × inner`, its inner part; None for others."""


class _Refused(Exception):
    """Why a computation depends on padded places."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Extents: `n` real places, `padded` of them and of padding."""

    n: int
    padded: int
    anchor: Anchor

    def range_of(self, region: Region) -> tuple[int, int]:
        """First and last place of a region."""
        if region == "padded":
            return self.n, self.padded - 1
        if region == "real":
            return 0, self.n - 1
        at = self.n - 1 if self.anchor == "last" else 0
        return at, at


Axes: TypeAlias = dict[str, tuple[tuple[int, int], ...]]
"""The axes of lengths of each tensor, and how many of its indices are one place."""


def output_axes(
    graphs: tuple[Graph, Graph],
    dimension: str,
    inputs: Mapping[str, int],
    masks: frozenset[str],
    anchor: Anchor,
) -> Axes:
    """The axes of lengths of every output, if padding changes none of its real elements.

    `graphs`: the prepared model at a length and at a longer one; `inputs`: the axis that
    `dimension` is of each input that has it. Inputs are padded with 0; those of `masks` are 0 or 1,
    and 1 at the anchor. Raises UsageError, with the node, where padding can change a result.
    """
    name = next(iter(inputs))
    n, padded = (g.shape(name)[inputs[name]] for g in graphs)
    proof = _Proof(graphs, dimension, Pair(n, padded, anchor))
    for name, axis in inputs.items():
        proof.take_input(name, axis, name in masks)
    return proof.axes()


class _Proof:
    """Lengths of all tensors by their names in the shorter graph; the longer one runs beside it."""

    def __init__(self, graphs: tuple[Graph, Graph], dimension: str, pair: Pair) -> None:
        self.graphs, self.dimension, self.pair = graphs, dimension, pair
        self.known: dict[str, Lengths] = {}
        self.second = dict(zip(graphs[0].inputs, graphs[1].inputs, strict=True))
        self.facts: dict[str, Facts] = {}
        self.done: dict[object, tuple[str, tuple[str, ...]]] = {}
        for name in graphs[0].inputs:
            kind = graphs[0].types[name]
            self.known[name] = Lengths((math.prod(kind.shape),), {(): unknown(kind.dtype)})

    def take_input(self, name: str, axis: int, is_mask: bool) -> None:
        """Declare an input with padded places."""
        kind = self.graphs[0].types[name]
        layout = math.prod(kind.shape[:axis]), math.prod(kind.shape[axis + 1 :])
        real, anchor = unknown(kind.dtype), unknown(kind.dtype)
        if is_mask:
            real, anchor = Values(self.pair.anchor == "all", 1), Values(1, 1)
        values: dict[Regions, Values] = {
            ("anchor",): anchor,
            ("real",): real,
            ("padded",): Values(0, 0),
        }
        self.known[name] = Lengths(layout, values)

    def axes(self) -> Axes:
        first, second = self.graphs
        if [n.op for n in first.nodes] != [n.op for n in second.nodes]:
            raise self.refused("the model", "it has other operators for other lengths")
        for a, b in zip(first.nodes, second.nodes, strict=True):
            self._node(a, b)
        names = zip(first.outputs, second.outputs, strict=True)
        return {name: self._output(name, other) for name, other in names}

    def _output(self, name: str, other: str) -> tuple[tuple[int, int], ...]:
        found = self._lengths(name, other)
        shapes = self.graphs[0].shape(name), self.graphs[1].shape(other)
        places = places_of(found.layout, *shapes, self.pair) or (0,)
        axes = tuple((d, inner) for d, inner in enumerate(places) if inner is not None)
        if any(shapes[0][d : d + 1] != (self.pair.n * inner,) for d, inner in axes):
            raise self.refused(f"output '{name}'", "its real elements lie among padded ones")
        return axes

    def _node(self, a: Node, b: Node) -> None:
        for x, y in zip(a.inputs, b.inputs, strict=True):
            if bool(x) != bool(y):
                raise self.refused(f"{a.op} '{a.name}'", "its operands differ")
            if x:
                self.known[x] = self._lengths(x, y)
                self.second[x] = y
        self.second[a.output] = b.output
        try:
            if a.op == "Reshape":
                self._reshaped(a, b)
                return
            if self._like_before(a, b):
                return
            dags = tuple(definition_of(g, n) for g, n in zip(self.graphs, (a, b), strict=True))
            self._defined(a, dags)
        except _Refused as error:
            raise self.refused(f"{a.op} '{a.name}'", str(error)) from None

    def _like_before(self, a: Node, b: Node) -> bool:
        """Take the lengths of the result from an equal node with equal operands, if any."""
        (form_a, names), (form_b, _) = (
            form_of(g, Group([n])) for g, n in zip(self.graphs, (a, b), strict=True)
        )
        number = {name: str(k) for k, name in enumerate(names)}
        operands = []
        for name in names:
            found = self.known[name]
            facts = self.facts.get(name, NONE).renamed(number)
            operands.append((found.layout, tuple(found.values.items()), facts))
        key = form_a, form_b, tuple(operands)
        before = self.done.get(key)
        if before is None:
            self.done[key] = a.output, tuple(names)
            return False
        output, others = before
        if output not in self.known:
            return False
        self.known[a.output] = self.known[output]
        if output in self.facts:
            self.facts[a.output] = self.facts[output].renamed(dict(zip(others, names, strict=True)))
        return True

    def _reshaped(self, a: Node, b: Node) -> None:
        self.known[a.output] = found = self.known[a.inputs[0]]
        shapes = self.graphs[0].shape(a.output), self.graphs[1].shape(b.output)
        if places_of(found.layout, *shapes, self.pair) is None:
            raise _Refused("it joins real and padded places in one dimension")

    def _defined(self, node: Node, dags: tuple[tuple[ComputeDAG, dict[str, str]], ...]) -> None:
        (dag_a, names_a), (dag_b, names_b) = dags
        if [op.name for op in dag_a.ops] != [op.name for op in dag_b.ops]:
            raise _Refused("it is defined in another way for other lengths")
        if any(self.second[n] != names_b.get(own) for own, n in names_a.items()):
            raise _Refused("its operands differ")
        keys = dict(names_a)
        results = dag_a.outputs[0]
        for own in (c.name for c in dag_a.computes):
            keys[own] = node.output if own == results else f"{node.output}:{own}"
        shapes = {
            x.name: (x.tensor.shape, y.tensor.shape)
            for x, y in zip(dag_a.ops, dag_b.ops, strict=True)
        }
        for a, b in zip(dag_a.computes, dag_b.computes, strict=True):
            scope = _Scope(self, node.op, keys, shapes)
            self.known[keys[a.name]] = _lengths_of(a, b, scope)
            one, other = (scope.rows.made_by(op, scope.anywhere) for op in (a, b))
            self.facts[keys[a.name]] = one if one == other else NONE

    def _lengths(self, a: str, b: str) -> Lengths:
        """Lengths of a tensor: a constant must begin with what it is at the shorter length."""
        if a in self.known and self.second.get(a) == b:
            return self.known[a]
        first, second = (g.constants.get(n) for g, n in zip(self.graphs, (a, b), strict=True))
        if first is None or second is None:
            raise self.refused(f"constant '{a}'", "it is none for other lengths")
        found = _of_constant(first, second, self.pair)
        if found is None:
            raise self.refused(f"constant '{a}'", f"its values depend on '{self.dimension}'")
        return found

    def refused(self, what: str, why: str) -> UsageError:
        """The error for a part of the model."""
        return UsageError(
            f"'{self.dimension}' cannot be padded: {what}: {why}", "compile every length"
        )


# --- where lengths are ---------------------------------------------------------------------------


def places_of(layout: tuple[int, ...], a: Shape, b: Shape, pair: Pair) -> Places | None:
    """Where the lengths of a dense tensor of `layout` are in its shapes at both extents."""
    found: list[int | None] = []
    part, done = 0, 1
    if len(a) != len(b):
        return None
    for x, y in zip(a, b, strict=True):
        if x == y:
            found.append(None)
            done *= x
            continue
        outer = layout[part] // done
        if part + 1 == len(layout) or outer * done != layout[part] or x % (outer * pair.n):
            return None
        inner = x // (outer * pair.n)
        if outer * pair.padded * inner != y:
            return None
        found.append(inner)
        part, done = part + 1, inner
    return tuple(found) if (part, done) == (len(layout) - 1, layout[-1]) else None


def layout_of(places: Places, shape: Shape, n: int) -> tuple[int, ...]:
    """The layout of a dense tensor of `shape` with lengths at `places`."""
    parts = [1]
    for extent, inner in zip(shape, places, strict=True):
        if inner is None:
            parts[-1] *= extent
        else:
            parts[-1] *= extent // (n * inner)
            parts.append(inner)
    return tuple(parts)


def _candidates(a: Shape, b: Shape, pair: Pair) -> Iterator[Places]:
    """All places where a tensor can have lengths, given its shapes at both extents."""
    options: list[list[int | None]] = []
    for x, y in zip(a, b, strict=True):
        if x == y:
            options.append([None])
            continue
        if x % pair.n or x // pair.n * pair.padded != y:
            raise _Refused(f"it makes {y} of {pair.padded} places, and {x} of {pair.n}")
        whole = x // pair.n
        options.append([k for k in range(whole, 0, -1) if whole % k == 0])
    if sum(o != [None] for o in options) > _MOST_AXES:
        raise _Refused("too many of its dimensions depend on the length")
    yield from itertools.product(*options)


def _of_constant(a: Array, b: Array, pair: Pair) -> Lengths | None:
    """Lengths of a constant at both extents; None where one is no beginning of the other."""
    if a.shape == b.shape:
        same = a is b or a.tobytes() == b.tobytes()
        return Lengths((a.size,), {(): _spread_of(b)}) if same and a.dtype == b.dtype else None
    if a.ndim != b.ndim or a.dtype != b.dtype:
        return None
    try:
        for places in _candidates(a.shape, b.shape, pair):
            whole = _with_lengths_apart(b, places, pair.padded)
            part = _with_lengths_apart(a, places, pair.n)
            layout = layout_of(places, a.shape, pair.n)
            axes = tuple(range(1, 2 * len(layout) - 1, 2))
            at = [slice(pair.n) if d in axes else slice(None) for d in range(whole.ndim)]
            if np.ascontiguousarray(whole[tuple(at)]).tobytes() == part.tobytes():
                return Lengths(layout, _values_in_regions(whole, axes, pair))
    except _Refused:
        return None
    return None


def _with_lengths_apart(array: Array, places: Places, extent: int) -> Array:
    """A constant as (layout[0], extent, layout[1], extent, …)."""
    parts = layout_of(places, array.shape, extent)
    shape = [x for part in parts for x in (part, extent)][:-1]
    return np.ascontiguousarray(array).reshape(shape)


def _values_in_regions(array: Array, axes: tuple[int, ...], pair: Pair) -> dict[Regions, Values]:
    """Values of a constant in each combination of regions, whatever the number of real places."""
    others = tuple(d for d in range(array.ndim) if d not in axes)
    is_float = array.dtype.kind in "fV"
    has_nan: Array = np.asarray(np.isnan(array).any(axis=others)) if is_float else np.zeros(1, bool)
    numbers = array.astype(np.float64) if array.dtype.kind == "V" else array
    low, high = numbers.min(axis=others), numbers.max(axis=others)
    found: dict[Regions, Values] = {}
    for regions in itertools.product(REGIONS, repeat=len(axes)):
        where = _where(regions, array.shape[axes[0]], pair.anchor)
        if where.any():
            nan = is_float and bool(has_nan[where].any())
            least, most = float(low[where].min()), float(high[where].max())
            found[regions] = Values(-math.inf, math.inf, True) if nan else Values(least, most)
    return found


def _where(regions: Regions, extent: int, anchor: Anchor) -> Array:
    """The indices that can be in these regions together, for some number of real places."""
    grid = np.indices((extent,) * len(regions))
    found: Array = np.zeros(grid.shape[1:], bool)
    for n in range(1, extent):
        fits = np.ones_like(found)
        for region, index in zip(regions, grid, strict=True):
            low, high = Pair(n, extent, anchor).range_of(region)
            fits &= (low <= index) & (index <= high)
        found |= fits
    return found


def _spread_of(array: Array) -> Values:
    """Bounds of a constant, those of a long one rounded up to powers of two, so that many agree."""
    if not array.size:
        return Values(0, 0)
    low, high = float(array.min()), float(array.max())
    if math.isnan(low) or math.isnan(high):
        return Values(-math.inf, math.inf, True)
    most = max(abs(low), abs(high))
    if array.size <= _FEW or not 0 < most < 1 << 30:
        return Values(low, high)
    power = 2.0 ** math.ceil(math.log2(most))
    return Values(-power if low < 0 else 0.0, power if high > 0 else 0.0)


_FEW = 64


# --- one computation ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scope:
    """What is known of the operands of one node, by their names in its definition."""

    proof: _Proof
    op: str
    keys: Mapping[str, str]
    shapes: Mapping[str, tuple[Shape, Shape]]

    @property
    def pair(self) -> Pair:
        return self.proof.pair

    def lengths(self, name: str) -> Lengths:
        return self.proof.known[self.keys[name]]

    def places(self, name: str) -> Places:
        found = places_of(self.lengths(name).layout, *self.shapes[name], self.pair)
        if found is None:
            raise _Refused("it joins real and padded places in one dimension")
        return found

    @property
    def rows(self) -> Rows:
        return Rows(self.keys, self.proof.facts)

    def anywhere(self, e: Expr) -> Values:
        """Values of an expression, whatever its indices."""

        def read(x: Expr) -> Values | None:
            if isinstance(x, Load):
                return join(self.lengths(x.tensor.name).values.values())
            return ANYTHING if isinstance(x, Var) else None

        return values_of(e, read)


def _lengths_of(a: Compute, b: Compute, scope: _Scope) -> Lengths:
    """Lengths of the result of a computation, if its real elements are the same in both graphs."""
    n_own = len(a.axes)
    shape = tuple(x.extent for x in (*a.axes, *a.reduce_axes))
    other = tuple(x.extent for x in (*b.axes, *b.reduce_axes))
    reasons: list[str] = []
    for places in _candidates(shape, other, scope.pair):
        try:
            one, longer = (_View(op, places, scope, n) for n, op in enumerate((a, b)))
            if not (one.form() == longer.form() or one.form(True) == longer.form(True)):
                raise _Refused("a real element is computed in another way at another length")
            own = sum(p is not None for p in places[:n_own])
            longer.require_neutral(own, one)
            values = {
                regions: (longer if "padded" in regions else one).value(regions)
                for regions in itertools.product(REGIONS, repeat=own)
            }
            return Lengths(layout_of(places[:n_own], a.tensor.shape, scope.pair.n), values)
        except _Refused as error:
            reasons.append(str(error))
    raise _Refused(reasons[0])


class _View:
    """A computation at one extent, with lengths as variables of their own."""

    def __init__(self, op: Compute, places: Places, scope: _Scope, graph: int) -> None:
        self.op, self.places, self.scope, self.graph = op, places, scope, graph
        self.extent = (scope.pair.n, scope.pair.padded)[graph]
        self.lengths: list[str] = []
        """Variables that are lengths, in the order of axes; those of the result first."""
        self.ranges: dict[str, tuple[int, int]] = {}
        self.extents: list[object] = []
        self.counts: list[int] = []
        """How many elements of each reduced axis are at one place, or of one without places."""
        split: dict[str, Expr] = {}
        for axis, inner in zip((*op.axes, *op.reduce_axes), places, strict=True):
            if inner is None:
                self.ranges[axis.name] = 0, axis.extent - 1
                self.extents.append(axis.extent)
                self.counts.append(axis.extent)
                continue
            outer = axis.extent // (self.extent * inner)
            self.extents.append((outer, inner))
            self.counts.append(outer * inner)
            if outer * inner == 1:
                self.lengths.append(axis.name)
                continue
            own, high, low = f"{axis.name}@", f"{axis.name}>", f"{axis.name}<"
            self.lengths.append(own)
            self.ranges |= {high: (0, outer - 1), low: (0, inner - 1)}
            index = mul(Var(own), idx(inner))
            if outer > 1:
                index = add(mul(Var(high), idx(self.extent * inner)), index)
            split[axis.name] = index if inner == 1 else add(index, Var(low))
        self.split = split

    @cached_property
    def body(self) -> Expr:
        body = self.op.body
        return substitute(body.body if isinstance(body, Reduce) else body, self.split)

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(
            a if a.limit is None else replace(a, limit=substitute(a.limit, self.split))
            for a in self.op.reduce_axes
        )

    def regioned(self, regions: Iterable[Region]) -> dict[str, tuple[int, int]]:
        """Ranges of all variables where lengths are in these regions."""
        pairs = zip(self.lengths, regions, strict=True)
        return self.ranges | {name: self.scope.pair.range_of(r) for name, r in pairs}

    # --- the same at both extents ---

    def form(self, by_values: bool = False) -> object:
        """What a real element is, the same for equal ones."""
        body = self.op.body
        real: Regions = (_REAL,) * len(self.lengths)
        ranges = self.regioned(real)
        reduced: tuple[object, ...] = ()
        if isinstance(body, Reduce):
            limits = [a.limit and print_expr(self._apart(a.limit, ranges)) for a in self.axes]
            reduced = (body.op, [a.name for a in self.axes], limits)
        e = self.body
        if by_values:
            e = self._decided(e, real)
        return self.op.tensor.dtype, self.extents, reduced, print_expr(self._apart(e, ranges))

    def _decided(self, e: Expr, real: Regions) -> Expr:
        """`e` with what the values at real places decide, and the first of extrema where it is."""
        evaluate = _Evaluator(self, dict(zip(self.lengths, real, strict=True)))

        def known(x: Expr) -> Expr | None:
            if isinstance(x, Select):
                cond = evaluate.value(x.cond)
                if cond.low == cond.high:
                    return map_expr(x.a if cond.low else x.b, known)
            if isinstance(x, Load):
                indices = (self._within(x, d, known) for d in range(len(x.indices)))
                return Load(x.tensor, tuple(indices))
            return None

        e = map_expr(e, known)
        return self._first_of(e)

    def _within(self, x: Load, d: int, known: Any) -> Expr:
        """The index of a load. Those that a model gives are inside of the dimension."""
        index = x.indices[d]
        inner = _unclamped(index, x.tensor.shape[d]) if self.scope.op in _GATHERS else None
        if self.scope.places(x.tensor.name)[d] is not None and inner is not None:
            index = inner
        return map_expr(index, known)

    def _first_of(self, e: Expr) -> Expr:
        """min(r where x[r] is the maximum, else the extent): the extent does not occur."""
        body = self.op.body
        if not isinstance(body, Reduce) or body.op != "min" or len(self.axes) != 1:
            return e
        axis = self.axes[0]
        match e:
            case Select(cond=cond, a=Var(name=name), b=Const(value=value)) if (
                name == axis.name and value == axis.extent and self._is_reached(cond, name)
            ):
                return Select(cond, Var(name), Var("∞"))
        return e

    def _is_reached(self, cond: Expr, name: str) -> bool:
        """Whether `x[r] == max x` holds for some r."""
        if isinstance(cond, Binary) and cond.op == "or":
            return self._is_reached(cond.a, name) or self._is_reached(cond.b, name)
        match cond:
            case Compare(op="eq", a=Load() as x, b=Load() as top):
                found = self.scope.rows.peak(Binary("sub", x, top), self.op)
                return found is not None and found[0] == {name}
        return False

    def _apart(self, e: Expr, ranges: Mapping[str, tuple[int, int]]) -> Expr:
        """`e` with the places of every load apart from its other indices."""
        return simplify(self._loads(simplify(e, ranges), ranges), ranges)

    def _loads(self, e: Expr, ranges: Mapping[str, tuple[int, int]]) -> Expr:
        parts = tuple(self._loads(c, ranges) for c in children(e))
        if not isinstance(e, Load):
            return rebuild(e, parts) if parts else e
        indices: list[Expr] = []
        places = self.scope.places(e.tensor.name)
        for inner, extent, index in zip(places, e.tensor.shape, parts, strict=True):
            found = [index] if inner is None else self._digits(index, inner, extent, ranges)
            indices += [simplify(i, ranges) for i in found]
        shape = (self.extent,) * len(indices)
        return Load(Tensor(e.tensor.name, shape, e.tensor.dtype), tuple(indices))

    def _digits(
        self, index: Expr, inner: int, extent: int, ranges: Mapping[str, tuple[int, int]]
    ) -> list[Expr]:
        """An index as `(outer · n + place) · inner + rest`: outer, place and rest."""
        whole = self.extent * inner
        if extent == whole and inner == 1:
            return [index]
        form = linear(index, ranges)
        zero: Expr = idx(0)
        parts = [zero, zero, zero]
        for atom, c in form.terms:
            at, by = (0, whole) if c % whole == 0 else (1, inner) if c % inner == 0 else (2, 1)
            parts[at] = add(parts[at], mul(atom, idx(c // by)))
        left = form.const % whole
        const = (form.const // whole, left // inner, left % inner)
        outer, place, rest = (add(p, idx(c)) for p, c in zip(parts, const, strict=True))
        for part, most in ((place, self.extent), (rest, inner)):
            try:
                low, high = bounds(part, ranges)
            except KeyError:
                low, high = -1, most
            if low < 0 or high >= most:
                raise _Refused("it mixes real and padded places")
        return [outer, place, rest]

    # --- values in regions ---

    def value(self, regions: Regions) -> Values:
        """Values of the result where its lengths are in these regions."""
        body = self.op.body
        if not isinstance(body, Reduce):
            return self._of_body(regions)
        parts = list(self.terms(regions))
        dtype = dtype_of(body)
        if any(a.limit is not None for a in self.axes):
            some = [(n, join((v, Values(0, 0)))) for n, v in parts]
            return total(some, dtype) if body.op == "sum" else ANYTHING
        match body.op:
            case "sum":
                found = total(parts, dtype)
            case "prod":
                found = product(parts, dtype)
            case "max":
                every = [v for n, v in parts if n]
                found = replace(join(every), low=max(v.low for v in every))
            case _:
                every = [v for n, v in parts if n]
                found = replace(join(every), high=min(v.high for v in every))
        peak = self.scope.rows.peak(body.body, self.op)
        names = {a.name for a in self.axes}
        is_positive = body.op == "sum" and all(v.low >= 0 for _, v in parts)
        if is_positive and peak is not None and peak[0] <= names:
            found = replace(found, low=max(found.low, peak[1]))
        return found

    def _of_body(self, regions: Regions) -> Values:
        evaluate = _Evaluator(self, dict(zip(self.lengths, regions, strict=True)))
        return evaluate.value(simplify(self.body, self.regioned(regions)))

    def terms(self, regions: Regions) -> Iterator[tuple[int, Values]]:
        """The terms of a reduction: how many there are in each combination of regions."""
        n_own = len(self.op.axes)
        reduced = [p is not None for p in self.places[n_own:]]
        others = math.prod(self.counts[n_own:])
        n_padded = self.extent - self.scope.pair.n
        size = {"anchor": 1, "real": self.scope.pair.n - 1, "padded": n_padded}
        for combination in itertools.product(REGIONS, repeat=sum(reduced)):
            if "padded" in combination and not n_padded:
                continue
            n = others * math.prod(size[r] for r in combination)
            yield n, self._of_body((*regions, *combination))

    def require_neutral(self, n_own: int, one: _View) -> None:
        """Raise where a padded term of a reduction can change a real element."""
        body = self.op.body
        if not isinstance(body, Reduce) or len(self.lengths) == n_own:
            return
        real: Regions = (_REAL,) * n_own
        result = one.value(real)
        for combination in itertools.product(REGIONS, repeat=len(self.lengths) - n_own):
            if "padded" not in combination or self._is_beyond(combination, real):
                continue
            term = self._of_body((*real, *combination))
            if not self._is_neutral(body.op, term, result):
                raise _Refused(_leak(body.op, term))

    def _is_neutral(self, op: str, term: Values, result: Values) -> bool:
        if op in ("sum", "prod"):
            return term.is_only(0 if op == "sum" else 1)
        if op == "min" and self._first_of(self.body) != self.body:
            return True
        if term.has_nan:
            return False
        return term.high <= result.low if op == "max" else term.low >= result.high

    def _is_beyond(self, combination: Regions, real: Regions) -> bool:
        """Whether all these terms are behind the limit of a ragged axis."""
        names = self.lengths[len(real) :]
        for name, region in zip(names, combination, strict=True):
            axis = next((a for a in self.axes if a.name == name), None)
            if region != "padded" or axis is None or axis.limit is None:
                continue
            regions = dict(zip(self.lengths, (*real, *combination), strict=True))
            limit = _Evaluator(self, regions).value(axis.limit)
            if not limit.has_nan and limit.high <= self.scope.pair.n:
                return True
        return False


def _leak(op: str, term: Values) -> str:
    spread = "" if term.is_finite else ", or no number"
    where = f"from {term.low:.4g} to {term.high:.4g}{spread}"
    return f"a {op} over all places takes padded ones too, which are {where}"


_GATHERS = ("Gather", "GatherElements", "GatherND")
"""An index outside of a dimension is an error of their data: it is clamped for safety alone."""


def _unclamped(index: Expr, extent: int) -> Expr | None:
    """x of `max(0, min(x, extent - 1))`."""
    match index:
        case Binary(op="max", a=Const(value=0), b=Binary(op="min", a=x, b=Const(value=most))) if (
            most == extent - 1
        ):
            return x
    return None


class _Evaluator:
    """Values of expressions of a computation whose lengths are in given regions."""

    def __init__(self, view: _View, regions: Mapping[str, Region]) -> None:
        self.view, self.regions = view, regions
        self.pair = view.scope.pair
        self.ranges = view.ranges | {n: self.pair.range_of(r) for n, r in regions.items()}

    def value(self, e: Expr) -> Values:
        return values_of(e, self.read)

    def read(self, e: Expr) -> Values | None:
        """Values of variables, loads, differences from a maximum, and what is divided by a norm."""
        match e:
            case Var(name=name):
                low, high = self.ranges[name]
                return Values(low, high)
            case Load():
                return self._load(e)
            case Binary(op="sub", a=Load() as x, b=Load() as top):
                if self.view.scope.rows.below_maximum(x, top) is not None:
                    plain = self._plain(e)
                    return replace(plain, low=min(plain.low, 0.0), high=min(plain.high, 0.0))
            case Binary(op="mul" | "div"):
                scope = self.view.scope
                most = scope.rows.normalised(e, scope.anywhere)
                if most is not None:
                    plain = self._plain(e)
                    return replace(plain, low=max(plain.low, -most), high=min(plain.high, most))
        return None

    def _plain(self, e: Expr) -> Values:
        """Values of `e` by those of its operands."""
        return values_of(e, lambda x: None if x is e else self.read(x))

    def _load(self, e: Load) -> Values:
        scope = self.view.scope
        lengths, places = scope.lengths(e.tensor.name), scope.places(e.tensor.name)
        options: list[list[Region]] = []
        for d, (inner, index) in enumerate(zip(places, e.indices, strict=True)):
            self._require_inside(index, e.tensor.shape[d])
            if inner is not None:
                options.append(self._regions_of(index, inner, e.tensor.shape[d]))
        every = [lengths.values[r] for r in itertools.product(*options) if r in lengths.values]
        return join(every)

    def _regions_of(self, index: Expr, inner: int, extent: int) -> list[Region]:
        """Where a place can be."""
        place = self.view._digits(index, inner, extent, self.ranges)
        at = place[0] if len(place) == 1 else place[1]
        if isinstance(at, Var) and at.name in self.regions:
            return [self.regions[at.name]]
        found = self.value(at)
        if self.view.graph == 0:
            found = Values(max(0, found.low), min(self.pair.n - 1, found.high))
        first, last = self.pair.range_of("anchor")
        if first == found.low == found.high == last:
            return ["anchor"]
        if found.high < self.pair.n:
            return ["real"]
        return ["padded"] if found.low >= self.pair.n else ["real", "padded"]

    def _require_inside(self, index: Expr, extent: int) -> None:
        """Raise where padded places would read outside of a table."""
        inner = _unclamped(index, extent)
        if inner is None or "padded" not in self.regions.values():
            return
        at = self.value(inner)
        if at.low < 0 or at.high >= extent:
            raise _Refused(f"padded places can read outside of {extent} rows")
