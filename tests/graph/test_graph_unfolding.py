"""Old opsets, functions and compound operators wherever they are: in branches, loops, functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper

from autotune.errors import ModelError, UnsupportedOperator
from autotune.graph.network import build_network
from tests.graph.onnx_models import assert_matches, execute, model, node, random_feeds, save

BOX = {"x": (2, 3, 4, 6)}
INFO = helper.make_tensor_value_info

OLD: list[tuple[int, NodeProto, dict[str, object]]] = [
    (8, node("Upsample", "x", "r", scales=[1.0, 1.0, 2.0, 3.0]), {}),
    (9, node("Upsample", "x s", "r", mode="linear"), {"s": np.array([1, 1, 2, 1.5], "f4")}),
    (10, node("Resize", "x s", "r", mode="linear"), {"s": np.array([1, 1, 0.5, 2], "f4")}),
    (10, node("Resize", "x s", "r"), {"s": np.array([1, 1, 0.6, 0.6], "f4")}),
    (9, node("Slice", "x", "r", starts=[1, 0], ends=[3, 9], axes=[2, 3]), {}),
    (10, node("Pad", "x", "r", pads=[0, 0, 1, 2, 0, 0, 0, 1], value=0.5), {}),
    (11, node("Softmax", "x", "r", axis=2), {}),
    (11, node("Softmax", "x", "r"), {}),
    (11, node("LogSoftmax", "x", "r", axis=-2), {}),
    (11, node("Unsqueeze", "x", "r", axes=[0, 3]), {}),
    (11, node("ReduceSum", "x", "r", axes=[1, 3], keepdims=0), {}),
    (13, node("ReduceMean", "x", "r", axes=[1], keepdims=0), {}),
    (11, node("Split", "x", "r q", axis=3, split=[2, 4]), {}),
    (13, node("Split", "x", "r q", axis=2), {}),
    (9, node("TopK", "x", "r q", k=2), {}),
    (14, node("HardSwish", "x", "r"), {}),
    (12, node("Celu", "x", "r", alpha=0.7), {}),
    (9, node("MeanVarianceNormalization", "x", "r"), {}),
]
"""An operator in an opset that has it otherwise than opset 22, and its constants."""
ids = [f"{op.op_type}-{opset}" for opset, op, _ in OLD]


def plainly(op: NodeProto, opset: int, constants: dict[str, object]) -> ModelProto:
    return model([op, node("Neg", "r", "y")], BOX, constants, opset=opset)


def in_an_if(op: NodeProto, opset: int, constants: dict[str, object]) -> ModelProto:
    """In a branch of a branch; the other branches have the same operator."""

    def branch(n: NodeProto, suffix: str) -> onnx.GraphProto:
        renamed = NodeProto()
        renamed.CopyFrom(n)
        renamed.output[:] = [o + suffix for o in n.output]
        result = INFO(renamed.output[0], TensorProto.FLOAT, None)
        return helper.make_graph([renamed], "branch", [], [result])

    inner = helper.make_node(
        "If", ["c"], ["i"], then_branch=branch(op, "1"), else_branch=branch(op, "2")
    )
    outer = helper.make_node(
        "If", ["c"], ["o"], then_branch=branch(inner, "3"), else_branch=branch(op, "4")
    )
    nodes = [outer, node("Neg", "o", "y")]
    return model(nodes, BOX, {"c": np.array(True), **constants}, opset=opset)


def in_a_loop(op: NodeProto, opset: int, constants: dict[str, object]) -> ModelProto:
    """In two iterations, whose results are rows of one."""
    kept = [node("Identity", "go", "stay"), node("Identity", "k", "k2")]
    kinds = {"n": TensorProto.INT64, "go": TensorProto.BOOL, "k": TensorProto.FLOAT}
    ins = [INFO(name, kind, []) for name, kind in kinds.items()]
    outs = [INFO("stay", TensorProto.BOOL, []), INFO("k2", TensorProto.FLOAT, [])]
    body = helper.make_graph([op, *kept], "body", ins, [*outs, INFO("r", TensorProto.FLOAT, None)])
    loop = helper.make_node("Loop", ["m", "c", "k0"], ["k1", "rows"], body=body)
    constants = {"c": np.array(True), "m": np.array(2), "k0": np.array(0, "f4"), **constants}
    return model([loop, node("Neg", "rows", "y")], BOX, constants, opset=opset)


@pytest.mark.parametrize("where", [plainly, in_an_if, in_a_loop])
@pytest.mark.parametrize(("opset", "op", "constants"), OLD, ids=ids)
def test_an_old_operator_means_the_same_anywhere(
    where: Callable[..., ModelProto],
    opset: int,
    op: NodeProto,
    constants: dict[str, object],
    tmp_path: Path,
) -> None:
    assert_matches(where(op, opset, constants), tmp_path, 1e-5)


CHANNELS = np.array([0.1, -0.2, 0.3], "f4")
OLDEST: list[tuple[NodeProto, Callable[[np.ndarray], np.ndarray]]] = [
    (node("PRelu", "x a", "r"), lambda x: np.where(x < 0, x * CHANNELS[:, None, None], x)),
    (node("Add", "x a", "r", axis=1, broadcast=1), lambda x: x + CHANNELS[:, None, None]),
    (node("Clip", "x", "r", min=-0.5, max=0.25), lambda x: np.clip(x, -0.5, 0.25)),
    (node("Dropout", "x", "r", is_test=1), lambda x: x),
    (node("Cast", "x", "r", to=TensorProto.FLOAT), lambda x: x),
]


@pytest.mark.parametrize("where", [plainly, in_an_if, in_a_loop])
@pytest.mark.parametrize(("op", "want"), OLDEST, ids=[op.op_type for op, _ in OLDEST])
def test_opset_6_is_older_than_other_runtimes(
    where: Callable[..., ModelProto],
    op: NodeProto,
    want: Callable[[np.ndarray], np.ndarray],
    tmp_path: Path,
) -> None:
    network = build_network(save(where(op, 6, {"a": CHANNELS}), tmp_path))
    feeds = random_feeds(network)
    got = execute(network, feeds)["y"]
    expected = np.broadcast_to(-want(feeds["x"]), got.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def function(
    name: str, nodes: list[NodeProto], opset: int = 17, inputs: str = "x", **attrs: list[object]
) -> FunctionProto:
    """A function of the domain `my` that returns `y`."""
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    return helper.make_function("my", name, inputs.split(), ["y"], nodes, imports, **attrs)


def with_functions(
    nodes: list[NodeProto], *functions: FunctionProto, opset: int = 17
) -> ModelProto:
    proto = model(nodes, {"x": (2, 3, 4, 4)}, {"c": np.array(True)}, opset=opset)
    proto.functions.extend(functions)
    proto.opset_import.append(helper.make_opsetid("my", 1))
    return proto


def call(name: str, inputs: str, output: str, **attrs: object) -> NodeProto:
    made = node(name, inputs, output, **attrs)
    made.domain = "my"
    return made


@pytest.mark.parametrize("opset", [11, 12, 17, 21])
def test_a_function_has_an_opset_of_its_own(opset: int, tmp_path: Path) -> None:
    """Where that writes an operator as the model's opset does, it means what it means there."""
    norm = function("Norm", [node("Softmax", "x", "y")], opset)
    proto = with_functions([call("Norm", "x", "y")], norm)
    want = model(node("Softmax", "x", "y"), {"x": (2, 3, 4, 4)}, opset=17)
    network, plain = (build_network(save(m, tmp_path)) for m in (proto, want))
    feeds = random_feeds(network)
    np.testing.assert_array_equal(execute(network, feeds)["y"], execute(plain, feeds)["y"])


