"""Outputs of the last place alone: what follows from it is computed for one row, and is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx import numpy_helper

from autotune.graph.bound_model import BoundModel
from autotune.graph.grown_networks import grown_networks
from autotune.graph.ir import Graph
from autotune.graph.last_rows import rows_first, with_last_rows
from autotune.graph.network import stored_network
from autotune.graph.passes.pipeline import Form, prepare
from autotune.graph.reader.grown import grown
from autotune.graph.reader.importer import import_graph
from autotune.graph.reader.model_files import model_file
from autotune.graph.reader.onnx_reader import load_model
from autotune.graph.verify import verify
from autotune.network.check.check import evaluate_network
from tests.decoders import VOCABULARY, decoder
from tests.decoders import WIDTH as HIDDEN

ROWS, WIDTH = 4, 4
"""Equal on purpose: extents do not tell which dimension has the rows."""


class Writer:
    """Nodes that a test draws, on a tensor (1, 4, 4)."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.nodes, self.weights = rng, list[onnx.NodeProto](), list[onnx.TensorProto]()

    def __call__(self, op: str, *inputs: str, **attrs: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(oh.make_node(op, [*inputs], [name], **attrs))
        return name

    def array(self, value: object, dtype: str = "float32") -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.array(self.rng.normal(size=shape) / 2)

    def graph(self, last: str) -> Graph:
        self("Identity", last)
        self.nodes[-1].output[:] = ["y"]
        value = oh.make_tensor_value_info
        shape = [1, ROWS, WIDTH]
        ports = [value("x", 1, shape)], [value("y", 1, shape)]
        opsets = [oh.make_opsetid("", 17)]
        graph = oh.make_graph(self.nodes, "g", *ports, self.weights)
        with model_file(oh.make_model(graph, opset_imports=opsets, ir_version=9)) as path:
            return import_graph(load_model(path))


def turned(w: Writer, x: str) -> str:
    """Rows and columns change places."""
    return w("Transpose", x, perm=[0, 2, 1])


APART: dict[str, Callable[[Writer, str], str]] = {
    "product": lambda w, x: w("MatMul", x, w.weight(WIDTH, WIDTH)),
    "bias": lambda w, x: w("Add", x, w.weight(WIDTH)),
    "table": lambda w, x: w("Add", x, w.weight(ROWS, WIDTH)),
    "residual": lambda w, x: w("Add", x, w("Tanh", w("MatMul", x, w.weight(WIDTH, WIDTH)))),
    "square": lambda w, x: w("Mul", x, x),
    "shares": lambda w, x: w("Softmax", x, axis=-1),
    "norm": lambda w, x: w("LayerNormalization", x, w.weight(WIDTH), w.weight(WIDTH), axis=-1),
    "heads": lambda w, x: w(
        "Reshape",
        turned_heads(w, w("Reshape", x, w.array([1, ROWS, 2, 2], "int64"))),
        w.array([1, ROWS, WIDTH], "int64"),
    ),
}
MIXED: dict[str, Callable[[Writer, str], str]] = {
    "turned": turned,
    "rows of a square": lambda w, x: w("MatMul", x, turned(w, x)),
    "shares of rows": lambda w, x: w("Softmax", x, axis=1),
    "running sum": lambda w, x: w("CumSum", x, w.array(1, "int64")),
    "less the mean": lambda w, x: w("Sub", x, w("ReduceMean", x, axes=[1], keepdims=1)),
    "row before": lambda w, x: w("Slice", doubled(w, x), *ends(w)),
    "other rows": lambda w, x: w("MatMul", w.weight(ROWS, ROWS), x),
    "reversed": lambda w, x: w("Gather", x, w.array([*range(ROWS)][::-1], "int64"), axis=1),
}


def turned_heads(w: Writer, x: str) -> str:
    perm = [0, 2, 1, 3]
    return w("Transpose", w("Sigmoid", w("Transpose", x, perm=perm)), perm=perm)


def doubled(w: Writer, x: str) -> str:
    return w("Concat", x, x, axis=1)


def ends(w: Writer) -> list[str]:
    return [w.array([n], "int64") for n in (ROWS - 1, 2 * ROWS - 1, 1)]


def last_of(graph: Graph) -> tuple[Graph, Graph]:
    """All rows and the last one, as they are stored."""
    cut = with_last_rows(graph, {"y": 1})
    stored = rows_first(prepare(cut))
    verify(stored, Form.RESOLVED)
    return cut, stored


@pytest.mark.parametrize("seed", range(40))
def test_the_last_row_is_that_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w, last, known = Writer(rng), "x", {**APART, **MIXED}
    for name in rng.choice([*known], int(rng.integers(1, 7))):
        last = known[name](w, last)
    graph = w.graph(last)
    x = {"x": rng.normal(size=(1, ROWS, WIDTH)).astype(np.float32)}
    every = evaluate_network(stored_network(graph, prepare(graph), "g", ""), x)["y"]
    one = evaluate_network(stored_network(*last_of(graph), "g", ""), x)["y"]
    np.testing.assert_allclose(one, every[:, -1:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", APART)
def test_rows_that_are_apart_are_one(name: str, rng: np.random.Generator) -> None:
    w = Writer(rng)
    _, stored = last_of(w.graph(w("Exp", APART[name](w, w("Neg", "x")))))
    made = [stored.shape(node.output) for node in stored.nodes]
    assert all(np.prod(shape) == WIDTH for shape in made)


def test_a_prompt_has_scores_and_a_last_layer_of_one_row(tmp_path: Path) -> None:
    """Behind the scores of the last of twelve attentions, programs are those of a token."""
    path, rows = tmp_path / "decoder.onnx", 16
    onnx.save(decoder(layers=12), path)
    bound, step = BoundModel(path, False, None, {}), grown(path, 64)
    at = step.at(rows), step
    prompt, token = grown_networks(bound, at)
    whole, _ = grown_networks(bound, [replace(one, scores="all") for one in at])
    assert {p.name: p.shape for p in prompt.outputs}["logits"] == (1, 1, VOCABULARY)
    assert prompt.state is not None
    assert (prompt.state.last_rows, prompt.state.places) == ({"logits": 1}, {"input_ids": 1})
    assert all(call.task in token.tasks for call in prompt.calls[-6:])
    scores = 2 * HIDDEN * VOCABULARY
    assert whole.flops - prompt.flops > (rows - 1) * (scores + whole.flops / rows / 24)
