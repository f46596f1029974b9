"""④ From a schedule to loop IR: `lower(dag, steps) -> Program`.

Lowering is a sequence of passes, `PASSES`. Each pass of lowering takes and gives a well-formed
program, so the verifier may run after any of them (`verify=True`), and each result can be printed
(`autotune explain --stage loopir:PASS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from autotune.errors import CodegenError, UsageError
from autotune.loopir.containing import contain
from autotune.loopir.instructions import select_instructions
from autotune.loopir.lowering import Lowering
from autotune.loopir.nests import build_nests
from autotune.loopir.nodes import Buffer, Program
from autotune.loopir.packing import pack_constants
from autotune.loopir.peeling import peel_remainders
from autotune.loopir.predicate_hoisting import hoist_predicates
from autotune.loopir.prefetch_activations import prefetch_activations
from autotune.loopir.prefetch_constants import prefetch_constants
from autotune.loopir.restoring import restore_constants
from autotune.loopir.term_order import put_terms_outside
from autotune.loopir.verify import MalformedProgram
from autotune.loopir.verify import verify as verify_program
from autotune.schedule.exact import exact_steps
from autotune.schedule.replay import replay
from autotune.schedule.steps import Steps
from autotune.strides import dense
from autotune.te.dag import ComputeDAG


@dataclass(frozen=True, slots=True)
class Pass:
    """A named rewrite of a whole program, which keeps its results and its well-formedness."""

    name: str
    run: Callable[[Program, Lowering], Program]


def _nests(program: Program, lowering: Lowering) -> Program:
    return contain(build_nests(program, lowering), lowering)


PASSES = (
    Pass("nests", _nests),  # loops of every stage, regions, register tiles, tails
    Pass("hoist-predicates", hoist_predicates),  # conditions of a reduction leave its loops
    Pass("peel", peel_remainders),  # the last step of a loop apart, if it alone needs a condition
    Pass("prefetch-activations", prefetch_activations),  # operands of consumers and of next tiles
    Pass("pack", pack_constants),  # constants in the order in which kernels read them
    Pass("prefetch-constants", prefetch_constants),  # packed constants, by their distance
    Pass("restore", restore_constants),  # weights that only plain sums read, by parts of them
    Pass("instructions", select_instructions),  # annotated loops, once it is known what they read
    Pass("terms-outside", put_terms_outside),  # sums that a point writes out, term by term
)
"""All passes in their order. Predicates are hoisted before peeling, which would duplicate them, and
before prefetches are added, which are no part of the sum; constants are prefetched as packed."""


def lower(dag: ComputeDAG, steps: Steps, verify: bool = False, after: str = "") -> Program:
    """Loop IR of a scheduled task. Raises ScheduleError when the schedule has no program.

    `verify`: check the program after every pass; raises CodegenError, which names the pass.
    `after`: the pass to stop after, the last one by default; UsageError where there is none.
    """
    names = [each.name for each in PASSES]
    if after and after not in names:
        raise UsageError(f"lowering has no pass '{after}'", f"its passes are {', '.join(names)}")
    if not verify and not after:
        return _lowered(dag, steps)
    programs = stages(dag, steps, verify)
    return next(program for name, program in programs if name == (after or names[-1]))


@lru_cache(maxsize=128)
def _lowered(dag: ComputeDAG, steps: Steps) -> Program:
    """Of a task whose schedule is tried and then compiled."""
    *_, (_, program) = stages(dag, steps)
    return program


def stages(dag: ComputeDAG, steps: Steps, verify: bool = False) -> Iterator[tuple[str, Program]]:
    """The name of every pass and the program after it."""
    state = replay(dag, steps)
    exact = replay(dag, exact_steps(dag, steps)) if state.transformed else state
    return _run(Lowering(state, exact), verify)


def _run(lowering: Lowering, verify: bool) -> Iterator[tuple[str, Program]]:
    state = lowering.state
    placeholders = tuple(
        Buffer(p.tensor, "constant" if p.constant else "input", dense(p.tensor.shape))
        for p in state.dag.placeholders
    )
    program = Program(placeholders, (), (), state.derived)
    for each in PASSES:
        program = each.run(program, lowering)
        if verify:
            _require_well_formed(program, each.name)
        yield each.name, program


def _require_well_formed(program: Program, name: str) -> None:
    try:
        verify_program(program)
    except MalformedProgram as error:
        text = " ".join(str(error).split("\n", 1)[0].split())
        raise CodegenError(
            f"pass {name} made a malformed program: {text}",
            "this is a bug of autotune: report it, with the log and the task",
        ) from error
