"""⑤ Loop IR to LLVM IR: one function per kernel, explicit vectors, addresses kept linear.

Unrolled loops are expanded here; the one vectorised loop around a statement becomes the lanes of a
vector type. Every address is Σ coefficient·loop + constant: the varying part is computed once per
scope and shared, the constant goes into the instruction's displacement, so a register tile of any
size costs one pointer per distinct row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import gcd

from autotune.codegen.math import CALLS, EXACT, Math
from autotune.codegen.text import (
    F32,
    F64,
    I1,
    I8,
    I32,
    I64,
    PTR,
    VOID,
    Builder,
    Constant,
    Module,
    Type,
    Value,
    constant,
    counting,
    n_bits,
    undefined,
    vector,
)
from autotune.errors import CodegenError
from autotune.loopir.nodes import (
    Alloc,
    Body,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    PrefetchLine,
    Program,
    Stmt,
    Store,
)
from autotune.loopir.visitor import statements
from autotune.te.arith import Linear, linear, simplify
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
    dtype_bytes,
    dtype_of,
    is_guard,
    loads,
    substitute,
)
from autotune.te.expr import (
    idx as index_const,
)

_TYPES: dict[str, Type] = {
    "float32": F32,
    "float64": F64,
    "int64": I64,
    "int32": I32,
    "int8": I8,
    "uint8": I8,
    "bool": I8,
}
_UNSIGNED = ("uint8", "bool")
_CACHE_LINE = 64
_ZEROS = 256
"""Bytes to read where a load is not made: more than any vector."""


def emit_program(program: Program, triple: str, prefix: str = "") -> str:
    """A module with one function `void prefix+name(ptr…, i64 begin, i64 end)` per kernel."""
    module = Module(triple)
    zeros = module.zeros(f"{prefix}zeros", _ZEROS)
    for kernel in program.kernels:
        _Function(module, program, kernel, prefix, zeros).emit()
    return str(module)


class _Scope:
    """Values computed in a region of straight-line code and valid to its end."""

    def __init__(self, parent: _Scope | None, stored: frozenset[str]) -> None:
        self.parent = parent
        self.stored = stored
        self.values: dict[object, Value] = {}

    def find(self, key: object, tensor: str = "") -> Value | None:
        scope: _Scope | None = self
        while scope is not None:
            if key in scope.values:
                return scope.values[key]
            if tensor in scope.stored:
                return None
            scope = scope.parent
        return None


class _Function:
    """State while one kernel is emitted."""

    def __init__(
        self, module: Module, program: Program, kernel: Kernel, prefix: str, zeros: Value
    ) -> None:
        kinds = dict.fromkeys(kernel.buffers, PTR) | {"begin": I64, "end": I64}
        self.kernel = kernel
        self.b = Builder(module, prefix + kernel.name, kinds)
        self.math = Math(self.b)
        self.zeros = zeros
        self.buffers: dict[str, Buffer] = {b.name: b for b in program.buffers}
        self.pointers = dict(zip(kernel.buffers, self.b.arguments, strict=False))
        self.env: dict[str, int | Value] = {}
        self.lanes: tuple[str, int] | None = None
        self.scope = _Scope(None, frozenset())
        self.forms: dict[int, tuple[object, Linear]] = {}

    def emit(self) -> None:
        begin, end = self.b.arguments[-2:]
        with self._where(self.b.compare("icmp slt", begin, end)):
            self._counted_loop(self.kernel.var, begin, end, self.kernel.body)
        self.b.end()

    # --- statements ---------------------------------------------------------------------------

    def body(self, body: Body) -> None:
        for stmt in body:
            _STMTS[type(stmt)](self, stmt)

    def _for(self, loop: For) -> None:
        if loop.kind == "vectorize":
            if self.lanes is not None:
                raise CodegenError(f"loop {loop.var} is vectorised inside another vector loop")
            self.lanes = (loop.var, loop.extent)
            self.body(loop.body)
            self.lanes = None
        elif loop.kind == "unroll":
            for value in range(loop.extent):
                self.env[loop.var] = value
                self.body(loop.body)
            del self.env[loop.var]
        else:
            self._counted_loop(loop.var, constant(I64, 0), constant(I64, loop.extent), loop.body)

    def _counted_loop(self, var: str, begin: Value, end: Value, body: Body) -> None:
        """A loop that is known to run at least once."""
        head, after, before = self.b.new_label(var), self.b.new_label("after"), self.b.block
        self.b.branch(head)
        self.b.label(head)
        index, line = self.b.loop_index(var, begin, before)
        self.env[var] = index
        self._scoped(body)
        step = self.b.binary("add nsw", index, constant(I64, 1))
        self.b.close_index(line, step)
        self.b.branch_if(self.b.compare("icmp slt", step, end), head, after)
        self.b.label(after)
        del self.env[var]

    @contextmanager
    def _where(self, cond: Value) -> Iterator[None]:
        """What is emitted inside runs where `cond` holds."""
        then, after = self.b.new_label("then"), self.b.new_label("after")
        self.b.branch_if(cond, then, after)
        self.b.label(then)
        yield
        self.b.branch(after)
        self.b.label(after)

    def _scoped(self, body: Body) -> None:
        stored = frozenset(s.tensor.name for s in statements(body) if isinstance(s, Store))
        self.scope = _Scope(self.scope, stored)
        self.body(body)
        parent = self.scope.parent
        assert parent is not None
        self.scope = parent
        for tensor in stored:
            self._forget(tensor)

    def _known(self, cond: Expr) -> Expr:
        """A condition with the values of unrolled loops in it: a Const where they decide it."""
        known = {v: index_const(n) for v, n in self.env.items() if isinstance(n, int)}
        return simplify(substitute(cond, dict(known))) if known else cond

    def _if(self, stmt: If) -> None:
        choice = self._known(stmt.cond)
        if isinstance(choice, Const):
            self.body(stmt.then if choice.value else stmt.orelse)
            return
        cond = self._value(choice)
        if not stmt.orelse:
            with self._where(cond):
                self._scoped(stmt.then)
            return
        then, orelse, after = (self.b.new_label(n) for n in ("then", "else", "after"))
        self.b.branch_if(cond, then, orelse)
        for label, body in ((then, stmt.then), (orelse, stmt.orelse)):
            self.b.label(label)
            self._scoped(body)
            self.b.branch(after)
        self.b.label(after)

    def _let(self, stmt: Let) -> None:
        self.env[stmt.var] = self._value(stmt.value)

    def _alloc(self, stmt: Alloc) -> None:
        buffer = stmt.buffer
        kind = _TYPES[buffer.tensor.dtype]
        size = buffer.n_bytes // dtype_bytes(buffer.tensor.dtype)
        memory = self.b.alloca(kind, size, _CACHE_LINE, buffer.name)
        hidden = self.buffers.get(buffer.name), self.pointers.get(buffer.name)
        self.buffers[buffer.name], self.pointers[buffer.name] = buffer, memory
        self._scoped(stmt.body)
        if hidden[0] is not None and hidden[1] is not None:
            self.buffers[buffer.name], self.pointers[buffer.name] = hidden[0], hidden[1]

    def _store(self, stmt: Store) -> None:
        value = self._value(stmt.value)
        kind = _TYPES[stmt.tensor.dtype]
        if stmt.tensor.dtype == "bool":
            value = self.b.cast("zext", value, value.type.of(I8))
        form = self._form(stmt, stmt.tensor, stmt.indices)
        lane = self._lane_stride(form)
        if self.lanes is None or lane == 1:
            count = self.lanes[1] if self.lanes else 1
            where, align = self._address(stmt.tensor, form, kind, count)
            self.b.store(self._broadcast(value, count), where, align)
        elif lane == 0 and not value.type.is_vector:
            where, align = self._address(stmt.tensor, form, kind, 1)
            self.b.store(value, where, align)
        else:
            self._scatter(stmt, value)
        self._forget(stmt.tensor.name)

    def _scatter(self, stmt: Store, value: Value) -> None:
        lanes = self.lanes
        assert lanes is not None
        lanes_of = self._broadcast(value, lanes[1])
        for n in range(lanes[1]):
            where, align = self._lane_address(stmt.tensor, stmt.indices, n)
            self.b.store(self.b.extract(lanes_of, n), where, align)

    def _forget(self, tensor: str) -> None:
        """Loads of a tensor that was just stored to must be made anew."""
        for key in [k for k in self.scope.values if isinstance(k, tuple) and k[0] == tensor]:
            if key[1] == "load":
                del self.scope.values[key]

    def _prefetch(self, stmt: PrefetchLine) -> None:
        form = self._form(stmt, stmt.tensor, stmt.indices)
        where, _ = self._address(stmt.tensor, form, _TYPES[stmt.tensor.dtype], 1)
        where = self.b.offset(where, self._value(stmt.offset), I8)
        how = [constant(I32, n) for n in (0, 2, 1)]  # for reading, into L2, data
        self.b.call("llvm.prefetch.p0", VOID, [where, *how])

    # --- addresses ----------------------------------------------------------------------------

    def _form(self, key: object, tensor: Tensor, indices: tuple[Expr, ...]) -> Linear:
        """Element offset of an access, as a linear form over loops."""
        found = self.forms.get(id(key))
        if found is None or found[0] is not key:
            strides = self.buffers[tensor.name].strides
            total: Expr = index_const(0)
            for i, s in zip(indices, strides, strict=True):
                total = Binary("add", total, Binary("mul", i, index_const(s)))
            found = (key, linear(total))
            self.forms[id(key)] = found
        return found[1]

    def _expanded(self, form: Linear) -> Linear:
        """The form with the values of unrolled loops in it, inside opaque atoms too."""
        const, rest, opaque = form.const, [], False
        for atom, coef in form.terms:
            bound = self.env.get(atom.name) if isinstance(atom, Var) else None
            if isinstance(bound, int):
                const += bound * coef
            else:
                rest.append((atom, coef))
                opaque = opaque or not isinstance(atom, Var)
        out = Linear(tuple(rest), const)
        if not opaque:
            return out
        known = {v: index_const(n) for v, n in self.env.items() if isinstance(n, int)}
        return linear(substitute(out.expr, dict(known)))

    def _lane_stride(self, form: Linear) -> int | None:
        """Elements between neighbouring lanes; None when not constant."""
        if self.lanes is None:
            return 0
        name = self.lanes[0]
        return None if form.is_opaque_in(name) else form.coefficient(name)

    def _address(self, tensor: Tensor, form: Linear, kind: Type, count: int) -> tuple[Value, int]:
        """Pointer to an element (lane 0) and its provable alignment in bytes."""
        form = self._expanded(form)
        lane = Var(self.lanes[0]) if self.lanes else None
        rest = tuple((atom, coef) for atom, coef in form.terms if atom != lane)
        const, unit = form.const, gcd(*(coef for _, coef in rest))
        base = self._base(tensor, rest, kind)
        size = dtype_bytes(tensor.dtype)
        local = self.buffers[tensor.name].role in ("local", "constant")
        align = gcd(gcd(unit, const) * size, _CACHE_LINE) if local else size
        pointer = self.b.offset(base, constant(I64, const), kind) if const else base
        return pointer, max(align or _CACHE_LINE, size)

    def _base(self, tensor: Tensor, terms: tuple[tuple[Expr, int], ...], kind: Type) -> Value:
        key = (tensor.name, "address", terms)
        found = self.scope.find(key)
        if found is None:
            found = self.pointers[tensor.name]
            for atom, coef in terms:
                step = self.b.binary("mul nsw", self._value(atom), constant(I64, coef))
                found = self.b.offset(found, step, kind)
            if not _reads(terms):
                self.scope.values[key] = found
        return found

    def _lane_address(
        self, tensor: Tensor, indices: tuple[Expr, ...], lane: int
    ) -> tuple[Value, int]:
        lanes, self.lanes = self.lanes, None
        assert lanes is not None
        at = {lanes[0]: index_const(lane)}
        fixed = tuple(substitute(i, dict(at)) for i in indices)
        form = self._form(object(), tensor, fixed)
        where = self._address(tensor, form, _TYPES[tensor.dtype], 1)
        self.lanes = lanes
        return where

    # --- expressions --------------------------------------------------------------------------

    def _value(self, e: Expr, guard: Value | None = None) -> Value:
        return _EXPRS[type(e)](self, e, guard)

    def _const(self, e: Const, _: Value | None) -> Value:
        kind = I1 if e.dtype == "bool" else _TYPES[e.dtype]
        return constant(kind, e.value)

    def _var(self, e: Var, _: Value | None) -> Value:
        if self.lanes and e.name == self.lanes[0]:
            return counting(vector(I64, self.lanes[1]))
        value = self.env[e.name]
        return constant(I64, value) if isinstance(value, int) else value

    def _binary(self, e: Binary, guard: Value | None) -> Value:
        if e.op == "pow" and isinstance(e.b, Const):
            power = self.math.fixed_pow(self._value(e.a, guard), float(e.b.value))
            if power is not None:
                return power
        if e.op == "add" and _is_float_product(e.b):
            return self._fma(e.b, e.a, guard)
        if e.op == "add" and _is_float_product(e.a):
            return self._fma(e.a, e.b, guard)
        a, b = self._same(self._value(e.a, guard), self._value(e.b, guard))
        if a.type.is_float:
            return _FLOAT_OPS[e.op](self, a, b)
        table = _UNSIGNED_OPS if dtype_of(e.a) in _UNSIGNED else _INT_OPS
        return table[e.op](self, a, b)

    def _fma(self, product: Expr, addend: Expr, guard: Value | None) -> Value:
        assert isinstance(product, Binary)
        parts = [self._value(x, guard) for x in (product.a, product.b, addend)]
        count = max(_width(p) for p in parts)
        return self.math.fma(*(self._broadcast(p, count) for p in parts))

    def _compare(self, e: Compare, guard: Value | None) -> Value:
        a, b = self._same(self._value(e.a, guard), self._value(e.b, guard))
        if a.type.is_float:
            return self.b.compare(f"fcmp {'u' if e.op == 'ne' else 'o'}{e.op}", a, b)
        sign = "" if e.op in ("eq", "ne") else "u" if dtype_of(e.a) in _UNSIGNED else "s"
        return self.b.compare(f"icmp {sign}{e.op}", a, b)

    def _call(self, e: Call, guard: Value | None) -> Value:
        value = self._value(e.args[0], guard)
        if e.fn == "not":
            return self._not(value)
        if not value.type.is_float:
            return self._integer_call(e.fn, value)
        if value.type.scalar is not F32 and e.fn not in EXACT:
            raise CodegenError(f"{e.fn} has no code for {dtype_of(e)}")
        return CALLS[e.fn](self.math, value)

    def _integer_call(self, fn: str, value: Value) -> Value:
        if fn not in ("abs", "neg"):
            raise CodegenError(f"{fn} has no code for integers")
        negated = self.b.sub(constant(value.type, 0), value)
        if fn == "neg":
            return negated
        negative = self.b.compare("icmp slt", value, constant(value.type, 0))
        return self.b.select(negative, negated, value)

    def _select(self, e: Select, guard: Value | None) -> Value:
        choice = self._known(e.cond)
        if isinstance(choice, Const):
            return self._value(e.a if choice.value else e.b, guard)
        cond = self._value(choice, guard)
        if is_guard(e):
            yes = self._value(e.a, self._and(guard, cond) if loads(e.a) else None)
            if isinstance(e.a, Load) and e.b == Const(0.0, dtype_of(e.a)) and cond.type is I1:
                return yes  # a load that is not made reads zeros
            no = self._value(e.b, self._and(guard, self._not(cond)) if loads(e.b) else None)
        else:
            yes, no = self._value(e.a, guard), self._value(e.b, guard)
        yes, no = self._same(yes, no)
        if cond.type.is_vector:
            yes, no = (self._broadcast(x, cond.type.count) for x in (yes, no))
        return self.b.select(cond, yes, no)

    def _and(self, a: Value | None, b: Value) -> Value:
        if a is None:
            return b
        x, y = self._same(a, b)
        return self.b.and_(x, y)

    def _not(self, cond: Value) -> Value:
        return self.b.binary("xor", cond, constant(cond.type, 1))

    def _cast(self, e: Cast, guard: Value | None) -> Value:
        value = self._value(e.a, guard)
        if e.dtype == "bool":
            return self._is_set(value)
        kind = value.type.of(_TYPES[e.dtype])
        if value.type is kind:
            return value
        source, goal = value.type.is_float, kind.is_float
        if source and goal:
            return self.b.cast("fpext" if e.dtype == "float64" else "fptrunc", value, kind)
        unsigned = dtype_of(e.a) in _UNSIGNED
        if source:  # a narrow result wraps, as in NumPy
            wide = value.type.of(I64 if e.dtype == "int64" else I32)
            return self._resize(self.b.cast("fptosi", value, wide), kind, unsigned)
        if goal:
            return self.b.cast("uitofp" if unsigned else "sitofp", value, kind)
        return self._resize(value, kind, unsigned)

    def _is_set(self, value: Value) -> Value:
        if value.type.scalar is I1:
            return value
        op = "fcmp une" if value.type.is_float else "icmp ne"
        return self.b.compare(op, value, constant(value.type, 0))

    def _resize(self, value: Value, kind: Type, unsigned: bool) -> Value:
        have, want = n_bits(value.type), n_bits(kind)
        if want <= have:
            return value if want == have else self.b.cast("trunc", value, kind)
        return self.b.cast("zext" if unsigned else "sext", value, kind)

    def _load(self, e: Load, guard: Value | None) -> Value:
        form = self._form(e, e.tensor, e.indices)
        lane = self._lane_stride(form)
        kind = _TYPES[e.tensor.dtype]
        masked = guard is not None and guard.type.is_vector
        if lane == 0 and not masked:
            value = self._plain_load(e, form, kind, 1, guard)
        elif lane == 1:
            assert self.lanes is not None
            value = self._plain_load(e, form, kind, self.lanes[1], guard)
        else:
            value = self._gather(e, guard)
        return self.b.cast("trunc", value, value.type.of(I1)) if e.tensor.dtype == "bool" else value

    def _plain_load(
        self, e: Load, form: Linear, kind: Type, count: int, guard: Value | None
    ) -> Value:
        key = (e.tensor.name, "load", self._expanded(form), count)
        known = self.scope.find(key, e.tensor.name) if guard is None else None
        if known is not None:
            return known
        where, align = self._address(e.tensor, form, kind, count)
        shape = vector(kind, count) if count > 1 else kind
        if guard is not None and guard.type.is_vector:
            return self._masked(where, shape, guard, dtype_bytes(e.tensor.dtype))
        if guard is not None:
            where = self.b.select(guard, where, self.zeros)
            align = dtype_bytes(e.tensor.dtype)
        value = self.b.load(where, shape, align)
        if guard is None and not _reads(form.terms):
            self.scope.values[key] = value
        return value

    def _masked(self, where: Value, shape: Type, mask: Value, align: int) -> Value:
        name = f"llvm.masked.load.{shape.suffix}.p0"
        return self.b.call(name, shape, [where, constant(I32, align), mask, constant(shape, 0)])

    def _gather(self, e: Load, guard: Value | None) -> Value:
        """Lane by lane: for strides other than 0 and 1."""
        lanes = self.lanes
        assert lanes is not None
        kind = _TYPES[e.tensor.dtype]
        gathered = undefined(vector(kind, lanes[1]))
        for n in range(lanes[1]):
            where, align = self._lane_address(e.tensor, e.indices, n)
            if guard is not None:
                one = guard
                if guard.type.is_vector:
                    one = self.b.extract(guard, n)
                where = self.b.select(one, where, self.zeros)
            value = self.b.load(where, kind, align)
            gathered = self.b.insert(gathered, value, n)
        return gathered

    def _reduce(self, e: Reduce, _: Value | None) -> Value:
        raise CodegenError("a reduction reached code generation without being lowered")

    def _same(self, a: Value, b: Value) -> tuple[Value, Value]:
        count = max(_width(a), _width(b))
        return self._broadcast(a, count), self._broadcast(b, count)

    def _broadcast(self, value: Value, count: int) -> Value:
        if count == 1 or value.type.is_vector:
            return value
        if isinstance(value, Constant):
            return constant(vector(value.type, count), value.number)
        key = (value.name, "splat", count)
        found = self.scope.find(key)
        if found is None:
            found = self.scope.values[key] = self.b.splat(value, count)
        return found


def _reads(terms: tuple[tuple[Expr, int], ...]) -> bool:
    """Whether an address depends on what is in memory, which may change."""
    return any(not isinstance(atom, Var) and loads(atom) for atom, _ in terms)


def _width(value: Value) -> int:
    return value.type.count


def _is_float_product(e: Expr) -> bool:
    return isinstance(e, Binary) and e.op == "mul" and dtype_of(e).startswith("float")


def _floor_div(f: _Function, a: Value, b: Value) -> Value:
    """Quotient rounded down; divisors are positive."""
    divisor = _known_number(b)
    if divisor & (divisor - 1) == 0 and divisor > 0:
        return f.b.ashr(a, constant(b.type, divisor.bit_length() - 1))
    remainder = f.b.binary("srem", a, b)
    negative = f.b.cast("sext", f.b.compare("icmp slt", remainder, constant(b.type, 0)), b.type)
    return f.b.add(f.b.binary("sdiv", a, b), negative)


def _floor_mod(f: _Function, a: Value, b: Value) -> Value:
    """Remainder in [0, b); divisors are positive."""
    divisor = _known_number(b)
    if divisor & (divisor - 1) == 0 and divisor > 0:
        return f.b.and_(a, constant(b.type, divisor - 1))
    remainder = f.b.binary("srem", a, b)
    negative = f.b.compare("icmp slt", remainder, constant(b.type, 0))
    return f.b.select(negative, f.b.add(remainder, b), remainder)


def _known_number(x: Value) -> int:
    """The number in a constant, or in all lanes of one; 0 when `x` is not constant."""
    return int(x.number) if isinstance(x, Constant) else 0


_Op = Callable[[_Function, Value, Value], Value]


def _instruction(name: str) -> _Op:
    return lambda f, a, b: f.b.binary(name, a, b)


def _chosen(comparison: str) -> _Op:
    return lambda f, a, b: f.b.select(f.b.compare(comparison, a, b), a, b)


_INT_OPS: dict[str, _Op] = {
    **{op: _instruction(op) for op in ("add", "sub", "mul", "and", "or")},
    "floordiv": _floor_div,
    "mod": _floor_mod,
    "min": _chosen("icmp slt"),
    "max": _chosen("icmp sgt"),
}
_FLOAT_OPS: dict[str, _Op] = {
    **{op: _instruction(f"f{op}") for op in ("add", "sub", "mul", "div")},
    "min": lambda f, a, b: f.math.minimum(a, b),
    "max": lambda f, a, b: f.math.maximum(a, b),
    "pow": lambda f, a, b: f.math.pow(a, b),
}
_UNSIGNED_OPS: dict[str, _Op] = _INT_OPS | {
    "floordiv": _instruction("udiv"),
    "mod": _instruction("urem"),
    "min": _chosen("icmp ult"),
    "max": _chosen("icmp ugt"),
}
_STMTS: dict[type[Stmt], Callable[..., None]] = {
    For: _Function._for,
    If: _Function._if,
    Let: _Function._let,
    Alloc: _Function._alloc,
    Store: _Function._store,
    PrefetchLine: _Function._prefetch,
}
_EXPRS: dict[type[Expr], Callable[..., Value]] = {
    Const: _Function._const,
    Var: _Function._var,
    Binary: _Function._binary,
    Compare: _Function._compare,
    Call: _Function._call,
    Select: _Function._select,
    Cast: _Function._cast,
    Load: _Function._load,
    Reduce: _Function._reduce,
}
