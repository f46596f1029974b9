"""A sketch rule of your own: `autotune tune MODEL --rules rules.py`, or `Task.tune(rules=RULES)`.

Transposing a matrix reads a column for every vector that it writes. The rules that come with
autotune run over whole rows or whole columns, so of each cache line that is fetched one element is
used before the line is gone. This one adds blocks: all rows of a block are written before the next.
"""

from __future__ import annotations

from autotune.rules import Annotate, Hole, Parallel, Partial, Reorder, Role, Split, Target


def block_transposition(p: Partial, name: str, target: Target) -> list[Partial] | None:
    """A pointwise stage of two axes that reads a tensor the other way around, in blocks."""
    stage = p.state[name]
    op = stage.op
    if op.reduce_axes or stage.attach or len(op.axes) != 2:
        return None
    row, column = op.axes
    if not any(load.indices == (column.var, row.var) for load in op.reads):
        return None
    i, j, rows, vectors = row.name, column.name, f"{name}.rows", f"{name}.vectors"
    out = p.hole(rows, (16, 32, 64), Role.TILE).hole(vectors, (1, 2, 4), Role.TILE)
    out = out.add(
        Split(name, i, (Hole(rows),)),
        Split(name, j, (Hole(vectors), target.lanes)),
        Reorder(name, (f"{i}.0", f"{j}.0", f"{j}.1", f"{i}.1", f"{j}.2")),
        Parallel(name, 2),
        Annotate(name, f"{j}.2", "vectorize"),
    )
    return [out.add(done=(name,), tags=("blocks",))]


RULES = (block_transposition,)
