"""Models from bug reports and their siblings: the right numbers, or an error naming the node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from autotune.errors import AutotuneError, ModelError
from autotune.graph.network import build_network, chosen
from tests.graph.onnx_models import (
    Array,
    execute,
    model,
    node,
    onnxruntime_outputs,
    reference_outputs,
    save,
)

PLAIN = helper.make_opsetid("", 17)
MINE = helper.make_opsetid("my", 1)


def results(proto: ModelProto, feeds: Mapping[str, Array], folder: Path) -> dict[str, Array]:
    return execute(chosen(build_network(save(proto, folder)), {}), feeds)


def assert_same(
    proto: ModelProto, folder: Path, feeds: Mapping[str, Array], oracle: str = "onnxruntime"
) -> None:
    found = results(proto, feeds, folder)
    outputs = onnxruntime_outputs if oracle == "onnxruntime" else reference_outputs
    for name, want in outputs(proto, feeds).items():
        assert found[name].shape == want.shape
        np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-5)


def normal(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def ports(shapes: Mapping[str, Sequence[int]], kind: int = TensorProto.FLOAT) -> list[Any]:
    return [helper.make_tensor_value_info(n, kind, s) for n, s in shapes.items()]


def of_ports(
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[int]],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    functions: Sequence[Any] = (),
) -> ModelProto:
    """A model whose outputs are listed as given, be they inputs or named twice."""
    arrays = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(
        list(nodes),
        "test",
        ports(inputs),
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        arrays,
    )
    return helper.make_model(
        graph, opset_imports=[PLAIN, MINE], functions=list(functions), ir_version=8
    )


# --- inputs and outputs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "outputs", ["y x", "x y", "x", "y s", "s", "y y", "y w", "w", "y x s w", "y"]
)
def test_outputs_that_are_inputs_constants_or_named_twice(outputs: str, tmp_path: Path) -> None:
    known = {"x": normal(4), "s": normal(3), "w": normal(2000)}
    proto = of_ports(
        [node("Relu", "x")], {"x": (4,), "s": (3,)}, outputs.split(), {"w": known["w"]}
    )
    found = results(proto, {"x": known["x"], "s": known["s"]}, tmp_path)
    assert found.keys() == set(outputs.split())
    for name, value in found.items():
        np.testing.assert_array_equal(value, {**known, "y": np.maximum(known["x"], 0)}[name])


def test_an_output_that_is_an_input_keeps_the_names_of_others(tmp_path: Path) -> None:
    proto = of_ports([node("Neg", "x", "x.output")], {"x": (4,)}, ["x.output", "x"])
    x = normal(4)
    found = results(proto, {"x": x}, tmp_path)
    np.testing.assert_array_equal(found["x"], x)
    np.testing.assert_array_equal(found["x.output"], -x)


def test_a_branch_that_gives_what_comes_from_outside(tmp_path: Path) -> None:
    branch = helper.make_graph([], "b", [], ports({"x": (4,)}))
    choice = node("If", "c", "y", then_branch=branch, else_branch=branch)
    proto = of_ports([choice], {"x": (4,)}, ["y"], {"c": np.array(True)})
    np.testing.assert_array_equal(results(proto, {"x": normal(4)}, tmp_path)["y"], normal(4))


@pytest.mark.parametrize("kind", [TensorProto.FLOAT8E8M0, TensorProto.COMPLEX64])
def test_an_input_of_another_type_is_refused_by_name(kind: int, tmp_path: Path) -> None:
    proto = model(node("Relu", "x"), {"x": (4,)})
    proto.graph.input.append(ports({"unread": (1,)}, kind)[0])
    with pytest.raises(ModelError, match="input 'unread' has elements of type"):
        build_network(save(proto, tmp_path))


# --- padding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize(
    "amounts", [(-1, 1), (1, -1), (-2, 2), (2, -3), (-2, -2), (5, 0), (0, 4), (-3, 1)]
)
def test_pad_crops_before_it_repeats(mode: str, amounts: Sequence[int], tmp_path: Path) -> None:
    proto = model(node("Pad", "x p", mode=mode), {"x": (6,)}, {"p": np.array(amounts)}, opset=19)
    assert_same(proto, tmp_path, {"x": normal(6)})


def test_pad_mirrors_more_than_once(tmp_path: Path) -> None:
    constants = {"p": np.array([7, 13])}
    proto = model(node("Pad", "x p", mode="reflect"), {"x": (6,)}, constants, opset=19)
    assert_same(proto, tmp_path, {"x": normal(6)}, "reference")


@pytest.mark.parametrize("mode", ["mirror", "edge"])
def test_pad_that_has_no_meaning_is_refused(mode: str, tmp_path: Path) -> None:
    constants = {"p": np.array([-6, 2] if mode == "edge" else [1, 1])}
    with pytest.raises(ModelError, match=r"'Pad'.*'y'.*mode"):
        build_network(save(model(node("Pad", "x p", mode=mode), {"x": (6,)}, constants), tmp_path))


# --- Einsum -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("a,b->", ((8,), (8,))),
        ("a,b,c->", ((8,), (8,), (8,))),
        ("a,b,c,d,e,f->", ((4,),) * 6),
        ("ij,jk,kl->il", ((4, 4), (4, 5), (5, 6))),
        ("ii->i", ((4, 4),)),
        ("ii->", ((4, 4),)),
        (",a->a", ((), (4,))),
        ("a,,b->ab", ((4,), (), (3,))),
        ("bij,bjk->bik", ((1, 3, 4), (2, 4, 5))),
        ("...ij,...jk->...ik", ((2, 3, 4), (4, 5))),
        ("...,...->...", ((2, 3), (3,))),
        ("ij,ij->", ((3, 1), (1, 4))),
        ("iij,jk->ik", ((3, 3, 4), (4, 2))),
    ],
)
def test_einsum_of_scalars_diagonals_and_what_is_broadcast(
    equation: str, shapes: Sequence[Sequence[int]], tmp_path: Path
) -> None:
    names = [f"x{n}" for n in range(len(shapes))]
    feeds = {n: normal(*s) for n, s in zip(names, shapes, strict=True)}
    shaped = dict(zip(names, shapes, strict=True))
    proto = model(node("Einsum", " ".join(names), equation=equation), shaped)
    want = np.einsum(equation, *feeds.values())
    np.testing.assert_allclose(results(proto, feeds, tmp_path)["y"], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("equation", ["i->ii", "ij->k", "i,j->ij", "ijk->i", "...->"])
def test_einsum_that_does_not_fit_is_refused(equation: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'Einsum'.*'y'"):
        build_network(save(model(node("Einsum", "x", equation=equation), {"x": (3, 4)}), tmp_path))


# --- windows ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("ConvTranspose", {"auto_pad": "SAME_UPPER", "output_padding": [1, 1], "strides": [2, 2]}),
        ("ConvTranspose", {"auto_pad": "SAME_LOWER", "output_padding": [1, 0], "strides": [2, 2]}),
        ("ConvTranspose", {"output_shape": [9, 10], "strides": [2, 2]}),
        ("ConvTranspose", {"output_shape": [8, 9], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ("ConvTranspose", {"auto_pad": "VALID", "dilations": [2, 1], "strides": [1, 3]}),
        ("Conv", {"auto_pad": "SAME_LOWER", "strides": [1, 2]}),
        ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_padding_that_follows_from_a_mode(
    op: str, attrs: Mapping[str, object], groups: int, tmp_path: Path
) -> None:
    weights = {"w": normal(4, 4 // groups, 3, 3)}
    proto = model(node(op, "x w", group=groups, **attrs), {"x": (1, 4, 5, 5)}, weights)
    assert_same(proto, tmp_path, {"x": normal(1, 4, 5, 5)})


def test_a_transposed_convolution_whose_strides_exceed_its_kernel(tmp_path: Path) -> None:
    attrs = {"auto_pad": "SAME_UPPER", "strides": [3]}
    proto = model(node("ConvTranspose", "x w", **attrs), {"x": (1, 1, 3)}, {"w": normal(1, 1, 1)})
    assert_same(proto, tmp_path, {"x": normal(1, 1, 3)}, "reference")


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool"])
def test_windows_of_four_dimensions(op: str, tmp_path: Path) -> None:
    proto = model(
        node(op, "x" if op == "MaxPool" else "x w", **{"kernel_shape": [2] * 4}),
        {"x": (1, 2, 3, 3, 3, 3)},
        {"w": normal(2, 2, 2, 2, 2, 2)},
    )
    oracle = "reference" if op == "MaxPool" else "onnxruntime"
    assert_same(proto, tmp_path, {"x": normal(1, 2, 3, 3, 3, 3)}, oracle)


@pytest.mark.parametrize(
    "attrs",
    [
        {"kernel_shape": [3, 3], "pads": [0, 0, 0, 0], "dilations": [3, 1]},
        {"kernel_shape": [3]},
        {"kernel_shape": [3, 3], "strides": [0, 1]},
        {"kernel_shape": [3, 3], "strides": [1]},
        {"kernel_shape": [3, 3], "pads": [-1, 0, 0, 0]},
        {"kernel_shape": [3, 3], "dilations": [1, 0]},
        {"kernel_shape": [3, 3], "auto_pad": "SAME"},
    ],
)
@pytest.mark.parametrize("op", ["Conv", "AveragePool", "MaxPool"])
def test_windows_that_are_not_well_formed(
    op: str, attrs: Mapping[str, object], tmp_path: Path
) -> None:
    inputs = "x w" if op == "Conv" else "x"
    weights = {"w": normal(1, 1, 3, 3)}
    proto = model(node(op, inputs, **attrs), {"x": (1, 1, 5, 5)}, weights, opset=19)
    with pytest.raises(ModelError, match=f"'{op}'|{op}"):
        build_network(save(proto, tmp_path))


# --- resizing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [2.3, 0.7, 1.4, 1.1, 0.35])
@pytest.mark.parametrize(
    ("op", "opset", "mode"),
    [
        ("Upsample", 9, "nearest"),
        ("Upsample", 9, "linear"),
        ("Resize", 10, "nearest"),
        ("Resize", 11, "linear"),
        ("Resize", 13, "cubic"),
        ("Resize", 19, "nearest"),
    ],
)
def test_fractions_of_an_extent(
    op: str, opset: int, mode: str, factor: float, tmp_path: Path
) -> None:
    """A factor that keeps an extent (4 · 1.1) moves its elements all the same."""
    if op == "Upsample" and factor < 1:
        pytest.skip("Upsample makes nothing smaller")
    inputs = "x s" if opset < 11 else "x roi s"
    scales = np.array([1, 1, 2 if factor > 1 else 1, factor], np.float32)
    known = {"s": scales, "roi": np.zeros(0, np.float32)}
    proto = model(node(op, inputs, mode=mode), {"x": (1, 1, 3, 10)}, known, opset=opset)
    assert_same(proto, tmp_path, {"x": normal(1, 1, 3, 10)})
    scales[2:] = 2, 1.1
    proto = model(node(op, inputs, mode=mode), {"x": (1, 2, 3, 4)}, known, opset=opset)
    assert_same(proto, tmp_path, {"x": normal(1, 2, 3, 4)})


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_one_factor_for_some_axes_leaves_the_others(policy: str, tmp_path: Path) -> None:
    attrs = {"axes": [3, 2], "mode": "cubic", "keep_aspect_ratio_policy": policy}
    sizes = {"z": np.array([15, 10])}
    proto = model(node("Resize", "x _ _ z", **attrs), {"x": (1, 2, 5, 7)}, sizes, opset=18)
    assert_same(proto, tmp_path, {"x": normal(1, 2, 5, 7)})


def test_the_size_of_what_is_cropped_and_resized(tmp_path: Path) -> None:
    attrs = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
    given = {"roi": np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 0.9], "f4")}
    given["s"] = np.array([1, 1, 1.5, 0.8], "f4")
    proto = model(node("Resize", "x roi s", **attrs), {"x": (1, 1, 6, 5)}, given, opset=13)
    assert_same(proto, tmp_path, {"x": normal(1, 1, 6, 5)})


# --- functions and compound operators ---------------------------------------------------------


@pytest.mark.parametrize(("size", "corners"), [((3, 4), 0), ((3, 4), 1), ((2, 3, 4), 1)])
def test_affine_grid_of_one_image(size: Sequence[int], corners: int, tmp_path: Path) -> None:
    n = len(size)
    constants = {"s": np.array([1, 1, *size])}
    grid = node("AffineGrid", "t s", align_corners=corners)
    proto = model(grid, {"t": (1, n, n + 1)}, constants, opset=20)
    assert_same(proto, tmp_path, {"t": normal(1, n, n + 1)}, "reference")


@pytest.mark.parametrize(
    ("own", "body"),
    [
        (11, node("Squeeze", "x", axes=[0])),
        (6, node("Clip", "x", min=-0.5, max=0.5)),
        (2, node("Pad", "x", pads=[0, 0, 1, 0, 0, 1])),
        (11, node("ReduceSum", "x", axes=[1])),
        (9, node("Upsample", "x s", mode="nearest")),
        (11, node("Unsqueeze", "x", axes=[0])),
    ],
)
def test_a_function_with_an_opset_of_its_own(own: int, body: Any, tmp_path: Path) -> None:
    imports = [helper.make_opsetid("", own)]
    function = helper.make_function("my", "F", list(body.input), ["y"], [body], imports)
    call = helper.make_node("F", list(body.input), ["y"], domain="my")
    constants = {"s": np.array([1, 2, 1], "f4")}
    proto = of_ports([call], {"x": (1, 2, 3)}, ["y"], constants, [function])
    alone = model([body], {"x": (1, 2, 3)}, constants, opset=own)
    found = results(proto, {"x": normal(1, 2, 3)}, tmp_path)["y"]
    want = results(alone, {"x": normal(1, 2, 3)}, tmp_path)["y"]
    np.testing.assert_array_equal(found, want)


def test_a_function_whose_opset_writes_an_operator_alike(tmp_path: Path) -> None:
    """Softmax of opset 11 in a model of 17: ONNX Runtime and the reference take the model's."""
    imports = [helper.make_opsetid("", 11)]
    body = [node("Softmax", "x")]
    function = helper.make_function("my", "F", ["x"], ["y"], body, imports)
    call = helper.make_node("F", ["x"], ["y"], domain="my")
    proto = of_ports([call], {"x": (1, 2, 3)}, ["y"], functions=[function])
    assert_same(proto, tmp_path, {"x": normal(1, 2, 3)})


