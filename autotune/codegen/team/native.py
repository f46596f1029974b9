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

from autotune.codegen.team.native_operations import LINUX, RUNTIME
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
    runtime = RUNTIME.replace("$DECLARED", isa.pause_declaration)
    runtime = runtime.replace("$PAUSE", isa.pause_call)
    runtime += isa.system_ir or LINUX.replace("$FUTEX", str(isa.futex))
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
