"""Small computations of every shape that tasks have, for tests of the compiler core."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from autotune.te.collapse import collapse
from autotune.te.dag import ComputeDAG, compute, placeholder
from autotune.te.expr import (
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    Reduce,
    Select,
    Var,
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
    minimum,
    mod,
    mul,
    select,
    sub,
)
from autotune.te.reductions import identity


def inside(e: Expr, n: int) -> Expr:
    """0 ≤ e < n."""
    return both(compare("ge", e, idx(0)), compare("lt", e, idx(n)))


def gemm(m: int = 7, n: int = 19, k: int = 6) -> ComputeDAG:
    """relu(a·b + bias)."""
    i, j, r = Axis("i", m), Axis("j", n), Axis("k", k)
    a, b = placeholder("a", (m, k)), placeholder("b", (k, n), constant=True)
    bias = placeholder("bias", (n,), constant=True)
    c = compute("c", (i, j), Reduce("sum", mul(a.tensor[i, r], b.tensor[r, j]), (r,)))
    d = compute("d", (i, j), add(c.tensor[i, j], bias.tensor[j]))
    e = compute("e", (i, j), maximum(f32(0), d.tensor[i, j]))
    return ComputeDAG((a, b, bias, c, d, e), ("e",))


def conv(
    h: int = 6,
    w: int = 7,
    ic: int = 3,
    oc: int = 10,
    k: int = 3,
    stride: int = 1,
    channels_first: bool = False,
    dilation: int = 1,
    dtype: str = "float32",
) -> ComputeDAG:
    """relu(conv(pad(x)) + bias), channels innermost; data and weights of `dtype`."""
    size = (k - 1) * dilation + 1
    p = size // 2
    oh, ow = (h + 2 * p - size) // stride + 1, (w + 2 * p - size) // stride + 1
    y, x, o = Axis("h", oh), Axis("w", ow), Axis("o", oc)
    kh, kw, c = Axis("kh", k), Axis("kw", k), Axis("c", ic)
    image = placeholder("x", (ic, h, w) if channels_first else (h, w, ic), dtype)
    weight = placeholder("weight", (k, k, ic, oc), dtype, constant=True)
    bias = placeholder("bias", (oc,), constant=True)
    ph, pw = Axis("h", (oh - 1) * stride + size), Axis("w", (ow - 1) * stride + size)
    pc = Axis("c", ic)
    row, col = sub(ph.var, idx(p)), sub(pw.var, idx(p))
    at = (pc, row, col) if channels_first else (row, col, pc)
    zero = identity("sum", dtype)
    value = select(both(inside(row, h), inside(col, w)), image.tensor[at], zero)
    pad = compute("pad", (ph, pw, pc), value)
    row, col = (
        add(mul(i.var, idx(stride)), mul(t.var, idx(dilation))) for i, t in ((y, kh), (x, kw))
    )
    load, factor = pad.tensor[row, col, c], weight.tensor[kh, kw, c, o]
    product = mul(cast("float32", load), cast("float32", factor))
    out = compute("conv", (y, x, o), Reduce("sum", product, (kh, kw, c)))
    biased = compute("biased", (y, x, o), add(out.tensor[y, x, o], bias.tensor[o]))
    relu = compute("relu", (y, x, o), maximum(f32(0), biased.tensor[y, x, o]))
    return ComputeDAG((image, weight, bias, pad, out, biased, relu), ("relu",))


def depthwise(n: int = 6, c: int = 11) -> ComputeDAG:
    """A 3×3 filter per channel, stride 2, no padding, plus a residual."""
    out = (n - 3) // 2 + 1
    y, x, ch, kh, kw = Axis("h", out), Axis("w", out), Axis("c", c), Axis("kh", 3), Axis("kw", 3)
    image, weight = placeholder("x", (n, n, c)), placeholder("weight", (3, 3, c), constant=True)
    other = placeholder("other", (out, out, c))
    at = (add(mul(y.var, idx(2)), kh.var), add(mul(x.var, idx(2)), kw.var), ch)
    body = Reduce("sum", mul(image.tensor[at], weight.tensor[kh, kw, ch]), (kh, kw))
    conv_ = compute("conv", (y, x, ch), body)
    sum_ = compute("sum", (y, x, ch), add(conv_.tensor[y, x, ch], other.tensor[y, x, ch]))
    return ComputeDAG((image, weight, other, conv_, sum_), ("sum",))


def grouped(groups: int = 2, n: int = 3, ic: int = 3, oc: int = 5) -> ComputeDAG:
    """1×2 convolution in groups: five loops outside, weights of five dimensions."""
    y, x, g, o = Axis("h", n), Axis("w", n), Axis("g", groups), Axis("o", oc)
    kh, kw, c = Axis("kh", 1), Axis("kw", 2), Axis("c", ic)
    image = placeholder("x", (n, n + 1, groups, ic))
    weight = placeholder("weight", (1, 2, groups, ic, oc), constant=True)
    load = image.tensor[add(y.var, kh.var), add(x.var, kw.var), g, c]
    body = Reduce("sum", mul(load, weight.tensor[kh, kw, g, c, o]), (kh, kw, c))
    return ComputeDAG((image, weight, compute("conv", (y, x, g, o), body)), ("conv",))


def max_pool(n: int = 7, c: int = 6) -> ComputeDAG:
    """3×3 maximum, stride 2, padded with -inf: every load is guarded."""
    out = (n + 2 - 3) // 2 + 1
    y, x, ch, kh, kw = Axis("h", out), Axis("w", out), Axis("c", c), Axis("kh", 3), Axis("kw", 3)
    image = placeholder("x", (n, n, c))
    scaled = compute(
        "scaled",
        (a := (Axis("h", n), Axis("w", n), Axis("c", c))),
        mul(f32(2), image.tensor[a]),
    )
    row = sub(add(mul(y.var, idx(2)), kh.var), idx(1))
    col = sub(add(mul(x.var, idx(2)), kw.var), idx(1))
    value = select(
        both(inside(row, n), inside(col, n)), scaled.tensor[row, col, ch], f32(-math.inf)
    )
    return ComputeDAG(
        (image, scaled, compute("pool", (y, x, ch), Reduce("max", value, (kh, kw)))), ("pool",)
    )


def softmax(rows: int = 3, n: int = 12) -> ComputeDAG:
    """Maximum, exponential, sum, quotient."""
    i, j, k, m = Axis("i", rows), Axis("j", n), Axis("k", n), Axis("m", n)
    x = placeholder("x", (rows, n))
    top = compute("top", (i,), Reduce("max", x.tensor[i, k], (k,)))
    exp = compute("exp", (i, j), call("exp", sub(x.tensor[i, j], top.tensor[i])))
    total = compute("total", (i,), Reduce("sum", exp.tensor[i, m], (m,)))
    out = compute("out", (i, j), div(exp.tensor[i, j], total.tensor[i]))
    return ComputeDAG((x, top, exp, total, out), ("out",))


def attention(
    heads: int = 2,
    rows: int = 5,
    columns: int = 21,
    depth: int = 6,
    channels: int = 9,
    dtype: str = "float32",
) -> ComputeDAG:
    """softmax(2 q·k + mask)·v + residual, factors of `dtype`."""
    wide = partial(cast, "float32")
    h, i, j, k, c = (
        Axis(a, n) for a, n in zip("hijkc", (heads, rows, columns, depth, channels), strict=True)
    )
    m, n, d = Axis("m", columns), Axis("n", columns), Axis("d", depth)
    q = placeholder("q", (rows, heads, depth), dtype)
    keys = placeholder("k", (heads, depth, columns), dtype)
    values = placeholder("v", (heads, columns, channels), dtype)
    mask = placeholder("mask", (rows, columns))
    other = placeholder("other", (heads, rows, channels))
    twice = compute("twice", (h, i, k), cast(dtype, mul(f32(2), wide(q.tensor[i, h, k]))))
    term = mul(wide(twice.tensor[h, i, d]), wide(keys.tensor[h, d, j]))
    product = Reduce("sum", term, (d,))
    s = compute("s", (h, i, j), product)
    t = compute("t", (h, i, j), add(s.tensor[h, i, j], mask.tensor[i, j]))
    top = compute("top", (h, i), Reduce("max", t.tensor[h, i, m], (m,)))
    exp = compute("exp", (h, i, j), call("exp", sub(t.tensor[h, i, j], top.tensor[h, i])))
    total = compute("total", (h, i), Reduce("sum", exp.tensor[h, i, m], (m,)))
    p = compute("p", (h, i, j), cast(dtype, div(exp.tensor[h, i, j], total.tensor[h, i])))
    term = mul(wide(p.tensor[h, i, n]), wide(values.tensor[h, n, c]))
    product = Reduce("sum", term, (n,))
    o = compute("o", (h, i, c), product)
    out = compute("out", (h, i, c), add(o.tensor[h, i, c], other.tensor[h, i, c]))
    ops = (q, keys, values, mask, other, twice, s, t, top, exp, total, p, o, out)
    return ComputeDAG(ops, ("out",))


def attention_below(
    rows: int = 5, columns: int = 45, depth: int = 6, channels: int = 9
) -> ComputeDAG:
    """softmax(q·k)·v over the first columns, as many as an operand tells."""
    i, j, k, c = (Axis(a, n) for a, n in zip("ijkc", (rows, columns, depth, channels), strict=True))
    m, n = Axis("m", columns), Axis("n", columns)
    q, keys = placeholder("q", (rows, depth)), placeholder("k", (columns, depth))
    values, length = placeholder("v", (columns, channels)), placeholder("length", (1,), "int64")

    def below(axis: Axis) -> Expr:
        return compare("lt", axis.var, length.tensor[idx(0)])

    def where(axis: Axis, x: Expr, otherwise: float = 0.0) -> Expr:
        return select(below(axis), x, f32(otherwise))

    product = Reduce("sum", mul(q.tensor[i, k], keys.tensor[j, k]), (k,))
    s = compute("s", (i, j), product)
    t = compute("t", (i, j), where(j, mul(f32(0.5), s.tensor[i, j])))
    top = compute("top", (i,), Reduce("max", where(m, t.tensor[i, m], -math.inf), (m,)))
    power = call("exp", sub(t.tensor[i, j], top.tensor[i]))
    exp = compute("exp", (i, j), where(j, power))
    total = compute("total", (i,), Reduce("sum", where(m, exp.tensor[i, m]), (m,)))
    p = compute("p", (i, j), where(j, div(exp.tensor[i, j], total.tensor[i])))
    terms = mul(where(n, p.tensor[i, n]), values.tensor[n, c])
    out = compute("out", (i, c), Reduce("sum", terms, (n,)))
    return ComputeDAG((q, keys, values, length, s, t, top, exp, total, p, out), ("out",))


def normalised_products(
    rows: int = 7, inner: int = 19, columns: int = 20, depth: int = 5, tied: bool = False
) -> ComputeDAG:
    """(x·a / √Σ(x·a)²)·b: two products with weights, or with the same (`tied`), rows normalised."""
    i, j, k, c = (Axis(a, n) for a, n in zip("ijkc", (rows, inner, depth, columns), strict=True))
    m = Axis("m", inner)
    x = placeholder("x", (rows, depth))
    a = placeholder("a", (depth, inner), constant=True)
    b = a if tied else placeholder("b", (inner, columns), constant=True)
    s = compute("s", (i, j), Reduce("sum", mul(x.tensor[i, k], a.tensor[k, j]), (k,)))
    square = mul(s.tensor[i, m], s.tensor[i, m])
    total = compute("total", (i,), Reduce("sum", square, (m,)))
    p = compute("p", (i, j), div(s.tensor[i, j], call("sqrt", total.tensor[i])))
    o = compute("o", (i, c), Reduce("sum", mul(p.tensor[i, m], b.tensor[m, c]), (m,)))
    return ComputeDAG((x, a, *([] if tied else [b]), s, total, p, o), ("o",))


def lrn(n: int = 3, c: int = 13) -> ComputeDAG:
    """x / (1 + Σ x²)^0.75 over a window of five channels: a guard that varies by lane."""
    y, ch, d = Axis("y", n), Axis("c", c), Axis("d", 5)
    x = placeholder("x", (n, c))
    at = sub(add(ch.var, d.var), idx(2))
    square = mul(x.tensor[y, at], x.tensor[y, at])
    total = compute("total", (y, ch), Reduce("sum", select(inside(at, c), square, f32(0)), (d,)))
    power = Binary("pow", add(f32(1), mul(f32(0.5), total.tensor[y, ch])), f32(0.75))
    out = compute("out", (y, ch), div(x.tensor[y, ch], power))
    return ComputeDAG((x, total, out), ("out",))


def broadcasting(n: int = 5, c: int = 9) -> ComputeDAG:
    """Element by element over tensors of lower rank, and a scalar."""
    i, j = Axis("i", n), Axis("j", c)
    x, column = placeholder("x", (n, c)), placeholder("column", (n, 1))
    row, scalar = placeholder("row", (c,)), placeholder("scalar", ())
    u = compute("u", (i, j), mul(x.tensor[i, j], column.tensor[i, 0]))
    v = compute("v", (i, j), add(u.tensor[i, j], mul(row.tensor[j], scalar.tensor[()])))
    w = compute("w", (i, j), call("sigmoid", v.tensor[i, j]))
    return ComputeDAG((x, column, row, scalar, u, v, w), ("w",))


def concat(n: int = 4, first: int = 5, second: int = 6) -> ComputeDAG:
    """Both sides of a Select load, each outside of its tensor where it is not chosen."""
    i, j = Axis("i", n), Axis("j", first + second)
    a, b = placeholder("a", (n, first)), placeholder("b", (n, second))
    value = Select(
        compare("lt", j.var, idx(first)), a.tensor[i, j], b.tensor[i, sub(j.var, idx(first))]
    )
    return ComputeDAG((a, b, compute("joined", (i, j), value)), ("joined",))


def shuffle(n: int = 3, groups: int = 3, per: int = 4) -> ComputeDAG:
    """Channel shuffle, upsampling and a flip: indices with //, % and a negative factor."""
    i, c = Axis("i", 2 * n), Axis("c", groups * per)
    x = placeholder("x", (n, groups * per))
    source = add(mul(mod(c.var, idx(groups)), idx(per)), floordiv(c.var, idx(groups)))
    mixed = compute("mixed", (i, c), x.tensor[floordiv(i.var, idx(2)), source])
    flipped = compute("flipped", (i, c), call("neg", mixed.tensor[sub(idx(2 * n - 1), i.var), c]))
    return ComputeDAG((x, mixed, flipped), ("flipped",))


