"""⑪ The stages of a program on its way to machine code, as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.schedule.steps import Steps
    from autotune.target import Target
    from autotune.te.dag import ComputeDAG


def _te(dag: ComputeDAG, steps: Steps, target: Target) -> str:
    return str(dag)


def _schedule(dag: ComputeDAG, steps: Steps, target: Target) -> str:
    from autotune.schedule.replay import replay

    return str(replay(dag, steps))


def _steps(dag: ComputeDAG, steps: Steps, target: Target) -> str:
    from autotune.api.te.schedule import Schedule

    return Schedule(dag, target, steps).python()


def _python(dag: ComputeDAG, steps: Steps, target: Target) -> str:
    from autotune.loopir.lower import lower
    from autotune.loopir.python_text import print_python

    return print_python(lower(dag, steps))


def loopir_text(dag: ComputeDAG, steps: Steps, target: Target, after: str = "") -> str:
    """The loop IR, behind pass `after` of lowering or behind the last."""
    from autotune.loopir.lower import lower
    from autotune.loopir.printer import print_program

    return print_program(lower(dag, steps, after=after))


def _llvm(dag: ComputeDAG, steps: Steps, target: Target) -> str:
    from autotune.codegen.compile import optimised_module
    from autotune.loopir.lower import lower

    return str(optimised_module(lower(dag, steps), target))


def _asm(dag: ComputeDAG, steps: Steps, target: Target) -> str:
    from autotune.codegen.compile import assembly
    from autotune.loopir.lower import lower

    return assembly(lower(dag, steps), target)


STAGES: dict[str, Callable[[ComputeDAG, Steps, Target], str]] = {
    "te": _te,
    "schedule": _schedule,
    "steps": _steps,
    "python": _python,
    "loopir": loopir_text,
    "llvm": _llvm,
    "asm": _asm,
}
