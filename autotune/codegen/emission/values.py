"""⑤ Expressions and addresses of a kernel as LLVM's values: scalars, vectors, guarded loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import ClassVar

from autotune.codegen.emission.arithmetic import TYPES, VALUES, Arithmetic
from autotune.codegen.emission.byte_dots import add_byte_dot, has_small_bytes
from autotune.codegen.emission.frame import Frame, Guard, Terms, reads_memory
from autotune.codegen.emission.lanes import NEAR_STRIDES
from autotune.codegen.emission.loads import load_picked, load_repeated, load_strided
from autotune.codegen.emission.lookups import load_looked_up, table_index
from autotune.codegen.emission.powers import fixed_power
from autotune.codegen.emission.saturation import quantised
from autotune.codegen.emission.text import (
    I1,
    I32,
    I64,
    PTR,
    Constant,
    FunctionBuilder,
    Module,
    Type,
    Value,
    constant,
    counting,
    undefined,
    vector,
)
from autotune.codegen.emission.transposing import load_transposed, neighbours
from autotune.dtypes import dtype_bytes, is_float
from autotune.errors import CodegenError
from autotune.loopir.nodes import Kernel, Program
from autotune.pages import CACHE_LINE
from autotune.te.arith import Linear
from autotune.te.expr import (
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
    dtype_of,
    idx,
    is_guard,
    loads,
    substitute,
    variables,
)

_ZEROS = 256
"""Least bytes of zeros that a masked-out load reads instead: more than any vector."""
_MAX_ZEROS = 16_384
"""Most bytes of such zeros: of loads in a row behind one selected address."""


class ValueEmitter:
    """Values at a point of a kernel, as `at` describes it; statements move that point."""

    range_kinds: ClassVar[Mapping[str, Type]] = {"begin": I64, "end": I64}
    """Types of the arguments behind the pointers."""

    def __init__(self, module: Module, program: Program, kernel: Kernel, prefix: str) -> None:
        kinds = {**dict.fromkeys(kernel.buffers, PTR), **self.range_kinds}
        self.b = FunctionBuilder(module, prefix + kernel.name, kinds, program.shared)
        self.do = Arithmetic(self.b)
        self.module, self.prefix = module, prefix
        pointers = dict(zip(kernel.buffers, self.b.arguments, strict=False))
        self.at = Frame({b.name: b for b in program.buffers}, pointers)

    def zeros(self, n_bytes: int = _ZEROS) -> Value:
        """The zeros that masked-out loads read; part of the module from the first use on."""
        return self.module.zeros(f"{self.prefix}zeros", n_bytes)

    # --- addresses ----------------------------------------------------------------------------

    def _address(self, tensor: Tensor, form: Linear, kind: Type) -> tuple[Value, int]:
        """Pointer to an element (lane 0) and its provable alignment in bytes; `form`: expanded."""
        rest, unit = self.at.base(form.terms)
        const, size = form.const, dtype_bytes(tensor.dtype)
        base = self._base(tensor, rest, kind)
        local = self.at.buffers[tensor.name].role in ("local", "constant")
        align = gcd(gcd(unit, const) * size, CACHE_LINE) if local else size
        pointer = self.b.displaced(base, const, kind) if const else base
        return pointer, max(align or CACHE_LINE, size)

    def place(self, tensor: Tensor, form: Linear) -> Value:
        """Pointer to an element; `form`: expanded."""
        return self._address(tensor, form, TYPES[tensor.dtype])[0]

    def _base(self, tensor: Tensor, terms: Terms, kind: Type) -> Value:
        """The pointer of interned terms."""
        key = (tensor.name, id(terms))
        found = self.at.find(key)
        if found is not None:
            return found
        base = self.at.pointers[tensor.name]
        for atom, coef in terms:
            step = self.b.binary("mul nsw", self.value(atom), constant(I64, coef))
            base = self.b.offset(base, step, kind)
        return base if reads_memory(terms) else self.at.keep(key, base)

    def _lane_address(
        self, tensor: Tensor, indices: tuple[Expr, ...], lane: int
    ) -> tuple[Value, int]:
        with self.at.without_lanes() as (var, _):
            fixed = tuple(substitute(i, {var: idx(lane)}) for i in indices)
            form = self.at.expanded(self.at.form(object(), tensor, fixed))
            return self._address(tensor, form, TYPES[tensor.dtype])

    # --- expressions --------------------------------------------------------------------------

    def value(self, e: Expr, guard: Guard | None = None) -> Value:
        """An expression here; loads of it are made where `guard` holds."""
        return _EXPRS[type(e)](self, e, guard)

    def _const(self, e: Const, _: Guard | None) -> Value:
        return constant(VALUES[e.dtype], e.value)

    def _var(self, e: Var, _: Guard | None) -> Value:
        if self.at.lanes and e.name == self.at.lanes[0]:
            return counting(vector(I64, self.at.lanes[1]))
        value = self.at.env[e.name]
        return constant(I64, value) if isinstance(value, int) else value

    def _binary(self, e: Binary, guard: Guard | None) -> Value:
        if e.op == "pow" and isinstance(e.b, Const):
            power = fixed_power(self.do.math, self.value(e.a, guard), float(e.b.value))
            if power is not None:
                return power
        if e.op == "add" and _is_float_product(e.b):
            return self._fma(e.b, e.a, guard)
        if e.op == "add" and _is_float_product(e.a):
            return self._fma(e.a, e.b, guard)
        match e:
            case Binary(op="add", a=total, b=Binary(op="bytedot", a=x, b=y)):
                parts = self._same(*(self.value(n, guard) for n in (total, x, y)))
                return add_byte_dot(self.b, parts, has_small_bytes(x))
        a, b = self._same(self.value(e.a, guard), self.value(e.b, guard))
        return self.do.binary(e.op, dtype_of(e.a), a, b)

    def _fma(self, product: Expr, addend: Expr, guard: Guard | None) -> Value:
        assert isinstance(product, Binary)
        parts = (self.value(x, guard) for x in (product.a, product.b, addend))
        return self.do.math.fma(*self._same(*parts))

    def _compare(self, e: Compare, guard: Guard | None) -> Value:
        a, b = self._same(self.value(e.a, guard), self.value(e.b, guard))
        return self.do.compare(e.op, dtype_of(e.a), a, b)

    def _call(self, e: Call, guard: Guard | None) -> Value:
        return self.do.call(e.fn, dtype_of(e.args[0]), self.value(e.args[0], guard))

    def _cast(self, e: Cast, guard: Guard | None) -> Value:
        few = quantised(self, self.do, e, guard)
        return few or self.do.cast(dtype_of(e.a), e.dtype, self.value(e.a, guard))

    def _select(self, e: Select, guard: Guard | None) -> Value:
        choice = self.at.known(e.cond)
        if isinstance(choice, Const):
            with self.at.under(e.cond):
                return self.value(e.a if choice.value else e.b, guard)
        cond = self._condition(choice) if is_guard(e) else self.value(choice, guard)
        if is_guard(e):
            names = frozenset(variables(e.cond))
            yes = self.value(e.a, self._and(guard, Guard(cond, names)) if loads(e.a) else None)
            if isinstance(e.a, Load) and e.b == Const(0.0, dtype_of(e.a)) and cond.type is I1:
                return yes  # a masked-out load reads zeros
            other = Guard(self.do.negation(cond), names) if loads(e.b) else None
            no = self.value(e.b, self._and(guard, other) if other else None)
        else:
            yes, no = self.value(e.a, guard), self.value(e.b, guard)
        yes, no = self._same(yes, no)
        if cond.type.is_vector:
            yes, no = (self.broadcast(x, cond.type.count) for x in (yes, no))
        return self.b.select(cond, yes, no)

    def _condition(self, cond: Expr) -> Value:
        """A condition of loops alone, computed once for all that it guards in this region."""
        key = "condition", id(cond)  # `Frame.known` keeps it
        return self.at.find(key) or self.at.keep(key, self.value(cond))

    def _and(self, a: Guard | None, b: Guard) -> Guard:
        if a is None:
            return b
        x, y = self._same(a.holds, b.holds)
        return Guard(self.b.and_(x, y), a.loops | b.loops)

    def _load(self, e: Load, guard: Guard | None) -> Value:
        if guard is None and self.at.lanes and (index := table_index(e)) is not None:
            found = load_looked_up(self, e, index)
            if found is not None:
                return found
        form = self.at.form(e, e.tensor, e.indices)
        lane = self.at.lane_stride(form)
        kind = TYPES[e.tensor.dtype]
        masked = guard is not None and guard.holds.type.is_vector
        if lane == 0 and not masked:
            value = self.plain_load(e, form, kind, 1, guard)
        elif lane == 1:
            assert self.at.lanes is not None
            value = self.plain_load(e, form, kind, self.at.lanes[1], guard)
        elif lane is None and not masked and (period := self.at.lane_period(form)):
            value = load_repeated(self, e, form, kind, period, guard)
        elif lane and guard is None and (width := self.at.stored_width(e.tensor, form, lane)):
            value = load_picked(self, e, form, kind, lane, width)
        elif lane in NEAR_STRIDES:
            value = load_strided(self, e, form, kind, lane, guard)
        elif lane and guard is None and (name := neighbours(self.at, form)):
            value = load_transposed(self, e, form, kind, name)
        else:
            value = self._gather(e, guard)
        return self.do.loaded(e.tensor.dtype, value)

    def plain_load(
        self, e: Load, form: Linear, kind: Type, count: int, guard: Guard | None
    ) -> Value:
        """`count` elements in a row."""
        here = self.at.expanded(form)
        key = (id(here.terms), here.const, count, guard.holds.name if guard else "")
        known = self.at.find_load(e.tensor.name, key)
        if known is not None:
            return known
        shape = vector(kind, count) if count > 1 else kind
        if guard is None:
            where, align = self._address(e.tensor, here, kind)
            value = self.b.load(where, shape, align)
        elif guard.holds.type.is_vector:
            where, _ = self._address(e.tensor, here, kind)
            value = self._masked(where, shape, guard.holds, dtype_bytes(e.tensor.dtype))
        else:
            where = self._chosen(e.tensor, form, kind, count, guard)
            value = self.b.load(where, shape, dtype_bytes(e.tensor.dtype))
        if not reads_memory(form.terms):
            self.at.keep_load(e.tensor.name, key, value)
        return value

    def _chosen(self, tensor: Tensor, form: Linear, kind: Type, count: int, guard: Guard) -> Value:
        """The address of a load where `guard` holds, else of zeros.

        What the loops inside of the guard's add is added to whichever it is, so that the choice is
        made outside of them.
        """
        fixed, walk, reach = self.at.parts(form, guard.loops)
        n_bytes = (reach + count) * dtype_bytes(tensor.dtype)
        if n_bytes > _MAX_ZEROS:
            fixed, walk, n_bytes = form, Linear((), 0), 0
        where, _ = self._address(tensor, self.at.expanded(fixed), kind)
        where = self.b.select(guard.holds, where, self.zeros(max(_ZEROS, n_bytes)))
        for atom, coef in walk.terms:
            step = self.b.binary("mul nsw", self.value(atom), constant(I64, coef))
            where = self.b.offset(where, step, kind)
        return self.b.displaced(where, walk.const, kind) if walk.const else where

    def _masked(self, where: Value, shape: Type, mask: Value, align: int) -> Value:
        name = f"llvm.masked.load.{shape.suffix}.p0"
        return self.b.call(name, shape, [where, constant(I32, align), mask, constant(shape, 0)])

    def _gather(self, e: Load, guard: Guard | None) -> Value:
        """Lane by lane: for large strides, and those that are not constant."""
        lanes = self.at.lanes
        assert lanes is not None
        kind = TYPES[e.tensor.dtype]
        gathered = undefined(vector(kind, lanes[1]))
        for n in range(lanes[1]):
            where, align = self._lane_address(e.tensor, e.indices, n)
            if guard is not None:
                one = guard.holds
                if one.type.is_vector:
                    one = self.b.extract(one, n)
                where = self.b.select(one, where, self.zeros())
            value = self.b.load(where, kind, align)
            gathered = self.b.insert(gathered, value, n)
        return gathered

    def _reduce(self, e: Reduce, _: Guard | None) -> Value:
        raise CodegenError("a reduction reached code generation without being lowered")

    def _same(self, *values: Value) -> list[Value]:
        count = max([v.type.count for v in values])
        return [v if v.type.count == count else self.broadcast(v, count) for v in values]

    def broadcast(self, value: Value, count: int) -> Value:
        """A value in every lane."""
        if count == 1 or value.type.is_vector:
            return value
        if isinstance(value, Constant):
            return constant(vector(value.type, count), value.number)
        key = (value.name, count)
        return self.at.find(key) or self.at.keep(key, self.b.splat(value, count))


def _is_float_product(e: Expr) -> bool:
    return isinstance(e, Binary) and e.op == "mul" and is_float(dtype_of(e))


_EXPRS: dict[type[Expr], Callable[..., Value]] = {
    Const: ValueEmitter._const,
    Var: ValueEmitter._var,
    Binary: ValueEmitter._binary,
    Compare: ValueEmitter._compare,
    Call: ValueEmitter._call,
    Select: ValueEmitter._select,
    Cast: ValueEmitter._cast,
    Load: ValueEmitter._load,
    Reduce: ValueEmitter._reduce,
}
