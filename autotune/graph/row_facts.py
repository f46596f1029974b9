"""① Facts of tensors beside intervals: maxima and norms of rows, and values derived from them.

    max[n] = max x[n, r]        maximum of x over dimension 1
    exp(x[n, c] - max[n])       never above 1, and 1 for some c: their sum is at least 1
    sum[n] = Σ x[n, r]²         x[n, c] · rsqrt(sum[n] · share + ε) is within ±1 / √share

Without these, a softmax could divide by zero, and a normalisation by anything. A row is what is
left of the dimensions of a tensor when others are reduced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.te.dag import Compute
from autotune.te.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Reduce,
    Var,
    idx,
    variables,
)
from autotune.te.value_ranges import Values

Dims = frozenset[int]
Evaluate = Callable[[Expr], Values]

_SLACK = 1.01
"""More than rounding adds to a norm."""


@dataclass(frozen=True, slots=True)
class Peak:
    """In each row over `dims` there is an element of `value`."""

    dims: Dims
    value: float


@dataclass(frozen=True, slots=True)
class Norm:
    """With ‖x‖ the root of the sum of squares over `dims` of tensor `of`: a tensor is at least
    `factor`·‖x‖^`power` for a power of 1 or 2; at most that, and positive, for -1."""

    of: str
    dims: Dims
    factor: float
    power: int


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Of one tensor. `maximum`: of which tensor, over which of its dimensions; `square`: of which
    tensor each element is the square."""

    maximum: tuple[str, Dims] | None = None
    peak: Peak | None = None
    square: str | None = None
    norm: Norm | None = None

    @property
    def sources(self) -> frozenset[str]:
        """The tensors that facts are told of."""
        of = (self.maximum and self.maximum[0], self.square, self.norm and self.norm.of)
        return frozenset(name for name in of if name)

    def renamed(self, names: Mapping[str, str]) -> RowFacts:
        """The same facts of other tensors; without those of tensors that have no other name."""
        maximum, square, norm = self.maximum, self.square, self.norm
        if maximum is not None:
            maximum = (names[maximum[0]], maximum[1]) if maximum[0] in names else None
        if norm is not None:
            known = names.get(norm.of)
            norm = None if known is None else Norm(known, norm.dims, norm.factor, norm.power)
        return RowFacts(maximum, self.peak, square and names.get(square), norm)


NONE = RowFacts()


