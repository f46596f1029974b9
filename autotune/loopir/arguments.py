"""④ The pointer arguments of kernels: the buffers that each uses, in the order of the program."""

from __future__ import annotations

from dataclasses import replace

from autotune.errors import ScheduleError
from autotune.loopir.nodes import Alloc, Kernel, Program, Store
from autotune.loopir.visitor import body_loads, statements
from autotune.te.expr import loads


def with_arguments(program: Program) -> Program:
    """`program` with the arguments of its kernels. Raises ScheduleError where a kernel reads what
    no buffer of the program holds, which is local to another kernel."""
    order = [b.name for b in program.buffers]
    kernels = tuple(_with_arguments(kernel, order) for kernel in program.kernels)
    return replace(program, kernels=kernels)


def _with_arguments(kernel: Kernel, order: list[str]) -> Kernel:
    local = {s.buffer.name for s in statements(kernel.body) if isinstance(s, Alloc)}
    used = {x.tensor.name for x in body_loads(kernel.body)}
    used |= set() if kernel.live is None else {x.tensor.name for x in loads(kernel.live)}
    used |= {s.tensor.name for s in statements(kernel.body) if isinstance(s, Store)}
    for name in used - local - set(order):
        raise ScheduleError(
            f"{kernel.name} reads {name}, which is computed elsewhere",
            f"place {name} in the stage that all its readers are in, or leave it at the root",
        )
    return replace(kernel, buffers=tuple(n for n in order if n in used))
