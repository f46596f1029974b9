"""④ End of pass `nests`: what is computed from elements that are nobody's stays inside of memory.

    x[int(i[k])]                     ->  x[min(max(int(i[k]), 0), 99)]
    a // b[k]                        ->  a // max(b[k], 1)
    x[n[0] + k]                      ->  select(#n + k < 100, x[#n + k], 0)
    select(k < n[0], x[k], y[k])     ->  select(k < #n, x[k], y[k])

`#n` is the number `n[0]`, bound at the beginning of a kernel: a condition by it is a guard, as one
by loops is, so what it does not select is not read. Elements in front of the limits have indices
inside of their tensors and keep their values. Programs without numbers (`te.numbers`) stay as they
are; so do conditions whose loads are inside of their tensors wherever they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile

from autotune.dtypes import DTYPES
from autotune.loopir.lowering import Lowering
from autotune.loopir.nodes import Body, If, Kernel, Let, PrefetchLine, Program, Stmt, Store
from autotune.loopir.visitor import kernel_ranges, map_statements, rewrite_exprs
from autotune.te.arith import Ranges, bounds, linear, simplify
from autotune.te.expr import (
    Binary,
    Const,
    Expr,
    Load,
    Select,
    add,
    both,
    children,
    compare,
    dtype_of,
    idx,
    loads,
    map_expr,
    maximum,
    minimum,
    number,
    rebuild,
    select,
    sub,
    variables,
)
from autotune.te.numbers import is_limited, is_number, spans, variable

_DIVISIONS = ("floordiv", "mod")


def contain(program: Program, lowering: Lowering) -> Program:
    """Guard or clamp what numbers and data behind a limit may make wrong."""
    dag = lowering.state.dag
    known = spans(dag)
    if not known:
        return program
    is_any = is_limited(dag)
    return replace(program, kernels=tuple(_contained(k, known, is_any) for k in program.kernels))


def _contained(kernel: Kernel, known: Mapping[str, tuple[int, int]], is_any: bool) -> Kernel:
    spans = {variable(name).name: span for name, span in known.items()}
    bound: dict[str, Load] = {}

    def one(stmt: Stmt, ranges: Ranges) -> Body | None:
        inside = _Inside({**ranges, **spans}, known, is_any, bound)
        match stmt:
            case Store() | Let() | PrefetchLine():
                return rewrite_exprs((stmt,), inside)
            case If(cond=cond) if (made := inside(cond)) != cond:
                return map_statements((replace(stmt, cond=made),), one, ranges)
        return None

    body = map_statements(kernel.body, one, kernel_ranges(kernel))
    first = sum(1 for _ in takewhile(lambda s: isinstance(s, Let), body))
    lets = (Let(name, _within(bound[name], *spans[name])) for name in sorted(bound))
    return replace(kernel, body=(*body[:first], *lets, *body[first:]))


@dataclass(slots=True)
class _Inside:
    """A rewrite of expressions. `is_any`: whether data that are indices may be anything.

    `numbers`: by variable that is used, the number that it is.
    """

    ranges: Ranges
    known: Mapping[str, tuple[int, int]]
    is_any: bool
    numbers: dict[str, Load]
    _done: dict[tuple[int, bool], tuple[Expr, Expr]] = field(default_factory=dict)

    def __call__(self, e: Expr) -> Expr:
        return self._rewritten(e, is_open=False)

    def _rewritten(self, e: Expr, is_open: bool) -> Expr:
        """`is_open`: a condition that is no guard, by numbers too, decides whether `e` counts."""
        key = (id(e), is_open)
        if key not in self._done:
            self._done[key] = e, self._made(e, is_open)
        return self._done[key][1]

    def _made(self, e: Expr, is_open: bool) -> Expr:
        match e:
            case Select(cond=cond, a=a, b=b):
                if self._has_numbers(cond) and not (
                    self._is_safe(a, cond) and self._is_safe(b, cond)
                ):
                    cond = self._bound(cond)
                    is_open = is_open or bool(loads(cond))
                cond = self._rewritten(cond, is_open)
                return select(cond, self._rewritten(a, is_open), self._rewritten(b, is_open))
            case Load():
                return self._load(e, is_open)
            case Binary(op=op, a=a, b=b) if op in _DIVISIONS and self.is_any and _is_data(b):
                divisor = maximum(self._rewritten(b, is_open), number(1, dtype_of(b)))
                return Binary(op, self._rewritten(a, is_open), divisor)
        parts = children(e)
        return rebuild(e, tuple(self._rewritten(p, is_open) for p in parts)) if parts else e

    def _load(self, e: Load, is_open: bool) -> Expr:
        at: list[Expr] = []
        guard: Expr = Const(True, "bool")
        for index, extent in zip(e.indices, e.tensor.shape, strict=True):
            moves = bool(variables(index)) and self._has_numbers(index)
            index = self._bound(index) if moves else index
            has_data = any(not self._is_known(x) for x in loads(index))
            index = self._rewritten(index, is_open)
            if self._is_inside(index, extent):
                at.append(index)
            elif has_data:
                at.append(self._clamped(index, extent) if self.is_any else index)
            elif moves:
                guard = both(guard, self._within_dimension(index, extent))
                at.append(index)
            else:
                at.append(_within(index, 0, extent - 1) if is_open else index)
        return select(guard, Load(e.tensor, tuple(at)), number(0, e.tensor.dtype))

    def _within_dimension(self, index: Expr, extent: int) -> Expr:
        low = compare("ge", index, idx(0))
        return simplify(both(low, compare("lt", index, idx(extent))), self.ranges)

    def _clamped(self, index: Expr, extent: int) -> Expr:
        """`index` inside; where it is data and a loop, the data alone, so lanes stay neighbours."""
        form = linear(index)
        data = [atom for atom, c in form.terms if loads(atom) and c == 1]
        if len(data) == 1:
            rest = sub(index, data[0])
            rest = linear(rest).expr
            try:
                low, high = bounds(rest, self.ranges)
            except KeyError:
                return _within(index, 0, extent - 1)
            if high - low < extent:
                return add(_within(data[0], -low, extent - 1 - high), rest)
        return _within(index, 0, extent - 1)

    def _is_safe(self, e: Expr, cond: Expr) -> bool:
        """Whether every load of `e` is inside of its tensor, or by data, whatever `cond` is."""
        return all(
            self._is_inside(i, n)
            or (not self._has_numbers(i) and (loads(i) or not variables(i) & variables(cond)))
            for x in loads(e)
            for i, n in zip(x.indices, x.tensor.shape, strict=True)
        )

    def _is_inside(self, index: Expr, extent: int) -> bool:
        try:
            low, high = bounds(self._named(index), self.ranges)
        except KeyError:
            return False
        return low >= 0 and high < extent

    def _is_known(self, e: Load) -> bool:
        return is_number(e) and e.tensor.name in self.known

    def _has_numbers(self, e: Expr) -> bool:
        return any(map(self._is_known, loads(e)))

    def _bound(self, e: Expr) -> Expr:
        """`e` with variables for numbers, which the kernel is to bind."""
        self.numbers.update(
            (variable(x.tensor.name).name, x) for x in loads(e) if self._is_known(x)
        )
        return self._named(e)

    def _named(self, e: Expr) -> Expr:
        def one(x: Expr) -> Expr | None:
            if isinstance(x, Load) and self._is_known(x):
                return variable(x.tensor.name)
            return None

        return map_expr(e, one)


def _is_data(e: Expr) -> bool:
    return DTYPES[dtype_of(e)].is_integer and bool(loads(e))


def _within(e: Expr, low: int, high: int) -> Expr:
    return minimum(maximum(e, idx(low)), idx(high))
