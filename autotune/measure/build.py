"""⑦ A built candidate as it travels from builder to runner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

from autotune.codegen.compile import compile_program
from autotune.loopir.in_place import replaceable
from autotune.loopir.lower import lower
from autotune.loopir.nodes import Program, with_strides, without_bodies
from autotune.schedule.steps import Steps
from autotune.strides import padded_strides
from autotune.target import Target
from autotune.te.dag import ComputeDAG


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """Machine code with one symbol per kernel, and the program without its kernels' bodies."""

    code: bytes
    program: Program


Build: TypeAlias = Callable[[ComputeDAG, Steps, Target], BuiltProgram]
"""Picklable; runs in a builder process. Raises ScheduleError for an invalid schedule."""


def build_program(
    dag: ComputeDAG,
    steps: Steps,
    target: Target,
    overwritten: Mapping[str, Collection[str]] = MappingProxyType({}),
    dense: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> BuiltProgram:
    """Lower and compile one candidate, for inputs and outputs as a network stores them.

    `overwritten`: by task, the inputs that are dead afterwards. The result lies in the place of
    the first one where the program can do that. `dense`: by task, inputs and outputs whose rows are
    not padded.
    """
    program = lower(dag, steps)
    activations = {
        b.name: padded_strides(b.tensor.shape, b.tensor.dtype)
        for b in program.buffers
        if b.role in ("input", "output") and b.name not in dense.get(dag.key, ())
    }
    program = with_strides(program, activations)
    names = overwritten.get(dag.key, ())
    shared = next((pair for pair in replaceable(program) if pair[0] in names), ()) if names else ()
    program = replace(program, shared=shared)
    return BuiltProgram(compile_program(program, target), without_bodies(program))
