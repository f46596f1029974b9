"""A sketch rule of your own, for `workloads.py:blur`:

autotune tune workloads.py:blur --args 1024,1024 --trials 32 --rules rules.py --log blur.jsonl

A blur has two pointwise stages; the second reads three rows of the first. The rules that come with
autotune compute all of the first, then all of the second: the rows between them go to memory and
come back. This rule computes the first inside blocks of rows of the second, so they stay in cache.
"""

from __future__ import annotations

from autotune.rules import (
    Annotate,
    ComputeAt,
    Hole,
    Parallel,
    Partial,
    Role,
    Split,
    Target,
    lanes_of,
)


def rows_in_blocks(p: Partial, name: str, target: Target) -> list[Partial] | None:
    """A pointwise stage of two axes, with the pointwise stage that it reads, in blocks of rows."""
    stage = p.state[name]
    read = {load.tensor.name for load in stage.op.reads}
    producers = [s for n, s in p.state.stages.items() if n in read and n not in p.done]
    stages = (stage, *producers)
    if len(stages) != 2 or any(s.attach or s.op.reduce_axes or len(s.op.axes) != 2 for s in stages):
        return None
    (producer,) = producers
    if len(p.state.dag.consumers(producer.name)) > 1:
        return None
    row, rows = stage.op.axes[0].name, f"{name}.rows"
    out = p.hole(rows, (2, 4, 8, 16, 32, 64), Role.TILE).add(
        Split(name, row, (Hole(rows),)),
        Parallel(name, 1),
        ComputeAt(producer.name, name, f"{row}.0"),
    )
    for op in (stage.op, producer.op):
        column = op.axes[1]
        out = out.add(
            Split(op.name, column.name, (lanes_of(column.extent, target),)),
            Annotate(op.name, f"{column.name}.1", "vectorize"),
        )
    return [out.add(done=(name, producer.name), tags=("row-blocks",))]


RULES = (rows_in_blocks,)
