"""Tasks whose rows follow a number of the call, each with its static form."""

from __future__ import annotations

from autotune.te.dag import ComputeDAG, Placeholder, compute, placeholder
from autotune.te.expr import (
    INDEX,
    Axis,
    Expr,
    Reduce,
    call,
    cast,
    compare,
    div,
    f32,
    idx,
    maximum,
    mul,
    select,
    sub,
)
from autotune.te.expr import add as plus
from autotune.te.reductions import identity

NUMBER = "n"


def number() -> Placeholder:
    """The number, as a network hands it to a task."""
    return placeholder(NUMBER, (1,), "int64")


def length(of: Placeholder, factor: int = 1, offset: int = 0) -> Expr:
    """factor·n + offset as an index."""
    return plus(mul(cast(INDEX, of.tensor[idx(0)]), idx(factor)), idx(offset))


def product(rows: int, depth: int, width: int, follows: bool = True) -> ComputeDAG:
    """relu(x · w + b) of rows that are as many as the number says; not `follows`: of all."""
    n = number()
    i = Axis("i", rows, length(n)) if follows else Axis("i", rows)
    j, k = Axis("j", width), Axis("k", depth)
    x = placeholder("x", (rows, depth))
    w = placeholder("w", (depth, width), constant=True)
    b = placeholder("b", (width,), constant=True)
    term = mul(x.tensor[i.var, k.var], w.tensor[k.var, j.var])
    c = compute("c", (i, j), Reduce("sum", term, (k,)))
    y = compute("y", (i, j), maximum(plus(c.tensor[i.var, j.var], b.tensor[j.var]), f32(0.0)))
    inputs = (x, w, b, n) if follows else (x, w, b)
    return ComputeDAG((*inputs, c, y), ("y",))


def softmax(rows: int, longest: int, follows: bool = True) -> ComputeDAG:
    """Softmax of rows that are as long as the number says."""
    n = number()
    i = Axis("i", rows)
    j = Axis("j", longest, length(n)) if follows else Axis("j", longest)
    x = placeholder("x", (rows, longest))

    def fold(op: str, name: str, e: Expr) -> Expr:
        term = select(compare("lt", Axis(name, 1).var, length(n)), e, identity(op, "float32"))
        return Reduce(op, term if follows else e, (Axis(name, longest),))

    k, m = Axis("k", longest), Axis("m", longest)
    top = compute("top", (i,), fold("max", "k", x.tensor[i.var, k.var]))
    e = compute("e", (i, j), call("exp", sub(x.tensor[i.var, j.var], top.tensor[i.var])))
    total = compute("total", (i,), fold("sum", "m", e.tensor[i.var, m.var]))
    y = compute("y", (i, j), div(e.tensor[i.var, j.var], total.tensor[i.var]))
    inputs = (x, n) if follows else (x,)
    return ComputeDAG((*inputs, top, e, total, y), ("y",))
