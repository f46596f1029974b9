"""⑨ Lower bound of a task's latency: the roofline of its arithmetic and compulsory traffic.

    bound = max(Σ flops / peak, constants / cold bandwidth, beyond L1 / warm bandwidth)

Where the space has minimal filtering, a sum has the products that are left in the transformed
domain, by the algorithm that leaves fewest; the transforms are not counted.

Every byte is counted once, and only where the computation provably reads it: a table of embeddings
is not read as a whole. The bound may be low; it must not be high, since tasks stop near it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from autotune.dtypes import dtype_bytes
from autotune.measure.timing.peak import Peaks, Rates
from autotune.result import MeasureResult, MeasureStatus
from autotune.schedule.narrow_products import product
from autotune.schedule.steps import NarrowProducts, Winograd
from autotune.schedule.winograd import products_left
from autotune.search.policy import algorithm
from autotune.search.rules.algorithms import (
    N_PRODUCTS,
    is_narrow,
    narrow_products_pay,
    rearranged_forms,
)
from autotune.search.space import Sketch
from autotune.target import Target
from autotune.target.isa import MultiplyAdd
from autotune.te.arith import bounds
from autotune.te.at_numbers import at_usual, usual
from autotune.te.dag import Compute, ComputeDAG, Op, Placeholder, flops, n_terms
from autotune.te.expr import Binary, Const, Expr, Load, variables, walk
from autotune.te.products import instructions_of

_ROUNDING = 1e-6
_MOST_OF_PEAK = 2.0
_BYTES = ("uint8", "int8")
"""Operands of the products of `bytedot`."""


def bound_s(dag: ComputeDAG, peaks: Peaks, sketches: Iterable[Sketch]) -> float:
    """Seconds below which no program of the space `sketches` can come.

    Where axes follow numbers, the geometric mean over usual ones, as times of programs are.
    """
    known = tuple(sketches)
    rate, dots, is_narrowed = peaks.flops_per_s, peaks.dots, _has(NarrowProducts, known)
    ways = {tuple(s for s in algorithm(k) if isinstance(s, Winograd)) for k in known} or {()}

    def one_s(one: ComputeDAG) -> float:
        least = min(arithmetic_s(one, rate, dots, is_narrowed, filtered) for filtered in ways)
        return max(least, *traffic(one).seconds(peaks))

    bounds_s = [one_s(one) for one in at_usual(dag)]
    least = min(bounds_s)
    return statistics.geometric_mean(bounds_s) if least and len(bounds_s) > 1 else least


def believed(result: MeasureResult, bound_s: float | None) -> MeasureResult:
    """A result of a fleet's device; WRONG_ANSWER where it took less than half of the bound.

    Peaks were measured, so a program may come below its bound, but not that far: the clock of the
    device is wrong, or another program ran. What is measured here is taken as it is.
    """
    if not (result.device and bound_s and result.times_s):
        return result
    latency_s = statistics.median(result.times_s)
    if latency_s >= bound_s / _MOST_OF_PEAK:
        return result
    error = f"{latency_s:.3g} s is more than twice as fast as peak rates allow ({bound_s:.3g} s)"
    return replace(result, status=MeasureStatus.WRONG_ANSWER, times_s=(), error=error)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Compulsory bytes of one evaluation: of constants, and all that are read or written."""

    constant_bytes: int
    all_bytes: int

    def seconds(self, peaks: Peaks) -> tuple[float, float]:
        """Least seconds for the constants, which are cold, and for all that L1 cannot hold."""
        return (
            self.constant_bytes / peaks.cold_bytes_per_s,
            (self.all_bytes - peaks.l1_bytes) / peaks.warm_bytes_per_s,
        )


def traffic(dag: ComputeDAG) -> Traffic:
    """The bytes that a task moves for certain, each counted once."""
    read = {p: bytes_read(dag, p) for p in dag.placeholders}
    constants = sum(n for p, n in read.items() if p.constant)
    return Traffic(constants, sum(read.values()) + sum(_written(dag[n]) for n in dag.outputs))


def _written(op: Op) -> int:
    """Bytes of a result, as far as its axes go."""
    axes = op.axes if isinstance(op, Compute) else ()
    shape = [a.extent for a in axes] or op.tensor.shape
    return math.prod(shape) * dtype_bytes(op.tensor.dtype)


class Resource(StrEnum):
    """Part of the machine that sets a bound: multiply-adds, cold reads, or L2."""

    ARITHMETIC = "arithmetic"
    WEIGHTS = "weights"
    ACTIVATIONS = "activations"


