"""⑤ Functions in a subset of Python, as LLVM assembly: the runtime beside the kernels.

    def take(word: int, epoch: int) -> int:
        seen = load(word)
        while seen >> 16 == epoch:
            ...

    text = native_ir(module, isa, exported=("run",))

Every value is an integer of 64 bits; an address is one. There are functions of such integers,
variables, `while`, `if`, arithmetic, comparisons, `and`, `or`, `not`, and the operations below.
What memory orders mean is C11's. As the text is Python's as well, a test can run the same functions
step by step, with the threads' steps in any order.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType

from autotune.errors import CodegenError
from autotune.target.isa import Isa


def load(at: int) -> int:
    """The word at an address, relaxed."""
    raise NotImplementedError


def load_acquire(at: int) -> int:
    """The word at an address, and all that its writer had written before."""
    raise NotImplementedError


def load_sequential(at: int) -> int:
    """The word at an address, in one order with all other sequential operations."""
    raise NotImplementedError


def store(at: int, value: int) -> None:
    """Write a word, relaxed."""
    raise NotImplementedError


def store_release(at: int, value: int) -> None:
    """Write a word after all that was written before."""
    raise NotImplementedError


def load_half(at: int) -> int:
    """The 16 bits at an address, which no other thread writes."""
    raise NotImplementedError


def load_single(at: int) -> int:
    """The 32 bits at an address, which no other thread writes."""
    raise NotImplementedError


def store_half(at: int, value: int) -> None:
    """Write the low 16 bits of a value."""
    raise NotImplementedError


def store_single(at: int, value: int) -> None:
    """Write the low 32 bits of a value."""
    raise NotImplementedError


def add(at: int, amount: int) -> int:
    """Add to a word, sequentially consistent; its value before."""
    raise NotImplementedError


def compare_exchange(at: int, old: int, new: int) -> int:
    """Write `new` where the word is `old`, sequentially consistent; its value before."""
    raise NotImplementedError


def pause() -> None:
    """Ease a core that spins."""
    raise NotImplementedError


def give_way() -> None:
    """Let another thread of this core run."""
    raise NotImplementedError


def sleep_while(at: int, value: int) -> None:
    """Sleep until `wake(at)`, unless the low 32 bits of the word are not those of `value`."""
    raise NotImplementedError


def wake(at: int, count: int) -> None:
    """Wake as many threads that sleep at an address."""
    raise NotImplementedError


def invoke(function: int, table: int, begin: int, end: int) -> None:
    """Call the function at an address."""
    raise NotImplementedError


def call(function: int, first: int, second: int) -> int:
    """The result of a function of C, which may look at fewer of its arguments."""
    raise NotImplementedError


def copy(to: int, source: int, n_bytes: int) -> None:
    """Copy bytes between places that do not overlap."""
    raise NotImplementedError


def start_thread(function: Callable[[int], int] | int, argument: int) -> int:
    """Start a detached thread that takes no signals; 0 where it runs."""
    raise NotImplementedError


def bind_thread(mask: int, n_bytes: int) -> int:
    """Let this thread run on the cores of a mask alone; 0 where it is bound."""
    raise NotImplementedError


def flush_denormals() -> int:
    """Take denormal numbers for zero; the argument of `restore_denormals`."""
    raise NotImplementedError


def restore_denormals(former: int) -> None:
    """Undo `flush_denormals`."""
    raise NotImplementedError


def nanoseconds() -> int:
    """A clock that only goes forward."""
    raise NotImplementedError


def native_ir(module: ModuleType, isa: Isa, exported: tuple[str, ...], prefix: str = "") -> str:
    """All functions of `module`, as `prefix` + name; those `exported` are visible to other objects.

    Names in capitals are the module's constants. Raises CodegenError for Python that is not of the
    small part.
    """
    functions = [
        node for node in ast.parse(inspect.getsource(module)).body if type(node) is ast.FunctionDef
    ]
    known = {f.name: (f"{prefix}{f.name}", len(f.args.args)) for f in functions}
    texts = [_Function(f, known, vars(module), f.name not in exported).text() for f in functions]
    runtime = _RUNTIME.replace("$DECLARED", isa.pause_declaration)
    runtime = runtime.replace("$PAUSE", isa.pause_call)
    runtime += isa.system_ir or _LINUX.replace("$FUTEX", str(isa.futex))
    return "\n".join([runtime, isa.denormals_ir, *texts])


_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "udiv",
    ast.Mod: "urem",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.LShift: "shl",
    ast.RShift: "lshr",
}
"""Division and shifts to the right are those of numbers that are not negative."""
_COMPARED = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "slt",
    ast.LtE: "sle",
    ast.Gt: "sgt",
    ast.GtE: "sge",
}
_OPERATIONS = {
    operation.__name__: operation.__code__.co_argcount
    for operation in (
        *(load, load_acquire, load_sequential, store, store_release, add, compare_exchange),
        *(pause, give_way, sleep_while, wake, invoke, call, copy, start_thread, bind_thread),
        *(flush_denormals, restore_denormals, nanoseconds),
        *(load_half, load_single, store_half, store_single),
    )
}
"""Numbers of parameters."""


@dataclass
class _Function:
    """One function on its way into LLVM assembly.

    `known`: symbols and numbers of parameters of the functions of its module.
    """

    node: ast.FunctionDef
    known: dict[str, tuple[str, int]]
    constants: dict[str, object]
    is_internal: bool
    lines: list[str] = field(default_factory=list)
    n_names: int = 0
    loops: list[tuple[str, str]] = field(default_factory=list)

    def text(self) -> str:
        parameters = [a.arg for a in self.node.args.args]
        names = sorted(set(_assigned(self.node)) | set(parameters))
        kind = "internal " if self.is_internal else ""
        values = ", ".join(f"i64 %{p}.in" for p in parameters)
        head = f"define {kind}i64 @{self.known[self.node.name][0]}({values})"
        slots = [f"  %{name} = alloca i64" for name in names]
        slots += [f"  store i64 %{p}.in, ptr %{p}" for p in parameters]
        self._body(self.node.body)
        self._emit("ret i64 0")
        return "\n".join([f"{head} nounwind {{", "entry:", *slots, *self.lines, "}"])

    def _emit(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def _name(self) -> str:
        self.n_names += 1
        return f"v.{self.n_names}"

    def _value(self, line: str) -> str:
        name = f"%{self._name()}"
        self._emit(f"{name} = {line}")
        return name

    def _open(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def _jump(self, label: str) -> None:
        self._emit(f"br label %{label}")

    def _body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(ast.Constant()) | ast.Pass():
                return
            case ast.Expr(value):
                self._expression(value)
            case ast.Assign([ast.Name(name)], value):
                self._emit(f"store i64 {self._expression(value)}, ptr %{name}")
            case ast.AugAssign(ast.Name(name), op, value):
                found = self._binary(op, ast.Name(name), value)
                self._emit(f"store i64 {found}, ptr %{name}")
            case ast.Return(value):
                found = "0" if value is None else self._expression(value)
                self._emit(f"ret i64 {found}")
                self._open(self._name())
            case ast.If(test, then, orelse):
                self._if(test, then, orelse)
            case ast.While(test, body, []):
                self._while(test, body)
            case ast.Break():
                self._jump(self.loops[-1][1])
                self._open(self._name())
            case ast.Continue():
                self._jump(self.loops[-1][0])
                self._open(self._name())
            case _:
                raise self._refused(node)

    def _if(self, test: ast.expr, then: list[ast.stmt], orelse: list[ast.stmt]) -> None:
        yes, no, done = (self._name() for _ in range(3))
        self._branch(test, yes, no)
        for label, body in ((yes, then), (no, orelse)):
            self._open(label)
            self._body(body)
            self._jump(done)
        self._open(done)

    def _while(self, test: ast.expr, body: list[ast.stmt]) -> None:
        head, inside, done = (self._name() for _ in range(3))
        self._jump(head)
        self._open(head)
        self._branch(test, inside, done)
        self._open(inside)
        self.loops.append((head, done))
        self._body(body)
        self.loops.pop()
        self._jump(head)
        self._open(done)

    def _branch(self, test: ast.expr, yes: str, no: str) -> None:
        """Jump to a label; the later parts of `and` and `or` are evaluated where they decide."""
        match test:
            case ast.BoolOp(op, values):
                for value in values[:-1]:
                    more = self._name()
                    stops = type(op) is ast.And
                    self._branch(value, more if stops else yes, no if stops else more)
                    self._open(more)
                self._branch(values[-1], yes, no)
            case ast.UnaryOp(ast.Not(), operand):
                self._branch(operand, no, yes)
            case ast.Compare(left, [op], [right]) if type(op) in _COMPARED:
                a, b = self._expression(left), self._expression(right)
                found = self._value(f"icmp {_COMPARED[type(op)]} i64 {a}, {b}")
                self._emit(f"br i1 {found}, label %{yes}, label %{no}")
            case _:
                found = self._value(f"icmp ne i64 {self._expression(test)}, 0")
                self._emit(f"br i1 {found}, label %{yes}, label %{no}")

    def _expression(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(int(value)):
                return str(int(value))
            case ast.Name(name) if name in self.known:
                return self._value(f"ptrtoint ptr @{self.known[name][0]} to i64")
            case ast.Name(name) if name.isupper():
                return str(self.constants[name])
            case ast.Name(name):
                return self._value(f"load i64, ptr %{name}")
            case ast.UnaryOp(ast.USub(), operand):
                return self._value(f"sub i64 0, {self._expression(operand)}")
            case ast.BinOp(left, op, right):
                return self._binary(op, left, right)
            case ast.Call(ast.Name(name), arguments, []):
                return self._call(node, name, arguments)
        raise self._refused(node)

    def _binary(self, op: ast.operator, left: ast.expr, right: ast.expr) -> str:
        if type(op) not in _BINARY:
            raise self._refused(left)
        a, b = self._expression(left), self._expression(right)
        return self._value(f"{_BINARY[type(op)]} i64 {a}, {b}")

    def _call(self, node: ast.expr, name: str, arguments: list[ast.expr]) -> str:
        operation = f"native.{name}", _OPERATIONS.get(name, -1)
        symbol, n_parameters = self.known.get(name, operation)
        if n_parameters != len(arguments):
            raise self._refused(node)
        values = ", ".join(f"i64 {self._expression(a)}" for a in arguments)
        return self._value(f"call i64 @{symbol}({values})")

    def _refused(self, node: ast.AST) -> CodegenError:
        text = f"'{ast.unparse(node)}' in '{self.node.name}' cannot be compiled"
        return CodegenError(text, "see `autotune.codegen.team.native`")


def _assigned(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _memory(name: str, order: str) -> str:
    return f"""
