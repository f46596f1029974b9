"""⑪ Outputs of an FX graph that share memory with one another or with its arguments.

    shared(outputs, arguments) ─► Views: tensors that a network has to give, and views of them

In PyTorch `y`, `y[1:]` and `y.t()` are one memory. A network gives `y` alone; PyTorch makes the
views, as it made them in the traced graph. An output that shares its memory with nothing that the
caller sees is the network's own, so that it need not compute what the view leaves out.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

Node: TypeAlias = Any


class NotReplayed(Exception):
    """A view is of a tensor, or depends on one, that nobody can have outside of the graph."""


@dataclass(frozen=True, slots=True)
class Views:
    """`bases`: tensors that are computed, of which there are views. `nodes`: outputs that are
    views. `make`: these, from all arguments of the graph and then the bases; None for no views.
    """

    bases: tuple[Node, ...] = ()
    nodes: tuple[Node, ...] = ()
    make: Callable[..., tuple[Any, ...]] | None = None


def shared(
    outputs: Sequence[Node], arguments: Collection[Node], is_dense: Callable[[Any], bool]
) -> Views:
    """Those of the nodes `outputs` that are to be made as views. `arguments`: placeholders.

    `is_dense`: whether a network can give a tensor of such strides. Raises NotReplayed.
    """
    distinct = list(dict.fromkeys(outputs))
    roots = {node: root_of(node) for node in distinct}
    n_sharing = Counter(roots.values())

    def is_seen(node: Node, root: Node) -> bool:
        """Whether a caller can tell the view from a tensor of its own."""
        if root in arguments:
            return True
        is_possible = root.op != "placeholder" and is_dense(root.meta["val"])
        if n_sharing[root] > 1 and not is_possible:
            raise NotReplayed(f"outputs share {root.name}, which no network can give")
        return is_possible and (n_sharing[root] > 1 or not is_dense(node.meta["val"]))

    found = [n for n, root in roots.items() if root is not n and is_seen(n, root)]
    if not found:
        return Views()
    bases = [roots[node] for node in found if roots[node] not in arguments]
    bases = list(dict.fromkeys(bases))
    return Views(tuple(bases), tuple(found), _replayed(found, arguments, bases))


def root_of(node: Node) -> Node:
    """The tensor in whose memory a node is a view; the node itself where it is none."""
    while _is_view(node):
        node = node.args[0]
    return node


def _is_view(node: Node) -> bool:
    """Of its first operand; one of several views is taken out of their list."""
    if node.target is operator.getitem:
        return _is_view(node.args[0])
    source = node.args[0] if node.op == "call_function" and node.args else None
    if not isinstance(source, torch.fx.Node) or not getattr(node.target, "is_view", False):
        return False
    return all(_share(value, source.meta.get("val")) for value in _tensors(node.meta.get("val")))


def _tensors(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _share(value: Any, source: Any) -> bool:
    """Whether the example of a node lies in its operand's memory: a reshape may have copied."""
    if not isinstance(value, torch.Tensor) or not isinstance(source, torch.Tensor):
        return False
    one, other = (tensor.untyped_storage()._cdata for tensor in (value, source))
    return bool(one == other)


def _replayed(
    views: Sequence[Node], arguments: Collection[Node], bases: Sequence[Node]
) -> Callable[..., tuple[Any, ...]]:
    """A function of arguments and bases that gives the views."""
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for node in (*arguments, *bases):
        copies[node] = graph.placeholder(f"given_{len(copies)}")

    def copied(node: Node) -> Node:
        if node not in copies:
            value = node.meta.get("val")
            is_number = not isinstance(value, torch.Tensor | list | tuple)
            if node.op != "call_function" or not (is_number or _is_view(node)):
                raise NotReplayed(f"a view depends on {node.name}")
            for other in node.all_input_nodes:
                copied(other)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        return copies[node]

    graph.output(tuple(copied(node) for node in views))
    made: Callable[..., tuple[Any, ...]] = torch.fx.GraphModule({}, graph).forward
    return made
