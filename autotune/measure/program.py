"""⑦ A built candidate as it travels from builder to run worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from autotune.codegen.compile import compile_program
from autotune.loopir.lower import lower
from autotune.loopir.nodes import Program
from autotune.schedule.steps import Steps
from autotune.target import Target
from autotune.te.dag import ComputeDAG


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """Machine code with one symbol per kernel, and the program without its kernels' bodies."""

    code: bytes
    program: Program


Build: TypeAlias = Callable[[ComputeDAG, Steps, Target], BuiltProgram]
"""Picklable; runs in a builder process. Raises ScheduleError for an invalid schedule."""


def build_program(dag: ComputeDAG, steps: Steps, target: Target) -> BuiltProgram:
    """Lower and compile one candidate."""
    program = lower(dag, steps)
    return BuiltProgram(compile_program(program, target), without_bodies(program))


def without_bodies(program: Program) -> Program:
    """The program as its caller sees it: buffers, packings, kernel signatures."""
    return replace(program, kernels=tuple(replace(k, body=()) for k in program.kernels))
