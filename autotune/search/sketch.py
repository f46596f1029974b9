"""⑥ Sketch rules: the only source of loop structure.

`generate_sketches(dag, target)` visits the stages from the last to the first. At each stage a rule
answers None (skip) or a list of partial sketches that replace the present one (apply and stop);
rules are tried in order, and a list of several partial sketches branches the walk. Rules look at
the definition of the computation (which axes a load uses, which stage reads which), never at an
operator's name or a shape's value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from autotune.errors import ScheduleError
from autotune.schedule.steps import (
    Annotate,
    CacheWrite,
    ComputeInline,
    Hole,
    Parallel,
    Reorder,
    Split,
)
from autotune.search.partial import Partial, Rule, advances, split_into_vectors
from autotune.search.rules.algorithms import algorithms
from autotune.search.rules.attention import tile_products_of_rows
from autotune.search.rules.fused_window import tile_window_and_reduction
from autotune.search.rules.ragged import tile_ragged_reduction
from autotune.search.rules.rows import rfactor_contiguous_reduction, tile_rows_with_everything
from autotune.search.rules.scattering import scan_in_order, scatter_terms
from autotune.search.rules.tiling import tile_reduction_with_consumer
from autotune.search.rules.winograd_tiling import tile_transformed_reduction
from autotune.search.space import Role, Sketch, Tag
from autotune.target import Target
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Axis, Load, Var, variables, walk
from autotune.te.ragged import ragged_axes

MAX_REPEATED_NODES = 256
"""Most nodes of an expression that inlining may write where several reads of it were."""
_LEAST_NEIGHBOURS = 4
"""Elements in a row that are worth a vector of their own, see `codegen.transposing`."""


def generate_sketches(
    dag: ComputeDAG,
    target: Target,
    rules: Sequence[Rule] | None = None,
    extra: Sequence[Rule] = (),
) -> list[Sketch]:
    """All loop structures of a task, by `rules` (None: `RULES`), which are tried in order.

    What an `extra` rule answers is added to the structures of the others instead of replacing them.
    Raises ScheduleError when no rule applies to a stage, or when a rule adds a step that cannot be
    applied.
    """
    if rules is None and not extra:
        return list(_usual(dag, target))
    return _generated(dag, target, RULES if rules is None else rules, extra)


@lru_cache(maxsize=256)
def _usual(dag: ComputeDAG, target: Target) -> tuple[Sketch, ...]:
    """Those of `RULES`; a session asks for its bound, its default program and its policy."""
    return tuple(_generated(dag, target, RULES, ()))


def _generated(
    dag: ComputeDAG, target: Target, rules: Sequence[Rule], extra: Sequence[Rule]
) -> list[Sketch]:
    finished: list[Partial] = []
    work = [_inline_all(dag, p) for p in algorithms(dag, target)]
    while work:
        partial = work.pop()
        name = _next_stage(partial)
        if name is None:
            finished.append(partial)
            continue
        work += _apply(rules, partial, name, target)
        answers = (p for rule in extra for p in rule(partial, name, target) or ())
        work += [replace(p, is_foreign=True) for p in answers]
    return _named(reversed(finished))


def _named(partials: Iterable[Partial]) -> list[Sketch]:
    """Sketches called by their tags, numbered where several have the same."""
    counts: dict[str, int] = {}
    sketches = []
    for p in partials:
        name = "+".join(",".join(tags) for tags in p.structure)
        n = counts[name] = counts.get(name, -1) + 1
        tags = frozenset(tag for tags in p.structure for tag in tags)
        sketches.append(
            Sketch(f"{name}#{n}" if n else name, p.steps, p.parameters, tags, p.is_foreign)
        )
    return sketches


def _inline_all(dag: ComputeDAG, p: Partial) -> Partial:
    """Inline every stage that `inline_pointwise` covers; the rules decide about the others."""
    for name in reversed([op.name for op in dag.computes]):
        p = inline_pointwise(p, name)
    return p


def _apply(rules: Sequence[Rule], partial: Partial, name: str, target: Target) -> list[Partial]:
    for rule in rules:
        branches = rule(partial, name, target)
        if branches is not None:
            return branches
    raise ScheduleError(f"no sketch rule applies to stage {name}")


def _next_stage(partial: Partial) -> str | None:
    return next((n for n in reversed(partial.state.stages) if n not in partial.done), None)


# --- rules ------------------------------------------------------------------------------------


def inline_pointwise(p: Partial, name: str) -> Partial:
    """A pointwise stage read at one place by a pointwise stage, or one that only moves elements.

    Reading a value several times (`x * sigmoid(x)`) writes its expression several times; machine
    code computes it once. Large expressions stay apart.
    """
    state = p.state
    op = state[name].op
    if name in state.dag.outputs or op.reduce_axes or op.scanned is not None:
        return p
    readers = state.dag.consumers(name)
    if any(map(ragged_axes, readers)) and not advances(op, op.axes[-1]):
        return p  # a transposition for the sake of vectors
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


def cache_reduction_output(p: Partial, name: str, target: Target) -> list[Partial] | None:
    """A reduction that is an output, or is read in more than one way, gets a pointwise consumer."""
    op = p.state[name].op
    if not op.reduce_axes or p.state[name].attach:
        return None
    if not op.axes:  # a single number: nothing to tile
        return [p.add(done=(name,))]
    return [p.add(CacheWrite(name, f"{name}.sum"))]


def tile_pointwise(p: Partial, name: str, target: Target) -> list[Partial] | None:
    """A pointwise stage at the root: vectors inside, everything else parallel.

    One that rearranges elements may collect those of a vector one by one, and may run in the order
    in which it reads them, so that elements are used as they are read.
    """
    stage = p.state[name]
    op = stage.op
    if op.reduce_axes or stage.attach:
        return None
    if not op.axes:
        return [p.add(done=(name,))]
    last = op.axes[-1]
    collects = last.extent > 1 and not advances(op, last)
    ways = (False, True) if collects else (False,)
    return [x for gather in ways for x in _pointwise_loops(p, op, target, gather)]


def read_scattered(p: Partial, name: str, target: Target) -> list[Partial] | None:
    """Rule of a reader of a scan or a scattered reduction, which is complete only at its end."""
    state = p.state
    read = {x.tensor.name for x in state[name].op.reads} & state.stages.keys()
    if any(state[n].op.route or state[n].op.scanned is not None for n in read):
        return tile_pointwise(p, name, target)
    return None


def _pointwise_loops(p: Partial, op: Compute, target: Target, gather: bool) -> Iterator[Partial]:
    out = split_into_vectors(p, op, target, op.name, gather)
    near = _axis_of_neighbours(op) if gather else None
    if near:
        hole = f"{op.name}.{near.name}.near"
        out = out.hole(hole, tuple(u for u in (1, 4, 8, 16) if u <= near.extent), Role.UNROLL)
        out = out.add(Split(op.name, near.name, (Hole(hole),)))
        out = out.add(Annotate(op.name, f"{near.name}.1", "unroll"))
    stage, last = out.state[op.name], op.axes[-1].name
    unrolled = [f"{near.name}.1"] if near else []
    outer = [
        i.name for i in stage.iters if stage.axis_of(i.name) != last and i.name not in unrolled
    ]
    split, *rest = (i.name for i in stage.iters if stage.axis_of(i.name) == last)
    outer.append(split)
    rest = [*unrolled, *rest]
    orders: dict[tuple[Tag, ...], list[str]] = {(): outer}
    for axes in _orders_of_reading(op):
        moved = sorted(outer, key=lambda n: axes.index(stage.axis_of(n)))
        if moved != outer:
            orders[(Tag.AS_READ,)] = moved
    for as_read, order in orders.items():
        tags = (*((Tag.GATHERED,) if gather else ()), *as_read)
        loops = (Reorder(op.name, (*order, *rest)), Parallel(op.name, len(order)))
        yield out.add(*loops, done=(op.name,), tags=tags)


def _axis_of_neighbours(op: Compute) -> Axis | None:
    """The axis along which a stage that only moves elements reads neighbours; None: its last."""
    body = op.body
    if not isinstance(body, Load) or not isinstance(body.indices[-1], Var):
        return None
    found = next((a for a in op.axes[:-1] if a.var == body.indices[-1]), None)
    return found if found is not None and found.extent >= _LEAST_NEIGHBOURS else None


def _orders_of_reading(op: Compute) -> Iterator[list[str]]:
    """For loads that use all axes of `op`, one for each dimension: these, outermost first."""
    for x in op.reads:
        axes = [sorted(variables(i)) for i in x.indices]
        if all(len(names) <= 1 for names in axes):
            order = [n for names in axes for n in names]
            if sorted(order) == sorted(a.name for a in op.axes):
                yield order


RULES: tuple[Rule, ...] = (
    scan_in_order,
    scatter_terms,
    read_scattered,
    tile_ragged_reduction,
    tile_window_and_reduction,
    tile_products_of_rows,
    tile_rows_with_everything,
    rfactor_contiguous_reduction,
    tile_transformed_reduction,
    tile_reduction_with_consumer,
    cache_reduction_output,
    tile_pointwise,
)
