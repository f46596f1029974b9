"""⑤ Loop IR to PTX, the assembly of NVIDIA's GPUs, by LLVM's NVPTX back end.

The emitter is that of CPUs: pointers are generic, and LLVM finds out which are global, shared or
local. A kernel differs in three places: a bound loop is the iteration of the thread's own index, a
shared buffer is a variable of the block, a barrier is an instruction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar

import llvmlite.binding as llvm

from autotune.codegen.compile import run_passes
from autotune.codegen.emission.emit import FunctionEmitter
from autotune.codegen.emission.text import I32, I64, VOID, Module, Type, Value, constant
from autotune.codegen.llvm_target import parsed
from autotune.dtypes import dtype_bytes
from autotune.errors import CodegenError
from autotune.gpu.launches import launches
from autotune.loopir.launch import KernelLaunch
from autotune.loopir.nodes import Barrier, Buffer, For, Kernel, Program
from autotune.target.isa import ISAS

TRIPLE = "nvptx64-nvidia-cuda"
GPU, FEATURES = "sm_80", "+ptx70"
"""The oldest GPUs that the text is for (Ampere, 2020), and its version: later ones take it too."""
_ISA = replace(ISAS[-1], name=GPU, forms=(), byte_pairs={})
_DECLARED = re.compile(r"^declare .*@([\w.]+)\(", re.MULTILINE)
_LIBRARY = re.compile(r"(?!llvm\.).*|llvm\.(sin|cos|tan)\..*")
"""Functions that come from the C library."""
_REGISTERS = {"blockIdx": "ctaid", "threadIdx": "tid"}


def ptx(program: Program) -> str:
    """PTX of a program whose loops are bound, with a comment that says how it is launched.

    Raises ScheduleError where a GPU has no such kernels.
    """
    machine = _machine()
    text, about = gpu_module(program)
    for name in filter(_LIBRARY.fullmatch, _DECLARED.findall(text)):
        raise CodegenError(
            f"{name.removeprefix('llvm.')} of the C library is needed, and a GPU has none",
            "in float32 all functions but sin, cos and tan do without",
        )
    try:
        module = parsed(text, machine)
    except RuntimeError as error:
        raise CodegenError(f"LLVM refuses the generated code: {error}") from error
    return about + str(machine.emit_assembly(run_passes(module, machine)))


def gpu_module(program: Program) -> tuple[str, str]:
    """The LLVM module of a program, and the comment about its launch."""
    module = Module(_ISA)
    about = [f"{b.role} {b.name}: {b.n_bytes} bytes of {b.tensor.dtype}" for b in program.buffers]
    for kernel, launch in launches(program):
        symbol = _symbol(kernel.name)
        _GpuFunction(module, program, replace(kernel, name=symbol), launch).emit()
        about += [
            f"{symbol}({', '.join(kernel.buffers)}): grid {launch.grid}, block {launch.block},",
            f"  {launch.n_bytes} bytes of shared memory",
        ]
    return str(module), "".join(f"// {ascii(line)[1:-1]}\n" for line in about)


class _GpuFunction(FunctionEmitter):
    """State while one kernel is emitted."""

    range_kinds: ClassVar[Mapping[str, Type]] = {}

    def __init__(
        self, module: Module, program: Program, kernel: Kernel, launch: KernelLaunch
    ) -> None:
        super().__init__(module, program, kernel, "")
        self.launch = launch
        self.b.convention = "ptx_kernel void"

    def emit(self) -> None:
        for index in self.launch.extents:
            axis, dim = index.split(".")
            name = f"llvm.nvvm.read.ptx.sreg.{_REGISTERS[axis]}.{dim}"
            self.at.env[index] = self.b.cast("zext nneg", self.b.call(name, I32, []), I64)
        self.body(self.kernel.body)
        self.b.end()

    def iteration(self, loop: For) -> None:
        index, extent = self.at.env[loop.kind], loop.extent
        assert isinstance(index, Value)
        self.at.ranges[loop.var] = (0, extent - 1)
        self.at.env[loop.var] = index
        if extent == self.launch.extents[loop.kind]:
            self.body(loop.body)
        else:
            with self.where(self.b.compare("icmp slt", index, constant(I64, extent))):
                self.scoped(loop.body)
        del self.at.env[loop.var], self.at.ranges[loop.var]

    def barrier(self, _: Barrier) -> None:
        self.b.call("llvm.nvvm.barrier0", VOID, [])

    def memory(self, buffer: Buffer, kind: Type, size: int) -> Value:
        if buffer.role != "shared":
            return super().memory(buffer, kind, size)
        size = self.launch.shared[buffer.name] // dtype_bytes(buffer.tensor.dtype)
        number = [*self.launch.shared].index(buffer.name)
        name = f"{self.kernel.name}_shared{number}_{_symbol(buffer.name)}"
        return self.module.shared(name, f"[{size} x {kind}]")


def _symbol(name: str) -> str:
    """A name that PTX has: letters, digits and _ of ASCII."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


@lru_cache(maxsize=1)
def _machine() -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=GPU, features=FEATURES, opt=3)
