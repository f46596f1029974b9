"""⑤ Register allocation for instructions on matrices.

The kernel says which register each instruction uses. An operand stays in its register until another
one needs it, within code that runs in one piece: another iteration of a loop loads anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import prod

from autotune.codegen.emission.dots import form_of
from autotune.codegen.emission.frame import Emitter
from autotune.codegen.emission.text import (
    I8,
    I64,
    PTR,
    VOID,
    FunctionBuilder,
    Module,
    Value,
    constant,
)
from autotune.dtypes import dtype_bytes
from autotune.loopir.nodes import Alloc, Buffer, Instruction, Kernel
from autotune.loopir.visitor import loop_extents, statements
from autotune.target.isa import Isa, MultiplyAdd, TileUnit
from autotune.te.arith import offset
from autotune.te.expr import Expr, Load, variables
from autotune.te.products import added


@dataclass(frozen=True, slots=True)
class RegisterPlan:
    """Allocation of the registers of a unit for one buffer of accumulators.

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
        """Configuration of the unit, 64 bytes (`ldtilecfg`)."""
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


class TileCode:
    """Writes instructions of one unit."""

    def __init__(self, b: FunctionBuilder, unit: TileUnit) -> None:
        self.b, self.unit = b, unit
        self._registers: list[Value] = []
        if unit.emulation:
            others = (unit.configure, unit.release, unit.zero, unit.store)
            products = (f.intrinsics[unit.bits] for f in b.module.isa.forms if f.unit is unit)
            b.module.define(unit.load, unit.emulation, (*others, *products))
            n_bytes = 64 + unit.n_registers * unit.bits // 8
            self._registers = [b.alloca(I8, n_bytes, 64, "registers")]

    def configure(self, configuration: bytes) -> None:
        """Begin to use registers of these shapes; all of them are cleared."""
        self._call(self.unit.configure, self.b.module.data(configuration))

    def release(self) -> None:
        """The registers are not in use any more."""
        self._call(self.unit.release)

    def zero(self, register: int) -> None:
        """Clear a register."""
        self._call(self.unit.zero, constant(I8, register))

    def load(self, register: int, where: Value, stride: int) -> None:
        """Load rows that are `stride` bytes apart."""
        self._call(self.unit.load, constant(I8, register), where, constant(I64, stride))

    def store(self, register: int, where: Value, stride: int) -> None:
        """Store rows `stride` bytes apart."""
        self._call(self.unit.store, constant(I8, register), where, constant(I64, stride))

    def multiply_add(self, form: MultiplyAdd, total: int, a: int, b: int) -> None:
        """Add the product of registers `a` and `b` to `total`."""
        numbers = (constant(I8, n) for n in (total, a, b))
        self._call(form.intrinsics[self.unit.bits], *numbers)

    def _call(self, name: str, *arguments: Value) -> None:
        self.b.call(name, VOID, [*self._registers, *arguments])


