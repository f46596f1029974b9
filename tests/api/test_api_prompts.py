"""Prompts of any length: a row for each place, whatever extents are equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx import numpy_helper

import autotune
from autotune.graph.state import NO_ROWS, assumed_axes, rows_axes
from autotune.network.artifact.artifact import Artifact
from autotune.network.artifact.steps import parts_of
from autotune.network.runtime.loading import load, model_of
from tests.random_decoders import Decoder, different

COLLIDING = Decoder(numbers=(1, 0), vocabulary=4, heads=4, size=4, hidden="turned")
"""Scores, heads and sizes of four, as prompts have places."""


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return autotune.compile(COLLIDING.model(), scores="all", **COLLIDING.arguments()).artifact


def test_prompts_have_a_row_for_each_place(
    artifact: Artifact, tmp_path: Path, rng: np.random.Generator
) -> None:
    artifact.save(tmp_path / "decoder.atn")
    plain = COLLIDING.plain()
    for model in (model_of(artifact), load(tmp_path / "decoder.atn")):
        session = model.session()
        plain.reset()
        for n in (4, 8, 1, 3):  # up to the capacity
            tokens = COLLIDING.tokens(rng, n)
            model.spoil()
            found = session.run({"input_ids": tokens})
            assert not different(found, plain(tokens), 1e-5)
        session.reset()
        plain.reset()
        tokens = COLLIDING.tokens(rng, COLLIDING.capacity)  # more than one prefill
        assert not different(session.run({"input_ids": tokens}), plain(tokens), 1e-5)


def test_nothing_behind_a_prompt_is_written(artifact: Artifact, rng: np.random.Generator) -> None:
    """Behind the last place of a head are those of the next one."""
    session = model_of(artifact).session()
    places = [session.rows(name, 0, session.capacity) for name in session.buffers]
    for n in (3, 5, 2, 6):
        for rows in places:
            rows[...] = 77
        session.run({"input_ids": COLLIDING.tokens(rng, n)})
        for name in session.buffers:
            assert (session.rows(name, session.length, session.capacity) == 77).all()


def test_axes_are_found_among_equal_extents(rng: np.random.Generator) -> None:
    for _ in range(2000):
        n, m = (int(k) for k in rng.permutation(5)[:2] + 1)
        shapes = {k: [int(e) for e in rng.integers(1, 6, rng.integers(0, 5))] for k in "abcdef"}
        at, other, axes = {}, {}, {}
        for name, shape in shapes.items():
            kind = rng.integers(3) if shape else 0
            axis = int(rng.integers(len(shape))) if shape else 0
            moved = {1: (n, m), 2: (n + 1, m + 1)}.get(int(kind))
            at[name] = [moved[0] if moved and d == axis else e for d, e in enumerate(shape)]
            other[name] = [moved[1] if moved and d == axis else e for d, e in enumerate(shape)]
            if moved:
                axes[name] = axis if kind == 1 else NO_ROWS
        assert rows_axes(at, n, other, m) == axes
        for name, axis in assumed_axes(at, n).items():  # never one of two
            assert at[name][1:].count(n) == 1 or axis == NO_ROWS


def attending(kind: str) -> onnx.ModelProto:
    """One layer of attention: to "all" places of a prompt, or causal with scores times the log of
    the number of places."""
    rng, value = np.random.default_rng(0), oh.make_tensor_value_info
    weights = {n: rng.standard_normal((8, 8)).astype(np.float32) for n in ("key", "value")}
    weights["table"] = rng.standard_normal((20, 8)).astype(np.float32)
    nodes = [oh.make_node("Gather", ["table", "input_ids"], ["x"])]
    for name in ("key", "value"):
        nodes.append(oh.make_node("MatMul", ["x", name], [f"new_{name}"]))
        pair = [f"past.0.{name}", f"new_{name}"]
        nodes.append(oh.make_node("Concat", pair, [f"present.0.{name}"], axis=1))
    nodes.append(oh.make_node("Transpose", ["present.0.key"], ["t"], perm=[0, 2, 1]))
    nodes.append(oh.make_node("MatMul", ["x", "t"], ["s"]))
    scores = "s"
    if kind == "scaled":
        nodes += [
            oh.make_node("Shape", ["present.0.key"], ["n"], start=1, end=2),
            oh.make_node("Cast", ["n"], ["f"], to=1),
            oh.make_node("Log", ["f"], ["k"]),
            oh.make_node("Mul", ["s", "k"], ["scaled"]),
        ]
        scores = "scaled"
    nodes.append(oh.make_node("Softmax", [scores], ["a"], axis=-1))
    nodes.append(oh.make_node("MatMul", ["a", "present.0.value"], ["logits"]))
    caches = [f"0.{name}" for name in ("key", "value")]
    inputs = [value("input_ids", 7, [1, "new"])]
    inputs += [value(f"past.{n}", 1, [1, "past", 8]) for n in caches]
    outputs = [value("logits", 1, [1, "new", 8])]
    outputs += [value(f"present.{n}", 1, [1, "past + new", 8]) for n in caches]
    arrays = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = oh.make_graph(nodes, "g", inputs, outputs, arrays)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all", "scaled"])
def test_prompts_that_do_not_divide_are_computed_as_a_whole(kind: str, tmp_path: Path) -> None:
    runtime: Any = pytest.importorskip("onnxruntime")
    path, rng = tmp_path / "decoder.onnx", np.random.default_rng(0)
    onnx.save(attending(kind), path)
    plain = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    session = autotune.InferenceSession(path, capacity=12, threads=1)
    caches = {f"past.0.{n}": np.zeros((1, 0, 8), np.float32) for n in ("key", "value")}
    ours = theirs = caches
    for n in (3, 1, 1):
        tokens = {"input_ids": rng.integers(0, 20, (1, n))}
        found, expected = session.run(None, tokens | ours), plain.run(None, tokens | theirs)
        for one, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, right, atol=1e-4)
        ours, theirs = (dict(zip(caches, made[1:], strict=True)) for made in (found, expected))


def test_a_prompt_is_one_call_and_a_longer_one_several() -> None:
    """A rest of one place is a decode step."""
    prefill, token = range(2, 513), range(1, 2)
    assert parts_of(300, [token, prefill]) == [300]
    assert parts_of(1024, [token, prefill]) == [512, 512]
    assert parts_of(1025, [prefill, token]) == [512, 512, 1]
    assert parts_of(1, [prefill, token]) == [1]
    assert parts_of(17, [prefill, token], most=9) == [9, 8]
    chunks = [range(n, n + 1) for n in (1, 128, 8, 32)]  # where a prefill follows no length
    assert parts_of(300, chunks) == [128, 128, 32, 8, 1, 1, 1, 1]
    assert parts_of(5, [range(3, 4)]) == [3]  # and a rest that nothing is for
