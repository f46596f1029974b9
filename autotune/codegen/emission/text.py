"""⑤ LLVM IR as text, written while a kernel is emitted.

The subset of the emitter: scalars and vectors, straight-line instructions, labels, phis, external
functions. A value is its type and its name, and an instruction is only its line of text, so
writing a kernel takes a third of the time that building and printing llvmlite's objects takes.

    module = Module(isa)
    b = Builder(module, "kernel", {"x": PTR, "begin": I64, "end": I64})
    b.store(b.fadd(b.load(b.arguments[0], F32, 4), constant(F32, 1.0)), b.arguments[0], 4)
    b.end()
    str(module)
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from autotune.target.isa import ISAS, Isa


@dataclass(frozen=True, slots=True, eq=False)
class Type:
    """A scalar, or a vector of `count` scalars `element`. There is one object per type."""

    text: str
    element: Type | None = None
    count: int = 1
    times: int = 0
    """Of a scalable vector: how often it has the lanes that its text says."""

    def __str__(self) -> str:
        return self.text

    @property
    def scalar(self) -> Type:
        """The type of one lane."""
        return self.element or self

    @property
    def is_vector(self) -> bool:
        """Whether there are lanes."""
        return self.element is not None

    @property
    def is_float(self) -> bool:
        """Whether it holds floating-point numbers."""
        return self.scalar.text in _FLOATS

    @property
    def suffix(self) -> str:
        """Suffix of an overloaded intrinsic: `f32`, `v16f32`, `i64`…"""
        name = _FLOATS.get(self.scalar.text, self.scalar.text)
        if self.times:
            return f"nxv{self.count // self.times}{name}"
        return f"v{self.count}{name}" if self.is_vector else name

    def of(self, scalar: Type) -> Type:
        """`scalar` in as many lanes as this type has."""
        return vector(scalar, self.count) if self.is_vector else scalar


@lru_cache(maxsize=256)
def vector(element: Type, count: int) -> Type:
    """`count` lanes of `element`."""
    return Type(f"<{count} x {element.text}>", element, count)


@lru_cache(maxsize=16)
def scalable(kind: Type, times: int) -> Type:
    """The vector of scalable length that is `kind` where the length is `times` 128 bits."""
    return Type(f"<vscale x {kind.count // times} x {kind.scalar}>", kind.scalar, kind.count, times)


VOID, PTR = Type("void"), Type("ptr")
I1, I8, I16 = Type("i1"), Type("i8"), Type("i16")
I32, I64 = Type("i32"), Type("i64")
F16, BF16 = Type("half"), Type("bfloat")
F32, F64 = Type("float"), Type("double")
SCALARS = {t.text: t for t in (I1, I8, I16, I32, I64, F16, BF16, F32, F64)}
"""By LLVM's names."""
_FLOATS = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}
"""Names of floats in the suffixes of overloads."""
_PLAIN = re.compile(r"[A-Za-z_.][\w.]*", re.ASCII)
_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}


def n_bits(kind: Type) -> int:
    """Bits of an integer, or of one lane."""
    return _BITS[kind.scalar.text]


class Value:
    """SSA value: its type, and the name by which text refers to it."""

    __slots__ = ("name", "type")

    def __init__(self, kind: Type, name: str) -> None:
        self.type = kind
        self.name = name


class Constant(Value):
    """A number, in every lane where the type is a vector."""

    __slots__ = ("number",)

    def __init__(self, kind: Type, name: str, number: float) -> None:
        super().__init__(kind, name)
        self.number = number


def constant(kind: Type, number: float) -> Constant:
    """`number` as a value of type `kind`, splat over a vector."""
    one = _float(kind.scalar, number) if kind.is_float else str(int(number))
    return Constant(kind, f"splat ({kind.scalar} {one})" if kind.is_vector else one, number)


def counting(kind: Type) -> Value:
    """The lanes' own numbers: 0, 1, 2, …"""
    lanes = ", ".join(f"{kind.scalar} {n}" for n in range(kind.count))
    return Value(kind, f"<{lanes}>")


def undefined(kind: Type) -> Value:
    """Any value."""
    return Value(kind, "undef")


