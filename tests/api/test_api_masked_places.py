"""Steps that follow no length compute all places of the capacity, and a note says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest

import autotune
from autotune.api.bindings import bind
from autotune.api.request import CompileRequest
from autotune.graph import grown_networks
from autotune.graph.lengths.imports import LengthModel, NotLifted
from autotune.graph.network import Network
from autotune.network.runtime.loading import model_of
from tests.api.test_api_sessions import plain_loop, tokens_of
from tests.decoders import decoder
from tests.small_decoders import TOKENS, WIDTH

PLACES = 24


def of_two_kinds() -> onnx.ModelProto:
    """A cache of 24 places, then one that grows, each masked by positions of its own."""
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {n: rng.standard_normal((WIDTH, WIDTH)) / 3 for n in ("w0", "w1")}
    weights |= {"table": rng.standard_normal((TOKENS, WIDTH)), "low": -3e38, "none": 0.0}
    weights = {n: np.asarray(a, np.float32) for n, a in weights.items()}
    weights |= {"every0": np.arange(PLACES), "zero": np.array(0), "one": np.array(1)}
    weights |= {"first": np.array([0]), "last": np.array([-1])}
    nodes: list[onnx.NodeProto] = []

    def add(op: str, inputs: str, made: str, **attrs: Any) -> str:
        nodes.append(oh.make_node(op, inputs.split(), [made], made, **attrs))
        return made

    value, new = oh.make_tensor_value_info, "sequence"
    inputs = [value("input_ids", 7, [1, new]), value("cache_position", 7, [new])]
    outputs = [value("logits", 1, [1, new, WIDTH])]
    x = add("Gather", "table input_ids", "x0")
    add("Unsqueeze", "cache_position last", "rows")
    for n, is_static in enumerate((True, False)):
        past, present = (f"{p}.{n}.key" for p in ("past_key_values", "present"))
        made = add("MatMul", f"{x} w{n}", f"new{n}")
        if is_static:
            turned = [add("Transpose", f"{a}", f"{a}.t", perm=[1, 0, 2]) for a in (past, made)]
            add("ScatterND", f"{turned[0]} rows {turned[1]}", f"put{n}")
            add("Transpose", f"put{n}", present, perm=[1, 0, 2])
        else:
            add("Concat", f"{past} {made}", present, axis=1)
            add("Shape", present, f"shape{n}", start=1, end=2)
            add("Range", f"zero {add('Squeeze', f'shape{n}', f'total{n}')} one", f"every{n}")
        inputs.append(value(past, 1, [1, PLACES if is_static else "past", WIDTH]))
        outputs.append(value(present, 1, [1, PLACES if is_static else "total", WIDTH]))
        every = add("Unsqueeze", f"every{n} first", f"columns{n}")
        bias = add("Where", f"{add('Greater', f'{every} rows', f'hid{n}')} low none", f"bias{n}")
        keys = add("Transpose", present, f"keys{n}", perm=[0, 2, 1])
        scores = add("Add", f"{add('MatMul', f'{x} {keys}', f'scores{n}')} {bias}", f"biased{n}")
        shares = add("Softmax", scores, f"shares{n}", axis=-1)
        x = add("Add", f"{x} {add('MatMul', f'{shares} {present}', f'y{n}')}", f"x{n + 1}")
    add("Identity", x, "logits")
    initializers = [onnx.numpy_helper.from_array(a, n) for n, a in weights.items()]
    graph = oh.make_graph(nodes, "kinds", inputs, outputs, initializers)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=10)


def test_a_static_cache_beside_one_that_grows_is_compiled(tmp_path: Any) -> None:
    """At the capacity their masks are equal by chance, and merged; at other lengths not."""
    made = of_two_kinds()
    onnx.save(made, tmp_path / "kinds.onnx")
    notes = bind(CompileRequest(model=tmp_path / "kinds.onnx", capacity=PLACES)).notes
    assert "a step takes as long as in a full cache: the model has other operators at" in notes[-1]
    session = model_of(autotune.compile(made, capacity=PLACES).artifact).session()
    runtime = pytest.importorskip("onnxruntime").InferenceSession(made.SerializeToString())
    states = [np.zeros((1, n, WIDTH), np.float32) for n in (PLACES, 0)]
    names, filled = [f"past_key_values.{n}.key" for n in (0, 1)], 0
    for n in (5, 1, 9, 1, 1):
        tokens = tokens_of(n, n) % TOKENS
        given = {"input_ids": tokens, "cache_position": np.arange(filled, filled + n)}
        wanted, *states = runtime.run(None, given | dict(zip(names, states, strict=True)))
        np.testing.assert_allclose(session.step(tokens), wanted[:, -1:], atol=1e-5)
        filled += n


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"shared": 1}, {}),
        ({"mask": False}, {"sessions": [2]}),
        ({}, {"cache_type": "int8"}),
        ({"shared": 1}, {"precision": "bf16"}),
    ],
)
def test_masked_steps_give_what_the_file_gives(
    model: dict[str, Any], told: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling checks them, too, behind lengths of every kind."""
    before = grown_networks.lifted

    def lifted(of: LengthModel) -> Network:
        if of.mosts:
            raise NotLifted("it is not to be")
        return before(of)

    monkeypatch.setattr(grown_networks, "lifted", lifted)
    made = decoder(**model)
    compiled = autotune.compile(made, capacity=PLACES, **told)
    assert not any(v.lengths for v in compiled.artifact.variants)
    session, expected = model_of(compiled.artifact).session(), plain_loop(made)
    for n in (3, 1, 8, 1):
        found, wanted = session.step(tokens_of(n, n)), expected(tokens_of(n, n))
        np.testing.assert_allclose(found, wanted[:, -1:], atol=0.2 if told else 1e-5)
