"""⑤ Call machine code on several threads at the same time: see `gang_code`.

gang(target, 2).call(function, argument)
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache

from autotune.codegen.image.jit import Library
from autotune.codegen.team import gang_code as code
from autotune.codegen.team.forks import WipedMemory, forks
from autotune.codegen.team.native_object import native_object
from autotune.errors import CodegenError
from autotune.target import Target
from autotune.units import counted


class Gang:
    """`n_threads` threads of this process, started when they are first called: get it by `gang`."""

    def __init__(self, target: Target, n_threads: int) -> None:
        self.n_threads = n_threads
        self._memory = WipedMemory(code.GANG_BYTES)
        self._library = Library([native_object(code, target, ("call",), "autotune_gang_")])
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)
        self._call = kind(self._library.address("autotune_gang_call"))
        self._lock = threading.Lock()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # its threads never end
        forks().join(self)

    def call(self, function: int, argument: int) -> None:
        """`function(argument, t, n)` on every thread t of n; `function` is an address.

        Raises CodegenError where not all threads can be started.
        """
        with self._lock:
            n_missing = self._call(self._memory.address, function, argument, self.n_threads)
        if n_missing:
            raise CodegenError(
                f"the system does not give {counted(self.n_threads, 'thread')}",
                "allow more (ulimit -u, pids.max of a container), or use fewer threads",
            )

    def renew(self) -> None:
        """In the child of a fork, where no thread has the lock."""
        self._lock = threading.Lock()


@cache
def gang(target: Target, n_threads: int) -> Gang:
    """The gang of this process of so many threads; all measurements share it."""
    return Gang(target, n_threads)
