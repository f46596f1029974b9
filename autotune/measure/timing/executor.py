"""⑦ Where measured code is loaded and called: in this process, or in a program behind a pipe.

    executor = ThisProcess(target, n_threads)         # or `program.ProgramExecutor`
    code, block = executor.load(objects), executor.block(4096)
    executor.call(code.address("evaluate"), block.address)

Addresses are those of the process that computes; bytes of a block are an array of this process,
which `push` and `pull` keep equal to the memory there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from autotune.codegen.image.jit import Library
from autotune.codegen.memory import aligned
from autotune.codegen.team.gang import gang
from autotune.machine import usable_cpus
from autotune.target import Target
from autotune.target.cpu import host_features
from autotune.topology import read_topology

Array = NDArray[Any]


class SharedBlock:
    """Memory that code works on: its bytes as an array, and its address where code runs."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.address = int(array.ctypes.data)

    @property
    def n_bytes(self) -> int:
        """Size."""
        return int(self.array.nbytes)

    def push(self, begin: int = 0, end: int | None = None) -> None:
        """Let code see bytes [begin, end) of the array as they are now."""

    def pull(self, begin: int = 0, end: int | None = None) -> None:
        """Let bytes [begin, end) of the array be as code has left them."""


def local_block(n_bytes: int) -> SharedBlock:
    """Zeros in this process, aligned to cache lines. Raises MemoryError without room for them."""
    return SharedBlock(aligned((n_bytes,), "uint8"))


class LoadedCode(Protocol):
    """Machine code that can be called."""

    @property
    def n_code_bytes(self) -> int:
        """Bytes of the machine code of all objects; that of one object lies together."""
        ...

    def address(self, symbol: str) -> int:
        """Address of a function. Raises CodegenError for one that no object defines."""
        ...


class Executor(Protocol):
    """A process that runs machine code on `n_threads` threads."""

    @property
    def n_threads(self) -> int:
        """Threads of `call`."""
        ...

    @property
    def cpus(self) -> tuple[int, ...]:
        """CPUs that it may run on, in the order in which threads take them."""
        ...

    def has(self, feature: str) -> bool:
        """Whether its CPU has a feature, by LLVM's names."""
        ...

    def block(self, n_bytes: int) -> SharedBlock:
        """Zeros, aligned to cache lines. Raises MemoryError without room for them."""
        ...

    def load(self, objects: Sequence[bytes]) -> LoadedCode:
        """Relocatable objects, linked. Raises CodegenError for code that cannot be loaded."""
        ...

    def call(self, function: int, argument: int) -> None:
        """`function(argument, t, n)` on every thread t of n. Raises CodegenError without them."""
        ...


Executors: TypeAlias = Callable[[int], Executor]
"""Makes the executor of a number of threads."""


class ThisProcess:
    """This process as an executor."""

    def __init__(self, target: Target, n_threads: int) -> None:
        self.n_threads = n_threads
        self._gang = gang(target, n_threads)

    @property
    def cpus(self) -> tuple[int, ...]:
        """As of `Executor`: one of each core before the second of any."""
        return read_topology().within(usable_cpus()).order

    def has(self, feature: str) -> bool:
        """As of `Executor`."""
        return host_features().get(feature, False)

    def block(self, n_bytes: int) -> SharedBlock:
        """As of `Executor`."""
        return local_block(n_bytes)

    def load(self, objects: Sequence[bytes]) -> Library:
        """As of `Executor`."""
        return Library(objects)

    def call(self, function: int, argument: int) -> None:
        """As of `Executor`."""
        self._gang.call(function, argument)
