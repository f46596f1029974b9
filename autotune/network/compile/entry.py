"""⑩ The network's main functions, as LLVM IR: every thread walks one static list of kernels.

    autotune_run(ptr table, i64 n_threads)       one inference
    autotune_profile(ptr table, i64 n_threads)   the same, with the time before every kernel

`table` holds 64-bit addresses: the network's bases (arena, constants, bound inputs and outputs),
then the caller's job (`codegen.team_code`), then an array for `len(launches) + 1` times in ns. All
else is constant offsets, so the code is position independent, holds no state, and serves any number
of callers and threads.

With one thread the kernels are called one after another. With more, they are a list of functions of
a table and a range, which the team divides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from autotune.codegen.team.team import SYMBOLS
from autotune.network.artifact.table import KERNELS, PROFILE, RUN, entry_name
from autotune.target import Target
from autotune.target.isa import Isa


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address: `offset` bytes after the base in slot `base` of the table."""

    base: int
    offset: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel as the network calls it.

    `after`: how many kernels, of the first ones, must be done before it begins; None: all before
    it. `time_s`: about how long it takes on one thread.
    """

    symbol: str
    extent: int
    arguments: tuple[Pointer, ...]
    after: int | None = None
    time_s: float = 0.0


def compile_entry(
    launches: Sequence[Launch], n_bases: int, target: Target, number: int = 0
) -> bytes:
    """Object with `RUN` and `PROFILE`; symbols of kernels and the team are left open.

    Where there are no threads it has `RUN` alone. `number`: of the entry, which is in the names of
    a module.
    """
    # compiled networks run without LLVM
    from autotune.codegen.llvm_target import emitted, parsed, target_machine

    machine = target_machine(target, 1)
    isa = target.isa
    named = partial(entry_name, number=number) if target.architecture.is_module else str
    if isa.has_threads:
        text = entry_ir(launches, n_bases, isa, named)
    else:
        text = alone_ir(launches, n_bases, isa, named(RUN))
    return emitted(parsed(text, machine), machine, target)


def entry_ir(
    launches: Sequence[Launch], n_bases: int, isa: Isa, named: Callable[[str], str] = str
) -> str:
    """LLVM IR of both main functions, which call the kernels by their symbols.

    `named`: what a symbol of the entry is called.
    """
    return "\n".join(
        [
            *_declarations(launches),
            _DECLARATIONS,
            isa.denormals_ir,
            *_alone(launches, n_bases),
            *(line for n, x in enumerate(launches) for line in _part(n, x, n_bases)),
            _kernels(launches, named(KERNELS)),
            _MAIN.format(
                run=named(RUN),
                profile=named(PROFILE),
                team=SYMBOLS,
                job=8 * n_bases,
                times=8 * (n_bases + 1),
            ),
        ]
    )


def alone_ir(launches: Sequence[Launch], n_bases: int, isa: Isa, symbol: str) -> str:
    """LLVM IR of the main function `symbol` where there are no threads."""
    lines = [*_declarations(launches), isa.denormals_ir]
    head = f'define void @"{symbol}"(ptr %table, i64 %n_threads)'
    return "\n".join([*lines, *_alone(launches, n_bases, head)])


def _declarations(launches: Sequence[Launch]) -> Iterator[str]:
    for symbol, n_pointers in sorted({(x.symbol, len(x.arguments)) for x in launches}):
        yield f'declare void @"{symbol}"({"ptr, " * n_pointers}i64, i64)'


def _alone(
    launches: Sequence[Launch],
    n_bases: int,
    head: str = "define internal void @alone(ptr %table, i64 %begin, i64 %end)",
) -> Iterator[str]:
    yield f"{head} {{"
    yield "  %former = call i32 @flush_denormals()"
    yield from _bases(range(n_bases))
    for n, launch in enumerate(launches):
        yield from _call(n, launch, "0", str(launch.extent))
    yield "  call void @restore_denormals(i32 %former)\n  ret void\n}"


def _part(n: int, launch: Launch, n_bases: int) -> Iterator[str]:
    """Launch `n` for a part of its range."""
    yield f"define internal void @part{n}(ptr %table, i64 %begin, i64 %end) {{"
    yield from _bases(sorted({at.base for at in launch.arguments}))
    yield from _call(n, launch, "%begin", "%end")
    yield "  ret void\n}"


def _kernels(launches: Sequence[Launch], symbol: str) -> str:
    """The list that the team reads: code, extent, nanoseconds, and dependences."""
    rows = ", ".join(
        f"%kernel {{ ptr @part{n}, i64 {x.extent}, i64 {round(x.time_s * 1e9)}, "
        f"i64 {n if x.after is None else x.after} }}"
        for n, x in enumerate(launches)
    )
    return (
        "%kernel = type { ptr, i64, i64, i64 }\n"
        f'@"{symbol}" = constant [{len(launches)} x %kernel] [{rows}]'
    )


def _bases(numbers: Iterable[int]) -> Iterator[str]:
    for n in numbers:
        yield f"  %slot{n} = getelementptr i64, ptr %table, i64 {n}"
        yield f"  %base{n} = load ptr, ptr %slot{n}"


def _call(n: int, launch: Launch, begin: str, end: str) -> Iterator[str]:
    arguments = []
    for k, at in enumerate(launch.arguments):
        yield f"  %p{n}.{k} = getelementptr i8, ptr %base{at.base}, i64 {at.offset}"
        arguments.append(f"ptr %p{n}.{k}, ")
    yield f'  call void @"{launch.symbol}"({"".join(arguments)}i64 {begin}, i64 {end})'


_DECLARATIONS = f"""declare i64 @{SYMBOLS}run(i64)
declare i64 @{SYMBOLS}run_alone(i64, i64)
declare i64 @{SYMBOLS}profile(i64, i64)
"""


_MAIN = """define void @"{run}"(ptr %table, i64 %n_threads) {{
  %job_at = getelementptr i8, ptr %table, i64 {job}
  %job = load i64, ptr %job_at
  %one = icmp ule i64 %n_threads, 1
  br i1 %one, label %alone, label %team
alone:
  %code = ptrtoint ptr @alone to i64
  %r0 = call i64 @{team}run_alone(i64 %job, i64 %code)
  ret void
team:
  %r1 = call i64 @{team}run(i64 %job)
  ret void
}}
define void @"{profile}"(ptr %table, i64 %n_threads) {{
  %job_at = getelementptr i8, ptr %table, i64 {job}
  %job = load i64, ptr %job_at
  %times_at = getelementptr i8, ptr %table, i64 {times}
  %times = load i64, ptr %times_at
  %r = call i64 @{team}profile(i64 %job, i64 %times)
  ret void
}}"""
