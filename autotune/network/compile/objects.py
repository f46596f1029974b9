"""⑩ Machine code of the programs of a network, in several processes.

    compiled_objects(works, target, …)      relocatable objects, by the prefixes of their symbols

A module of its own: the processes that help import it, and neither networks nor models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from autotune.cache import FileStore, key_of, package_key
from autotune.codegen.compile import LLVM_VERSION, compile_program
from autotune.errors import CodegenError
from autotune.loopir.limited_stores import with_limited_stores
from autotune.loopir.nodes import Program
from autotune.measure.processes.cached_map import cached_map
from autotune.measure.processes.parallel_map import OnProgress
from autotune.measure.processes.process import ChildCrash
from autotune.network.compile.outlines import whole
from autotune.schedule.steps import Steps
from autotune.target import Target
from autotune.target.isa import HOST
from autotune.te.dag import ComputeDAG


@dataclass(frozen=True, slots=True)
class ObjectSource:
    """Source of an object file: a program, and the DAG and steps to make its bodies from."""

    prefix: str
    program: Program
    dag: ComputeDAG
    steps: Steps


def compiled_objects(
    works: Sequence[ObjectSource], target: Target, tell: OnProgress, store: FileStore | None
) -> dict[str, bytes]:
    """One object per distinct program, by its prefix.

    By processes: LLVM takes a lock and the emitter holds the interpreter's, so two threads are not
    faster than one (measured). Of another architecture by others than this one: LLVM ends the
    process where it cannot select an instruction.
    """
    of = package_key() if store else ""
    machine = json.dumps(target.to_json())
    keys = [key_of("object", of, LLVM_VERSION, machine, work.prefix) for work in works]
    is_foreign = target.architecture is not HOST
    make = partial(_object, target)
    try:
        objects = cached_map(make, works, keys, store, bytes, bytes, tell, is_foreign)
    except ChildCrash as crash:
        raise CodegenError(f"LLVM ended while it compiled for {target.cpu}: {crash}") from crash
    return {work.prefix: data for work, data in zip(works, objects, strict=True)}


def _object(target: Target, work: ObjectSource) -> bytes:
    program = with_limited_stores(whole(work.program, work.dag, work.steps), work.dag)
    return compile_program(program, target, work.prefix)
