"""Schedules drawn at random, wilder than any that search would propose."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from autotune.errors import ScheduleError
from autotune.loopir.lower import lower
from autotune.loopir.nodes import Program
from autotune.schedule.replay import apply, replay
from autotune.schedule.state import State
from autotune.schedule.steps import (
    NEXT_PANEL,
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Fuse,
    Interleave,
    Pack,
    Parallel,
    Parts,
    Prefetch,
    Reorder,
    RFactor,
    Split,
    Step,
    Steps,
    Winograd,
)
from autotune.schedule.winograd import convolution
from autotune.te.dag import Compute, ComputeDAG

UNROLL_LIMIT = 24


def random_steps(dag: ComputeDAG, rng: Random) -> Steps:
    """Steps that replay; lowering may still refuse them with a ScheduleError."""
    draw = _Draw(dag, rng)
    draw.rewrite()
    for name in reversed([s.name for s in draw.state.stages.values()]):
        draw.place(name)
        draw.loops(name)
    draw.constants()
    return tuple(draw.steps)


class _Draw:
    def __init__(self, dag: ComputeDAG, rng: Random) -> None:
        self.dag, self.rng = dag, rng
        self.steps: list[Step] = []
        self.state: State = replay(dag, ())
        self.fusing = Random(len(dag.ops))

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def add(self, step: Step) -> bool:
        try:
            self.state = apply(self.state, step)
        except ScheduleError:
            return False
        self.steps.append(step)
        return True

    def rewrite(self) -> None:
        for op in self.dag.computes:
            found = convolution(self.dag, op.name)
            if found and self.chance(0.4):
                taps = tuple(p.tap.name for p in found.pairs if self.chance(0.8))
                if taps:
                    self.add(Winograd(op.name, taps, self.rng.choice((2, 3, 4))))
        for op in self.dag.computes:
            if op.name not in self.dag.outputs and not op.reduce_axes and self.chance(0.4):
                self.add(ComputeInline(op.name))
        for op in self.state.dag.computes:
            if op.reduce_axes and self.chance(0.25):
                factors = [f for f in range(2, 17) if op.reduce_axes[-1].extent % f == 0]
                if factors:
                    self.add(RFactor(op.name, self.rng.choice(factors), f"{op.name}.rf"))
        for op in self.state.dag.computes:
            if op.reduce_axes and self.chance(0.25):
                self.add(Parts(op.name, self.rng.choice((2, 3, 4, 8)), f"{op.name}.p"))
        for op in self.state.dag.computes:
            step = Interleave(op.name, self.rng.choice((2, 3, 4, 8)), f"{op.name}.parts")
            if op.reduce_axes and op.axes and self.chance(0.25) and self.add(step):
                self.add(ComputeInline(op.name))
        for op in self.state.dag.computes:
            if self.chance(0.2):
                self.add(CacheWrite(op.name, f"{op.name}.cache"))
        for op in self.state.dag.computes:
            if op.reads and self.chance(0.15):
                tensor = self.rng.choice(op.reads).tensor.name
                self.add(CacheRead(tensor, op.name, f"{tensor}.for.{op.name}"))

    def place(self, name: str) -> None:
        readers = self.state.dag.consumers(name)
        if name in self.dag.outputs or not readers or not self.chance(0.75):
            return
        hosts = [self.state[r.name] for r in readers]
        hosts += [self.state[s.attach.target] for s in hosts if s.attach]
        places = [(s.name, it.name) for s in hosts for it in s.iters]
        self.rng.shuffle(places)
        for target, it in places[:4]:
            if self.add(ComputeAt(name, target, it)):
                return

    def fuse(self, name: str) -> None:
        pairs = [*pairwise(i.name for i in self.state[name].iters)]
        self.fusing.shuffle(pairs)
        for outer, inner in pairs:
            if self.add(Fuse(name, outer, inner)):
                return

    def loops(self, name: str) -> None:
        for axis in self.state[name].axes:
            self.split(name, axis.name)
        iters = list(self.state[name].iters)
        if self.chance(0.8):
            self.order(name)
        if self.fusing.random() < 0.3:
            self.fuse(name)
        iters = list(self.state[name].iters)
        wide = iters and iters[-1].kind == "spatial" and int(iters[-1].extent) <= 32
        if wide and self.chance(0.7):
            self.add(Annotate(name, iters[-1].name, "vectorize"))
        budget = UNROLL_LIMIT
        for it in reversed(iters[:-1]):
            budget //= max(1, int(it.extent))
            if budget < 1 or not self.chance(0.7):
                break
            self.add(Annotate(name, it.name, "unroll"))
        spatial = 0
        while spatial < len(iters) and iters[spatial].kind == "spatial":
            spatial += 1
        if self.state[name].attach is None:
            self.add(Parallel(name, self.rng.randint(0, spatial)))

    def split(self, name: str, loop: str) -> None:
        it = self.state[name].iter(loop)
        if not self.chance(0.6):
            return
        sizes = [1, 2, 3, 4, 8, 16, max(1, int(it.extent) - 1)]
        factors = tuple(self.rng.choice(sizes) for _ in range(self.rng.choice([1, 1, 2, 3])))
        tail = "split" if it.kind == "reduce" or self.chance(0.5) else "shift"
        self.add(Split(name, loop, factors, tail))
        if self.chance(0.15):
            self.split(name, f"{loop}.{self.rng.randint(0, len(factors))}")

    def order(self, name: str) -> None:
        iters = list(self.state[name].iters)
        if self.chance(0.3):
            self.rng.shuffle(iters)
        else:  # outer levels first, a spatial loop last
            iters.sort(key=lambda i: (i.name.rpartition(".")[2].zfill(3), self.rng.random()))
            last = [i for i in iters if i.kind == "spatial"][-1:]
            iters = [i for i in iters if i not in last] + last
        self.add(Reorder(name, tuple(i.name for i in iters)))

    def constants(self) -> None:
        for op in self.state.dag.computes:
            assert isinstance(op, Compute)
            for tensor in {x.tensor.name for x in op.reads}:
                source = next((p for p in self.dag.placeholders if p.name == tensor), None)
                if source is not None and source.constant and self.chance(0.6):
                    self.add(Pack(tensor, op.name))
                    if self.chance(0.4):
                        distance = self.rng.choice([0, 64, 256, NEXT_PANEL])
                        self.add(Prefetch(tensor, op.name, distance))


def lowered(dag: ComputeDAG, seed: int) -> Program:
    """The first program that a random schedule has, from `seed` on."""
    for n in range(seed, seed + 100):
        try:
            return lower(dag, random_steps(dag, Random(n)), verify=True)
        except ScheduleError:
            continue
    raise AssertionError("no random schedule has a program")
