"""Random tasks whose axes follow numbers, beside the static tasks of given numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.te.dag import Compute, ComputeDAG, Op, Placeholder, compute, placeholder
from autotune.te.expr import (
    INDEX,
    Axis,
    Cast,
    Expr,
    Reduce,
    Tensor,
    add,
    both,
    call,
    cast,
    compare,
    div,
    f32,
    floordiv,
    idx,
    maximum,
    mul,
    select,
    sub,
)
from autotune.te.reductions import identity

Array = NDArray[Any]
NAMES = ("m", "n")
MOST = {"m": 9, "n": 21}


@dataclass
class Sizes:
    """The extents of a task: those of `at`, or where it is None of every number up to `MOST`."""

    at: Mapping[str, int] | None
    ops: list[Op] = field(default_factory=list)

    def number(self, name: str) -> Tensor:
        """The number of a call."""
        found = next((op.tensor for op in self.ops if op.name == name), None)
        return found or self.given(name, (1,), INDEX)

    def given(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> Tensor:
        """An input."""
        self.ops.append(placeholder(name, shape, dtype))
        return self.ops[-1].tensor

    def weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A constant."""
        self.ops.append(placeholder(name, shape, constant=True))
        return self.ops[-1].tensor

    def size(self, name: str, factor: int = 1, offset: int = 0) -> int:
        """Memory along a dimension."""
        return factor * (MOST if self.at is None else self.at)[name] + offset

    def value(self, name: str, factor: int = 1, offset: int = 0) -> Expr:
        """The extent as an index."""
        if self.at is not None:
            return idx(self.size(name, factor, offset))
        return add(mul(self.number(name)[0], idx(factor)), idx(offset))

    def axis(self, axis: str, name: str, factor: int = 1, offset: int = 0) -> Axis:
        """A spatial axis."""
        limit = None if self.at is not None else self.value(name, factor, offset)
        return Axis(axis, self.size(name, factor, offset), limit)

    def reduced(self, op: str, axis: str, name: str, term: Callable[[Expr], Expr]) -> Reduce:
        """A reduction of what counts."""
        k = Axis(axis, self.size(name))
        value = term(k.var)
        if self.at is None:
            value = select(compare("lt", k.var, self.value(name)), value, identity(op))
        return Reduce(op, value, (k,))

    def compute(self, name: str, axes: tuple[Axis, ...], body: Expr) -> Tensor:
        """A computation."""
        self.ops.append(compute(name, axes, body))
        return self.ops[-1].tensor

    def dag(self, *outputs: Tensor) -> ComputeDAG:
        """The task."""
        inputs = [op for op in self.ops if isinstance(op, Placeholder)]
        made = [op for op in self.ops if isinstance(op, Compute)]
        return ComputeDAG((*inputs, *made), tuple(t.name for t in outputs))


Task = Callable[[Sizes, Random], ComputeDAG]


def elementwise(s: Sizes, rng: Random) -> ComputeDAG:
    """Two lengths, in any order, and what is between."""
    c = rng.choice((3, 8, 17))
    i, j, k = s.axis("i", "m"), s.axis("j", "n"), Axis("k", c)
    axes = tuple(rng.sample((i, j, k), 3))
    x = s.given("x", tuple(a.extent for a in axes))
    y = s.given("y", (j.extent,))
    a = s.compute("a", axes, call("tanh", x[axes]))
    return s.dag(s.compute("b", axes, mul(add(a[axes], y[j]), x[axes])))


def product(s: Sizes, rng: Random) -> ComputeDAG:
    """Rows that follow a number times weights, with a consumer."""
    rows, columns, terms = s.axis("i", "n"), Axis("j", rng.choice((5, 16, 40))), Axis("k", 12)
    x = s.given("x", (rows.extent, 12))
    w, bias = s.weight("w", (12, columns.extent)), s.weight("b", (columns.extent,))
    p = s.compute(
        "p", (rows, columns), Reduce("sum", mul(x[rows, terms], w[terms, columns]), (terms,))
    )
    made = maximum(add(p[rows, columns], bias[columns]), f32(0.0))
    return s.dag(s.compute("y", (rows, columns), made))


def scores(s: Sizes, rng: Random) -> ComputeDAG:
    """Softmax of products over a length, then a sum over it: two lengths, attention."""
    h, d = Axis("h", 2), 4
    i, j = s.axis("i", "m"), s.axis("j", "n")
    q, k, v = (s.given(x, (2, s.size(n), d)) for x, n in (("q", "m"), ("k", "n"), ("v", "n")))
    e, c = Axis("e", d), Axis("c", d)
    a = s.compute("a", (h, i, j), Reduce("sum", mul(q[h, i, e], k[h, j, e]), (e,)))
    top = s.compute("top", (h, i), s.reduced("max", "t", "n", lambda t: a[h, i, t]))
    power = s.compute("power", (h, i, j), call("exp", sub(a[h, i, j], top[h, i])))
    total = s.compute("total", (h, i), s.reduced("sum", "t", "n", lambda t: power[h, i, t]))
    share = s.compute("share", (h, i, j), div(power[h, i, j], total[h, i]))
    out = s.reduced("sum", "t", "n", lambda t: mul(share[h, i, t], v[h, t, c]))
    return s.dag(s.compute("y", (h, i, c), out))


