"""⑤ A multiply-add of vectors: all terms of a lane, for all lanes, added to their accumulators.

    vectorize v in 16: vpdpbusd d in 4: acc[v] += int32(x[k·4 + d]) * int32(w[k, v, d])
    ->  acc = vpdpbusd(acc, splat(x[k·4 … k·4 + 3]), w[k, 0 … 15, 0 … 3])

An operand is loaded at once where its elements lie side by side in memory, for each lane or for all
of them together; else its terms are loaded one by one and put side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.codegen.emission.arithmetic import TYPES, Arithmetic
from autotune.codegen.emission.frame import Emitter, Frame, Guard
from autotune.codegen.emission.lanes import side_by_side
from autotune.codegen.emission.multiply_add import multiply_add
from autotune.codegen.emission.text import (
    BF16,
    I32,
    FunctionBuilder,
    Value,
    constant,
    undefined,
    vector,
)
from autotune.dtypes import DTYPES
from autotune.errors import ScheduleError
from autotune.loopir.nodes import Instruction
from autotune.target.isa import Isa, MultiplyAdd
from autotune.te.expr import Const, Expr, Load, Select, dtype_of, is_guard, variables
from autotune.te.products import added


def form_of(stmt: Instruction, isa: Isa) -> MultiplyAdd:
    """The multiply-add of an instruction. Raises ScheduleError where no such CPU has it."""
    form = isa.form(stmt.operation)
    if form is None:
        raise ScheduleError(
            f"the schedule asks for {stmt.operation}, which the CPU has not",
            "name a CPU that has it with `target`, or tune for this one",
        )
    return form


@dataclass(frozen=True, slots=True)
class _Dot:
    """The terms `var` of `form` in each of so many lanes."""

    var: str
    form: MultiplyAdd
    n_lanes: int


def emit_dot(stmt: Instruction, emitter: Emitter) -> Value:
    """The accumulators with all terms added."""
    at, isa = emitter.at, emitter.b.module.isa
    assert at.lanes is not None
    dot = _Dot(stmt.loops[0].var, form_of(stmt, isa), at.lanes[1])
    if dot.form.register_bits(dot.n_lanes) > isa.vector_bits:
        raise ScheduleError(f"{stmt.operation} of {dot.n_lanes} lanes is wider than vectors here")
    total, pairs = added(stmt.store.value)
    at.env[dot.var] = 0
    whole = emitter.broadcast(emitter.value(total), dot.n_lanes)
    for factors in pairs:
        at.env[dot.var] = 0
        operands = zip(factors, dot.form.operands, strict=True)
        whole = _added(
            dot, emitter.b, whole, [_group(e, _Operand(dot, emitter, o)) for e, o in operands]
        )
    del at.env[dot.var]
    return whole


def _added(dot: _Dot, b: FunctionBuilder, total: Value, operands: list[Value]) -> Value:
    bits = dot.form.register_bits(dot.n_lanes)
    times = bits // (dot.n_lanes * dot.form.accumulator_bits)
    whole, operands = _filled(b, total, times), [_filled(b, x, times) for x in operands]
    found = multiply_add(b, dot.form, bits, whole, operands)
    return found if times == 1 else b.shuffle(found, found, range(dot.n_lanes))


def _filled(b: FunctionBuilder, few: Value, times: int) -> Value:
    """A vector of `times` as many lanes, whose further ones are undefined."""
    if times == 1:
        return few
    return b.shuffle(few, undefined(few.type), range(few.type.count * times))


@dataclass(frozen=True, slots=True)
class _Operand:
    """Operand of type `dtype` of the instruction."""

    dot: _Dot
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
    at, terms = emitter.at, dot.form.terms
    match e:
        case Load(tensor=tensor, indices=indices):
            form, kind = at.form(e, tensor, indices), TYPES[tensor.dtype]
            strides = at.lane_stride(form), at.stride(form, dot.var)
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


def _is_one_choice(cond: Expr, dot: _Dot, at: Frame) -> bool:
    """Whether a condition is the same for all lanes and all terms."""
    lane = at.lanes[0] if at.lanes else ""
    return variables(cond).isdisjoint({lane, dot.var})


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
    for n in range(dot.form.terms):
        env[dot.var] = n
        terms.append(emitter.broadcast(_one_term(e, to, guard), dot.n_lanes))
    env[dot.var] = 0
    return side_by_side(emitter.b, terms)


def _one_term(e: Expr, to: _Operand, guard: Guard | None) -> Value:
    """One term of every lane; neighbours of the type of the operand stay as they lie in memory."""
    at = to.emitter.at
    if isinstance(e, Load) and e.tensor.dtype == to.dtype:
        form, kind = at.form(e, e.tensor, e.indices), TYPES[to.dtype]
        if at.lane_stride(form) == 1:
            few = to.emitter.plain_load(e, form, kind, to.dot.n_lanes, guard)
            return to.widened(few, e)
    return to.widened(to.emitter.value(e, guard), e)
