"""③ Steps that rewrite the DAG: inlining, copies, partial reductions (and `winograd`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, reduce

import numpy as np

from autotune.dtypes import DTYPES, holds, is_float
from autotune.errors import ScheduleError
from autotune.schedule.region import Extent
from autotune.schedule.steps import (
    CacheRead,
    CacheTerms,
    CacheWrite,
    ComputeInline,
    FlatTaps,
    Interleave,
    Parts,
    RFactor,
    WholeTerms,
)
from autotune.te.arith import linear
from autotune.te.dag import Compute, ComputeDAG, Op
from autotune.te.expr import (
    Axis,
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Reduce,
    Tensor,
    add,
    cast,
    compare,
    floordiv,
    idx,
    map_expr,
    minimum,
    mod,
    mul,
    select,
    substitute,
    variables,
)
from autotune.te.numbers import is_number
from autotune.te.products import products_of
from autotune.te.reductions import identity


@lru_cache(maxsize=256)
def compute_inline(dag: ComputeDAG, step: ComputeInline) -> ComputeDAG:
    """Substitute the computation of a tensor into its consumers."""
    op = _computation(dag, step.stage)
    if op.reduce_axes or op.name in dag.outputs:
        raise ScheduleError(f"{op.name} reduces or is an output: it cannot be inlined")

    def one(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.tensor.name == op.name:
            at = (map_expr(i, one) for i in e.indices)
            return substitute(op.body, {a.name: i for a, i in zip(op.axes, at, strict=True)})
        return None

    ops = [_map_body(o, one) for o in dag.ops if o.name != op.name]
    return ComputeDAG(tuple(ops), dag.outputs)


def _map_body(op: Op, f: Callable[[Expr], Expr | None]) -> Op:
    return replace(op, body=map_expr(op.body, f)) if isinstance(op, Compute) else op


def _computation(dag: ComputeDAG, name: str) -> Compute:
    op = next((op for op in dag.computes if op.name == name), None)
    if op is None:
        raise ScheduleError(f"no stage '{name}'")
    return op


def _insert(dag: ComputeDAG, new: Op, before: str, changed: Compute) -> ComputeDAG:
    if any(op.name == new.name for op in dag.ops):
        raise ScheduleError(f"there is a tensor '{new.name}' already")
    ops: list[Op] = []
    for op in dag.ops:
        if op.name == before:
            ops.append(new)
        ops.append(changed if op.name == changed.name else op)
    return ComputeDAG(tuple(ops), dag.outputs)


@lru_cache(maxsize=256)
def cache_read(dag: ComputeDAG, step: CacheRead) -> ComputeDAG:
    """A computation reads a copy of a tensor."""
    reader = _computation(dag, step.reader)
    source = next((x.tensor for x in reader.reads if x.tensor.name == step.tensor), None)
    if source is None:
        raise ScheduleError(f"{reader.name} does not read a tensor '{step.tensor}'")
    if any(map(is_number, (x for x in reader.reads if x.tensor == source))):
        raise ScheduleError(f"{source.name} is a number, which has no copies")
    axes = tuple(Axis(f"d{n}", e) for n, e in enumerate(source.shape))
    everything = Load(source, tuple(a.var for a in axes))
    dtype = step.dtype or source.dtype
    if dtype not in DTYPES or not holds(dtype, source.dtype):
        raise ScheduleError(f"a copy as {dtype} does not hold the {source.dtype} of {source.name}")
    copy = Compute(Tensor(step.name, source.shape, dtype), axes, cast(dtype, everything))
    found = {x for x in reader.reads if x.tensor.name == source.name}

    def one(e: Expr) -> Expr | None:
        match e:
            case Cast(a=Load() as x) if x in found:  # a wider copy needs no step in between
                return cast(e.dtype, Load(copy.tensor, x.indices))
            case Load() if e in found:
                return cast(source.dtype, Load(copy.tensor, e.indices))
        return None

    changed = replace(reader, body=map_expr(reader.body, one))
    return _insert(dag, copy, reader.name, changed)


@lru_cache(maxsize=256)
def cache_terms(dag: ComputeDAG, step: CacheTerms) -> ComputeDAG:
    """A sum reads a copy of a tensor that holds neighbouring terms side by side."""
    op, n = _computation(dag, step.reader), step.terms
    source = next((x for x in op.reads if x.tensor.name == step.tensor), None)
    if source is None or not isinstance(op.body, Reduce) or not op.axes:
        raise ScheduleError(f"{op.name} is no sum that reads a tensor '{step.tensor}'")
    last, column = _regular(op, op.body.axes[-1]), op.axes[-1]
    rows, columns = _dimension(source, last), _dimension(source, column)
    once = sum(x.tensor == source.tensor for x in op.reads) == 1
    if last.extent % n or rows is None or columns is None or not once:
        raise ScheduleError(f"{op.name} does not read {step.tensor} in groups of {n} terms")
    group, term = Axis(f"{last.name}.g", last.extent // n), Axis(f"{last.name}.t", n)
    shape, ends = source.tensor.shape, (rows, columns)
    own = {d: Axis(f"d{d}", e) for d, e in enumerate(shape) if d not in ends}
    at: dict[int, Expr] = {d: a.var for d, a in own.items()}
    at |= {rows: add(mul(group.var, idx(n)), term.var), columns: column.var}
    axes = (*own.values(), group, column, term)
    tensor = Tensor(step.name, tuple(a.extent for a in axes), source.tensor.dtype)
    copy = Compute(tensor, axes, Load(source.tensor, tuple(at[d] for d in sorted(at))))
    where = (*(source.indices[d] for d in own), group.var, column.var, term.var)

    def one(e: Expr) -> Expr | None:
        return Load(copy.tensor, where) if e == source else None

    terms = substitute(map_expr(op.body.body, one), {last.name: at[rows]})
    body = Reduce(op.body.op, terms, (*op.body.axes[:-1], group, term))
    return _insert(dag, copy, op.name, replace(op, body=body))


@lru_cache(maxsize=256)
def whole_terms(dag: ComputeDAG, step: WholeTerms) -> ComputeDAG:
    """A sum of products reads its factors with zeros behind them."""
    op = _computation(dag, step.stage)
    factors = _factors(op)
    if not isinstance(op.body, Reduce) or not factors:
        raise ScheduleError(f"{op.name} is no sum of products")
    last = _regular(op, op.body.axes[-1])
    if step.extent <= last.extent:
        raise ScheduleError(f"{op.name} has {last.extent} terms, no fewer than {step.extent}")
    found: dict[Expr, Expr] = {}
    for load in dict.fromkeys(factors):
        at = _dimension(load, last) if isinstance(load, Load) else None
        if not isinstance(load, Load) or at is None:
            raise ScheduleError(
                f"{op.name} multiplies other things than elements along {last.name}"
            )
        name, shape = f"{op.name}.{load.tensor.name}", list(load.tensor.shape)
        shape[at] = step.extent
        axes = tuple(Axis(f"d{n}", e) for n, e in enumerate(shape))
        tensor = Tensor(name, tuple(shape), load.tensor.dtype)
        zero = 0.0 if is_float(tensor.dtype) else 0
        inside = compare("lt", axes[at].var, idx(last.extent))
        element = Load(load.tensor, tuple(a.var for a in axes))
        copy = Compute(tensor, axes, select(inside, element, Const(zero, tensor.dtype)))
        dag = _insert(dag, copy, op.name, op)
        found[load] = Load(tensor, load.indices)
    terms = map_expr(op.body.body, found.get)
    axes = (*op.body.axes[:-1], Axis(last.name, step.extent))
    changed = replace(op, body=Reduce(op.body.op, terms, axes))
    return ComputeDAG(tuple(changed if o is op else o for o in dag.ops), dag.outputs)


@lru_cache(maxsize=256)
def flat_taps(dag: ComputeDAG, step: FlatTaps) -> ComputeDAG:
    """A sum reads rows of windows as one dimension."""
    op = _computation(dag, step.stage)
    if not isinstance(op.body, Reduce) or len(op.body.axes) < 2:
        raise ScheduleError(f"{op.name} is no sum along two axes")
    *outer, taps, last = (_regular(op, a) for a in op.body.axes)
    flat = Axis(f"{taps.name}{last.name}", taps.extent * last.extent)
    source = next((x for x in op.reads if _is_row_of_window(x, taps, last)), None)
    if source is None or sum(x.tensor == source.tensor for x in op.reads) > 1:
        raise ScheduleError(f"{op.name} reads no rows of windows along {taps.name}, {last.name}")
    *shape, length = source.tensor.shape
    axes = tuple(Axis(f"d{n}", e) for n, e in enumerate((*shape[:-1], shape[-1] * length)))
    every, inner = axes[-1].var, idx(length)
    element = Load(
        source.tensor,
        (*(a.var for a in axes[:-1]), floordiv(every, inner), mod(every, inner)),
    )
    tensor = Tensor(
        f"{op.name}.{source.tensor.name}", tuple(a.extent for a in axes), source.tensor.dtype
    )
    first = substitute(source.indices[-2], {taps.name: idx(0)})
    row = Load(tensor, (*source.indices[:-2], add(mul(first, inner), flat.var)))
    where = {taps.name: floordiv(flat.var, inner), last.name: mod(flat.var, inner)}
    terms = map_expr(op.body.body, lambda e: row if e == source else None)
    body = Reduce(op.body.op, substitute(terms, where), (*outer, flat))
    return _insert(dag, Compute(tensor, axes, element), op.name, replace(op, body=body))


def _is_row_of_window(load: Load, taps: Axis, last: Axis) -> bool:
    """Whether taps are neighbours of one another, and `last` is the whole dimension within."""
    if len(load.indices) < 2 or load.indices[-1] != last.var:
        return False
    at = linear(load.indices[-2])
    inside = at.coefficient(taps.name) == 1 and not at.is_opaque_in(taps.name)
    apart = {taps.name, last.name}.isdisjoint(n for i in load.indices[:-2] for n in variables(i))
    return (
        inside
        and apart
        and load.tensor.shape[-1] == last.extent
        and last.name not in variables(load.indices[-2])
    )


def _factors(op: Compute) -> tuple[Expr, ...]:
    """What a sum of products multiplies."""
    match op.body:
        case Reduce(op="sum", body=Binary(op="mul", a=Load() as a, b=Load() as b)):
            return a, b
    return tuple(x for pair in products_of(op) for x in pair)


def _dimension(load: Load, axis: Axis) -> int | None:
    """The dimension whose index is `axis`, where no other index has it."""
    having = [d for d, i in enumerate(load.indices) if axis.name in variables(i)]
    return having[0] if len(having) == 1 and load.indices[having[0]] == axis.var else None


@lru_cache(maxsize=256)
def cache_write(dag: ComputeDAG, step: CacheWrite) -> ComputeDAG:
    """A computation writes to a tensor of its own, which is then copied."""
    op = _computation(dag, step.stage)
    cache = replace(op, tensor=Tensor(step.name, op.tensor.shape, op.tensor.dtype))
    changed = replace(op, body=Load(cache.tensor, tuple(a.var for a in op.axes)))
    return _insert(dag, cache, op.name, changed)


def rfactor(dag: ComputeDAG, step: RFactor, factor: Extent) -> ComputeDAG:
    """`factor` partial results, over which the reduction then runs."""
    op = _computation(dag, step.stage)
    if not isinstance(op.body, Reduce) or isinstance(factor, np.ndarray):
        raise ScheduleError("rfactor needs a reduction and one factor")
    last = _regular(op, op.body.axes[-1])
    if last.extent < factor:
        raise ScheduleError(f"rfactor {factor} is more than {last.name}<{last.extent}")
    inner, outer = Axis(f"{last.name}.r", factor), Axis(last.name, -(-last.extent // factor))
    first = mul(outer.var, idx(factor))
    if last.extent % factor:  # the last part overlaps the part before it; the overlap adds zero
        at: Expr = add(minimum(first, idx(last.extent - factor)), inner.var)
        neutral = identity(op.body.op, op.tensor.dtype)
        body = select(compare("lt", at, first), neutral, substitute(op.body.body, {last.name: at}))
    else:
        at = add(first, inner.var)
        body = substitute(op.body.body, {last.name: at})
    reduction = Reduce(op.body.op, body, (*op.body.axes[:-1], outer))
    partial = _partial(op, step.name, (*op.axes, inner), reduction)
    return _insert(dag, partial, op.name, _combine(op, partial, inner))


@lru_cache(maxsize=256)
def parts(dag: ComputeDAG, step: Parts) -> ComputeDAG:
    """Partial results of consecutive terms, over which the reduction then runs."""
    op = _computation(dag, step.stage)
    if not isinstance(op.body, Reduce):
        raise ScheduleError("parts need a reduction")
    first = _regular(op, op.body.axes[0])
    if first.extent % step.factor:
        raise ScheduleError(f"{step.factor} parts do not divide {first.name}<{first.extent}")
    outer = Axis(f"{first.name}.p", step.factor)
    inner = Axis(first.name, first.extent // step.factor)
    at = add(mul(outer.var, idx(inner.extent)), inner.var)
    body = substitute(op.body.body, {first.name: at})
    reduction = Reduce(op.body.op, body, (inner, *op.body.axes[1:]))
    partial = _partial(op, step.name, (outer, *op.axes), reduction)
    return _insert(dag, partial, op.name, _combine(op, partial, outer))


def _regular(op: Compute, axis: Axis) -> Axis:
    if axis.limit is not None:
        raise ScheduleError(f"axis {axis.name} of {op.name} is ragged and cannot be cut")
    return axis


def _partial(op: Compute, name: str, axes: tuple[Axis, ...], body: Reduce) -> Compute:
    return Compute(Tensor(name, tuple(a.extent for a in axes), op.tensor.dtype), axes, body)


def _combine(op: Compute, partial: Compute, axis: Axis) -> Compute:
    """`op` as a reduction of partial results along `axis`."""
    assert isinstance(op.body, Reduce)
    load = Load(partial.tensor, tuple(a.var for a in partial.axes))
    return replace(op, body=Reduce(op.body.op, load, (axis,)))


@lru_cache(maxsize=256)
def interleave(dag: ComputeDAG, step: Interleave) -> ComputeDAG:
    """Partial results side by side along the innermost axis, added up where they are read."""
    op = _computation(dag, step.stage)
    factor = step.factor
    if not isinstance(op.body, Reduce) or op.body.op != "sum" or not op.axes:
        raise ScheduleError("interleave needs a sum with axes")
    last, channel = _regular(op, op.body.axes[-1]), op.axes[-1]
    if last.extent % factor:
        raise ScheduleError(f"interleave {factor} does not divide {last.name}<{last.extent}")
    outer = Axis(last.name, last.extent // factor)
    limit = None if channel.limit is None else mul(channel.limit, idx(factor))
    lane = Axis(channel.name, channel.extent * factor, limit)
    at: dict[str, Expr] = {
        channel.name: floordiv(lane.var, idx(factor)),
        last.name: add(mul(outer.var, idx(factor)), mod(lane.var, idx(factor))),
    }
    body = Reduce("sum", substitute(op.body.body, at), (*op.body.axes[:-1], outer))
    partial = _partial(op, step.name, (*op.axes[:-1], lane), body)
    first = mul(channel.var, idx(factor))
    before = tuple(a.var for a in op.axes[:-1])
    lanes: list[Expr] = [Load(partial.tensor, (*before, add(first, idx(n)))) for n in range(factor)]
    return _insert(dag, partial, op.name, replace(op, body=reduce(add, lanes)))
