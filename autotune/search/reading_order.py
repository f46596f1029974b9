"""⑥ Holes of a sketch that decide the order in which a program reads its constants.

Programs that differ in other holes alone pack their constants alike.
"""

from __future__ import annotations

from autotune.schedule.steps import Prefetch, Split, holes_of
from autotune.search.space import Sketch
from autotune.te.dag import ComputeDAG
from autotune.te.expr import variables


def order_holes(dag: ComputeDAG, sketch: Sketch) -> list[int]:
    """Columns of the rows of `sketch` that may change the order of a constant.

    All but distances of prefetching and splits of axes that no constant depends on. Stages that
    the sketch adds to `dag` are not followed: their holes count.
    """
    axes, known = _axes_of_constants(dag), {op.name for op in dag.computes}
    counts: set[str] = set()
    for step in sketch.steps:
        if isinstance(step, Split) and step.stage in known and not _splits_any(step, axes):
            continue
        if not isinstance(step, Prefetch):
            counts.update(holes_of(step))
    return [n for n, parameter in enumerate(sketch.parameters) if parameter.name in counts]


def _axes_of_constants(dag: ComputeDAG) -> set[tuple[str, str]]:
    """Computes with those of their axes that an index of a constant depends on.

    An axis also counts that indexes such an axis of another compute: tiles of a consumer are
    tiles of its producer.
    """
    dims = {p.name: set(range(len(p.tensor.shape) * p.constant)) for p in dag.placeholders}
    found: set[tuple[str, str]] = set()
    for op in dag.computes:
        used = {
            axis
            for load in op.reads
            for n in dims[load.tensor.name]
            for axis in variables(load.indices[n])
        }
        found |= {(op.name, axis) for axis in used}
        dims[op.name] = {n for n, axis in enumerate(op.axes) if axis.name in used}
    return found


def _splits_any(step: Split, axes: set[tuple[str, str]]) -> bool:
    """Whether a split cuts one of `axes`; `c.0` is a part of c, `h+w` a loop over both."""
    return any((step.stage, loop.split(".")[0]) in axes for loop in step.iter.split("+"))
