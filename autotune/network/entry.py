"""⑩ The network's main functions, as LLVM IR: every thread walks one static list of kernels.

    autotune_run(ptr table, i64 n_threads)       one inference
    autotune_profile(ptr table, i64 n_threads)   the same, with the time after every kernel
    autotune_direct(…)                           one inference on NumPy arrays: see `direct_ir`

`table` holds 64-bit addresses: the network's bases (arena, constants, bound inputs and outputs),
then `SYNC_BYTES` of zeroed memory for the barrier, then an array for `len(launches) + 1` times in
ns. All else is constant offsets, so the code is position independent, holds no state, and serves
any number of threads. A kernel's range is divided evenly: thread t of n runs
[extent·t/n, extent·(t+1)/n).

One inference is one parallel region of libgomp. Inside it threads meet at a spin barrier, which
costs tens of nanoseconds where a region per kernel costs microseconds. After `_SPINS` pauses a
waiting thread yields its core at every further try, so more threads than cores are slow but not
stuck. With one thread there is neither region nor barrier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.codegen.barrier import barrier_ir
from autotune.network.direct_ir import direct_ir
from autotune.target import Target
from autotune.target.isa import Isa

ARENA, CONSTANTS, FIRST_BOUND = 0, 1, 2
"""Slots of the table: the arena, the constants, and the first bound input or output."""

SYNC_BYTES = 256
RUN, PROFILE = "autotune_run", "autotune_profile"

SEAL_MAGIC = b"autotune seal: \0"
UNSEALED = SEAL_MAGIC + bytes(32)
"""Room in the object for a digest of what it was compiled for: see `Artifact.sealed_objects`."""

_SPINS = 4_000
_MONOTONIC = 1


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address: `offset` bytes after the base in slot `base` of the table."""

    base: int
    offset: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel as the network calls it; `barrier`: all threads must meet before it starts."""

    symbol: str
    extent: int
    arguments: tuple[Pointer, ...]
    barrier: bool = True


def compile_entry(launches: Sequence[Launch], n_bases: int, target: Target) -> bytes:
    """Relocatable object with `RUN` and `PROFILE`; the kernels' symbols are left open.

    It contains `UNSEALED` once.
    """
    import llvmlite.binding as llvm  # whoever runs networks imports this module without it

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.llvm_features, opt=1, reloc="pic", codemodel="default"
    )
    module = llvm.parse_assembly(entry_ir(launches, n_bases, machine.triple, target.isa))
    module.verify()
    return bytes(machine.emit_object(module))


def entry_ir(launches: Sequence[Launch], n_bases: int, triple: str, isa: Isa) -> str:
    """LLVM IR of both main functions, which call the kernels by their symbols."""
    return "\n".join(
        [
            f'target triple = "{triple}"',
            _SEAL,
            *_declarations(launches),
            _DECLARATIONS,
            barrier_ir(_SPINS, isa),
            isa.denormals_ir,
            _NOW,
            *_alone(launches, n_bases),
            *_team(launches, n_bases),
            *_timed(launches, n_bases),
            _main(RUN, "alone", "team"),
            _main(PROFILE, "timed", "timed"),
            direct_ir(),
        ]
    )


def _declarations(launches: Sequence[Launch]) -> Iterator[str]:
    for symbol, n_pointers in sorted({(x.symbol, len(x.arguments)) for x in launches}):
        yield f'declare void @"{symbol}"({"ptr, " * n_pointers}i64, i64)'


def _alone(launches: Sequence[Launch], n_bases: int) -> Iterator[str]:
    yield "define internal void @alone(ptr %table) {"
    yield _FLUSH
    yield from _bases(n_bases)
    for n, launch in enumerate(launches):
        yield from _call(n, launch, "0", str(launch.extent))
    yield _RETURN


def _team(launches: Sequence[Launch], n_bases: int) -> Iterator[str]:
    yield "define internal void @team(ptr %table) {"
    yield _FLUSH
    yield from _bases(n_bases + 1)
    yield _WHO
    for n, launch in enumerate(launches):
        if n and launch.barrier:
            yield _meet(n_bases)
        yield from _share(n, launch)
    yield _RETURN


def _timed(launches: Sequence[Launch], n_bases: int) -> Iterator[str]:
    yield "define internal void @timed(ptr %table) {"
    yield _FLUSH
    yield from _bases(n_bases + 2)
    yield _WHO
    for n, launch in enumerate(launches):
        yield _stamp(n, n_bases)
        yield from _share(n, launch)
    yield _stamp(len(launches), n_bases)
    yield _RETURN


def _bases(count: int) -> Iterator[str]:
    for n in range(count):
        yield f"  %slot{n} = getelementptr ptr, ptr %table, i64 {n}"
        yield f"  %base{n} = load ptr, ptr %slot{n}"


def _share(n: int, launch: Launch) -> Iterator[str]:
    """Call launch `n` with this thread's part of its range, if there is one."""
    if launch.extent == 1:
        begin, end = "0", "1"
        yield f"  %some{n} = icmp eq i64 %thread, 0"
    else:
        begin, end = f"%begin{n}", f"%end{n}"
        yield f"  %low{n} = mul i64 %thread, {launch.extent}"
        yield f"  %high{n} = mul i64 %next, {launch.extent}"
        yield f"  {begin} = udiv i64 %low{n}, %n"
        yield f"  {end} = udiv i64 %high{n}, %n"
        yield f"  %some{n} = icmp ult i64 {begin}, {end}"
    yield f"  br i1 %some{n}, label %do{n}, label %done{n}"
    yield f"do{n}:"
    yield from _call(n, launch, begin, end)
    yield f"  br label %done{n}\ndone{n}:"


