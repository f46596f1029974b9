"""⑤ Loop IR to LLVM IR: one function per kernel, explicit vectors, addresses kept linear.

Unrolled loops are expanded here; the one vectorised loop around a statement becomes the lanes of a
vector type. Every address is Σ coefficient·loop + constant: the varying part is computed once per
scope and shared, the constant goes into the instruction's displacement, so a register tile of any
size costs one pointer per distinct row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from autotune.codegen.emission.arithmetic import TYPES
from autotune.codegen.emission.dots import emit_dot
from autotune.codegen.emission.text import I8, I32, I64, VOID, Module, Type, Value, constant
from autotune.codegen.emission.tiles import Tiles
from autotune.codegen.emission.transposing import between, interleaved
from autotune.codegen.emission.values import ValueEmitter
from autotune.dtypes import dtype_bytes
from autotune.errors import CodegenError, ScheduleError
from autotune.loopir.nodes import (
    Alloc,
    Barrier,
    Body,
    Buffer,
    For,
    If,
    Instruction,
    Kernel,
    Let,
    PrefetchLine,
    Program,
    Stmt,
    Store,
)
from autotune.loopir.visitor import statements
from autotune.pages import CACHE_LINE
from autotune.schedule.steps import LAUNCH_INDICES
from autotune.target.isa import ISAS, Isa
from autotune.te.arith import Linear, bounds
from autotune.te.expr import INDEX, Const, Var


def emit_program(program: Program, prefix: str = "", isa: Isa = ISAS[-1]) -> str:
    """A module with one function `void prefix+name(ptr…, i64 begin, i64 end)` per kernel."""
    module = Module(isa)
    for kernel in program.kernels:
        FunctionEmitter(module, program, kernel, prefix).emit()
    return str(module)


class FunctionEmitter(ValueEmitter):
    """State while one kernel is emitted."""

    def __init__(self, module: Module, program: Program, kernel: Kernel, prefix: str) -> None:
        super().__init__(module, program, kernel, prefix)
        self.kernel = kernel
        self.tiles = Tiles(kernel, self, module.isa)
        self._parts: dict[tuple[str, Linear], list[Value]] = {}
        """Vectors that wait for those that are stored between their lanes."""

    def emit(self) -> None:
        """The whole kernel, into the module."""
        begin, end = self._range()
        with self.where(self.b.compare("icmp slt", begin, end)):
            self.at.ranges[self.kernel.var] = (0, self.kernel.extent - 1)
            self.at.env[self.kernel.var] = begin
            self.scoped(self.kernel.head)
            with self.tiles.in_use():
                self._counted_loop(self.kernel.var, begin, end, self.kernel.body)
        self.b.end()

    def _range(self) -> tuple[Value, Value]:
        """The iterations of this call, of those that there are."""
        begin, end = self.b.arguments[-2:]
        if self.kernel.live is None:
            return begin, end
        live, extent = self.value(self.kernel.live), constant(I64, self.kernel.extent)
        begin, end = (
            self.b.binary("udiv", self.b.binary("mul nuw", x, live), extent) for x in (begin, end)
        )
        return begin, end

    # --- statements ---------------------------------------------------------------------------

    def body(self, body: Body) -> None:
        """Statements, one after another."""
        for stmt in body:
            _STMTS[type(stmt)](self, stmt)

    def _for(self, loop: For) -> None:
        if loop.kind == "vectorize":
            if self.at.lanes is not None:
                raise CodegenError(f"loop {loop.var} is vectorised inside another vector loop")
            self.at.lanes = (loop.var, loop.extent)
            self.body(loop.body)
            self.at.lanes = None
        elif loop.kind in LAUNCH_INDICES:
            self.iteration(loop)
        elif loop.kind == "serial":
            self.at.ranges[loop.var] = (0, loop.extent - 1)
            self._serial_loop(loop)
            del self.at.ranges[loop.var]
        else:
            self.at.extents[loop.var] = loop.extent
            for value in range(loop.extent):
                self.at.env[loop.var] = value
                self.body(loop.body)
            del self.at.env[loop.var], self.at.extents[loop.var]

    def iteration(self, loop: For) -> None:
        """The iteration of this thread of a GPU; a CPU has none."""
        raise ScheduleError(
            f"loop {loop.var} is bound to {loop.kind} of a GPU, and this is code for a CPU",
            's.source("ptx") is its text; a CPU runs loops by parallel, vectorize, unroll',
        )

    def barrier(self, _: Barrier) -> None:
        """All threads of a block come here before one goes on."""

    def _instruction(self, stmt: Instruction) -> None:
        if self.at.lanes:
            self._store_value(stmt.store, emit_dot(stmt, self))
        elif not self.tiles.emit(stmt):
            self.body(stmt.body)

    def _serial_loop(self, loop: For) -> None:
        first, end = constant(I64, 0), constant(I64, loop.extent)
        if loop.limit is None:
            self._counted_loop(loop.var, first, end, loop.body)
            return
        limit = self.do.binary("min", INDEX, end, self.value(loop.limit))
        with self.where(self.b.compare("icmp slt", first, limit)):
            self._counted_loop(loop.var, first, limit, loop.body)

    def _counted_loop(self, var: str, begin: Value, end: Value, body: Body) -> None:
        """A loop that is known to run at least once."""
        head, after, before = self.b.new_label(var), self.b.new_label("after"), self.b.block
        self.b.branch(head)
        self.b.label(head)
        index, line = self.b.loop_index(var, begin, before)
        self.at.env[var] = index
        self.scoped(body)
        step = self.b.binary("add nsw", index, constant(I64, 1))
        self.b.close_index(line, step)
        self.b.branch_if(self.b.compare("icmp slt", step, end), head, after)
        self.b.label(after)
        del self.at.env[var]

    @contextmanager
    def where(self, cond: Value) -> Iterator[None]:
        """Basic block that runs where `cond` holds."""
        then, after = self.b.new_label("then"), self.b.new_label("after")
        self.b.branch_if(cond, then, after)
        self.b.label(then)
        yield
        self.b.branch(after)
        self.b.label(after)

    def scoped(self, body: Body) -> None:
        """Statements in a scope of their own, which may run several times or not at all."""
        stored = frozenset(s.tensor.name for s in statements(body) if isinstance(s, Store))
        self.tiles.forget()
        with self.at.scope(stored):
            self.body(body)
        self.tiles.forget()

    def _if(self, stmt: If) -> None:
        choice = self.at.known(stmt.cond)
        if isinstance(choice, Const):
            with self.at.under(stmt.cond):
                self.body(stmt.then if choice.value else stmt.orelse)
            return
        cond = self.value(choice)
        if not stmt.orelse:
            with self.where(cond):
                self.scoped(stmt.then)
            return
        then, orelse, after = (self.b.new_label(n) for n in ("then", "else", "after"))
        self.b.branch_if(cond, then, orelse)
        for label, body in ((then, stmt.then), (orelse, stmt.orelse)):
            self.b.label(label)
            self.scoped(body)
            self.b.branch(after)
        self.b.label(after)

    def _let(self, stmt: Let) -> None:
        if stmt.var in self.at.depends:  # of an earlier iteration of an unrolled loop
            self.at.forget_all()
            self.tiles.forget()
        self.at.env[stmt.var] = self.value(stmt.value)
        self.at.depends[stmt.var] = self.at.depending(stmt.value)
        with suppress(KeyError):
            self.at.ranges[stmt.var] = bounds(stmt.value, self.at.ranges)

    def _alloc(self, stmt: Alloc) -> None:
        buffer = stmt.buffer
        kind = TYPES[buffer.tensor.dtype]
        size = buffer.n_bytes // dtype_bytes(buffer.tensor.dtype)
        hidden = self.at.buffers.get(buffer.name), self.at.pointers.get(buffer.name)
        self.at.buffers[buffer.name] = buffer
        with self.tiles.allocated(stmt) as in_registers:
            if not in_registers:
                self.at.pointers[buffer.name] = self.memory(buffer, kind, size)
            self.scoped(stmt.body)
        if hidden[0] is not None and hidden[1] is not None:
            self.at.buffers[buffer.name], self.at.pointers[buffer.name] = hidden[0], hidden[1]

    def memory(self, buffer: Buffer, kind: Type, size: int) -> Value:
        """Room for a local buffer of `size` elements."""
        return self.b.alloca(kind, size, CACHE_LINE, buffer.name)

    def _store(self, stmt: Store) -> None:
        self._store_value(stmt, self.value(stmt.value))

    def _store_value(self, stmt: Store, value: Value) -> None:
        kind = TYPES[stmt.tensor.dtype]
        value = self.do.stored(stmt.tensor.dtype, value)
        form = self.at.form(stmt, stmt.tensor, stmt.indices)
        lane = self.at.lane_stride(form)
        if self.at.lanes is None or lane == 1:
            count = self.at.lanes[1] if self.at.lanes else 1
            where, align = self._address(stmt.tensor, self.at.expanded(form), kind)
            value = self.broadcast(value, count)
            if value.type.is_vector and not self.module.isa.keeps_order:
                self.b.hold(value)
            self.b.store(value, where, align)
            self.at.widths[stmt.tensor.name] = count
        elif lane == 0 and not value.type.is_vector:
            where, align = self._address(stmt.tensor, self.at.expanded(form), kind)
            self.b.store(value, where, align)
        elif (name := between(self.at, form)) is not None:
            self._store_between(stmt, form, name, value)
        else:
            self._scatter(stmt, value)
        self.at.forget(stmt.tensor.name)
        self.tiles.forget()

    def _store_between(self, stmt: Store, form: Linear, name: str, value: Value) -> None:
        """Keep a vector until those of all iterations of loop `name` are there: one store."""
        lanes, extent = self.at.lanes, self.at.extents[name]
        assert lanes is not None
        first = self.at.expanded(form.without(Var(name)))
        parts = self._parts.setdefault((stmt.tensor.name, first), [])
        parts.append(self.broadcast(value, lanes[1]))
        if len(parts) == extent:
            del self._parts[stmt.tensor.name, first]
            where, align = self._address(stmt.tensor, first, TYPES[stmt.tensor.dtype])
            self.b.store(interleaved(self.b, parts), where, align)
            self.at.widths[stmt.tensor.name] = extent * lanes[1]

    def _scatter(self, stmt: Store, value: Value) -> None:
        lanes = self.at.lanes
        assert lanes is not None
        lanes_of = self.broadcast(value, lanes[1])
        for n in range(lanes[1]):
            where, align = self._lane_address(stmt.tensor, stmt.indices, n)
            self.b.store(self.b.extract(lanes_of, n), where, align)

    def _prefetch(self, stmt: PrefetchLine) -> None:
        form = self.at.expanded(self.at.form(stmt, stmt.tensor, stmt.indices))
        where, _ = self._address(stmt.tensor, form, TYPES[stmt.tensor.dtype])
        where = self.b.offset(where, self.value(stmt.offset), I8)
        locality = {1: 3, 2: 2}[stmt.level]
        how = [constant(I32, n) for n in (0, locality, 1)]  # for reading; data
        self.b.call("llvm.prefetch.p0", VOID, [where, *how])


_STMTS: dict[type[Stmt], Callable[..., None]] = {
    For: FunctionEmitter._for,
    If: FunctionEmitter._if,
    Let: FunctionEmitter._let,
    Alloc: FunctionEmitter._alloc,
    Store: FunctionEmitter._store,
    PrefetchLine: FunctionEmitter._prefetch,
    Barrier: lambda f, stmt: f.barrier(stmt),
    Instruction: FunctionEmitter._instruction,
}
