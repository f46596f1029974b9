"""⑩ The rounding of a model made visible: Monte Carlo arithmetic on its ONNX graph.

    y = Conv(x, w)   →   w = w'·(1 ± u);  y = Conv(x, w)·(1 ± u)

for every input, weight and result in floating point, with a random factor for every element. The
outputs then differ by the effect of rounding in another order: the conditioning of
the model on these inputs, by experiment (Parker, Monte Carlo Arithmetic, 1997). It is a model again
and runs wherever the first one does.

An operator that rounds to steps by itself (QLinearConv) gets the step of its result so: there is no
number before the rounding that could be changed. What is computed of shapes and constants alone
stays exact: a factor below one and a rounding down would make a size one less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from autotune.dtypes import DTYPES
from autotune.graph.reader.node_order import all_nodes, bodies
from autotune.graph.reader.onnx_reader import drop_initializers_from_inputs
from autotune.graph.reader.opsets import opset_of
from autotune.graph.reader.random_weights import replace_all

_UNITS: dict[int, float] = {
    d.onnx: max(d.eps, DTYPES["float32"].eps)  # float64 is computed in float32 here
    for d in DTYPES.values()
    if d.is_float
}
"""Spacing of the numbers from 1 on, by type."""

_EXACT = {
    "Resize": (1, 2), "Upsample": (1,), "Range": (0, 1, 2), "Dropout": (1,),
    "MatMulNBits": (2, 3),
}  # fmt: skip
"""Inputs that are floats and decide what is computed, or that ONNX Runtime takes constants for: by
operator. Of scales that are computed its products of bytes make something else."""
_SHAPES_ONLY = ("Shape", "Size")
_LEAST_WEIGHTS = 9
"""Fewer constants may be the scales of a shape."""
_BY_TABLE = 22
"""The opset from which on ONNX Runtime has no RandomUniformLike; older ones lack Range and Mod."""
_TABLE = 65_537
"""Factors in a table: a prime, so that no axis meets the same ones again and again."""
_STEPS = {"QGemm": 7, "QLinearAdd": 6, "QLinearConcat": 0, "QLinearConv": 6, "QLinearMatMul": 6,
          "QLinearMul": 6, "QLinearWhere": 7}  # fmt: skip
_STEP_OF_UNARY = 3
"""Operands that are the step of the result, of operators that round to it."""
EXACT = "#exact"
"""Suffix of the names of inputs, weights and results before they get their error."""


def rounded_anew(model: ModelProto, seed: int, scale: float = 1.0) -> ModelProto:
    """`model` with a relative error of up to `scale` roundings in every input, weight and result.

    Its inputs in floating point have names that end with `EXACT`. Equal for equal seeds. Raises an
    exception of `onnx` where types cannot be inferred.
    """
    inferred = onnx.shape_inference.infer_shapes(model)
    drop_initializers_from_inputs(inferred)
    by_table = opset_of(inferred.opset_import) >= _BY_TABLE
    noise = _Noise(seed, scale, set(_exact(inferred.graph)), by_table)
    noise.add_to(inferred.graph, {}, {i.name for i in inferred.graph.input})
    noise.add_to_inputs(inferred.graph)
    inferred.graph.initializer.extend(noise.tables())
    return inferred


class _Noise:
    """Adds noise to graphs; `exact`: tensors that keep their values."""

    def __init__(self, seed: int, scale: float, exact: set[str], by_table: bool) -> None:
        self._seed, self._scale, self._exact = seed, scale, exact
        self._by_table = by_table
        self._count = 0
        self.kinds: set[int] = set()

    def add_to(self, graph: GraphProto, outer: dict[str, int], varying: set[str]) -> None:
        """`outer`: types of the graph around; `varying`: dependent on the values of inputs."""
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
            for body in bodies(node):
                self.add_to(body, types, varying | {i.name for i in body.input})
            nodes += [*self._before(node, types), node]
            if varies or any(_is_weight(a.t) for a in node.attribute if a.name == "value"):
                nodes += self._after(node, types)
        replace_all(graph.node, nodes)

    def add_to_inputs(self, graph: GraphProto) -> None:
        """Give the inputs other names, and their old ones to the noisy inputs."""
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

    def _before(self, node: NodeProto, types: dict[str, int]) -> Iterator[NodeProto]:
        """The step of a node's result · (1 ± unit), one factor for all elements."""
        slot = _STEPS.get(node.op_type, _STEP_OF_UNARY)
        is_unary = node.op_type.startswith("QLinear")
        if not (is_unary or node.op_type in _STEPS) or slot >= len(node.input):
            return
        name = node.input[slot]
        if name and types.get(name) in _UNITS:
            self._count += 1
            unit = _UNITS[types[name]] * self._scale
            rng = np.random.default_rng([self._seed, self._count])
            factor = 1.0 + unit * rng.uniform(0.5, 1.0) * rng.choice([-1.0, 1.0])
            value = helper.make_tensor("", types[name], (), [factor])
            stem = f"{name}#{self._count}"
            yield helper.make_node("Constant", [], [f"{stem}factor"], value=value)
            yield helper.make_node("Mul", [name, f"{stem}factor"], [stem])
            node.input[slot] = stem

    def _is_rounded(self, name: str, types: dict[str, int]) -> bool:
        return types.get(name) in _UNITS and name not in self._exact

    def _noisy(self, name: str, kind: int) -> Iterator[NodeProto]:
        """name = name#exact · (1 ± unit)"""
        self._count += 1
        self.kinds.add(kind)
        yield from (self._looked_up if self._by_table else self._drawn)(name, kind)
        yield helper.make_node("Mul", [name + EXACT, f"{name}#factor"], [name])

    def _drawn(self, name: str, kind: int) -> Iterator[NodeProto]:
        unit = _UNITS[kind] * self._scale
        yield helper.make_node(
            "RandomUniformLike",
            [name + EXACT],
            [f"{name}#drawn"],
            low=1.0 - unit,
            high=1.0 + unit,
            seed=float(self._seed * 65536 + self._count),
            dtype=TensorProto.FLOAT,
        )
        yield helper.make_node("Cast", [f"{name}#drawn"], [f"{name}#factor"], to=kind)

    def _looked_up(self, name: str, kind: int) -> Iterator[NodeProto]:
        """factor[i] = table[(i + offset) mod N] of the elements in order"""
        offset = helper.make_tensor("", TensorProto.INT64, (), [7919 * self._count % _TABLE])
        make, at = helper.make_node, f"{name}#at"
        yield make("Constant", [], [f"{name}#begin"], value=offset)
        yield make("Size", [name + EXACT], [f"{name}#size"])
        yield make("Add", [f"{name}#begin", f"{name}#size"], [f"{name}#end"])
        yield make("Range", [f"{name}#begin", f"{name}#end", "#one"], [f"{name}#range"])
        yield make("Mod", [f"{name}#range", "#length"], [at])
        yield make("Gather", [f"#table{kind}", at], [f"{name}#flat"])
        yield make("Shape", [name + EXACT], [f"{name}#shape"])
        yield make("Reshape", [f"{name}#flat", f"{name}#shape"], [f"{name}#factor"], allowzero=1)

    def tables(self) -> Iterator[TensorProto]:
        """The initialisers that the nodes read."""
        if not self._by_table:
            return
        for name, value in (("#one", 1), ("#length", _TABLE)):
            yield numpy_helper.from_array(np.array(value, np.int64), name)
        for kind in sorted(self.kinds):
            rng = np.random.default_rng([self._seed, kind])
            factors = 1.0 + _UNITS[kind] * self._scale * rng.uniform(-1.0, 1.0, _TABLE)
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            yield numpy_helper.from_array(factors.astype(dtype), f"#table{kind}")


def _is_weight(tensor: TensorProto) -> bool:
    n_elements: int = math.prod(tensor.dims)
    return n_elements >= _LEAST_WEIGHTS


def _types(graph: GraphProto) -> Iterator[tuple[str, int]]:
    """The element types of all tensors whose type is known."""
    yield from ((t.name, t.data_type) for t in graph.initializer)
    for value in (*graph.value_info, *graph.input, *graph.output):
        yield value.name, value.type.tensor_type.elem_type


def _exact(graph: GraphProto) -> Iterator[str]:
    for node in all_nodes(graph):
        slots = _EXACT.get(node.op_type, ())
        yield from (node.input[slot] for slot in slots if slot < len(node.input))


def _reads(node: NodeProto) -> Iterator[str]:
    """Inputs of a node and of the graphs inside it."""
    yield from node.input
    for body in bodies(node):
        for inner in body.node:
            yield from _reads(inner)