def test_names_stay_short_however_deep_branches_lie(tmp_path: Path) -> None:
    """Names of unfolded tensors doubled with every level: 800 MB for 24 of them."""
    x = ports({"t0": (4,)})
    graph = helper.make_graph([node("Neg", "x", "t0")], "b", [], x)
    for n in range(1, 24):
        other = helper.make_graph([node("Relu", "x", f"e{n}")], "b", [], ports({f"e{n}": (4,)}))
        choice = node("If", "c", f"t{n}", then_branch=graph, else_branch=other)
        graph = helper.make_graph([choice], "b", [], ports({f"t{n}": (4,)}))
    choice = node("If", "c", "y", then_branch=graph, else_branch=graph)
    proto = of_ports([choice], {"x": (4,)}, ["y"], {"c": np.array(True)})
    network = build_network(save(proto, tmp_path))
    assert max(map(len, network.values)) < 2000
    np.testing.assert_array_equal(execute(network, {"x": normal(4)})["y"], -normal(4))


def test_a_model_without_the_standard_operators_is_refused_by_operator(tmp_path: Path) -> None:
    call = helper.make_node("Adagrad", ["x"], ["y"], domain="ai.onnx.preview.training")
    proto = of_ports([call], {"x": (4,)}, ["y"])
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("ai.onnx.preview.training", 1))
    with pytest.raises(AutotuneError, match="Adagrad"):
        build_network(save(proto, tmp_path))


