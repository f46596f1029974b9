"""⑥ Sketch rules: the only source of loop structure.

`generate_sketches(dag, target)` walks the stages from the last to the first. At each stage a rule
answers None (skip) or a list of partial sketches that replace the present one (apply and stop);
rules are tried in order, and a list of several partial sketches branches the walk. What the rules
look at is the definition of the computation (which axes a load uses, what reads what), never an
operator's name or a shape's value.

The structure for a reduction with its pointwise consumer, from the outside in:

    parallel  blocks of every spatial axis (pixels outside channels, or channels outside pixels)
      [producers: padding, copies, for the block]
      tiles within the block (channels outside pixels, or pixels outside channels)
        reduction loops
          register tile: unrolled spatial axes × vectors of the innermost axis
        consumer on the register tile

and, as a branch, the same with the reduction in blocks outside the tiles (`k-blocked`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from autotune.errors import ScheduleError
from autotune.schedule.state import State, replay
from autotune.schedule.steps import (
    NEXT_CHUNK,
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Hole,
    Pack,
    Parallel,
    Prefetch,
    Reorder,
    RFactor,
    Split,
    Step,
)
from autotune.search.space import Parameter, Sketch
from autotune.target import Target
from autotune.te.arith import linear
from autotune.te.dag import Compute, ComputeDAG, Placeholder
from autotune.te.expr import Axis, Load, Reduce, Var, variables

MAX_TILE = 32
"""Most iterations of one unrolled axis of a register tile."""
MAX_UNROLLED_REDUCTION = 25
"""A window up to this many points may be unrolled whole inside the register tile."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A sketch while it is being built: what is decided, and which stages are done."""

    steps: tuple[Step, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    name: str = ""
    done: frozenset[str] = frozenset()

    def add(self, *steps: Step, done: tuple[str, ...] = (), label: str = "") -> Partial:
        """Append steps, mark stages as done, extend the name."""
        name = f"{self.name}+{label}" if self.name and label else self.name or label
        return replace(self, steps=(*self.steps, *steps), done=self.done | set(done), name=name)

    def hole(self, name: str, domain: tuple[int, ...]) -> Partial:
        """Declare a parameter."""
        return replace(self, parameters=(*self.parameters, Parameter(name, domain)))

    def state(self, dag: ComputeDAG) -> State:
        """Loop structure so far, with every hole at its smallest value."""
        return replay(dag, self.steps, {p.name: p.domain[0] for p in self.parameters})


Rule = Callable[[ComputeDAG, Target, Partial, str], list[Partial] | None]


def generate_sketches(dag: ComputeDAG, target: Target) -> list[Sketch]:
    """All loop structures of a task. Raises ScheduleError only when no rule covers a stage."""
    finished: list[Partial] = []
    work = [_inline_all(dag, Partial())]
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
    """A pointwise stage read once by a pointwise stage, or one that only moves elements."""
    state = p.state(dag)
    op = state[name].op
    if name in state.dag.outputs or op.reduce_axes:
        return p
    readers = state.dag.consumers(name)
    once = len(readers) == 1 and sum(x.tensor.name == name for x in readers[0].reads) == 1
    if (once and not readers[0].reduce_axes) or isinstance(op.body, Load):
        return p.add(ComputeInline(name), done=(name,))
    return p


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


def rfactor_contiguous_reduction(
    dag: ComputeDAG, target: Target, p: Partial, name: str
) -> list[Partial] | None:
    """A reduction along the direction of memory: partial results side by side in vector lanes."""
    state = p.state(dag)
    op = state[name].op
    if not op.reduce_axes or not op.axes or op.axes[-1].extent >= target.lanes:
        return None
    if not _rfactor_width(op, op.reduce_axes[-1], target):
        return None
    last = op.axes[-1].name
    out = _place_row_reduction(p, op, None, last, target)
    return [out.add(Parallel(name, len(op.axes)), done=(name,), label="lanes")]


def tile_rows_with_everything(
    dag: ComputeDAG, target: Target, p: Partial, name: str
) -> list[Partial] | None:
    """Several stages that share their leading axes run row by row, all in one loop nest."""
    state = p.state(dag)
    inner = [s.op for s in state.stages.values() if s.name != name and s.name not in p.done]
    reductions = [op for op in inner if op.reduce_axes]
    op = state[name].op
    if state.dag.outputs != (name,) or op.reduce_axes or not reductions:
        return None
    if len(reductions) == 1 and _matches(op, reductions[0]):
        return None
    shared = _shared_axes(state, op, inner)
    if not shared:
        return None
    row = op.axes[shared - 1].name
    out = _vector_split(p, state, op, target, "row")
    names = [i.name for i in out.state(dag)[name].iters]
    out = out.add(Reorder(name, tuple(names)), Parallel(name, shared), label="rows")
    for producer in reversed(inner):
        out = _place_row_stage(dag, target, out, producer.name, name, row)
    return [out.add(done=(name, *(i.name for i in inner)))]


def tile_reduction_with_consumer(
    dag: ComputeDAG, target: Target, p: Partial, name: str
) -> list[Partial] | None:
    """Multi-level tiling of a pointwise stage around the reduction that feeds it."""
    state = p.state(dag)
    op = state[name].op
    if op.reduce_axes or state[name].attach:
        return None
    anchor = _anchor(state, op) if op.axes else None
    if anchor is None:
        return None
    out: list[Partial] = []
    for variant in _variants(anchor, op):
        out += _tile(dag, target, p, op, anchor, variant)
    return out


def tile_pointwise(dag: ComputeDAG, target: Target, p: Partial, name: str) -> list[Partial] | None:
    """A pointwise stage at the root: vectors inside, everything else parallel."""
    state = p.state(dag)
    op = state[name].op
    if op.reduce_axes or state[name].attach:
        return None
    if not op.axes:
        return [p.add(done=(name,))]
    out = _vector_split(p, state, op, target, name)
    names = [i.name for i in out.state(dag)[name].iters]
    last = f"{op.axes[-1].name}."
    outer = [n for n in names if not n.startswith(last) or n == f"{last}0"]
    rest = [n for n in names if n not in outer]
    return [out.add(Reorder(name, (*outer, *rest)), Parallel(name, len(outer)), done=(name,))]


RULES: tuple[Rule, ...] = (
    tile_rows_with_everything,
    rfactor_contiguous_reduction,
    tile_reduction_with_consumer,
    cache_reduction_output,
    tile_pointwise,
)


# --- what the definition says -----------------------------------------------------------------


def _matches(consumer: Compute, op: Compute) -> bool:
    """Whether `consumer` reads `op` point by point: same axes, same order, once."""
    reads = [x for x in consumer.reads if x.tensor.name == op.name]
    plain = tuple(a.var for a in consumer.axes)
    return bool(reads) and all(x.indices == plain for x in reads)


def _anchor(state: State, op: Compute) -> Compute | None:
    """The one reduction that `op` consumes point by point and nobody else reads."""
    found = []
    for name in {x.tensor.name for x in op.reads}:
        producer = state.dag[name]
        if isinstance(producer, Compute) and producer.reduce_axes:
            found.append(producer)
    if len(found) != 1 or not _matches(op, found[0]):
        return None
    name = found[0].name
    only = len(state.dag.consumers(name)) == 1 and name not in state.dag.outputs
    return found[0] if only and state[found[0].name].attach is None else None


def _reuses(op: Compute) -> bool:
    """Whether some element is read for more than one output point (other than by a window)."""
    wide = {a.name for a in op.axes if a.extent > 1}
    return any(wide - {v for i in x.indices for v in variables(i)} for x in op.reads)


def _vector_everywhere(op: Compute) -> bool:
    """Whether every load advances with the innermost axis (depthwise, pooling)."""
    last = op.axes[-1].name
    return all(any(last in variables(i) for i in x.indices) for x in op.reads)


def _window_size(op: Compute) -> int:
    size = 1
    for a in op.reduce_axes:
        size *= a.extent
    return size


def _shared_axes(state: State, op: Compute, inner: list[Compute]) -> int:
    """How many leading axes of `op` all inner stages have too, read at the same place."""
    count = len(op.axes) - 1
    for s in inner:
        for reader in state.dag.consumers(s.name):
            for load in (x for x in reader.reads if x.tensor.name == s.name):
                same = 0
                for i, a in zip(load.indices, reader.axes, strict=False):
                    if i != a.var:
                        break
                    same += 1
                count = min(count, same)
    return count


# --- tiling -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Variant:
    """One structural choice of multi-level tiling."""

    channels_outside: bool
    panels_outside: bool
    k_blocked: bool
    unroll_window: bool
    inline_producers: bool = False
    copy_inputs: bool = False
    producers_per_k: bool = False

    @property
    def label(self) -> str:
        """Name of the structure in logs and reports."""
        words = ["channels>pixels" if self.channels_outside else "pixels>channels"]
        words.append("panels>tiles" if self.panels_outside else "tiles>panels")
        words += ["k-blocked"] if self.k_blocked else []
        words += ["window-unrolled"] if self.unroll_window else []
        words += ["inlined"] if self.inline_producers else []
        words += ["copied"] if self.copy_inputs else []
        words += ["per-k"] if self.producers_per_k else []
        return ",".join(words)


def _variants(anchor: Compute, consumer: Compute) -> list[_Variant]:
    pixels = any(a.extent > 1 for a in consumer.axes[:-1])
    if not _reuses(anchor) or _vector_everywhere(anchor):
        window = _window_size(anchor) <= MAX_UNROLLED_REDUCTION
        orders = (True, False) if pixels else (False,)
        return [
            _Variant(o, o, False, unroll, inline)
            for o in orders
            for unroll in ((True, False) if window else (False,))
            for inline in (False, True)
        ]
    if not pixels:
        return [_Variant(False, True, False, False)]
    plain = [_Variant(o, m, False, False) for o in (True, False) for m in (True, False)]
    copied = [_Variant(o, True, False, False, copy_inputs=True) for o in (True, False)]
    blocked = [_Variant(o, True, True, False) for o in (True, False)]
    per_k = [
        _Variant(o, True, True, False, copy_inputs=c, producers_per_k=True)
        for o in (True, False)
        for c in (True, False)
    ]
    return plain + copied + blocked + per_k


def _tile(
    dag: ComputeDAG, target: Target, p: Partial, op: Compute, anchor: Compute, v: _Variant
) -> list[Partial]:
    """Tile consumer `op`, put `anchor` inside, then its producers."""
    state = p.state(dag)
    producers = [
        r
        for r in dict.fromkeys(x.tensor.name for x in anchor.reads)
        if isinstance(state.dag[r], Compute)
        and state.dag.consumers(r) == (anchor,)
        and r not in state.dag.outputs
    ]
    copied = [] if producers or not v.copy_inputs else _activations(state, anchor)
    if v.copy_inputs and not copied:
        return []
    if (v.inline_producers or v.producers_per_k) and not (producers or copied):
        return []
    out = p
    for name in copied:
        out = out.add(CacheRead(name, anchor.name, f"{name}.copy"))
        producers.append(f"{name}.copy")
    out, loops = _tile_consumer(out, op, target, v)
    out = _place_anchor(out, op, anchor, loops, v)
    host, loop = op.name, loops.blocks[-1]
    if v.producers_per_k:
        host, loop = anchor.name, f"{anchor.reduce_axes[-1].name}.0"
    for name in producers:
        if v.inline_producers:
            out = out.add(ComputeInline(name), done=(name,))
        else:
            out = _place_producer(out.state(dag), out, name, host, loop, target)
    out = _pack_constants(out.state(dag), out, anchor)
    if not v.k_blocked:
        out = _touch_early(out.state(dag), out, op.name)
    return [out.add(done=(op.name, anchor.name), label=v.label)]


@dataclass(frozen=True, slots=True)
class _Loops:
    """Names of the consumer's loops by level."""

    blocks: tuple[str, ...]
    tiles: tuple[str, ...]
    vector: str


def _tile_consumer(p: Partial, op: Compute, target: Target, v: _Variant) -> tuple[Partial, _Loops]:
    pixels = [a for a in op.axes[:-1] if a.extent > 1]
    channel = op.axes[-1]
    ones = [a.name for a in op.axes[:-1] if a.extent == 1]
    out = p
    for a in pixels:
        tile, many = f"{a.name}.tile", f"{a.name}.tiles"
        out = out.hole(tile, _tile_domain(a.extent)).hole(many, _count_domain(a.extent))
        out = out.add(Split(op.name, a.name, (Hole(many), Hole(tile)), "split"))
    out = _channel_holes(out, channel, target)
    factors = (Hole("panels"), Hole("vectors"), Hole("lanes"))
    out = out.add(Split(op.name, channel.name, factors, "shift"))
    c = channel.name
    pixel_blocks = [f"{a.name}.0" for a in pixels]
    pixel_tiles = [f"{a.name}.1" for a in pixels]
    blocks = [f"{c}.0", *pixel_blocks] if v.channels_outside else [*pixel_blocks, f"{c}.0"]
    tiles = [f"{c}.1", *pixel_tiles] if v.panels_outside else [*pixel_tiles, f"{c}.1"]
    inner = [f"{a.name}.2" for a in pixels]
    order = (*ones, *blocks, *tiles, *inner, f"{c}.2", f"{c}.3")
    out = out.add(Reorder(op.name, order), Parallel(op.name, len(ones) + len(blocks)))
    marks = [Annotate(op.name, n, "unroll") for n in (*inner, f"{c}.2")]
    out = out.add(*marks, Annotate(op.name, f"{c}.3", "vectorize"))
    return out, _Loops(tuple(blocks), tuple(tiles), c)


def _place_anchor(p: Partial, op: Compute, anchor: Compute, loops: _Loops, v: _Variant) -> Partial:
    """The reduction on the register tile, or (k-blocked) on the block with tiles of its own."""
    a, rename = anchor.name, dict(zip((x.name for x in op.axes), anchor.axes, strict=True))
    channel = rename[loops.vector].name
    pixels = [x.name for x in anchor.axes if x.name != channel]
    reduction = [x.name for x in anchor.reduce_axes]
    last = anchor.reduce_axes[-1]
    out = p
    if v.k_blocked:
        return _place_blocked_anchor(out, op, anchor, loops, v)
    out = out.add(ComputeAt(a, op.name, loops.tiles[-1] if loops.tiles else loops.blocks[-1]))
    out = out.add(Split(a, channel, (Hole("lanes"),)))
    unrolled: list[str] = []
    if v.unroll_window:
        unrolled = reduction
    else:
        out, reduction, unrolled = _unroll_last(out, anchor, last, reduction)
    order = (*reduction, *(n for n in unrolled if n not in reduction), *pixels)
    out = out.add(Reorder(a, (*order, f"{channel}.0", f"{channel}.1")))
    marks = [Annotate(a, n, "unroll") for n in (*unrolled, *pixels, f"{channel}.0")]
    return out.add(*marks, Annotate(a, f"{channel}.1", "vectorize"))


def _place_blocked_anchor(
    p: Partial, op: Compute, anchor: Compute, loops: _Loops, v: _Variant
) -> Partial:
    a, rename = anchor.name, dict(zip((x.name for x in op.axes), anchor.axes, strict=True))
    channel = rename[loops.vector].name
    last = anchor.reduce_axes[-1]
    reduction = [x.name for x in anchor.reduce_axes[:-1]]
    tiled = [(rename[x.name].name, f"{x.name}.tile") for x in op.axes[:-1] if x.extent > 1]
    ones = [rename[x.name].name for x in op.axes[:-1] if x.extent == 1]
    out = p.add(ComputeAt(a, op.name, loops.blocks[-1]))
    out = out.hole("k.block", _block_domain(last.extent))
    out = out.add(Split(a, last.name, (Hole("k.block"),), "split"))
    for name, tile in tiled:
        out = out.add(Split(a, name, (Hole(tile),), "split"))
    out = out.add(Split(a, channel, (Hole("vectors"), Hole("lanes"))))
    panel, tiles = f"{channel}.0", [f"{n}.0" for n, _ in tiled]
    middle = [panel, *tiles] if v.panels_outside else [*tiles, panel]
    inner = [f"{n}.1" for n, _ in tiled] + [f"{channel}.1"]
    order = (*ones, f"{last.name}.0", *middle, *reduction, f"{last.name}.1")
    out = out.add(Reorder(a, (*order, *inner, f"{channel}.2")))
    marks = [Annotate(a, n, "unroll") for n in inner]
    return out.add(*marks, Annotate(a, f"{channel}.2", "vectorize"))


def _unroll_last(
    p: Partial, anchor: Compute, last: Axis, reduction: list[str]
) -> tuple[Partial, list[str], list[str]]:
    """Unroll a few steps of the innermost reduction loop."""
    domain = tuple(u for u in (1, 2, 4, 8) if last.extent % u == 0)
    if last.extent <= 8:
        return p, reduction, [last.name]
    if len(domain) == 1:
        return p, reduction, []
    out = p.hole("k.unroll", domain).add(Split(anchor.name, last.name, (Hole("k.unroll"),)))
    names = [*reduction[:-1], f"{last.name}.0"]
    return out, names, [f"{last.name}.1"]


def _place_producer(
    state: State, p: Partial, name: str, target_stage: str, loop: str, target: Target
) -> Partial:
    """A pointwise producer computed for each block, vectorised over its innermost axis."""
    op = state[name].op
    out = p.add(ComputeAt(name, target_stage, loop), done=(name,))
    last = op.axes[-1]
    lanes = _lanes(last.extent, target)
    if lanes == 1 or not _advances(op, last):
        return out
    out = out.add(Split(name, last.name, (lanes,)))
    return out.add(Annotate(name, f"{last.name}.1", "vectorize"))


def _advances(op: Compute, axis: Axis) -> bool:
    """Whether all loads move by one element, or not at all, along `axis`."""
    for x in op.reads:
        for i in x.indices[:-1]:
            if axis.name in variables(i):
                return False
        if x.indices and linear(x.indices[-1]).is_opaque_in(axis.name):
            return False
    return True


def _pack_constants(state: State, p: Partial, anchor: Compute) -> Partial:
    out = p
    for name in dict.fromkeys(x.tensor.name for x in state[anchor.name].op.reads):
        op = state.dag[name]
        if isinstance(op, Placeholder) and op.constant:
            hole = f"{name}.prefetch"
            out = out.hole(hole, (NEXT_CHUNK, 0, 512, 2048))
            out = out.add(Pack(name, anchor.name), Prefetch(name, anchor.name, Hole(hole)))
    return out


def _touch_early(state: State, p: Partial, name: str) -> Partial:
    """Fetch what the consumer reads and writes of activations while its reduction runs."""
    reads = dict.fromkeys(x.tensor.name for x in state[name].op.reads)
    found = [n for n in reads if isinstance(o := state.dag[n], Placeholder) and not o.constant]
    out = p.hole("tile.touch", (0, 1))
    return out.add(*(Prefetch(n, name, Hole("tile.touch")) for n in (*found, name)))


def _activations(state: State, anchor: Compute) -> list[str]:
    """Non-constant inputs that the reduction reads directly."""
    names = dict.fromkeys(x.tensor.name for x in anchor.reads)
    return [n for n in names if isinstance(op := state.dag[n], Placeholder) and not op.constant]


# --- rows and vectors -------------------------------------------------------------------------


def _vector_split(p: Partial, state: State, op: Compute, target: Target, prefix: str) -> Partial:
    """Split the innermost axis of a pointwise stage into vectors, a few of them unrolled."""
    last = op.axes[-1]
    lanes = _lanes(last.extent, target) if _advances(op, last) else 1
    if lanes == 1:
        hole = f"{prefix}.{last.name}.unroll"
        out = p.hole(hole, tuple(u for u in (1, 2, 4, 8) if u <= last.extent))
        out = out.add(Split(op.name, last.name, (Hole(hole),)))
        return out.add(Annotate(op.name, f"{last.name}.1", "unroll"))
    hole = f"{prefix}.{last.name}.vectors"
    out = p.hole(hole, tuple(u for u in (1, 2, 4, 8) if u * lanes <= last.extent))
    out = out.add(Split(op.name, last.name, (Hole(hole), lanes)))
    out = out.add(Annotate(op.name, f"{last.name}.1", "unroll"))
    return out.add(Annotate(op.name, f"{last.name}.2", "vectorize"))


def _place_row_stage(
    dag: ComputeDAG, target: Target, p: Partial, name: str, root: str, row: str
) -> Partial:
    op = p.state(dag)[name].op
    if op.reduce_axes:
        return _place_row_reduction(p, op, root, row, target)
    return _place_producer(p.state(dag), p, name, root, row, target)


def _place_row_reduction(
    p: Partial, op: Compute, root: str | None, row: str, target: Target
) -> Partial:
    """A reduction of one row, in loop `row` of `root` or (None) of its own nest: by rfactor."""
    last = op.reduce_axes[-1]
    width = _rfactor_width(op, last, target)
    host = root or op.name
    if width == 0:
        return _place_column_reduction(p.add(ComputeAt(op.name, host, row)), op, target)
    partial = f"{op.name}.lanes"
    out = p.add(RFactor(op.name, width, partial))
    if root is not None:
        out = out.add(ComputeAt(op.name, root, row))
    out = out.add(ComputeAt(partial, host, row), done=(partial,))
    lane = f"{last.name}.r"
    out = out.add(Split(partial, lane, (min(width, target.lanes),)))
    spatial = [a.name for a in op.axes]
    reduction = [a.name for a in op.reduce_axes]
    out = out.add(Reorder(partial, (*spatial, *reduction, f"{lane}.0", f"{lane}.1")))
    out = out.add(Annotate(partial, f"{lane}.0", "unroll"))
    return out.add(Annotate(partial, f"{lane}.1", "vectorize"))


def _place_column_reduction(p: Partial, op: Compute, target: Target) -> Partial:
    """A reduction whose innermost spatial axis can be the vector."""
    if not op.axes:
        return p
    last = op.axes[-1]
    lanes = _lanes(last.extent, target)
    body = op.body.body if isinstance(op.body, Reduce) else op.body
    if lanes == 1 or not _advances(replace(op, body=body), last):
        return p
    out = p.add(Split(op.name, last.name, (lanes,)))
    outer = [a.name for a in op.axes[:-1]] + [f"{last.name}.0"]
    reduction = [a.name for a in op.reduce_axes]
    out = out.add(Reorder(op.name, (*outer, *reduction, f"{last.name}.1")))
    return out.add(Annotate(op.name, f"{last.name}.1", "vectorize"))


def _rfactor_width(op: Compute, last: Axis, target: Target) -> int:
    """Partial results of a contiguous reduction: most that divide it, up to four vectors."""
    contiguous = all(
        x.indices and x.indices[-1] == Var(last.name) and not _elsewhere(x, last)
        for x in op.reads
        if any(last.name in variables(i) for i in x.indices)
    )
    if not contiguous:
        return 0
    for width in (4 * target.lanes, 2 * target.lanes, target.lanes, target.lanes // 2, 4):
        if last.extent % width == 0 and last.extent > width:
            return width
    return 0


def _elsewhere(x: Load, axis: Axis) -> bool:
    return any(axis.name in variables(i) for i in x.indices[:-1])


# --- domains ----------------------------------------------------------------------------------


def _lanes(extent: int, target: Target) -> int:
    """Widest vector that fits the extent."""
    lanes = target.lanes
    while lanes > extent:
        lanes //= 2
    return lanes


def _channel_holes(p: Partial, channel: Axis, target: Target) -> Partial:
    lanes = _lanes(channel.extent, target)
    widths: tuple[int, ...] = (lanes,)
    if channel.extent % lanes and lanes > 4:
        widths = (lanes // 2, lanes)
    count = -(-channel.extent // widths[0])
    vectors = tuple(n for n in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16) if n <= count)
    p = p.hole("lanes", widths).hole("vectors", vectors)
    return p.hole("panels", _count_domain(count))


def _tile_domain(extent: int) -> tuple[int, ...]:
    return tuple(range(1, min(extent, MAX_TILE) + 1))


def _count_domain(extent: int) -> tuple[int, ...]:
    """How many tiles make a block: small numbers, divisors, then powers of two, then all."""
    small = set(range(1, min(extent, 8) + 1))
    divisors = {d for d in range(1, extent + 1) if extent % d == 0 and d <= 512}
    powers = {1 << k for k in range(extent.bit_length())}
    return tuple(sorted(n for n in small | divisors | powers if n <= extent))


def _block_domain(extent: int) -> tuple[int, ...]:
    """Length of a reduction block: divisors from 16 up to half of the reduction."""
    found = tuple(d for d in range(16, extent // 2 + 1) if extent % d == 0)
    return found or (extent,)
