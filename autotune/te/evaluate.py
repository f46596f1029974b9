"""② The numeric oracle of a task: plain NumPy evaluation of a ComputeDAG.

Sums of products of affine loads (convolution, matrix product) go through `einsum` on strided views
in float64; everything else is evaluated point-parallel, one reduction point at a time. Slow is
fine, wrong is not: nothing here is shared with lowering or code generation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from autotune.dtypes import DTYPES, dtype_of_array
from autotune.te.arith import linear, simplify
from autotune.te.dag import Compute, ComputeDAG, compute
from autotune.te.expr import (
    Axis,
    Binary,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    Tensor,
    Var,
    compare,
    dtype_of,
    f32,
    idx,
    loads,
    maximum,
    select,
    sub,
    substitute,
    variables,
)
from autotune.te.integers import INTEGER_OPS
from autotune.te.intrinsics import INTRINSICS
from autotune.te.reductions import REDUCE_BINARY, identity

Array = NDArray[Any]
Env = dict[str, Array]


def evaluate(dag: ComputeDAG, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Values of all outputs, in the dtypes of their tensors.

    Intermediate floats are kept in float64, so the result is the oracle's rounding of the exact
    value, not of some order of summation. Raises KeyError for a missing input.
    """
    values: Env = {}
    for p in dag.placeholders:
        values[p.name] = _widen(np.asarray(inputs[p.name]).reshape(p.tensor.shape))
    with np.errstate(all="ignore"):  # NaN and infinities are results like others
        for op in dag.computes:
            values[op.name] = _compute(op, values)
        return {name: values[name].astype(_held(dag[name].tensor)) for name in dag.outputs}


def n_points(cond: Expr, extents: Mapping[str, int]) -> int:
    """Number of points of a box of `extents` at which a condition by indices alone holds.

    Takes memory for every point of the axes that it depends on.
    """
    axes = tuple(Axis(name, n) for name, n in extents.items() if name in variables(cond))
    others = math.prod(n for name, n in extents.items() if name not in variables(cond))
    holds = compute("holds", axes, Select(cond, f32(1), f32(0)))
    values = evaluate(ComputeDAG((holds,), ("holds",)), {})["holds"]
    return int(np.count_nonzero(values)) * others


def derive(ops: Sequence[Compute], values: Mapping[str, Array]) -> dict[str, Array]:
    """`values` and those of `ops`, computed from them in order; see `evaluate`."""
    wide: Env = {}
    made: dict[str, Array] = {}
    read = {load.tensor.name for op in ops for load in op.reads}
    for op in ops:
        names = {load.tensor.name: load.tensor for load in op.reads}
        if op.name not in read and names.keys() <= values.keys() and _is_pointwise(op):
            made[op.name] = _in_blocks(op, values)
            continue
        for name, tensor in names.items():
            if name not in wide:
                wide[name] = _widen(np.asarray(values[name]).reshape(tensor.shape))
        wide[op.name] = _compute(op, wide)
    made |= {name: wide[name].astype(_held(tensor)) for name, tensor in _tensors(ops, wide)}
    return {**values, **made}


def _tensors(ops: Sequence[Compute], known: Container[str]) -> Iterator[tuple[str, Tensor]]:
    return ((op.name, op.tensor) for op in ops if op.name in known)


def _is_pointwise(op: Compute) -> bool:
    """Whether every element is an expression of its place, the same for all of them."""
    is_sum = isinstance(op.body, Reduce) or op.scanned is not None
    return bool(op.axes) and not is_sum and not op.limits and _chooser(op) is None


_BLOCK = 1 << 15
"""Elements that are computed at once: whole weights would be written to memory at every step."""