# --- refusals ---------------------------------------------------------------------------------


def test_all_that_several_passes_refuse_is_named_at_once(tmp_path: Path) -> None:
    """Weights, indices and types that are refused by different passes, with counts and reasons."""
    nodes = [
        node("CumSum", "v k", "a"),
        node("CumSum", "w k", "b"),
        node("Add", "a b", "c"),
        node("Trilu", "c k", "e"),
        node("ScatterND", "e i u", "y", reduction="median"),
    ]
    shapes = {"v": (2, 2, 5), "w": (2, 2, 5), "i": (2, 2), "k": (), "u": (2, 5)}
    proto = model(nodes, shapes, types=dict.fromkeys("ik", "int64"))
    with pytest.raises(AutotuneError) as caught:
        build_network(save(proto, tmp_path))
    for part in (
        "3 operators are not supported",
        "'CumSum' (2 nodes, first 'a': its axis is computed at run time)",
        "'Trilu' (1 node, 'e': its diagonal is computed at run time)",
        "'ScatterND' (1 node, 'y'",
    ):
        assert part in caught.value.message
    assert "change the model" in caught.value.hint


def test_unknown_operators_are_counted_and_the_hint_is_for_a_user(tmp_path: Path) -> None:
    inner = ports({"z": (4,)})
    body = helper.make_graph([node("RandomNormalLike", "x", "z")], "b", [], inner)
    nodes = [
        node("NonZero", "x", "n"),
        node("NonZero", "x", "m"),
        helper.make_node("Foo", ["x"], ["f"], domain="my"),
        node("If", "c", "z", then_branch=body, else_branch=body),
        node("Unique", "x", "u"),
    ]
    proto = of_ports(nodes, {"x": (4,), "c": ()}, ["n", "m", "f", "z", "u"])
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.BOOL
    with pytest.raises(AutotuneError) as caught:
        build_network(save(proto, tmp_path))
    for part in (
        "'NonZero' (2 nodes, first 'n')",
        "'my.Foo' (1 node, 'f')",
        "'RandomNormalLike'",
        "'If'",
    ):
        assert part in caught.value.message
    assert "cut it there" in caught.value.hint


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("LayerNormalization", {"axis": 2**31}),
        ("LayerNormalization", {"axis": -(2**40)}),
        ("Softmax", {"axis": 7}),
        ("Concat", {"axis": -4}),
        ("Flatten", {"axis": 4}),
        ("Split", {"axis": 3, "num_outputs": 1}),
        ("Gather", {"axis": 2**62}),
        ("ArgMax", {"axis": -9}),
        ("LpNormalization", {"axis": 2**33}),
        ("Hardmax", {"axis": 5}),
        ("DequantizeLinear", {"axis": 2**35}),
    ],
)
def test_an_axis_outside_of_a_tensor_is_refused_by_node(
    op: str, attrs: Mapping[str, object], tmp_path: Path
) -> None:
    """Inference of the `onnx` package reads outside of the shape for some of them, and crashes."""
    inputs = "x w" if op in ("LayerNormalization", "Gather", "DequantizeLinear") else "x"
    proto = model(node(op, inputs, **attrs), {"x": (2, 3, 4)}, {"w": np.ones(4, "f4")}, opset=18)
    with pytest.raises(ModelError, match=op):
        build_network(save(proto, tmp_path))


