"""⑤ Which loop nests of a kernel are single instructions on matrices in registers.

    alloc acc[2, 2, 16, 16]:                                   four registers
      for m, n in unroll: for r in tile: for c in vectorize: acc[m, n, r, c] = 0         tilezero
      for k in 8:
        for m, n in unroll:
          for r in tile 16: for g in tile 16: for c in vectorize 16: for t in dot 2:     tdpbf16ps
            acc[m, n, r, c] += float32(x[16·m + r, 32·k + 2·g + t]) * float32(w[k, n, g, c, t])
      for m, n in unroll: for r in tile: for c in vectorize: s[…] = acc[m, n, r, c]      tilestored

A local buffer is registers where every access to it is such a nest, of one form of multiply-add and
one shape, and where there are registers for its matrices and two operands. Other buffers are memory
and their nests are expanded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TypeAlias

from autotune.dtypes import dtype_bytes
from autotune.loopir.nodes import Alloc, Body, Buffer, For, If, Kernel, Stmt, Store
from autotune.loopir.visitor import expressions
from autotune.target.isa import Isa, MultiplyAdd, TileUnit
from autotune.te.arith import linear
from autotune.te.expr import Binary, Const, Expr, Load, Tensor, Var, idx, loads, variables
from autotune.te.products import products

_LEAST_OPERANDS = 2


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix in memory: where it begins, and elements between its rows."""

    load: Load
    stride: int


