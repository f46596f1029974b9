"""⑩ Estimated duration of a kernel on one thread: it decides the number of its parts.

Within a factor of three or so, which is enough: parts of a few dozen microseconds are worth their
atomic operation, and wait for a thread that is not running no longer than that.
"""

from __future__ import annotations

import math

from autotune.loopir.nodes import Alloc, Body, For, If, Instruction, Kernel, Program, Store
from autotune.search.cost.instructions import work
from autotune.target import Target

_DOT_TERMS = 4
_CLOCK_HZ = 3e9
_BYTES_PER_S = 20e9


def estimated_s(program: Program, kernel: Kernel, n_cycles: float) -> float:
    """Seconds of all of a kernel's range: its arithmetic, or its memory where that takes longer."""
    n_bytes = sum(program.buffer(name).n_bytes for name in kernel.buffers)
    return max(n_cycles / _CLOCK_HZ, n_bytes / _BYTES_PER_S)


def cycles(kernel: Kernel, target: Target) -> float:
    """Of the arithmetic of all of a kernel's range."""
    return kernel.extent * _cycles(kernel.body, target)


def _cycles(body: Body, target: Target) -> float:
    total = 0.0
    for stmt in body:
        match stmt:
            case For():
                total += _trips(stmt, target) * _cycles(stmt.body, target)
            case Alloc(body=inner) | Instruction(body=inner):
                total += _cycles(inner, target)
            case If(then=then, orelse=orelse):
                total += max(_cycles(then, target), _cycles(orelse, target))
            case Store(value=value):
                total += max(1, work(value)) / target.core.ports
    return total


def _trips(loop: For, target: Target) -> int:
    at_once = {"vectorize": target.lanes, "dot": _DOT_TERMS, "tile": target.lanes}
    return math.ceil(loop.extent / at_once.get(loop.kind, 1))
