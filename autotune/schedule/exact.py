"""③ The same schedule with sums as defined: the fallback where another algorithm must not run.

    winograd(conv); inline(conv); relu tiled    ->    conv.exact inside of relu's register tile;
                                                      relu tiled

Loops of the stages that both computations have stay the same, so the two can take turns within one
loop nest. What was computed for the transforms only, such as a copy of the padding, is inlined.
"""

from __future__ import annotations

from itertools import takewhile

from autotune.errors import ScheduleError
from autotune.schedule.replay import apply, replay
from autotune.schedule.state import Stage, State, initial
from autotune.schedule.steps import (
    Algorithm,
    Annotate,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Pack,
    Prefetch,
    Reorder,
    Step,
    Steps,
)
from autotune.te.dag import Compute, ComputeDAG

_MAX_UNROLLED = 8


def exact_name(stage: str) -> str:
    """The stage that holds the plain sum of convolution `stage`."""
    return f"{stage}.exact"


def exact_steps(dag: ComputeDAG, steps: Steps) -> Steps:
    """`steps` without such algorithms; constants are read as they lie.

    Raises ScheduleError where the sum has several readers, so that no loop nest is its place.
    """
    return _Exact(dag, steps).steps()


class _Exact:
    def __init__(self, dag: ComputeDAG, steps: Steps) -> None:
        self.filtered = replay(dag, steps)
        self.state = initial(dag)
        self.taken: list[Step] = []
        self.given = steps

    def steps(self) -> Steps:
        sums = [step.stage for step in self.given if isinstance(step, Algorithm)]
        for step in self.given:
            self._take(step)
        for name in sums:
            self._inline_producers(exact_name(name))
        for name in sums:
            self._place(exact_name(name))
        return tuple(self.taken)

    def _take(self, step: Step) -> None:
        """Take over steps that still have a meaning; unrolling stays with the fast computation."""
        if isinstance(step, Algorithm):
            self._add(CacheWrite(step.stage, exact_name(step.stage)))
            return
        if isinstance(step, Pack | Prefetch) or _unrolls(step):
            return
        try:
            self._add(step)
        except ScheduleError:
            return  # of a stage, loop or tensor that the algorithm made

    def _add(self, step: Step) -> None:
        self.state = apply(self.state, step)
        self.taken.append(step)

    def _inline_producers(self, name: str) -> None:
        """Let the sum read from memory: inputs, and results of kernels before."""
        for op in self._producers(name):
            stays = op.name in self.state.dag.outputs or self._is_kernel(op.name)
            if not op.reduce_axes and not stays:
                self._add(ComputeInline(op.name))
                self._inline_producers(name)
                return

    def _producers(self, name: str) -> list[Compute]:
        tensors = {load.tensor.name for load in self.state[name].op.reads}
        return [op for op in self.state.dag.computes if op.name in tensors]

    def _is_kernel(self, name: str) -> bool:
        stage = self.filtered.stages.get(name)
        return stage is not None and stage.attach is None

    def _place(self, name: str) -> None:
        """Compute a row of the sum at a time, around its whole reduction, in the register tile."""
        reader = self._only_reader(name)
        while reader in self.filtered.stages and self.filtered[reader].op.reduce_axes:
            self._add(ComputeInline(reader))  # the sum by the algorithm, here a copy of this one
            reader = self._only_reader(name)
        host = self.filtered.stages.get(reader) or self.state[reader]
        self._add(ComputeAt(name, host.name, _around_tile(host)))
        op = self.state[name].op
        spatial, last = [a.name for a in op.axes[:-1]], [a.name for a in op.axes[-1:]]
        terms = tuple(a.name for a in op.reduce_axes)
        self._add(Reorder(name, (*spatial[:-1], *terms, *spatial[-1:], *last)))
        if spatial and self._extent(name, spatial[-1]) <= _MAX_UNROLLED:
            self._add(Annotate(name, spatial[-1], "unroll"))
        lane = host.iters[-1]
        is_vector = lane.annotation == "vectorize"
        if last and is_vector and self._extent(name, last[0]) == int(lane.extent):
            self._add(Annotate(name, last[0], "vectorize"))

    def _only_reader(self, name: str) -> str:
        readers = [op.name for op in self.state.dag.consumers(name)]
        if len(readers) != 1:
            raise ScheduleError(f"{name} has {len(readers)} readers: it has no place of its own")
        return readers[0]

    def _extent(self, name: str, loop: str) -> int:
        return int(self.state[name].iter(loop).extent)


def _unrolls(step: Step) -> bool:
    return isinstance(step, Annotate) and step.kind == "unroll"


def _around_tile(host: Stage) -> str:
    """The loop of `host` around those that are unrolled or vectorised."""
    tile = [*takewhile(lambda it: it.annotation, reversed(host.iters))]
    return host.iters[max(0, len(host.iters) - len(tile) - 1)].name


def host_of(exact: State, name: str) -> str:
    """The kernel in which the plain sum of convolution `name` is computed."""
    return exact.root_of(exact_name(name))
