"""④ Pass `nests`: one kernel per root stage, with the loops of everything attached inside it.

Loop nests are built inside out: the loops of a stage first, then, at the loop where a producer is
attached, the region that the finished loops read of it is computed, allocated and filled in front
of them. Rules that decide the speed of the programs:

- A reduction accumulates in a local tile of its innermost unrolled and vectorised loops, around
  which all remaining reduction loops run; the tile is loaded and stored once (`register_tile`).
- `tail="split"` and register tiles over a length are versioned: where the number of the tile
  becomes known, an `If` chooses between copies of the loops, so extents stay constant (`versions`).
- `tail="shift"` moves the last tile inwards: `min(tile·T, E - T)`.

Loops that are bound to the indices of a GPU's launch stay loops. What is in shared memory is
computed for all threads of a block, between two barriers of these.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import cast

from autotune.dtypes import is_float
from autotune.errors import ScheduleError
from autotune.loopir.arguments import with_arguments
from autotune.loopir.chosen_terms import ChosenTerms, among_chosen
from autotune.loopir.guarding import (
    Guards,
    are_bounded,
    flags_of,
    guards,
    record,
    sized,
    unless_flagged,
)
from autotune.loopir.instance import Instance, Ranges, leaves, loop_var
from autotune.loopir.launch import check_launch, of_block
from autotune.loopir.leaves import Leaf, Placed, ReductionParts, Update, accumulator_of, filled
from autotune.loopir.local_buffers import check_stack, local_region, padded_rows
from autotune.loopir.lowering import Lowering
from autotune.loopir.nodes import (
    Alloc,
    Barrier,
    Body,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    Program,
    Stmt,
    Store,
)
from autotune.loopir.register_tile import register_tile
from autotune.loopir.scans import in_vectors, with_carry
from autotune.loopir.versions import versions
from autotune.loopir.visitor import body_loads, loop_extents, reads_of, rewrite_exprs
from autotune.schedule.state import Iterator, Stage, State
from autotune.schedule.steps import LAUNCH_INDICES
from autotune.strides import dense, padded_strides
from autotune.te.arith import simplify
from autotune.te.expr import (
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    Tensor,
    Var,
    both,
    compare,
    floordiv,
    idx,
    maximum,
    minimum,
    mod,
    mul,
    sub,
    substitute,
    variables,
)
from autotune.te.prefixes import prefixes


def build_nests(program: Program, lowering: Lowering) -> Program:
    """`program`, which has no kernels, with one for each root stage.

    Raises ScheduleError where the schedule has no program.
    """
    state = lowering.state
    guarded = guards(state, lowering.exact)
    buffers, kernels = list(program.buffers), list[Kernel]()
    for stage in state.stages.values():
        if stage.attach is None:
            buffers.append(_result_buffer(stage.op.tensor, stage.name in state.dag.outputs))
            nest = _Nest(state, stage, guarded)
            kernels.append(nest.kernel(len(kernels)))
            buffers += nest.buffers
    buffers += guarded.flags.values()
    return with_arguments(replace(program, buffers=tuple(buffers), kernels=tuple(kernels)))


def _result_buffer(tensor: Tensor, output: bool) -> Buffer:
    if output:
        return Buffer(tensor, "output", dense(tensor.shape))
    return Buffer(tensor, "workspace", padded_strides(tensor.shape, tensor.dtype))


class _Nest:
    """Emits the loops of one root stage and everything attached inside them."""

    def __init__(self, state: State, root: Stage, guarded: Guards) -> None:
        self.state = state
        self.is_static = bool(guarded.recorded_by(root.name))
        self.root = root
        self.guarded = guarded
        self.buffers: list[Buffer] = []  # of the loops, for all iterations
        self.shared = {s.name for s in state.stages.values() if s.scope}

    def kernel(self, number: int) -> Kernel:
        stage = self.root
        extents = {a.name: a.extent for a in stage.axes}
        check_launch(self.state, stage)
        inst = Instance(stage, tuple(idx(0) for _ in stage.op.axes), extents)
        follows = not self.guarded.recorded_by(stage.name)  # flags of all iterations are written
        lets, total, live, ranges = _decode(inst, follows)
        body = self._loops(inst, 0, ranges, Leaf(self._plain))
        body = self._guarded(inst, body, total, ranges)
        check_stack(stage.name, body)
        return Kernel(f"k{number}_{_symbol(stage.name)}", total, "t", (), (*lets, *body), live=live)

    def _guarded(self, inst: Instance, body: Body, total: int, ranges: Ranges) -> Body:
        """`body` with its guards, and flags for other kernels."""
        name = self.root.name
        if needed := self.guarded.needed_by(name):
            exact = self._exact()
            plain = exact._loops(exact._version(inst), 0, ranges, Leaf(exact._plain))
            body = unless_flagged([self.guarded.flags[d] for d in needed], body, plain)
        for data in self.guarded.recorded_by(name):
            flags = self.guarded.flags[data] = flags_of(data, total)
            stage = self.state[data]
            body = sized([stage], (*body, record(stage, flags)))
        return body

    def _exact(self) -> _Nest:
        """The same kernel with plain sums; its own decisions are made already."""
        exact = self.guarded.exact
        return _Nest(exact, exact[self.root.name], Guards(exact, exact, {}))

    def _version(self, inst: Instance) -> Instance:
        return replace(inst, stage=self.state[inst.stage.name])

    # --- one stage ----------------------------------------------------------------------------

    def _loops(self, inst: Instance, depth: int, ranges: Ranges, leaf: Leaf) -> Body:
        """Loops `depth`… of a stage around `leaf`, with the stages attached inside them."""
        found = versions(inst, depth, ranges, lambda i, r: self._loops(i, depth, r, leaf))
        if found is not None:
            return found
        body = self._inside(inst, depth, ranges, leaf)
        return self._attach(inst, depth, body, ranges) if depth else body

    def _inside(self, inst: Instance, depth: int, ranges: Ranges, leaf: Leaf) -> Body:
        """Loops `depth`… of a stage, without stages attached to the loop before them."""
        stage = inst.stage
        if self._is_routed(inst, depth) and not isinstance(leaf, Update):
            return self._scatter(inst, depth, ranges)
        if stage.op.reduce_axes and depth == stage.register_depth and not isinstance(leaf, Update):
            return self._accumulate(inst, depth, ranges)
        return self._loop(inst, depth, ranges, leaf)

    def _loop(self, inst: Instance, depth: int, ranges: Ranges, leaf: Leaf) -> Body:
        stage = inst.stage
        if depth == len(stage.iters):
            return leaf(inst, ranges)
        it = stage.iters[depth]
        extent = inst.sizes[it.name]
        inside = ranges if extent == 1 else ranges | {loop_var(stage, it): (0, extent - 1)}
        body = self._loops(inst, depth + 1, inside, leaf)
        if isinstance(leaf, Placed) and it.name == leaf.routed[0]:
            body = leaf.place(inst, body, ranges)
        if not isinstance(leaf, Update):
            body = self._up_to_length(inst, depth, inside, body)
        limit = inst.limit(it, ranges)
        if isinstance(leaf, Placed) and limit is None:
            limit = leaf.route.ends.get(it.name)
        if depth >= stage.n_parallel:
            loop = _loop(stage, it, extent, body, limit)
            return loop if stage.op.scanned is None else with_carry(loop, stage.op.tensor)
        if limit is None or not (self.is_static or variables(limit)):
            return body
        return (If(compare("lt", inst.loop_value(it), limit), body),)

    def _up_to_length(self, inst: Instance, depth: int, ranges: Ranges, body: Body) -> Body:
        """`body`, the loops inside of loop `depth`, where places of it are below the length that a
        condition of the stage tells; else what the stage is there."""
        stage, value = inst.stage, inst.stage.op.body
        if not isinstance(value, Select) or not isinstance(value.b, Const):
            return body
        it = stage.iters[depth]
        if it.annotation in ("vectorize", "unroll"):
            return body
        inner = {loop_var(stage, i) for i in stage.iters[depth + 1 :]}
        for cond in prefixes(value.cond):
            names = [n for n in sorted(variables(cond)) if it.name == _outermost(inst, n)]
            if len(names) != 1:
                continue
            at = substitute(cond, inst.axis_values())
            first = simplify(substitute(at, dict.fromkeys(inner, idx(0))), ranges)
            plain = replace(stage, op=replace(stage.op, body=value.b))
            inside = max(depth + 1, stage.n_parallel)  # parallel loops are around both
            rest = self._tile(replace(inst, stage=plain), inside, ranges, Leaf(filled))
            return (If(first, body, rest),)
        return body

    def _tile(self, inst: Instance, depth: int, ranges: Ranges, leaf: Leaf) -> Body:
        """The spatial loops from `depth` on around `leaf`, and nothing attached."""
        stage = inst.stage
        nest = partial(self._tile, depth=depth, leaf=leaf)
        found = versions(inst, depth, ranges, lambda i, r: nest(i, ranges=r), "spatial")
        if found is not None:
            return found
        if depth == len(stage.iters):
            return leaf(inst, ranges)
        it = stage.iters[depth]
        extent = inst.sizes[it.name] if it.kind == "spatial" else 1
        inside = ranges if extent == 1 else ranges | {loop_var(stage, it): (0, extent - 1)}
        limit = inst.limit(it, ranges) if it.kind == "spatial" else None
        return _loop(stage, it, extent, self._tile(inst, depth + 1, inside, leaf), limit)

    def _plain(self, inst: Instance, ranges: Ranges) -> Body:
        value = simplify(substitute(inst.stage.op.body, inst.axis_values()), ranges)
        tensor, where = inst.target(ranges)
        store = Store(tensor, where, value)
        return (store, *self.guarded.watch(inst, store))

    def _accumulate(self, inst: Instance, depth: int, ranges: Ranges) -> Body:
        """acc = identity or the stored value; reduction loops { acc ⊕= … }; store acc."""
        inst = replace(inst, stage=register_tile(inst))
        stage, sizes = inst.stage, inst.sizes
        body = stage.op.body
        if not isinstance(body, Reduce):
            raise ScheduleError(f"{stage.name} does not reduce")
        outer = [i for i in stage.iters[:depth] if i.kind == "reduce" and sizes[i.name] > 1]
        if any(stage.ragged(i.name) for i in outer):
            raise ScheduleError(
                f"{stage.name}: a ragged reduction must be inside its tile",
                "reorder: its loop inside of the loops over results",
            )
        overlap = inst.has_overlap()
        if outer and overlap:
            raise ScheduleError(
                f"{stage.name}: blocked reduction with overlapping tiles",
                "split loops over results by factors that divide, or with tail='split'",
            )
        direct = inst.local and not outer and not overlap and inst.covers(depth)
        direct = direct and not stage.has_tile  # whose accumulators are registers only
        tile = tuple(i for i in stage.iters[depth:] if i.kind == "spatial")
        shape = tuple(sizes[i.name] for i in tile)
        where = Instance.target if direct else partial(accumulator_of, tile=tile, shape=shape)
        parts = ReductionParts(body, where)
        init = self._tile(inst, depth, ranges, Leaf(parts.reset))
        if outer:
            resume = self._tile(inst, depth, ranges, Leaf(parts.resume))
            init = (If(_all_zero(inst, outer), init, resume),)
        update = self._loop(inst, depth, ranges, Update(parts.update))
        chosen = self._chosen(inst, update, ranges)
        if chosen is not None:
            self.buffers += chosen.buffers
            update = chosen.loop
        elif stage.op.scanned is not None or not is_float(stage.op.tensor.dtype):
            update = in_vectors(update, body.op)
        if direct:
            return (*init, *update)
        final = self._tile(inst, depth, ranges, Leaf(parts.finish))
        acc, _ = where(inst, ranges)
        role = "registers" if stage.has_tile else "local"
        whole: Body = (Alloc(Buffer(acc, role, dense(acc.shape)), (*init, *update, *final)),)
        return (*chosen.before, *whole, *chosen.after) if chosen is not None else whole

    def _chosen(self, inst: Instance, update: Body, ranges: Ranges) -> ChosenTerms | None:
        """`update` among the terms that count, where earlier elements of a scan say so."""
        op = inst.stage.op
        if op.scanned is None or inst.local or len(inst.stage.iters) != 1 + len(op.reduce_axes):
            return None
        it = inst.stage.iters[0]
        (each,) = (inst.axis_values()[a.name] for a in op.axes)
        return among_chosen(update, op.tensor, each, inst.limit(it, ranges))

    # --- scattered reductions -----------------------------------------------------------------

    def _is_routed(self, inst: Instance, depth: int) -> bool:
        """Whether each term from loop `depth` on goes to the place that it tells."""
        stage = inst.stage
        is_outermost = depth == stage.routed_depth and not inst.local
        return is_outermost and all(
            s.attach is None or s.attach.target != stage.name for s in self.state.stages.values()
        )

    def _scatter(self, inst: Instance, depth: int, ranges: Ranges) -> Body:
        """The region = identity; reduction loops { p = place; the tensor at p ⊕= … }."""
        stage, found = inst.stage, inst.stage.op.route
        if found is None or not isinstance(stage.op.body, Reduce):
            raise ScheduleError(f"{stage.name} does not scatter")
        parts = ReductionParts(stage.op.body, Instance.target)
        init = self._tile(inst, depth, ranges, Leaf(parts.reset))
        starts, extents, inside = list(inst.starts), dict(inst.extents), dict(ranges)
        routed = tuple(i.name for i in stage.iters[depth:] if i.name in found.places)
        for n, axis in enumerate(stage.op.axes):
            if axis.name in routed:
                var = Var(f"{stage.name}.{axis.name}.place")
                starts[n], extents[axis.name] = var, 1
                inside[var.name] = (0, axis.extent - 1)
        placed = replace(inst, starts=tuple(starts), extents=extents)
        terms = ReductionParts(replace(stage.op.body, body=found.term), Instance.target)
        return (*init, *self._loop(placed, depth, inside, Placed(terms.update, found, routed)))

    # --- attached stages ----------------------------------------------------------------------

    def _attach(self, inst: Instance, depth: int, body: Body, ranges: Ranges) -> Body:
        producers = self._producers(inst, depth)
        is_shared = any(p.name in self.shared for p in producers)
        if is_shared:
            body = (Barrier(), *body)
        for n, producer in reversed([*enumerate(producers)]):
            otherwise: Body = ()
            if self.guarded.decided_by(producer):
                before = {p.name for p in producers[:n]}
                otherwise = self._exact()._instead(inst, depth, ranges, before)
            body = self._produce(producer, body, ranges, otherwise)
        return (*body, Barrier()) if is_shared else body

    def _producers(self, inst: Instance, depth: int) -> list[Stage]:
        return self.state.attached_at(inst.stage.name, inst.stage.iters[depth - 1].name)

    def _instead(self, inst: Instance, depth: int, ranges: Ranges, there: set[str]) -> Body:
        """Loops `depth`… with plain sums, and their producers; `there`: stages produced outside."""
        body = self._inside(self._version(inst), depth, ranges, Leaf(self._plain))
        for producer in reversed(self._producers(self._version(inst), depth)):
            if producer.name not in there:
                body = self._produce(producer, body, ranges)
        return body

    def _produce(self, stage: Stage, body: Body, ranges: Ranges, otherwise: Body = ()) -> Body:
        """Fill a local buffer with the region of `stage` that `body` reads, in front of `body`.

        `otherwise`: runs instead of `body` where transformed data in it are not bounded.
        """
        reads = reads_of(body, stage.name)
        if not reads:
            return body
        inner = {v: e for v, e in loop_extents(body).items() if v not in ranges}
        around = ranges
        if stage.scope:
            reads, around = of_block(self.state, reads, ranges)
        region = [local_region(reads, d, around) for d in range(len(stage.op.axes))]
        starts = tuple(r[0] for r in region)
        shape = tuple(r[1] for r in region)
        local = Tensor(stage.name, shape, stage.op.tensor.dtype)
        extents = dict(zip((a.name for a in stage.op.axes), shape, strict=True))
        extents |= {a.name: a.extent for a in stage.op.reduce_axes}
        inst = Instance(stage, starts, extents, local=True)
        fill = self._loops(inst, 0, ranges, Leaf(self._plain))
        if any(x.tensor.name in self.shared for x in body_loads(fill)):
            fill = (Barrier(), *fill)
        known = ranges | {v: (0, e - 1) for v, e in inner.items()}

        def one(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.tensor.name == stage.name:
                shifted = (sub(i, s) for i, s in zip(e.indices, starts, strict=True))
                return Load(local, tuple(simplify(i, known) for i in shifted))
            return None

        moved = rewrite_exprs(body, one)
        buffer = Buffer(local, stage.scope or "local", padded_rows(local))
        if not otherwise:
            return (Alloc(buffer, (*fill, *moved)),)
        data = [self.state[d] for d in self.guarded.decided_by(stage)]
        decision = If(are_bounded(data), moved, otherwise)
        return (Alloc(buffer, sized(data, (*fill, decision))),)


def _outermost(inst: Instance, axis: str) -> str:
    """The outermost loop over an axis that runs more than once; "" where there is none."""
    own = leaves(inst.stage, (axis,))
    return next((i.name for i in inst.stage.iters if i.name in own and inst.sizes[i.name] > 1), "")


def _loop(stage: Stage, it: Iterator, extent: int, body: Body, limit: Expr | None = None) -> Body:
    """A loop around `body`, unless it runs once; rows of a tile are one of its dimensions still."""
    if limit is not None:
        return (For(loop_var(stage, it), extent, "serial", body, limit),)
    if it.annotation in LAUNCH_INDICES:
        return (For(loop_var(stage, it), extent, it.annotation, body),)
    if extent == 1 and (it.annotation != "tile" or it.kind == "reduce"):
        return body
    if it.annotation == "vectorize" and not all(map(_is_straight, body)):
        raise ScheduleError(f"{stage.name}: only unrolled loops fit inside vector loop {it.name}")
    return (For(loop_var(stage, it), extent, it.annotation or "serial", body),)


def _is_straight(stmt: Stmt) -> bool:
    """Whether a statement is free of branches once its loops are unrolled."""
    if isinstance(stmt, For):
        return stmt.kind in ("unroll", "dot") and all(map(_is_straight, stmt.body))
    return isinstance(stmt, Store)


def _symbol(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def _decode(inst: Instance, follows: bool) -> tuple[Body, int, Expr | None, Ranges]:
    """Split the flat parallel index `t` into the outermost loops of a root stage.

    `follows`: loops over axes with a limit are as long as it says. Third: the iterations that there
    are then; None for all.
    """
    stage, sizes = inst.stage, inst.sizes
    if any(i.kind == "reduce" for i in stage.iters[: stage.n_parallel]):
        raise ScheduleError(f"{stage.name}: a reduction loop cannot be parallel")
    outer = [i for i in stage.iters[: stage.n_parallel] if sizes[i.name] > 1]
    ranges = {loop_var(stage, it): (0, sizes[it.name] - 1) for it in outer}
    total, lets, live = 1, list[Stmt](), cast("Expr", idx(1))
    for it in reversed(outer):
        value, extent = floordiv(Var("t"), live), sizes[it.name]
        limit = inst.limit(it, ranges) if follows else None
        is_whole = limit is None or variables(limit)
        count: Expr = idx(extent) if limit is None or is_whole else minimum(limit, idx(extent))
        if it is not outer[0]:
            value = mod(value, count)
        if not isinstance(live, Const) or not isinstance(count, Const):
            value = minimum(maximum(value, idx(0)), idx(extent - 1))  # what intervals know of it
        lets.append(Let(loop_var(stage, it), value))
        total *= extent
        live = mul(count, live)
    return tuple(lets), total, None if isinstance(live, Const) else live, ranges


def _all_zero(inst: Instance, loops: list[Iterator]) -> Expr:
    cond: Expr = Const(True, "bool")
    for it in loops:
        cond = both(cond, compare("eq", Var(loop_var(inst.stage, it)), idx(0)))
    return cond
