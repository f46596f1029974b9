"""③ The rewrite behind the `narrow_products` step: products of float32 by products of bfloat16.

    y = Σ x·w    ->    x = x₀ + x₁ + …,  w = w₀ + w₁ + …   (each part of the remainder before it)
                       y = Σ x₁·w₀ + x₀·w₁ + x₀·w₀

Every product of parts is exact in float32, in which all are added up. With three of them results
are off by 4e-6 to 6e-6 of the largest one; with six, of three parts each, by less than a sum in
float32 is. Parts of constants are made at compile time, those of data by a stage of their own.

An infinity has parts that are not finite, and so has a value that rounds to one: where the data are
not bounded, the sum is computed as it is defined (`loopir/guarding.py`). Weights are the sums of
their parts there (`loopir/restoring.py`): off by 2⁻¹⁷ with two, and stored once. Parts below 2⁻¹²⁶
are flushed to zero: elements below 1e-36 are products of bfloat16 alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce

from autotune.errors import ScheduleError
from autotune.schedule.state import Rewritten, Transformed
from autotune.te.dag import Compute, ComputeDAG, Op, Placeholder, compute
from autotune.te.expr import (
    Axis,
    Binary,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    Tensor,
    add,
    cast,
    compare,
    idx,
    is_guard,
    loads,
    mul,
    select,
    sub,
)

ORDERS = {3: ((1, 0), (0, 1), (0, 0)), 6: ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0))}
"""The parts that are multiplied, by the number of products, smallest products first."""
_NARROW, _WIDE = "bfloat16", "float32"


def product(dag: ComputeDAG, name: str) -> tuple[Expr, Expr] | None:
    """The factors of sum `name` if it is one of float32 products of elements; None otherwise."""
    op = dag[name]
    if not isinstance(op, Compute) or not isinstance(op.body, Reduce) or op.body.op != "sum":
        return None
    body = op.body.body
    if op.tensor.dtype != _WIDE or not isinstance(body, Binary) or body.op != "mul":
        return None
    is_computed = not all(dag.is_constant(x.tensor.name) for x in op.reads)
    factors = (body.a, body.b)
    return factors if is_computed and all(map(_is_element, factors)) else None


def _is_element(e: Expr) -> bool:
    """Whether a factor is an element, or an element inside of zeros."""
    match e:
        case Load(tensor=Tensor(dtype="float32")):
            return not any(map(loads, e.indices))
        case Select(a=Load() as inside, b=Const(value=0.0)):
            return is_guard(e) and _is_element(inside)
    return False


@lru_cache(maxsize=64)
def rewrite(dag: ComputeDAG, name: str, n_products: int) -> Rewritten:
    """Replace the products of sum `name` by `n_products` (3 or 6) of bfloat16 each.

        name.x.parts[p, …] = part p of x[…]                 bfloat16
        name[…] = Σ (x.parts[1]·w.part0 + x.parts[0]·w.part1) + x.parts[0]·w.part0

    Raises ScheduleError when `name` is no sum of products of float32 elements.
    """
    factors, orders = product(dag, name), ORDERS.get(n_products)
    op = dag[name]
    if factors is None or orders is None or not isinstance(op, Compute):
        raise ScheduleError(f"{name} is no sum of products of float32 elements, by 3 or by 6")
    maker = _Parts(dag, name, 1 + max(map(max, orders)))
    terms = [
        mul(cast(_WIDE, maker.part(factors[0], i)), cast(_WIDE, maker.part(factors[1], j)))
        for i, j in orders
    ]
    changed = Compute(op.tensor, op.axes, Reduce("sum", reduce(add, terms), op.reduce_axes))
    ops: list[Op] = []
    for old in dag.ops:
        ops += [*maker.ops, changed] if old.name == name else [old]
    new = ComputeDAG(tuple(ops), dag.outputs)
    return Rewritten(new, tuple(maker.derived), maker.transformed, tuple(maker.stored))


class _Parts:
    """The parts of all tensors that a sum reads, made when they are first asked for."""

    def __init__(self, dag: ComputeDAG, name: str, n_parts: int) -> None:
        self.dag, self.name, self.n_parts = dag, name, n_parts
        self.ops: list[Op] = []
        self.derived: list[Compute] = []
        self.stored: list[tuple[str, tuple[Tensor, ...]]] = []
        self._of: dict[str, Callable[[Load, int], Expr]] = {}

    @property
    def transformed(self) -> tuple[Transformed, ...]:
        """The stages of parts, the first of which tell whether data are finite and bounded."""
        stages = (op for op in self.ops if isinstance(op, Compute))
        return tuple(Transformed(self.name, op.name, ((op.axes[0].name, (0,)),)) for op in stages)

    def part(self, factor: Expr, n: int) -> Expr:
        """The n-th part of a factor."""
        match factor:
            case Load(tensor=tensor):
                if tensor.name not in self._of:
                    constant = self.dag.is_constant(tensor.name)
                    self._of[tensor.name] = (self._stored if constant else self._staged)(tensor)
                return self._of[tensor.name](factor, n)
            case Select(cond=cond, a=a):
                return select(cond, self.part(a, n), Const(0.0, _NARROW))
        raise ScheduleError(f"{self.name} multiplies what is no element")

    def _stored(self, tensor: Tensor) -> Callable[[Load, int], Expr]:
        """Constants, one tensor for each part: they are packed one beside the other."""
        axes = _axes(tensor)
        x = Load(tensor, tuple(a.var for a in axes))
        made = [
            compute(f"{tensor.name}.part{n}", axes, part)
            for n, part in enumerate(_parts(x, self.n_parts))
        ]
        self.derived += made
        self.stored.append((tensor.name, tuple(m.tensor for m in made)))
        self.ops += [Placeholder(m.tensor, constant=True) for m in made]
        return lambda load, n: Load(made[n].tensor, load.indices)

    def _staged(self, tensor: Tensor) -> Callable[[Load, int], Expr]:
        """Data, one stage for all parts: they are computed in one place."""
        axes, which = _axes(tensor), Axis("part", self.n_parts)
        parts = _parts(Load(tensor, tuple(a.var for a in axes)), self.n_parts)
        body = parts[-1]
        for n in reversed(range(self.n_parts - 1)):
            body = select(compare("eq", which.var, idx(n)), parts[n], body)
        made = compute(f"{self.name}.{tensor.name}.parts", (which, *axes), body)
        self.ops.append(made)
        return lambda load, n: Load(made.tensor, (idx(n), *load.indices))


def _axes(tensor: Tensor) -> tuple[Axis, ...]:
    return tuple(Axis(f"d{n}", e) for n, e in enumerate(tensor.shape))


def _parts(x: Expr, n: int) -> list[Expr]:
    """`x` rounded, the remainder rounded, and so on."""
    out, rest = [], x
    for _ in range(n):
        out.append(cast(_NARROW, rest))
        rest = sub(rest, cast(_WIDE, out[-1]))
    return out
