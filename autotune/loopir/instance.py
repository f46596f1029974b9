"""④ One version of a stage that is being lowered: the size and the meaning of its loops."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from autotune.errors import ScheduleError
from autotune.schedule.state import Iterator, SplitRelation, Stage
from autotune.te.arith import simplify
from autotune.te.expr import (
    Binary,
    Compare,
    Const,
    Expr,
    Tensor,
    Var,
    add,
    floordiv,
    idx,
    map_expr,
    minimum,
    mod,
    mul,
    substitute,
    variables,
    walk,
)
from autotune.te.prefixes import limit_of

Ranges: TypeAlias = dict[str, tuple[int, int]]
"""Lowest and highest value of the loops around."""


def loop_var(stage: Stage, it: Iterator) -> str:
    """Name of a loop in the program."""
    return f"{stage.name}.{it.name}"


def leaves(stage: Stage, names: tuple[str, ...]) -> list[str]:
    """The loops that `names` were split into, or they themselves."""
    out = []
    for name in names:
        rel = next((r for r in stage.splits if r.parent == name), None)
        out += leaves(stage, rel.children) if rel else [name]
    return out


def fuse_sizes(stage: Stage, sizes: dict[str, int]) -> None:
    """Add the extents of fused loops whose parts are known."""
    for fused in stage.fuses:
        if fused.loop not in sizes and fused.outer in sizes and fused.inner in sizes:
            sizes[fused.loop] = sizes[fused.outer] * sizes[fused.inner]


def unshifted(e: Expr, var: str) -> Expr:
    """`e` with the tiles of loop `var` where they are before the last is moved inwards."""

    def one(x: Expr) -> Expr | None:
        match x:
            case Binary(op="min", a=a, b=Const()) if var in variables(a):
                return map_expr(a, one)
        return None

    return map_expr(e, one)


@dataclass(frozen=True)
class Instance:
    """A stage being lowered: start and extent of its region per axis; `local` when attached.

    `overrides`: extents of loops that differ in this version; `versioned`: loops of which this is
    the version for full tiles or the one for the remainder.
    """

    stage: Stage
    starts: tuple[Expr, ...]
    extents: dict[str, int]
    overrides: tuple[tuple[str, int], ...] = ()
    versioned: frozenset[str] = frozenset()
    local: bool = False

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Extent of every loop, split ones included, in this version."""
        chosen = dict(self.overrides)
        out = {a.name: self.extents[a.name] for a in self.stage.axes}
        fuse_sizes(self.stage, out)
        for rel in self.stage.splits:
            extent = out[rel.parent]
            for child, nominal in zip(rel.children[:0:-1], rel.factors[::-1], strict=True):
                factor = min(int(nominal), extent)
                out[child] = chosen.get(child, factor)
                extent = -(-extent // factor)
            out[rel.children[0]] = extent
            fuse_sizes(self.stage, out)
        return out

    def factor(self, rel: SplitRelation) -> int:
        """Size of the innermost tile of a split."""
        return min(int(rel.factors[-1]), self.sizes[rel.parent])

    def remainder(self, rel: SplitRelation) -> int:
        """What is left of the parent of a split behind its full tiles."""
        return self.sizes[rel.parent] % self.factor(rel)

    def versions_ready(self, depth: int, kind: str = "") -> list[SplitRelation]:
        """Splits whose tile number is known before loop `depth`, and whose last tile may be smaller
        than others."""
        return [rel for rel in self.stage.splits if self._is_ready(rel, depth, kind)]

    def _is_ready(self, rel: SplitRelation, depth: int, kind: str) -> bool:
        if rel.parent in self.versioned or (rel.tail != "split" and self.remainder(rel)):
            return False
        names = leaves(self.stage, rel.children[:-1])
        loops = [n for n, it in enumerate(self.stage.iters) if it.name in names]
        if len(loops) < len(names) or max(loops) >= depth:  # fused, or not known yet
            return False
        return kind in ("", self.stage.iters[loops[0]].kind)

    def loop_value(self, it: Iterator) -> Expr:
        """The variable of a loop; 0 where it runs once."""
        return idx(0) if self.sizes[it.name] == 1 else Var(loop_var(self.stage, it))

    def tile_number(self, rel: SplitRelation) -> Expr:
        """Number of the innermost tile of a split; outer levels shift inwards."""
        counts = [-(-self.sizes[rel.parent] // self.factor(rel))]
        for nominal in rel.factors[-2::-1]:
            counts.append(-(-counts[-1] // min(int(nominal), counts[-1])))
        value = self._value(rel.children[0])
        levels = zip(rel.children[1:-1], rel.factors[:-1], counts[-2::-1], strict=True)
        for child, nominal, n in levels:
            factor = min(int(nominal), n)
            start = mul(value, idx(factor))
            if n % factor:
                self._refuse_reduction(rel.parent)
                start = minimum(start, idx(n - factor))
            value = add(start, self._value(child))
        return value

    def limit(self, it: Iterator, ranges: Ranges) -> Expr | None:
        """The length of a loop over an axis that has a limit, by the loops around; None for other
        loops, and for those that are computed whole."""
        if it.kind == "spatial":
            return self._up_to_limit(it, ranges)
        stage = self.stage
        axis = stage.ragged(it.name)
        if axis is None or axis.limit is None:
            return None
        limit = simplify(substitute(axis.limit, self.axis_values()), ranges)
        inside = {loop_var(stage, i) for i in stage.iters[stage.position(it.name) :]}
        for name in sorted(variables(limit) & inside):
            raise ScheduleError(
                f"{stage.name}: the length of {it.name} depends on {name} inside",
                f"reorder: {name} outside of {it.name}",
            )
        return limit

    def _up_to_limit(self, it: Iterator, ranges: Ranges) -> Expr | None:
        """The tiles of a spatial loop that begin in front of the limit of its axis.

        A tile that `tail="shift"` moves inwards begins where it would without: those before it
        reach as far as it begins then, if they are whole, so their loops have to be inside.
        """
        stage, limits = self.stage, self.stage.op.limits
        if not limits or it.annotation:
            return None
        var, values = loop_var(stage, it), self.axis_values()
        inside = {loop_var(stage, i) for i in stage.iters[stage.position(it.name) + 1 :]}
        for name, limit in limits.items():
            if var not in variables(values[name]):
                continue
            if not self._is_nested(name, values[name]):
                return None
            first = substitute(values[name], dict.fromkeys(inside, idx(0)))
            first = simplify(unshifted(first, var), ranges)
            return limit_of(Compare("lt", first, limit), var, ())
        return None

    def _is_nested(self, axis: str, value: Expr) -> bool:
        """Whether every loop over `axis` is inside of those over larger tiles, or none shifts."""
        loops = [n for n in leaves(self.stage, (axis,)) if self.sizes[n] > 1]
        own = {f"{self.stage.name}.{n}" for n in loops}
        shifts = (e for e in walk(value) if isinstance(e, Binary) and e.op == "min")
        if not any(own & variables(e) for e in shifts):
            return True
        return loops == [i.name for i in self.stage.iters if i.name in loops]

    def axis_values(self) -> dict[str, Expr]:
        """The index along every axis, from the loops."""
        values = self._local_values()
        for axis, start in zip(self.stage.op.axes, self.starts, strict=True):
            values[axis.name] = add(start, values[axis.name])
        return values

    def target(self, ranges: Ranges) -> tuple[Tensor, tuple[Expr, ...]]:
        """Target of the stage's stores: its own tensor, or a local one of its region's size."""
        op = self.stage.op
        values = self._local_values() if self.local else self.axis_values()
        where = tuple(simplify(values[a.name], ranges) for a in op.axes)
        if not self.local:
            return op.tensor, where
        shape = tuple(self.extents[a.name] for a in op.axes)
        return Tensor(op.name, shape, op.tensor.dtype), where

    def has_overlap(self) -> bool:
        """Whether some spatial point is computed by more than one tile."""
        return any(rel.overlaps(self.sizes[rel.parent]) for rel in self.stage.splits)

    def covers(self, depth: int) -> bool:
        """Whether the tile below `depth` is the whole region."""
        outer = (i for i in self.stage.iters[:depth] if i.kind == "spatial")
        return all(self.sizes[i.name] == 1 for i in outer)

    def _local_values(self) -> dict[str, Expr]:
        return {a.name: self._value(a.name) for a in self.stage.axes}

    def _value(self, name: str) -> Expr:
        """Value of a loop or axis within the region, from the loops that it became."""
        rel = next((r for r in self.stage.splits if r.parent == name), None)
        if rel is None:
            return self._leaf_value(name)
        extent, factor = self.sizes[name], self.factor(rel)
        start = mul(self.tile_number(rel), idx(factor))
        if extent % factor and rel.tail == "shift":
            self._refuse_reduction(name)
            start = minimum(start, idx(extent - factor))
        return add(start, self._value(rel.children[-1]))

    def _leaf_value(self, name: str) -> Expr:
        """Value of an iterator that is not split: a loop, or one of two that were fused."""
        fused = next((f for f in self.stage.fuses if name in (f.outer, f.inner)), None)
        if fused is None:
            return self.loop_value(self.stage.iter(name))
        both, inner = self._value(fused.loop), idx(self.sizes[fused.inner])
        return floordiv(both, inner) if name == fused.outer else mod(both, inner)

    def _refuse_reduction(self, name: str) -> None:
        if any(name == a.name or name.startswith(f"{a.name}.") for a in self.stage.op.reduce_axes):
            raise ScheduleError(
                f"{self.stage.name}: a reduction over {name} must not overlap",
                "split it by a factor that divides its extent, or with tail='split'",
            )