def attribute(name: str, of: str, kind: int) -> onnx.AttributeProto:
    """An attribute of a node in a function that is one of the function."""
    return onnx.AttributeProto(name=name, ref_attr_name=of, type=kind)


def leaky() -> FunctionProto:
    """Leaky(x; slope = 0.3) in terms of another function, Both(x, x)."""
    relu = node("LeakyRelu", "x", "t")
    relu.attribute.append(attribute("alpha", "slope", onnx.AttributeProto.FLOAT))
    default = helper.make_attribute("slope", 0.3)
    nodes = [relu, call("Both", "t x", "y")]
    return function("Leaky", nodes, attribute_protos=[default])


def test_functions_in_functions_with_attributes_and_defaults(tmp_path: Path) -> None:
    """Called twice: names inside of one call are not those of another."""
    nodes = [
        call("Leaky", "x", "a"),
        call("Leaky", "a", "b", slope=0.6),
        node("Sub", "b x", "y"),
    ]
    both = function("Both", [node("Add", "a x", "t"), node("Tanh", "t", "y")], inputs="a x")
    assert_matches(with_functions(nodes, leaky(), both), tmp_path, 1e-5)


def test_a_function_in_a_branch_and_a_branch_in_a_function(tmp_path: Path) -> None:
    def branch(n: NodeProto) -> onnx.GraphProto:
        return helper.make_graph([n], "b", [], [INFO(n.output[0], TensorProto.FLOAT, None)])

    relu = node("LeakyRelu", "x", "t")
    relu.attribute.append(attribute("alpha", "slope", onnx.AttributeProto.FLOAT))
    chosen = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch(relu), else_branch=branch(node("Neg", "x", "e"))
    )
    inner = function("Inner", [chosen], inputs="x c", attributes=["slope"])
    outer = helper.make_node(
        "If",
        ["c"],
        ["y"],
        then_branch=branch(call("Inner", "x c", "p", slope=0.25)),
        else_branch=branch(node("Abs", "x", "q")),
    )
    assert_matches(with_functions([outer], inner), tmp_path, 1e-5)


