"""⑥ Sketch rules: the only source of loop structure.

`generate_sketches(dag, target)` walks the stages from the last to the first. At each stage a rule
answers None (skip) or a list of partial sketches that replace the present one (apply and stop);
rules are tried in order, and a list of several partial sketches branches the walk. What the rules
look at is the definition of the computation (which axes a load uses, what reads what), never an
operator's name or a shape's value.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune.errors import ScheduleError
from autotune.schedule.steps import CacheWrite, ComputeInline, Parallel, Reorder
from autotune.search.algorithms import algorithms
from autotune.search.attended import tile_products_of_rows
from autotune.search.chained import tile_window_and_reduction
from autotune.search.partial import Partial, Rule, advances, split_into_vectors
from autotune.search.rows import rfactor_contiguous_reduction, tile_rows_with_everything
from autotune.search.space import Sketch
from autotune.search.tiling import tile_reduction_with_consumer
from autotune.search.transformed import tile_transformed_reduction
from autotune.target import Target
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Load, variables, walk

MAX_REPEATED_NODES = 256
"""Most nodes of an expression that inlining may write where several reads of it were."""


def generate_sketches(dag: ComputeDAG, target: Target) -> list[Sketch]:
    """All loop structures of a task. Raises ScheduleError only when no rule covers a stage."""
    finished: list[Partial] = []
    work = [_inline_all(dag, p) for p in algorithms(dag, target)]
    while work:
        partial = work.pop()
        name = _next_stage(dag, partial)
        if name is None:
            finished.append(partial)
            continue
        work += _apply(dag, target, partial, name)
    names: dict[str, int] = {}
    sketches = []
    for p in reversed(finished):
        n = names[p.name] = names.get(p.name, -1) + 1
        sketches.append(Sketch(f"{p.name}#{n}" if n else p.name, p.steps, p.parameters))
    return sketches


def _inline_all(dag: ComputeDAG, p: Partial) -> Partial:
    """Inline whatever the definition alone tells to inline; the rest is the walk's to decide."""
    for name in reversed([op.name for op in dag.computes]):
        p = inline_pointwise(dag, p, name)
    return p


def _apply(dag: ComputeDAG, target: Target, partial: Partial, name: str) -> list[Partial]:
    for rule in RULES:
        branches = rule(dag, target, partial, name)
        if branches is not None:
            return branches
    raise ScheduleError(f"no sketch rule applies to stage {name}")


def _next_stage(dag: ComputeDAG, partial: Partial) -> str | None:
    stages = partial.state(dag).stages
    return next((n for n in reversed(stages) if n not in partial.done), None)


# --- rules ------------------------------------------------------------------------------------


def inline_pointwise(dag: ComputeDAG, p: Partial, name: str) -> Partial:
    """A pointwise stage read at one place by a pointwise stage, or one that only moves elements.

    Reading a value several times (`x * sigmoid(x)`) writes its expression several times; machine
    code computes it once. Large expressions stay apart.
    """
    state = p.state(dag)
    op = state[name].op
    if name in state.dag.outputs or op.reduce_axes:
        return p
    readers = state.dag.consumers(name)
    once = len(readers) == 1 and not readers[0].reduce_axes and _at_one_place(readers[0], op)
    if once or isinstance(op.body, Load):
        return p.add(ComputeInline(name), done=(name,))
    return p


def _at_one_place(reader: Compute, op: Compute) -> bool:
    """Whether `reader` reads one element of `op` for each of its own, and not too large a one."""
    found = [x for x in reader.reads if x.tensor.name == op.name]
    if len(found) > 1 and len(found) * sum(1 for _ in walk(op.body)) > MAX_REPEATED_NODES:
        return False
    return len({x.indices for x in found}) == 1


def cache_reduction_output(
    dag: ComputeDAG, target: Target, p: Partial, name: str
) -> list[Partial] | None:
    """A reduction that is an output, or is read in more than one way, gets a pointwise consumer."""
    state = p.state(dag)
    op = state[name].op
    if not op.reduce_axes or state[name].attach:
        return None
    if not op.axes:  # a single number: nothing to tile
        return [p.add(done=(name,))]
    return [p.add(CacheWrite(name, f"{name}.sum"))]


def tile_pointwise(dag: ComputeDAG, target: Target, p: Partial, name: str) -> list[Partial] | None:
    """A pointwise stage at the root: vectors inside, everything else parallel.

    One that rearranges elements may collect those of a vector one by one, and may run in the order
    in which it reads them, so that what is read together is used together.
    """
    stage = p.state(dag)[name]
    op = stage.op
    if op.reduce_axes or stage.attach:
        return None
    if not op.axes:
        return [p.add(done=(name,))]
    last = op.axes[-1]
    collects = last.extent > 1 and not advances(op, last)
    ways = (False, True) if collects else (False,)
    return [x for gather in ways for x in _pointwise_loops(dag, target, p, op, gather)]


def _pointwise_loops(
    dag: ComputeDAG, target: Target, p: Partial, op: Compute, gather: bool
) -> Iterator[Partial]:
    out = split_into_vectors(p, op, target, op.name, gather)
    names = [i.name for i in out.state(dag)[op.name].iters]
    last = f"{op.axes[-1].name}."
    outer = [n for n in names if not n.startswith(last) or n == f"{last}0"]
    rest = [n for n in names if n not in outer]
    orders = {"": outer}
    for axes in _orders_of_reading(op):
        moved = sorted(outer, key=lambda n: axes.index(n.partition(".")[0]))
        if moved != outer:
            orders["as-read"] = moved
    for label, order in orders.items():
        words = ",".join(filter(None, ("gathered" if gather else "", label)))
        loops = (Reorder(op.name, (*order, *rest)), Parallel(op.name, len(order)))
        yield out.add(*loops, done=(op.name,), label=words)


def _orders_of_reading(op: Compute) -> Iterator[list[str]]:
    """For loads that use all axes of `op`, one for each dimension: these, outermost first."""
    for x in op.reads:
        axes = [sorted(variables(i)) for i in x.indices]
        if all(len(names) <= 1 for names in axes):
            order = [n for names in axes for n in names]
            if sorted(order) == sorted(a.name for a in op.axes):
                yield order


RULES: tuple[Rule, ...] = (
    tile_window_and_reduction,
    tile_products_of_rows,
    tile_rows_with_everything,
    rfactor_contiguous_reduction,
    tile_transformed_reduction,
    tile_reduction_with_consumer,
    cache_reduction_output,
    tile_pointwise,
)
