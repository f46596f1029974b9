"""Floor 0: records of an instruction set and of a core, as plain data.

An architecture is one module of records, named in `isa.ARCHITECTURES`. Whatever LLVM has a portable
name for (fused multiply-add, prefetch, masked load) is in no record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from autotune.brief import brief

NO_DENORMAL_MODE = """
; The architecture has no such mode.
define internal i32 @flush_denormals() {
  ret i32 0
}

define internal void @restore_denormals(i32 %old) {
  ret void
}
"""
"""`Isa.denormals_ir` of such an architecture."""


@dataclass(frozen=True, slots=True, eq=False)
class TileUnit:
    """Registers that hold matrices: `n_registers` of `rows` rows of `row_bytes` bytes each.

    How much of each is in use is configured: `configuration` says where in the block of 64 bytes
    that `configure` reads the bytes of a row (16 bits) and the rows (8 bits) of the first register
    are; its first byte is 1. `release` ends the use. The other names are of LLVM's intrinsics to
    clear a register, to load one from rows in memory and to store it there, `latency`: cycles until
    the next product can add to a sum. `row_cycles`: those of a row that is loaded from L1, measured
    on an Emerald Rapids. `emulation`: LLVM assembly of functions of these names, which take a
    pointer to the registers as well; "" where the CPU has the instructions.
    """

    configure: str
    release: str
    zero: str
    load: str
    store: str
    configuration: tuple[int, int] = (16, 48)
    n_registers: int = 8
    rows: int = 16
    row_bytes: int = 64
    latency: float = 20.0
    row_cycles: float = 0.8
    emulation: str = field(default="", repr=False)

    @property
    def columns(self) -> int:
        """Sums of 32 bits in a row."""
        return self.row_bytes // 4

    @property
    def most_sums(self) -> int:
        """Matrices of sums that registers hold beside two operands."""
        return self.n_registers - 2

    @property
    def bits(self) -> int:
        """Bits of a register."""
        return 8 * self.rows * self.row_bytes


@dataclass(frozen=True, slots=True, eq=False)
class MultiplyAdd:
    """A multiply-add form, one instruction: an accumulator lane takes the sum of `terms` products.

    `operands`: the dtypes of the two factors, `accumulator` of the sum. A vector has as many
    accumulator lanes as fit it. `intrinsics`: LLVM's name of it by the bits of the accumulators,
    none where LLVM makes the instruction of its own portable operation. `accumulates`: whether it
    adds to its accumulator; else an addition follows. `features`: of a CPU, any one of them
    suffices, besides those that the instruction set requires. `same_as`: the name that schedules
    have for it, where another architecture has an instruction of the same factors and terms.
    `scalable_bits`: the least vectors that its intrinsic takes as scalable ones; 0 for none.

    `unit`: of a form whose operands are matrices: c[i, j] += Σ a[i, g, t] · b[g, j, t] over all
    groups g of `terms` terms t that a row of a register holds.
    """

    name: str
    operands: tuple[str, str]
    accumulator: str
    accumulator_bits: int = 32
    terms: int = 1
    intrinsics: Mapping[int, str] = field(default_factory=dict)
    accumulates: bool = True
    features: tuple[str, ...] = ()
    unit: TileUnit | None = None
    same_as: str = ""
    scalable_bits: int = 0

    def takes_scalable(self, bits: int) -> bool:
        """Whether its intrinsic for such vectors takes scalable ones."""
        return bool(self.scalable_bits) and bits >= self.scalable_bits

    @property
    def operation(self) -> str:
        """Its name in schedules and in loop IR."""
        return self.same_as or self.name

    def flops(self, vector_bits: int) -> int:
        """Multiplications and additions of one instruction on a vector of so many bits."""
        if self.unit:  # as many groups as rows of the second operand
            return 2 * self.terms * self.unit.rows * self.unit.rows * self.unit.columns
        return 2 * self.terms * vector_bits // self.accumulator_bits

    def register_bits(self, n_lanes: int) -> int:
        """Bits of the register that `n_lanes` accumulators take: all of it, or a part of the
        smallest one; 0 where they are no such part."""
        bits, smallest = n_lanes * self.accumulator_bits, min(self.intrinsics, default=0)
        return 0 if smallest % bits and bits < smallest else max(bits, smallest)


@brief
@dataclass(frozen=True, slots=True)
class Isa:
    """A level of an instruction set.

    `requires`: LLVM's names of the features that its code may use. `vector_bits`, `n_registers`: of
    the widest float vectors. `forms`: multiply-adds, float32 first. `reciprocal`, `scale`: LLVM's
    intrinsics for 1/x to 14 bits and x·2^n, "" where there is none; they take vectors of
    `estimate_lanes` floats. `lane_lookup`: that of floats chosen from a vector of 16 by the lowest
    bits of integers, "" where there is none. `byte_lookup`: that of bytes chosen from two vectors
    of 64, "" where a CPU has not `byte_lookup_feature`. `byte_pairs`: by the bits of a vector, that
    of sums of two products of bytes, unsigned by signed, saturated at 16 bits. `pause`: the
    intrinsic that eases a core that spins, `pause_argument` what it takes. `line_flushes`:
    intrinsics that drop a cache line, by the feature they need, fastest first. `denormals_ir`:
    `i32 @flush_denormals()` and `void @restore_denormals(i32)` as LLVM assembly. `futex`:
    Linux' number of that system call, 0 where there is none. `system_ir`: functions of a system
    that is not Linux, for `codegen.team.native`. `threads`: the feature that code needs besides to
    have several threads. `multiply_add`: LLVM's name of
    the first of `forms`: "fma", or "fmuladd" where the product may be rounded. `offset_flags`: of
    LLVM's addresses behind others, where an access has a constant that is added without wrapping.
    `has_lrint`: whether an instruction rounds float32 to int32. `keeps_order`: whether what
    makes the machine code leaves sums in the order of the schedule; else all operands of a step may
    be loaded before its first sum.
    `avoided`: features that no code uses. `vscale`: 128 bits times as many are a scalable vector,
    whose length is then known; 0 without such. `is_scalable`: whether other CPUs with
    these features may have vectors of another length. `converts_float16`: whether instructions
    convert float32 to float16 and back.
    """

    name: str
    requires: tuple[str, ...]
    vector_bits: int
    n_registers: int
    forms: tuple[MultiplyAdd, ...]
    pause: str
    line_flushes: Mapping[str, str]
    denormals_ir: str
    futex: int
    reciprocal: str = ""
    scale: str = ""
    lane_lookup: str = ""
    byte_lookup: str = ""
    byte_lookup_feature: str = ""
    byte_pairs: Mapping[int, str] = field(default_factory=dict)
    estimate_lanes: tuple[int, ...] = ()
    avoided: tuple[str, ...] = ()
    pause_argument: str = ""
    vscale: int = 0
    is_scalable: bool = False
    converts_float16: bool = True
    multiply_add: str = "fma"
    offset_flags: str = ""
    keeps_order: bool = True
    has_lrint: bool = True
    system_ir: str = field(default="", repr=False)
    threads: str = ""

    def form(self, name: str) -> MultiplyAdd | None:
        """The multiply-add that schedules call `name`; None where it has none."""
        return next((f for f in self.forms if f.operation == name), None)

    @property
    def has_threads(self) -> bool:
        """Whether a process may have several."""
        return bool(self.futex or self.system_ir)

    @property
    def pause_declaration(self) -> str:
        """LLVM's declaration of `pause`."""
        return f"declare void @{self.pause}({self.pause_argument.partition(' ')[0]})"

    @property
    def pause_call(self) -> str:
        """LLVM's instruction that pauses."""
        return f"call void @{self.pause}({self.pause_argument})"

    @property
    def attributes(self) -> str:
        """Attributes of functions that have vectors, after a space."""
        return f" vscale_range({self.vscale},{self.vscale})" if self.vscale else ""

    @property
    def narrows_to_bfloat16(self) -> bool:
        """Whether an instruction rounds float32: it comes with dots of vectors, not with tiles."""
        return any("bfloat16" in f.operands and not f.unit for f in self.forms)