def binding(dag: ComputeDAG, bound: float, peaks: Peaks) -> Resource:
    """The term of `bound_s` that `bound` comes from."""
    cold_s, warm_s = traffic(usual(dag)).seconds(peaks)
    if bound > max(cold_s, warm_s) * (1 + _ROUNDING):
        return Resource.ARITHMETIC
    return Resource.WEIGHTS if cold_s >= warm_s else Resource.ACTIVATIONS


def arithmetic_s(
    dag: ComputeDAG,
    flops_per_s: float,
    dots: Rates,
    is_narrowed: bool = False,
    filtered: Iterable[Winograd] = (),
) -> float:
    """Seconds of all computations, each by the fastest multiply-add that fits it.

    `is_narrowed`: products of float32 may be several of a narrower form. `filtered`: minimal
    filtering of some computations, of which the products alone count.
    """
    rates = dict(dots)
    left = {f.stage: products_left(dag, f.stage, f.taps, f.tile) for f in filtered}

    def rate(op: Compute, forms: Iterable[MultiplyAdd]) -> float:
        found = [flops_per_s, *(rates[f] for f in forms)]
        if is_narrowed and op.name not in left and product(dag, op.name):
            found += [per_s / N_PRODUCTS for f, per_s in dots if is_narrow(f)]
        return max(found)

    found = ((op, arithmetic(dag, left.get(op.name, op), tuple(rates))) for op in dag.computes)
    return sum(n / rate(op, forms) for op, (n, forms) in found)


def arithmetic(
    dag: ComputeDAG, op: Compute, forms: tuple[MultiplyAdd, ...]
) -> tuple[int, tuple[MultiplyAdd, ...]]:
    """Operations of a computation that no program saves, and the `forms` that add up several terms.

    Where its body sums products of bytes these alone: their operands are made once for many points.
    """
    n_dots = sum(isinstance(e, Binary) and e.op == "bytedot" for e in walk(op.body))
    exact = tuple(f for f in forms if f.operands == _BYTES and f.unit is None)
    if n_dots and exact:
        return n_dots * n_terms(op) * 2 * exact[0].terms, exact
    others = rearranged_forms(dag, op, forms) if op in dag.computes else ()
    return flops(op), (*instructions_of(op, forms), *others)


def dots_of(dags: Iterable[ComputeDAG], target: Target) -> tuple[MultiplyAdd, ...]:
    """The forms of multiply-add with several terms that some computation can use."""
    narrow = tuple(filter(is_narrow, target.isa.forms)) if narrow_products_pay(target) else ()
    found: dict[MultiplyAdd, None] = {}
    for dag in dags:
        for op in dag.computes:
            found |= dict.fromkeys(arithmetic(dag, op, target.isa.forms)[1])
            found |= dict.fromkeys(narrow if narrow and product(dag, op.name) else ())
    return tuple(found)


def _has(kind: type, sketches: Iterable[Sketch]) -> bool:
    """Whether an algorithm of that kind is in the space."""
    return any(isinstance(step, kind) for sketch in sketches for step in algorithm(sketch))


def bytes_read(dag: ComputeDAG, p: Placeholder) -> int:
    """Bytes of an input that some computation reads for certain.

    Loads at several numbers of a dimension, as of a sum that is written out, read apart.
    """
    found = [(op, load) for op in dag.consumers(p.name) for load in op.reads]
    reads = [(op, load) for op, load in found if load.tensor.name == p.name]
    dims = range(len(p.tensor.shape))
    told = [d for d in dims if all(isinstance(x.indices[d], Const) for _, x in reads)]
    apart: dict[tuple[Expr, ...], int] = {}
    for op, load in reads:
        place = tuple(load.indices[d] for d in told)
        apart[place] = max(apart.get(place, 0), _elements(op, load))
    return sum(apart.values()) * dtype_bytes(p.tensor.dtype)


def _elements(op: Compute, load: Load) -> int:
    """Distinct elements that a load reads over all points of its computation."""
    extents = {a.name: a.extent for a in op.axes + op.reduce_axes}
    dims = zip(load.indices, load.tensor.shape, strict=True)
    distinct = math.prod(min(size, _values(index, extents)) for index, size in dims)
    return min(distinct, math.prod(extents.values()))


def _values(index: Expr, extents: Mapping[str, int]) -> int:
    """Distinct values of an index: exact for windows; 1 where data decide."""
    if any(isinstance(e, Load) for e in walk(index)):
        return 1
    low, high = bounds(index, {name: (0, n - 1) for name, n in extents.items()})
    return min(math.prod(extents[name] for name in variables(index)), high - low + 1)