define internal i64 @native.{name}(i64 %at) alwaysinline {{
  %p = inttoptr i64 %at to ptr
  %v = load atomic i64, ptr %p {order}, align 8
  ret i64 %v
}}"""


def _written(name: str, order: str) -> str:
    return f"""
define internal i64 @native.{name}(i64 %at, i64 %v) alwaysinline {{
  %p = inttoptr i64 %at to ptr
  store atomic i64 %v, ptr %p {order}, align 8
  ret i64 0
}}"""


def _part(name: str, bits: int) -> str:
    return f"""
define internal i64 @native.load_{name}(i64 %at) alwaysinline {{
  %p = inttoptr i64 %at to ptr
  %v = load i{bits}, ptr %p
  %r = zext i{bits} %v to i64
  ret i64 %r
}}
define internal i64 @native.store_{name}(i64 %at, i64 %v) alwaysinline {{
  %p = inttoptr i64 %at to ptr
  %r = trunc i64 %v to i{bits}
  store i{bits} %r, ptr %p
  ret i64 0
}}"""


_SIGNALS = ~sum(1 << (n - 1) for n in (4, 7, 8, 11))  # not those that an instruction raises
_MONOTONIC = 1
_RUNTIME = (
    _memory("load", "monotonic")
    + _memory("load_acquire", "acquire")
    + _memory("load_sequential", "seq_cst")
    + _written("store", "monotonic")
    + _written("store_release", "release")
    + _part("half", 16)
    + _part("single", 32)
    + """
