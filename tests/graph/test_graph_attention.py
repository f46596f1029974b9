"""Attention of ONNX Runtime's own domain: the same numbers as it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import AutotuneError, UnsupportedOperator
from autotune.graph.network import build_network
from tests.graph.onnx_models import Array, execute, onnxruntime_outputs

RNG = np.random.default_rng(0)


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def i32(*values: Any) -> Array:
    return np.array(values, np.int32)


X, W, B = normal(RNG, 2, 4, 8), normal(RNG, 8, 24), normal(RNG, 24)
RAW = i32([1, 1, 1, 0], [0, 1, 1, 1])
ANGLES = normal(RNG, 16, 2)
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)
PROJECTED = {"x": X, "w!": W, "b!": B}
THREE = {"q": normal(RNG, 2, 4, 8), "k": normal(RNG, 2, 4, 8), "v": normal(RNG, 2, 4, 8)}
SPLIT = {"q": normal(RNG, 2, 4, 8), "k": normal(RNG, 2, 2, 5, 4), "v": normal(RNG, 2, 2, 5, 4)}
CACHE = {"pk": normal(RNG, 2, 2, 3, 4), "pv": normal(RNG, 2, 2, 3, 4)}
GROUPS = {"q": normal(RNG, 2, 1, 64), "k": normal(RNG, 2, 1, 32), "v": normal(RNG, 2, 1, 32)}
LONG = {"pk": normal(RNG, 2, 2, 6, 16), "pv": normal(RNG, 2, 2, 6, 16)}
FILLED = {"last": i32(3, 5), "total!": np.array(6, np.int32)}
PROMPT = {"q": normal(RNG, 2, 3, 64), "k": normal(RNG, 2, 3, 32), "v": normal(RNG, 2, 3, 32)}
EMPTY = {"pk": normal(RNG, 2, 2, 0, 16), "pv": normal(RNG, 2, 2, 0, 16)}
FIRST = {"last": i32(2, 2), "total!": np.array(3, np.int32)}
TABLES = {"cos!": COS, "sin!": SIN}
WIDE = {"cos!": np.cos(normal(RNG, 16, 8)), "sin!": np.sin(normal(RNG, 16, 8))}
HEADS, SHARED = {"num_heads": 2}, {"num_heads": 4, "kv_num_heads": 2}
ATTENTION, MHA, GQA = "Attention", "MultiHeadAttention", "GroupQueryAttention"

Case: TypeAlias = tuple[str, dict[str, Array], dict[str, Any], int]
CASES: dict[str, Case] = {
    "plain": (ATTENTION, PROJECTED, HEADS, 1),
    "causal": (ATTENTION, PROJECTED, {**HEADS, "unidirectional": 1, "scale": 0.3}, 1),
    "raw mask": (ATTENTION, {**PROJECTED, "m": RAW}, HEADS, 1),
    "lengths": (ATTENTION, {**PROJECTED, "m": i32(3, 2)}, HEADS, 1),
    "ends and starts": (ATTENTION, {**PROJECTED, "m": i32(4, 3, 1, 0)}, HEADS, 1),
    "past": (
        ATTENTION,
        {**PROJECTED, "m": np.ones((2, 7), np.int32), "past": normal(RNG, 2, 2, 2, 3, 4)},
        {**HEADS, "unidirectional": 1},
        2,
    ),
    "widths": (
        ATTENTION,
        {"x": X, "w!": normal(RNG, 8, 28), "b!": normal(RNG, 28)},
        {**HEADS, "qkv_hidden_sizes": [8, 8, 12]},
        1,
    ),
    "multi-head": (MHA, {**THREE, "b!": B}, HEADS, 1),
    "multi-head mask": (
        MHA,
        {**THREE, "": B, "m": RAW, "added": normal(RNG, 1, 2, 4, 4)},
        HEADS,
        1,
    ),
    "multi-head cross": (MHA, SPLIT, HEADS, 1),
    "multi-head cache": (MHA, {**THREE, "": B, " ": B, "  ": B, **CACHE}, HEADS, 3),
    "multi-head causal": (MHA, THREE, {**HEADS, "unidirectional": 1}, 1),
    "groups": (GQA, {**GROUPS, **LONG, **FILLED}, SHARED, 3),
    "groups rotated": (GQA, {**GROUPS, **LONG, **FILLED, **WIDE}, {**SHARED, "do_rotary": 1}, 3),
    "groups, first prompt": (
        GQA,
        {**PROMPT, **EMPTY, **FIRST, **WIDE},
        {**SHARED, "do_rotary": 1, "rotary_interleaved": 1},
        3,
    ),
    "groups, prompts of several lengths": (
        GQA,
        {**PROMPT, **EMPTY, **FIRST, "last": i32(0, 1), **WIDE},
        {**SHARED, "do_rotary": 1},
        3,
    ),
    "groups, prompts behind whose ends a window is empty": (
        GQA,
        {**PROMPT, **EMPTY, **FIRST, "last": i32(0, 1)},
        {**SHARED, "local_window_size": 1},
        3,
    ),
    "groups, window and cap": (
        GQA,
        {**GROUPS, **LONG, **FILLED},
        {**SHARED, "local_window_size": 2, "softcap": 2.0},
        3,
    ),
    "groups, both ways": (GQA, {**GROUPS, **LONG, **FILLED}, {**SHARED, "causal": 0}, 3),
    "groups, both ways, first prompt": (
        GQA,
        {**PROMPT, **EMPTY, **FIRST},
        {**SHARED, "causal": 0},
        3,
    ),
    "groups, cache of a window": (
        GQA,
        {**GROUPS, **LONG, **FILLED, "last": i32(5, 5)},
        {**SHARED, "local_window_size": 4, "sliding_window_cache": 1},
        3,
    ),
    "groups, smooth": (GQA, {**GROUPS, **LONG, **FILLED}, {**SHARED, "smooth_softmax": 1}, 3),
    "groups, packed": (
        GQA,
        {"q": normal(RNG, 2, 1, 128), "": X, " ": X, **LONG, **FILLED},
        SHARED,
        3,
    ),
    "quantised": (
        "QAttention",
        {
            "x": RNG.integers(0, 255, (2, 4, 8)).astype(np.uint8),
            "w!": RNG.integers(-99, 99, (8, 24)).astype(np.int8),
            "b!": B,
            "sx!": np.float32(0.01),
            "sw!": np.float32(0.02),
            "m": RAW,
            "zx!": np.uint8(120),
            "zw!": np.int8(3),
        },
        HEADS,
        1,
    ),
    "quantised by columns, with a past": (
        "QAttention",
        {
            "x": RNG.integers(0, 255, (2, 4, 8)).astype(np.uint8),
            "w!": RNG.integers(0, 255, (8, 24)).astype(np.uint8),
            "b!": B,
            "sx": np.float32([0.01]),
            "sw!": (0.01 + 0.01 * RNG.random(24)).astype(np.float32),
            "m": np.ones((2, 7), np.int32),
            "zx": np.uint8([120]),
            "zw!": RNG.integers(100, 150, 24).astype(np.uint8),
            "past": normal(RNG, 2, 2, 2, 3, 4),
        },
        {**HEADS, "unidirectional": 1, "scale": 0.3},
        2,
    ),
    "rotation": (
        "RotaryEmbedding",
        {"x": X, "at": np.array([[0, 2, 3, 5], [1, 2, 3, 4]]), **TABLES},
        {},
        1,
    ),
    "rotation from an offset": (
        "RotaryEmbedding",
        {"x": normal(RNG, 2, 2, 4, 4), "at": np.array([3]), **TABLES},
        {"interleaved": 1},
        1,
    ),
}


def model_of(case: Case) -> Any:
    """A `!` behind a name makes an initialiser, a blank name leaves the input out."""
    op, arrays, attrs, n = case
    outputs = [f"y{k}" for k in range(n)]
    names = [name.strip().rstrip("!") for name in arrays]
    node = helper.make_node(op, names, outputs, domain="com.microsoft", **attrs)
    given = {k: a for k, a in arrays.items() if k.strip() and not k.endswith("!")}
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for k, a in given.items()
        ],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [
            numpy_helper.from_array(np.asarray(a), k[:-1])
            for k, a in arrays.items()
            if k.endswith("!")
        ],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9), given


@pytest.mark.parametrize("name", CASES)
def test_attention_as_onnxruntime_has_it(name: str, tmp_path: Path) -> None:
    proto, feeds = model_of(CASES[name])
    onnx.save(proto, tmp_path / "model.onnx")
    found = execute(build_network(tmp_path / "model.onnx"), feeds)
    for output, want in onnxruntime_outputs(proto, feeds).items():
        np.testing.assert_allclose(found[output], want, rtol=2e-5, atol=2e-5, err_msg=output)


def test_masks_join_the_product_of_heads_that_share_keys(tmp_path: Path) -> None:
    """So that scores, their mask and their shares may be one task, which keeps them in a cache."""
    onnx.save(model_of(CASES["groups, first prompt"])[0], tmp_path / "model.onnx")
    network = build_network(tmp_path / "model.onnx")
    assert len(network.chains) == 1
    first, *_ = network.chains[0].parts
    assert "MatMul" in network.calls[first].label
    assert "Where" in network.calls[first].label


def test_a_total_length_at_run_time_is_refused_with_what_binds_it(tmp_path: Path) -> None:
    op, arrays, attrs, n = CASES["groups"]
    arrays = {name.replace("total!", "total"): a for name, a in arrays.items()}
    onnx.save(model_of((op, arrays, attrs, n))[0], tmp_path / "model.onnx")
    with pytest.raises(UnsupportedOperator, match="`constants`"):
        build_network(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("arrays", "attrs", "message"),
    [
        (
            {"pk": normal(RNG, 2, 2, 6, 8), "pv": normal(RNG, 2, 2, 6, 8)},
            {},
            r"not \(2, 2, …, 16\)",
        ),
        ({}, {"local_window_size": 7, "sliding_window_cache": 1}, "a cache of 6 for a window of 7"),
        (
            {"total!": np.array(7, np.int32)},
            {"local_window_size": 4, "sliding_window_cache": 1},
            "older than the window",
        ),
    ],
)
def test_a_cache_that_does_not_fit_is_refused(
    arrays: dict[str, Array], attrs: dict[str, Any], message: str, tmp_path: Path
) -> None:
    case = GQA, {**GROUPS, **LONG, **FILLED, **arrays}, {**SHARED, **attrs}, 3
    onnx.save(model_of(case)[0], tmp_path / "model.onnx")
    with pytest.raises(AutotuneError, match=message):
        build_network(tmp_path / "model.onnx")
