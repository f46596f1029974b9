"""⑪ Schedules by hand: the steps of the log as methods, one primitive after the other.

    s = task.schedule()
    i0, i1 = s["out"].split("i", 16)
    s["out"].reorder(i0, "j", i1).parallel(i0).vectorize(i1)
    print(s)                    # the loops
    print(s.lower())            # the loop IR
    print(s.source("asm"))

A step that cannot be taken raises ScheduleError, with the step and the loops that there are, and
leaves the schedule as it was. `str(s.python())` is the text that makes the schedule again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from autotune.brief import brief, brief_value
from autotune.calls import checked
from autotune.codegen.compile import assembly, optimised_module
from autotune.errors import ScheduleError, UsageError
from autotune.loopir.lower import lower
from autotune.loopir.nodes import Program
from autotune.loopir.printer import print_program
from autotune.loopir.python_text import print_python
from autotune.schedule.replay import apply, replay
from autotune.schedule.state import Stage, State
from autotune.schedule.steps import (
    NEXT_PANEL,
    Annotate,
    Bind,
    CacheRead,
    CacheTerms,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    FlatTaps,
    Fuse,
    Interleave,
    NarrowProducts,
    Pack,
    Parallel,
    Parts,
    Prefetch,
    Reorder,
    RFactor,
    Split,
    Step,
    Steps,
    WholeTerms,
    Winograd,
    steps_to_json,
)
from autotune.target import Target
from autotune.te.dag import ComputeDAG
from autotune.te.tvm_names import CACHE_WRITE, SCHEDULE, SPLIT, STAGE, TILE, refuse, with_hints


class Schedule:
    """A computation and the steps that turn it into a program."""

    @checked
    def __init__(self, dag: ComputeDAG, target: Target, steps: Steps = ()) -> None:
        self.dag = dag
        self.target = target
        self._steps: Steps = ()
        self._state = replay(dag, ())
        for step in steps:
            self.apply(step)

    @property
    def steps(self) -> Steps:
        """The steps as the log has them."""
        return self._steps

    @property
    def state(self) -> State:
        """The loops that the steps make."""
        return self._state

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of all stages, in the order in which they are computed."""
        return tuple(self._state.stages)

    def __getitem__(self, stage: str) -> StageSchedule:
        if stage not in self._state.stages:
            raise ScheduleError(
                f"there is no stage '{stage}'", f"the stages are {', '.join(self.stages)}"
            )
        return StageSchedule(self, stage)

    if not TYPE_CHECKING:  # else any attribute would have a type

        def __getattr__(self, name: str) -> NoReturn:
            of_stages = {n: f's["C"].{n}(…)' for n in vars(StageSchedule) if n[0] != "_"}
            refuse("Schedule", name, of_stages | SCHEDULE)

    def __repr__(self) -> str:
        return f"Schedule({len(self._steps)} steps; stages: {brief_value(self.stages)})"

    def __str__(self) -> str:
        return str(self._state)

    def _repr_html_(self) -> str:
        from autotune.reporting.blocks import Listing
        from autotune.reporting.html import fragment

        return fragment([Listing("Loops", str(self), True), Listing("Steps", self.python())])

    def apply(self, *steps: Step) -> Schedule:
        """Take `steps`, or none of them: ScheduleError names the step, its loop and the reason."""
        state = self._state
        for step in steps:
            try:
                state = apply(state, step)
            except ScheduleError as error:
                text = f"{python_text(step)}: {error.message}"
                raise ScheduleError(text, error.hint or _loops_hint(state, step)) from None
        self._state = state
        self._steps = (*self._steps, *steps)
        return self

    def undo(self) -> Schedule:
        """Take the last step back."""
        self._steps = self._steps[:-1]
        self._state = replay(self.dag, self._steps)
        return self

    def cache_read(
        self, tensor: str, reader: str, name: str = "", dtype: str = "", scope: str = ""
    ) -> StageSchedule:
        """A stage that copies the part of `tensor` which `reader` reads, as the wider `dtype` if
        one is given; returns the new stage.

        `scope`: "shared" for a copy that the threads of a block of a GPU make and read together:
        place it by `compute_at`, and `bind` its loops to the threads.
        """
        name = name or f"{tensor}.{scope or 'copy'}"
        self.apply(CacheRead(tensor, reader, name, dtype, scope))
        return self[name]

    def cache_terms(self, tensor: str, reader: str, terms: int, name: str = "") -> StageSchedule:
        """A stage that copies `tensor` with `terms` of the sum `reader` side by side: how matrix
        instructions read their second operand; returns the new stage."""
        name = name or f"{tensor}.terms"
        self.apply(CacheTerms(tensor, reader, name, terms))
        return self[name]

    def lower(self, verify: bool = False, after: str = "") -> LoopProgram:
        """The loop IR. Raises ScheduleError where the schedule has no program.

        `verify`: check that the program is well formed after every pass of lowering; raises
        CodegenError, which names the pass. `after`: stop after this pass, one of
        `autotune.loopir.lower.PASSES`; raises UsageError for another name.
        """
        return LoopProgram(self._lowered(verify, after))

    def source(self, language: str = "loops") -> str:
        """The program as text: `loops` (loop IR), `python`, `llvm`, `asm`; `ptx` for a GPU.

        Raises UsageError for another word, ScheduleError where the schedule has no program, for a
        GPU CodegenError where a function needs the C library.
        """
        if language not in _SOURCES:
            raise UsageError(f"there is no '{language}' text", f"choose of {', '.join(_SOURCES)}")
        return _SOURCES[language](self._lowered(), self.target)

    def _lowered(self, verify: bool = False, after: str = "") -> Program:
        try:
            return lower(self.dag, self._steps, verify, after)
        except ScheduleError as error:
            raise _with_step(error, self.dag, self._steps) from None

    def python(self) -> str:
        """Python text that makes this schedule: a function `schedule(s)`."""
        lines = [f"    {python_text(step)}" for step in self._steps] or ["    pass"]
        return "\n".join(["def schedule(s):", *lines, ""])