$DECLARED
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal i64 @native.add(i64 %at, i64 %amount) alwaysinline {
  %p = inttoptr i64 %at to ptr
  %v = atomicrmw add ptr %p, i64 %amount seq_cst
  ret i64 %v
}
define internal i64 @native.compare_exchange(i64 %at, i64 %old, i64 %new) alwaysinline {
  %p = inttoptr i64 %at to ptr
  %both = cmpxchg ptr %p, i64 %old, i64 %new seq_cst seq_cst
  %v = extractvalue { i64, i1 } %both, 0
  ret i64 %v
}
define internal i64 @native.pause() alwaysinline {
  $PAUSE
  ret i64 0
}
define internal i64 @native.invoke(i64 %f, i64 %table, i64 %begin, i64 %end) alwaysinline {
  %code = inttoptr i64 %f to ptr
  %p = inttoptr i64 %table to ptr
  call void %code(ptr %p, i64 %begin, i64 %end)
  ret i64 0
}
define internal i64 @native.call(i64 %f, i64 %first, i64 %second) alwaysinline {
  %code = inttoptr i64 %f to ptr
  %r = call i64 %code(i64 %first, i64 %second)
  ret i64 %r
}
define internal i64 @native.copy(i64 %to, i64 %source, i64 %n_bytes) alwaysinline {
  %p = inttoptr i64 %to to ptr
  %q = inttoptr i64 %source to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %p, ptr %q, i64 %n_bytes, i1 false)
  ret i64 0
}
define internal i64 @native.flush_denormals() alwaysinline {
  %v = call i32 @flush_denormals()
  %result = zext i32 %v to i64
  ret i64 %result
}
define internal i64 @native.restore_denormals(i64 %former) alwaysinline {
  %v = trunc i64 %former to i32
  call void @restore_denormals(i32 %v)
  ret i64 0
}"""
)
_LINUX = f"""
declare i32 @sched_yield()
declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)

