"""⑤ Loop IR to LLVM IR: one function per kernel, explicit vectors, addresses kept linear.

Unrolled loops are expanded here; the one vectorised loop around a statement becomes the lanes of a
vector type. Every address is Σ coefficient·loop + constant: the varying part is computed once per
scope and shared, the constant goes into the instruction's displacement, so a register tile of any
size costs one pointer per distinct row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import gcd
from typing import ClassVar

from autotune.codegen.emission.arithmetic import TYPES, VALUES, Arithmetic
from autotune.codegen.emission.byte_dots import add_byte_dot, has_small_bytes
from autotune.codegen.emission.dots import emit_dot
from autotune.codegen.emission.frame import Frame, Guard, Terms, reads_memory
from autotune.codegen.emission.lanes import NEAR_STRIDES
from autotune.codegen.emission.loads import load_picked, load_repeated, load_strided
from autotune.codegen.emission.lookups import load_looked_up, table_index
from autotune.codegen.emission.powers import fixed_power
from autotune.codegen.emission.saturation import quantised
from autotune.codegen.emission.text import (
    I1,
    I8,
    I32,
    I64,
    PTR,
    VOID,
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
from autotune.codegen.emission.tiles import Tiles
from autotune.codegen.emission.transposing import (
    between,
    interleaved,
    load_transposed,
    neighbours,
)
from autotune.dtypes import dtype_bytes, is_float
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
from autotune.te.expr import (
    INDEX,
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


def emit_program(program: Program, prefix: str = "", isa: Isa = ISAS[-1]) -> str:
    """A module with one function `void prefix+name(ptr…, i64 begin, i64 end)` per kernel."""
    module = Module(isa)
    for kernel in program.kernels:
        FunctionEmitter(module, program, kernel, prefix).emit()
    return str(module)


class FunctionEmitter:
    """State while one kernel is emitted."""

    range_kinds: ClassVar[Mapping[str, Type]] = {"begin": I64, "end": I64}
    """Types of the arguments behind the pointers."""

    def __init__(self, module: Module, program: Program, kernel: Kernel, prefix: str) -> None:
        kinds = {**dict.fromkeys(kernel.buffers, PTR), **self.range_kinds}
        self.kernel = kernel
        self.b = FunctionBuilder(module, prefix + kernel.name, kinds, program.shared)
        self.do = Arithmetic(self.b)
        self.module, self.prefix = module, prefix
        pointers = dict(zip(kernel.buffers, self.b.arguments, strict=False))
        self.at = Frame({b.name: b for b in program.buffers}, pointers)
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

    def zeros(self, n_bytes: int = _ZEROS) -> Value:
        """The zeros that masked-out loads read; part of the module from the first use on."""
        return self.module.zeros(f"{self.prefix}zeros", n_bytes)

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
_EXPRS: dict[type[Expr], Callable[..., Value]] = {
    Const: FunctionEmitter._const,
    Var: FunctionEmitter._var,
    Binary: FunctionEmitter._binary,
    Compare: FunctionEmitter._compare,
    Call: FunctionEmitter._call,
    Select: FunctionEmitter._select,
    Cast: FunctionEmitter._cast,
    Load: FunctionEmitter._load,
    Reduce: FunctionEmitter._reduce,
}
