"""⑪ A graph cut into regions that are compiled, and the operators between them.

partitioned(gm, refused, region_of) ─► a graph that calls regions, and PyTorch for the rest
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from autotune.dynamo.exporting import GraphModule, Node

_TAGS = frozenset(
    {
        torch.Tag.nondeterministic_seeded,
        torch.Tag.dynamic_output_shape,
        torch.Tag.data_dependent_output,
    }
)
"""Of operators that draw random numbers, or whose shapes data decide."""


class _Support(OperatorSupportBase):  # type: ignore[misc]
    """Nodes of tensors alone, but for those of the operators, or with the names, in `refused`."""

    def __init__(self, refused: Collection[str]) -> None:
        self._refused = refused

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        made = node.args[0] if node.target is operator.getitem else node  # by the same operator
        return is_supported(made) and not {made.name, name_of(made)} & set(self._refused)


def is_supported(node: Node) -> bool:
    """Whether a node computes tensors from tensors in a way that can be compiled at all."""
    if node.op != "call_function":
        return False
    tags = _TAGS & set(getattr(node.target, "tags", ()))
    if tags - {torch.Tag.nondeterministic_seeded} or (tags and not _drops_nothing(node)):
        return False
    value = node.meta.get("val")
    parts = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(part, torch.Tensor) for part in parts)


def _drops_nothing(node: Node) -> bool:
    """Whether a node draws its random numbers for a dropout of nothing, as attention has."""
    known = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(known, node.args, strict=False)), **node.kwargs}
    return "dropout_p" in known and given.get("dropout_p", 0.0) == 0.0


def name_of(node: Node) -> str:
    """`aten.conv2d`, `mylib.myop`."""
    return str(node.target).removesuffix(f".{getattr(node.target, '_overloadname', '')}")


def is_whole(gm: GraphModule) -> bool:
    """Whether nothing in a graph has to run in PyTorch, as far as that is known before it is read.

    Integers are computed where they are extents of tensors.
    """
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    return all(is_supported(node) or _is_number(node) for node in calls)


def _is_number(node: Node) -> bool:
    kinds = torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool, type(None)
    return isinstance(node.meta.get("val"), kinds)


def names_in(gm: GraphModule) -> frozenset[str]:
    """Names of the nodes of a graph, and of their operators."""
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    return frozenset(name for node in calls for name in (node.name, name_of(node)))


def partitioned(
    gm: GraphModule, refused: Collection[str], region_of: Callable[[GraphModule], Any]
) -> GraphModule | None:
    """`gm` with calls of regions; None where there is not one.

    `refused`: names of nodes and operators that run in PyTorch. A single operator is no region.
    """
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    copied = torch.fx.GraphModule(gm, graph)
    partitioner = CapabilityBasedPartitioner(copied, _Support(refused))
    found = partitioner.propose_partitions()
    if not found:
        return None
    cut = partitioner.fuse_partitions(found, prefix="region_")
    for name, part in list(cut.named_children()):
        if name.startswith("region_"):
            region, module = region_of(part), torch.nn.Module()
            module.forward = _single(region) if _is_single(part) else region
            setattr(cut, name, module)
    return cut


def _is_single(gm: GraphModule) -> bool:
    return isinstance(gm.graph.output_node().args[0], torch.fx.Node)


def _single(region: Callable[..., Any]) -> Callable[..., Any]:
    def first(*arguments: Any) -> Any:
        found = region(*arguments)
        return found[0] if isinstance(found, tuple) else found

    return first