@dataclass(frozen=True)
class Rows:
    """Facts of the tensors of one definition; `keys` are their names in `known`."""

    keys: Mapping[str, str]
    known: Mapping[str, RowFacts]

    def of(self, x: Load) -> RowFacts:
        """Facts of the tensor that is read."""
        return self.known.get(self.keys[x.tensor.name], NONE)

    def made_by(self, op: Compute, evaluate: Evaluate) -> RowFacts:
        """Facts of the result of a computation."""
        body = op.body
        if isinstance(body, Reduce):
            return self._reduced(op, body)
        return RowFacts(
            peak=self._own_peak(op), square=self._square(op), norm=self._own_norm(op, evaluate)
        )

    def _reduced(self, op: Compute, body: Reduce) -> RowFacts:
        term = body.body
        x = term if isinstance(term, Load) else _root(term)
        dims = None if x is None else _reduced_dims(op, x)
        if x is None or dims is None:
            return NONE
        name = self.keys[x.tensor.name]
        if body.op == "max" and x is term:
            return RowFacts(maximum=(name, dims))
        square = self.of(x).square if x is term else name
        if body.op != "sum" or square is None:
            return NONE
        return RowFacts(norm=Norm(square, dims, 1 / _SLACK, 2))

    def _square(self, op: Compute) -> str | None:
        x = _root(op.body)
        return self.keys[x.tensor.name] if x is not None and _is_whole_copy(x, op) else None

    # --- maxima ---

    def _own_peak(self, op: Compute) -> Peak | None:
        found = self.peak(op.body, op)
        if found is None:
            return None
        dims = frozenset(d for d, a in enumerate(op.axes) if a.name in found[0])
        return Peak(dims, found[1]) if len(dims) == len(found[0]) else None

    def peak(self, e: Expr, op: Compute) -> tuple[frozenset[str], float] | None:
        """Axes of `op`, and a value that `e` has at some place along them."""
        match e:
            case Binary(op="sub", a=Load() as x, b=Load() as top):
                names = self.below_maximum(x, top)
                at = {i.name: d for d, i in enumerate(x.indices) if isinstance(i, Var)}
                if names is None or not _are_whole(x, {n: at[n] for n in names}, op):
                    return None
                return names, 0.0
            case Call(fn="exp", args=(a,)):
                found = self.peak(a, op)
                return None if found is None else (found[0], math.exp(found[1]))
            case Load(indices=indices):
                known = self.of(e).peak
                if known is None:
                    return None
                own = {i.name: d for d in known.dims if isinstance(i := indices[d], Var)}
                others = [i for d, i in enumerate(indices) if d not in known.dims]
                is_free = len(own) == len(known.dims) and own.keys().isdisjoint(_names(others))
                is_free = is_free and _are_whole(e, own, op)
                return (frozenset(own), known.value) if is_free else None
            case _:
                return None

    def below_maximum(self, x: Load, top: Load) -> frozenset[str] | None:
        """The indices over which `top` is the maximum of the row of `x`."""
        known = self.of(top).maximum
        return None if known is None else self._along(x, top, *known)

    def _along(self, x: Load, row: Load, of: str, dims: Dims) -> frozenset[str] | None:
        """The indices of `x` in its row, where `row` is that row, reduced over `dims` of `of`."""
        if self.keys[x.tensor.name] != of:
            return None
        kept = [i for d, i in enumerate(x.indices) if d not in dims]
        if len(row.indices) == len(x.indices):
            rest = [i for d, i in enumerate(row.indices) if d not in dims]
        else:
            rest = list(row.indices) if kept else []
        at = [x.indices[d] for d in dims]
        names = frozenset(v.name for v in at if isinstance(v, Var))
        if kept != rest or len(names) != len(at) or not names.isdisjoint(_names(kept)):
            return None
        return names

    # --- norms ---

    def _own_norm(self, op: Compute, evaluate: Evaluate) -> Norm | None:
        found = self._norm(op.body, evaluate)
        return found[0] if found is not None and _is_whole_copy(found[1], op) else None

    def normalised(self, e: Expr, evaluate: Evaluate) -> float | None:
        """A bound of x / ‖x‖ and of x · 1 / ‖x‖."""
        if not isinstance(e, Binary):
            return None
        power = {"mul": -1, "div": 1}.get(e.op)
        pairs = ((e.a, e.b), (e.b, e.a)) if e.op == "mul" else ((e.a, e.b),)
        bounds = (self._over_norm(x, y, power, evaluate) for x, y in pairs)
        return next((b for b in bounds if b is not None), None)

    def _over_norm(self, x: Expr, y: Expr, power: int | None, evaluate: Evaluate) -> float | None:
        found = self._norm(y, evaluate) if isinstance(x, Load) else None
        if found is None or found[0].power != power or found[0].factor <= 0:
            return None
        assert isinstance(x, Load)
        norm, row = found
        if self._along(x, row, norm.of, norm.dims) is None:
            return None
        return norm.factor * _SLACK if power < 0 else _SLACK / norm.factor

    def _norm(self, e: Expr, evaluate: Evaluate) -> tuple[Norm, Load] | None:
        """A norm, and where it is read, that `e` is bounded by."""
        if isinstance(e, Load):
            known = self.of(e).norm
            return None if known is None else (known, e)
        if not isinstance(e, Binary | Call | Cast):
            return None
        match e:
            case Binary(op="mul", a=a, b=Const(value=value)) if value > 0:
                return _scaled(self._norm(a, evaluate), float(value))
            case Binary(op="div", a=Const(value=value), b=b) if value > 0:
                return _inverse(self._norm(b, evaluate), float(value))
            case Binary(op="add" | "max", a=a, b=b):
                for one, other in ((a, b), (b, a)):
                    found = self._norm(one, evaluate)
                    is_more = e.op == "max" or (found is not None and evaluate(other).low >= 0)
                    if found is not None and found[0].power > 0 and is_more:
                        return found
                return None
            case Call(fn="sqrt", args=(a,)):
                return _root_of(self._norm(a, evaluate))
            case Call(fn="rsqrt", args=(a,)):
                return _inverse(_root_of(self._norm(a, evaluate)), 1.0)
            case Binary(op="pow", a=a, b=Const(value=0.5)):
                return _root_of(self._norm(a, evaluate))
            case Binary(op="pow", a=a, b=Const(value=-0.5)):
                return _inverse(_root_of(self._norm(a, evaluate)), 1.0)
            case _:
                return None