def _float(kind: Type, number: float) -> str:
    """The bits of a double: how LLVM writes floats exactly, those of single precision as well.

    Half precision is written by its own bits.
    """
    if kind is BF16:
        return f"0xR{struct.unpack('<I', struct.pack('<f', number))[0] >> 16:04X}"
    if kind is F16:
        return f"0xH{struct.unpack('<H', struct.pack('<e', number))[0]:04X}"
    if kind is F32 and math.isfinite(number):
        number = struct.unpack("<f", struct.pack("<f", number))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def _quoted(name: str) -> str:
    """A name of any characters, as LLVM reads it."""
    if _PLAIN.fullmatch(name):
        return name
    return '"' + "".join(f"\\{byte:02X}" for byte in name.encode()) + '"'


class Module:
    """Functions, and their external declarations."""

    def __init__(self, isa: Isa = ISAS[-1]) -> None:
        """`isa`: whose instructions may be used where LLVM has no portable name for them."""
        self.isa = isa
        self._globals: dict[str, str] = {}
        self._functions: list[str] = []
        self._defined: set[str] = set()
        self._zeros: dict[str, int] = {}

    def __str__(self) -> str:
        return "\n".join([*self._globals.values(), *self._functions, ""])

    @property
    def attributes(self) -> str:
        """Those of every function."""
        return "nounwind" + self.isa.attributes

    def add(self, function: str) -> None:
        """Append the text of a function."""
        self._functions.append(function)

    def declare(self, name: str, result: Type, arguments: Sequence[Type]) -> None:
        """Announce an external function."""
        if name not in self._globals and name not in self._defined:
            kinds = ", ".join(a.text for a in arguments)
            self._globals[name] = f"declare {result} @{name}({kinds})"

    def declare_any(self, name: str) -> None:
        """Announce an external function of any arguments."""
        self._globals[name] = f"declare void @{name}(...)"

    def define(self, name: str, function: str, others: Iterable[str] = ()) -> None:
        """Append the text of an internal function, once; `others`: that the text defines too."""
        if name not in self._defined:
            self._defined.update((name, *others))
            self._functions.append(function)

    def data(self, content: bytes) -> Value:
        """The address of constant bytes on a cache line of their own."""
        name = f"data.{content.hex()}"
        text = "".join(f"\\{byte:02X}" for byte in content)
        self._globals[name] = (
            f'@{name} = internal constant [{len(content)} x i8] c"{text}", align 64'
        )
        return Value(PTR, f"@{name}")

    def shared(self, name: str, kind: str) -> Value:
        """The generic address of a variable in the shared memory of a GPU's block."""
        self._globals[name] = f"@{name} = internal addrspace(3) global {kind} undef, align 64"
        return Value(PTR, f"addrspacecast (ptr addrspace(3) @{name} to ptr)")

    def zeros(self, name: str, n_bytes: int) -> Value:
        """The address of `n_bytes` constant zeros on a cache line of their own."""
        quoted = f"@{_quoted(name)}"
        n_bytes = self._zeros[name] = max(n_bytes, self._zeros.get(name, 0))
        self._globals[name] = (
            f"{quoted} = internal constant [{n_bytes} x i8] zeroinitializer, align 64"
        )
        return Value(PTR, quoted)


def _operation(text: str) -> Callable[[FunctionBuilder, Value, Value], Value]:
    def write(self: FunctionBuilder, a: Value, b: Value) -> Value:
        return self.binary(text, a, b)

    return write


