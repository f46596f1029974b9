"""Casts are roundings that a model asks for: NumPy's and ml_dtypes' conversions, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from autotune.graph.network import build_network
from autotune.network.compile.compiler import compile_network
from autotune.network.runtime.runtime import Model
from autotune.search.defaults import default_steps
from autotune.target import parse_target, runs_here
from tests.graph.onnx_models import model, node, save

Array = NDArray[Any]
TARGETS = [t for t in map(parse_target, ("x86-64-v3", "x86-64-v4")) if runs_here(t)]
TYPES: dict[str, type[Any]] = {
    "FLOAT16": np.float16,
    "BFLOAT16": ml_dtypes.bfloat16,
    "DOUBLE": np.float64,
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn,
    "FLOAT8E5M2": ml_dtypes.float8_e5m2,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
}
TINY = [1 / 3, -1 / 3, 1e-9, 6e-8, 1e-5, 0.0, -0.0]
"""No denormal numbers, which count as zero."""
SMALL = [0.5, 1.5, 2.5, -2.5, 100, -100, 7.9]
"""Whole numbers of all types."""
LARGE = [128, 200, 257, 300, -129, 2049, 4097, 40000, 65504, 65519, 65520, -70000, 1e5, 1e9]
ENDS = [3e38, 1e10, -1e19, np.inf, -np.inf, np.nan]


def casts(names: Sequence[str], moves: bool, saturate: int = 1) -> list[NodeProto]:
    """To each of the types and back to float32, with or without a rearrangement behind each."""
    nodes, last = [], "x"
    for n, name in enumerate((*names, "FLOAT")):
        more = {"saturate": saturate} if name.startswith("FLOAT8") else {}
        made = "y" if name == "FLOAT" else f"c{n}"
        nodes.append(node("Cast", last, made, to=TensorProto.DataType.Value(name), **more))
        last = made
        if moves and name != "FLOAT":
            nodes.append(node("Reshape", f"{last} s", f"r{n}"))
            nodes.append(node("Transpose", f"r{n}", f"t{n}", perm=[1, 0]))
            last = f"t{n}"
    return nodes


def converted(x: Array, names: Sequence[str], moves: bool) -> Array:
    with np.errstate(all="ignore"):
        for name in names:
            x = x.astype(TYPES[name])
            x = x.reshape(2, -1).T if moves else x
        return x.astype(np.float32)


def outputs(proto: ModelProto, x: Array, folder: Path) -> list[Array]:
    """Of the compiled network, for every target."""
    network = build_network(save(proto, folder))
    found = []
    for target in TARGETS:
        steps = {key: default_steps(dag, target, 1) for key, dag in network.tasks.items()}
        found.append(Model(compile_network(network, steps, target), 1).run({"x": x})["y"])
    return found


FLOATS = [["FLOAT16"], ["BFLOAT16"], ["DOUBLE"], ["FLOAT16", "BFLOAT16"], ["BFLOAT16", "FLOAT16"]]
FLOATS += [["FLOAT16", "DOUBLE", "FLOAT16"], ["DOUBLE", "FLOAT16"]]
SMALL_FLOATS = [["FLOAT8E4M3FN"], ["FLOAT8E5M2"], ["FLOAT16", "FLOAT8E4M3FN"]]
INTEGERS = [["INT8"], ["INT32"], ["UINT8", "FLOAT16"], ["INT16", "FLOAT16"], ["FLOAT16", "INT32"]]
NARROWED = [["INT32", "INT8"], ["INT64", "UINT8"], ["INT32", "BFLOAT16"], ["INT64", "INT16"]]


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("names", FLOATS + SMALL_FLOATS, ids="-".join)
def test_a_pair_of_casts_rounds_and_overflows(
    names: list[str], moves: bool, tmp_path: Path
) -> None:
    """Without saturation, so that what is too large becomes infinite, or NaN."""
    x = np.array([*TINY, *SMALL, *LARGE, *ENDS, 448, 465], np.float32)
    x = x.reshape(2, -1) if moves else x
    nodes = casts(names, moves, saturate=0)
    proto = model(nodes, {"x": x.shape}, {"s": np.array([2, -1])}, opset=19)
    for found in outputs(proto, x, tmp_path):
        np.testing.assert_array_equal(found, converted(x, names, moves))


@pytest.mark.parametrize("name", ["FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_a_saturated_cast_ends_at_the_largest_number(name: str, tmp_path: Path) -> None:
    x = np.array([*TINY, *SMALL, *LARGE, *ENDS], np.float32)
    high = float(ml_dtypes.finfo(TYPES[name]).max)
    proto = model(casts([name], False), {"x": x.shape}, opset=19)
    for found in outputs(proto, x, tmp_path):
        np.testing.assert_array_equal(found, converted(np.clip(x, -high, high), [name], False))


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("names", INTEGERS + NARROWED, ids="-".join)
def test_a_pair_of_casts_cuts_fractions_and_wraps(
    names: list[str], moves: bool, tmp_path: Path
) -> None:
    """Of what the first type has; from integers to narrower ones the lowest bits remain."""
    fits = SMALL if len(names) == 1 or names[0] == "UINT8" else [*SMALL, *LARGE]
    kind = TYPES[names[0]]
    least, most = (0, 255) if kind == np.uint8 else (-(2**15), 2**15 - 1)
    wide = names[0] in ("INT32", "INT64", "FLOAT16")
    x = np.array([v for v in fits if wide or least <= v <= most], np.float32)
    x = x[np.abs(x) < 65504] if names[0] == "FLOAT16" else x
    x = x[: len(x) // 2 * 2].reshape(2, -1) if moves else x
    proto = model(casts(names, moves), {"x": x.shape}, {"s": np.array([2, -1])}, opset=19)
    for found in outputs(proto, x, tmp_path):
        np.testing.assert_array_equal(found, converted(x, names, moves))


@pytest.mark.parametrize("door", ["like", "branch", "function", "constant"])
def test_a_cast_rounds_wherever_it_stands(door: str, tmp_path: Path) -> None:
    """CastLike, branches, functions of the model, and constants."""
    x = np.array([*TINY, *SMALL, *LARGE], np.float32)
    half = node("Cast", "x", "h", to=TensorProto.FLOAT16)
    back = node("Cast", "h", to=TensorProto.FLOAT)
    nodes, constants = [half, back], {"c": np.array(True), "l": np.ones(1, np.float16)}
    if door == "like":
        nodes = [node("CastLike", "x l", "h"), back]
    elif door == "branch":
        made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        body = helper.make_graph([half, back], "branch", [], [made])
        nodes = [node("If", "c", "y", then_branch=body, else_branch=body)]
    elif door == "function":
        nodes = [helper.make_node("Round16", ["x"], ["y"], domain="own")]
    elif door == "constant":
        constants["k"] = x
        half.input[0] = "k"
        nodes = [half, node("Cast", "h", "w", to=TensorProto.FLOAT), node("Max", "w x")]
    proto = model(nodes, {"x": x.shape}, constants, opset=17)
    if door == "function":
        imports = [helper.make_opsetid("", 17)]
        proto.functions.append(
            helper.make_function("own", "Round16", ["x"], ["y"], [half, back], imports)
        )
        proto.opset_import.append(helper.make_opsetid("own", 1))
    expected = converted(x, ["FLOAT16"], False)
    expected = np.maximum(x, expected) if door == "constant" else expected
    for found in outputs(proto, x, tmp_path):
        np.testing.assert_array_equal(found, expected)


def transformer(blocked: bool) -> ModelProto:
    """A block in float16 as converters write it; `blocked`: some operators stay in float32."""
    nodes: list[NodeProto] = [node("Cast", "x", "h", to=TensorProto.FLOAT16)]

    def add(op: str, inputs: str, output: str, **attrs: object) -> None:
        nodes.append(node(op, inputs, output, **attrs))

    def in_float32(op: str, inputs: str, output: str, **attrs: object) -> None:
        if not blocked:
            add(op, inputs, output, **attrs)
            return
        wide = [f"{name}.{output}" for name in inputs.split()]
        for name, to in zip(inputs.split(), wide, strict=True):
            add("Cast", name, to, to=TensorProto.FLOAT)
        add(op, " ".join(wide), f"{output}.wide", **attrs)
        add("Cast", f"{output}.wide", output, to=TensorProto.FLOAT16)

    for name in "qkv":
        add("MatMul", f"h w{name}", name)
        add("Reshape", f"{name} heads", f"{name}.r")
        perm = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        add("Transpose", f"{name}.r", f"{name}.t", perm=perm)
    add("MatMul", "q.t k.t", "scores")
    in_float32("Softmax", "scores", "shares", axis=-1)
    add("MatMul", "shares v.t", "o")
    add("Transpose", "o", "o.t", perm=[0, 2, 1, 3])
    add("Reshape", "o.t rows", "o.r")
    add("Add", "o.r h", "sum")
    in_float32("LayerNormalization", "sum g", "norm", axis=-1)
    add("MatMul", "norm wq", "z")
    nodes.append(node("Cast", "z", to=TensorProto.FLOAT))
    rng = np.random.default_rng(0)
    constants = {f"w{n}": rng.standard_normal((64, 64)).astype(np.float16) / 8 for n in "qkv"}
    shapes = {"heads": np.array([1, 32, 4, 16]), "rows": np.array([1, 32, 64])}
    return model(nodes, {"x": (1, 32, 64)}, constants | shapes | {"g": np.ones(64, np.float16)})


def test_casts_of_a_converted_model_cost_no_kernel(tmp_path: Path) -> None:
    """They are fused into what is computed before; the rows of attention stay one chain."""
    plain, blocked = (build_network(save(transformer(b), tmp_path)) for b in (False, True))
    assert len(blocked.calls) == len(plain.calls)
    assert [c.parts for c in blocked.chains] == [c.parts for c in plain.chains]
    assert len(blocked.chains) == 1
    labels = " ".join(call.label for call in blocked.calls)
    assert labels.count("ToSmallType") == 3  # of the input, the shares and the normalised rows
