"""⑩ The rounding of a model made visible: Monte Carlo arithmetic on its ONNX graph.

    y = Conv(x, w)   →   w = w'·(1 ± u);  y = Conv(x, w)·(1 ± u)

for every input, weight and result in floating point, with a random factor for every element. What
the outputs differ by then is what rounding in another order may make of them: the conditioning of
the model on these inputs, by experiment (Parker, Monte Carlo Arithmetic, 1997). It is a model again
and runs wherever the first one does.

What is computed of shapes and constants alone stays exact: a factor below one and a rounding down
would make a size one less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from autotune.graph.onnx_reader import drop_initializers_from_inputs
from autotune.graph.random_weights import replace_all

_UNITS: dict[int, float] = {
    TensorProto.FLOAT: 2.0**-23,
    TensorProto.DOUBLE: 2.0**-23,  # computed in float32 here
    TensorProto.FLOAT16: 2.0**-10,
    TensorProto.BFLOAT16: 2.0**-7,
}
"""Spacing of the numbers from 1 on, by type."""

_EXACT = {"Resize": (1, 2), "Upsample": (1,), "Range": (0, 1, 2), "Dropout": (1,)}
"""Inputs that are floats and decide what is computed: by operator."""
_SHAPES_ONLY = ("Shape", "Size")
_LEAST_WEIGHTS = 9
"""Fewer constants may be the scales of a shape."""
EXACT = "#exact"
"""What the names of inputs, weights and results end with before they get their error."""


def rounded_anew(model: ModelProto, seed: int, scale: float = 1.0) -> ModelProto:
    """`model` with a relative error of up to `scale` roundings in every input, weight and result.

    Its inputs in floating point have names that end with `EXACT`. Equal for equal seeds. Raises an
    exception of `onnx` where types cannot be inferred.
    """
    inferred = onnx.shape_inference.infer_shapes(model)
    drop_initializers_from_inputs(inferred)
    noise = _Noise(seed, scale, set(_exact(inferred.graph)))
    noise.add_to(inferred.graph, {}, {i.name for i in inferred.graph.input})
    noise.add_to_inputs(inferred.graph)
    return inferred


class _Noise:
    """Adds noise to graphs; `exact`: tensors that keep their values."""

    def __init__(self, seed: int, scale: float, exact: set[str]) -> None:
        self._seed, self._scale, self._exact = seed, scale, exact
        self._count = 0

    def add_to(self, graph: GraphProto, outer: dict[str, int], varying: set[str]) -> None:
        """`outer`: types of what lies around; `varying`: what depends on the values of inputs."""
        types = outer | dict(_types(graph))
        varying = set(varying)
        nodes: list[NodeProto] = []
        for tensor in graph.initializer:
            if _is_weight(tensor) and self._is_rounded(tensor.name, types):
                nodes += self._noisy(tensor.name, types[tensor.name])
                tensor.name += EXACT
        for node in graph.node:
            varies = node.op_type not in _SHAPES_ONLY and bool(set(_reads(node)) & varying)
            if varies:
                varying.update(node.output)
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    body = attribute.g
                    self.add_to(body, types, varying | {i.name for i in body.input})
            nodes.append(node)
            if varies or any(_is_weight(a.t) for a in node.attribute if a.name == "value"):
                nodes += self._after(node, types)
        replace_all(graph.node, nodes)

    def add_to_inputs(self, graph: GraphProto) -> None:
        """Give the inputs other names, and their old ones to what they are with noise."""
        nodes: list[NodeProto] = []
        for value in graph.input:
            kind = value.type.tensor_type.elem_type
            if self._is_rounded(value.name, {value.name: kind}):
                nodes += self._noisy(value.name, kind)
                value.name += EXACT
        replace_all(graph.node, [*nodes, *graph.node])

    def _after(self, node: NodeProto, types: dict[str, int]) -> Iterator[NodeProto]:
        for position, name in enumerate(node.output):
            if name and self._is_rounded(name, types):
                node.output[position] = name + EXACT
                yield from self._noisy(name, types[name])

    def _is_rounded(self, name: str, types: dict[str, int]) -> bool:
        return types.get(name) in _UNITS and name not in self._exact

    def _noisy(self, name: str, kind: int) -> Iterator[NodeProto]:
        """name = name#exact · (1 ± unit)"""
        self._count += 1
        unit = _UNITS[kind] * self._scale
        drawn, factor = f"{name}#drawn", f"{name}#factor"
        yield helper.make_node(
            "RandomUniformLike",
            [name + EXACT],
            [drawn],
            low=1.0 - unit,
            high=1.0 + unit,
            seed=float(self._seed * 65536 + self._count),
            dtype=TensorProto.FLOAT,
        )
        yield helper.make_node("Cast", [drawn], [factor], to=kind)
        yield helper.make_node("Mul", [name + EXACT, factor], [name])


def _is_weight(tensor: TensorProto) -> bool:
    n_elements: int = math.prod(tensor.dims)
    return n_elements >= _LEAST_WEIGHTS


def _types(graph: GraphProto) -> Iterator[tuple[str, int]]:
    """The element types of all tensors whose type is known."""
    yield from ((t.name, t.data_type) for t in graph.initializer)
    for value in (*graph.value_info, *graph.input, *graph.output):
        yield value.name, value.type.tensor_type.elem_type


def _exact(graph: GraphProto) -> Iterator[str]:
    for node in _nodes(graph):
        slots = _EXACT.get(node.op_type, ())
        yield from (node.input[slot] for slot in slots if slot < len(node.input))


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for body in _bodies(node):
            yield from _nodes(body)


def _bodies(node: NodeProto) -> Iterable[GraphProto]:
    return (a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH)


def _reads(node: NodeProto) -> Iterator[str]:
    """What a node reads, and what the graphs inside of it read."""
    yield from node.input
    for body in _bodies(node):
        for inner in body.node:
            yield from _reads(inner)
