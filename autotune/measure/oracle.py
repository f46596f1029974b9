"""⑦ The oracle of a task: seeded inputs, expected outputs, and the tolerance of the comparison.

Activations are standard normal. A constant inside a reduction of K terms is normal/√K, so that sums
are of order 1; another of rank 1 (a bias) is 0.1·normal. Where a DAG takes log, sqrt, rsqrt, pow,
fmod or the inverse of a function that has bounds, or divides by something that is no literal, all
values are uniform(0.5, 1.5) instead, scaled alike.
Integers are indices of the smallest dimension that they choose from; else bytes are any, so are
words whose bits are read, and others are flags: 0 and 1. Floats whose sum of products is read as an
integer are bytes too. What scales a sum of products of bytes makes it of order 50. Tensors that say
where the rows of a ragged reduction begin make all rows equally long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.dtypes import DTYPES, dtype_of_array, is_float
from autotune.te.arith import linear
from autotune.te.at_numbers import NO_NUMBERS, Numbers
from autotune.te.dag import Compute, ComputeDAG, Placeholder
from autotune.te.evaluate import counted, derive, evaluate
from autotune.te.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Reduce,
    Var,
    call,
    cast,
    dtype_of,
    f32,
    loads,
    map_expr,
    mul,
    walk,
)
from autotune.te.intrinsics import INTRINSICS
from autotune.te.numbers import numbers
from autotune.te.ragged import pointers
from autotune.te.roundoff import roundoff
from autotune.te.whole_numbers import whole_factors, whole_sums

Array = NDArray[Any]

_UNIT_ROUNDOFF = 2.0**-24
_DEVIATIONS = 8.0
_ROUNDING, _MOST_FLOPS = 2.0**-21, 1e8
"""The relative error by which values are moved to find ties, and the largest tasks with them."""
_TO_WHOLE = ("round", "floor", "ceil")
_FEW, _SHARE_OF_STEPS, _LARGEST_STEP = 2, 1e-3, 0.05
_WORDS = (-255, 255)
"""Range of bytes less their zero points."""
_BYTE, _SIGNED_BYTE, _STEPS = 147.0, 74.0, 50.0
"""Root mean squares of uniform bytes, and of their sum when it is scaled."""


@dataclass(frozen=True, slots=True)
class ReferenceValues:
    """Values of all placeholders by name, and the outputs that they must give.

    Of every output, by name: the tolerance, the largest finite size, whether all of it is finite.
    """

    values: Mapping[str, Array]
    expected: Mapping[str, Array]
    tolerances: Mapping[str, float]
    largest: Mapping[str, float]
    is_finite: Mapping[str, bool]
    dag: ComputeDAG
    parts: Mapping[str, tuple[slice, ...]]
    """Of every output, by name: the elements that count."""
    is_stepped: bool = False
    """Whether values are rounded to whole numbers on the way."""
    roundoff: float = 0.0
    """Spacing of the narrowest floats that values are rounded to on the way; 0 for float32."""
    _derived: dict[tuple[Compute, ...], Mapping[str, Array]] = field(default_factory=dict)
    _ties: dict[str, Array] = field(default_factory=dict)

    def ties(self, name: str) -> Array:
        """Elements of an output that fall on either side of a step where floats are rounded.

        By experiment: a mean of two bytes is a tie in every second case, and what its scale is
        rounded to decides. None where evaluating the task takes long.
        """
        if not self._ties and self.dag.flops <= _MOST_FLOPS:
            found = {n: np.zeros(a.shape, bool) for n, a in self.expected.items()}
            for factor in (1 + _ROUNDING, 1 - _ROUNDING):
                for n, a in evaluate(_before_steps(self.dag, factor), self.values).items():
                    with np.errstate(invalid="ignore"):
                        error = np.subtract(a, self.expected[n], dtype=np.float64)
                    found[n] |= np.abs(error) > self.tolerances[n]
            self._ties.update(found)
        return self._ties.get(name, np.zeros(self.expected[name].shape, bool))

    def constants(self, derived: tuple[Compute, ...]) -> Mapping[str, Array]:
        """All values and those that a program derives from them; kept for the next program."""
        if derived and derived not in self._derived:
            self._derived[derived] = derive(derived, self.values)
        return self._derived[derived] if derived else self.values

    @property
    def n_bytes(self) -> int:
        """Bytes of all values, derived ones included."""
        kept = [self.values, *self._derived.values()]
        return sum({id(a): a.nbytes for values in kept for a in values.values()}.values())


@dataclass(frozen=True, slots=True)
class Verdict:
    """Largest error over the largest expected value, and the fault ("" for none).

    The error is that beyond one step of the narrowest floats: on which side of a tie a sum lies is
    chance.
    """

    max_error: float
    problem: str


def reference(
    dag: ComputeDAG,
    seed: int,
    relative_tolerance: float,
    expected: Mapping[str, Array] | None = None,
    at: Numbers = NO_NUMBERS,
) -> ReferenceValues:
    """Inputs of a task and its outputs, evaluated in NumPy unless they are known (`expected`).

    `at`: values of numbers (`te.numbers`), by the names of their tensors.
    """
    values = random_values(dag, seed, at)
    outputs = evaluate(dag, values) if expected is None else expected
    parts = counted(dag, values)
    used = {n: a[parts[n]] for n, a in outputs.items()}
    tolerances = {n: tolerance(dag, a, relative_tolerance) for n, a in used.items()}
    largest = {n: _largest(a) for n, a in used.items()}
    is_finite = {n: bool(np.isfinite(a).all()) for n, a in used.items()}
    narrow = roundoff(dag)
    return ReferenceValues(
        values, outputs, tolerances, largest, is_finite, dag, parts, is_stepped(dag), narrow
    )


def _before_steps(dag: ComputeDAG, factor: float) -> ComputeDAG:
    """A task whose floats are multiplied by `factor` where they become whole numbers."""

    def moved(e: Expr) -> Expr | None:
        match e:
            case Call(fn=fn, args=(x,)) if fn in _TO_WHOLE and is_float(dtype_of(x)):
                return call(fn, mul(map_expr(x, moved), f32(factor)))
            case Cast(dtype=dtype, a=x) if not is_float(dtype) and dtype_of(x) == "float32":
                is_whole = any(isinstance(n, Call) and n.fn in _TO_WHOLE for n in walk(x))
                return None if is_whole else cast(dtype, mul(map_expr(x, moved), f32(factor)))
        return None

    ops = tuple(
        replace(op, body=map_expr(op.body, moved)) if isinstance(op, Compute) else op
        for op in dag.ops
    )
    return ComputeDAG(ops, dag.outputs)


def random_values(dag: ComputeDAG, seed: int, at: Numbers = NO_NUMBERS) -> dict[str, Array]:
    """Values of all placeholders; equal for equal seeds and structurally equal DAGs.

    `at`: values of numbers, by the names of their tensors; others are those of three quarters of
    the most on average.
    """
    rng = np.random.default_rng([seed, int(dag.key, 16)])
    positive = needs_positive(dag)
    values = {p.name: _values(dag, p, rng, positive) for p in dag.placeholders}
    return values | {name: np.full_like(values[name], n) for name, n in at.items()}


def needs_positive(dag: ComputeDAG) -> bool:
    """Whether some operation of the DAG is undefined or unstable for values around zero."""
    for op in dag.computes:
        for e in walk(op.body):
            match e:
                case Call(fn=fn) if INTRINSICS[fn].needs_positive:
                    return True
                case Binary(op="pow" | "fmod"):
                    return True
                case Binary(op="div", b=b) if not isinstance(b, Const):
                    return True
    return False


def is_stepped(dag: ComputeDAG) -> bool:
    """Whether floats are rounded to whole numbers: the last bit of one may then decide a step."""
    for op in dag.computes:
        for e in walk(op.body):
            match e:
                case Call(fn=fn) if fn in _TO_WHOLE:
                    return True
                case Cast(dtype=dtype, a=a) if not is_float(dtype) and is_float(dtype_of(a)):
                    return True
    return False


def tolerance(dag: ComputeDAG, expected: Array, relative: float) -> float:
    """Largest absolute error that is rounding: relative·max|expected| + 8·u·√K.

    u = 2⁻²⁴ is float32's unit roundoff, K the longest reduction of the DAG. A sum of K terms rounds
    K times, each time by at most u times a partial sum; partial sums are of order 1 by the choice
    of the values, and roundings go either way, so the error is a random walk whose standard
    deviation is at most u·√K in whatever order the sum is taken. Eight deviations leave room for
    the largest of millions of outputs and for a second such step (Winograd transforms, a softmax).
    The first term allows for scale and for approximated functions; it is 10⁻⁴ by default, far above
    rounding (4·10⁻⁶ at K = 25088) and far below what a missing term causes (1/√K ≥ 6·10⁻³). The
    second matters where outputs are small because they cancel. Integers must agree exactly.
    """
    if not _is_float(expected):
        return 0.0
    longest = max((_reduction_length(op) for op in dag.computes), default=1)
    relative += roundoff(dag)
    return relative * _largest(expected) + _DEVIATIONS * _UNIT_ROUNDOFF * math.sqrt(longest)


def check(name: str, found: Array, ref: ReferenceValues) -> Verdict:
    """Compare one output with the oracle. Values that are not finite must be the same.

    Elements behind a limit are not looked at.
    """
    part = ref.parts[name]
    found, expected = found[part], ref.expected[name][part]
    if ref.is_finite[name]:  # the passes below would find the same, but take longer
        error = np.asarray(np.subtract(found, expected, dtype=np.float64))
        worst = float(np.abs(error, out=error).max(initial=0.0))
        if worst <= ref.tolerances[name]:
            return Verdict(_beyond(worst / (ref.largest[name] or 1.0), ref), "")
    finite = np.isfinite(expected)
    differs = ~finite & ~((found == expected) | (np.isnan(found) & np.isnan(expected)))
    broken = finite & ~np.isfinite(found)
    n_broken = int(np.count_nonzero(broken | differs))
    if n_broken:
        what = (
            f"{n_broken} of {expected.size} elements of {name} are NaN, infinite or never written"
        )
        return Verdict(math.inf, f"{what}; the first at {_first(broken | differs)}")
    error = np.abs(np.subtract(found, expected, dtype=np.float64, where=finite, out=_zeros(found)))
    worst = float(error.max(initial=0.0))
    relative = worst / (ref.largest[name] or 1.0)
    if worst <= ref.tolerances[name]:
        return Verdict(_beyond(relative, ref), "")
    at = np.unravel_index(int(error.argmax()), error.shape)
    where = tuple(int(i) for i in at)
    wrong = error > ref.tolerances[name]
    n_wrong = int(np.count_nonzero(wrong))
    if ref.is_stepped and relative <= _LARGEST_STEP and _are_steps(wrong, name, ref, part):
        # another step is no inaccuracy
        rest = float(error.max(initial=0.0, where=~wrong)) / (ref.largest[name] or 1.0)
        return Verdict(_beyond(rest, ref), "")
    return Verdict(
        relative,
        f"{n_wrong} of {error.size} elements of {name} are wrong: at {where} expected "
        f"{expected[at]:g}, found {found[at]:g} (tolerance {ref.tolerances[name]:.2g})",
    )


def _is_float(values: Array) -> bool:
    known = dtype_of_array(values.dtype)
    return known is not None and known.is_float


def _beyond(relative: float, ref: ReferenceValues) -> float:
    """An error less one step of the narrowest floats."""
    return max(0.0, relative - ref.roundoff)


def _are_steps(
    wrong: NDArray[np.bool_], name: str, ref: ReferenceValues, part: tuple[slice, ...]
) -> bool:
    """Whether rounding to whole numbers explains that elements are off: they are few, or all but a
    few of them are ties.

    A float32 lies so near to the middle of two steps with a probability of about 2·10⁻⁵.
    """
    most = max(_FEW, _SHARE_OF_STEPS * wrong.size)
    return bool(wrong.sum() <= most or (wrong & ~ref.ties(name)[part]).sum() <= most)


def _values(dag: ComputeDAG, p: Placeholder, rng: np.random.Generator, positive: bool) -> Array:
    shape, dtype = p.tensor.shape, DTYPES[p.tensor.dtype].numpy
    if p.name in (rows := pointers(dag)):
        return np.linspace(0, rows[p.name], p.tensor.size).astype(dtype).reshape(shape)
    if p.name in (known := numbers(dag)):  # usual lengths: three quarters on average
        least, most = known[p.name]
        return rng.integers(max(least, (most + 1) // 2), most + 1, shape).astype(dtype)
    if dtype.kind in "iu" and dtype.itemsize <= 2 and not _chooses(dag, p.name):
        low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.itemsize == 1 else _WORDS
        return rng.integers(low, high + 1, shape).astype(dtype)
    if _holds_bits(dag, p.name):
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    if not is_float(p.tensor.dtype):
        return rng.integers(0, _limit(dag, p.name), shape).astype(dtype)
    if p.name in whole_factors(dag):
        return rng.integers(-128, 128, shape).astype(dtype)
    if positive:
        values = rng.random(shape, dtype=np.float32) + np.float32(0.5)
    else:
        values = rng.standard_normal(shape, dtype=np.float32)
    values *= np.float32(_scale(dag, p))
    return values.astype(dtype, copy=False)


def _limit(dag: ComputeDAG, name: str) -> int:
    """The smallest dimension that values of a tensor index; 2 if none."""
    sizes = [
        max(1, size - _reach(index, op))
        for op in dag.consumers(name)
        for load in op.reads
        for index, size in zip(load.indices, load.tensor.shape, strict=True)
        if any(x.tensor.name == name for x in loads(index))
    ]
    return min(sizes, default=2)


def _chooses(dag: ComputeDAG, name: str) -> bool:
    """Whether values of a tensor are indices of a load."""
    return any(
        any(x.tensor.name == name for x in loads(index))
        for op in dag.consumers(name)
        for load in op.reads
        for index in load.indices
    )


def _holds_bits(dag: ComputeDAG, name: str) -> bool:
    """Whether the bits of a tensor of integers are read, one by one or in bytes."""
    for op in dag.consumers(name):
        for e in walk(op.body):
            match e:
                case Binary(op="shl" | "shr", a=Load(tensor=tensor)) if tensor.name == name:
                    return True
                case Binary(op="bitand" | "bitor" | "bitxor" | "bytedot", a=a, b=b):
                    if any(isinstance(x, Load) and x.tensor.name == name for x in (a, b)):
                        return True
    return False


def _reach(index: Expr, op: Compute) -> int:
    """The largest offset that loop indices add to an index that is read from memory."""
    extents = {a.name: a.extent for a in (*op.axes, *op.reduce_axes)}
    terms = ((a, c) for a, c in linear(index).terms if isinstance(a, Var) and c > 0)
    return sum(c * (extents[a.name] - 1) for a, c in terms)


def _scale(dag: ComputeDAG, p: Placeholder) -> float:
    if not p.constant:
        return 1.0
    terms = _terms_scaled_by(dag, p.name)
    if terms:
        return _STEPS / (_BYTE * _SIGNED_BYTE * math.sqrt(terms))
    length = max((_reduction_length(c) for c in dag.consumers(p.name)), default=1)
    if length > 1:
        return 1.0 / math.sqrt(length)
    return 0.1 if len(p.tensor.shape) == 1 else 1.0


def _terms_scaled_by(dag: ComputeDAG, name: str) -> int:
    """Terms of the sum of integers that a constant is multiplied with as a float; 0 for none."""
    for op in dag.consumers(name):
        for e in walk(op.body):
            match e:
                case Binary(op="mul", a=a, b=Load(tensor=tensor)) if tensor.name == name:
                    return max(map(_reduction_length, _sums_in(dag, a)), default=0)
    return 0


def _sums_in(dag: ComputeDAG, e: Expr) -> list[Compute]:
    """Sums of whole numbers that a value is, after conversions and together with other terms."""
    match e:
        case Cast(a=a):
            return _sums_in(dag, a)
        case Binary(op="add" | "sub", a=a, b=b):
            return _sums_in(dag, a) + _sums_in(dag, b)
        case Load(tensor=tensor) if isinstance(op := dag[tensor.name], Compute):
            if not isinstance(op.body, Reduce):
                return _sums_in(dag, op.body)
            return [op] if tensor.name in whole_sums(dag) or not is_float(tensor.dtype) else []
    return []


def _reduction_length(op: Compute) -> int:
    return math.prod(a.extent for a in op.reduce_axes)


def _largest(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(np.abs(finite).max(initial=0.0))


def _zeros(like: Array) -> NDArray[np.float64]:
    return np.zeros(like.shape)


def _first(mask: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))
