"""⑤ The state of emission at a point of a kernel: loops, lanes, and values available for reuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import gcd
from typing import Protocol, TypeAlias

from autotune.codegen.emission.text import FunctionBuilder, Type, Value
from autotune.dtypes import dtype_bytes
from autotune.loopir.nodes import Buffer
from autotune.te.arith import Linear, linear, offset, simplify
from autotune.te.expr import (
    Binary,
    Const,
    Expr,
    Load,
    Tensor,
    Var,
    idx,
    loads,
    substitute,
    variables,
)

Terms: TypeAlias = tuple[tuple[Expr, int], ...]


class StraightLine:
    """Values computed in a region of straight-line code and valid to its end."""

    def __init__(self, parent: StraightLine | None, stored: frozenset[str]) -> None:
        self.parent = parent
        self.stored = stored
        self.values: dict[object, Value] = {}
        self.loads: dict[str, dict[object, Value]] = {}


@dataclass(frozen=True, slots=True)
class Guard:
    """The condition of a masked load, and the loops that it depends on."""

    holds: Value
    loops: frozenset[str]


class _Places:
    """What a linear form becomes where loops are unrolled: the terms that are left, by which are.

    A bit of the key of `left` is a variable that has no number. `numbers`: variables and factors.
    """

    __slots__ = ("form", "left", "numbers", "strides")

    def __init__(self, form: Linear) -> None:
        self.form = form
        self.numbers = tuple(
            (1 << n, atom.name, coef)
            for n, (atom, coef) in enumerate(form.terms)
            if isinstance(atom, Var)
        )
        self.left: dict[int, tuple[Terms, bool]] = {}
        self.strides: dict[str, int | None] = {}

    def stride(self, loop: str) -> int | None:
        """Elements between neighbours along a loop; None when not constant."""
        if loop not in self.strides:
            is_opaque = self.form.is_opaque_in(loop)
            self.strides[loop] = None if is_opaque else self.form.coefficient(loop)
        return self.strides[loop]

    def terms(self, mask: int) -> tuple[Terms, bool]:
        """The terms of `mask` and the opaque ones, and whether there are such."""
        plain = sum(bit for bit, _, _ in self.numbers)
        kept = tuple(t for n, t in enumerate(self.form.terms) if mask >> n & 1 or ~plain >> n & 1)
        return kept, len(self.numbers) < len(self.form.terms)


@dataclass(slots=True)
class Frame:
    """`buffers` and `pointers` by tensor; `env`: loops and lets, as numbers where unrolled;
    `ranges`: lowest and highest value of those that are not.

    `lanes`: the vectorised loop around, and how many iterations it has; `widths`: of the vectors
    that were last stored to a tensor. `extents`: iterations of the unrolled loops of this scope;
    `conditions`: dependences of the conditions around; `depends`: dependences of lets.
    """

    buffers: dict[str, Buffer]
    pointers: dict[str, Value]
    env: dict[str, int | Value] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    lanes: tuple[str, int] | None = None
    widths: dict[str, int] = field(default_factory=dict)
    extents: dict[str, int] = field(default_factory=dict)
    conditions: frozenset[str] = frozenset()
    depends: dict[str, frozenset[str]] = field(default_factory=dict)
    _scope: StraightLine = field(default_factory=lambda: StraightLine(None, frozenset()))
    _forms: dict[int, tuple[object, Linear]] = field(default_factory=dict)
    _known: dict[object, tuple[Expr, Expr]] = field(default_factory=dict)
    _resolutions: dict[object, tuple[Linear, Linear]] = field(default_factory=dict)
    _variables: dict[int, tuple[object, tuple[str, ...]]] = field(default_factory=dict)
    _places: dict[int, _Places] = field(default_factory=dict)
    _interned: dict[Terms, Terms] = field(default_factory=dict)
    _bases: dict[tuple[int, str | None], tuple[Terms, Terms, int]] = field(default_factory=dict)

    # --- loops --------------------------------------------------------------------------------

    def unrolled(self) -> dict[str, Expr]:
        """The loops whose value is a number here."""
        return {v: idx(n) for v, n in self.env.items() if isinstance(n, int)}

    def known(self, cond: Expr) -> Expr:
        """A condition with the values of unrolled loops in it: a Const where they decide it."""
        names = self._names(cond, lambda: cond)
        here = [(n, self.env.get(n), self.ranges.get(n)) for n in names]
        values: dict[str, Expr] = {n: idx(v) for n, v, _ in here if isinstance(v, int)}
        key = id(cond), *((values.get(n), None if n in values else at) for n, _, at in here)
        found = self._known.get(key)
        if found is None or found[0] is not cond:
            found = self._known[key] = cond, simplify(substitute(cond, values), self.ranges)
        return found[1]

    def _names(self, of: object, expr: Callable[[], Expr]) -> tuple[str, ...]:
        """Variables of the expression of an object that occurs again and again."""
        found = self._variables.get(id(of))
        if found is None or found[0] is not of:
            found = self._variables[id(of)] = of, tuple(sorted(variables(expr())))
        return found[1]

    # --- addresses ----------------------------------------------------------------------------

    def form(self, key: object, tensor: Tensor, indices: tuple[Expr, ...]) -> Linear:
        """Element offset of access `key`, as a linear form over loops."""
        found = self._forms.get(id(key))
        if found is None or found[0] is not key:
            total = offset(indices, self.buffers[tensor.name].strides)
            found = self._forms[id(key)] = (key, total)
        return found[1]

    def expanded(self, form: Linear) -> Linear:
        """The form with the values of unrolled loops in it, inside opaque atoms too.

        Equal terms are one object.
        """
        places = self._places_of(form)
        const, mask, env = form.const, 0, self.env
        for bit, name, coef in places.numbers:
            bound = env.get(name)
            if type(bound) is int:
                const += bound * coef
            else:
                mask |= bit
        left = places.left.get(mask)
        if left is None:
            terms, is_opaque = places.terms(mask)
            left = places.left[mask] = self.interned(terms), is_opaque
        out = Linear(left[0], const)
        return self._resolved(form, out) if left[1] else out

    def _places_of(self, form: Linear) -> _Places:
        found = self._places.get(id(form))
        if found is None:
            found = self._places[id(form)] = _Places(form)
        return found

    def interned(self, terms: Terms) -> Terms:
        """The object that stands for all equal terms, so that its identity does for a key."""
        return self._interned.setdefault(terms, terms)

    def base(self, terms: Terms) -> tuple[Terms, int]:
        """`terms` without the lane, interned, and the greatest common divisor of their factors."""
        lane = self.lanes[0] if self.lanes else None
        key = id(terms), lane
        found = self._bases.get(key)
        if found is None:
            rest = tuple(t for t in terms if not isinstance(t[0], Var) or t[0].name != lane)
            found = terms, self.interned(rest), gcd(*(coef for _, coef in rest))
            self._bases[key] = found
        return found[1], found[2]

    def _resolved(self, form: Linear, rest: Linear) -> Linear:
        """`rest`, which the unrolled loops leave of `form`, with their values in opaque atoms."""
        names = self._names(form, lambda: form.expr)
        values: dict[str, int] = {n: v for n in names if isinstance(v := self.env.get(n), int)}
        key = id(form), *(values.get(n) for n in names)
        found = self._resolutions.get(key)
        if found is None or found[0] is not form:
            here: dict[str, Expr] = {n: idx(v) for n, v in values.items()}
            whole = linear(substitute(rest.expr, here))
            whole = Linear(self.interned(whole.terms), whole.const)
            found = self._resolutions[key] = form, whole
        return found[1]

    def parts(self, form: Linear, outside: frozenset[str]) -> tuple[Linear, Linear, int]:
        """`form` in two: the terms that the loops `outside` fix, and those of the loops inside.

        Third: the most that the second part becomes; its least is 0.
        """
        rolled = [n for n, v in self.env.items() if not isinstance(v, int)]
        depth = max((k for k, n in enumerate(rolled) if n in outside), default=-1)
        inside = {*rolled[depth + 1 :], *(self.unrolled().keys() - outside)}
        fixed: list[tuple[Expr, int]] = []
        walk: list[tuple[Expr, int]] = []
        const = reach = 0
        for atom, coef in form.terms:
            if not isinstance(atom, Var) or coef < 0 or atom.name not in inside:
                fixed.append((atom, coef))
                continue
            value = self.env[atom.name]
            if isinstance(value, int):
                const += coef * value
                reach += coef * value
            else:
                walk.append((atom, coef))
                reach += coef * self.ranges[atom.name][1]
        return Linear(tuple(fixed), form.const), Linear(tuple(walk), const), reach

    def lane_stride(self, form: Linear) -> int | None:
        """Elements between neighbouring lanes; None when not constant."""
        return self.stride(form, self.lanes[0]) if self.lanes else 0

    def stride(self, form: Linear, loop: str) -> int | None:
        """Elements between neighbours along an unrolled loop; None when not constant."""
        return self._places_of(form).stride(loop)

    def without_lane(self, form: Linear) -> Linear:
        """Terms of `form` without the lane: the address of lane 0, if the rest begins at 0."""
        name = self.lanes[0] if self.lanes else ""
        return Linear(tuple((a, c) for a, c in form.terms if name not in variables(a)), form.const)

    def stored_width(self, tensor: Tensor, form: Linear, stride: int) -> int:
        """Lanes of the vectors, as they were stored, that hold the elements of a load of `tensor`.

        For strides of 2, 4 and 8, and groups of as many elements; 0 where there are none such.
        """
        width = self.widths.get(tensor.name, 1)
        count = self.lanes[1] if self.lanes else 1
        if stride not in (2, 4, 8) or not _is_power(width) or not _is_power(count) or width < count:
            return 0
        size = self.buffers[tensor.name].n_bytes // dtype_bytes(tensor.dtype)
        groups = size % stride == 0 and all(c % stride == 0 for _, c in form.terms)
        return width if groups and stride * count % width == 0 else 0

    def lane_period(self, form: Linear) -> int | None:
        """Period in lanes, each one element further, of repeating elements; None: none."""
        if self.lanes is None:
            return None
        lane = Var(self.lanes[0])
        rest = [(a, c) for a, c in form.terms if self.lanes[0] in variables(a)]
        match rest:
            case [(Binary(op="mod", a=a, b=Const(value=n)), 1)] if a == lane:
                return int(n)
        return None

    @contextmanager
    def without_lanes(self) -> Iterator[tuple[str, int]]:
        """Scope of scalar code, for one lane."""
        lanes, self.lanes = self.lanes, None
        assert lanes is not None
        yield lanes
        self.lanes = lanes

    @contextmanager
    def under(self, cond: Expr) -> Iterator[None]:
        """Scope of iterations under condition `cond`."""
        outer, self.conditions = self.conditions, self.conditions | self.depending(cond)
        yield
        self.conditions = outer

    def depending(self, e: Expr) -> frozenset[str]:
        """The loops and lets that `e` depends on, also by way of lets."""
        names = frozenset(variables(e))
        return names.union(*(self.depends.get(name, ()) for name in names))

    # --- values to share ----------------------------------------------------------------------

    @contextmanager
    def scope(self, stored: frozenset[str]) -> Iterator[None]:
        """Scope to whose end values are valid; it stores to tensors `stored`."""
        outer, self._scope = self._scope, StraightLine(self._scope, stored)
        extents, self.extents = self.extents, {}
        yield
        self._scope, self.extents = outer, extents
        for tensor in stored:
            self.forget(tensor)

    def find(self, key: object) -> Value | None:
        """A value that was kept here or further out."""
        scope: StraightLine | None = self._scope
        while scope is not None:
            if key in scope.values:
                return scope.values[key]
            scope = scope.parent
        return None

    def keep(self, key: object, value: Value) -> Value:
        """Make a value available to the rest of this region."""
        self._scope.values[key] = value
        return value

    def find_load(self, tensor: str, key: object) -> Value | None:
        """Value loaded before from a tensor, unless it has been stored to since."""
        scope: StraightLine | None = self._scope
        while scope is not None:
            found = scope.loads.get(tensor, {}).get(key)
            if found is not None or tensor in scope.stored:
                return found
            scope = scope.parent
        return None

    def keep_load(self, tensor: str, key: object, value: Value) -> None:
        """Make an element available to the rest of this region, until its tensor is stored to."""
        self._scope.loads.setdefault(tensor, {})[key] = value

    def forget_all(self) -> None:
        """A let has another value, on which addresses and elements of this region may depend."""
        self._scope.values.clear()
        self._scope.loads.clear()

    def forget(self, tensor: str) -> None:
        """Elements of a tensor that was just stored to must be loaded anew."""
        self._scope.loads.pop(tensor, None)


def reads_memory(terms: tuple[tuple[Expr, int], ...]) -> bool:
    """Whether an address depends on memory, which may change."""
    return any(not isinstance(atom, Var) and loads(atom) for atom, _ in terms)


def _is_power(n: int) -> bool:
    """Whether `n` is 2, 4, 8, …"""
    return n > 1 and n & (n - 1) == 0


class Emitter(Protocol):
    """Emitter of the rest of the kernel."""

    at: Frame
    b: FunctionBuilder

    def value(self, e: Expr, guard: Guard | None = None) -> Value:
        """An expression here."""

    def plain_load(
        self, e: Load, form: Linear, kind: Type, count: int, guard: Guard | None
    ) -> Value:
        """`count` elements in a row."""

    def broadcast(self, value: Value, count: int) -> Value:
        """A value in every lane."""

    def place(self, tensor: Tensor, form: Linear) -> Value:
        """Pointer to an element; `form`: expanded."""
