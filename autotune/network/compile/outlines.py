"""⑩ Outlines of the programs of tasks for a network, found again without lowering them.

    Outlines(target, store).of(dag, steps) ─► Outline    buffers, packings, and kernels: without
                                                         bodies, where the store knows it
    whole(outline.program, dag, steps)                   with the bodies, for machine code

An outline is a function of the definition of a task, its schedule, all names in both, and the
target.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from autotune.cache import FileStore, key_of, package_key
from autotune.loopir.codec import program_from_json, program_to_json
from autotune.loopir.in_place import Pairs, read_in_place
from autotune.loopir.lower import lower
from autotune.loopir.nodes import Program
from autotune.network.compile.durations import cycles
from autotune.schedule.steps import Steps, steps_text
from autotune.target import Target
from autotune.te.codec import dag_to_json
from autotune.te.dag import ComputeDAG


@dataclass(frozen=True, slots=True)
class Outline:
    """`program`: perhaps without bodies of kernels, but `in_place` and `cycles` come from these.

    See `loopir.in_place` and `durations`.
    """

    program: Program
    in_place: Pairs
    cycles: tuple[float, ...]


@dataclass
class Outlines:
    """Outlines of tasks: from `store`, else by lowering, which they are put into it for.

    `verify`: lower all, and check the loop IR after every pass.
    """

    target: Target
    store: FileStore | None = None
    verify: bool = False
    _texts: dict[int, tuple[ComputeDAG, str]] = field(default_factory=dict)

    def text(self, dag: ComputeDAG) -> str:
        """A task with all its names, written once."""
        if id(dag) not in self._texts:  # an id is one as long as its object lives
            self._texts[id(dag)] = dag, json.dumps(dag_to_json(dag), sort_keys=True)
        return self._texts[id(dag)][1]

    def of(self, dag: ComputeDAG, steps: Steps) -> Outline:
        """The outline of a scheduled task. Raises as `lower`."""
        if self.store is None or self.verify:
            return self._lowered(dag, steps)
        key = key_of("outline", *self._of, self.text(dag), steps_text(steps))
        known = self.store.get(key)
        if known is not None:
            return _decoded(known)
        made = self._lowered(dag, steps)
        self.store.put(key, _encoded(made))
        return made

    def _lowered(self, dag: ComputeDAG, steps: Steps) -> Outline:
        program = lower(dag, steps, self.verify)
        spent = tuple(cycles(kernel, self.target) for kernel in program.kernels)
        return Outline(program, read_in_place(program), spent)

    @cached_property
    def _of(self) -> tuple[str, str]:
        return package_key(), json.dumps(self.target.to_json())


def _encoded(outline: Outline) -> bytes:
    """An outline, without bodies of kernels, as JSON."""
    data = {
        "program": program_to_json(outline.program),
        "in_place": outline.in_place,
        "cycles": outline.cycles,
    }
    return json.dumps(data).encode()


def _decoded(content: bytes) -> Outline:
    data: Any = json.loads(content)
    pairs = tuple((read, written) for read, written in data["in_place"])
    return Outline(program_from_json(data["program"]), pairs, tuple(data["cycles"]))


def whole(program: Program, dag: ComputeDAG, steps: Steps) -> Program:
    """`program` with the bodies of its kernels, which it may lack."""
    if any(kernel.body for kernel in program.kernels):
        return program
    return replace(program, kernels=lower(dag, steps).kernels)
