"""① Inputs that stay while a state grows: what follows from them alone is computed once.

    encoder (1, 1500, 384), tokens (1, L), past … -> logits, present …
    ─►  begin: encoder -> keys and values of every cross-attention, as steps read them
        step:  these, tokens (1, L), past … -> logits, present …

Products of such inputs are loop-invariant, and what leads to them or follows from them alone; so
are their transposes. What is larger than that, as a mask for each new place, stays in the step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from autotune.errors import NotCompilable
from autotune.graph.ir import Graph, Node, reading
from autotune.graph.operators.definition import Trait
from autotune.graph.operators.table import operator_of
from autotune.graph.reader.importer import separate_outputs

_PRODUCTS = frozenset(
    (
        *("MatMulInteger", "QLinearMatMul", "Einsum", "com.microsoft.MatMulNBits"),
        *("com.microsoft.DynamicQuantizeMatMul", "com.microsoft.MatMulIntegerToFloat"),
        "com.microsoft.QGemm",
    )
)
"""Operators that passes make products of, beside those whose record says that they are."""


@dataclass(frozen=True)
class Phases:
    """What is computed once for a sequence, and what in each step.

    Outputs of `begin` are inputs of `step` of the same names, `held`.
    """

    begin: Graph
    step: Graph
    held: tuple[str, ...]


def phases(graph: Graph, staying: Collection[str]) -> Phases:
    """`graph` in two parts; `staying`: its inputs that are the same in all steps."""
    given = [name for name in graph.inputs if name in staying]
    early = _early(graph, given)
    made = [name for node in graph.nodes if _made(node) in early for name in node.outputs]
    later = [node for node in graph.nodes if _made(node) not in early]
    later = _needed(later, graph.outputs)
    read = {name for node in later for name in node.inputs} | {*graph.outputs}
    held = tuple(name for name in (*given, *made) if name and name in read)
    inputs = [name for name in graph.inputs if name not in staying]
    step = replace(graph, inputs=(*inputs, *held), nodes=tuple(later))
    nodes = tuple(_needed(graph.nodes, held))
    begin = replace(graph, outputs=held, nodes=nodes, output_names={})
    needed = {*held, *(name for node in begin.nodes for name in node.inputs)}
    constants = {name: array for name, array in graph.constants.items() if name in needed}
    own = tuple(name for name in given if name in needed)
    begin = replace(begin, inputs=own, constants=constants)
    return Phases(_with_copies(begin), _with_copies(step), held)


def fed_by(graph: Graph, first: Graph, made: Mapping[str, str]) -> Graph:
    """`graph` whose inputs `made` are outputs of `first`, a graph of some of the same inputs.

    Raises NotCompilable where they have other types.
    """
    for name, output in made.items():
        if graph.types[name] != first.types[output]:
            raise NotCompilable(
                f"'{output}' does not take the place of '{name}': "
                f"{first.types[output]} and {graph.types[name]}",
                "give the lengths of the encoder (`dims`)",
            )
    stem = "first"
    while any(name.startswith(f"{stem}/") for name in graph.types):
        stem += "'"
    kept = _needed(first.nodes, made.values())
    names = {n: f"{stem}/{n}" for n in first.types if n not in graph.inputs or n in made}
    names |= {output: name for name, output in made.items()}
    nodes = [
        replace(
            reading(node, names),
            name=f"{stem}/{node.name}",
            outputs=tuple(n and names[n] for n in node.outputs),
        )
        for node in kept
    ]
    read = {name for node in kept for name in node.inputs}
    return replace(
        graph,
        inputs=tuple(name for name in graph.inputs if name not in made),
        nodes=(*nodes, *graph.nodes),
        constants=graph.constants | {names[n]: a for n, a in first.constants.items() if n in read},
        types={names.get(n, n): kind for n, kind in first.types.items()} | graph.types,
    )


def _early(graph: Graph, given: Collection[str]) -> frozenset[str]:
    """The first results of the nodes whose results are computed once."""
    alone, early, behind = {*given}, {*given}, set[str]()
    fixed, nodes = {"", *graph.constants}, []
    for node in graph.nodes:
        if fixed.issuperset(node.inputs):  # as scales that are multiplied with weights
            fixed.update(node.outputs)
        elif _follows(node, alone, fixed):
            alone.update(node.outputs)
            nodes.append(node)
    ahead = _needed(nodes, [_made(node) for node in nodes if _is_product(node)])
    wanted = {_made(node) for node in ahead}
    for node in nodes:
        is_behind = _is_product(node) or not behind.isdisjoint(filter(None, node.inputs))
        is_moved = _is_moved(graph, node) and _follows(node, early, fixed)
        if is_behind or is_moved or _made(node) in wanted:
            early.update(node.outputs)
        if is_behind:
            behind.update(node.outputs)
    return frozenset(early.intersection(map(_made, nodes)))


def _is_product(node: Node) -> bool:
    operator = operator_of(node.op)
    is_anchor = operator.factors.weight_input is not None and not operator.is_injective
    return is_anchor or node.op in _PRODUCTS


def _is_moved(graph: Graph, node: Node) -> bool:
    """Whether a node gives the elements of its operand, or fewer, in another order or type."""
    is_move = Trait.MOVES in operator_of(node.op).traits or node.op in ("Identity", "Cast")
    sizes = [math.prod(graph.shape(name)) for name in (node.inputs[0], _made(node))]
    return is_move and len(node.outputs) == 1 and sizes[1] <= sizes[0]


def _made(node: Node) -> str:
    """The first result that a node has."""
    return next(filter(None, node.outputs))


def _follows(node: Node, known: Set[str], fixed: Set[str]) -> bool:
    """Whether a node reads nothing but what is known, or is the same in every inference."""
    return all(name in known or name in fixed for name in node.inputs)


def _needed(nodes: Sequence[Node], wanted: Iterable[str]) -> list[Node]:
    """The nodes that the tensors `wanted` depend on, in their order."""
    names, found = {*wanted}, []
    for node in reversed(nodes):
        if not names.isdisjoint(filter(None, node.outputs)):
            names.update(node.inputs)
            found.append(node)
    return found[::-1]


def _with_copies(graph: Graph) -> Graph:
    """`graph` with tensors of their own for outputs that are inputs."""
    made, known = separate_outputs(graph), graph.output_names
    names = {name: known[name] for name in made.outputs if name in known}
    names |= {own: known.get(name, name) for own, name in made.output_names.items()}
    types = {own: graph.types[name] for own, name in made.output_names.items()}
    return replace(made, output_names=names, types=graph.types | types)