def two_outputs(n: int = 5, c: int = 7) -> ComputeDAG:
    """A product that is an output and is read on; a second reader that reduces it."""
    i, j, k = Axis("i", n), Axis("j", c), Axis("k", 4)
    a, b = placeholder("a", (n, 4)), placeholder("b", (4, c), constant=True)
    product = compute("product", (i, j), Reduce("sum", mul(a.tensor[i, k], b.tensor[k, j]), (k,)))
    doubled = compute("doubled", (i, j), mul(product.tensor[i, j], f32(2)))
    r = Axis("r", c)
    sums = compute("sums", (i,), Reduce("sum", doubled.tensor[i, r], (r,)))
    return ComputeDAG((a, b, product, doubled, sums), ("product", "sums"))


def scalars() -> ComputeDAG:
    """Rank 0 and extents of 1."""
    r, one = Axis("r", 9), Axis("one", 1)
    x = placeholder("x", (9, 1))
    total = compute("total", (), Reduce("sum", x.tensor[r, 0], (r,)))
    grown = compute("grown", (one, Axis("o", 1)), mul(total.tensor[()], x.tensor[3, one]))
    return ComputeDAG((x, total, grown), ("total", "grown"))


def integers(n: int = 4, c: int = 10) -> ComputeDAG:
    """int32, uint8 and bool tensors, casts, an integer maximum and an index read from memory."""
    i, j, r, k = Axis("i", n), Axis("j", c), Axis("r", c), Axis("k", c)
    x, table = placeholder("x", (n, c), "int32"), placeholder("table", (13, c))
    small, where = placeholder("small", (c,), "uint8"), placeholder("where", (n,), "int64")
    top = compute("top", (i,), Reduce("max", x.tensor[i, r], (r,)))
    is_top = compute("is_top", (i, j), Compare("eq", x.tensor[i, j], top.tensor[i]))
    picked = Select(is_top.tensor[i, j], Cast("int32", small.tensor[j]), Const(0, "int32"))
    chosen = compute("chosen", (i, j), picked)
    total = compute("count", (i,), Reduce("sum", chosen.tensor[i, k], (k,)))
    row = table.tensor[mod(where.tensor[i], idx(13)), j]
    mixed = compute("mixed", (i, j), add(row, Cast("float32", is_top.tensor[i, j])))
    return ComputeDAG(
        (x, table, small, where, top, is_top, chosen, total, mixed), ("is_top", "count", "mixed")
    )