def _call(n: int, launch: Launch, begin: str, end: str) -> Iterator[str]:
    arguments = []
    for k, at in enumerate(launch.arguments):
        yield f"  %p{n}.{k} = getelementptr i8, ptr %base{at.base}, i64 {at.offset}"
        arguments.append(f"ptr %p{n}.{k}, ")
    yield f'  call void @"{launch.symbol}"({"".join(arguments)}i64 {begin}, i64 {end})'


def _meet(n_bases: int) -> str:
    return f"  call void @barrier(ptr %base{n_bases}, i64 %n)"


def _stamp(n: int, n_bases: int) -> str:
    """Barrier, then thread 0 notes the time at which launch `n` starts (or the last one ended)."""
    return f"""{_meet(n_bases)}
  %first{n} = icmp eq i64 %thread, 0
  br i1 %first{n}, label %stamp{n}, label %go{n}
stamp{n}:
  %now{n} = call i64 @now()
  %at{n} = getelementptr i64, ptr %base{n_bases + 1}, i64 {n}
  store i64 %now{n}, ptr %at{n}
  br label %go{n}
go{n}:"""


def _main(name: str, alone: str, team: str) -> str:
    return f"""define void @{name}(ptr %table, i64 %n_threads) {{
  %one = icmp ule i64 %n_threads, 1
  br i1 %one, label %alone, label %team
alone:
  call void @{alone}(ptr %table)
  ret void
team:
  %n = trunc i64 %n_threads to i32
  call void @GOMP_parallel(ptr @{team}, ptr %table, i32 %n, i32 0)
  ret void
}}"""


# libgomp may grant fewer threads than asked for, so the team asks how many it is
_WHO = """  %thread32 = call i32 @omp_get_thread_num()
  %n32 = call i32 @omp_get_num_threads()
  %thread = zext i32 %thread32 to i64
  %n = zext i32 %n32 to i64
  %next = add i64 %thread, 1"""

_SEAL_TEXT = "".join(f"\\{byte:02x}" for byte in UNSEALED)
_SEAL = f'@autotune_seal = constant [{len(UNSEALED)} x i8] c"{_SEAL_TEXT}"'

_FLUSH = "  %former = call i32 @flush_denormals()"
_RETURN = "  call void @restore_denormals(i32 %former)\n  ret void\n}"

_DECLARATIONS = """declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @clock_gettime(i32, ptr)
"""

_NOW = f"""define internal i64 @now() noinline {{
  %time = alloca [2 x i64]
  call i32 @clock_gettime(i32 {_MONOTONIC}, ptr %time)
  %s = load i64, ptr %time
  %ns_at = getelementptr i64, ptr %time, i64 1
  %ns = load i64, ptr %ns_at
  %s_ns = mul i64 %s, 1000000000
  %t = add i64 %s_ns, %ns
  ret i64 %t
}}
"""
