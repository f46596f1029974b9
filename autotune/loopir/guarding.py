"""④ Winograd tiling and the like where data are finite and bounded, else the sum as defined.

    for t: x2[…] = transforms               for t: size = 0
           products, inverse, consumer  ->         x2[…] = transforms; size += watched x2[…]²
                                                   if size <= LIMIT: products, inverse, consumer
                                                   else: consumer of the plain sum

Every result of a tile is computed from every element that the tile reads: one NaN, infinity or
1e38 among them would change results that do not depend on it. The sum of squares `size` covers the
transformed points 0, 1 and ∞ along each window axis, of every channel. Together these points depend
on every element of the tile.

- A NaN or infinity times a coefficient other than 0, plus anything, is not finite; neither is its
  square, nor a sum with that. So `size <= LIMIT` proves that all elements are finite.
- An element above √LIMIT = 2²⁸ = 2.7e8 among small ones makes a watched point as large, because
  with up to six points no coefficient is below 1; the same holds for tiles of random or of equal
  elements. Larger elements that cancel to the last bit at all watched points (rows x, -x, x, … of
  few bits) are not detected. Their results are as exact as others up to 1e36.
- Smaller elements are transformed. Results that do not read such an element carry its rounding
  error, 1e-7 to 1e-6 of its size: the error of the algorithm relative to the largest value.
- With weights up to `MAX_WEIGHT` no product of bounded data leaves the range of float32, and
  neither does a sum of 2³² of them.

An element on which two tiles overlap is stored by both, in an order that differs from run to run.
Where only one of the tiles has unbounded data, the two values differ in rounding.

The decision precedes all stores, so an operand that the result overwrites is still intact. Where
the data are transformed by another kernel, that kernel stores one flag, 0 or 1, per iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial, reduce

from autotune.errors import ScheduleError
from autotune.loopir.instance import Instance
from autotune.loopir.nodes import Alloc, Body, Buffer, For, If, Stmt, Store
from autotune.schedule.exact import host_of
from autotune.schedule.state import Stage, State
from autotune.strides import dense
from autotune.te.expr import (
    Expr,
    Load,
    Tensor,
    Var,
    add,
    binary,
    both,
    cast,
    compare,
    f32,
    idx,
    mul,
    select,
)

MAX_DATA = 2.0**28
"""Transformed data that are larger are not bounded."""
LIMIT = MAX_DATA**2
"""Largest sum of squares of the transformed data of one decision. Blocks of a million elements of
order 10⁴ are below it, elements of order 10⁸ never."""
MAX_WEIGHT = 2.0**28
"""Calls with larger weights, or weights that are not finite, use plain sums only."""
_FLAG_LANES = 8


@dataclass(frozen=True)
class Guards:
    """Guards of transformed data: kernels that may compute the plain sum instead.

    `hosts`: by stage of transformed data, the kernel that may compute the plain sum instead.
    `flags`: the flags of data that are transformed in another kernel than their host.
    """

    state: State
    exact: State
    hosts: dict[str, str]
    flags: dict[str, Buffer] = field(default_factory=dict)

    def watch(self, inst: Instance, store: Store) -> Body:
        """`size += value²` behind `store`, if its stage holds transformed data."""
        name = inst.stage.name
        if name not in self.hosts:
            return ()
        watched = next(t.watched for t in self.state.transformed if t.data == name)
        values = inst.axis_values()
        chosen = [_is_one_of(values[axis], points) for axis, points in watched]
        last = inst.stage.iters[-1]
        at = (inst.loop_value(last) if last.annotation == "vectorize" else idx(0),)
        size = size_of(inst.stage).tensor
        value: Expr = Load(store.tensor, store.indices)
        before = Load(size, at)
        value = cast("float32", value)
        more = add(before, mul(value, value))
        return (Store(size, at, select(reduce(both, chosen), more, before)),)

    def decided_by(self, stage: Stage) -> list[str]:
        """Transformed data that are complete when the local `stage` is, if its host decides."""
        if stage.attach is None or stage.attach.target not in self.hosts.values():
            return []
        host = stage.attach.target
        return [d for d, h in self.hosts.items() if h == host and self._within(d, stage.name)]

    def recorded_by(self, kernel: str) -> list[str]:
        """Transformed data of `kernel` on which another kernel decides."""
        return [d for d, h in self.hosts.items() if h != kernel == self.state.root_of(d)]

    def needed_by(self, kernel: str) -> list[str]:
        """Transformed data of other kernels on which `kernel` decides."""
        return [d for d, h in self.hosts.items() if h == kernel != self.state.root_of(d)]

    def _within(self, name: str, ancestor: str) -> bool:
        attach = self.state[name].attach
        return name == ancestor or (attach is not None and self._within(attach.target, ancestor))


def guards(state: State, exact: State) -> Guards:
    """The decisions of a schedule. Raises ScheduleError where plain sums have no place in it."""
    hosts = {t.data: host_of(exact, t.name) for t in state.transformed}
    for data, host in hosts.items():
        if data not in state.stages or host not in state.stages:
            raise ScheduleError(f"{data} or {host} is no stage: nothing decides on plain sums")
        ours, theirs = state[host], exact[host]
        alike = [i.name for i in ours.iters] == [i.name for i in theirs.iters]
        if (
            ours.op.reduce_axes
            or ours.attach
            or not alike
            or ((ours.splits, ours.fuses) != (theirs.splits, theirs.fuses))
        ):
            raise ScheduleError(f"{host} has other loops with plain sums")
        _check_local(state, exact, host)
    found = Guards(state, exact, hosts)
    decide = [s for s in state.stages.values() if found.decided_by(s)]
    if both_have := [s.name for s in decide if s.name in exact.stages]:
        raise ScheduleError(
            f"{both_have[0]} is computed before it is known whether data are bounded"
        )
    return found


def _check_local(state: State, exact: State, host: str) -> None:
    """Refuse a plain sum that reads a stage which the schedule computes for the transforms only."""
    inside = [s for s in exact.stages.values() if exact.root_of(s.name) == host]
    known = {p.name for p in exact.dag.placeholders} | {s.name for s in inside}
    known |= {s.name for s in state.stages.values() if s.attach is None}
    moved = [s.name for s in inside if s.name in state.stages and state[s.name].attach != s.attach]
    elsewhere = [x.tensor.name for s in inside for x in s.op.reads if x.tensor.name not in known]
    if moved or elsewhere:
        name = [*moved, *elsewhere][0]
        raise ScheduleError(f"{host} with plain sums reads {name}, which is computed elsewhere")


def size_of(stage: Stage) -> Buffer:
    """The local sum of squares of the results of `stage`, one for each lane."""
    last = stage.iters[-1]
    lanes = int(last.extent) if last.annotation == "vectorize" else 1
    tensor = Tensor(f"{stage.name}.size", (lanes,), "float32")
    return Buffer(tensor, "local", dense(tensor.shape))


def sized(stages: Sequence[Stage], body: Body) -> Body:
    """`body` inside the allocation of the sums of squares of `stages`, set to 0 first."""
    for stage in stages:
        size = size_of(stage)
        (lanes,) = size.tensor.shape
        var = f"{size.name}.lane"
        zero = Store(size.tensor, (Var(var),), f32(0.0))
        body = (Alloc(size, (For(var, lanes, "vectorize", (zero,)), *body)),)
    return body


def are_bounded(stages: Sequence[Stage]) -> Expr:
    """Whether all sums of squares are at most LIMIT; false for NaN."""
    return reduce(both, (compare("le", _total(size_of(s)), f32(LIMIT)) for s in stages))


def record(stage: Stage, flags: Buffer) -> Stmt:
    """Store the flag of this iteration for another kernel: 0 where its data are bounded, else 1."""
    return Store(flags.tensor, (Var("t"),), select(are_bounded([stage]), f32(0.0), f32(1.0)))


def flags_of(name: str, extent: int) -> Buffer:
    """One flag for each iteration of the kernel that transforms data `name`."""
    tensor = Tensor(f"{name}.unbounded", (extent,), "float32")
    return Buffer(tensor, "workspace", dense(tensor.shape))


def unless_flagged(flags: Sequence[Buffer], body: Body, otherwise: Body) -> Body:
    """`body` where no flag is set, else `otherwise`."""
    counts = [_count_buffer(f) for f in flags]
    cond = reduce(both, (compare("eq", _total(c), f32(0.0)) for c in counts))
    out: Body = (If(cond, body, otherwise),)
    for count, flag in zip(counts, flags, strict=True):
        out = (Alloc(count, (*_counted(flag.tensor, count.tensor), *out)),)
    return out


def _count_buffer(flags: Buffer) -> Buffer:
    shape = (min(_FLAG_LANES, *flags.tensor.shape),)
    tensor = Tensor(f"{flags.name}.count", shape, "float32")
    return Buffer(tensor, "local", dense(shape))


def _counted(flags: Tensor, count: Tensor) -> Body:
    """count[l] = the number of flags in lane l."""
    (n,), (lanes,) = flags.shape, count.shape
    lane, row, rest = (f"{count.name}.{x}" for x in ("lane", "row", "rest"))
    at = (Var(lane),)
    first = Store(count, at, f32(0.0))
    flag = Load(flags, (add(mul(Var(row), idx(lanes)), Var(lane)),))
    more = Store(count, at, add(Load(count, at), flag))
    out: list[Stmt] = [For(lane, lanes, "vectorize", (first,))]
    out.append(For(row, n // lanes, "serial", (For(lane, lanes, "vectorize", (more,)),)))
    if n % lanes:
        flag = Load(flags, (add(Var(rest), idx(n - n % lanes)),))
        last = Store(count, (idx(0),), add(Load(count, (idx(0),)), flag))
        out.append(For(rest, n % lanes, "serial", (last,)))
    return tuple(out)


def _total(buffer: Buffer) -> Expr:
    (n,) = buffer.tensor.shape
    lanes: list[Expr] = [Load(buffer.tensor, (idx(k),)) for k in range(n)]
    return reduce(add, lanes)


def _is_one_of(index: Expr, points: Sequence[int]) -> Expr:
    return reduce(partial(binary, "or"), (compare("eq", index, idx(n)) for n in points))
