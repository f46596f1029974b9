"""⑦ The measuring program: an executor in any process that a command starts, on any machine.

    executor = ProgramExecutor(connect("qemu-aarch64-static -cpu max", program), target, n)

It is a static program made for the target (`program.c`), which knows memory and calls and nothing
of kernels: code is linked here, and written to its memory. A COMMAND is put in front of its path:
nothing, an emulator, `taskset -c 3`. `ssh BOARD` and `adb shell` get the program over their input
and need nothing on the other side but a shell. Code that crashes ends it, which `ProgramEnded`
tells; a hang is ended by an alarm there. WebAssembly has a program in JavaScript (`program.mjs`),
whose path a command that ends as `node` gets: code is a module there, and has no address.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import struct
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from autotune.cache import FileStore, key_of
from autotune.codegen.image.elf import MAGIC
from autotune.codegen.image.jit import ACCESS, fill
from autotune.codegen.image.link import Image, Part, link
from autotune.codegen.image.relocations import WASM32
from autotune.codegen.image.wasm import placing_script
from autotune.codegen.team import gang_code
from autotune.codegen.team.native_object import native_object
from autotune.errors import CodegenError, UsageError
from autotune.measure.processes.process import WorkerError
from autotune.measure.timing.executor import SharedBlock
from autotune.pages import EXECUTE, LARGE_FROM, LARGE_PAGE, READ, WRITE
from autotune.target import Target, needed_features
from autotune.target.tiles import FEATURE, TILE_REQUEST
from autotune.toolchain import static_program
from autotune.units import counted

Array = NDArray[Any]


class ProgramRequest(IntEnum):
    """The first word of a request: see `program.c`, and `program.mjs` for the last two."""

    FACTS = 1
    MAP = 2
    UNMAP = 3
    WRITE = 4
    READ = 5
    PROTECT = 6
    CALL = 7
    SYMBOL = 8
    PLACE = 9
    REMOVE = 10


_WORDS = struct.Struct("<8Q")
_WORD = struct.Struct("<Q")
_SHELLS = ("ssh", "adb", "dbclient")
_INSTALL = (
    'f=$(mktemp) && mv "$f" "$f{suffix}" && f="$f{suffix}" && '
    'head -c {n} >"$f" && chmod 700 "$f" && exec {engine}"$f" unlink'
)
_PREFIX, _NATIVE, _SCRIPT = "autotune-measure-", ".run", ".mjs"
_START = b"autotune"
"""What the program writes first."""
_MOST_GREETING = 1 << 16
_QUOTED_BYTES = 2000
_TIMEOUT_S = 60
_LEVELS = 3


class ProgramEnded(Exception):
    """The measuring program ended while something was asked of it; the text says how."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What the program tells of its machine: CPUs that it may use, and bytes of caches by level.

    `engine`: what runs it, where that is not the machine itself.
    """

    cpus: tuple[int, ...]
    cache_bytes: dict[int, int]
    engine: str = ""


class Connection:
    """A running program. Its memory and calls, one at a time; addresses are the program's."""

    def __init__(self, command: Sequence[str], program: bytes = b"") -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
            )
        except OSError as error:
            self._errors.close()
            raise UsageError(
                f"cannot run {command[0]}: {error.strerror}", "give a command as `runner`"
            ) from error
        self._dropped: list[tuple[int, ...]] = []
        self._symbols: dict[str, int] = {}
        sender = threading.Thread(target=self._hand_over, args=(program,), daemon=True)
        sender.start()  # it may greet at length before it reads
        try:
            self._await_start()
            sender.join()
        except ProgramEnded as error:
            self._process.kill()
            sender.join()
            self.close()
            raise _not_started(str(error)) from error

    def facts(self) -> MachineFacts:
        """What the program knows of its machine. Raises WorkerError where it does not start."""
        try:
            n = self._ask(ProgramRequest.FACTS)
            text = self._receive(n).decode(errors="replace")
        except ProgramEnded as error:
            raise _not_started(str(error)) from error
        return _facts_of(text)

    def map(self, n_bytes: int) -> int:
        """Address of zeros in whole pages. Raises MemoryError."""
        address = self._ask(ProgramRequest.MAP, max(n_bytes, 1))
        if not address:
            raise MemoryError(f"the measuring program has no room for {n_bytes} bytes")
        return address

    def drop(self, address: int, n_bytes: int) -> None:
        """Unmap with the next request: a finalizer may call this in the middle of another."""
        self._dropped.append((ProgramRequest.UNMAP, address, n_bytes))

    def place(self, module: bytes) -> int:
        """The slot of the first function of a module. Raises CodegenError for one it refuses."""
        self.send(_words(ProgramRequest.PLACE, len(module)))
        self.send(module)
        (slot,) = _WORD.unpack(self._receive(_WORD.size))
        if not slot:
            raise CodegenError(f"the engine refuses a module: {self._said().splitlines()[-1]}")
        return int(slot)

    def remove(self, slot: int) -> None:
        """Remove a module, as `drop` does."""
        self._dropped.append((ProgramRequest.REMOVE, slot))

    def write(self, address: int, data: Any) -> None:
        """Write bytes."""
        view = memoryview(data).cast("B")
        if view.nbytes:
            self.send(_words(ProgramRequest.WRITE, address, view.nbytes))
            self.send(view)

    def read(self, address: int, n_bytes: int) -> bytes:
        """Read bytes."""
        return self._receive(self._ask(ProgramRequest.READ, address, n_bytes)) if n_bytes else b""

    def protect(self, address: int, n_bytes: int, access: int) -> None:
        """Change the access to whole pages. Raises CodegenError where the system refuses."""
        bits = (access & READ and 1) | (access & WRITE and 2) | (access & EXECUTE and 4)
        if n_bytes and self._ask(ProgramRequest.PROTECT, address, n_bytes, bits):
            raise CodegenError("the machine refuses to execute memory", "allow it there")

    def call(self, function: int, *arguments: int, limit_s: int = _TIMEOUT_S) -> int:
        """Call a function of up to four words."""
        words = [*arguments, 0, 0, 0, 0][:4]
        return self._ask(ProgramRequest.CALL, function, limit_s, *words)

    def symbol(self, name: str) -> int:
        """Address of a function of the C library there. Raises CodegenError without it."""
        if name not in self._symbols:
            data = name.encode()
            self.send(_words(ProgramRequest.SYMBOL, len(data)) + data)
            (self._symbols[name],) = _WORD.unpack(self._receive(_WORD.size))
        if not self._symbols[name]:
            raise CodegenError(f"it calls '{name}', which the measuring program does not have")
        return self._symbols[name]

    def close(self) -> None:
        """End the program."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._process.kill()
        self._process.wait()
        self._errors.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def send(self, data: Any) -> None:
        """Hand over bytes."""
        try:
            self._pipe.write(data)
        except (OSError, ValueError) as error:
            raise ProgramEnded(self._how_it_ended()) from error

    def _ask(self, *words: int) -> int:
        while self._dropped:
            self.send(_words(*self._dropped.pop()))
        self.send(_words(*words))
        return int(_WORD.unpack(self._receive(_WORD.size))[0])

    def _receive(self, n_bytes: int) -> bytes:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._pipe.flush()
        data = self._process.stdout.read(n_bytes)
        if len(data) < n_bytes:
            raise ProgramEnded(self._how_it_ended())
        return data

    def _hand_over(self, program: bytes) -> None:
        with contextlib.suppress(OSError):  # what it wrote tells more
            self._pipe.write(program)
            self._pipe.flush()

    def _await_start(self) -> None:
        """Skip what a shell writes to its output, such as a greeting, before it runs the program.

        Raises ProgramEnded where the program does not come.
        """
        assert self._process.stdout is not None
        said = bytearray()
        while not said.endswith(_START):
            byte = self._process.stdout.read(1)
            if not byte or len(said) > _MOST_GREETING:
                how = "it writes without end" if byte else self._how_it_ended()
                text = said.decode(errors="replace").strip()
                raise ProgramEnded(how if "\n" in how else f"{how}\n{text}".strip())
            said += byte

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return "it closed its output"
        said = self._said()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{how}\n{said}" if said else how

    def _said(self) -> str:
        """The end of what it wrote to stderr."""
        size = self._errors.seek(0, 2)
        self._errors.seek(max(0, size - _QUOTED_BYTES))
        return self._errors.read().decode(errors="replace").strip()


class ProgramExecutor:
    """The program as an executor of `n_threads` threads."""

    def __init__(self, connection: Connection, target: Target, n_threads: int) -> None:
        self.n_threads = n_threads
        self._connection, self._target = connection, target
        self._cpus = connection.facts().cpus
        if FEATURE in needed_features(target):
            connection.call(connection.symbol("syscall"), *TILE_REQUEST)
        self._gang = self._loaded_gang() if target.isa.has_threads else None

    @property
    def cpus(self) -> tuple[int, ...]:
        """As of `Executor`."""
        return self._cpus

    def has(self, feature: str) -> bool:
        """As of `Executor`: what a target for it says; every x86-64 CPU flushes a line."""
        return feature == "sse2" or f"+{feature}" in self._target.features.split(",")

    def block(self, n_bytes: int) -> SharedBlock:
        """As of `Executor`."""
        return FarBlock(self._connection, n_bytes)

    def load(self, objects: Sequence[bytes]) -> FarCode:
        """As of `Executor`."""
        return FarCode(self._connection, link([Part(data) for data in objects]))

    def call(self, function: int, argument: int) -> None:
        """As of `Executor`."""
        if self._gang is None and self.n_threads == 1:
            self._connection.call(function, argument, 0, 1)
        elif self._gang is None or self._connection.call(
            *self._gang, function, argument, self.n_threads
        ):
            raise CodegenError(
                f"the machine does not give {counted(self.n_threads, 'thread')}",
                "use fewer `threads`",
            )

    def _loaded_gang(self) -> tuple[int, int]:
        """Addresses of the function that calls another on all threads, and of their memory."""
        objects = [native_object(gang_code, self._target, ("call",), "autotune_gang_")]
        self._keep = code, memory = self.load(objects), self.block(gang_code.GANG_BYTES)
        return code.address("autotune_gang_call"), memory.address


class FarBlock(SharedBlock):
    """Memory of the program, and a copy of it here."""

    def __init__(self, connection: Connection, n_bytes: int) -> None:
        super().__init__(np.zeros(n_bytes, np.uint8))
        self._connection = connection
        self.address = connection.map(n_bytes)
        weakref.finalize(self, connection.drop, self.address, max(n_bytes, 1)).atexit = False

    def push(self, begin: int = 0, end: int | None = None) -> None:
        """As of `SharedBlock`."""
        self._connection.write(self.address + begin, self.array[begin:end])

    def pull(self, begin: int = 0, end: int | None = None) -> None:
        """As of `SharedBlock`."""
        part = self.array[begin:end]
        part[...] = np.frombuffer(
            self._connection.read(self.address + begin, part.nbytes), np.uint8
        )


class FarCode:
    """An image in the memory of the program, or a module that it has placed."""

    def __init__(self, connection: Connection, image: Image) -> None:
        self.image = image
        if image.machine == WASM32.name:
            self.start = connection.place(image.data)
            weakref.finalize(self, connection.remove, self.start).atexit = False
        else:
            self._write(connection, image)

    def _write(self, connection: Connection, image: Image) -> None:
        n_bytes = len(image.data)
        self.start = connection.map(n_bytes)
        weakref.finalize(self, connection.drop, self.start, n_bytes).atexit = False
        data = np.empty(n_bytes, np.uint8)
        fill(data, image, self.start, {name: connection.symbol(name) for name in image.imports})
        connection.write(self.start, data)
        for region, begin, end in image.spans():
            connection.protect(self.start + begin, end - begin, ACCESS[region])

    @property
    def n_code_bytes(self) -> int:
        """As of `LoadedCode`."""
        return self.image.n_code_bytes

    def address(self, symbol: str) -> int:
        """As of `LoadedCode`."""
        if symbol not in self.image.symbols:
            raise CodegenError(f"no object defines the symbol '{symbol}'")
        return self.start + self.image.symbols[symbol]


def _not_started(how: str) -> WorkerError:
    """The error with the last line that the command wrote: what ssh says of a key or a port."""
    first, *said = [line.strip() for line in how.splitlines() if line.strip()]
    return WorkerError(
        f"the measuring program does not start: {': '.join([*said[-1:], first])}",
        "try the command of `runner`",
    )


def connect(command: str, program: bytes) -> Connection:
    """Start the program behind a command: see the module.

    Raises UsageError where the command cannot be run, WorkerError where the program does not start.
    """
    words = shlex.split(command)
    is_native = program.startswith(MAGIC)
    suffix = _NATIVE if is_native else _SCRIPT
    if words and Path(words[0]).name in _SHELLS:
        engine = "" if is_native else "node "
        script = _INSTALL.format(suffix=suffix, n=len(program), engine=engine)
        return Connection([*words, f"sh -c {shlex.quote(script)}"], program)
    with tempfile.NamedTemporaryFile(prefix=_PREFIX, suffix=suffix, delete=False) as file:
        file.write(program)
    Path(file.name).chmod(0o700)
    connection = Connection([*words, file.name, "unlink"])
    weakref.finalize(connection, Path(file.name).unlink, missing_ok=True)
    return connection


@contextlib.contextmanager
def connected(command: str, program: bytes) -> Iterator[Connection]:
    """`connect` to a program that has started, until the end of the block.

    Raises WorkerError where it does not start, or ends before the block does.
    """
    connection = connect(command, program)
    try:
        connection.facts()
        yield connection
    except ProgramEnded as error:
        text = f"the measuring program ended: {error}"
        raise WorkerError(text, "try the command of `runner`") from error
    finally:
        connection.close()


def measuring_program(target: Target, store: FileStore | None = None) -> bytes:
    """The program for a target; from `store` where it was built before.

    Raises MissingDependency without a compiler of C.
    """
    if target.arch == WASM32.name:
        known = ", ".join(f"{one.name} = {one}" for one in ProgramRequest)
        return f"{placing_script()}const {known};\n{_source('program.mjs')}".encode()
    numbers = {**ProgramRequest.__members__, "LARGE_PAGE": LARGE_PAGE, "LARGE_FROM": LARGE_FROM}
    known = ", ".join(f"{name} = {int(number)}" for name, number in numbers.items())
    source = f"enum {{ {known} }};\n{_source('program.c')}"
    key = key_of("measuring program", source, target.arch)
    found = store.get(key) if store else None
    if found is None:
        found = static_program(source, target.arch)
        if store:
            store.put(key, found)
    return found


def _source(name: str) -> str:
    return files("autotune.measure.far").joinpath(name).read_text(encoding="utf-8")


def described_by(target: Target, facts: MachineFacts) -> Target:
    """`target` with the caches of the machine, as far as it tells them, and its number of CPUs."""
    known: dict[str, Any] = {
        f"l{level}_bytes": n for level, n in facts.cache_bytes.items() if level <= _LEVELS
    }
    return replace(target, n_cores=max(1, len(facts.cpus)), **known)


def _facts_of(text: str) -> MachineFacts:
    cpus: list[int] = []
    caches: dict[int, int] = {}
    words: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        words[name] = value
        if name == "cpu":
            cpus.append(int(value))
        if name == "size" and words.get("type") != "Instruction" and words.get("level"):
            unit = {"K": 10, "M": 20, "G": 30}.get(value[-1:], 0)
            caches[int(words["level"])] = int(value.rstrip("KMG")) << unit
    engine = ", ".join(words[name] for name in ("engine", "model") if name in words)
    return MachineFacts(tuple(cpus), caches, engine)


def _words(*words: int) -> bytes:
    """A request."""
    return _WORDS.pack(*words, *[0] * (8 - len(words)))
