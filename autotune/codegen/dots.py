"""⑤ A `dot` loop as one instruction: all terms of it, for all lanes, added to their accumulators.

    for v in vectorize 16: for d in dot 4: acc[v] += int32(x[k·4 + d]) * int32(w[k, v, d])
    ->  acc = vpdpbusd(acc, splat(x[k·4 … k·4 + 3]), w[k, 0 … 15, 0 … 3])

An operand is loaded at once where its elements lie side by side in memory, for each lane or for all
of them together; else its terms are loaded one by one and put side by side. Where the CPU has no
such instruction, the loop is unrolled (`autotune.codegen.emit`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autotune.codegen.arithmetic import TYPES, Arithmetic
from autotune.codegen.frame import Frame, Guard
from autotune.codegen.lanes import side_by_side
from autotune.codegen.text import BF16, I32, Builder, Type, Value, constant, undefined, vector
from autotune.dtypes import DTYPES
from autotune.loopir.nodes import For, Store
from autotune.target.isa import Isa, MultiplyAdd
from autotune.te.arith import Linear
from autotune.te.expr import Binary, Const, Expr, Load, Select, dtype_of, is_guard, variables
from autotune.te.products import Factors, in_order, products


class Emitter(Protocol):
    """What emits the rest of the kernel."""

    at: Frame
    b: Builder

    def value(self, e: Expr, guard: Guard | None = None) -> Value:
        """An expression here."""

    def plain_load(
        self, e: Load, form: Linear, kind: Type, count: int, guard: Guard | None
    ) -> Value:
        """`count` elements in a row."""

    def broadcast(self, value: Value, count: int) -> Value:
        """A value in every lane."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A loop that `form` is an instruction for: its store, and the factors of the products that a
    term adds up, in the order of `form`."""

    loop: For
    form: MultiplyAdd
    store: Store
    total: Expr
    products: tuple[Factors, ...]
    n_lanes: int


def find_dot(loop: For, at: Frame, isa: Isa) -> Dot | None:
    """The instruction for a `dot` loop inside of vectors, if the CPU has one."""
    match loop.body:
        case (Store(value=Binary(op="add", a=total, b=term)) as store,) if at.lanes:
            pairs, n_lanes = products(term), at.lanes[1]
            for form in isa.forms if pairs else ():
                ordered = tuple(o for pair in pairs if (o := in_order(form, *pair)))
                fits = form.terms == loop.extent and form.accumulator == store.tensor.dtype
                bits = _register_bits(form, n_lanes)
                fits = fits and bits in form.intrinsics and bits <= isa.vector_bits
                if fits and len(ordered) == len(pairs):
                    return Dot(loop, form, store, total, ordered, n_lanes)
    return None


def emit_dot(dot: Dot, emitter: Emitter) -> Value:
    """The accumulators with all terms of the loop added."""
    env = emitter.at.env
    env[dot.loop.var] = 0
    total = emitter.broadcast(emitter.value(dot.total), dot.n_lanes)
    for factors in dot.products:
        env[dot.loop.var] = 0
        pairs = zip(factors, dot.form.operands, strict=True)
        total = _added(
            dot, emitter, total, [_group(e, _Operand(dot, emitter, o)) for e, o in pairs]
        )
    del env[dot.loop.var]
    return total


def _register_bits(form: MultiplyAdd, n_lanes: int) -> int:
    """Bits of the register that `n_lanes` accumulators take: of the smallest one, all or a part."""
    smallest = min(form.intrinsics, default=0)
    return max(smallest, n_lanes * form.accumulator_bits)


def _added(dot: Dot, emitter: Emitter, total: Value, operands: list[Value]) -> Value:
    b, bits = emitter.b, _register_bits(dot.form, dot.n_lanes)
    times = bits // (dot.n_lanes * dot.form.accumulator_bits)
    whole, operands = _filled(b, total, times), [_filled(b, x, times) for x in operands]
    name = dot.form.intrinsics[bits]
    if dot.form.accumulates:
        found = b.call(name, whole.type, [whole, *operands])
    else:
        found = b.add(whole, b.call(name, whole.type, operands))
    return found if times == 1 else b.shuffle(found, found, range(dot.n_lanes))


def _filled(b: Builder, few: Value, times: int) -> Value:
    """A vector of `times` as many lanes, whose further ones nobody reads."""
    if times == 1:
        return few
    return b.shuffle(few, undefined(few.type), range(few.type.count * times))


@dataclass(frozen=True, slots=True)
class _Operand:
    """What becomes an operand of type `dtype` of the instruction."""

    dot: Dot
    emitter: Emitter
    dtype: str

    def widened(self, value: Value, e: Expr) -> Value:
        """Elements of `e` as those that the instruction takes."""
        do = Arithmetic(self.emitter.b)
        if not DTYPES[self.dtype].is_narrow:
            return do.cast(dtype_of(e), self.dtype, value)
        held = do.stored(self.dtype, value) if value.type.is_float else value
        return self.emitter.b.bitcast(held, held.type.of(BF16))


def _group(e: Expr, to: _Operand, guard: Guard | None = None) -> Value:
    """`e` for all terms, those of a lane as neighbours: lanes·terms elements."""
    emitter, dot = to.emitter, to.dot
    at, terms = emitter.at, dot.loop.extent
    match e:
        case Load(tensor=tensor, indices=indices):
            form, kind = at.form(e, tensor, indices), TYPES[tensor.dtype]
            strides = at.lane_stride(form), at.stride(form, dot.loop.var)
            if strides == (terms, 1):
                wide = emitter.plain_load(e, form, kind, dot.n_lanes * terms, guard)
                return to.widened(wide, e)
            if strides == (0, 1):
                few = emitter.plain_load(e, form, kind, terms, guard)
                return _in_all_lanes(few, e, to)
        case Select(cond=cond, a=Load() as load, b=Const() as other):
            choice = at.known(cond)
            if isinstance(choice, Const):
                return _group(load if choice.value else other, to)
            if is_guard(e) and _is_one_choice(cond, dot, at):
                holds = emitter.value(choice)
                made = Guard(holds, frozenset(variables(cond)))
                yes = _group(load, to, made)
                no = constant(yes.type, other.value)
                return emitter.b.select(holds, yes, no) if other.value else yes
    return _one_by_one(e, to, guard)


def _is_one_choice(cond: Expr, dot: Dot, at: Frame) -> bool:
    """Whether a condition is the same for all lanes and all terms."""
    lane = at.lanes[0] if at.lanes else ""
    return variables(cond).isdisjoint({lane, dot.loop.var})


def _in_all_lanes(few: Value, e: Expr, to: _Operand) -> Value:
    """The terms `few` of `e`, as operands as wide as an accumulator, again in every lane."""
    emitter, dot = to.emitter, to.dot
    key = (few.name, to.dtype, dot.n_lanes)
    found = emitter.at.find(key)
    if found is None:
        few = to.widened(few, e)
        word = emitter.b.bitcast(few, I32)
        wide = vector(few.type.scalar, few.type.count * dot.n_lanes)
        splat = emitter.b.bitcast(emitter.b.splat(word, dot.n_lanes), wide)
        found = emitter.at.keep(key, splat)
    return found


def _one_by_one(e: Expr, to: _Operand, guard: Guard | None) -> Value:
    """The terms one after the other, and then side by side in their lanes."""
    emitter, dot = to.emitter, to.dot
    env, terms = emitter.at.env, []
    for n in range(dot.loop.extent):
        env[dot.loop.var] = n
        one = to.widened(emitter.value(e, guard), e)
        terms.append(emitter.broadcast(one, dot.n_lanes))
    env[dot.loop.var] = 0
    return side_by_side(emitter.b, terms)
