"""① Channels first: an operator between two Transposes, beside the tasks that all three are.

    x → Transpose → conv[n, h, w, o] = Σ x.last[n, h + kh, w + kw, i] · …  → Transpose → y
 →  y[n, o, h, w] = Σ x[n, i, h + kh, w + kw] · …

The layout pass stores activations channels last, which is best inside of a network. Where a model
is one operator, or has one between operators that need ONNX's order, the Transposes at both ends
may take longer than the operator. The same sums over the same elements in ONNX's order need none:
vectors are then neighbours along a row of the image instead of channels. Which is faster depends on
channels, width and stride, so both are tasks and measuring decides, as for every `Chain`.

Inside of a network nothing changes: this takes a Transpose in front of every activation that an
operator reads, and one behind it, without other consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from autotune.graph.ir import Graph, Node, moves_nothing, to_first, to_last
from autotune.graph.operators.table import permutes
from autotune.graph.tasks.joined_groups import JoinedGroups
from autotune.graph.tasks.partition import Group
from autotune.graph.tasks.subgraph import Subgraph, build_subgraph
from autotune.strides import dense as strides_of
from autotune.strides import padded_strides
from autotune.te.collapse import collapse
from autotune.te.dag import ComputeDAG
from autotune.te.order import reordered


def channels_first_groups(graph: Graph, groups: Sequence[Group]) -> Iterator[JoinedGroups]:
    """Every group between Transposes as one subgraph in ONNX's order; `parts` are those too."""
    makers = {group.output: n for n, group in enumerate(groups)}
    readers = graph.consumers()
    for last, group in enumerate(groups):
        n = makers.get(group.nodes[0].inputs[0]) if _moves(graph, group, to_first) else None
        if n is None or not groups[n].anchor or not _is_private(graph, readers, groups[n], group):
            continue
        found = _transposes(graph, readers, groups, makers, n)
        whole = _channels_first(graph, groups[n], found, group.output) if found else None
        if whole is not None:
            in_front = sorted(makers[name] for name in found if name in makers)
            yield JoinedGroups(whole, (*in_front, n, last))


def _moves(graph: Graph, group: Group, permutation: Callable[[int], tuple[int, ...]]) -> bool:
    """Whether a group is one Transpose, by `permutation` of its rank."""
    return len(group.nodes) == 1 and _is_transpose(graph, group.nodes[0], permutation)


def _is_transpose(graph: Graph, node: Node, permutation: Callable[[int], tuple[int, ...]]) -> bool:
    order = permutation(len(graph.shape(node.output)))
    return permutes(node) and tuple(node.attrs["perm"]) == order


def _is_private(
    graph: Graph, readers: Mapping[str, Sequence[Node]], group: Group, reader: Group
) -> bool:
    """Whether only `reader` needs the output of `group`."""
    users = readers.get(group.output, ())
    return group.output not in graph.outputs and all(u in reader.nodes for u in users)


def _transposes(
    graph: Graph,
    readers: Mapping[str, Sequence[Node]],
    groups: Sequence[Group],
    makers: Mapping[str, int],
    n: int,
) -> dict[str, str]:
    """Channels-last tensors that group `n` reads, and the operand of each Transpose; empty if none.

    Empty too where it reads an activation that is stored channels last, for whatever reason.
    """
    group = groups[n]
    found = {x.output: x.inputs[0] for x in group.nodes if _is_transpose(graph, x, to_last)}
    for name in group.external_inputs():
        if name in graph.constants or name in found.values() or _is_in_any_order(graph, name):
            continue
        maker = groups[makers[name]] if name in makers else None
        if not (maker and _moves(graph, maker, to_last)):
            return {}
        if not _is_private(graph, readers, maker, group):
            return {}
        found[name] = maker.nodes[0].inputs[0]
    return found


def _is_in_any_order(graph: Graph, name: str) -> bool:
    shape = graph.shape(name)
    return moves_nothing(to_first(len(shape)), shape)


def _channels_first(
    graph: Graph, group: Group, transposed: Mapping[str, str], output: str
) -> Subgraph | None:
    """The subgraph of `group` on the operands of `transposed`, or None where it is no such sum."""
    nodes = [node for node in group.nodes if node.output not in transposed]
    rank = len(graph.shape(output))

    def arrange(dag: ComputeDAG, inputs: Mapping[str, str]) -> ComputeDAG:
        n_channels = len(dag[dag.outputs[0]].tensor.shape) - rank + 1
        moved = {n for n, name in inputs.items() if name in transposed}
        moved |= {op.name for op in dag.computes}
        orders = {n: _order(len(dag[n].tensor.shape), n_channels) for n in moved}
        dense = {n for n, name in inputs.items() if transposed.get(name, name) in graph.inputs}
        dense |= {dag.outputs[0]} if output in graph.outputs else set()
        return _collapsed(reordered(dag, orders), dense)

    whole = build_subgraph(graph, Group(nodes), arrange)
    reads_both = any(name in transposed.values() for name in whole.inputs.values())
    if reads_both or sum(bool(op.reduce_axes) for op in whole.dag.computes) != 1:
        return None
    inputs = {n: transposed.get(name, name) for n, name in whole.inputs.items()}
    return replace(whole, inputs=inputs, output=output, label=f"{whole.label}, channels first")


def _collapsed(dag: ComputeDAG, ports: Set[str]) -> ComputeDAG:
    """`dag` with rows of `ports`, memory of the model's, merged: longer ones fill vectors better.

    Not where candidates would be measured on rows further apart than these are: `autotune.strides`.
    """
    merged = collapse(dag, ports)
    tensors = [merged[n].tensor for n in ports]
    is_dense = all(padded_strides(t.shape, t.dtype) == strides_of(t.shape) for t in tensors)
    return merged if is_dense else collapse(dag)


def _order(rank: int, n_channels: int) -> tuple[int, ...]:
    """(n, …, channels) -> (n, channels, …); the channels of groups are in two dimensions."""
    first = rank - n_channels
    return (0, *range(first, rank), *range(1, first)) if first > 0 else tuple(range(rank))