def transposed(n: int = 5, m: int = 6) -> ComputeDAG:
    """A transpose that is read by a product: strided lanes."""
    i, j, k = Axis("i", n), Axis("j", m), Axis("k", 4)
    x, y = placeholder("x", (4, n)), placeholder("y", (m, 4))
    t = compute("t", (i, k), x.tensor[Var("k"), i])
    body = mul(t.tensor[i, k], y.tensor[j, k])
    return ComputeDAG((x, y, t, compute("c", (i, j), Reduce("sum", body, (k,)))), ("c",))


def two_convs(n: int = 8, c: int = 5) -> ComputeDAG:
    """Two convolutions in a row, so that regions grow through two stages."""
    mid, out = n - 2, n - 4
    x = placeholder("x", (n, c))
    w1, w2 = (
        placeholder("w1", (3, c, c), constant=True),
        placeholder("w2", (3, c, c), constant=True),
    )

    def one(name: str, size: int, source: Callable[..., Expr], w: Callable[..., Expr]):  # type: ignore[no-untyped-def]
        i, o, k, r = Axis("i", size), Axis("o", c), Axis("k", 3), Axis("r", c)
        body = mul(source((add(i.var, k.var), r)), w((k, r, o)))
        return compute(name, (i, o), Reduce("sum", body, (k, r)))

    first = one("first", mid, x.tensor.__getitem__, w1.tensor.__getitem__)
    i, o = Axis("i", mid), Axis("o", c)
    act = compute("act", (i, o), call("tanh", first.tensor[i, o]))
    second = one("second", out, act.tensor.__getitem__, w2.tensor.__getitem__)
    return ComputeDAG((x, w1, w2, first, act, second), ("second",))


