"""④ Pass `instructions` (tensorize): annotated loops become single instructions, tensor intrinsics.

    vectorize c in 16: dot t in 4: acc[c] += int32(x[4·k + t]) * int32(w[k, c, t])
    ->  vectorize c in 16: vpdpbusd: …

    local acc[2, 2, 16, 16]                              ->  registers acc, four of them
      unroll m, n in 2:
        tile r in 16: vectorize c in 16: acc[m, n, r, c] = 0                             clear
      for k in 8: unroll m, n in 2:
        tile r in 16: tile g in 16: vectorize c in 16: dot t in 2:                       tdpbf16ps
          acc[m, n, r, c] += float32(x[16·m + r, 32·k + 2·g + t]) * float32(w[k, n, g, c, t])
      unroll m, n in 2:
        tile r in 16: vectorize c in 16: s[…] = acc[m, n, r, c]                          store

The loops and the types of the factors say which instruction it is (`te.products`); what fits none
is an error. The terms of a sum without lanes, for whose scalars there are none, are unrolled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import NoReturn

from autotune.errors import ScheduleError
from autotune.loopir.lowering import Lowering
from autotune.loopir.nodes import (
    Alloc,
    Body,
    Buffer,
    For,
    If,
    Instruction,
    Program,
    Stmt,
    Store,
    nested,
)
from autotune.loopir.visitor import statements
from autotune.target.isa import MultiplyAdd
from autotune.te.arith import offset
from autotune.te.expr import Binary, Const, Expr, Load, loads
from autotune.te.products import added, exchanged, forms_of, in_order


def select_instructions(program: Program, _: Lowering) -> Program:
    """Raises ScheduleError where annotated loops are no instruction."""
    at = _Place({b.name: b for b in program.buffers})
    kernels = (replace(k, body=_selected(k.body, at)) for k in program.kernels)
    return replace(program, kernels=tuple(kernels))


@dataclass(frozen=True, slots=True)
class _Place:
    """Context of a statement: the `lanes` of the vector loop around it, and the name of the buffer
    around it that is in registers."""

    buffers: Mapping[str, Buffer]
    lanes: int = 1
    registers: str = ""


def _selected(body: Body, at: _Place) -> Body:
    return tuple(_statement(s, at) for s in body)


def _statement(stmt: Stmt, at: _Place) -> Stmt:
    match stmt:
        case For(kind="dot"):
            return _dot(stmt, at.lanes)
        case For(kind="tile"):
            return _matrix(nested((stmt,)), at)
        case For(extent=extent, kind=kind, body=body):
            inside = replace(at, lanes=extent) if kind == "vectorize" else at
            return replace(stmt, body=_selected(body, inside))
        case If(cond=cond, then=then, orelse=orelse):
            return If(cond, _selected(then, at), _selected(orelse, at))
        case Alloc(buffer=buffer, body=body):
            at = replace(at, buffers={**at.buffers, buffer.name: buffer})
            if buffer.role != "registers":
                return Alloc(buffer, _selected(body, at))
            body = _selected(body, replace(at, registers=buffer.name))
            made = (s for s in statements(body) if isinstance(s, Instruction) and s.is_product)
            own = {s.loops[1].extent for s in made if s.store.tensor.name == buffer.name}
            if at.registers or len(own) != 1:
                _refuse(buffer.name, "it does not have all registers, for products of one shape")
            return Alloc(buffer, body)
        case _:
            return stmt


def _refuse(name: str, reason: str) -> NoReturn:
    raise ScheduleError(f"no instruction adds up {name}: {reason}")


def _dot(loop: For, lanes: int) -> Stmt:
    """A loop over the terms of one multiply-add of vectors."""
    (store,) = loop.body
    assert isinstance(store, Store)
    _, pairs = added(store.value)
    if not pairs or lanes == 1:
        return replace(loop, kind="unroll")
    found = forms_of(pairs, store.tensor.dtype)
    form = next((f for f in found if f.terms == loop.extent and f.unit is None), None)
    if form is None:
        _refuse(store.tensor.name, f"none takes {loop.extent} terms of such factors at once")
    if form.register_bits(lanes) not in form.intrinsics:
        _refuse(store.tensor.name, f"{form.name} has no vectors of {lanes} sums")
    return _instruction(form, (loop,), store, in_order(form, *pairs[0]) != pairs[0])


def _instruction(
    form: MultiplyAdd, loops: tuple[For, ...], store: Store, is_exchanged: bool
) -> Instruction:
    """The nested loops by `form`, the factors in the order of its operands."""
    if is_exchanged:
        assert isinstance(store.value, Binary)
        store = replace(store, value=Binary("add", store.value.a, exchanged(store.value.b)))
    body: Body = (store,)
    for loop in reversed(loops):
        body = (replace(loop, body=body),)
    return Instruction(form.name, body)


def _matrix(loops: tuple[For, ...], at: _Place) -> Instruction:
    """Loops over a matrix of sums in registers: a product, or the sums cleared, loaded, stored."""
    match [loop.kind for loop in loops], loops[-1].body:
        case ["tile", "tile", "vectorize", "dot"], (Store() as store,):
            return _product(loops, store, at)
        case ["tile", "vectorize"], (Store(value=Const(value=0)),):
            return Instruction("clear", loops[:1])
        case ["tile", "vectorize"], (Store(tensor=to, indices=where, value=Load() as value),):
            is_loaded = to.name == at.registers
            other = value if is_loaded else Load(to, where)
            if to.dtype == value.tensor.dtype and _moves(other, at, loops[0], {loops[1].var: 1}):
                return Instruction("load" if is_loaded else "store", loops[:1])
            _refuse(at.registers, "it is not loaded and stored in rows")
    _refuse(at.registers, "rows, groups, columns and terms are not alone in one another")


def _product(loops: tuple[For, ...], store: Store, at: _Place) -> Instruction:
    """A product of two matrices, added to a third."""
    rows, groups, lanes, terms = loops
    (_, pairs), n = added(store.value), terms.extent
    for ordered in (pairs, tuple((b, a) for a, b in pairs)):
        fits = all(
            _moves(a, at, rows, {groups.var: n, terms.var: 1, lanes.var: 0})
            and _moves(b, at, groups, {lanes.var: n, terms.var: 1, rows.var: 0})
            for a, b in ordered
        )
        for form in forms_of(ordered, store.tensor.dtype) if fits else ():
            if form.unit and form.terms == n:
                _require_room(at.buffers[at.registers], groups.extent, form)
                return _instruction(form, loops, store, ordered != pairs)
    _refuse(at.registers, f"none takes rows of {n} terms of such factors where they lie")


def _require_room(sums: Buffer, groups: int, form: MultiplyAdd) -> None:
    """Refuse more matrices, or larger ones, than registers hold."""
    assert form.unit is not None
    *outer, rows, columns = sums.tensor.shape
    if max(rows, groups) > form.unit.rows or columns > form.unit.columns:
        _refuse(sums.name, f"a register has {form.unit.rows} rows of {form.unit.columns} sums")
    if prod(outer) > form.unit.most_sums:
        more = f"{prod(outer)} matrices and two operands are more than there are registers"
        _refuse(sums.name, more)


def _moves(e: Expr, at: _Place, row: For, strides: Mapping[str, int]) -> bool:
    """Whether `e` is a load that moves by `strides` elements, and by any number along `row`."""
    if not isinstance(e, Load) or any(map(loads, e.indices)):
        return False
    form = offset(e.indices, at.buffers[e.tensor.name].strides)
    if any(map(form.is_opaque_in, (row.var, *strides))):
        return False
    return all(form.coefficient(name) == stride for name, stride in strides.items())
