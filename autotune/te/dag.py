"""② A task: a subgraph as a DAG of placeholders and computations.

    n, m = Axis("i", 128), Axis("j", 64)
    a, b = placeholder("a", (128, 32)), placeholder("b", (32, 64), constant=True)
    k = Axis("k", 32)
    c = compute("c", (n, m), Reduce("sum", mul(a.tensor[n, k], b.tensor[k, m]), (k,)))
    dag = ComputeDAG((a, b, c), ("c",))

Every Compute writes one element of its tensor per point of its axes; axis extents are the tensor's
shape. One that reads earlier elements of itself is a scan: its elements come one after the other.
`ComputeDAG.key` identifies the computation whatever its tensors and axes are called.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from autotune.brief import brief
from autotune.dtypes import is_float
from autotune.te.expr import (
    BOOL,
    INDEX,
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
    distinct,
    dtype_of,
    loads,
    map_expr,
    walk,
)
from autotune.te.integers import INTEGER_OPS
from autotune.te.lengths import mean_extent
from autotune.te.routes import Route, route


@dataclass(frozen=True, slots=True)
class Placeholder:
    """An input. `constant` inputs (weights) are known at compile time and may be packed."""

    tensor: Tensor
    constant: bool = False

    @property
    def name(self) -> str:
        """Name of the tensor."""
        return self.tensor.name


@brief
@dataclass(frozen=True)
class Compute:
    """`tensor[axes] = body` for every point of `axes`; `body` may be a Reduce."""

    tensor: Tensor
    axes: tuple[Axis, ...]
    body: Expr

    @property
    def name(self) -> str:
        """Name of the tensor."""
        return self.tensor.name

    def __hash__(self) -> int:
        return hash((self.tensor, self.axes))  # bodies are long, and rarely differ alone

    @cached_property
    def reduce_axes(self) -> tuple[Axis, ...]:
        """Axes that are reduced over; empty for a pointwise computation."""
        return self.body.axes if isinstance(self.body, Reduce) else ()

    @cached_property
    def route(self) -> Route | None:
        """Route of the terms of a scattered reduction; None for others."""
        return route(self.body, self.axes) if isinstance(self.body, Reduce) else None

    @cached_property
    def reads(self) -> list[Load]:
        """Every load of the body, and of the limits of axes."""
        return [*loads(self.body), *(x for limit in self.limits.values() for x in loads(limit))]

    @cached_property
    def loads_of(self) -> dict[str, tuple[Load, ...]]:
        """The different ones of `reads` by the name of their tensor."""
        found: dict[str, list[Load]] = {}
        for load in dict.fromkeys(self.reads):
            found.setdefault(load.tensor.name, []).append(load)
        return {name: tuple(loads) for name, loads in found.items()}

    @cached_property
    def scanned(self) -> int | None:
        """Of a computation that reads elements of itself: the number of its leading axes along
        which it does not, so that these parts do not depend on one another. None for others.

        Its elements come one after the other, the last axis fastest; `body` may read earlier ones.
        """
        own = [x for x in self.reads if x.tensor.name == self.name]
        if not own:
            return None
        for n, axis in enumerate(self.axes):
            if any(x.indices[n] != axis.var for x in own):
                return n
        return len(self.axes)

    @cached_property
    def limits(self) -> dict[str, Expr]:
        """The limits of the spatial axes that have one, by axis."""
        return {a.name: a.limit for a in self.axes if a.limit is not None}


Op = Placeholder | Compute


def placeholder(
    name: str, shape: Sequence[int], dtype: str = "float32", constant: bool = False
) -> Placeholder:
    """Declare an input tensor of static `shape`."""
    return Placeholder(Tensor(name, tuple(shape), dtype), constant)


def compute(name: str, axes: Sequence[Axis], body: Expr) -> Compute:
    """Define a tensor whose shape is the extents of `axes`.

    Raises ValueError where two axes, those of a reduction included, have one name.
    """
    reduced = body.axes if isinstance(body, Reduce) else ()
    names = [a.name for a in (*axes, *reduced)]
    if len(set(names)) < len(names):
        raise ValueError(f"two axes of {name} have one name: {', '.join(names)}")
    shape = tuple(a.extent for a in axes)
    return Compute(Tensor(name, shape, dtype_of(body)), tuple(axes), body)


@brief
@dataclass(frozen=True)
class ComputeDAG:
    """Operations in topological order and the names of those that are results."""

    ops: tuple[Op, ...]
    outputs: tuple[str, ...]
    _by_name: dict[str, Op] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {op.name: op for op in self.ops})
        self._check()

    def _check(self) -> None:
        if len(self._by_name) != len(self.ops):
            raise ValueError("tensor names of a DAG must be unique")
        seen: set[str] = set()
        for op in self.computes:
            for load in chain(distinct(op.body), *map(distinct, op.limits.values())):
                if not isinstance(load, Load):
                    continue
                known = self._by_name.get(load.tensor.name)
                if load.tensor.name == op.name and op.scanned is not None:
                    continue
                if known is None or (isinstance(known, Compute) and known.name not in seen):
                    raise ValueError(f"{op.name} reads {load.tensor.name} before it is defined")
            seen.add(op.name)

    def __getitem__(self, name: str) -> Op:
        return self._by_name[name]

    def is_constant(self, name: str) -> bool:
        """Whether tensor `name` is an input whose values are known when a program is built."""
        op = self[name]
        return isinstance(op, Placeholder) and op.constant

    @cached_property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """Inputs in order, constants included."""
        return tuple(op for op in self.ops if isinstance(op, Placeholder))

    @cached_property
    def computes(self) -> tuple[Compute, ...]:
        """Computations in topological order."""
        return tuple(op for op in self.ops if isinstance(op, Compute))

    def consumers(self, name: str) -> tuple[Compute, ...]:
        """Computations that read tensor `name`."""
        return tuple(c for c in self.computes if name in c.loads_of and c.name != name)

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of one evaluation (a multiply-add counts two)."""
        return sum(flops(c) for c in self.computes)

    @cached_property
    def n_bytes(self) -> int:
        """Bytes that must move at least: every input read and every output written once."""
        out = sum(self[name].tensor.n_bytes for name in self.outputs)
        return out + sum(p.tensor.n_bytes for p in self.placeholders)

    @cached_property
    def key(self) -> str:
        """Structural identity: 16 hex digits, independent of names, complete in dtype and shape."""
        return hashlib.sha256(print_dag(anonymous(self)).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return print_dag(self)


def shape_text(dag: ComputeDAG) -> str:
    """Shapes of a task: `1x56x56x64 (3x3x64x64) -> 1x56x56x64`, constants in parentheses.

    Vectors among the constants (bias, scale) are left out.
    """
    inputs = ["x".join(map(str, p.tensor.shape)) for p in dag.placeholders if not p.constant]
    weights = [p.tensor.shape for p in dag.placeholders if p.constant]
    big = ["x".join(map(str, s)) for s in weights if len(s) > 1]
    constants = f" ({', '.join(big)})" if big else ""
    outputs = ["x".join(map(str, dag[name].tensor.shape)) for name in dag.outputs]
    return f"{', '.join(inputs)}{constants} -> {', '.join(outputs)}"


def anonymous(dag: ComputeDAG) -> ComputeDAG:
    """The same DAG with tensors called t0, t1, … and axes i0, i1, … in order of appearance."""
    tensors: dict[str, Tensor] = {}
    ops: list[Op] = []
    for n, op in enumerate(dag.ops):
        tensor = Tensor(f"t{n}", op.tensor.shape, op.tensor.dtype)
        if isinstance(op, Compute):
            names = [a.name for a in op.axes + op.reduce_axes]
            known = tensors | {op.name: tensor}
            ops.append(rename(op, tensor, {a: f"i{k}" for k, a in enumerate(names)}, known))
        else:
            ops.append(Placeholder(tensor, op.constant))
        tensors[op.name] = tensor
    return ComputeDAG(tuple(ops), tuple(tensors[name].name for name in dag.outputs))


def rename(
    op: Compute, tensor: Tensor, axes: dict[str, str], tensors: dict[str, Tensor]
) -> Compute:
    """Copy a computation with another result tensor, other axis names and other inputs."""

    def one(e: Expr) -> Expr | None:
        match e:
            case Var(name=name):
                return Var(axes.get(name, name))
            case Load(tensor=t, indices=indices):
                return Load(tensors.get(t.name, t), tuple(map_expr(i, one) for i in indices))
            case Reduce(op=kind, body=body, axes=reduce_axes):
                return Reduce(kind, map_expr(body, one), tuple(axis(a) for a in reduce_axes))
            case _:
                return None

    def axis(a: Axis) -> Axis:
        limit = None if a.limit is None else map_expr(a.limit, one)
        return Axis(axes.get(a.name, a.name), a.extent, limit)

    return Compute(tensor, tuple(axis(a) for a in op.axes), map_expr(op.body, one))


# --- text -------------------------------------------------------------------------------------

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%"}
_INFIX |= {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_INFIX |= {"and": "and", "or": "or"}
_INFIX |= {op.name: op.infix for op in INTEGER_OPS.values() if op.infix}


def print_expr(e: Expr) -> str:
    """Readable infix text of an expression."""
    match e:
        case Const(value=value, dtype=dtype):
            digits = 17 if dtype == "float64" else 9  # enough to tell any two values apart
            return f"{value:.{digits}g}" if is_float(dtype) else str(value)
        case Var(name=name):
            return name
        case Binary(op=op, a=a, b=b) | Compare(op=op, a=a, b=b):
            left, right = print_expr(a), print_expr(b)
            return f"({left} {_INFIX[op]} {right})" if op in _INFIX else f"{op}({left}, {right})"
        case Call(fn=fn, args=args):
            return f"{fn}({', '.join(map(print_expr, args))})"
        case Select(cond=cond, a=a, b=b):
            return f"select({print_expr(cond)}, {print_expr(a)}, {print_expr(b)})"
        case Cast(dtype=dtype, a=a):
            return f"{dtype}({print_expr(a)})"
        case Load(tensor=tensor, indices=indices):
            return f"{tensor.name}[{', '.join(_bare(i) for i in indices)}]"
        case Reduce(op=op, body=body, axes=axes):
            return f"{op}({_bare(body)}, over {', '.join(map(_range, axes))})"


def _range(axis: Axis) -> str:
    limit = "" if axis.limit is None else f" and {_bare(axis.limit)}"
    return f"{axis.name}<{axis.extent}{limit}"


def _bare(e: Expr) -> str:
    text = print_expr(e)
    return text[1:-1] if isinstance(e, Binary | Compare) and e.op in _INFIX else text


def print_dag(dag: ComputeDAG) -> str:
    """One line per operation: `c[i<128, j<64] = sum(a[i, k] * b[k, j], over k<32)`."""
    lines = []
    for op in dag.ops:
        dims = ", ".join(map(str, op.tensor.shape))
        if isinstance(op, Placeholder):
            kind = "constant" if op.constant else "input"
            lines.append(f"{op.name} = {kind}({dims}) {op.tensor.dtype}")
            continue
        mark = "output " if op.name in dag.outputs else ""
        lines.append(mark + print_compute(op))
    return "\n".join(lines)


def print_compute(op: Compute) -> str:
    """`c[i<128, j<64] = …`; the dtype is shown where it is not float32."""
    axes = ", ".join(map(_range, op.axes))
    dtype = "" if op.tensor.dtype == "float32" else f" {op.tensor.dtype}"
    return f"{op.name}[{axes}]{dtype} = {_bare(op.body)}"


def n_terms(op: Compute) -> int:
    """How often a computation evaluates its body: points, times the terms of a sum."""
    routed = op.route.places if op.route else ()
    points = math.prod(a.extent for a in op.axes if a.name not in routed)
    if isinstance(op.body, Reduce):
        points *= math.prod(mean_extent(op.body, op.axes, a) for a in op.reduce_axes)
    return points


def flops(op: Compute) -> int:
    """Arithmetic operations of one computation, those on indices apart."""
    per_point = sum(
        1
        for e in walk(op.body)
        if isinstance(e, Binary | Call) and dtype_of(e) not in (INDEX, BOOL)
    )
    return n_terms(op) * (per_point + (1 if op.reduce_axes else 0))
