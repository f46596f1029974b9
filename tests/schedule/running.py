"""Run lowered programs as machine code, in memory with guard zones."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from autotune.codegen.compile import compile_program
from autotune.codegen.image.jit import Library
from autotune.codegen.memory import aligned
from autotune.codegen.pack import pack
from autotune.dtypes import DTYPES
from autotune.loopir.nodes import Buffer, Program
from autotune.loopir.verify import verify
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.te.evaluate import derive
from tests.loopir.interp import interpret

Array = NDArray[Any]
GUARD_BYTES = 256
_CANARY = 0xA5


def random_inputs(dag: ComputeDAG, seed: int = 0) -> dict[str, Array]:
    """Standard normal floats, small integers, bools."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for p in dag.placeholders:
        shape, dtype = p.tensor.shape, p.tensor.dtype
        if DTYPES[dtype].is_float:
            out[p.name] = rng.standard_normal(shape).astype(DTYPES[dtype].numpy)
        else:
            low = 0 if dtype in ("bool", "uint8") else -20
            out[p.name] = rng.integers(low, 2 if dtype == "bool" else 200, shape).astype(dtype)
    return out


class Memory:
    """Storage of a buffer by its strides, between two guard zones."""

    def __init__(self, buffer: Buffer) -> None:
        self.raw = aligned((buffer.n_bytes + 2 * GUARD_BYTES,), "uint8")
        self.raw[:] = _CANARY
        start = self.raw[GUARD_BYTES : GUARD_BYTES + buffer.n_bytes]
        dtype = np.dtype(buffer.tensor.dtype)
        strides = [s * dtype.itemsize for s in buffer.strides]
        self.array: Array = as_strided(start.view(dtype), buffer.tensor.shape, strides)
        self.address = start.ctypes.data
        self.holes = np.ones(self.raw.size, bool)
        flat = as_strided(
            self.holes[GUARD_BYTES:], (*buffer.tensor.shape, dtype.itemsize), (*strides, 1)
        )
        flat[...] = False

    def intact(self) -> bool:
        """Whether nothing was written around and between the elements."""
        return bool((self.raw[self.holes] == _CANARY).all())


@lru_cache(maxsize=4)
def _library(program: Program, target: Target) -> Library:
    return Library([compile_program(program, target)])


def run_compiled(
    program: Program, inputs: Mapping[str, Array], target: Target, n_chunks: int = 1
) -> dict[str, Array]:
    """Outputs of the machine code; each parallel range is run in `n_chunks` parts, last first.

    `program.shared` buffers lie on one another.
    """
    library = _library(program, target)
    memory = {b.name: Memory(b) for b in program.buffers}
    memory |= dict.fromkeys(program.shared, memory[program.shared[0]]) if program.shared else {}
    values = derive(program.derived, inputs)
    for packing in program.packs:
        memory[packing.packed.name].array[...] = pack(packing, values[packing.source.name])
    for b in program.buffers:
        if b.name in values:
            memory[b.name].array[...] = values[b.name]
    for kernel in program.kernels:
        call = library.function(kernel.name, len(kernel.buffers))
        arguments = [ctypes.c_void_p(memory[n].address) for n in kernel.buffers]
        limits = [kernel.extent * n // n_chunks for n in range(n_chunks + 1)]
        for begin, end in reversed(list(itertools.pairwise(limits))):
            call(*arguments, begin, end)
    for name, held in memory.items():
        assert held.intact(), f"{name}: something was written outside of it"
    return {b.name: memory[b.name].array for b in program.buffers if b.role == "output"}


def assert_computes(
    program: Program,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    target: Target,
    n_chunks: Iterable[int],
    rtol: float = 3e-6,
) -> None:
    """A sound program that means `expected` within `rtol`; its machine code does what it means."""
    verify(program)
    meaning = interpret(program, inputs)
    assert_close(meaning, expected, rtol)
    for n in n_chunks:
        assert_close(run_compiled(program, inputs, target, n), meaning, rtol)


def assert_close(found: Mapping[str, Array], expected: Mapping[str, Array], rtol: float) -> None:
    """Every output within `rtol` of its largest magnitude; exact where it holds no floats."""
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        if want.dtype.kind != "f":
            np.testing.assert_array_equal(found[name], want, err_msg=name)
        else:
            scale = float(np.nanmax(np.abs(want), initial=0)) or 1.0
            np.testing.assert_allclose(found[name], want, rtol=0, atol=rtol * scale, err_msg=name)