# --- malformed models -------------------------------------------------------------------------

ONES = {name: np.ones(shape, np.float32) for name, shape in (("w3", 3), ("w5", 5), ("w24", (2, 4)))}
INDEX = {"at": np.array([9]), "nd": np.array([[9]]), "five": np.array(5), "three": np.array([3])}


@pytest.mark.parametrize(
    ("op", "inputs", "shape", "attrs"),
    [
        ("Reshape", "x three", (4,), {}),
        ("Gather", "x at", (4,), {}),
        ("GatherElements", "x at", (4,), {}),
        ("GatherND", "x nd", (4,), {}),
        ("ScatterND", "x nd w1", (4,), {}),
        ("CumSum", "x five", (4,), {}),
        ("PRelu", "x w3", (4,), {}),
        ("PRelu", "x w24", (4,), {}),
        ("LayerNormalization", "x w3", (2, 4), {}),
        ("InstanceNormalization", "x w5 w5", (1, 3, 2, 2), {}),
        ("Conv", "x k w5", (1, 3, 4, 4), {}),
        ("Conv", "x k", (1, 4, 4, 4), {}),
        ("Conv", "x k", (1, 3, 4, 4), {"group": 0}),
        ("ConvTranspose", "x k w5", (1, 2, 4, 4), {}),
        ("Gemm", "x m w3", (2, 5), {}),
        ("DepthToSpace", "x", (1, 6, 2, 2), {"blocksize": 2}),
        ("SpaceToDepth", "x", (1, 2, 5, 4), {"blocksize": 2}),
        ("LRN", "x", (1, 3, 2, 2), {"size": 0}),
        ("Cast", "x", (4,), {"to": 0}),
        ("Relu", "x x", (4,), {}),
        ("Relu", "x", (4,), {"foo": 1}),
        ("Relu", "nope", (4,), {}),
        ("Softmax", "x", (4,), {"axis": "a"}),
        ("Transpose", "x", (4,), {"perm": [0, 0]}),
        ("LSTM", "x lw lr", (3, 1, 4), {"hidden_size": 7}),
        ("LSTM", "x lw lr", (3, 1, 5), {"hidden_size": 2}),
        ("GRU", "x lw lr", (3, 1, 4), {"hidden_size": 2}),
        ("LSTM", "x lw lr", (3, 1, 4), {"hidden_size": 2, "direction": "sideways"}),
        ("LSTM", "x lw lr", (3, 1, 4), {"hidden_size": 2, "activations": ["Tanh"]}),
    ],
)
def test_what_does_not_fit_together_is_refused_by_node(
    op: str, inputs: str, shape: Sequence[int], attrs: Mapping[str, object], tmp_path: Path
) -> None:
    constants = {**ONES, **INDEX, "w1": np.ones(1, "f4"), "k": np.ones((2, 3, 1, 1), "f4")}
    constants |= {"m": np.ones((5, 4), "f4")}
    constants |= {"lw": np.ones((1, 8, 4), "f4"), "lr": np.ones((1, 8, 2), "f4")}
    proto = model(node(op, inputs, **attrs), {"x": shape}, constants)
    with pytest.raises(ModelError, match=op) as caught:
        build_network(save(proto, tmp_path))
    assert "y" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("data", "dims"), [(b"123", 4), (b"", 4), (b"0" * 16, 2**40), (b"0" * 16, -4)]
)
def test_an_initialiser_whose_data_do_not_fit_is_refused_by_name(
    data: bytes, dims: int, tmp_path: Path
) -> None:
    proto = model(node("Add", "x w"), {"x": (4,)})
    proto.graph.initializer.add(name="w", data_type=1, dims=[dims], raw_data=data)
    with pytest.raises(ModelError, match="w"):
        build_network(save(proto, tmp_path))


@pytest.mark.parametrize("place", ["gone.bin", "../out.bin", "/etc/hostname", "", "short.bin"])
def test_external_data_that_are_missing_or_elsewhere(place: str, tmp_path: Path) -> None:
    proto = model(node("Add", "x w"), {"x": (2000,)})
    tensor = proto.graph.initializer.add(name="w", data_type=1, dims=[2000])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    (tmp_path / "short.bin").write_bytes(b"0" * 100)
    with pytest.raises(ModelError, match="w"):
        build_network(save(proto, tmp_path))
