"""⑤ The team: a thread pool of this process that callers share, and the job of a caller.

    job = Job(team(), functions, n_kernels=60, n_shares=2, table=address)
    # machine code then calls `autotune_team1_run(job.address)`

There is one team in a process, for all models. It starts threads when an inference first asks for
them, and again in the child of a fork. What they do is in `team_code`.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.memory import aligned
from autotune.codegen.team import team_code as code
from autotune.codegen.team.forks import WipedMemory, forks
from autotune.machine import usable_cpus
from autotune.threads import usable_threads
from autotune.topology import Topology, current_cpu, near, read_topology

VERSION = 1
"""Of the team's memory (`team_code`), which the code of several artifacts works on."""
SYMBOLS = f"autotune_team{VERSION}_"
"""Prefix of the names of the team's functions."""
EXPORTED = ("run", "run_alone", "profile", "prepare", "make", "leave", "assist")

_WORD = code.WORD
_MISSING = (
    "autotune: {} of {} threads cannot be started, so networks run on fewer; "
    "allow more (ulimit -u, pids.max of a container), or give a smaller number of threads"
)
BLOCK_BYTES = 64 << 10
_MOST_CPUS = 1024  # of a mask
PATIENCE_S = 2e-3
"""For measuring the latency of waking a thread."""
PART_S = 25e-6
"""Duration of a part, taken at once: an atomic operation is little beside it."""
_PART_OF_UNEQUAL_S = 10e-6
"""On CPUs with slower cores among others: smaller parts delay a kernel less."""


class Code(Protocol):
    """Machine code that has the team's functions."""

    def address(self, symbol: str) -> int:
        """Address of a function."""
        ...


@dataclass(frozen=True, slots=True)
class Functions:
    """The team's functions in some machine code, which stays loaded as long as this."""

    code: Code
    prepare: Callable[[int, int], int]
    make: Callable[[int, int, int], int]
    leave: Callable[[int], int]

    @staticmethod
    def of(machine_code: Code) -> Functions:
        """Those of an artifact."""

        def function(name: str, n: int) -> Any:
            # `leave` may wait: a CFUNCTYPE gives up the interpreter's lock
            kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * n)
            return kind(machine_code.address(SYMBOLS + name))

        parts = function("prepare", 2), function("make", 3), function("leave", 1)
        return Functions(machine_code, *parts)


class Team:
    """The team of this process: get it by `team()`."""

    def __init__(self) -> None:
        self.settings = np.zeros(code.SETTINGS_BYTES // _WORD, np.int64)
        self._blocks: list[WipedMemory] = []
        self._seats: list[int] = []
        self.n_placed = 1
        """Threads of the largest job yet."""
        self._lock = threading.Lock()
        self.address = self._block()
        part_s = PART_S if read_topology().is_uniform else _PART_OF_UNEQUAL_S
        self._set(code.SET_CAPACITY, usable_threads(environment={}).n)
        self._set(code.SET_PATIENCE, round(PATIENCE_S * 1e9))
        self._set(code.SET_PART, round(part_s * 1e9))

    def adopt(self, functions: Functions) -> None:
        """Let threads run the code of the first that comes here, which is never unloaded."""
        with self._lock:
            if not self.settings[code.SET_ASSIST // _WORD]:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(functions))
                self._set(code.SET_ASSIST, functions.code.address(f"{SYMBOLS}assist"))

    def place(self, n_threads: int, topology: Topology, cpu: int) -> None:
        """Bind threads that start for a job of so many, whose caller runs on `cpu`: see `near`.

        Those that run already stay where they are.
        """
        with self._lock:
            self.n_placed = max(n_threads, self.n_placed)
            cpus = near(n_threads, topology, cpu) or ()
            mask = sum(1 << n for n in cpus if n < _MOST_CPUS).to_bytes(_MOST_CPUS // 8, "little")
            at = code.SET_MASK // _WORD
            self.settings[at : at + len(mask) // _WORD] = np.frombuffer(mask, np.int64)
            self._set(code.SET_MASK_BYTES, len(mask) if any(mask) else 0)

    def seat(self) -> int:
        """Room for a job, at an address that stays readable when it is given back."""
        with self._lock:
            if not self._seats:
                block = self._block()
                self._seats += [block + n for n in range(0, BLOCK_BYTES, code.SEAT_BYTES)]
            return self._seats.pop()

    def give_back(self, seat: int) -> None:
        """For another job; no thread may look at this one any more."""
        self._seats.append(seat)

    def n_missing(self, wanted: int) -> int:
        """Number of wanted threads that could not be started."""
        words = (ctypes.c_int64 * (code.TEAM_BYTES // _WORD)).from_address(self.address)
        is_over = words[code.TRIED // _WORD] >= wanted  # else another caller starts them just now
        return max(0, wanted - words[code.STARTED // _WORD]) if is_over else 0

    def renew(self) -> None:
        """In the child of a fork, where no thread has the lock."""
        self._lock = threading.Lock()

    def _set(self, at: int, value: int) -> None:
        self.settings[at // _WORD] = value

    def _block(self) -> int:
        self._blocks.append(WipedMemory(BLOCK_BYTES))
        return self._blocks[-1].address


@cache
def team() -> Team:
    """The team of this process."""
    found = Team()
    forks().join(found)
    return found


class Job:
    """Job of the team: the inferences of one network by one caller.

    `kernels`: address of the list of `n_kernels` that the network's entry has. `table`: address of
    the network's table. `n_shares`: how many threads divide each kernel.
    """

    def __init__(
        self,
        of: Team,
        functions: Functions,
        kernels: int,
        n_kernels: int,
        n_shares: int,
        table: int,
    ) -> None:
        self.memory: NDArray[Any] = aligned((code.job_bytes(n_shares, n_kernels),), "uint8")
        self.address = int(self.memory.ctypes.data)
        if n_shares > of.n_placed:
            of.place(n_shares, read_topology().within(usable_cpus()), current_cpu())
        seat = of.seat()
        words = {
            code.TEAM: of.address,
            code.SEAT: seat,
            code.TABLE: table,
            code.SHARES: n_shares,
            code.N_KERNELS: n_kernels,
            code.WANTED: n_shares - 1,
            code.SETTINGS: of.settings.ctypes.data,
        }
        for at, value in words.items():
            self._words[at // _WORD] = value
        functions.prepare(self.address, kernels)
        functions.make(of.address, self.address, n_shares - 1)
        if n_missing := of.n_missing(n_shares - 1):
            warnings.warn(_MISSING.format(n_missing, n_shares), RuntimeWarning, stacklevel=2)
        end = weakref.finalize(self, _close, of, functions, seat, self.memory)
        end.atexit = False
        forks().join(self)

    @property
    def _words(self) -> NDArray[np.int64]:
        return self.memory.view(np.int64)

    def renew(self) -> None:
        """In the child of a fork no thread waits."""
        self._words[code.WAITERS // _WORD] = 0


def _close(of: Team, functions: Functions, seat: int, memory: NDArray[Any]) -> None:
    functions.leave(int(memory.ctypes.data))
    of.give_back(seat)