@dataclass(frozen=True, slots=True)
class Nest:
    """A loop nest that is one instruction on matrix `at` of accumulators `total`.

    `memory`: what is loaded or stored; None where the matrix is cleared. `factors`: the operands of
    each product by `form` that is added. `loops`: variables of the nest itself, rows first.
    """

    total: Tensor
    at: tuple[Expr, ...]
    rows: int
    columns: int
    loops: tuple[str, ...]
    memory: Operand | None = None
    stores: bool = False
    form: MultiplyAdd | None = None
    groups: int = 0
    factors: tuple[tuple[Operand, Operand], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """How the registers of a unit are used for one buffer of accumulators.

    Registers 0… hold its matrices of `rows` × `columns` sums, then come `n_a` first operands of
    `rows` × `groups` words of 32 bits, and `n_b` second ones of `groups` × `columns`.
    """

    form: MultiplyAdd
    rows: int
    columns: int
    groups: int
    n_sums: int
    n_a: int
    n_b: int

    @property
    def unit(self) -> TileUnit:
        """The registers."""
        assert self.form.unit is not None
        return self.form.unit

    @property
    def configuration(self) -> bytes:
        """What the unit is configured by."""
        shapes = [(self.rows, self.columns)] * self.n_sums
        shapes += [(self.rows, self.groups)] * self.n_a
        shapes += [(self.groups, self.columns)] * self.n_b
        data = bytearray(64)
        data[0] = 1
        row_bytes, rows = self.unit.configuration
        for n, (height, words) in enumerate(shapes):
            data[row_bytes + 2 * n] = 4 * words
            data[rows + n] = height
        return bytes(data)


Plans: TypeAlias = Mapping[int, Plan]
"""Plans by the identity of the statement that allocates the buffer."""
Buffers: TypeAlias = Mapping[str, Buffer]


def tile_plans(kernel: Kernel, buffers: Buffers, isa: Isa) -> Plans:
    """A plan for each buffer of `kernel` that can be registers."""
    if not any(f.unit for f in isa.forms):
        return {}
    return dict(_plans(kernel.body, buffers, isa))


def _plans(body: Body, buffers: Buffers, isa: Isa) -> Iterator[tuple[int, Plan]]:
    for stmt in body:
        match stmt:
            case Alloc(buffer=buffer, body=inner):
                inside = {**buffers, buffer.name: buffer}
                plan = _plan(stmt, inside, isa)
                if plan is not None:
                    yield id(stmt), plan
                else:  # the registers of a plan are taken in all of its statement
                    yield from _plans(inner, inside, isa)
            case For(body=inner):
                yield from _plans(inner, buffers, isa)
            case If(then=then, orelse=orelse):
                yield from _plans(then, buffers, isa)
                yield from _plans(orelse, buffers, isa)


def _plan(alloc: Alloc, buffers: Buffers, isa: Isa) -> Plan | None:
    """The plan for the buffer of `alloc`; None where it cannot be registers."""
    found = list(_accesses(alloc.body, alloc.buffer.name, buffers, isa, {}))
    nests = [nest for nest, _ in found if nest is not None]
    sums = [(nest, loops) for nest, loops in found if nest is not None and nest.form]
    if len(nests) < len(found) or not sums:
        return None
    (first, loops), shape = sums[0], alloc.buffer.tensor.shape
    same = all((n.rows, n.columns) == shape[-2:] for n in nests)
    alike = {(id(n.form), n.groups) for n, _ in sums}
    if not first.form or not first.form.unit:
        return None
    n_sums = prod(shape[:-2])
    n_left = first.form.unit.n_registers - n_sums
    if not same or len(alike) > 1 or n_left < _LEAST_OPERANDS:
        return None
    n_a = _share(n_left, first, loops)
    return Plan(first.form, first.rows, first.columns, first.groups, n_sums, n_a, n_left - n_a)


def _share(n_left: int, nest: Nest, loops: Mapping[str, int]) -> int:
    """How many of the registers that are left hold first operands: so that few loads are needed."""
    used = frozenset[str]().union(*map(variables, nest.at)) - set(nest.loops)
    own = {name: n for name, n in loops.items() if name in used}
    points = [dict(zip(own, at, strict=True)) for at in product(*map(range, own.values()))]
    orders = [[_matrix(f[k], at) for at in points for f in nest.factors] for k in (0, 1)]

    def n_loads(n_a: int) -> int:
        return _n_loads(orders[0], n_a) + _n_loads(orders[1], n_left - n_a)

    return min(range(1, n_left), key=n_loads)


def _matrix(operand: Operand, at: Mapping[str, int]) -> object:
    """What tells an operand at a point of the unrolled loops from others."""
    names = frozenset[str]().union(*map(variables, operand.load.indices))
    return operand.load, tuple(n for name, n in at.items() if name in names)


def _n_loads(order: Sequence[object], n_registers: int) -> int:
    """Loads of operands that are used in an order, where the last used ones stay in registers."""
    held: list[object] = []
    n_loads = 0
    for matrix in order:
        n_loads += matrix not in held
        held = [*(h for h in held if h != matrix), matrix][-n_registers:]
    return n_loads


def _accesses(
    body: Body, name: str, buffers: Buffers, isa: Isa, loops: Mapping[str, int]
) -> Iterator[tuple[Nest | None, Mapping[str, int]]]:
    """Each nest that uses buffer `name`, or None for another use; the unrolled loops around it."""
    for stmt in body:
        if isinstance(stmt, For) and stmt.kind == "tile" and _uses((stmt,), name):
            nest = match_nest(stmt, name, buffers, isa)
            known = nest is not None and all(variables(i) <= loops.keys() for i in nest.at[:-2])
            yield nest if known else None, loops
            continue
        if _mentions(stmt, name):
            yield None, loops
        match stmt:
            case For(var=var, extent=extent, kind=kind, body=inner):
                inside = {**loops, var: extent} if kind == "unroll" else loops
                yield from _accesses(inner, name, buffers, isa, inside)
            case Alloc(buffer=buffer, body=inner):
                known_buffers = {**buffers, buffer.name: buffer}
                yield from _accesses(inner, name, known_buffers, isa, loops)
            case If(then=then, orelse=orelse):
                yield from _accesses((*then, *orelse), name, buffers, isa, loops)


def _uses(body: Body, name: str) -> bool:
    inner = (b for s in body if isinstance(s, For) for b in (s.body,))
    return any(_mentions(s, name) for s in body) or any(_uses(b, name) for b in inner)


def _mentions(stmt: Stmt, name: str) -> bool:
    """Whether a statement itself, not one inside it, uses buffer `name`."""
    stored = isinstance(stmt, Store) and stmt.tensor.name == name
    return stored or any(x.tensor.name == name for e in expressions(stmt) for x in loads(e))


# --- one nest -----------------------------------------------------------------------------------


def match_nest(loop: For, sums: str, buffers: Buffers, isa: Isa) -> Nest | None:
    """The instruction on accumulators `sums` for the nest of `loop`, the one over rows."""
    match loop.body:
        case (For(kind="vectorize", body=(Store() as store,)) as lanes,):
            return _moved(loop, lanes, store, sums, buffers)
        case (
            For(
                kind="tile",
                body=(For(kind="vectorize", body=(For(kind="dot", body=(Store(),)),)),),
            ) as groups,
        ):
            nest = _product(loop, groups, buffers, isa)
            return nest if nest and nest.total.name == sums else None
    return None


def _moved(rows: For, lanes: For, store: Store, sums: str, buffers: Buffers) -> Nest | None:
    """A matrix that is cleared, loaded or stored."""
    names = (rows.var, lanes.var)
    here = (rows.extent, lanes.extent, names)
    place = Load(store.tensor, store.indices)
    loads_them = store.tensor.name == sums
    match store.value:
        case Const(value=0) if loads_them and _is_matrix(place, names):
            return Nest(place.tensor, place.indices, *here)
        case Load() as value if value.tensor.dtype == place.tensor.dtype:
            total, other = (place, value) if loads_them else (value, place)
            memory = _operand(other, buffers, rows.var, {lanes.var: 1})
            if total.tensor.name == sums and _is_matrix(total, names) and memory:
                return Nest(total.tensor, total.indices, *here, memory, not loads_them)
    return None


def _product(rows: For, groups: For, buffers: Buffers, isa: Isa) -> Nest | None:
    """A product of two matrices, added to a third."""
    (lanes,) = groups.body
    assert isinstance(lanes, For)
    (terms,) = lanes.body
    assert isinstance(terms, For)
    names = (rows.var, lanes.var)
    match terms.body:
        case (Store(tensor=total, indices=at, value=Binary(op="add", a=old, b=term)),):
            pairs = products(term)
            if old != Load(total, at) or not _is_matrix(old, names) or not pairs:
                return None
            nest = Nest(total, at, rows.extent, lanes.extent, (*names, groups.var, terms.var))
            nest = replace(nest, groups=groups.extent)
            for form in (f for f in isa.forms if f.unit and f.terms == terms.extent):
                for ordered in (pairs, tuple((b, a) for a, b in pairs)):
                    if form.accumulator == total.dtype and _fits(nest, form):
                        found = [_operands(nest, form, *pair, buffers) for pair in ordered]
                        factors = tuple(pair for pair in found if pair)
                        if len(factors) == len(pairs):
                            return replace(nest, form=form, factors=factors)
    return None


def _operands(
    nest: Nest, form: MultiplyAdd, a: Expr, b: Expr, buffers: Buffers
) -> tuple[Operand, Operand] | None:
    """The operands of a product: rows of neighbouring terms, and rows of terms by columns."""
    rows, lanes, groups, terms = nest.loops
    n = form.terms
    x = _operand(a, buffers, rows, {groups: n, terms: 1, lanes: 0})
    y = _operand(b, buffers, groups, {lanes: n, terms: 1, rows: 0})
    if not x or not y or (x.load.tensor.dtype, y.load.tensor.dtype) != form.operands:
        return None
    return x, y


def _fits(nest: Nest, form: MultiplyAdd) -> bool:
    """Whether the three matrices are no larger than registers of the unit."""
    assert form.unit is not None
    most = form.unit.rows
    return max(nest.rows, nest.groups) <= most and nest.columns <= form.unit.columns


def _is_matrix(sums: Load, names: tuple[str, str]) -> bool:
    """Whether the last two indices are those of rows and columns, and no other has them."""
    at = sums.indices
    ends = zip(at[-2:], names, strict=False)
    inside = all(e in (Var(name), idx(0)) for e, name in ends)
    return len(at) >= 2 and inside and not any(variables(e) & set(names) for e in at[:-2])


def _operand(e: Expr, buffers: Buffers, row: str, strides: Mapping[str, int]) -> Operand | None:
    """What `e` loads, where it moves by `strides` elements, and by any number along `row`."""
    if not isinstance(e, Load) or e.tensor.name not in buffers or any(map(loads, e.indices)):
        return None
    total: Expr = idx(0)
    for i, s in zip(e.indices, buffers[e.tensor.name].strides, strict=True):
        total = Binary("add", total, Binary("mul", i, idx(s)))
    form = linear(total)
    for name, stride in strides.items():
        if form.is_opaque_in(name) or form.coefficient(name) != stride:
            return None
    return None if form.is_opaque_in(row) else Operand(e, form.coefficient(row))


def row_bytes(operand: Operand) -> int:
    """Bytes between two rows of a matrix in memory."""
    return operand.stride * dtype_bytes(operand.load.tensor.dtype)
