"""Reading models: old ones, external data, and every way in which a file can be wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import DynamicShape, ExitCode, ModelError, UnsupportedOperator, UsageError
from autotune.graph.network import build_network
from autotune.graph.passes.small_constants import exact_half
from autotune.graph.reader.onnx_reader import external_files, model_hash, prepare_model
from tests.graph.onnx_models import (
    LIGHT,
    assert_matches,
    error_against_onnxruntime,
    execute,
    model,
    node,
    onnxruntime_outputs,
    random_feeds,
    save,
)

BFLOAT16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def mlp(rng: np.random.Generator, batch: int | str = 4, opset: int = 17) -> onnx.ModelProto:
    nodes = [node("MatMul", "x w", "a"), node("Add", "a b", "c"), node("Relu", "c")]
    constants = {"w": weights(rng, 64, 40), "b": weights(rng, 40)}
    return model(nodes, {"x": (batch, 64)}, constants, opset=opset)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 15, 17, 19, 21, 22, 24, 26])
def test_opsets(rng: np.random.Generator, opset: int, tmp_path: Path) -> None:
    assert_matches(mlp(rng, opset=opset), tmp_path, 1e-5)


@pytest.mark.parametrize("opset", [27, 28])
def test_opsets_newer_than_other_runtimes(
    rng: np.random.Generator, opset: int, tmp_path: Path
) -> None:
    assert error_against_onnxruntime(save(mlp(rng, opset=opset), tmp_path)) <= 1e-5


def in_precision(kind: int) -> onnx.ModelProto:
    """A network of one floating-point type: weights, a table, constants of nodes, casts, fills."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    scale = numpy_helper.from_array(np.array(0.3).astype(BFLOAT16).astype(dtype))
    fill = numpy_helper.from_array(np.array([0.5], dtype))
    nodes = [
        node("Constant", "", "scale", value=scale),
        node("Cast", "ids", "flag", to=kind),
        node("Gather", "table ids", "rows"),
        node("MatMul", "rows w", "a"),
        node("LayerNormalization", "a gain shift", "n", axis=-1),
        node("Mul", "n scale", "m"),
        node("ConstantOfShape", "shape", "half", value=fill),
        node("Sum", "m half x", "s"),
        node("Add", "s flags", "y"),
        node("Unsqueeze", "flag last", "flags"),
    ]
    order = [*nodes[:2], nodes[9], *nodes[2:9]]
    rng = np.random.default_rng(3)
    shapes = {"table": (50, 48), "w": (48, 40), "gain": (40,), "shift": (40,)}
    halves = {n: rng.standard_normal(s).astype(BFLOAT16) for n, s in shapes.items()}
    integers = {"shape": np.array([40]), "last": np.array([1])}
    proto = model(order, {"x": (4, 40), "ids": (4,)}, integers, types={"ids": "int64"})
    for name, array in halves.items():
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(dtype), name))
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.elem_type = kind
    return proto


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_half_precision_is_computed_in_float32(kind: int, tmp_path: Path) -> None:
    """Weights that all three types hold exactly give what the float32 network gives."""
    path = save(in_precision(kind), tmp_path)
    network = build_network(path)
    dtype = "float16" if kind == TensorProto.FLOAT16 else "bfloat16"
    assert {p.dtype for p in network.inputs} == {dtype, "int64"}
    assert {network.values[p.value].dtype for p in network.inputs} == {"float32", "int64"}
    assert error_against_onnxruntime(path, in_precision(TensorProto.FLOAT)) <= 1e-5


def test_softmax_before_opset_13_flattens_to_two_dimensions(tmp_path: Path) -> None:
    proto = model(node("Softmax", "x", axis=1), {"x": (2, 3, 4, 5)}, opset=11)
    assert_matches(proto, tmp_path)


def test_initialisers_among_the_inputs(rng: np.random.Generator, tmp_path: Path) -> None:
    proto = mlp(rng, opset=9)
    proto.ir_version = 3
    for tensor in proto.graph.initializer:
        value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        proto.graph.input.append(value)
    network = assert_matches(proto, tmp_path, 1e-5)
    assert [p.name for p in network.inputs] == ["x"]


