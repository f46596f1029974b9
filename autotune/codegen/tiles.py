"""⑤ Emission of nests that are instructions on matrices in registers (`tile_nests`).

The kernel says which register each instruction uses. An operand stays in its register until another
one needs it, within code that runs in one piece: another iteration of a loop loads anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from autotune.codegen.frame import Frame
from autotune.codegen.text import I8, I64, PTR, VOID, Builder, Module, Value, constant
from autotune.codegen.tile_nests import (
    Nest,
    Operand,
    Plan,
    Plans,
    match_nest,
    row_bytes,
    tile_plans,
)
from autotune.loopir.nodes import Alloc, For, Kernel
from autotune.target.isa import Isa, MultiplyAdd, TileUnit
from autotune.te.arith import Linear
from autotune.te.expr import Tensor


class Emitter(Protocol):
    """What emits the rest of the kernel."""

    at: Frame
    b: Builder

    def place(self, tensor: Tensor, form: Linear) -> Value:
        """Pointer to an element; `form`: expanded."""


class TileCode:
    """Writes instructions of one unit."""

    def __init__(self, b: Builder, unit: TileUnit) -> None:
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


def product_loop(form: MultiplyAdd, isa: Isa, triple: str, n_rounds: int, fed: bool) -> str:
    """LLVM assembly of `peak(operand, sink, begin, end)`: products of matrices and nothing else.

    Each turn adds `n_rounds` times the products of two by two operands to four sums, as a register
    tile does. `fed`: the operands are loaded each time.
    """
    assert form.unit is not None
    module = Module(triple, isa)
    b = Builder(module, "peak", {"operand": PTR, "sink": PTR, "begin": I64, "end": I64})
    operand, sink, begin, end = b.arguments
    code, width = TileCode(b, form.unit), form.unit.row_bytes
    plan = Plan(form, form.unit.rows, form.unit.columns, form.unit.rows, 4, 2, 2)
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
        self._emitter, self._isa = emitter, isa
        self._plans: Plans = tile_plans(kernel, emitter.at.buffers, isa)
        units = {id(p.unit): p.unit for p in self._plans.values()}
        self._code = TileCode(emitter.b, next(iter(units.values()))) if units else None
        self._plan: Plan | None = None
        self._sums = ""
        self._held: dict[int, object] = {}
        """What operand each register holds, the one used last at the end."""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """What is emitted inside may use the registers: configured once, if all plans are alike."""
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
            self._plan, self._sums = plan, alloc.buffer.name
            self.forget()
            if not self._is_one_shape:
                self._code.configure(plan.configuration)
        yield plan is not None
        if plan is not None:
            self._plan = None

    def forget(self) -> None:
        """Memory or loops have changed: operands are loaded anew."""
        self._held.clear()

    def emit(self, loop: For) -> bool:
        """Emit the nest of `loop`, if it is an instruction on registers that are in use."""
        buffers = self._emitter.at.buffers
        nest = match_nest(loop, self._sums, buffers, self._isa) if self._plan else None
        if nest is None or self._plan is None or self._code is None:
            return False
        register = self._register(nest, self._plan)
        if nest.form:
            self._multiply_add(nest, nest.form, register, self._plan)
        elif nest.memory is None:
            self._code.zero(register)
        elif nest.stores:
            self._code.store(register, self._where(nest, nest.memory)[0], row_bytes(nest.memory))
            self._emitter.at.forget(nest.memory.load.tensor.name)
            self.forget()
        else:
            self._code.load(register, self._where(nest, nest.memory)[0], row_bytes(nest.memory))
        return True

    def _multiply_add(self, nest: Nest, form: MultiplyAdd, register: int, plan: Plan) -> None:
        assert self._code is not None
        end = plan.n_sums + plan.n_a
        for first, second in nest.factors:
            a = self._operand(nest, first, range(plan.n_sums, end))
            b = self._operand(nest, second, range(end, end + plan.n_b))
            self._code.multiply_add(form, register, a, b)

    def _register(self, nest: Nest, plan: Plan) -> int:
        """The register of an accumulator, by the values of the unrolled loops."""
        at = self._emitter.at
        form = at.expanded(at.form(nest, nest.total, nest.at))
        return form.const // (plan.rows * plan.columns)

    def _operand(self, nest: Nest, operand: Operand, registers: range) -> int:
        """A register that holds the operand."""
        where, key = self._where(nest, operand)
        found = next((r for r in registers if self._held.get(r) == key), None)
        if found is None:
            assert self._code is not None
            free = [r for r in registers if r not in self._held]
            found = free[0] if free else next(r for r in self._held if r in registers)
            self._code.load(found, where, row_bytes(operand))
        self._held.pop(found, None)
        self._held[found] = key
        return found

    def _where(self, nest: Nest, operand: Operand) -> tuple[Value, object]:
        """The address of a matrix, and what tells it from others."""
        at, load = self._emitter.at, operand.load
        at.env.update(dict.fromkeys(nest.loops, 0))
        form = at.expanded(at.form(load, load.tensor, load.indices))
        for name in nest.loops:
            del at.env[name]
        return self._emitter.place(load.tensor, form), (load.tensor.name, form)
