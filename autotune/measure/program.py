"""⑦ A built candidate as it travels from builder to run worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from autotune.codegen.compile import compile_program
from autotune.loopir.lower import lower
from autotune.loopir.nodes import Program, with_strides
from autotune.schedule.steps import Steps
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.te.pitch import spaced


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """Machine code with one symbol per kernel, and the program without its kernels' bodies."""

    code: bytes
    program: Program


Build: TypeAlias = Callable[[ComputeDAG, Steps, Target], BuiltProgram]
"""Picklable; runs in a builder process. Raises ScheduleError for an invalid schedule."""


def build_program(dag: ComputeDAG, steps: Steps, target: Target) -> BuiltProgram:
    """Lower and compile one candidate, for inputs and outputs as a network stores them."""
    program = lower(dag, steps)
    activations = {
        b.name: spaced(b.tensor.shape, b.tensor.dtype)
        for b in program.buffers
        if b.role in ("input", "output")
    }
    program = with_strides(program, activations)
    return BuiltProgram(compile_program(program, target), without_bodies(program))


def without_bodies(program: Program) -> Program:
    """The program as its caller sees it: buffers, packings, kernel signatures."""
    return replace(program, kernels=tuple(replace(k, body=()) for k in program.kernels))