def test_external_data(rng: np.random.Generator, tmp_path: Path) -> None:
    proto, path = mlp(rng), tmp_path / "model.onnx"
    feeds = {"x": weights(rng, 4, 64)}
    want = onnxruntime_outputs(proto, feeds)["y"]
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    got = execute(build_network(path), feeds)["y"]
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    before = model_hash(path)
    (tmp_path / "weights.bin").write_bytes(b"\0" * (tmp_path / "weights.bin").stat().st_size)
    assert model_hash(path) != before


@pytest.mark.parametrize("shift", [0, 3, 8])
def test_external_files_are_found_wherever_their_key_lies(
    rng: np.random.Generator, shift: int, tmp_path: Path
) -> None:
    proto, path = mlp(rng), tmp_path / "model.onnx"
    del proto.graph.initializer[1:]
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    proto = onnx.load(path, load_external_data=False)
    proto.producer_name = "x" * (1 << 22)  # moves the key to the end of a block that is read
    proto.producer_name = "x" * ((1 << 23) - proto.SerializeToString().index(b"location") - shift)
    path.write_bytes(proto.SerializeToString())
    assert external_files(path) == [tmp_path / "weights.bin"]


def test_a_constant_is_half_precision_only_if_every_element_is(rng: np.random.Generator) -> None:
    halves = weights(rng, 256, 256).astype(np.float16).astype(np.float32)
    assert exact_half(halves) is not None
    halves[-1, -1] = 1 / 3
    assert exact_half(halves) is None