def _in_blocks(op: Compute, values: Mapping[str, Array]) -> Array:
    """The array of a pointwise computation, some rows at a time."""
    tensors = {load.tensor.name: load.tensor.shape for load in op.reads}
    known = {name: np.asarray(values[name]).reshape(shape) for name, shape in tensors.items()}
    out = np.empty(op.tensor.shape, _held(op.tensor))
    grid, first = _grid(op.axes), op.axes[0].name
    n_rows = max(1, _BLOCK // max(1, math.prod(op.tensor.shape[1:])))
    for begin in range(0, len(out), n_rows):
        rows = grid[first][begin : begin + n_rows]
        out[begin : begin + n_rows] = _point(op.body, grid | {first: rows}, known)
    return out


def _held(tensor: Tensor) -> np.dtype[Any]:
    """The dtype of the array of a tensor."""
    return DTYPES[tensor.dtype].numpy


def _computed(dtype: str) -> np.dtype[Any]:
    """NumPy type of the evaluation of elements of `dtype`."""
    record = DTYPES[dtype]
    return np.dtype(np.float64) if record.is_float else record.numpy


def _widen(a: Array) -> Array:
    known = dtype_of_array(a.dtype)
    return a.astype(np.float64, copy=False) if known is not None and known.is_float else a


def counted(dag: ComputeDAG, inputs: Mapping[str, Array]) -> dict[str, tuple[slice, ...]]:
    """The part of every output that counts: elements behind a limit are nobody's."""
    values: Env = {p.name: np.asarray(inputs[p.name]) for p in dag.placeholders}
    ops = [(name, dag[name]) for name in dag.outputs]
    return {name: _window(op, values) if isinstance(op, Compute) else () for name, op in ops}


def _window(op: Compute, values: Env) -> tuple[slice, ...]:
    """The elements of `op` in front of its limits."""
    return tuple(slice(a.extent) for a in _clipped(op, values).axes)


def _clipped(op: Compute, values: Env) -> Compute:
    """`op` with axes that end at their limits."""

    def axis(a: Axis) -> Axis:
        if a.limit is None:
            return a
        return Axis(a.name, min(a.extent, max(0, int(_point(a.limit, {}, values)))))

    axes = tuple(map(axis, op.axes))
    tensor = Tensor(op.name, tuple(a.extent for a in axes), op.tensor.dtype)
    return Compute(tensor, axes, op.body)


def _compute(op: Compute, values: Env) -> Array:
    """All elements; those that are nobody's are NaN, or the largest integer."""
    if not op.limits:
        return _all_points(op, values)
    part = _clipped(op, values)
    record = DTYPES[op.tensor.dtype]
    garbage = math.nan if record.is_float else record.high
    whole = np.full(op.tensor.shape, garbage, _computed(op.tensor.dtype))
    whole[_window(op, values)] = _all_points(part, values)
    return whole


def _all_points(op: Compute, values: Env) -> Array:
    if op.scanned is not None:
        return _scanned(op, op.scanned, values)
    if not isinstance(op.body, Reduce):
        return _pointwise(op, values)
    product = _contraction(op, op.body, values)
    return product if product is not None else _reduce(op, op.body, values)


def _scanned(op: Compute, n_apart: int, values: Env) -> Array:
    """Elements one after the other, those of parts that do not depend on one another at once."""
    running = _running(op, n_apart, values)
    if running is not None:
        return running
    record = DTYPES[op.tensor.dtype]
    out = np.full(op.tensor.shape, math.nan if record.is_float else 0, _computed(record.name))
    known = {**values, op.name: out}
    for at in np.ndindex(op.tensor.shape[n_apart:]):
        axes = op.axes[n_apart:]
        here: dict[str, Expr] = {a.name: idx(i) for a, i in zip(axes, at, strict=True)}
        whole = (*op.axes[:n_apart], *(Axis(a.name, 1) for a in axes))
        body = simplify(substitute(op.body, here))
        if isinstance(body, Reduce):
            limited = (a if a.limit is None else _at(a, here) for a in body.axes)
            body = replace(body, axes=tuple(limited))
        tensor = Tensor(f"{op.name}'", tuple(a.extent for a in whole), op.tensor.dtype)
        element = _all_points(Compute(tensor, whole, body), known)
        out[(..., *at)] = element.reshape(op.tensor.shape[:n_apart])
    return out


def _running(op: Compute, n_apart: int, values: Env) -> Array | None:
    """A scan y[…, i] = (y[…, i - 1], neutral where i is 0) ∘ f(…, i) as a running sum or product of
    NumPy's; None for others."""
    body = op.body
    if n_apart != len(op.axes) - 1 or not isinstance(body, Binary) or body.op not in _RUNNING:
        return None
    *rows, i = (a.var for a in op.axes)
    before = op.tensor[(*rows, maximum(sub(i, idx(1)), idx(0)))]
    neutral = Const(DTYPES[op.tensor.dtype].literal(_RUNNING[body.op][0]), op.tensor.dtype)
    own = any(x.tensor.name == op.name for x in loads(body.b))
    if own or body.a != select(compare("lt", idx(0), i), before, neutral):
        return None
    terms = _point(body.b, _grid(op.axes), values)
    terms = np.broadcast_to(terms, op.tensor.shape).astype(_computed(op.tensor.dtype))
    return _RUNNING[body.op][1].accumulate(terms, axis=-1, dtype=terms.dtype)


_RUNNING: Mapping[str, tuple[int, np.ufunc]] = {"add": (0, np.add), "mul": (1, np.multiply)}


def _at(axis: Axis, indices: Mapping[str, Expr]) -> Axis:
    """A ragged axis where some indices are known."""
    assert axis.limit is not None
    return replace(axis, limit=substitute(axis.limit, dict(indices)))


def _pointwise(op: Compute, values: Env) -> Array:
    """All points at once; one value at a time of an axis that the body tells apart."""
    axis = _chooser(op)
    if axis is None:
        return np.array(np.broadcast_to(_point(op.body, _grid(op.axes), values), op.tensor.shape))
    out = np.empty(op.tensor.shape, _computed(op.tensor.dtype))
    name = op.axes[axis].name
    for value in range(op.axes[axis].extent):
        body = simplify(substitute(op.body, {name: idx(value)}))
        at = (*(slice(None),) * axis, slice(value, value + 1))
        out[at] = _point(body, _grid(op.axes) | {name: np.asarray(value)}, values)
    return out


def _chooser(op: Compute) -> int | None:
    """The axis by which a body that is a choice among expressions chooses."""
    match op.body:
        case Select(cond=Compare(op="eq", a=Var(name=name), b=Const())):
            return [a.name for a in op.axes].index(name)
        case _:
            return None


def _reduce(op: Compute, body: Reduce, values: Env) -> Array:
    combine = BINARY[REDUCE_BINARY[body.op]]
    neutral = identity(body.op, op.tensor.dtype).value
    total = np.full(op.tensor.shape, neutral, _computed(op.tensor.dtype))
    grid = _grid(op.axes)
    limits = {a.name: _point(a.limit, grid, values) for a in body.axes if a.limit is not None}
    for point in itertools.product(*(range(_most(a, limits)) for a in body.axes)):
        at = {a.name: np.asarray(i) for a, i in zip(body.axes, point, strict=True)}
        term = _point(body.body, grid | at, values)
        for name, limit in limits.items():
            term = np.where(at[name] < limit, term, neutral)
        total = combine(total, term)
    return total


def _most(axis: Axis, limits: Env) -> int:
    """Values of a reduction axis, where it is ragged those of the longest row."""
    if axis.name not in limits:
        return axis.extent
    return min(axis.extent, int(limits[axis.name].max(initial=0)))


def _grid(axes: tuple[Axis, ...]) -> Env:
    out: Env = {}
    for n, a in enumerate(axes):
        shape = [1] * len(axes)
        shape[n] = a.extent
        out[a.name] = np.arange(a.extent).reshape(shape)
    return out


def _contraction(op: Compute, body: Reduce, values: Env) -> Array | None:
    """Σ a·b of affine loads as one einsum, or None where the body is anything else."""
    if body.op != "sum" or not isinstance(body.body, Binary) or body.body.op != "mul":
        return None
    axes = op.axes + body.axes
    if any(a.limit is not None for a in body.axes):
        return None
    names = [a.name for a in axes]
    operands: list[object] = []
    for e in (body.body.a, body.body.b):
        view = _factor(e, axes, values)
        if view is None:
            return None
        array, used = view
        operands += [array, [names.index(u) for u in used]]
    out = [names.index(a.name) for a in op.axes]
    present = {i for dims in operands[1::2] for i in cast("list[int]", dims)}
    if present != set(range(len(names))):
        return None
    return cast("Array", np.einsum(*operands, out, optimize=True))  # type: ignore[call-overload]


def _factor(e: Expr, axes: tuple[Axis, ...], values: Env) -> tuple[Array, list[str]] | None:
    """View of a loaded tensor, converted where the factor is: see `_strided`."""
    if isinstance(e, Load):
        return _strided(e, axes, values)
    if not isinstance(e, Cast) or not isinstance(e.a, Load):
        return None
    name = e.a.tensor.name
    converted = _widen(values[name].astype(DTYPES[e.dtype].numpy))
    return _strided(e.a, axes, {name: converted})


def _strided(load: Load, axes: tuple[Axis, ...], values: Env) -> tuple[Array, list[str]] | None:
    """View of a loaded tensor with one dimension per axis that its indices use."""
    array = np.ascontiguousarray(values[load.tensor.name])  # a product may lie in any order
    strides = dict.fromkeys((a.name for a in axes), 0)
    offset = 0
    extents = {a.name: a.extent for a in axes}
    for index, stride in zip(load.indices, array.strides, strict=True):
        form = linear(index)
        if any(not isinstance(atom, Var) or coef < 0 for atom, coef in form.terms):
            return None
        offset += form.const * stride
        for atom, coef in form.terms:
            strides[cast("Var", atom).name] += coef * stride
    used = [n for n in strides if strides[n]]
    start = np.frombuffer(array.data, np.uint8)[offset:].view(array.dtype)
    return as_strided(start, [extents[n] for n in used], [strides[n] for n in used]), used


def _point(e: Expr, env: Env, values: Env) -> Array:
    match e:
        case Const(value=value, dtype=dtype):
            return np.asarray(value, _computed(dtype))
        case Var(name=name):
            return env[name]
        case Binary(op=op, a=a, b=b):
            return BINARY[op](_point(a, env, values), _point(b, env, values))
        case Compare(op=op, a=a, b=b):
            return COMPARE[op](_point(a, env, values), _point(b, env, values))
        case Call(fn=fn, args=args):
            record, x = INTRINSICS[fn], _point(args[0], env, values)
            if record.takes != "bits":
                return record.oracle(x)
            return _widen(record.oracle(x.astype(DTYPES[dtype_of(args[0])].numpy)))
        case Select(cond=cond, a=a, b=b):
            c = _point(cond, env, values)
            return np.where(c, _point(a, env, values), _point(b, env, values))
        case Cast(dtype=dtype, a=a):
            return _widen(_point(a, env, values).astype(DTYPES[dtype].numpy))
        case Load(tensor=tensor, indices=indices):
            array = values[tensor.name]
            view = _view(array, indices, env)
            if view is not None:
                return _widen(view)
            at = [_point(i, env, values) for i in indices]
            # an index that a Select guards may lie outside: clip it, its value is not used
            clipped = [np.clip(i, 0, n - 1) for i, n in zip(at, array.shape, strict=True)]
            return _widen(cast("Array", array[tuple(clipped)]))
        case Reduce():
            raise ValueError("a reduction may only be the whole body of a computation")


def _view(array: Array, indices: Sequence[Expr], env: Env) -> Array | None:
    """The elements that plain axes and numbers pick, without copying; None for other indices."""
    at: list[int | slice] = []
    places: list[int] = []  # of the axes in the result
    n_axes = max((env[i.name].ndim for i in indices if isinstance(i, Var)), default=0)
    for index, extent in zip(indices, array.shape, strict=True):
        match index:
            case Const(value=int() as value) if 0 <= value < extent:
                at.append(value)
            case Var(name=name) if env[name].size == 1 and 0 <= env[name].item() < extent:
                at.append(env[name].item())
            case Var(name=name) if 1 < env[name].size <= extent and env[name].ndim == n_axes:
                first = env[name].flat[0]
                at.append(slice(first, first + env[name].size))
                places.append(int(np.argmax(env[name].shape)))
            case _:
                return None
    if len(set(places)) < len(places):
        return None
    order = [int(n) for n in np.argsort(places)]
    wide = [slice(None) if n in places else None for n in range(n_axes)]
    return array[tuple(at)].transpose(order)[tuple(wide)]


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "min": np.minimum,
    "max": np.maximum,
    "pow": np.float_power,  # by ½ `power` takes a square root, which -∞ has not
    "fmod": np.fmod,
    "and": np.logical_and,
    "or": np.logical_or,
    **{op.name: op.oracle for op in INTEGER_OPS.values()},
}
COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
