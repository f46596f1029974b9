"""② Stages that feed one another alone, and chains of rows: a product, its rows made into others
of their kind, and the product that reads these, as attention has them.

    s[b, i, j] = Σ q[b, i, k] · k[b, k, j]            the first product, its pointwise consumers
    p[b, i, j] = exp(s[b, i, j] - max …) / Σ exp …    rows: all that is read has the same (b, i)
    o[b, i, n] = Σ p[b, i, j] · v[b, j, n]            the last product reduces over whole rows
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Reduce, Var, is_guard
from autotune.te.windows import reuses


@dataclass(frozen=True, slots=True)
class RowChain:
    """The stages of such a chain; `before` are producers of `first` alone.

    `scores` is what the `rows` begin with, `first` itself where nothing is pointwise behind it;
    `last` reads the last of the rows, and its other factor with zeros from the stages `beside`.
    """

    before: tuple[Compute, ...]
    first: Compute
    scores: Compute
    rows: tuple[Compute, ...]
    last: Compute
    beside: tuple[Compute, ...] = ()


def row_chain(dag: ComputeDAG, last: Compute) -> RowChain | None:
    """The chain that ends with product `last`; None where there is none."""
    beside = tuple(op for op in _producers(dag, last) if _is_surrounded(dag, op))
    end = only_producer(dag, last, beside)
    if end is None or end.reduce_axes or not is_product(last) or not _reads_rows(last, end):
        return None
    stages = dag.computes[: dag.computes.index(end) + 1]
    at = next((n for n, op in enumerate(stages) if op.reduce_axes), len(stages) - 1)
    before, first = stages[:at], stages[at]
    scores = first
    while len(found := dag.consumers(scores.name)) == 1 and _follows(found[0], scores):
        scores = found[0]
    rows = stages[stages.index(scores) + 1 :]
    inner = (scores, *rows[:-1])
    is_chain = (
        is_product(first)
        and any(op.reduce_axes for op in rows)
        and not any(is_product(op) for op in rows)
        and not any(op.name in dag.outputs for op in stages)
        and all(r in stages[: at + 1] for op in before for r in dag.consumers(op.name))
        and all(r in rows for op in inner for r in dag.consumers(op.name))
        and shared_axes(dag, end, inner) == len(end.axes) - 1
    )
    return RowChain(before, first, scores, rows, last, beside) if is_chain else None


def _is_surrounded(dag: ComputeDAG, op: Compute) -> bool:
    """Whether a stage is an argument with zeros around it."""
    sources = {x.tensor.name for x in op.reads}
    return is_guard(op.body) and not any(c.name in sources for c in dag.computes)


def _follows(reader: Compute, op: Compute) -> bool:
    return matches(reader, op) and not reader.reduce_axes


def is_product(op: Compute) -> bool:
    """Whether `op` sums over one axis, with loads that serve several of its points."""
    is_sum = isinstance(op.body, Reduce) and op.body.op == "sum"
    return is_sum and len(op.reduce_axes) == 1 and len(op.axes) > 1 and reuses(op)


def _reads_rows(op: Compute, rows: Compute) -> bool:
    """Whether `op` reduces over the innermost axis of `rows`, and has an axis for each other."""
    own = {a.name for a in op.axes}
    reads = [x for x in op.reads if x.tensor.name == rows.name]
    names = [i.name for i in reads[0].indices if isinstance(i, Var)]
    return (
        len(reads) == 1
        and len(set(names)) == len(rows.axes)
        and own.issuperset(names[:-1])
        and names[-1] not in own
    )


def shared_axes(dag: ComputeDAG, op: Compute, inner: Iterable[Compute]) -> int:
    """Number of leading axes of `op` that all `inner` stages share, read at the same place."""
    count = len(op.axes) - 1
    for s in inner:
        for reader in dag.consumers(s.name):
            for load in (x for x in reader.reads if x.tensor.name == s.name):
                same = 0
                for i, a in zip(load.indices, reader.axes, strict=False):
                    if i != a.var:
                        break
                    same += 1
                count = min(count, same)
    return count


def matches(consumer: Compute, op: Compute) -> bool:
    """Whether `consumer` reads `op` point by point: same axes, same order, once."""
    reads = [x for x in consumer.reads if x.tensor.name == op.name]
    plain = tuple(a.var for a in consumer.axes)
    return bool(reads) and all(x.indices == plain for x in reads)


def only_producer(dag: ComputeDAG, op: Compute, beside: tuple[Compute, ...] = ()) -> Compute | None:
    """The one computation, but for those `beside`, that `op` reads, if `op` is its single consumer
    and it is no output."""
    found = [c for c in _producers(dag, op) if c not in beside]
    if len(found) != 1 or dag.consumers(found[0].name) != (op,) or found[0].name in dag.outputs:
        return None
    return found[0]


def _producers(dag: ComputeDAG, op: Compute) -> list[Compute]:
    names = {x.tensor.name for x in op.reads}
    return [c for c in dag.computes if c.name in names]