def test_missing_external_data(rng: np.random.Generator, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(mlp(rng), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"model\.onnx"):
        build_network(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no model file") as caught:
        build_network(tmp_path / "absent.onnx")
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.hint


@pytest.mark.parametrize("kept", [0, 100, 5000, 79000])
def test_truncated_file(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.onnx"
    path.write_bytes((LIGHT / "light_resnet50.onnx").read_bytes()[:kept])
    with pytest.raises(ModelError) as caught:
        build_network(path)
    assert caught.value.exit_code == ExitCode.FAILURE
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("content", [b"hello, I am no model\n", b"PK\x03\x04", b"\x00" * 64])
def test_foreign_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError):
        build_network(path)


@pytest.mark.parametrize("op", ["NonMaxSuppression", "RandomNormalLike"])
def test_unsupported_operator_is_named_with_node_and_opset(op: str, tmp_path: Path) -> None:
    operands = {"NonMaxSuppression": "x z"}.get(op, "x")
    shapes = {
        "RandomNormalLike": {"x": (3, 3)},
        "NonMaxSuppression": {"x": (1, 6, 4), "z": (1, 1, 6)},
    }[op]
    proto = model(
        helper.make_node(op, operands.split(), ["y"], name="odd"),
        shapes,
        opset=17,
    )
    if op == "NonMaxSuppression":
        proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    with pytest.raises(UnsupportedOperator) as caught:
        build_network(save(proto, tmp_path))
    assert f"'{op}'" in caught.value.message
    assert "'odd'" in caught.value.message
    assert "opset 17" in caught.value.message


def test_operator_of_another_domain(tmp_path: Path) -> None:
    proto = model(helper.make_node("FusedThing", ["x"], ["y"], domain="com.example"), {"x": (2,)})
    proto.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedOperator, match=r"com\.example\.FusedThing"):
        build_network(save(proto, tmp_path))


def squeezed_or_not(condition: str) -> onnx.ModelProto:
    """If the second dimension of x is 1, exp(x without it), else exp(relu(x)); or as c says."""
    branches = {}
    for name, op in {"then": node("Squeeze", "x one", "s"), "else": node("Relu", "x", "r")}.items():
        port = helper.make_tensor_value_info(op.output[0], onnx.TensorProto.FLOAT, None)
        branches[f"{name}_branch"] = helper.make_graph([op], name, [], [port])
    nodes = [
        *(node("Shape", "x", "shape", start=1, end=2), node("Equal", "shape one", "known")),
        *(node("If", condition, "z", **branches), node("Exp", "z")),
    ]
    inputs = {"x": (4, 3, 5), "c": (1,)}
    return model(nodes, inputs, {"one": np.array([1])}, types={"c": "bool"})


@pytest.mark.parametrize(("extent", "shape"), [(1, (4, 5)), (3, (4, 3, 5))])
def test_a_branch_that_shapes_decide(extent: int, shape: tuple[int, ...], tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 20 * extent, dtype=np.float32).reshape(4, extent, 5)
    network = build_network(save(squeezed_or_not("known"), tmp_path), {"x": x.shape})
    found = execute(network, {"x": x, "c": np.array([False])})["y"]
    want = np.exp(x if extent == 1 else np.maximum(x, 0)).reshape(shape)
    np.testing.assert_allclose(found, want, rtol=1e-6)


def looped(count: str, condition: str) -> onnx.ModelProto:
    """y = 2ⁿ·x and the rows x, 2x, 4x, …: as often as `count` says, while `condition` holds."""

    def port(name: str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, None)

    nodes = [
        *(node("Identity", "v", "row"), node("Add", "v v", "next")),
        *(node("Less", "i last", "goes"), node("And", "goes going", "on")),
    ]
    inputs = [port("i", TensorProto.INT64), port("going", TensorProto.BOOL), port("v")]
    outputs = [port("on", TensorProto.BOOL), port("next"), port("row")]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    loop = node("Loop", f"{count} {condition} x", "y rows", body=body)
    constants = {"three": np.array(3), "last": np.array(4), "yes": np.array(True)}
    types = {"c": "bool", "n": "int64"}
    return model(loop, {"x": (2, 5), "c": (), "n": ()}, constants, "y rows", types=types)


@pytest.mark.parametrize(("count", "n"), [("three", 3), ("_", 5)])
@pytest.mark.parametrize("condition", ["_", "yes"])
def test_iterations_that_are_known(count: str, n: int, condition: str, tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
    network = build_network(save(looped(count, condition), tmp_path))
    found = execute(network, {"x": x, "c": np.array(True), "n": np.array(1)})
    np.testing.assert_array_equal(found["y"], x * 2**n)
    np.testing.assert_array_equal(found["rows"], [x * 2**k for k in range(n)])


@pytest.mark.parametrize(("count", "condition"), [("n", "_"), ("three", "c")])
def test_iterations_that_data_decide_are_refused(
    count: str, condition: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedOperator, match=r"'Loop'.*depends on the data"):
        build_network(save(looped(count, condition), tmp_path))


@pytest.mark.parametrize(
    ("lengths", "keep", "shape"),
    [(None, 0, (5,)), (1, 0, (5,)), (4, 1, (4, 5)), ([2, 4], 0, (4, 5))],
)
def test_a_part_of_a_sequence(
    lengths: object, keep: int, shape: tuple[int, ...], tmp_path: Path
) -> None:
    parts = node("SplitToSequence", "x" if lengths is None else "x n", "parts", keepdims=keep)
    constants = {"i": np.array(-1 if lengths != 4 else 0), "n": np.array(lengths or 1)}
    nodes = [node("Relu", "x", "r"), parts, node("SequenceAt", "parts i")]
    proto = model(nodes, {"x": (6, 5)}, constants)
    assert_matches(proto, tmp_path)
    assert build_network(save(proto, tmp_path)).outputs[0].shape == shape


def test_a_branch_keeps_the_weights_that_it_reads(rng: np.random.Generator, tmp_path: Path) -> None:
    branches = {}
    for name in ("then", "else"):
        port = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        op = node("MatMul" if name == "then" else "Sub", "x w", name)
        branches[f"{name}_branch"] = helper.make_graph([op], name, [], [port])
    constants = {"w": weights(rng, 40, 40), "yes": np.array(True)}
    proto = model(node("If", "yes", **branches), {"x": (40, 40)}, constants)
    assert error_against_onnxruntime(save(proto, tmp_path)) <= 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_nodes_in_any_order(rng: np.random.Generator, seed: int, tmp_path: Path) -> None:
    nodes = [node("Tanh", "x", "a"), node("Exp", "a", "b"), node("Add", "b a", "c")]
    branch = helper.make_graph(
        [node("Mul", "sum c", "made"), node("Add", "c a", "sum")],
        "branch",
        [],
        [helper.make_tensor_value_info("made", 1, None)],
    )
    nodes.append(node("If", "yes", "d", then_branch=branch, else_branch=branch))
    nodes += [node("MatMul", "d w", "e"), node("Sub", "e c", "y")]
    shuffled = np.random.default_rng(seed).permutation(len(nodes))
    constants = {"w": weights(rng, 6, 6), "yes": np.array(True)}
    proto = model([nodes[i] for i in shuffled], {"x": (4, 6)}, constants)
    assert error_against_onnxruntime(save(proto, tmp_path)) <= 1e-5


def test_nodes_in_a_cycle(tmp_path: Path) -> None:
    proto = model([node("Add", "x b", "a"), node("Exp", "a", "b"), node("Neg", "b")], {"x": (4, 6)})
    with pytest.raises(ModelError, match="topologically sorted"):
        build_network(save(proto, tmp_path))


def test_a_branch_that_data_decide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperator, match=r"'If'.*depends on the data"):
        build_network(save(squeezed_or_not("c"), tmp_path))


def test_an_input_that_is_no_tensor(tmp_path: Path) -> None:
    proto = model(node("SequenceAt", "s i"), {"s": (2,)}, {"i": np.array(0)})
    port = helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    proto.graph.input[0].CopyFrom(port)
    with pytest.raises(ModelError, match="'s' is of type 'sequence'"):
        build_network(save(proto, tmp_path))


def test_an_attribute_that_came_later(tmp_path: Path) -> None:
    op = node("Cast", "x", to=1, round_mode="down")
    with pytest.raises(UnsupportedOperator, match="attribute 'round_mode'"):
        build_network(save(model(op, {"x": (1, 2, 4, 4)}, opset=24), tmp_path))


def test_dropout_in_training_is_refused(tmp_path: Path) -> None:
    op = node("Dropout", "x ratio training")
    constants = {"ratio": np.float32(0.5), "training": np.array(True)}
    with pytest.raises(UnsupportedOperator, match="Dropout"):
        build_network(save(model(op, {"x": (4, 5)}, constants), tmp_path))


def test_dynamic_dimension_asks_for_a_shape(rng: np.random.Generator, tmp_path: Path) -> None:
    path = save(mlp(rng, "batch"), tmp_path)
    with pytest.raises(DynamicShape, match=r"batch \(x\.0\)") as caught:
        build_network(path)
    assert "`dims={'batch': SIZE}`" in caught.value.hint
    assert caught.value.exit_code == ExitCode.USAGE
    network = build_network(path, {"x": (3, 64)})
    assert network.outputs[0].shape == (3, 40)
    feeds = random_feeds(network)
    want = onnxruntime_outputs(prepare_model(path, {"x": (3, 64)}), feeds)["y"]
    assert np.allclose(execute(network, feeds)["y"], want, atol=1e-4)


def test_shape_of_an_unknown_input(rng: np.random.Generator, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no input 'z'"):
        build_network(save(mlp(rng), tmp_path), {"z": (1, 64)})


def test_shape_of_another_rank(rng: np.random.Generator, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has 2 dimensions"):
        build_network(save(mlp(rng), tmp_path), {"x": (1, 64, 1)})


def test_shape_that_does_not_fit(rng: np.random.Generator, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="do not fit"):
        build_network(save(mlp(rng), tmp_path), {"x": (4, 63)})


def test_real_weights_are_kept(rng: np.random.Generator, tmp_path: Path) -> None:
    fill = helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [0.5])
    nodes = [
        node("ConstantOfShape", "s", "b", value=fill),
        node("MatMul", "x w", "t"),
        node("Add", "t b"),
    ]
    proto = model(nodes, {"x": (2, 64)}, {"s": np.array([40]), "w": weights(rng, 64, 40)})
    assert_matches(proto, tmp_path, 1e-5)


def small_with_a_fill(rng: np.random.Generator) -> onnx.ModelProto:
    """No initialiser above 1,024 elements, and a float ConstantOfShape."""
    fill = helper.make_tensor("value", onnx.TensorProto.FLOAT, [1], [1.0])
    nodes = [
        node("Gemm", "x w b", "g"),
        node("ConstantOfShape", "s", "o", value=fill),
        node("Add", "g o"),
    ]
    constants = {"w": weights(rng, 8, 8), "b": weights(rng, 8), "s": np.array([2, 8])}
    return model(nodes, {"x": (2, 8)}, constants)


def test_small_weights_are_kept_beside_a_fill(rng: np.random.Generator, tmp_path: Path) -> None:
    proto = small_with_a_fill(rng)
    assert_matches(proto, tmp_path, 1e-6)
    network = build_network(tmp_path / "model.onnx")
    assert not network.random_weights
    feeds = random_feeds(network)
    want = onnxruntime_outputs(proto, feeds)["y"]  # not `prepare_model`: the file as it is
    np.testing.assert_allclose(execute(network, feeds)["y"], want, rtol=1e-5)


def test_random_weights_on_demand(rng: np.random.Generator, tmp_path: Path) -> None:
    path = save(small_with_a_fill(rng), tmp_path)
    network = build_network(path, random_weights=True)
    assert network.random_weights
    feeds = random_feeds(network)
    own = execute(build_network(path), feeds)["y"]
    assert np.abs(execute(network, feeds)["y"] - own).max() > 0.1


@pytest.mark.parametrize("kind", ["no fill", "large weights"])
def test_random_weights_for_a_model_that_has_its_own(
    rng: np.random.Generator, kind: str, tmp_path: Path
) -> None:
    proto = small_with_a_fill(rng) if kind == "large weights" else mlp(rng)
    if kind == "large weights":
        proto.graph.initializer.append(numpy_helper.from_array(weights(rng, 40, 40), "large"))
    with pytest.raises(UsageError, match="weights of its own") as caught:
        build_network(save(proto, tmp_path), random_weights=True)
    assert "`random_weights`" in caught.value.hint


def test_names_do_not_matter_but_shapes_do(tmp_path: Path) -> None:
    def key(name: str, width: int) -> str:
        proto = model(node("Relu", name), {name: (2, width)})
        return next(iter(build_network(save(proto, tmp_path)).tasks))

    assert key("x", 5) == key("another", 5)
    assert key("x", 5) != key("x", 6)


def filled(rng: np.random.Generator) -> onnx.ModelProto:
    """A dense layer, and a float `ConstantOfShape` that is added to it."""
    one = numpy_helper.from_array(np.ones(1, np.float32))
    nodes = [
        node("Gemm", "x w b", "g"),
        node("ConstantOfShape", "s", "ones", value=one),
        node("Add", "g ones"),
    ]
    constants = {"w": weights(rng, 8, 8), "b": weights(rng, 8), "s": np.array([2, 8], np.int64)}
    return model(nodes, {"x": (2, 8)}, constants)


def test_weights_of_a_user_are_never_replaced(rng: np.random.Generator, tmp_path: Path) -> None:
    proto = filled(rng)
    path = save(proto, tmp_path)
    assert error_against_onnxruntime(path, proto) <= 1e-5
    assert not build_network(path).random_weights


def test_random_weights_are_random_only_on_demand(rng: np.random.Generator, tmp_path: Path) -> None:
    path = save(filled(rng), tmp_path)
    network = build_network(path, random_weights=True)
    feeds = random_feeds(network)
    assert network.random_weights
    assert not np.allclose(execute(network, feeds)["y"], execute(build_network(path), feeds)["y"])
    with pytest.raises(UsageError, match="weights of its own"):
        build_network(save(mlp(rng), tmp_path), random_weights=True)