def width(s: Sizes, rng: Random) -> ComputeDAG:
    """A padded convolution along a width that is a multiple of a number, and its pooling."""
    factor, stride = rng.choice((1, 2)), rng.choice((1, 2))
    h, o = Axis("h", 4), Axis("o", rng.choice((3, 16)))
    inside = s.value("n", factor)
    x, k = s.given("x", (4, s.size("n", factor), 3)), s.weight("k", (3, 3, o.extent))
    r, c = Axis("r", 3), Axis("c", 3)
    w = s.axis("w", "n", factor)
    at = sub(add(w.var, r.var), idx(1))
    known = both(compare("ge", at, idx(0)), compare("lt", at, inside))
    if rng.random() < 0.5:  # the padding is a stage of its own
        wide = s.axis("p", "n", factor, 2)
        place = sub(wide.var, idx(1))
        inner = both(compare("ge", place, idx(0)), compare("lt", place, inside))
        pad = s.compute("pad", (h, wide, c), select(inner, x[h, place, c], f32(0.0)))
        term: Expr = pad[h, add(w.var, r.var), c]
    else:
        term = select(known, x[h, at, c], f32(0.0))
    y = s.compute("y", (h, w, o), Reduce("sum", mul(term, k[r, c, o]), (r, c)))
    if stride == 1:
        return s.dag(s.compute("z", (h, w, o), maximum(y[h, w, o], f32(0.0))))
    half = s.axis("w", "n") if factor == 2 else None
    if half is None:
        return s.dag(y)
    pair = Axis("q", 2)
    pooled = Reduce("max", y[h, add(mul(half.var, idx(2)), pair.var), o], (pair,))
    return s.dag(s.compute("z", (h, half, o), pooled))


def filtered(s: Sizes, rng: Random) -> ComputeDAG:
    """A convolution that minimal filtering computes, over what counts alone or its padding."""
    h, o, c, r, q = Axis("h", 4), Axis("o", 16), Axis("c", 4), Axis("r", 3), Axis("q", 3)
    k, w = s.weight("k", (3, 3, 4, 16)), s.axis("w", "n")
    if rng.random() < 0.5:
        x = s.given("x", (6, s.size("n", 1, 2), 4))
    else:
        rows, wide, given = Axis("g", 6), s.axis("p", "n", 1, 2), s.given("x", (6, s.size("n"), 4))
        place = sub(wide.var, idx(1))
        inner = both(compare("ge", place, idx(0)), compare("lt", place, s.value("n")))
        padded = select(inner, given[rows, place, c], f32(0.0))
        x = s.compute("pad", (rows, wide, c), padded)
    term = mul(x[add(h.var, r.var), add(w.var, q.var), c], k[r, q, c, o])
    y = s.compute("y", (h, w, o), Reduce("sum", term, (r, q, c)))
    return s.dag(s.compute("z", (h, w, o), maximum(y[h, w, o], f32(0.0))))


def gathered(s: Sizes, rng: Random) -> ComputeDAG:
    """Rows at places that data tell, which are anything behind the length; integer quotients."""
    i, c = s.axis("i", "n"), Axis("c", rng.choice((4, 16)))
    table, at = s.weight("table", (7, c.extent)), s.given("at", (i.extent,), "int64")
    by = s.given("by", (i.extent,), "int32")
    rows = s.compute("rows", (i, c), table[at[i], c])
    whole = s.compute("whole", (i,), floordiv(Cast("int32", at[i]), by[i]))
    shift = s.given("shift", (c.extent,))
    y = s.compute("y", (i, c), add(rows[i, c], mul(cast("float32", whole[i]), shift[c])))
    return s.dag(y)


def joined(s: Sizes, rng: Random) -> ComputeDAG:
    """What comes behind a length, and the last place of it."""
    i, c = s.axis("i", "n", 1, 3), Axis("c", rng.choice((1, 5)))
    x, y = s.given("x", (s.size("n"), c.extent)), s.given("y", (3, c.extent))
    first = s.value("n")
    own = select(compare("lt", i.var, first), x[i, c], y[sub(i.var, first), c])
    z = s.compute("z", (i, c), own)
    last = s.compute("last", (c,), add(x[sub(first, idx(1)), c], z[first, c]))
    mean = s.reduced("sum", "k", "n", lambda k: div(x[k, c], cast("float32", first)))
    return s.dag(z, last, s.compute("mean", (c,), mean))


def moved(s: Sizes, rng: Random) -> ComputeDAG:
    """A transpose and a reversal of the length, then sums of columns."""
    i, j = s.axis("i", "n"), s.axis("j", "m")
    x = s.given("x", (j.extent, i.extent))
    y = s.compute("y", (i, j), x[j, sub(s.value("n", 1, -1), i.var)])
    total = s.reduced("sum", "t", "m", lambda t: y[i, t])
    return s.dag(y, s.compute("sums", (i,), total))


TASKS: Mapping[str, Task] = {
    t.__name__: t for t in (elementwise, product, scores, width, filtered, gathered, joined, moved)
}


def values(
    whole: ComputeDAG, at: Mapping[str, int], static: ComputeDAG, seed: int
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs of the task of all numbers and of that of these: garbage behind the lengths."""
    rng = np.random.default_rng(seed)
    wide: dict[str, Array] = {}
    dense: dict[str, Array] = {}
    for p in whole.placeholders:
        shape, dtype = p.tensor.shape, np.dtype(p.tensor.dtype)
        if p.name in MOST:
            wide[p.name] = np.array([at[p.name]])
            continue
        part = (
            static[p.name].tensor.shape
            if p.name in {q.name for q in static.placeholders}
            else shape
        )
        if dtype.kind == "f":
            known, garbage = rng.standard_normal(part).astype(dtype), dtype.type(np.nan)
        else:
            known = rng.integers(1, 7, part).astype(dtype)
            garbage = rng.choice([0, np.iinfo(dtype).min, np.iinfo(dtype).max])
        wide[p.name] = np.full(shape, garbage, dtype)
        wide[p.name][tuple(map(slice, part))] = known
        dense[p.name] = known
    return wide, dense
