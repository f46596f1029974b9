"""⑤ Programs whose kernels are all for a GPU, with the launch of each."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.errors import ScheduleError
from autotune.loopir.launch import KernelLaunch, launch_of
from autotune.loopir.nodes import Instruction, Kernel, PrefetchLine, Program
from autotune.loopir.visitor import statements


def launches(program: Program) -> Iterator[tuple[Kernel, KernelLaunch]]:
    """The kernels of a program for a GPU. Raises ScheduleError where it is none."""
    if program.packs or program.derived:
        raise ScheduleError(
            "constants that are stored in another order are made by CPUs",
            "leave out pack, or make the tensor an input",
        )
    for kernel in program.kernels:
        launch = launch_of(kernel)
        if launch is None:
            raise ScheduleError(
                f"{kernel.name}: no loop is bound to the blocks and threads of a GPU",
                's["out"].bind(loop, "blockIdx.x")',
            )
        if any(isinstance(s, Instruction | PrefetchLine) for s in statements(kernel.body)):
            raise ScheduleError(
                f"{kernel.name} has instructions of a CPU", "leave out dot, matrix, prefetch"
            )
        yield kernel, launch