def test_a_function_that_calls_itself_is_refused(tmp_path: Path) -> None:
    functions = function("A", [call("B", "x", "y")]), function("B", [call("A", "x", "y")])
    with pytest.raises(ModelError, match=r"function 'my\.[AB]' calls itself"):
        build_network(save(with_functions([call("A", "x", "y")], *functions), tmp_path))


@pytest.mark.parametrize("axes", [{}, {"scan_input_axes": [1], "scan_output_axes": [1]}], ids=str)
@pytest.mark.parametrize("turned", [0, 1])
def test_a_scan_is_unfolded(axes: dict[str, object], turned: int, tmp_path: Path) -> None:
    """A running sum, with the input or the output read backwards."""
    kinds = [INFO(n, TensorProto.FLOAT, None) for n in ("s", "row", "total", "out")]
    nodes = [node("Add", "s row", "total"), node("Neg", "total", "out")]
    body = helper.make_graph(nodes, "body", kinds[:2], kinds[2:])
    directions = {"scan_input_directions": [turned], "scan_output_directions": [1 - turned]}
    attrs = {"body": body, "num_scan_inputs": 1, **axes, **directions}
    scan = helper.make_node("Scan", ["start", "x"], ["last", "y"], **attrs)
    constants = {"start": np.ones(5 if not axes else 4, "f4")}
    proto = model([scan], {"x": (4, 5)}, constants, "last y")
    assert_matches(proto, tmp_path, 1e-5)


def test_all_operators_without_a_meaning_are_named_at_once(tmp_path: Path) -> None:
    """Those of branches and functions, too, and none that no output needs."""

    def branch(n: NodeProto) -> onnx.GraphProto:
        return helper.make_graph([n], "b", [], [INFO(n.output[0], TensorProto.FLOAT, None)])

    taken = branch(call("Fused", "d", "p"))
    other = branch(node("Abs", "d", "q"))
    nodes = [
        node("RandomNormalLike", "x", "d", name="det"),
        call("Inner", "x", "i"),
        node("RandomNormalLike", "i", "d2"),
        helper.make_node("If", ["c"], ["o"], then_branch=taken, else_branch=other),
        node("Relu", "o", "relu"),
        node("Add", "d2 relu", "y"),
        node("NonZero", "x", "unread"),
    ]
    inner = function("Inner", [node("StringNormalizer", "x", "t"), node("Relu", "t", "y")])
    with pytest.raises(UnsupportedOperator) as caught:
        build_network(save(with_functions(nodes, inner), tmp_path))
    assert caught.value.message == (
        "3 operators are not supported: 'RandomNormalLike' (2 nodes, first 'det'), "
        "'StringNormalizer' (1 node, 'i/t'), 'my.Fused' (1 node, 'p')"
    )
    assert "autotune/" not in caught.value.hint


def test_an_operator_that_no_output_needs_is_left_out(tmp_path: Path) -> None:
    nodes = [node("NonZero", "x", "unread"), node("Relu", "x", "y")]
    assert_matches(model(nodes, BOX), tmp_path)


def test_what_follows_from_another_refusal_is_not_told(tmp_path: Path) -> None:
    """The Reshape would be known if the result of the Det was."""
    nodes = [node("NonZero", "x", "n", name="nz"), node("ConstantOfShape", "n", "y")]
    with pytest.raises(UnsupportedOperator, match=r"operator 'NonZero' \(node 'nz', opset 17\)"):
        build_network(save(model(nodes, BOX), tmp_path))
