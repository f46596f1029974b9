"""Floor 0: the compiler of C of exported networks and measuring programs: cc, or Zig's."""

from __future__ import annotations

import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from autotune.errors import AutotuneError, CodegenError, MissingDependency, OutputError, UsageError
from autotune.work_folders import work_folder

_ZIG_TARGETS = {
    "x86_64": "x86_64-linux-gnu.2.28",
    "aarch64": "aarch64-linux-gnu.2.28",
    "riscv64": "riscv64-linux-gnu.2.35",
}
"""Zig's name of Linux on a machine, with the oldest libc that a library needs."""
_STATIC_LIBC = "linux-musl"
"""That of static programs: another one has no library for them everywhere."""
_LINKING = ("-z,nodelete", "-z,noexecstack", "-z,relro", "-z,now", "-s")
_WASM_FLAGS = (
    *(
        "--pie",
        "--experimental-pic",
        "--no-entry",
        "--import-memory",
        "--import-table",
        "--strip-all",
    ),
    "--gc-sections",
)
_WASM_SHARED_FLAGS = ["--shared-memory", f"--max-memory={1 << 32}"]
_C_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-asynchronous-unwind-tables")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Commands of a compiler of C, of an archiver, and of a compiler of static programs."""

    cc: tuple[str, ...]
    ar: tuple[str, ...]
    static: tuple[str, ...] = ()
    """The first one where it is empty."""

    def object(self, source: Path, made: Path) -> None:
        """Compile a file of C, or of assembly. Raises OutputError."""
        flags = _C_FLAGS if source.suffix == ".c" else ()
        _run([*self.cc, *flags, "-c", str(source), "-o", str(made)])

    def shared(self, objects: Sequence[Path], made: Path, libraries: Sequence[str]) -> None:
        """A shared library, which stays loaded, as threads may run its code. Raises OutputError."""
        name = f"-Wl,-soname,{made.name}"
        flags = ["-shared", "-nostartfiles", name, *(f"-Wl,{option}" for option in _LINKING)]
        _run([*self.cc, *flags, "-o", str(made), *map(str, objects), *libraries])

    def archive(self, objects: Sequence[Path], made: Path) -> None:
        """A static library. Raises OutputError."""
        _run([*self.ar, "rcs", str(made), *map(str, objects)])

    def program(self, source: str) -> bytes:
        """A static program of one file of C. Raises OutputError."""
        with work_folder() as folder:
            file, made = Path(folder, "program.c"), Path(folder, "program")
            file.write_text(source, encoding="utf-8")
            flags = ("-std=gnu11", "-O2", "-static", "-s")
            cc = self.static or self.cc
            _run([*cc, *flags, str(file), "-o", str(made), "-lpthread", "-lm"])
            return made.read_bytes()


def toolchain(command: str | None, machine: str) -> Toolchain:
    """The compiler `command`, or else one that is found, for `machine` as ELF has its name.

    Raises MissingDependency where there is none, UsageError for a command that is not there.
    """
    if command:
        words = tuple(shlex.split(command))
        if not words or shutil.which(words[0]) is None:
            raise UsageError(
                f"there is no compiler '{command}'", "give a command, such as `cc='gcc'`"
            )
        return Toolchain(words, _archiver(words))
    found = next(_installed(machine), None)
    if found is None:
        raise _missing(machine)
    return found


def portable_toolchain(machine: str) -> Toolchain:
    """Zig's, whose libraries run with the oldest libc that is supported, the same everywhere.

    Raises MissingDependency without the package.
    """
    if not find_spec("ziglang"):
        raise MissingDependency("there is no ziglang", "pip install 'autotune-compiler[export]'")
    return _zig(machine)


def static_program(source: str, machine: str) -> bytes:
    """A static program of one file of C, by whichever compiler has a library for that.

    Raises MissingDependency without a compiler, OutputError where none can do it.
    """
    failure: AutotuneError = _missing(machine)
    for tools in _installed(machine):
        try:
            return tools.program(source)
        except OutputError as error:
            failure = error
    raise failure


def link_wasm(
    objects: Sequence[Path],
    made: Path,
    exported: Collection[str],
    known: Iterable[str],
    is_shared: bool,
) -> bytes:
    """A module of WebAssembly that can be placed anywhere: see `codegen.wasm`.

    `exported`: its functions for others; none: all. `known`: names that nothing need define.
    `is_shared`: whether threads share its memory.
    Raises MissingDependency without the linker, CodegenError where it refuses the objects.
    """
    names = made.with_suffix(".known")
    names.write_text("\n".join(known), encoding="utf-8")
    flags = [f"--export={name}" for name in exported] or ["--export-dynamic"]
    flags += _WASM_SHARED_FLAGS * is_shared
    command = [*_wasm_linker(), *_WASM_FLAGS, *flags, f"--allow-undefined-file={names}"]
    done = subprocess.run(
        [*command, "-o", str(made), *map(str, objects)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it says nothing"]
        raise CodegenError(f"the code cannot be linked: {lines[0]}")
    return made.read_bytes()


@cache
def _wasm_linker() -> tuple[str, ...]:
    """LLVM's linker: that of the package ziglang, or the system's."""
    found = find_spec("ziglang")
    zig = next((Path(p, "zig") for p in (found and found.submodule_search_locations) or ()), None)
    if zig is not None and zig.exists():
        return str(zig), "wasm-ld"
    if shutil.which("wasm-ld"):
        return ("wasm-ld",)
    raise MissingDependency(
        "there is no linker for WebAssembly", "pip install 'autotune-compiler[export]'"
    )


def _installed(machine: str) -> Iterator[Toolchain]:
    if platform.machine() == machine and shutil.which("cc") and shutil.which("ar"):
        yield Toolchain(("cc",), ("ar",))
    if find_spec("ziglang"):
        yield _zig(machine)


def _zig(machine: str) -> Toolchain:
    zig = (sys.executable, "-m", "ziglang")
    cc = *zig, "cc", "-target"
    static = *cc, f"{machine}-{_STATIC_LIBC}"
    return Toolchain((*cc, _ZIG_TARGETS[machine]), (*zig, "ar"), static)


def _missing(machine: str) -> MissingDependency:
    return MissingDependency(
        f"there is no compiler of C for {machine}",
        "install one (cc), or: pip install 'autotune-compiler[export]'",
    )


def _archiver(cc: tuple[str, ...]) -> tuple[str, ...]:
    """That of the same tools: `zig ar`, `aarch64-linux-gnu-ar`, or the system's."""
    if "cc" in cc[1:]:
        return (*cc[: cc.index("cc", 1)], "ar")
    beside = cc[0].rsplit("-", 1)[0] + "-ar"
    return (beside if "-" in cc[0] and shutil.which(beside) else "ar",)


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MissingDependency(
            f"cannot run {command[0]}: {error.strerror}", "install it"
        ) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
        first = next((line for line in said if "error" in line), said[0])
        raise OutputError(f"{command[0]} failed: {first}", "try another compiler with `cc`")
