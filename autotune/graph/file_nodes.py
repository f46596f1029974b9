"""① Which nodes of a file the tasks of its networks compute: for the headers of logs.

    GraphProto, Networks  ─►  (("conv1", "Conv", (key of a task,)), …), in the order of the file

Tensors of networks have the names of the file as far as it has them (`x`, `x[Reshape]`), so a call
computes what lies between its outputs and those of other calls. Bodies of control flow, which are
unrolled, and nodes that do not depend on inputs belong to no task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from onnx import GraphProto

from autotune.graph.network import Network

FileNode: TypeAlias = tuple[str, str, tuple[str, ...]]
"""Name, operator, and keys of tasks."""


def nodes_of(graph: GraphProto, networks: Sequence[Network]) -> tuple[FileNode, ...]:
    """Name, operator and tasks of each node that some task computes. A node without a name has
    that of its first output."""
    makers = {out: n for n, node in enumerate(graph.node) for out in node.output if out}
    live, found = _live(graph), dict[int, dict[str, None]]()
    for network in networks:
        for task, outputs, ends in _calls(network):
            for n in _between(graph, makers, outputs, ends) & live:
                found.setdefault(n, {})[task] = None
    nodes = ((graph.node[n], tasks) for n, tasks in sorted(found.items()))
    return tuple((node.name or node.output[0], node.op_type, tuple(t)) for node, t in nodes)


def _calls(network: Network) -> Iterator[tuple[str, set[str], set[str]]]:
    """Task, outputs, and tensors at which it begins, of each call and of what replaces several."""
    made = [{_plain(value) for value in call.outputs.values()} for call in network.calls]
    ends = set[str]().union(*made)
    for call, outputs in zip(network.calls, made, strict=True):
        yield call.task, outputs, ends
    for chain in network.chains:
        inner = set[str]().union(*(made[part] for part in chain.parts))
        outputs = {_plain(value) for value in chain.whole.outputs.values()}
        yield chain.whole.task, outputs, ends - inner


def _plain(value: str) -> str:
    return value.partition("[")[0]


def _live(graph: GraphProto) -> set[int]:
    """Nodes that depend on inputs."""
    tensors = {port.name for port in graph.input} - {w.name for w in graph.initializer}
    live = set()
    for n, node in enumerate(graph.node):
        if tensors.intersection(node.input):
            live.add(n)
            tensors.update(node.output)
    return live


def _between(
    graph: GraphProto, makers: Mapping[str, int], outputs: Collection[str], ends: Collection[str]
) -> set[int]:
    """Nodes from which `outputs` follow without a tensor of `ends` between."""
    found, todo = set[int](), list(outputs)
    while todo:
        n = makers.get(todo.pop(), -1)
        if n >= 0 and n not in found:
            found.add(n)
            todo += [name for name in graph.node[n].input if name not in ends]
    return found