Found = tuple[Norm, Load] | None


def _scaled(found: Found, by: float) -> Found:
    if found is None:
        return None
    norm, row = found
    return Norm(norm.of, norm.dims, norm.factor * by, norm.power), row


def _root_of(found: Found) -> Found:
    if found is None or found[0].power != 2:
        return None
    norm, row = found
    return Norm(norm.of, norm.dims, math.sqrt(norm.factor), 1), row


def _inverse(found: Found, of: float) -> Found:
    if found is None or found[0].power != 1 or found[0].factor <= 0:
        return None
    norm, row = found
    return Norm(norm.of, norm.dims, of / norm.factor, -1), row


def _root(e: Expr) -> Load | None:
    """x of x² as a product or a power."""
    match e:
        case Binary(op="mul", a=Load() as x, b=other) if x == other:
            return x
        case Binary(op="pow", a=Load() as x, b=Const(value=2)):
            return x
    return None


def _names(indices: list[Expr]) -> frozenset[str]:
    return frozenset(n for i in indices for n in variables(i))


def _is_whole_copy(x: Load, op: Compute) -> bool:
    """Whether `op` has an element for each of `x`, at the same indices."""
    if len(x.indices) != len(op.axes):
        return False
    pairs = zip(x.indices, op.axes, x.tensor.shape, strict=True)
    return all(
        extent == a.extent and (i == a.var or (i == idx(0) and extent == 1))
        for i, a, extent in pairs
    )


def _are_whole(x: Load, dims: Mapping[str, int], op: Compute) -> bool:
    """Whether axes of `op` run over whole dimensions of `x`."""
    extents = {a.name: a.extent for a in (*op.axes, *op.reduce_axes) if a.limit is None}
    return all(extents.get(name) == x.tensor.shape[d] for name, d in dims.items())


def _reduced_dims(op: Compute, x: Load) -> Dims | None:
    """The dimensions of `x` that `op` reduces, as a whole; None where its rows are others."""
    over = {a.name: a for a in op.reduce_axes}
    if any(a.limit is not None for a in over.values()):
        return None
    dims: set[int] = set()
    kept: list[str] = []
    for d, index in enumerate(x.indices):
        if index == idx(0) and x.tensor.shape[d] == 1:
            kept.append("")
        elif not isinstance(index, Var):
            return None
        elif index.name in over and over[index.name].extent == x.tensor.shape[d]:
            dims.add(d)
        else:
            kept.append(index.name)
    if len(dims) != len(over):
        return None
    keeps = len(op.axes) == len(x.indices)
    own = [a.name for d, a in enumerate(op.axes) if not (keeps and d in dims)]
    is_scalar = not kept and [a.extent for a in op.axes] == [1]
    fits = len(own) == len(kept) and all(k in ("", o) for k, o in zip(kept, own, strict=True))
    return frozenset(dims) if is_scalar or fits else None