@brief
@dataclass(frozen=True, slots=True)
class LoopProgram:
    """A lowered schedule; printing it shows the loop IR."""

    program: Program

    def __str__(self) -> str:
        return print_program(self.program).rstrip("\n")


class StageSchedule:
    """One stage of a schedule. Loops are called as in `print(s)`; all methods check at once."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self._schedule = schedule
        self.name = name

    if not TYPE_CHECKING:  # else any attribute would have a type

        def __getattr__(self, name: str) -> NoReturn:
            refuse("a stage", name, STAGE)

    @property
    def stage(self) -> Stage:
        """Loops, outermost first, and where the stage is computed."""
        return self._schedule.state[self.name]

    @property
    def loops(self) -> tuple[str, ...]:
        """Names of the loops, outermost first."""
        return tuple(it.name for it in self.stage.iters)

    @with_hints(SPLIT)
    def split(self, loop: str, *factors: int, tail: str = "shift") -> tuple[str, ...]:
        """Split `loop` into one more than `factors`, which are the inner extents, outermost first.

        `tail`: where the innermost factor does not divide, `shift` moves the last tile inwards,
        `split` runs a second, smaller one. Returns the names of the new loops.
        """
        self._require_sizes(loop, factors)
        self._take(Split(self.name, loop, factors, tail))
        return tuple(f"{loop}.{n}" for n in range(len(factors) + 1))

    def fuse(self, outer: str, inner: str) -> str:
        """Make one loop of two that stand directly inside one another; returns its name."""
        step = Fuse(self.name, outer, inner)
        self._take(step)
        return step.loop

    def reorder(self, *loops: str) -> StageSchedule:
        """Put `loops` into this order, outermost first, at the places that they have together."""
        unknown = [n for n in loops if n not in self.loops]
        if unknown or len(set(loops)) != len(loops):
            wrong = f"there is no loop '{unknown[0]}'" if unknown else "a loop is named twice"
            raise ScheduleError(f"reorder of {self.name}: {wrong}", self._hint())
        named = iter(loops)
        order = tuple(next(named) if n in loops else n for n in self.loops)
        return self._take(Reorder(self.name, order))

    @with_hints(TILE)
    def tile(self, outer: str, inner: str, rows: int, columns: int) -> tuple[str, str, str, str]:
        """Split both loops and put the tiles inside: outer.0, inner.0, outer.1, inner.1."""
        self._require_sizes(outer, (rows,))
        self._require_sizes(inner, (columns,))
        names = (f"{outer}.0", f"{inner}.0", f"{outer}.1", f"{inner}.1")
        replaced = {outer: (names[0], names[2]), inner: (names[1], names[3])}
        split = [part for n in self.loops for part in replaced.get(n, (n,))]
        named = iter(names)
        order = tuple(next(named) if n in names else n for n in split)
        self._take(
            Split(self.name, outer, (rows,)),
            Split(self.name, inner, (columns,)),
            Reorder(self.name, order),
        )
        return names

    def parallel(self, *loops: str) -> StageSchedule:
        """Divide these loops, the outermost ones of a root stage, among the threads."""
        if loops != self.loops[: len(loops)]:
            raise ScheduleError(
                f"parallel of {self.name}: {', '.join(loops)} are not its outermost loops",
                f"reorder first; {self._hint()}",
            )
        return self._take(Parallel(self.name, len(loops)))

    def vectorize(self, loop: str) -> StageSchedule:
        """Make one vector of `loop`; its extent is the number of lanes."""
        return self._take(Annotate(self.name, loop, "vectorize"))

    def dot(self, loop: str) -> StageSchedule:
        """Add up the terms of `loop`, the innermost one, by one instruction of the CPU.

        For sums of products of narrow factors: four terms of uint8 · int8 in int32, two of
        bfloat16 in float32. A CPU without such an instruction runs the terms one after the other.
        """
        return self._take(Annotate(self.name, loop, "dot"))

    def matrix(self, *loops: str) -> StageSchedule:
        """Multiply matrices in registers (AMX): `loops` are its rows, and groups of terms.

        For sums of products of bytes or bfloat16. With columns (`vectorize`) and the terms of a
        group (`dot`) inside they are one instruction, which takes up to 16 of each. A CPU without
        such an instruction runs the loops one by one.
        """
        return self._take(*(Annotate(self.name, loop, "tile") for loop in loops))

    def unroll(self, *loops: str) -> StageSchedule:
        """Expand these loops in full."""
        return self._take(*(Annotate(self.name, loop, "unroll") for loop in loops))

    def bind(self, loop: str, index: str) -> StageSchedule:
        """Run the iterations of `loop` on a GPU: each by the blocks, or by the threads of a block,
        of one value of `index` (`blockIdx.x`, `threadIdx.x`, …). See `Schedule.source`, "ptx"."""
        return self._take(Bind(self.name, loop, index))

    def compute_at(self, target: str, loop: str) -> StageSchedule:
        """Compute the region that `loop` of stage `target` needs of this stage inside that loop."""
        return self._take(ComputeAt(self.name, target, loop))

    def inline(self) -> None:
        """Substitute this pointwise stage into its readers; it is a stage no longer."""
        self._take(ComputeInline(self.name))

    @with_hints(CACHE_WRITE)
    def cache_write(self, name: str = "") -> StageSchedule:
        """Compute into a new stage, which this one then copies; returns the new stage."""
        return self._new(CacheWrite(self.name, name or f"{self.name}.sum"))

    def rfactor(self, factor: int, name: str = "") -> StageSchedule:
        """Partial results side by side, by the last reduction axis; returns their stage."""
        return self._new(RFactor(self.name, factor, name or f"{self.name}.rf"))

    def parts(self, factor: int, name: str = "") -> StageSchedule:
        """Cut the first reduction axis into consecutive parts (split-K); returns their stage."""
        return self._new(Parts(self.name, factor, name or f"{self.name}.parts"))

    def interleave(self, factor: int, name: str = "") -> StageSchedule:
        """Partial results as neighbours along the innermost axis; returns their stage."""
        return self._new(Interleave(self.name, factor, name or f"{self.name}.parts"))

    def winograd(self, taps: Sequence[str], tile: int) -> None:
        """Rewrite a convolution by minimal filtering F(tile, ·) along the reduction axes `taps`."""
        self._take(Winograd(self.name, tuple(taps), tile))

    def narrow_products(self, n_products: int = 3) -> None:
        """Rewrite a sum of float32 products by 3 or 6 products of bfloat16 parts each."""
        self._take(NarrowProducts(self.name, n_products))

    def flat_taps(self) -> None:
        """Read the rows of windows of a sum from a stage in which they are one dimension: few
        channels are then as many terms as a row of the window has."""
        self._take(FlatTaps(self.name))

    def whole_terms(self, extent: int) -> None:
        """Put zeros behind both factors of a sum, each in a stage, up to `extent` terms:
        instructions that add up several products take all terms in groups."""
        self._take(WholeTerms(self.name, extent))

    def pack(self, tensor: str, block: int = 0) -> StageSchedule:
        """Store constant `tensor` in the order in which this stage reads it.

        `block`: in blocks of so many neighbours of the last dimension instead, one block after
        another, whatever the loops are.
        """
        return self._take(Pack(tensor, self.name, block))

    def prefetch(self, tensor: str, distance: int | str) -> StageSchedule:
        """Prefetch packed `tensor` so many bytes ahead; "next": the next weight panel."""
        if distance != "next" and not (isinstance(distance, int) and distance >= 0):
            raise ScheduleError(
                f"prefetch of {tensor} by {distance!r}", 'a distance is in bytes, or "next"'
            )
        dag = self._schedule.state.dag
        known = [p.name for p in dag.placeholders] + list(self._schedule.stages)
        if tensor not in known:
            raise ScheduleError(
                f"prefetch of {tensor}: there is no such tensor", f"there are {', '.join(known)}"
            )
        far = NEXT_PANEL if isinstance(distance, str) else distance
        return self._take(Prefetch(tensor, self.name, far))

    def _new(self, step: CacheWrite | RFactor | Parts | Interleave) -> StageSchedule:
        self._schedule.apply(step)
        return self._schedule[step.name]

    def _take(self, *steps: Step) -> StageSchedule:
        self._schedule.apply(*steps)
        return self

    def _require_sizes(self, loop: str, factors: Sequence[int]) -> None:
        given: Sequence[object] = factors
        whole = all(isinstance(f, int) and not isinstance(f, bool) for f in given)
        if not factors or not whole or min(factors) < 1:
            raise ScheduleError(
                f"split of {self.name}'s loop '{loop}' by {factors}: "
                "factors are whole numbers above 0",
                "the extents of the inner loops, as in split('i', 4, 16)",
            )

    def _hint(self) -> str:
        return f"the loops of {self.name} are {', '.join(self.loops)}"


def _with_step(error: ScheduleError, dag: ComputeDAG, steps: Steps) -> ScheduleError:
    """`error` of lowering, with the step from which on no program was left, and a way out."""
    n = next((n for n in range(len(steps) - 1, -1, -1) if _has_program(dag, steps[:n])), None)
    if n is None:
        return error
    way = f"step {n + 1} of {len(steps)} made it so: leave it out, or choose other loops"
    hint = f"{error.hint}; {way}" if error.hint else way
    return ScheduleError(f"{python_text(steps[n])}: {error.message}", hint)


def _has_program(dag: ComputeDAG, steps: Steps) -> bool:
    try:
        lower(dag, steps)
    except ScheduleError:
        return False
    return True


def _loops_hint(state: State, step: Step) -> str:
    name = getattr(step, "stage", "")
    if name not in state.stages:
        return f"the stages are {', '.join(state.stages)}"
    return f"the loops of {name} are {', '.join(it.name for it in state[name].iters)}"


def python_text(step: Step) -> str:
    """The call that takes `step`: `s["out"].split("i", 16)`."""
    (given,) = steps_to_json((step,))
    name, stage = given.pop("step"), given.pop("stage", None)
    on = "s" if stage is None else f's["{stage}"]'
    return f"{on}.{_call_text(step, name, given.values())}"


def _call_text(step: Step, name: str, given: Iterable[object]) -> str:
    """`given`: the fields of a step but for its stage."""
    match step:
        case Split(iter=loop, factors=factors, tail=tail):
            more = "" if tail == "shift" else f', tail="{tail}"'
            return f"split({_literals(loop, *factors)}{more})"
        case Reorder(iters=iters):
            return f"reorder({_literals(*iters)})"
        case Parallel(stage=stage, n=n):
            return f'parallel(*s["{stage}"].loops[:{n}])'
        case Annotate(iter=loop, kind=kind):
            return f"{'matrix' if kind == 'tile' else kind}({_literals(loop)})"
        case ComputeInline():
            return "inline()"
        case CacheRead(tensor=tensor, reader=reader, name=stage, dtype=dtype, scope=scope) if scope:
            return f'cache_read({_literals(tensor, reader, stage, dtype)}, scope="{scope}")'
        case CacheTerms(tensor=tensor, reader=reader, name=stage, terms=terms):
            return f"cache_terms({_literals(tensor, reader, terms, stage)})"
        case Prefetch(tensor=tensor, distance=distance):
            is_next = isinstance(distance, int) and distance == NEXT_PANEL
            return f"prefetch({_literals(tensor, 'next' if is_next else distance)})"
    return f"{name}({_literals(*given)})"


def _literals(*values: object) -> str:
    """Texts, numbers and lists of these as Python has them."""
    return ", ".join(map(_literal, values))


def _literal(value: object) -> str:
    match value:
        case str():
            return f'"{value}"'
        case list():
            return f"[{_literals(*value)}]"
    return str(value)


_SOURCES: dict[str, Callable[[Program, Target], str]] = {
    "loops": lambda program, target: print_program(program),
    "python": lambda program, target: print_python(program),
    "llvm": lambda program, target: str(optimised_module(program, target)),
    "asm": assembly,
    "ptx": lambda program, target: str(import_module("autotune.gpu.ptx").ptx(program)),
}
