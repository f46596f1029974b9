"""Passes of the graph: every one leaves consistent types; the verifier finds what is not."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import autotune.graph
from autotune.errors import AutotuneError
from autotune.graph.bound_model import BoundModel
from autotune.graph.ir import Graph, Node, TensorType
from autotune.graph.network import prepared_graphs
from autotune.graph.operators import table
from autotune.graph.passes.pipeline import PASSES, Form, prepare
from autotune.graph.verify import MalformedGraph, verify
from tests.graph.onnx_models import LIGHT, model, node, save
from tests.graph.text_models import text_transformer

LIGHT_MODELS = ("resnet50", "densenet121", "shufflenet", "inception_v2", "squeezenet")


def values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def recurrent(rng: np.random.Generator) -> Path | object:
    weights = {"w": values(rng, 2, 24, 4), "r": values(rng, 2, 24, 6), "b": values(rng, 2, 48)}
    one = node("LSTM", "x w r b", "y h c", hidden_size=6, direction="bidirectional")
    return model(one, {"x": (5, 3, 4)}, weights, "y h c")


def image_network(rng: np.random.Generator) -> object:
    """Parallel, transposed, grouped and dilated convolutions, pooling, a shuffle, a Resize."""
    nodes = [
        node("Conv", "x w1", "a", pads=[1] * 4),
        node("Conv", "x w2", "b"),
        node("Add", "a b", "c"),
        node("BatchNormalization", "c s t m v", "d"),
        node("Relu", "d", "e"),
        node("Conv", "e w3", "f", group=4, pads=[1] * 4),
        node("Reshape", "f split", "g"),
        node("Transpose", "g", "h", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "h back", "i"),
        node("ConvTranspose", "i w4", "j", strides=[2, 2]),
        node("AveragePool", "j", "k", kernel_shape=[2, 2], strides=[2, 2]),
        node("Split", "k", "l m2", axis=1, num_outputs=2),
        node("Concat", "m2 l", "n", axis=1),
        node("Resize", "n _ scales", "o", mode="linear"),
        node("ReduceMean", "o axes", "p"),
        node("TopK", "p three", "q where", axis=1),
        node("Gather", "q picks", "y", axis=1),
    ]
    constants = {
        **{
            "w1": values(rng, 8, 3, 3, 3),
            "w2": values(rng, 8, 3, 1, 1),
            "w3": values(rng, 8, 2, 3, 3),
        },
        **{"w4": values(rng, 8, 8, 2, 2), "scales": np.array([1, 1, 1.5, 2], np.float32)},
        **{n: np.abs(values(rng, 8)) for n in ("s", "t", "m", "v")},
        **{"split": np.array([1, 2, 4, 8, 8]), "back": np.array([1, 8, 8, 8])},
        **{"axes": np.array([2, 3]), "three": np.array([3]), "picks": np.array([2, 0])},
    }
    return model(nodes, {"x": (1, 3, 8, 8)}, constants, "y where", opset=18)


def passes_of(path: Path) -> list[tuple[str, Form, Graph]]:
    return [(step.name, step.form, graph) for step, graph in prepared_graphs(BoundModel(path))]


def assert_consistent(path: Path) -> None:
    found = passes_of(path)
    imported = found[0][2]
    for name, form, graph in found:
        try:
            verify(graph, form)
        except MalformedGraph as error:
            pytest.fail(f"{path.name}, behind {name}: {error}")
        for output in graph.outputs:
            assert graph.types[output] == imported.types[output], (path.name, name, output)
    assert [name for name, _, _ in found] == ["import", *(step.name for step in PASSES)]


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_passes_leave_consistent_types_in_networks(name: str) -> None:
    assert_consistent(LIGHT / f"light_{name}.onnx")


@pytest.mark.parametrize("make", [text_transformer, recurrent, image_network])
def test_passes_leave_consistent_types(
    rng: np.random.Generator, make: Callable[[np.random.Generator], object], tmp_path: Path
) -> None:
    assert_consistent(save(make(rng), tmp_path))  # type: ignore[arg-type]


@pytest.mark.slow
def test_passes_leave_consistent_types_in_stored_models() -> None:
    n_models = 0
    for kind in ("pytorch-converted", "pytorch-operator", "simple"):
        for path in sorted((LIGHT.parent / kind).glob("*/model.onnx")):
            try:
                prepared_graphs(BoundModel(path)).__next__()
            except AutotuneError:
                continue
            assert_consistent(path)
            n_models += 1
    assert n_models > 90


def test_a_sum_that_repeats_its_operand_is_scaled_in_the_shape_of_that(tmp_path: Path) -> None:
    nodes = [node("Add", "x row", "a"), node("Mul", "a half", "y")]
    constants = {"row": np.ones((1, 6), np.float32), "half": np.full(1, 0.5, np.float32)}
    assert_consistent(save(model(nodes, {"x": (1,)}, constants), tmp_path))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    rng = np.random.default_rng(0)
    path = save(image_network(rng), tmp_path_factory.mktemp("m"))  # type: ignore[arg-type]
    return passes_of(path)[-1][2]


def with_type(graph: Graph, name: str, kind: TensorType) -> Graph:
    return replace(graph, types={**graph.types, name: kind})


def test_the_verifier_finds_wrong_shapes_and_dtypes(stored: Graph) -> None:
    """Every computed tensor in turn gets another extent or dtype."""
    for made in stored.nodes:
        kind = stored.types[made.output]
        wrong = TensorType((*kind.shape[:-1], kind.shape[-1] + 1), kind.dtype)
        other = TensorType(kind.shape, "uint8")
        for broken in (wrong, other) if made.op != "Slice" else (other,):
            with pytest.raises(MalformedGraph):
                verify(with_type(stored, made.output, broken), Form.RESOLVED)


def test_computed_weights_of_integers_keep_their_type(tmp_path: Path) -> None:
    node = helper.make_node("ConvInteger", ["x", "w"], ["y"])
    kinds = ((1, 2, 5, 5), (3, 2, 3, 3))
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.UINT8, s)
        for n, s in zip("xw", kinds, strict=True)
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT32, None)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    path = tmp_path / "model.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path
    )
    assert_consistent(path)


def test_the_verifier_finds_wrong_order_and_missing_tensors(stored: Graph) -> None:
    verify(stored, Form.RESOLVED)
    for broken in (
        replace(stored, nodes=stored.nodes[::-1]),
        replace(stored, nodes=stored.nodes[1:]),
        replace(stored, nodes=(*stored.nodes, stored.nodes[-1])),
        replace(stored, outputs=(*stored.outputs, "elsewhere")),
        replace(stored, constants={n: a[..., None] for n, a in stored.constants.items()}),
    ):
        with pytest.raises(MalformedGraph):
            verify(broken, Form.RESOLVED)


def test_the_verifier_asks_inference_of_operators_in_onnx_form() -> None:
    types = {"x": TensorType((2, 3)), "y": TensorType((2, 3))}
    graph = Graph(("x",), ("y",), (Node("n", "Transpose", ("x",), ("y",)),), {}, types)
    with pytest.raises(MalformedGraph, match=r"node 'n'.*\[3, 2\], declared float32\[2, 3\]"):
        verify(graph)


def test_passes_do_not_change_their_argument(rng: np.random.Generator, tmp_path: Path) -> None:
    path = save(image_network(rng), tmp_path)  # type: ignore[arg-type]
    found = passes_of(path)
    imported = found[0][2]
    before = (imported.nodes, dict(imported.types), set(imported.constants))
    prepare(imported)
    assert before == (imported.nodes, imported.types, set(imported.constants))


FAMILIES = Path(table.__file__).parent
READING = (
    *("upgrades.py", "unfolding.py", "compositions.py", "qlinear.py", "standard_forms.py"),
    *("random_weights.py", "draws.py", "shape_inputs.py", "growing.py", "held.py"),
    *("masked_places.py", "constant_forms.py", "prepared_masks.py"),
)
"""What changed between opsets, what is unfolded or composed of others while reading, how made-up
weights are scaled, what bounds random numbers keep, which operands of the file are shapes, what is
computed again in every step, what would mix places of a state that are not filled, what passes make
products of, what of the length of a state stays affine in it, and what readers take a mask for."""


def test_no_table_of_operators_outside_of_their_records() -> None:
    """Two or more names of operators in a literal or a comparison belong into `Operator` fields."""
    root = Path(next(iter(autotune.graph.__path__)))
    for path in sorted(root.rglob("*.py")):
        if path.parent == FAMILIES or path.name in READING:
            continue
        for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = (
                found.elts
                if isinstance(found, ast.Tuple | ast.Set | ast.List)
                else found.keys
                if isinstance(found, ast.Dict)
                else ()
            )
            names = [p.value for p in parts if isinstance(p, ast.Constant)]
            named = [n for n in names if n in table.OPERATORS]
            assert len(named) < 3, f"{path.name}:{found.lineno}: {named}"


def test_every_operator_has_one_record() -> None:
    names = [n for family in table.FAMILIES for n in family.OPERATORS]
    assert len(names) == len(set(names)) == len(table.OPERATORS)
