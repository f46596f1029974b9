"""① Runs of two or three groups that may be fused: one task as an alternative to theirs.

    a window, then a product                          depthwise, pointwise
    a product, normalisation of its rows, a product   attention

The definitions alone decide. In a run of two the first group reduces over a small window channel by
channel, and the second reads each of its results at one point; for three see `te.chains`. The
intermediates have a single consumer and need no memory of their own in the fused task. Measuring
decides which alternative is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.graph.ir import Graph
from autotune.graph.tasks.partition import Group
from autotune.graph.tasks.subgraph import Subgraph
from autotune.te.chains import row_chain
from autotune.te.dag import Compute, ComputeDAG
from autotune.te.expr import Var
from autotune.te.windows import is_window

_MOST_GROUPS = 3


@dataclass(frozen=True, slots=True)
class JoinedGroups:
    """One subgraph in place of several groups; `parts`: their positions, in order."""

    whole: Subgraph
    parts: tuple[int, ...]


def joined_groups(
    graph: Graph, groups: Sequence[Group], define: Callable[[Group], Subgraph | None]
) -> Iterator[JoinedGroups]:
    """Every run of groups that can be fused; no group is in two of them.

    `define`: the subgraph of a group; None where it has none.
    """
    source = _sources(graph, groups)
    taken: set[int] = set()
    chains: dict[int, bool] = {}  # by definition: runs that differ only in names share one
    for n in source:
        for parts in _runs(source, n):
            if taken.isdisjoint(parts) and not any(_is_grouped(groups[k]) for k in parts):
                whole = define(Group([x for k in parts for x in groups[k].nodes]))
                if whole is None:
                    continue
                if id(whole.dag) not in chains:
                    chains[id(whole.dag)] = _is_chain(whole.dag)
                if chains[id(whole.dag)]:
                    taken.update(parts)
                    yield JoinedGroups(whole, parts)


def _sources(graph: Graph, groups: Sequence[Group]) -> dict[int, int]:
    """For groups that begin with an anchor: the anchored group whose output only they read."""
    position = {group.output: n for n, group in enumerate(groups)}
    n_users = {name: len(users) for name, users in graph.consumers().items()}
    found: dict[int, int] = {}
    for n, group in enumerate(groups):
        name = group.nodes[0].inputs[0] if group.nodes[0].inputs else ""
        private = n_users.get(name) == 1 and name not in graph.outputs and name in position
        if private and group.nodes[0] is group.anchor and groups[position[name]].anchor:
            found[n] = position[name]
    return found


def _runs(source: Mapping[int, int], n: int) -> Iterator[tuple[int, ...]]:
    """Runs of two and three groups, each the only consumer of the one before; the last is `n`."""
    run: tuple[int, ...] = (n,)
    while run[0] in source and len(run) < _MOST_GROUPS:
        run = (source[run[0]], *run)
        yield run


def _is_grouped(group: Group) -> bool:
    """Whether a group views its channels in two dimensions, which does not fit other groups."""
    return any(n.attrs.get("kind") == "grouped" for n in group.nodes)


def _is_chain(dag: ComputeDAG) -> bool:
    """Whether the last reduction reads a window point by point, or normalised rows of a product."""
    reductions = [op for op in dag.computes if op.reduce_axes]
    return _is_window_chain(dag, reductions) or any(row_chain(dag, x) for x in reductions[-1:])


def _is_window_chain(dag: ComputeDAG, reductions: Sequence[Compute]) -> bool:
    if len(reductions) != 2 or not is_window(reductions[0]) or is_window(reductions[1]):
        return False
    _, product = reductions
    computed = {op.name for op in dag.computes}
    reads = [x for x in product.reads if x.tensor.name in computed]
    return len(product.axes) > 1 and all(isinstance(i, Var) for x in reads for i in x.indices)