def separable(n: int = 7, c: int = 9, oc: int = 12, stride: int = 1, pad: int = 1) -> ComputeDAG:
    """clip(pointwise(relu(depthwise(pad(x)) + bias)) + bias + residual)."""
    size = (n + 2 * pad - 3) // stride + 1
    y, x, ch, o = Axis("h", size), Axis("w", size), Axis("c", c), Axis("o", oc)
    kh, kw, r = Axis("kh", 3), Axis("kw", 3), Axis("r", c)
    image, weight = placeholder("x", (n, n, c)), placeholder("weight", (3, 3, c), constant=True)
    bias, other = placeholder("bias", (c,), constant=True), placeholder("other", (size, size, oc))
    weight2 = placeholder("weight2", (c, oc), constant=True)
    reach = (size - 1) * stride + 3
    row, col = sub(Var("h"), idx(pad)), sub(Var("w"), idx(pad))
    value = select(both(inside(row, n), inside(col, n)), image.tensor[row, col, ch], f32(0))
    padded = compute("pad", (Axis("h", reach), Axis("w", reach), ch), value)
    source = padded if pad else image
    at = (add(mul(y.var, idx(stride)), kh.var), add(mul(x.var, idx(stride)), kw.var), ch)
    body = Reduce("sum", mul(source.tensor[at], weight.tensor[kh, kw, ch]), (kh, kw))
    deep = compute("deep", (y, x, ch), body)
    act = compute("act", (y, x, ch), maximum(f32(0), add(deep.tensor[y, x, ch], bias.tensor[ch])))
    body = Reduce("sum", mul(act.tensor[y, x, r], weight2.tensor[r, o]), (r,))
    point = compute("point", (y, x, o), body)
    out = compute("out", (y, x, o), add(point.tensor[y, x, o], other.tensor[y, x, o]))
    stages = (padded, deep) if pad else (deep,)
    return ComputeDAG((image, weight, bias, weight2, other, *stages, act, point, out), ("out",))