class FunctionBuilder:
    """Writes one function, from its first line to its last."""

    def __init__(
        self,
        module: Module,
        name: str,
        arguments: Mapping[str, Type],
        shared: Collection[str] = (),
    ) -> None:
        """`shared`: pointers among the arguments whose memory others may reach as well."""
        self.convention = "void"
        self.module = module
        self._name = name
        self.block = "%entry"
        self._allocas: list[str] = []
        self._lines: list[str] = []
        self._count = 0
        self.arguments = [Value(kind, self._named(n)) for n, kind in arguments.items()]
        self._apart = [kind is PTR and n not in shared for n, kind in arguments.items()]

    def end(self) -> None:
        """Return, and hand the function to its module."""
        given = ", ".join(
            f"{a.type} {'noalias ' if apart else ''}{a.name}"
            for a, apart in zip(self.arguments, self._apart, strict=True)
        )
        head = f"define {self.convention} @{_quoted(self._name)}({given})"
        head += f" {self.module.attributes} {{\nentry:"
        self.module.add("\n".join([head, *self._allocas, *self._lines, "  ret void", "}"]))

    # --- control ------------------------------------------------------------------------------

    def new_label(self, hint: str) -> str:
        """A name for a block that `label` will begin."""
        return self._named(hint)

    def label(self, name: str) -> None:
        """Begin block `name`."""
        self._lines.append(f"{name[1:]}:")
        self.block = name

    def branch(self, target: str) -> None:
        """Go on at `target`."""
        self._lines.append(f"  br label {target}")

    def branch_if(self, condition: Value, then: str, orelse: str) -> None:
        """Go on at one of two blocks."""
        self._lines.append(f"  br i1 {condition.name}, label {then}, label {orelse}")

    def unlikely(
        self, condition: Value, usual: Value, function: str, arguments: Sequence[Value]
    ) -> Value:
        """Result of `function` of this module where the condition holds, else `usual`; the call
        is out of line."""
        before, rare, after = self.block, self.new_label("rare"), self.new_label("after")
        self.branch_if(condition, rare, after)
        self.label(rare)
        given = ", ".join(f"{a.type} {a.name}" for a in arguments)
        other = self._value(usual.type, f"call {usual.type} @{function}({given})")
        self.branch(after)
        self.label(after)
        ends = f"[{usual.name}, {before}], [{other.name}, {rare}]"
        return self._value(usual.type, f"phi {usual.type} {ends}")

    def loop_index(self, hint: str, begin: Value, before: str) -> tuple[Value, int]:
        """A phi that is `begin` when coming from block `before`; `close_index` tells the rest."""
        index = self._value(I64, f"phi i64 [{begin.name}, {before}], ", hint)
        return index, len(self._lines) - 1

    def close_index(self, line: int, step: Value) -> None:
        """The phi in `line` is `step` when coming from the present block."""
        self._lines[line] += f"[{step.name}, {self.block}]"

    # --- memory -------------------------------------------------------------------------------

    def alloca(self, kind: Type, n: int, align: int, hint: str) -> Value:
        """`n` elements on the stack of the function."""
        name = self._named(hint)
        self._allocas.append(f"  {name} = alloca [{n} x {kind}], align {align}")
        return Value(PTR, name)

    def load(self, where: Value, kind: Type, align: int) -> Value:
        """Emit a load of type `kind`."""
        return self._value(kind, f"load {kind.text}, ptr {where.name}, align {align}")

    def store(self, value: Value, where: Value, align: int) -> None:
        """Write to memory."""
        self._lines.append(
            f"  store {value.type.text} {value.name}, ptr {where.name}, align {align}"
        )

    def offset(self, base: Value, n: Value, kind: Type) -> Value:
        """The address `n` elements of `kind` behind `base`."""
        if isinstance(n, Constant):
            return self.displaced(base, int(n.number), kind)
        return self._value(PTR, f"getelementptr {kind.text}, ptr {base.name}, i64 {n.name}")

    def displaced(self, base: Value, n: int, kind: Type) -> Value:
        """`offset` by a number that is known."""
        flags = self.module.isa.offset_flags if n >= 0 else ""
        text = f"{flags} {kind.text}" if flags else kind.text
        return self._value(PTR, f"getelementptr {text}, ptr {base.name}, i64 {n}")

    # --- lanes --------------------------------------------------------------------------------

    def extract(self, value: Value, lane: int) -> Value:
        """One lane of a vector."""
        text = f"extractelement {value.type.text} {value.name}, i32 {lane}"
        return self._value(value.type.scalar, text)

    def insert(self, value: Value, one: Value, lane: int) -> Value:
        """A vector with one lane replaced."""
        text = f"{value.type.text} {value.name}, {one.type.text} {one.name}, i32 {lane}"
        return self._value(value.type, f"insertelement {text}")

    def splat(self, one: Value, count: int) -> Value:
        """`one` in every lane."""
        kind = vector(one.type, count)
        first = self.insert(undefined(kind), one, 0)
        mask = f"<{count} x i32> zeroinitializer"
        text = f"{kind.text} {first.name}, {kind.text} undef, {mask}"
        return self._value(kind, f"shufflevector {text}")

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """Some `lanes` of two vectors of one type, those of `b` counted on from those of `a`."""
        mask = ", ".join(f"i32 {n}" for n in lanes)
        kind = a.type.text
        text = f"{kind} {a.name}, {kind} {b.name}, <{len(lanes)} x i32> <{mask}>"
        return self._value(vector(a.type.scalar, len(lanes)), f"shufflevector {text}")

    # --- arithmetic ---------------------------------------------------------------------------

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """Any instruction of two operands of one type, with its flags: `fadd`, `add nsw`, …"""
        return self._value(a.type, f"{op} {a.type.text} {a.name}, {b.name}")

    fadd, fsub = _operation("fadd"), _operation("fsub")
    fmul, fdiv = _operation("fmul"), _operation("fdiv")
    add, sub = _operation("add"), _operation("sub")
    shl, ashr = _operation("shl"), _operation("ashr")
    and_ = _operation("and")

    def compare(self, op: str, a: Value, b: Value) -> Value:
        """`icmp slt`, `fcmp ogt`, …"""
        return self._value(a.type.of(I1), f"{op} {a.type.text} {a.name}, {b.name}")

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """`a` where the condition holds, else `b`."""
        kind = a.type.text
        text = f"select {condition.type.text} {condition.name}, {kind} {a.name}, {kind} {b.name}"
        return self._value(a.type, text)

    def negate(self, value: Value) -> Value:
        """Minus a float."""
        return self._value(value.type, f"fneg {value.type.text} {value.name}")

    def cast(self, op: str, value: Value, kind: Type) -> Value:
        """`zext`, `sitofp`, `bitcast`, …: the same lanes as `kind`."""
        return self._value(kind, f"{op} {value.type.text} {value.name} to {kind.text}")

    def bitcast(self, value: Value, kind: Type) -> Value:
        """The same bits as another type."""
        return self.cast("bitcast", value, kind)

    def call(self, name: str, result: Type, arguments: Sequence[Value], flags: str = "") -> Value:
        """Call an external function, declared here; `flags`: of fast arithmetic (`nsz`)."""
        self.module.declare(name, result, [a.type for a in arguments])
        given = ", ".join([f"{a.type.text} {a.name}" for a in arguments])
        text = f"call {flags}{' ' if flags else ''}{result.text} @{name}({given})"
        if result is not VOID:
            return self._value(result, text)
        self._lines.append(f"  {text}")
        return undefined(VOID)

    def hold(self, value: Value) -> None:
        """Let LLVM compute `value` here, before what follows."""
        self.module.declare_any("llvm.fake.use")
        self._lines.append(f"  call void (...) @llvm.fake.use({value.type.text} {value.name})")

    def call_scalable(self, name: str, arguments: Sequence[Value]) -> Value:
        """Call an intrinsic on scalable vectors, of which vectors of fixed length are all; the
        result is of the type of the first."""
        times, kind = self.module.isa.vscale, arguments[0].type
        kinds = [scalable(a.type, times) for a in arguments]
        zero = constant(I64, 0)
        given = [
            self.call(f"llvm.vector.insert.{k.suffix}.{a.type.suffix}", k, [undefined(k), a, zero])
            for k, a in zip(kinds, arguments, strict=True)
        ]
        found = self.call(name, kinds[0], given)
        named = f"llvm.vector.extract.{kind.suffix}.{kinds[0].suffix}"
        return self.call(named, kind, [found, zero])

    def _value(self, kind: Type, text: str, hint: str = "") -> Value:
        if hint:
            name = self._named(hint)
        else:
            self._count += 1
            name = f"%.{self._count}"
        self._lines.append(f"  {name} = {text}")
        return Value(kind, name)

    def _named(self, hint: str = "") -> str:
        """A unique name, by the number at its end."""
        self._count += 1
        return f"%{_quoted(hint + '.' + str(self._count))}" if hint else f"%.{self._count}"
