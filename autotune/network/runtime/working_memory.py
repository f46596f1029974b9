"""⑩ What calls of an artifact work in: its code; arena and tables of addresses of each caller."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.image.jit import Library
from autotune.codegen.memory import aligned
from autotune.codegen.team import ports_code
from autotune.codegen.team.forks import forks
from autotune.codegen.team.team import SYMBOLS, Functions, Job, team
from autotune.errors import ArtifactError, CodegenError
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.plan import CallPlan, call_plan
from autotune.network.artifact.table import ARENA, CONSTANTS, KERNELS, PROFILE, RUN, entry_name
from autotune.units import format_bytes

Array = NDArray[Any]

_BARRIER_BYTES = 256
_REMEMBERED = 1000
"""Inferences after which working memory that was not needed meanwhile is freed."""
_DIRECT = f"{ports_code.SYMBOLS}{ports_code.DIRECT}"
"""What calls of arrays of NumPy go through; files of former versions have none."""
_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


class NetworkCode:
    """The machine code of the network `artifact`, ready to be called. `library`: all code of it."""

    def __init__(self, library: Library, artifact: Artifact) -> None:
        number = artifact.entry
        self.library, self._number = library, number
        self.plan = call_plan(artifact)
        self.is_former = not library.has(entry_name(KERNELS, number))
        if not self.is_former and not library.has(f"{SYMBOLS}run"):
            raise ArtifactError(
                "the threads of this version of autotune are not those that the code was made for",
                "compile the model again",
            )
        entry = self._address(RUN)
        self.run = _ENTRY(entry)
        self.profile = _ENTRY(self._address(PROFILE))
        self.direct: tuple[int, int] | None = None
        self.functions: Functions | None = None
        if not self.is_former:
            if library.has(_DIRECT):
                self.direct = library.address(_DIRECT), entry
            self.functions = Functions.of(self.library)
            team().adopt(self.functions)

    def n_threads(self, wanted: int) -> int:
        """That an inference is to have: libgomp has none in the child of a fork."""
        return 1 if self.is_former and forks().is_child else wanted

    def job(self, table: int, n_kernels: int, n_threads: int) -> Job | None:
        """Job of a caller for the team of threads; None for code without one."""
        if self.functions is None:
            return None
        return Job(team(), self.functions, self._address(KERNELS), n_kernels, n_threads, table)

    def _address(self, symbol: str) -> int:
        return self.library.address(entry_name(symbol, self._number))


def _library(artifact: Artifact) -> Library:
    try:
        return Library(artifact.image)
    except CodegenError as error:
        raise ArtifactError(
            f"the code of '{artifact.name}' cannot be loaded: {error.message}",
            error.hint or "compile the model on this machine",
        ) from error


class Place:
    """The table of addresses of one network for one caller, and its targets."""

    def __init__(self, artifact: Artifact, code: NetworkCode, n_threads: int, arena: Array) -> None:
        self.times = np.zeros(len(artifact.kernels) + 1, np.int64)
        self.table = np.zeros(code.plan.all_words, np.uintp)
        address = self.table.ctypes.data
        self.address = ctypes.c_void_p(address)
        self.job = code.job(address, len(artifact.kernels), n_threads)
        self.barrier = aligned((_BARRIER_BYTES,), "uint8")
        team_at = self.job.address if self.job else self.barrier.ctypes.data
        self.table[[ARENA, CONSTANTS]] = arena.ctypes.data, artifact.constants.ctypes.data
        team = artifact.n_bases
        self.table[team : team + 2] = team_at, self.times.ctypes.data
        self.rooms = _rooms(code.plan)
        self.table[code.plan.first_room :] = [room.ctypes.data for room in self.rooms]


def _rooms(plan: CallPlan) -> list[Array]:
    """Memory for the longest of each output: see `CallPlan`. Raises ArtifactError."""
    try:
        return [aligned((n_bytes,), "uint8") for n_bytes in plan.rooms]
    except MemoryError as error:
        raise ArtifactError(
            f"its outputs need {format_bytes(sum(plan.rooms))} at the longest", "free some memory"
        ) from error


class CallerMemory:
    """Working memory of one caller: an arena, and a place for each network."""

    def __init__(self, arena: Array) -> None:
        self.arena = arena
        self.places: dict[object, Place] = {}


class Memory:
    """Working memory of the callers of an artifact, as many as there are at once; and its code."""

    def __init__(self, artifact: Artifact) -> None:
        self.library = _library(artifact)
        self._artifact = artifact
        self._free = [CallerMemory(_arena(artifact))]
        self._n_spare, self._n_left = 0, _REMEMBERED

    @property
    def n_bytes(self) -> int:
        """Of the working memory that waits for callers; of one caller at least."""
        return max(1, len(self._free)) * _arena_bytes(self._artifact)

    def take(self) -> CallerMemory:
        """One that no other caller has. Raises ArtifactError without room for it."""
        try:
            return self._free.pop()  # no other thread gets it: there is no lock to be forked
        except IndexError:
            return CallerMemory(_arena(self._artifact))

    def give_back(self, working: CallerMemory) -> None:
        """For the next caller."""
        if len(self._free) < self._n_spare:
            self._n_spare = len(self._free)
        self._n_left -= 1
        if self._n_left < 0:
            self._free_spare()
        self._free.append(working)

    def _free_spare(self) -> None:
        """Forget those that no caller has needed for long."""
        del self._free[: self._n_spare]
        self._n_spare, self._n_left = len(self._free), _REMEMBERED

    @contextlib.contextmanager
    def lent(self) -> Iterator[CallerMemory]:
        """Take one and give it back."""
        working = self.take()
        try:
            yield working
        finally:
            self.give_back(working)


def _arena_bytes(artifact: Artifact) -> int:
    return max(variant.arena_bytes for variant in artifact.variants)


def _arena(artifact: Artifact) -> Array:
    n_bytes = _arena_bytes(artifact)
    try:
        return aligned((n_bytes,), "uint8")
    except (MemoryError, OverflowError) as error:
        raise ArtifactError(
            f"'{artifact.name}' needs {format_bytes(n_bytes)} of working memory",
            "free some memory, or compile the model for smaller inputs (`shapes`)",
        ) from error
