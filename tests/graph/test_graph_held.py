"""What follows from inputs that stay is computed once, and the parts give what the whole gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx import numpy_helper

from autotune.errors import NotCompilable
from autotune.graph.ir import Graph
from autotune.graph.passes.pipeline import Form
from autotune.graph.reader.held import fed_by, phases
from autotune.graph.reader.importer import import_graph
from autotune.graph.reader.onnx_reader import OnnxModel
from tests.graph.graph_values import GraphValues, by_onnxruntime

SHAPE = (1, 4, 4)


def graph_of(nodes: list[Any], outputs: list[str], weights: dict[str, np.ndarray]) -> Graph:
    value = oh.make_tensor_value_info
    made = oh.make_graph(
        nodes,
        "random",
        [value("stays", 1, SHAPE), value("moves", 1, SHAPE)],
        [value(name, 1, None) for name in outputs],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    model = oh.make_model(made, opset_imports=[oh.make_opsetid("", 17)], ir_version=9)
    return import_graph(OnnxModel(onnx.shape_inference.infer_shapes(model), {}, 17))


def random_graph(rng: np.random.Generator) -> Graph:
    """Twelve operators on what stays and what moves, and outputs of both."""
    weights = {f"w{n}": rng.normal(size=SHAPE).astype(np.float32) for n in range(3)}
    known, nodes = ["stays", "moves", "stays"], []
    for n in range(12):
        op = rng.choice(["MatMul", "Add", "Mul", "Transpose", "Tanh", "Softmax", "Identity"])
        a, b = rng.choice([*known, *known, *weights], 2)
        kind = {"perm": [0, 2, 1]} if op == "Transpose" else {}
        inputs = [a, b] if op in ("MatMul", "Add", "Mul") else [a]
        nodes.append(oh.make_node(op, inputs, [f"t{n}"], f"n{n}", **kind))
        known.append(f"t{n}")
    outputs = sorted({*rng.choice(known[3:], 3), known[-1]})
    return graph_of(nodes, outputs, weights)


def by_parts(graph: Graph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    values = GraphValues([by_onnxruntime])
    found = phases(graph, {"stays"})
    held = dict(zip(found.held, values(found.begin, Form.ONNX, (), feeds), strict=True))
    return values(found.step, Form.ONNX, (), feeds | held)


@pytest.mark.parametrize("seed", range(40))
def test_parts_give_what_the_whole_gives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng)
    feeds = {n: rng.normal(size=SHAPE).astype(np.float32) for n in ("stays", "moves")}
    whole = GraphValues([by_onnxruntime])(graph, Form.ONNX, (), feeds)
    for found, expected in zip(by_parts(graph, feeds), whole, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("seed", range(40))
def test_no_step_computes_a_product_of_what_stays(seed: int) -> None:
    found = phases(random_graph(np.random.default_rng(seed)), {"stays"})
    staying = {*found.held, *found.step.constants}
    assert not [
        node for node in found.step.nodes if node.op == "MatMul" and staying.issuperset(node.inputs)
    ]


def test_a_mask_for_each_place_stays_in_the_step() -> None:
    nodes = [
        oh.make_node("Expand", ["stays", "shape"], ["wide"]),
        oh.make_node("Add", ["wide", "moves"], ["y"]),
    ]
    found = phases(graph_of(nodes, ["y"], {"shape": np.array([7, 4, 4])}), {"stays"})
    assert found.held == ("stays",)
    assert [node.op for node in found.step.nodes] == ["Expand", "Add"]


def test_an_input_is_computed_by_another_graph() -> None:
    """Names that both graphs have do not meet."""
    step = graph_of([oh.make_node("Mul", ["stays", "moves"], ["t"])], ["t"], {})
    nodes = [oh.make_node("Tanh", ["moves"], ["t"]), oh.make_node("Add", ["t", "w"], ["made"])]
    weights = {"w": np.ones(SHAPE, np.float32)}
    joined = fed_by(step, graph_of(nodes, ["made"], weights), {"stays": "made"})
    feeds = {"moves": np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)}
    (found,) = GraphValues([by_onnxruntime])(joined, Form.ONNX, (), feeds)
    assert joined.inputs == ("moves",)
    np.testing.assert_allclose(
        found, (np.tanh(feeds["moves"]) + 1) * feeds["moves"], rtol=1e-5, atol=1e-6
    )
    narrow = graph_of([oh.make_node("ReduceMean", ["moves"], ["made"], axes=[0, 1])], ["made"], {})
    with pytest.raises(NotCompilable, match="does not take the place"):
        fed_by(step, narrow, {"stays": "made"})