@dataclass(frozen=True, slots=True)
class Core:
    """Costs of instructions and bytes on one core, for the analytical cost model.

    `ports`: arithmetic instructions that begin in a cycle; `load_ports` likewise. `port_bits`: what
    a port takes in a cycle, so wider vectors are double-pumped; 0: any vector. `fma_latency`:
    cycles until a result can be used. `issue_width`: instructions of any kind per cycle. Bandwidths
    are of one core that streams, in bytes per cycle. `slow_forms`: multiply-adds that take a port
    longer than one cycle, and how long.
    """

    ports: float = 2.0
    load_ports: float = 2.0
    port_bits: int = 0
    fma_latency: float = 4.0
    issue_width: float = 6.0
    l2_bytes_per_cycle: float = 40.0
    l3_bytes_per_cycle: float = 8.0
    memory_bytes_per_cycle: float = 5.0
    clock_hz: float = 3.5e9
    slow_forms: tuple[tuple[str, float], ...] = ()

    def cycles_of(self, form: MultiplyAdd) -> float:
        """Cycles that a multiply-add takes a port."""
        return dict(self.slow_forms).get(form.name, 1.0)


@brief
@dataclass(frozen=True, slots=True)
class Processor:
    """A CPU that can be a target by its name, described without it.

    `features`: of LLVM's names, those that code may use besides what `isa` requires. Sizes are
    bytes per core, `l3_bytes` of the whole cache behind it; 0 for a level of the instruction set,
    which is of no particular machine. `llvm_cpu`: LLVM's name of it.
    """

    isa: Isa
    features: frozenset[str]
    core: Core
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    llvm_cpu: str


@brief
@dataclass(frozen=True, slots=True, eq=False)
class Architecture:
    """A family of CPUs that run the same code.

    `name`: as the ELF machine and Linux have it. `triple`, `abi`: LLVM's. `isas`: widest vectors
    first, of one width the more demanding first. `processors`: by the names of targets; that of
    this process has other ones as well. `common`: features in LLVM's words that all code has.
    `probe`: the file in C that asks a CPU whether it can run a library. `capabilities`: the word of
    the auxiliary vector and the bit in it that Linux tells a feature by, none where the CPU itself
    is asked. `options`: LLVM's. `emission`: those of LLVM that are set while its code is
    written, and their values for other code. `is_module`: whether its code is a module, whose
    linker adds nothing to names. `unknown_core`: the costs of a CPU of which there is no record.
    """

    name: str
    triple: str
    isas: tuple[Isa, ...]
    processors: Mapping[str, Processor]
    probe: str
    abi: str = ""
    common: str = ""
    capabilities: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    emission: Mapping[str, str] = field(default_factory=dict)
    is_module: bool = False
    unknown_core: Callable[[str], Core] = lambda cpu: Core()

    def isa(self, vector_bits: int, features: Set[str]) -> Isa:
        """The instruction set that the code of a target with such vectors and features uses.

        Raises ValueError where all have wider vectors.
        """
        fitting = [isa for isa in self.isas if isa.vector_bits <= vector_bits]
        if not fitting:
            raise ValueError(f"no instruction set has vectors of {vector_bits} bits")
        widest = [isa for isa in fitting if isa.vector_bits == fitting[0].vector_bits]
        return next((isa for isa in widest if features >= set(isa.requires)), widest[-1])