def pooled_product(n: int = 9, c: int = 10, oc: int = 8) -> ComputeDAG:
    """A maximum over windows of three that a product reads as it is."""
    i, ch, o, k, r = Axis("i", n - 2), Axis("c", c), Axis("o", oc), Axis("k", 3), Axis("r", c)
    x, weight = placeholder("x", (n, c)), placeholder("weight", (c, oc), constant=True)
    pool = compute("pool", (i, ch), Reduce("max", x.tensor[add(i.var, k.var), ch], (k,)))
    body = Reduce("sum", mul(pool.tensor[i, r], weight.tensor[r, o]), (r,))
    return ComputeDAG((x, weight, pool, compute("product", (i, o), body)), ("product",))


def gathered(n: int = 9, rows: int = 11, c: int = 20) -> ComputeDAG:
    """Rows of a table, and rows of those, where computed indices and a mask say."""
    i, j = Axis("i", n), Axis("j", c)
    table, shift = placeholder("table", (rows, c), constant=True), placeholder("shift", (c,))
    ids, mask = placeholder("ids", (n,), "int64"), placeholder("mask", (n,), "bool")
    at = compute("at", (i,), add(ids.tensor[i], idx(1)))
    row = maximum(idx(0), minimum(at.tensor[i], idx(rows - 1)))
    taken = compute("taken", (i, j), mul(table.tensor[row, j], f32(3)))
    back = maximum(idx(0), minimum(sub(idx(40), at.tensor[i]), idx(n - 1)))
    other = add(taken.tensor[back, j], shift.tensor[j])
    y = compute("y", (i, j), select(mask.tensor[i], other, taken.tensor[i, j]))
    return ComputeDAG((table, shift, ids, mask, at, taken, y), ("y",))


