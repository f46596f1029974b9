"""④ Pass `instructions`: the loops that a schedule annotates become single instructions.

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
from autotune.target.isa import MultiplyAdd, TileUnit
from autotune.te.arith import offset
from autotune.te.expr import Binary, Const, Expr, Load, loads
from autotune.te.products import added, exchanged, forms_of, in_order

_LEAST_OPERANDS = 2
"""Registers beside those of sums that a product of matrices takes."""
_MOVED, _MULTIPLIED = ("tile", "vectorize"), ("tile", "tile", "vectorize", "dot")


def select_instructions(program: Program, _: Lowering) -> Program:
    """Raises ScheduleError where annotated loops are no instruction."""
    buffers = {b.name: b for b in program.buffers}
    kernels = (
        replace(k, body=_selected(k.body, _Place(buffers, _sums(k.body)))) for k in program.kernels
    )
    return replace(program, kernels=tuple(kernels))


@dataclass(frozen=True, slots=True)
class _Place:
    """What is known where a statement stands.

    `sums`: the local buffers that products of matrices are added to; `lanes`: of the vector loop
    around; `held`: the buffer around that is in registers.
    """

    buffers: Mapping[str, Buffer]
    sums: frozenset[str]
    lanes: int = 1
    held: str = ""


def _sums(body: Body) -> frozenset[str]:
    nests = (nested((s,)) for s in statements(body) if isinstance(s, For) and s.kind == "tile")
    found = (x for loops in nests if loops[-1].kind == "dot" for x in loops[-1].body)
    return frozenset(x.tensor.name for x in found if isinstance(x, Store))


def _selected(body: Body, at: _Place) -> Body:
    return tuple(_statement(s, at) for s in body)


def _statement(stmt: Stmt, at: _Place) -> Stmt:
    match stmt:
        case For(kind="dot"):
            return _dot(stmt, at.lanes)
        case For(kind="tile"):
            return _matrix(stmt, at)
        case For(extent=extent, kind=kind, body=body):
            inside = replace(at, lanes=extent) if kind == "vectorize" else at
            return replace(stmt, body=_selected(body, inside))
        case If(cond=cond, then=then, orelse=orelse):
            return If(cond, _selected(then, at), _selected(orelse, at))
        case Alloc(buffer=buffer, body=body):
            at = replace(at, buffers={**at.buffers, buffer.name: buffer})
            if buffer.name in at.sums:
                return _in_registers(stmt, at)
            return Alloc(buffer, _selected(body, at))
        case _:
            return stmt


def _in_registers(alloc: Alloc, at: _Place) -> Alloc:
    """The buffer of sums of products of matrices, of one instruction and one shape."""
    name = alloc.buffer.name
    if at.held:
        _refuse(name, f"the registers around it hold {at.held}")
    body = _selected(alloc.body, replace(at, held=name))
    made = (s for s in statements(body) if isinstance(s, Instruction) and s.is_product)
    if len({s.loops[1].extent for s in made if s.store.tensor.name == name}) > 1:
        _refuse(name, "its products differ in their terms")
    return Alloc(replace(alloc.buffer, role="registers"), body)


def _refuse(name: str, reason: str) -> NoReturn:
    raise ScheduleError(f"no instruction adds up {name}: {reason}")


# --- on vectors -------------------------------------------------------------------------------


def _dot(loop: For, lanes: int) -> Stmt:
    """A loop over the terms of one multiply-add."""
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
        value = Binary("add", store.value.a, exchanged(store.value.b))
        store = replace(store, value=value)
    body: Body = (store,)
    for loop in reversed(loops):
        body = (replace(loop, body=body),)
    return Instruction(form.name, body)


# --- on matrices ------------------------------------------------------------------------------


def _matrix(nest: For, at: _Place) -> Instruction:
    """A nest over a matrix of the sums in registers."""
    loops = nested((nest,))
    kinds = tuple(loop.kind for loop in loops)
    match loops[-1].body:
        case (Store() as store,) if kinds == _MULTIPLIED:
            return _product(loops, store, at)
        case (Store() as store,) if kinds == _MOVED:
            return Instruction(_moved(loops, store, at), (nest,))
    _refuse(at.held or nest.var, "rows, groups, columns and terms are not alone in one another")


def _moved(loops: tuple[For, ...], store: Store, at: _Place) -> str:
    """How a matrix is cleared, loaded or stored."""
    rows, lanes = loops
    match store.value:
        case Const(value=0):
            return "clear"
        case Load() as value if value.tensor.dtype == store.tensor.dtype:
            is_loaded = store.tensor.name == at.held
            other = value if is_loaded else Load(store.tensor, store.indices)
            if _moves(other, at, rows, {lanes.var: 1}):
                return "load" if is_loaded else "store"
    _refuse(at.held, "it is not loaded and stored in rows")


def _product(loops: tuple[For, ...], store: Store, at: _Place) -> Instruction:
    """A product of two matrices, added to a third."""
    rows, groups, lanes, terms = loops
    (_, pairs), n = added(store.value), terms.extent
    for ordered in (pairs, tuple((b, a) for a, b in pairs)):
        for form in forms_of(ordered, store.tensor.dtype):
            if form.unit is None or form.terms != n:
                continue
            if all(
                _moves(a, at, rows, {groups.var: n, terms.var: 1, lanes.var: 0})
                and _moves(b, at, groups, {lanes.var: n, terms.var: 1, rows.var: 0})
                for a, b in ordered
            ):
                sums = at.buffers[at.held].tensor.shape
                _require_room(at.held, sums, groups.extent, form.unit)
                return _instruction(form, loops, store, ordered != pairs)
    _refuse(at.held, f"none takes rows of {n} terms of such factors where they lie")


def _require_room(name: str, sums: tuple[int, ...], groups: int, unit: TileUnit) -> None:
    """Refuse more matrices, or larger ones, than registers hold."""
    *outer, rows, columns = sums
    if max(rows, groups) > unit.rows or columns > unit.columns:
        _refuse(name, f"a register has {unit.rows} rows and {unit.columns} columns")
    if prod(outer) + _LEAST_OPERANDS > unit.n_registers:
        _refuse(name, f"{prod(outer)} matrices and two operands are more than there are registers")


def _moves(e: Expr, at: _Place, row: For, strides: Mapping[str, int]) -> bool:
    """Whether `e` is a load that moves by `strides` elements, and by any number along `row`."""
    if not isinstance(e, Load) or any(map(loads, e.indices)):
        return False
    form = offset(e.indices, at.buffers[e.tensor.name].strides)
    if any(map(form.is_opaque_in, (row.var, *strides))):
        return False
    return all(form.coefficient(name) == stride for name, stride in strides.items())
