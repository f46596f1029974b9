"""① Chains: a window and the product behind it (depthwise, pointwise), as one task beside the two.

Only what the definition says counts: the first group reduces over a small window channel by
channel, the second reads each of its results at one point, and nobody else reads them at all. What
is between the two then needs no memory of its own; whether that is faster, measuring decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.graph.ir import Graph
from autotune.graph.partition import Group
from autotune.graph.subgraph import Subgraph, build_subgraph
from autotune.te.dag import ComputeDAG
from autotune.te.expr import Var
from autotune.te.windows import is_window


@dataclass(frozen=True, slots=True)
class JoinedGroups:
    """One subgraph that does the work of several groups; `parts`: their positions, in order."""

    whole: Subgraph
    parts: tuple[int, ...]


def joined_groups(graph: Graph, groups: Sequence[Group]) -> Iterator[JoinedGroups]:
    """Every pair of groups that is a chain; no group is in two of them."""
    position = {group.output: n for n, group in enumerate(groups)}
    n_users = {name: len(users) for name, users in graph.consumers().items()}
    for n, group in enumerate(groups):
        source = group.nodes[0].inputs[0] if group.nodes[0].inputs else ""
        private = n_users.get(source) == 1 and source not in graph.outputs
        if not private or source not in position or group.nodes[0] is not group.anchor:
            continue
        first = groups[position[source]]
        if first.anchor is None or _is_grouped(first) or _is_grouped(group):
            continue
        whole = build_subgraph(graph, Group([*first.nodes, *group.nodes]))
        if _is_chain(whole.dag):
            yield JoinedGroups(whole, (position[source], n))


def _is_grouped(group: Group) -> bool:
    """Whether a group views its channels in two dimensions, which the other does not."""
    return any(n.attrs.get("kind") == "grouped" for n in group.nodes)


def _is_chain(dag: ComputeDAG) -> bool:
    """Whether the second of two reductions reads the window before it point by point."""
    reductions = [op for op in dag.computes if op.reduce_axes]
    if len(reductions) != 2 or not is_window(reductions[0]) or is_window(reductions[1]):
        return False
    _, product = reductions
    computed = {op.name for op in dag.computes}
    reads = [x for x in product.reads if x.tensor.name in computed]
    return len(product.axes) > 1 and all(isinstance(i, Var) for x in reads for i in x.indices)
