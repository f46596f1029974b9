"""Run the code of GPU kernels here: the LLVM IR that becomes PTX, as threads of this process.

Every thread of a block is a thread of Python in machine code of this CPU; indices are arguments,
shared memory is a variable of the module, a barrier waits for the others.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from autotune.codegen.memory import aligned
from autotune.gpu.launches import launches
from autotune.gpu.ptx import gpu_module
from autotune.loopir.nodes import Program

Array = NDArray[Any]
_REGISTERS = [f"{name}.{axis}" for name in ("ctaid", "tid") for axis in "xyz"]
_SEEN_AS_HANGING_S = 60.0


def run_as_threads(program: Program, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of a program for a GPU, kernel by kernel, block by block."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    waiting: list[threading.Barrier] = []
    barrier = ctypes.CFUNCTYPE(None)(lambda: waiting[-1].wait() and None)
    llvm.add_symbol("others", ctypes.cast(barrier, ctypes.c_void_p).value)
    module = llvm.parse_assembly(_for_cpu(gpu_module(program)[0]))
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    memory = {}
    for b in program.buffers:
        held = memory[b.name] = aligned((b.n_bytes,), "uint8").view(b.tensor.dtype)
        if b.name in inputs:
            held[:] = inputs[b.name].reshape(-1)
    with llvm.create_mcjit_compiler(module, machine) as engine:
        for kernel, launch in launches(program):
            pointers = [memory[n].ctypes.data for n in kernel.buffers]
            kinds = [ctypes.c_void_p] * len(pointers) + [ctypes.c_int32] * len(_REGISTERS)
            run = ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(kernel.name))
            n_threads = prod(launch.block)
            with ThreadPoolExecutor(n_threads) as pool:
                for at in np.ndindex(launch.grid):
                    waiting[:] = [threading.Barrier(n_threads, timeout=_SEEN_AS_HANGING_S)]
                    threads = np.ndindex(launch.block)
                    started = [pool.submit(run, *pointers, *at, *t) for t in threads]
                    for each in started:
                        each.result()
    return {
        b.name: memory[b.name].reshape(b.tensor.shape)
        for b in program.buffers
        if b.role == "output"
    }


def _for_cpu(text: str) -> str:
    indices = "".join(f", i32 %gpu.{name}" for name in _REGISTERS)
    text = re.sub(r"define ptx_kernel void (.*)\) nounwind", rf"define void \1{indices})", text)
    text = re.sub(r"declare .*@llvm\.nvvm\.read.*\n", "", text)
    text = re.sub(
        r"call i32 @llvm\.nvvm\.read\.ptx\.sreg\.(\w+\.\w)\(\)", r"add i32 %gpu.\1, 0", text
    )
    text = text.replace("@llvm.nvvm.barrier0", "@others").replace("addrspace(3) global", "global")
    return re.sub(r"addrspacecast \(ptr addrspace\(3\) (@\w+) to ptr\)", r"\1", text)