define internal i64 @native.give_way() {{
  %r = call i32 @sched_yield()
  ret i64 0
}}
; The second argument of `futex`: 128 (of this process) + 0 (wait) or 1 (wake).
define internal i64 @native.sleep_while(i64 %at, i64 %value) noinline {{
  %v = and i64 %value, 4294967295
  %r = call i64 (i64, ...) @syscall(i64 $FUTEX, i64 %at, i64 128, i64 %v, i64 0, i64 0, i64 0)
  ret i64 0
}}
define internal i64 @native.wake(i64 %at, i64 %count) noinline {{
  %r = call i64 (i64, ...) @syscall(i64 $FUTEX, i64 %at, i64 129, i64 %count, i64 0, i64 0, i64 0)
  ret i64 0
}}
define internal i64 @native.start_thread(i64 %f, i64 %argument) noinline {{
  %id = alloca i64
  %all = alloca [16 x i64]
  %former = alloca [16 x i64]
  store [16 x i64] [{", ".join(["i64 " + str(_SIGNALS)] + ["i64 0"] * 15)}], ptr %all
  %r0 = call i32 @pthread_sigmask(i32 0, ptr %all, ptr %former)
  %code = inttoptr i64 %f to ptr
  %p = inttoptr i64 %argument to ptr
  %failed = call i32 @pthread_create(ptr %id, ptr null, ptr %code, ptr %p)
  %r1 = call i32 @pthread_sigmask(i32 2, ptr %former, ptr null)
  %is_made = icmp eq i32 %failed, 0
  br i1 %is_made, label %made, label %done
made:
  %thread = load i64, ptr %id
  %r2 = call i32 @pthread_detach(i64 %thread)
  br label %done
done:
  %result = sext i32 %failed to i64
  ret i64 %result
}}
define internal i64 @native.bind_thread(i64 %mask, i64 %n_bytes) noinline {{
  %p = inttoptr i64 %mask to ptr
  %r = call i32 @sched_setaffinity(i32 0, i64 %n_bytes, ptr %p)
  %result = sext i32 %r to i64
  ret i64 %result
}}
define internal i64 @native.nanoseconds() noinline {{
  %time = alloca [2 x i64]
  %r = call i32 @clock_gettime(i32 {_MONOTONIC}, ptr %time)
  %s = load i64, ptr %time
  %ns_at = getelementptr i64, ptr %time, i64 1
  %ns = load i64, ptr %ns_at
  %s_ns = mul i64 %s, 1000000000
  %t = add i64 %s_ns, %ns
  ret i64 %t
}}"""
