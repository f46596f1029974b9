"""④ Pass `pack`: store constants in the order in which kernels read them.

This is Ansor's layout rewrite, made general.

For every load `w[f(loops)]` of a constant that the schedule packs, the loops that occur in `f`,
outermost first, become the dimensions of a new constant `w.packed`: it is read strictly in order,
overlapping tiles repeat the elements they share, and no index arithmetic is left.

A constant in blocks (`Pack.block`) is stored alike whatever the loops, so that programs of other
tiles share it, and one that reads rows which data tell:

    w[k, n]  ->  w.packed[n / 16, k, n mod 16]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd

from autotune.errors import ScheduleError
from autotune.loopir.arguments import with_arguments
from autotune.loopir.lowering import Lowering
from autotune.loopir.nodes import (
    Alloc,
    Body,
    Buffer,
    For,
    If,
    Kernel,
    Let,
    Packing,
    Program,
    Stmt,
    Store,
)
from autotune.loopir.visitor import body_loads, rewrite_exprs, statements
from autotune.strides import dense
from autotune.te.arith import bounds, linear, simplify
from autotune.te.expr import (
    Axis,
    Expr,
    Load,
    Tensor,
    Var,
    floordiv,
    idx,
    loads,
    mod,
    substitute,
    variables,
)

Loops = tuple[tuple[str, int], ...]


def pack_constants(program: Program, lowering: Lowering) -> Program:
    """Apply the `pack` steps of all stages; constants that no kernel reads are dropped."""
    stages = lowering.state.stages.values()
    blocks = {name: n for s in stages for name, n in s.blocks}
    packer = _Packer({name: blocks.get(name, 0) for s in stages for name in s.packs})
    kernels = tuple(packer.kernel(k) for k in program.kernels)
    packed = [Buffer(p.packed, "constant", dense(p.packed.shape)) for p in packer.packings]
    used = {x.tensor.name for k in kernels for x in body_loads(k.body)}
    kept = [b for b in program.buffers if b.role != "constant" or b.name in used]
    buffers, packs = (*kept, *packed), tuple(packer.packings)
    return with_arguments(replace(program, buffers=buffers, packs=packs, kernels=kernels))


class _Packer:
    """Collects one packing per constant and reading order; `wanted`: constants and their blocks."""

    def __init__(self, wanted: Mapping[str, int]) -> None:
        self.wanted = wanted
        self.packings: list[Packing] = []
        self.lanes: set[str] = set()

    def kernel(self, kernel: Kernel) -> Kernel:
        if not self.wanted:
            return kernel
        loops = (s for s in statements(kernel.body) if isinstance(s, For))
        self.lanes = {loop.var for loop in loops if loop.kind == "vectorize"}
        return replace(kernel, body=self._body(kernel.body, (), kernel.extent))

    def _body(self, body: Body, loops: Loops, extent: int) -> Body:
        out: list[Stmt] = []
        lets: list[tuple[str, Expr]] = []
        for stmt in body:
            if isinstance(stmt, Let):
                lets.append((stmt.var, stmt.value))
                out.append(stmt)
                continue
            here = loops + tuple((n, _let_extent(v, extent)) for n, v in reversed(lets))
            out.append(self._stmt(stmt, here, extent))
        return tuple(out)

    def _stmt(self, stmt: Stmt, loops: Loops, extent: int) -> Stmt:
        match stmt:
            case For(var=var, extent=n, body=body):
                return replace(stmt, body=self._body(body, (*loops, (var, n)), extent))
            case Alloc(body=body):
                return replace(stmt, body=self._body(body, loops, extent))
            case If(cond=cond, then=then, orelse=orelse):
                return If(cond, self._body(then, loops, extent), self._body(orelse, loops, extent))
            case Store():
                return rewrite_exprs((stmt,), lambda e: self._load(e, loops))[0]
            case _:
                return stmt

    def _load(self, e: Expr, loops: Loops) -> Expr | None:
        if not isinstance(e, Load) or e.tensor.name not in self.wanted:
            return None
        if self.wanted[e.tensor.name]:
            return self._in_blocks(e, loops, self.wanted[e.tensor.name])
        if any(map(loads, e.indices)):
            return None  # the reading order depends on data
        used = {v for i in e.indices for v in variables(i)}
        dims = [(n, size) for n, size in loops if n in used]
        names = {n: Var(f"i{k}") for k, (n, _) in enumerate(dims)}
        axes = tuple(Axis(f"i{k}", size) for k, (_, size) in enumerate(dims))
        indices = tuple(substitute(i, dict(names)) for i in e.indices)
        packing = self._packing(e.tensor, axes, indices)
        return Load(packing.packed, tuple(Var(n) for n, _ in dims) or (idx(0),))

    def _in_blocks(self, e: Load, loops: Loops, n: int) -> Load:
        """`e` from blocks of `n` elements of the last dimension."""
        ranges = {name: (0, extent - 1) for name, extent in loops}
        *outer, last = e.indices
        lanes = self.lanes & {v for i in e.indices for v in variables(i)}
        unit = gcd(n, *(extent for name, extent in loops if name in lanes)) if lanes else 1
        unit_number, place = (simplify(f(last, idx(unit)), ranges) for f in (floordiv, mod))
        block, first = (simplify(f(unit_number, idx(n // unit)), ranges) for f in (floordiv, mod))
        at = (block, *outer, simplify(first * unit + place, ranges))
        is_known = not any(map(loads, e.indices))
        if is_known and any(linear(at[-1]).coefficient(lane) != 1 for lane in lanes):
            raise ScheduleError(
                f"vectors along {e.tensor.name} are not within blocks of {n}",
                "pack it in the order of the loops",
            )
        *extents, size = e.tensor.shape
        shape = (-(-size // n), *extents, n)
        axes = tuple(Axis(f"i{k}", extent) for k, extent in enumerate(shape))
        number, *others, within = (a.var for a in axes)
        packing = self._packing(e.tensor, axes, (*others, number * n + within))
        return Load(packing.packed, at)

    def _packing(
        self, source: Tensor, axes: tuple[Axis, ...], indices: tuple[Expr, ...]
    ) -> Packing:
        axes = axes or (Axis("i0", 1),)
        for p in self.packings:
            if p.source.name == source.name and p.indices == indices and _holds(p.axes, axes):
                return p
        number = sum(p.source.name == source.name for p in self.packings)
        shape = tuple(a.extent for a in axes)
        packed = Tensor(f"{source.name}.packed{number or ''}", shape, source.dtype)
        self.packings.append(Packing(packed, source, axes, indices))
        return self.packings[-1]


def _holds(big: tuple[Axis, ...], small: tuple[Axis, ...]) -> bool:
    """Whether an array packed over `big` contains every point of `small`."""
    return len(big) == len(small) and all(
        a.extent >= b.extent for a, b in zip(big, small, strict=True)
    )


def _let_extent(value: Expr, total: int) -> int:
    """Number of values of a decoded parallel index `t // a % b` (or `t // a`, or `t`)."""
    return bounds(value, {"t": (0, total - 1)})[1] + 1
