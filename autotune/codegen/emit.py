"""⑤ Loop IR to LLVM IR: one function per kernel, explicit vectors, addresses kept linear.

Unrolled loops are expanded here; the one vectorised loop around a statement becomes the lanes of a
vector type. Every address is Σ coefficient·loop + constant: the varying part is computed once per
scope and shared, the constant goes into the instruction's displacement, so a register tile of any
size costs one pointer per distinct row.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign, gcd

import llvmlite.ir as ir

from autotune.codegen.math import CALLS, EXACT, Math, declare, vector_suffix
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
    loads,
    substitute,
)
from autotune.te.expr import (
    idx as index_const,
)

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
PTR, VOID = ir.PointerType(), ir.VoidType()
_TYPES: dict[str, ir.Type] = {
    "float32": ir.FloatType(),
    "float64": ir.DoubleType(),
    "int64": I64,
    "int32": I32,
    "int8": I8,
    "uint8": I8,
    "bool": I8,
}
_UNSIGNED = ("uint8", "bool")
_CACHE_LINE = 64


def emit_program(program: Program, triple: str, prefix: str = "") -> ir.Module:
    """A module with one function `void prefix+name(ptr…, i64 begin, i64 end)` per kernel."""
    module = ir.Module("autotune")
    module.triple = triple
    zeros = ir.GlobalVariable(module, ir.ArrayType(I8, 256), f"{prefix}zeros")
    zeros.initializer = ir.Constant(zeros.value_type, None)
    zeros.global_constant, zeros.linkage, zeros.align = True, "internal", 64
    for kernel in program.kernels:
        _Function(module, program, kernel, prefix, zeros).emit()
    return module


class _Scope:
    """Values computed in a region of straight-line code and valid to its end."""

    def __init__(self, parent: _Scope | None, stored: frozenset[str]) -> None:
        self.parent = parent
        self.stored = stored
        self.values: dict[object, ir.Value] = {}

    def find(self, key: object, tensor: str = "") -> ir.Value | None:
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
        self, module: ir.Module, program: Program, kernel: Kernel, prefix: str, zeros: ir.Value
    ) -> None:
        kinds = [PTR] * len(kernel.buffers) + [I64, I64]
        self.kernel = kernel
        self.fn = ir.Function(module, ir.FunctionType(VOID, kinds), prefix + kernel.name)
        self.fn.attributes.add("nounwind")
        self.entry = self.fn.append_basic_block("entry")
        self.b = ir.IRBuilder(self.entry)
        self.math = Math(self.b)
        self.zeros = zeros
        self.buffers: dict[str, Buffer] = {b.name: b for b in program.buffers}
        self.pointers: dict[str, ir.Value] = {}
        for name, arg in zip(kernel.buffers, self.fn.args, strict=False):
            arg.add_attribute("noalias")
            arg.name = name
            self.pointers[name] = arg
        self.env: dict[str, int | ir.Value] = {}
        self.lanes: tuple[str, int] | None = None
        self.scope = _Scope(None, frozenset())
        self.forms: dict[int, tuple[object, Linear]] = {}

    def emit(self) -> None:
        begin, end = self.fn.args[-2:]
        with self.b.if_then(self.b.icmp_signed("<", begin, end)):
            self._counted_loop(self.kernel.var, begin, end, self.kernel.body)
        self.b.ret_void()

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
            self._counted_loop(loop.var, I64(0), I64(loop.extent), loop.body)

    def _counted_loop(self, var: str, begin: ir.Value, end: ir.Value, body: Body) -> None:
        """A loop that is known to run at least once."""
        before = self.b.block
        head = self.fn.append_basic_block(var)
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(I64, var)
        index.add_incoming(begin, before)
        self.env[var] = index
        self._scoped(body)
        step = self.b.add(index, I64(1), flags=["nsw"])
        index.add_incoming(step, self.b.block)
        after = self.fn.append_basic_block(f"{var}.end")
        self.b.cbranch(self.b.icmp_signed("<", step, end), head, after)
        self.b.position_at_end(after)
        del self.env[var]

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
            with self.b.if_then(cond):
                self._scoped(stmt.then)
            return
        with self.b.if_else(cond) as (then, orelse):
            with then:
                self._scoped(stmt.then)
            with orelse:
                self._scoped(stmt.orelse)

    def _let(self, stmt: Let) -> None:
        self.env[stmt.var] = self._value(stmt.value)

    def _alloc(self, stmt: Alloc) -> None:
        buffer = stmt.buffer
        with self.b.goto_block(self.entry):
            if self.entry.instructions:
                self.b.position_before(self.entry.instructions[0])
            kind = _TYPES[buffer.tensor.dtype]
            size = ir.ArrayType(kind, buffer.n_bytes // dtype_bytes(buffer.tensor.dtype))
            memory = self.b.alloca(size, name=buffer.name)
            memory.align, memory.type = _CACHE_LINE, PTR
        hidden = self.buffers.get(buffer.name), self.pointers.get(buffer.name)
        self.buffers[buffer.name], self.pointers[buffer.name] = buffer, memory
        self._scoped(stmt.body)
        if hidden[0] is not None and hidden[1] is not None:
            self.buffers[buffer.name], self.pointers[buffer.name] = hidden[0], hidden[1]

    def _store(self, stmt: Store) -> None:
        value = self._value(stmt.value)
        kind = _TYPES[stmt.tensor.dtype]
        if stmt.tensor.dtype == "bool":
            value = self.b.zext(value, _like(value.type, I8))
        form = self._form(stmt, stmt.tensor, stmt.indices)
        lane = self._lane_stride(form)
        if self.lanes is None or lane == 1:
            count = self.lanes[1] if self.lanes else 1
            where, align = self._address(stmt.tensor, form, kind, count)
            self.b.store(self._broadcast(value, count), where, align=align)
        elif lane == 0 and not isinstance(value.type, ir.VectorType):
            where, align = self._address(stmt.tensor, form, kind, 1)
            self.b.store(value, where, align=align)
        else:
            self._scatter(stmt, value)
        self._forget(stmt.tensor.name)

    def _scatter(self, stmt: Store, value: ir.Value) -> None:
        lanes = self.lanes
        assert lanes is not None
        vector = self._broadcast(value, lanes[1])
        for n in range(lanes[1]):
            where, align = self._lane_address(stmt.tensor, stmt.indices, n)
            self.b.store(self.b.extract_element(vector, I32(n)), where, align=align)

    def _forget(self, tensor: str) -> None:
        """Loads of a tensor that was just stored to must be made anew."""
        for key in [k for k in self.scope.values if isinstance(k, tuple) and k[0] == tensor]:
            if key[1] == "load":
                del self.scope.values[key]

    def _prefetch(self, stmt: PrefetchLine) -> None:
        form = self._form(stmt, stmt.tensor, stmt.indices)
        where, _ = self._address(stmt.tensor, form, _TYPES[stmt.tensor.dtype], 1)
        where = self.b.gep(where, [self._value(stmt.offset)], source_etype=I8)
        fn = declare(self.b.module, "llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])
        self.b.call(fn, [where, I32(0), I32(2), I32(1)])

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

    def _address(
        self, tensor: Tensor, form: Linear, kind: ir.Type, count: int
    ) -> tuple[ir.Value, int]:
        """Pointer to an element (lane 0) and its provable alignment in bytes."""
        form = self._expanded(form)
        lane = Var(self.lanes[0]) if self.lanes else None
        rest = tuple((atom, coef) for atom, coef in form.terms if atom != lane)
        const, unit = form.const, gcd(*(coef for _, coef in rest))
        base = self._base(tensor, rest, kind)
        size = dtype_bytes(tensor.dtype)
        local = self.buffers[tensor.name].role in ("local", "constant")
        align = gcd(gcd(unit, const) * size, _CACHE_LINE) if local else size
        pointer = self.b.gep(base, [I64(const)], source_etype=kind) if const else base
        return pointer, max(align or _CACHE_LINE, size)

    def _base(self, tensor: Tensor, terms: tuple[tuple[Expr, int], ...], kind: ir.Type) -> ir.Value:
        key = (tensor.name, "address", terms)
        found = self.scope.find(key)
        if found is None:
            found = self.pointers[tensor.name]
            for atom, coef in terms:
                step = self.b.mul(self._value(atom), I64(coef), flags=["nsw"])
                found = self.b.gep(found, [step], source_etype=kind)
            self.scope.values[key] = found
        return found

    def _lane_address(
        self, tensor: Tensor, indices: tuple[Expr, ...], lane: int
    ) -> tuple[ir.Value, int]:
        lanes, self.lanes = self.lanes, None
        assert lanes is not None
        at = {lanes[0]: index_const(lane)}
        fixed = tuple(substitute(i, dict(at)) for i in indices)
        form = self._form(object(), tensor, fixed)
        where = self._address(tensor, form, _TYPES[tensor.dtype], 1)
        self.lanes = lanes
        return where

    # --- expressions --------------------------------------------------------------------------

    def _value(self, e: Expr, guard: ir.Value | None = None) -> ir.Value:
        return _EXPRS[type(e)](self, e, guard)

    def _const(self, e: Const, _: ir.Value | None) -> ir.Value:
        kind = I1 if e.dtype == "bool" else _TYPES[e.dtype]
        return ir.Constant(kind, float(e.value) if e.dtype.startswith("float") else int(e.value))

    def _var(self, e: Var, _: ir.Value | None) -> ir.Value:
        if self.lanes and e.name == self.lanes[0]:
            return ir.Constant(ir.VectorType(I64, self.lanes[1]), list(range(self.lanes[1])))
        value = self.env[e.name]
        return I64(value) if isinstance(value, int) else value

    def _binary(self, e: Binary, guard: ir.Value | None) -> ir.Value:
        if e.op == "pow" and isinstance(e.b, Const):
            power = self.math.fixed_pow(self._value(e.a, guard), float(e.b.value))
            if power is not None:
                return power
        if e.op == "add" and _is_float_product(e.b):
            return self._fma(e.b, e.a, guard)
        if e.op == "add" and _is_float_product(e.a):
            return self._fma(e.a, e.b, guard)
        a, b = self._same(self._value(e.a, guard), self._value(e.b, guard))
        if _is_float(a.type):
            return _FLOAT_OPS[e.op](self, a, b)
        table = _UNSIGNED_OPS if dtype_of(e.a) in _UNSIGNED else _INT_OPS
        return table[e.op](self, a, b)

    def _fma(self, product: Expr, addend: Expr, guard: ir.Value | None) -> ir.Value:
        assert isinstance(product, Binary)
        parts = [self._value(x, guard) for x in (product.a, product.b, addend)]
        count = max(_width(p) for p in parts)
        return self.math.fma(*(self._broadcast(p, count) for p in parts))

    def _compare(self, e: Compare, guard: ir.Value | None) -> ir.Value:
        a, b = self._same(self._value(e.a, guard), self._value(e.b, guard))
        op = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}[e.op]
        if _is_float(a.type):
            return self.b.fcmp_ordered(op, a, b) if op != "!=" else self.b.fcmp_unordered(op, a, b)
        if dtype_of(e.a) in _UNSIGNED:
            return self.b.icmp_unsigned(op, a, b)
        return self.b.icmp_signed(op, a, b)

    def _call(self, e: Call, guard: ir.Value | None) -> ir.Value:
        value = self._value(e.args[0], guard)
        if e.fn == "not":
            return self.b.not_(value)
        if not _is_float(value.type):
            return self._integer_call(e.fn, value)
        if _scalar(value.type) != _TYPES["float32"] and e.fn not in EXACT:
            raise CodegenError(f"{e.fn} has no code for {dtype_of(e)}")
        return CALLS[e.fn](self.math, value)

    def _integer_call(self, fn: str, value: ir.Value) -> ir.Value:
        if fn not in ("abs", "neg"):
            raise CodegenError(f"{fn} has no code for integers")
        negated = self.b.sub(_splat(value.type, 0), value)
        if fn == "neg":
            return negated
        negative = self.b.icmp_signed("<", value, _splat(value.type, 0))
        return self.b.select(negative, negated, value)

    def _select(self, e: Select, guard: ir.Value | None) -> ir.Value:
        choice = self._known(e.cond)
        if isinstance(choice, Const):
            return self._value(e.a if choice.value else e.b, guard)
        cond = self._value(choice, guard)
        yes = self._value(e.a, self._and(guard, cond) if loads(e.a) else None)
        if isinstance(e.a, Load) and e.b == Const(0.0, dtype_of(e.a)) and cond.type == I1:
            return yes  # a load that is not made reads zeros
        no = self._value(e.b, self._and(guard, self.b.not_(cond)) if loads(e.b) else None)
        yes, no = self._same(yes, no)
        if isinstance(cond.type, ir.VectorType):
            yes, no = (self._broadcast(x, cond.type.count) for x in (yes, no))
        return self.b.select(cond, yes, no)

    def _and(self, a: ir.Value | None, b: ir.Value) -> ir.Value:
        if a is None:
            return b
        x, y = self._same(a, b)
        return self.b.and_(x, y)

    def _cast(self, e: Cast, guard: ir.Value | None) -> ir.Value:
        value = self._value(e.a, guard)
        if e.dtype == "bool":
            return self._is_set(value)
        kind = _like(value.type, _TYPES[e.dtype])
        if value.type == kind:
            return value
        source, goal = _is_float(value.type), _is_float(kind)
        if source and goal:
            wider = e.dtype == "float64"
            return self.b.fpext(value, kind) if wider else self.b.fptrunc(value, kind)
        unsigned = dtype_of(e.a) in _UNSIGNED
        if source:  # a narrow result wraps, as in NumPy
            wide = self.b.fptosi(value, _like(value.type, I64 if e.dtype == "int64" else I32))
            return self._resize(wide, kind, unsigned)
        if goal:
            return self.b.uitofp(value, kind) if unsigned else self.b.sitofp(value, kind)
        return self._resize(value, kind, unsigned)

    def _is_set(self, value: ir.Value) -> ir.Value:
        if _is_float(value.type):
            return self.b.fcmp_unordered("!=", value, self.math.const(value.type, 0.0))
        if _scalar(value.type) == I1:
            return value
        return self.b.icmp_signed("!=", value, _splat(value.type, 0))

    def _resize(self, value: ir.Value, kind: ir.Type, unsigned: bool) -> ir.Value:
        have, want = _scalar(value.type).width, _scalar(kind).width
        if want <= have:
            return value if want == have else self.b.trunc(value, kind)
        return self.b.zext(value, kind) if unsigned else self.b.sext(value, kind)

    def _load(self, e: Load, guard: ir.Value | None) -> ir.Value:
        form = self._form(e, e.tensor, e.indices)
        lane = self._lane_stride(form)
        kind = _TYPES[e.tensor.dtype]
        masked = guard is not None and isinstance(guard.type, ir.VectorType)
        if lane == 0 and not masked:
            value = self._plain_load(e, form, kind, 1, guard)
        elif lane == 1:
            assert self.lanes is not None
            value = self._plain_load(e, form, kind, self.lanes[1], guard)
        else:
            value = self._gather(e, guard)
        return self.b.trunc(value, _like(value.type, I1)) if e.tensor.dtype == "bool" else value

    def _plain_load(
        self, e: Load, form: Linear, kind: ir.Type, count: int, guard: ir.Value | None
    ) -> ir.Value:
        key = (e.tensor.name, "load", self._expanded(form), count)
        known = self.scope.find(key, e.tensor.name) if guard is None else None
        if known is not None:
            return known
        where, align = self._address(e.tensor, form, kind, count)
        shape = ir.VectorType(kind, count) if count > 1 else kind
        if guard is not None and isinstance(guard.type, ir.VectorType):
            return self._masked(where, shape, guard, dtype_bytes(e.tensor.dtype))
        if guard is not None:
            where = self.b.select(guard, where, self.zeros)
            align = dtype_bytes(e.tensor.dtype)
        value = self.b.load(where, typ=shape, align=align)
        if guard is None:
            self.scope.values[key] = value
        return value

    def _masked(self, where: ir.Value, shape: ir.Type, mask: ir.Value, align: int) -> ir.Value:
        name = f"llvm.masked.load.{vector_suffix(shape)}.p0"
        fn = declare(self.b.module, name, shape, [PTR, I32, mask.type, shape])
        return self.b.call(fn, [where, I32(align), mask, ir.Constant(shape, None)])

    def _gather(self, e: Load, guard: ir.Value | None) -> ir.Value:
        """Lane by lane: for strides other than 0 and 1."""
        lanes = self.lanes
        assert lanes is not None
        kind = _TYPES[e.tensor.dtype]
        vector: ir.Value = ir.Constant(ir.VectorType(kind, lanes[1]), ir.Undefined)
        for n in range(lanes[1]):
            where, align = self._lane_address(e.tensor, e.indices, n)
            if guard is not None:
                one = guard
                if isinstance(guard.type, ir.VectorType):
                    one = self.b.extract_element(guard, I32(n))
                where = self.b.select(one, where, self.zeros)
            value = self.b.load(where, typ=kind, align=align)
            vector = self.b.insert_element(vector, value, I32(n))
        return vector

    def _reduce(self, e: Reduce, _: ir.Value | None) -> ir.Value:
        raise CodegenError("a reduction reached code generation without being lowered")

    def _same(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        count = max(_width(a), _width(b))
        return self._broadcast(a, count), self._broadcast(b, count)

    def _broadcast(self, value: ir.Value, count: int) -> ir.Value:
        if count == 1 or isinstance(value.type, ir.VectorType):
            return value
        if isinstance(value, ir.Constant):
            is_zero = value.constant == 0 and copysign(1.0, value.constant) > 0
            lanes = None if is_zero else [value.constant] * count  # None: a quick text for zeros
            return ir.Constant(ir.VectorType(value.type, count), lanes)
        key = (id(value), "splat", count)
        found = self.scope.find(key)
        if found is None:
            vector = ir.VectorType(value.type, count)
            undefined = ir.Constant(vector, ir.Undefined)
            first = self.b.insert_element(undefined, value, I32(0))
            zeros = ir.Constant(ir.VectorType(I32, count), None)
            found = self.b.shuffle_vector(first, undefined, zeros)
            self.scope.values[key] = found
        return found


def _width(value: ir.Value) -> int:
    return int(value.type.count) if isinstance(value.type, ir.VectorType) else 1


def _scalar(kind: ir.Type) -> ir.Type:
    return kind.element if isinstance(kind, ir.VectorType) else kind


def _like(shape: ir.Type, kind: ir.Type) -> ir.Type:
    return ir.VectorType(kind, shape.count) if isinstance(shape, ir.VectorType) else kind


def _is_float(kind: ir.Type) -> bool:
    return isinstance(_scalar(kind), ir.FloatType | ir.DoubleType)


def _is_float_product(e: Expr) -> bool:
    return isinstance(e, Binary) and e.op == "mul" and dtype_of(e).startswith("float")


def _floor_div(f: _Function, a: ir.Value, b: ir.Value) -> ir.Value:
    """Quotient rounded down; divisors are positive."""
    divisor = _splat_value(b)
    if divisor & (divisor - 1) == 0 and divisor > 0:
        return f.b.ashr(a, _splat(b.type, divisor.bit_length() - 1))
    remainder = f.b.srem(a, b)
    negative = f.b.sext(f.b.icmp_signed("<", remainder, _splat(b.type, 0)), b.type)
    return f.b.add(f.b.sdiv(a, b), negative)


def _floor_mod(f: _Function, a: ir.Value, b: ir.Value) -> ir.Value:
    """Remainder in [0, b); divisors are positive."""
    divisor = _splat_value(b)
    if divisor & (divisor - 1) == 0 and divisor > 0:
        return f.b.and_(a, _splat(b.type, divisor - 1))
    remainder = f.b.srem(a, b)
    negative = f.b.icmp_signed("<", remainder, _splat(b.type, 0))
    return f.b.select(negative, f.b.add(remainder, b), remainder)


def _splat(kind: ir.Type, value: int) -> ir.Constant:
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [value] * kind.count)
    return ir.Constant(kind, value)


def _splat_value(x: ir.Value) -> int:
    """The number in a constant or in all lanes of one; 0 when `x` is not constant."""
    if not isinstance(x, ir.Constant) or x.constant is None:
        return 0
    return int(x.constant[0].constant if isinstance(x.type, ir.VectorType) else x.constant)


_Op = Callable[[_Function, ir.Value, ir.Value], ir.Value]
_INT_OPS: dict[str, _Op] = {
    "add": lambda f, a, b: f.b.add(a, b),
    "sub": lambda f, a, b: f.b.sub(a, b),
    "mul": lambda f, a, b: f.b.mul(a, b),
    "floordiv": _floor_div,
    "mod": _floor_mod,
    "min": lambda f, a, b: f.b.select(f.b.icmp_signed("<", a, b), a, b),
    "max": lambda f, a, b: f.b.select(f.b.icmp_signed(">", a, b), a, b),
    "and": lambda f, a, b: f.b.and_(a, b),
    "or": lambda f, a, b: f.b.or_(a, b),
}
_FLOAT_OPS: dict[str, _Op] = {
    "add": lambda f, a, b: f.b.fadd(a, b),
    "sub": lambda f, a, b: f.b.fsub(a, b),
    "mul": lambda f, a, b: f.b.fmul(a, b),
    "div": lambda f, a, b: f.b.fdiv(a, b),
    "min": lambda f, a, b: f.math.minimum(a, b),
    "max": lambda f, a, b: f.math.maximum(a, b),
    "pow": lambda f, a, b: f.math.pow(a, b),
}
_UNSIGNED_OPS: dict[str, _Op] = _INT_OPS | {
    "floordiv": lambda f, a, b: f.b.udiv(a, b),
    "mod": lambda f, a, b: f.b.urem(a, b),
    "min": lambda f, a, b: f.b.select(f.b.icmp_unsigned("<", a, b), a, b),
    "max": lambda f, a, b: f.b.select(f.b.icmp_unsigned(">", a, b), a, b),
}
_STMTS: dict[type[Stmt], Callable[..., None]] = {
    For: _Function._for,
    If: _Function._if,
    Let: _Function._let,
    Alloc: _Function._alloc,
    Store: _Function._store,
    PrefetchLine: _Function._prefetch,
}
_EXPRS: dict[type[Expr], Callable[..., ir.Value]] = {
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