def product_loop(form: MultiplyAdd, isa: Isa, n_rounds: int, fed: bool) -> str:
    """LLVM assembly of `peak(operand, sink, begin, end)`: products of matrices and nothing else.

    Each turn adds `n_rounds` times the products of two by two operands to four sums, as a register
    tile does. `fed`: the operands are loaded each time.
    """
    assert form.unit is not None
    module = Module(isa)
    b = FunctionBuilder(module, "peak", {"operand": PTR, "sink": PTR, "begin": I64, "end": I64})
    operand, sink, begin, end = b.arguments
    code, width = TileCode(b, form.unit), form.unit.row_bytes
    plan = RegisterPlan(form, form.unit.rows, form.unit.columns, form.unit.rows, 4, 2, 2)
    code.configure(plan.configuration)
    for n in range(4):
        code.zero(n)
    for n in range(4, 8):
        code.load(n, operand, width)
    turn, done, before = b.new_label("turn"), b.new_label("done"), b.block
    b.branch(turn)
    b.label(turn)
    index, line = b.loop_index("i", begin, before)
    for _ in range(n_rounds):
        for n in range(4, 8) if fed else ():
            code.load(n, operand, width)
        for n in range(4):
            code.multiply_add(form, n, 4 + n // 2, 6 + n % 2)
    step = b.binary("add", index, constant(I64, 1))
    b.close_index(line, step)
    b.branch_if(b.compare("icmp slt", step, end), turn, done)
    b.label(done)
    code.store(0, sink, width)
    code.release()
    b.end()
    return str(module)


class Tiles:
    """The registers of matrices while one kernel is emitted."""

    def __init__(self, kernel: Kernel, emitter: Emitter, isa: Isa) -> None:
        self._emitter = emitter
        found = [s for s in statements(kernel.body) if isinstance(s, Alloc)]
        plans = ((s, _plan_of(s, emitter.at.buffers, isa)) for s in found)
        self._plans = {id(s): plan for s, plan in plans if plan is not None}
        """By the identity of the statement that allocates the buffer."""
        units = [p.unit for p in self._plans.values()]
        self._code = TileCode(emitter.b, units[0]) if units else None
        self._plan: RegisterPlan | None = None
        self._held: dict[int, object] = {}
        """Operand in each register, the one used last at the end."""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Scope that may use the registers: configured once, if all plans are alike."""
        if self._code is not None and self._is_one_shape:
            self._code.configure(next(iter(self._plans.values())).configuration)
        yield
        if self._code is not None:
            self._code.release()

    @property
    def _is_one_shape(self) -> bool:
        return len({p.configuration for p in self._plans.values()}) == 1

    @contextmanager
    def allocated(self, alloc: Alloc) -> Iterator[bool]:
        """Whether the buffer of `alloc` is registers while the inside is emitted."""
        plan = self._plans.get(id(alloc))
        if plan is not None and self._code is not None:
            self._plan = plan
            self.forget()
            if not self._is_one_shape:
                self._code.configure(plan.configuration)
        yield plan is not None
        if plan is not None:
            self._plan = None

    def forget(self) -> None:
        """Memory or loops have changed: operands are loaded anew."""
        self._held.clear()

    def emit(self, stmt: Instruction) -> bool:
        """Emit an instruction on registers; False where its sums are in memory (`plan_of`)."""
        code, plan, store = self._code, self._plan, stmt.store
        if code is None or plan is None:
            return False
        place = Load(store.tensor, store.indices)
        match stmt.operation, store.value:
            case "clear", _:
                code.zero(self._register(place, plan))
            case "load", Load() as other:
                code.load(self._register(place, plan), *self._rows(stmt, other, 0)[:2])
            case "store", Load() as sums:
                code.store(self._register(sums, plan), *self._rows(stmt, place, 0)[:2])
                self._emitter.at.forget(store.tensor.name)
                self.forget()
            case _:
                self._multiply_add(stmt, self._register(place, plan), plan, code)
        return True

    def _multiply_add(
        self, stmt: Instruction, register: int, plan: RegisterPlan, code: TileCode
    ) -> None:
        end = plan.n_sums + plan.n_a
        for first, second in added(stmt.store.value)[1]:
            a = self._operand(stmt, first, 0, range(plan.n_sums, end))
            b = self._operand(stmt, second, 1, range(end, end + plan.n_b))
            code.multiply_add(plan.form, register, a, b)

    def _register(self, sums: Load, plan: RegisterPlan) -> int:
        """The register of an accumulator, by the values of the unrolled loops."""
        at = self._emitter.at
        form = at.expanded(at.form(sums, sums.tensor, sums.indices))
        return form.const // (plan.rows * plan.columns)

    def _operand(self, stmt: Instruction, e: Expr, row: int, registers: range) -> int:
        """A register that holds an operand, whose rows are those of a loop."""
        assert isinstance(e, Load)
        assert self._code is not None
        where, n_bytes, key = self._rows(stmt, e, row)
        found = next((r for r in registers if self._held.get(r) == key), None)
        if found is None:
            free = [r for r in registers if r not in self._held]
            found = free[0] if free else next(r for r in self._held if r in registers)
            self._code.load(found, where, n_bytes)
        self._held.pop(found, None)
        self._held[found] = key
        return found

    def _rows(self, stmt: Instruction, load: Load, row: int) -> tuple[Value, int, object]:
        """The address of a matrix, bytes between its rows, and its identity."""
        at, names = self._emitter.at, [loop.var for loop in stmt.loops]
        form = at.form(load, load.tensor, load.indices)
        stride = form.coefficient(names[row]) * dtype_bytes(load.tensor.dtype)
        at.env.update(dict.fromkeys(names, 0))
        form = at.expanded(form)
        for name in names:
            del at.env[name]
        return self._emitter.place(load.tensor, form), stride, (load.tensor.name, form)


# --- which registers -----------------------------------------------------------------------------


def _plan_of(alloc: Alloc, buffers: Mapping[str, Buffer], isa: Isa) -> RegisterPlan | None:
    """The plan for a buffer in registers, None for others. Raises ScheduleError without a unit.

    None also where one of `buffers` is a window of such strides that rows of operands are torn
    apart: then sums are in memory. Tensors as a whole, for which schedules are made, never do that.
    """
    if alloc.buffer.role != "registers":
        return None
    name, inside = alloc.buffer.name, statements(alloc.body)
    products = (s for s in inside if isinstance(s, Instruction) and s.is_product)
    stmt = next(s for s in products if s.store.tensor.name == name)
    _, groups, _, terms = stmt.loops
    rows_of = (a for a, _ in added(stmt.store.value)[1] if isinstance(a, Load))
    read = ((a, buffers[a.tensor.name]) for a in rows_of if a.tensor.name in buffers)
    steps = (offset(a.indices, b.strides).coefficient(groups.var) for a, b in read)
    if any(step != terms.extent for step in steps):
        return None
    form = form_of(stmt, isa)
    assert form.unit is not None
    *outer, rows, columns = alloc.buffer.tensor.shape
    n_sums = prod(outer)
    n_left = form.unit.n_registers - n_sums
    n_a = _share(n_left, stmt, loop_extents(alloc.body))
    return RegisterPlan(form, rows, columns, groups.extent, n_sums, n_a, n_left - n_a)


def _share(n_left: int, stmt: Instruction, extents: Mapping[str, int]) -> int:
    """Number of remaining registers for first operands: the one with the fewest loads."""
    used = frozenset[str]().union(*map(variables, stmt.store.indices[:-2]))
    own = {name: n for name, n in extents.items() if name in used}
    points = [dict(zip(own, at, strict=True)) for at in product(*map(range, own.values()))]
    _, factors = added(stmt.store.value)

    def matrix(operand: Expr, at: Mapping[str, int]) -> object:
        names = variables(operand)
        return operand, tuple(n for name, n in at.items() if name in names)

    orders = [[matrix(f[k], at) for at in points for f in factors] for k in (0, 1)]

    def n_loads(n_a: int) -> int:
        return _n_loads(orders[0], n_a) + _n_loads(orders[1], n_left - n_a)

    return min(range(1, n_left), key=n_loads)


def _n_loads(order: Sequence[object], n_registers: int) -> int:
    """Loads of operands that are used in an order, where the last used ones stay in registers."""
    held: list[object] = []
    n_loads = 0
    for matrix in order:
        n_loads += matrix not in held
        held = [*(h for h in held if h != matrix), matrix][-n_registers:]
    return n_loads