def chosen_product(m: int = 7, n: int = 37, k: int = 6) -> ComputeDAG:
    """a·b where a mask says, else a number far below."""
    i, j, r = Axis("i", m), Axis("j", n), Axis("k", k)
    a, b = placeholder("a", (m, k)), placeholder("b", (k, n), constant=True)
    mask = placeholder("mask", (m, n), "int32")
    c = compute("c", (i, j), Reduce("sum", mul(a.tensor[i, r], b.tensor[r, j]), (r,)))
    kept = compare("ne", mask.tensor[i, j], Const(0, "int32"))
    y = compute("y", (i, j), select(kept, c.tensor[i, j], f32(-1e4)))
    return ComputeDAG((a, b, mask, c, y), ("y",))


def sums_of_sums(m: int = 9, c: int = 24, size: int = 3) -> ComputeDAG:
    """y[m, c] = x[m, c] + Σ Σ x over all rows and the `size` columns of a group."""
    x = placeholder("x", (m, c))
    i, j, r, s = Axis("i", m), Axis("j", c), Axis("r", m), Axis("s", size)
    column = compute("column", (j,), Reduce("sum", x.tensor[r, j], (r,)))
    first = mul(floordiv(j.var, idx(size)), idx(size))
    group = compute("group", (j,), Reduce("sum", column.tensor[add(first, s.var)], (s,)))
    y = compute("y", (i, j), add(x.tensor[i, j], mul(group.tensor[j], f32(0.1))))
    return ComputeDAG((x, column, group, y), ("y",))


def channel_sums(h: int = 64, w: int = 33, c: int = 11) -> ComputeDAG:
    """Sums over an image, channel by channel."""
    k, rh, rw = Axis("k", c), Axis("rh", h), Axis("rw", w)
    x = placeholder("x", (h, w, c))
    return ComputeDAG(
        (x, compute("total", (k,), Reduce("sum", x.tensor[rh, rw, k], (rh, rw)))), ("total",)
    )


def row_means(rows: int = 20, h: int = 3, w: int = 40) -> ComputeDAG:
    """Means over images of one channel: what is added up are neighbours in memory."""
    n, rh, rw = Axis("n", rows), Axis("rh", h), Axis("rw", w)
    x = placeholder("x", (rows, h, w))
    total = compute("total", (n,), Reduce("sum", x.tensor[n, rh, rw], (rh, rw)))
    mean = compute("mean", (n,), mul(total.tensor[n.var], f32(1 / (h * w))))
    return ComputeDAG((x, total, mean), ("mean",))


ALL: dict[str, Callable[[], ComputeDAG]] = {
    "gemm": gemm,
    "gemv": lambda: gemm(1, 33, 8),
    "conv": conv,
    "conv_stride": lambda: conv(7, 6, 2, 9, 3, 2),
    "conv_dilated": lambda: conv(7, 6, 2, 9, dilation=2),
    "conv_first": lambda: conv(9, 8, 3, 8, 5, 2, channels_first=True),
    "conv_1x1": lambda: conv(4, 5, 8, 24, 1),
    "conv_to_one": lambda: collapse(conv(5, 20, 16, 1)),
    "depthwise": depthwise,
    "grouped": grouped,
    "max_pool": max_pool,
    "softmax": softmax,
    "softmax_uneven": lambda: softmax(3, 21),
    "attention": lambda: attention(2, 3, 11, 4, 5),
    "attention_below": lambda: attention_below(3, 21, 4, 5),
    "normalised_products": normalised_products,
    "lrn": lrn,
    "broadcasting": broadcasting,
    "concat": concat,
    "shuffle": shuffle,
    "two_outputs": two_outputs,
    "scalars": scalars,
    "integers": integers,
    "transposed": transposed,
    "two_convs": two_convs,
    "separable": separable,
    "separable_strided": lambda: separable(9, 20, 17, 2),
    "separable_unpadded": lambda: separable(6, 16, 8, 1, 0),
    "pooled_product": pooled_product,
    "gathered": gathered,
    "chosen_product": chosen_product,
    "sums_of_sums": sums_of_sums,
    "channel_sums": channel_sums,
    "row_means": row_means,
    "row_means_in_parts": lambda: row_means(5, 52, 40),
}
